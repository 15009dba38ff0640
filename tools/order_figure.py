"""Draw the order of events of a solution's main loop, from an emulated run: python tools/order_figure.py [--check].

One row per stage of SMEM shows when its K tile is being loaded and when the tensor core reads it; one row per group of
warps shows what it waits for. Positions are places in a sequence of events, never times: an operation begins where it
is issued and ends where schedule `late` completes it: when no warp can go on without it, the oldest first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

COURSE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(COURSE), str(COURSE / "tools")]

import solution_figures  # noqa: E402
from solution_figures import kernel_source, run_source  # noqa: E402
from svg import GREY, INK, Drawing  # noqa: E402

import emulator  # noqa: E402
import emulator.lowering  # noqa: E402  before kernels are built: barriers keep their names
from emulator.instructions.barrier import NamedBarrierWait  # noqa: E402
from emulator.instructions.mbarrier import MbarrierWait  # noqa: E402
from emulator.scheduler import Machine, Strand  # noqa: E402
from emulator.threads import Threads  # noqa: E402

WIDTH, LEFT, ROW, BAR = 910, 128, 40, 26
FILL = {"copy": "#ffedd5", "load": "#dbeafe", "mma": "#dcfce7", "wait": "#fde68a", "meet": "#e5e7eb"}


@dataclass
class Bar:
    """Something that lasts from one event to another. `row` is a key of the figure's rows."""

    row: str
    kind: str
    label: str
    start: int
    end: int = -1


@dataclass(frozen=True)
class Figure:
    """What to run and how to call it. `stages`: places for a K tile in SMEM."""

    exercise: str
    file: str
    title: str
    description: str
    stages: int
    k_tiles: int
    rows: dict[str, str]


FIGURES = (
    Figure(
        "exercise_06",
        "order_of_events.svg",
        "Order of events with one K tile in SMEM, filled by threads",
        "All four warps copy a K tile, the MMA reads it, and all four wait for that MMA, with parities 0, 1, 0, before"
        " they copy the next one. Nothing else happens while an MMA runs.",
        1,
        3,
        {"warps 0 to 3": "all warps", "stage 0": "SMEM"},
    ),
    Figure(
        "exercise_07",
        "order_of_events.svg",
        "Order of events with one K tile in SMEM, filled by TMA",
        "The driving thread waits for the load of K tile 0, then for its MMA, then for the load of K tile 1, and so"
        " on. Loads and MMAs take turns and never overlap. The other warps wait at the CTA sync from the beginning.",
        1,
        3,
        {"warp 0": "driving thread", "warps 1 to 3": "warps 1 to 3", "stage 0": "SMEM"},
    ),
    Figure(
        "exercise_08",
        "order_of_events.svg",
        "Order of events with a ring of four stages",
        "Three loads are issued before the first MMA. While the MMA of K tile k runs, the loads of the following K tiles"
        " are in flight in other stages. Stage 0 is loaded again, with K tile 4, when the MMA of K tile 0 has read it.",
        4,
        6,
        {"warp 0": "driving thread", "warps 1 to 3": "warps 1 to 3"}
        | {f"stage {s}": f"stage {s}" for s in range(4)},
    ),
)


@contextmanager
def recorded(stages: int) -> Iterator[list[Bar]]:
    """Everything that the emulator does in this context becomes a bar of the list that is yielded."""
    bars: list[Bar] = []
    clock = iter(range(1_000_000))
    loads: list[Bar] = []  # two TMA loads make one K tile
    open_waits: dict[int, Bar] = {}
    counts = {"TMA load": 0, "tcgen05.mma": 0}
    copies: list[Bar] = []  # the one that is going on
    issue, step, count_op = Machine.issue, Machine.step, Threads.count_op

    def recording_issue(
        self: Machine, chain: Any, complete: Any, what: str, site: int, payload: Any = None
    ) -> None:
        if what not in counts:
            return issue(self, chain, complete, what, site, payload)
        number = counts[what]
        counts[what] += 1
        if what == "tcgen05.mma" and copies:
            copies.pop().end = next(clock)
        if what == "tcgen05.mma" or number % 2 == 0:
            tile = number if what == "tcgen05.mma" else number // 2
            kind = "mma" if what == "tcgen05.mma" else "load"
            bar = Bar(
                f"stage {tile % stages}", kind, f"{'MMA' if kind == 'mma' else kind} {tile}", next(clock)
            )
            bars.append(bar)
            if kind == "load":
                loads.append(bar)
        else:
            bar = loads[-1]

        def finish() -> None:
            complete()
            bar.end = next(clock)

        return issue(self, chain, finish, what, site, payload)

    def recording_step(self: Machine, strand: Strand) -> None:
        bar = open_waits.pop(id(strand), None)
        if bar is not None:
            bar.end = next(clock)
        step(self, strand)
        described = _describe(strand)
        if described is not None:
            open_waits[id(strand)] = Bar(_name(strand), *described, next(clock))
            bars.append(open_waits[id(strand)])

    def recording_count(self: Threads, name: str) -> None:
        if name == "st.shared" and not copies:
            tile = counts["tcgen05.mma"]
            copies.append(Bar(f"stage {tile % stages}", "copy", f"copy {tile}", next(clock), 1_000_000))
            bars.append(copies[0])
        count_op(self, name)

    Machine.issue, Machine.step = recording_issue, recording_step  # type: ignore[method-assign]
    Threads.count_op = recording_count  # type: ignore[method-assign]
    try:
        yield bars
    finally:
        Machine.issue, Machine.step = issue, step  # type: ignore[method-assign]
        Threads.count_op = count_op  # type: ignore[method-assign]


