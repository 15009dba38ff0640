"""A wrong element in the words of the machine: which CTA, warp and lane stored it, and which K step and stage failed."""

from __future__ import annotations

import re
from typing import Any

from autograder.checks import CaseRun, Outcome
from autograder.report.model import Grid

LANES, WARPS = 128, 32  # lanes of TMEM, and lanes of a warp


def place_of(run: CaseRun, outcome: Outcome, index: list[int]) -> str:
    """`, stored by CTA 3, warp 1, lane 5`, or nothing where it cannot be told.

    Where one warp's rows (or the elements of a vector) are exactly 32, the lane is that of the element: the emulator saw what each
    warp wrote. A TMA store belongs to the warp that issued it; then the row in its tile tells the lane of TMEM that the
    value came from.
    """
    if not index:
        return ""
    row, column = (0, index[0]) if len(index) == 1 else (index[-2], index[-1])
    if len(index) > 2:
        return ""
    own = [w for w in run.writers if w[3] <= row <= w[4] and w[5] <= column <= w[6]]
    ctas = sorted({w[0] for w in own})
    if len(ctas) != 1:
        return ""
    cta = f", stored by CTA {ctas[0]}"
    if len(own) != 1:
        return cta
    _, warp, instruction, top, bottom, left, right = own[0]
    if instruction.startswith("cp.async.bulk"):
        text = f"{cta} (TMA store of warp {warp})"
        if run.counters.get("tcgen05.ld") and (bottom - top + 1) % LANES == 0:
            lane = (row - top) % LANES
            text += f" from lane {lane} of TMEM, which is lane {lane % WARPS} of warp {lane // WARPS} of a warpgroup"
        return text
    if len(index) == 2 and bottom - top == WARPS - 1:
        return f"{cta}, warp {warp}, lane {row - top}"
    if bottom == top and right - left == WARPS - 1:
        return f"{cta}, warp {warp}, lane {column - left}"
    return f"{cta}, warp {warp}"


def explanation(seen: dict[str, Any], outcome: Outcome) -> str:
    """What the values tell about the mistake, and what their pattern does."""
    step = seen.get("k_step")
    words = seen["meaning"]
    if step and (not words or step["tile"] is not None):
        words = words or step["words"]
        stages = _stages(outcome)
        if step["tile"] is not None and stages:
            words += f" (K step {step['tile']} of {step['tiles']}, stage {step['tile'] % stages} of {stages} in the first tile)"
    guess = seen.get("guess", "")
    if guess and guess not in words:
        words = f"{words}; {guess}" if words else guess
    return words


def _stages(outcome: Outcome) -> int:
    """How many stages the learner's ring has, by the name that the stubs give it; 0 where there is no ring."""
    found = re.search(r"^STAGES\s*=\s*(\d{1,2})\b", outcome.submission.source, re.MULTILINE)
    return int(found[1]) if found else 0


def heat_map(output: str, seen: dict[str, Any]) -> list[Grid]:
    """Where the wrong elements are, as shares of blocks."""
    heat = seen.get("heat")
    if not heat or not isinstance(heat.get("shares"), list):
        return []
    shares = heat["shares"]
    height, width = len(shares), len(shares[0])
    if height * width < 2 or min(map(min, shares)) == 1:  # every element is wrong: the words say so already
        return []
    cells = [[_percent(share) for share in row] for row in shares]
    first = next((i, j) for i, row in enumerate(shares) for j, share in enumerate(row) if share > 0)
    rows = [str(i * heat["rows"]) for i in range(height)] if height > 1 else []
    block = f"{heat['rows']} x {heat['columns']}" if height > 1 else f"{heat['columns']}"
    return [
        Grid(
            title=f"wrong elements of {output}, in percent of each block of {block}",
            cells=cells,
            colours=[[-1 if share == 0 else _shade(share) for share in row] for row in shares],
            rows=rows,
            columns=[str(j * heat["columns"]) for j in range(width)],
            row_axis="row" if rows else "",
            column_axis="column" if rows else "element",
            marked=[first],
            note="empty: all right; outlined: where the first wrong element is",
        )
    ]


def _percent(share: float) -> str:
    return "" if share == 0 else "<1" if share < 0.01 else f"{100 * share:.0f}"


def _shade(share: float) -> int:
    """Yellow for a few, orange for many, pink for (nearly) all; numbers of the report's palette."""
    return 3 if share > 0.9 else 5 if share > 0.25 else 1
