"""Draw the figures of exercise 14, from emulated runs of its solution: python tools/online_softmax_figures.py [--check]

`events.svg` shows an order, never times. `rescales.svg` shows ahead of which blocks each warp stored O.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import solution_figures
from ladder_figures import TILE_COLOURS, Drawing, Event, recording
from solution_figures import kernel_source, run_source

import emulator
from emulator.instructions import tcgen05

EXERCISE = "exercise_14"
BLOCKS, SEED = 5, 2  # of events.svg; an order in which scores are computed beside a softmax
KEYS, THRESHOLDS = 1024, (0, 8)  # of rescales.svg
O_COLUMN = 256  # where O begins in TMEM
Mark = tuple[str, int]  # row of events.svg, block


def build(scratch: Path, **params: int) -> emulator.Kernel:
    """The solution for one head of 128 queries, D = 64, ready to run. TVM reads the source from a file."""
    namespace = run_source(kernel_source(EXERCISE), scratch)
    return emulator.compile(namespace["build_attention"](H=1, SQ=128, D=64, causal=0, **params))


def launch(kernel: emulator.Kernel, keys: int, **options: Any) -> None:
    """Run on random numbers."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, n, 64)).astype(np.float16) for n in (128, keys, keys))
    assert kernel.run(q, k, v, np.empty((1, 128, 64), np.float16), **options).findings == ()


def marks(events: list[Event]) -> list[Mark]:
    """What happened to which block, in the order of the run; of the MMAs of a product the first one."""
    out: list[Mark] = []
    counts: dict[str, int] = {}
    for event in events:
        if event.kind == "mma":
            row, per_block = ("o", 8) if event.number >= O_COLUMN else ("s", 4)
        elif event.kind == "phase" and event.name.partition("[")[0] in ("k_full", "s_full", "p_full"):
            row, per_block = event.name.partition("[")[0], 1
        else:
            continue
        block, inside = divmod(counts.get(row, 0), per_block)
        counts[row] = counts.get(row, 0) + 1
        if inside == 0:
            out.append((row, block))
    return out


def draw_events(order: list[Mark], width: int = 900) -> Drawing:
    """Rows for arriving blocks, for both products, and for the two slots while softmax has them."""
    rows = {
        "k_full": "K is in SMEM",
        "s": "MMA: S = Q Kᵀ",
        "0": "softmax, slot 0",
        "1": "softmax, slot 1",
        "o": "MMA: O += P V",
    }
    left, top, height = 150, 20, 40
    step = (width - left - 20) / len(order)
    words = {
        "k_full": "K of",
        "s": "scores of",
        "s_full": "softmax begins",
        "p_full": "softmax ends",
        "o": "P V of",
    }
    spoken = "; ".join(f"{words[row]} block {block}" for row, block in order)
    drawing = Drawing(
        width, top + len(rows) * height + 40, "Three roles, five blocks", f"In this order: {spoken}."
    )
    for r, label in enumerate(rows.values()):
        y = top + r * height
        drawing.text(left - 10, y + 19, label, 11.5, "end", bold=True)
        drawing.line(left, y + 34, width - 20, y + 34)
    for i, (row, block) in enumerate(order):
        x, colour = left + i * step, TILE_COLOURS[block % len(TILE_COLOURS)]
        if row == "s_full":
            end = order.index(("p_full", block)) - i + 1
            y = top + list(rows).index(str(block % 2)) * height
        elif row in rows:
            end, y = 1, top + list(rows).index(row) * height
        else:
            continue
        drawing.box(x, y, end * step - 1, 28, colour)
        drawing.text(x + end * step / 2, y + 18, str(block), 10.5)
    under = "order of events, from left to right; the numbers are blocks"
    drawing.text(left + (width - left) / 2, top + len(rows) * height + 22, under, 12)
    return drawing


@contextmanager
def recording_rescales(stored: set[tuple[int, int]]) -> Iterator[None]:
    """Add (warp, block) to `stored` when a warp stores O ahead of the product of a block."""
    before = tcgen05._hb_ldst
    blocks = [0] * 4

    def on_ldst(
        t: Any, column: int, columns: int, positions: Any, shape: str, bases: Any, store: bool
    ) -> None:
        before(t, column, columns, positions, shape, bases, store)
        for warp in {t.warps[p] for p in positions} if store else ():
            if column >= O_COLUMN:
                stored.add((warp, blocks[warp] - 1))
            elif column in (0, 128):  # P of the next block
                blocks[warp] += 1

    tcgen05._hb_ldst = on_ldst
    try:
        yield
    finally:
        tcgen05._hb_ldst = before


def rescales(scratch: Path, threshold: int) -> set[tuple[int, int]]:
    """(warp, block) of the rescales of O in one run."""
    stored: set[tuple[int, int]] = set()
    kernel = build(scratch, SKV=KEYS, threshold=threshold)
    with recording_rescales(stored):
        launch(kernel, KEYS)
    return stored


def draw_rescales(found: dict[int, set[tuple[int, int]]]) -> Drawing:
    """One grid per threshold: warps by blocks, filled where O was rescaled."""
    blocks, cell = KEYS // 128, 34
    spoken = " ".join(
        f"With threshold {threshold} O is rescaled in {len(pairs)} of {4 * (blocks - 1)} cases."
        for threshold, pairs in found.items()
    )
    drawing = Drawing(820, 240, "Where O is rescaled", f"{blocks} blocks of keys, four warps. {spoken}")
    for index, (threshold, pairs) in enumerate(found.items()):
        left, top = 90 + 390 * index, 56
        drawing.text(left + blocks * cell / 2, 22, f"threshold {threshold}", 14, bold=True)
        for block in range(blocks):
            drawing.text(left + (block + 0.5) * cell, top - 8, str(block), 11)
            for warp in range(4):
                fill = TILE_COLOURS[2] if (warp, block) in pairs else "#ffffff"
                drawing.box(left + block * cell, top + warp * cell, cell - 3, cell - 3, fill)
        for warp in range(4):
            drawing.text(left - 10, top + warp * cell + 20, f"warp {warp}", 11, "end")
        count = f"{len(pairs)} of {4 * (blocks - 1)} rescales"
        drawing.text(left + blocks * cell / 2, top + 4 * cell + 22, count, 12)
    drawing.text(410, 232, "blocks of 128 keys from left to right; filled: the warp loads and stores O", 11)
    return drawing


def figures(scratch: Path) -> dict[str, Drawing]:
    """File name -> figure."""
    events: list[Event] = []
    kernel = build(scratch, SKV=128 * BLOCKS, threshold=8)
    with recording(events):
        launch(kernel, 128 * BLOCKS, schedule="random", seed=SEED)
    found = {threshold: rescales(scratch, threshold) for threshold in THRESHOLDS}
    return {"events.svg": draw_events(marks(events)), "rescales.svg": draw_rescales(found)}


def main(argv: list[str] | None = None) -> int:
    """What `solution_figures.main` does, for the figures of this exercise."""
    return solution_figures.main(
        "online_softmax_figures.py",
        lambda scratch: {f"{EXERCISE}/{name}": drawing.svg() for name, drawing in figures(scratch).items()},
        argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