def _name(strand: Strand) -> str:
    warps = strand.threads.warps
    return f"warp {warps[0]}" if len(warps) == 1 else f"warps {warps[0]} to {warps[-1]}"


def _describe(strand: Strand) -> tuple[str, str] | None:
    """(kind, label) of what a strand waits for now."""
    wait = strand.wait
    if isinstance(wait, MbarrierWait):
        return "wait", f"{wait.barrier.name}, {wait.parity}"
    if isinstance(wait, NamedBarrierWait):
        return "meet", "CTA sync"
    return None


def record(figure: Figure, scratch: Path) -> list[Bar]:
    """The main loop of one CTA: setup and epilogue are cut off, and every bar has an end."""
    random = np.random.default_rng(1)
    k = 64 * figure.k_tiles
    a, b = (random.standard_normal((128, k)).astype(np.float16) for _ in range(2))
    builder = run_source(kernel_source(figure.exercise), scratch)["build_kernel"]
    kernel = emulator.compile(builder(128, 128, k, "float16"))
    with recorded(figure.stages) as bars:
        run = kernel.run(a, b, np.zeros((128, 128), np.float16), schedule="late")
    assert run.findings == ()
    last = max(bar.end for bar in bars if bar.kind == "mma")
    work = [bar for bar in bars if bar.kind in ("copy", "load", "mma") and bar.end <= last]
    first, last = min(bar.start for bar in work), max(bar.end for bar in work)
    kept = [bar for bar in bars if bar.end > first and bar.start < last and bar.row in figure.rows]
    for bar in kept:
        bar.start, bar.end = max(bar.start, first - 1), min(bar.end, last + 1)
    used = {event: place for place, event in enumerate(sorted({e for b in kept for e in (b.start, b.end)}))}
    for bar in kept:
        bar.start, bar.end = used[bar.start], used[bar.end]
    return kept


def draw(figure: Figure, bars: list[Bar]) -> str:
    """The figure as SVG."""
    steps = max(bar.end for bar in bars)
    unit = (WIDTH - LEFT - 14) / steps
    height = 44 + ROW * len(figure.rows)
    rows = {key: 12 + ROW * number for number, key in enumerate(figure.rows)}
    description = f"{figure.description} The axis is the order of events, not time."
    drawing = Drawing(WIDTH, height, figure.title, description, number=".1f")
    lines = drawing.parts
    for key, label in figure.rows.items():
        middle = rows[key] + BAR / 2
        drawing.text(LEFT - 10, middle + 4, label, 12, "end", bold=True)
        lines.append(f'<path d="M{LEFT} {middle}H{WIDTH - 10}" stroke="#cbd2d9" stroke-width="1"/>')
    for bar in bars:
        x, width = LEFT + unit * bar.start, max(2.0, unit * (bar.end - bar.start))
        lines.append(
            f'<rect x="{x:.1f}" y="{rows[bar.row]}" width="{width:.1f}" height="{BAR}" rx="3" fill="{FILL[bar.kind]}"'
            f' stroke="{INK}" stroke-width="1"><title>{escape(bar.label)}</title></rect>'
        )
        size = 10.5 if width > 5.8 * len(bar.label) else 9
        parts = [bar.label] if size == 10.5 else bar.label.split(", ")
        for number, part in enumerate(parts):
            y = rows[bar.row] + BAR / 2 + (4 if len(parts) == 1 else 11 * number - 2)
            drawing.text(x + width / 2, y, part, size)
    legend = [
        ("copy", "threads copy"),
        ("load", "TMA load in flight"),
        ("mma", "MMA in flight"),
        ("wait", "waits for barrier, parity"),
    ]
    legend = [(kind, text) for kind, text in legend if any(bar.kind == kind for bar in bars)]
    for number, (kind, text) in enumerate(legend):
        x, y = LEFT + 190 * number, height - 24
        lines.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{FILL[kind]}" stroke="{INK}"/>')
        drawing.text(x + 20, y + 11, text, 11, "start", GREY)
    drawing.text(WIDTH - 12, height - 13, "order of events →", 11, "end", GREY)
    return drawing.svg()


def figures(scratch: Path) -> dict[str, str]:
    """File below solutions/ -> text."""
    return {f"{figure.exercise}/{figure.file}": draw(figure, record(figure, scratch)) for figure in FIGURES}


def main(argv: list[str] | None = None) -> int:
    """What `solution_figures.main` does, for the order of events of FIGURES."""
    return solution_figures.main("order_figure.py", figures, argv)


if __name__ == "__main__":
    raise SystemExit(main())
