"""Draw the figures of exercise 13: python tools/tmem_figure.py [--check].

`tmem_over_time.svg` is the record of an emulated run of the solution: which columns of TMEM each operation reads and
writes, in the order of operations, and what lies where in between, as the lanes of one warp see it. `major.svg` is a drawing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

COURSE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(COURSE), str(COURSE / "tools")]

import solution_figures  # noqa: E402
from solution_figures import kernel_source, run_source  # noqa: E402

import emulator  # noqa: E402
import emulator.lowering  # noqa: E402  before kernels are built: barriers keep their names
from emulator.instructions import tcgen05  # noqa: E402
from emulator.machine import tmem_layout  # noqa: E402

INK, GREY, PAPER = "#1f2933", "#52606d", "#ffffff"
COLOUR = {"S": "#dbeafe", "P": "#ffedd5", "O": "#dcfce7"}
DEAD, READ, WRITE = "#e5e7eb", "#1d4ed8", "#b91c1c"
EXERCISE, N, D = "exercise_13", 128, 128
WARP = 1  # whose lanes are shown
Columns = tuple[int, int]  # first, behind the last


@dataclass
class Step:
    """Operations of one kind in a row that write the same columns: the MMAs of a product, a load, or a store."""

    what: str
    reads: list[Columns] = field(default_factory=list)
    writes: list[Columns] = field(default_factory=list)


@contextmanager
def recording(steps: list[Step]) -> Iterator[None]:
    """Append what happens to TMEM to `steps` while the context lasts."""
    check_mma, ldst = tcgen05._check_mma, tcgen05._hb_ldst

    def add(step: Step) -> None:
        if not steps or (steps[-1].what, steps[-1].writes) != (step.what, step.writes):
            steps.append(step)
            return
        known = steps[-1].reads
        known[:] = merged(known + step.reads)

    def on_mma(t: Any, op: Any, warp: int) -> None:
        check_mma(t, op, warp)
        first = op.d & 0xFFFF
        reads = []
        if op.a_tmem is not None:
            start = op.a_tmem & 0xFFFF
            count = tmem_layout.a_columns(op.plan.idesc.k, op.plan.idesc.a_operand)
            reads = [(start, start + count)]
        add(Step("tcgen05.mma", reads, [(first, first + op.plan.columns)]))

    def on_ldst(
        t: Any, column: int, columns: int, positions: Any, shape: str, bases: Any, store: bool
    ) -> None:
        ldst(t, column, columns, positions, shape, bases, store)
        if WARP not in [t.warps[p] for p in positions]:
            return
        place = [(column, column + columns)]
        add(Step("tcgen05.st", [], place) if store else Step("tcgen05.ld", place, []))

    tcgen05._check_mma, tcgen05._hb_ldst = on_mma, on_ldst
    try:
        yield
    finally:
        tcgen05._check_mma, tcgen05._hb_ldst = check_mma, ldst


def merged(ranges: list[Columns]) -> list[Columns]:
    """Sorted ranges of columns, those that touch joined."""
    out: list[Columns] = []
    for start, end in sorted(ranges):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def record(scratch: Path) -> list[Step]:
    """The steps of one head, emulated."""
    kernel = emulator.compile(run_source(kernel_source(EXERCISE), scratch)["build_attention"](N=N, D=D))
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((N, D)).astype(np.float16) for _ in range(3))
    steps: list[Step] = []
    with recording(steps):
        run = kernel.run(q, k, v, np.empty((N, D), np.float16))
    assert run.findings == ()
    return steps


def names(steps: list[Step]) -> list[str]:
    """What each step writes: the first product is S, a store is P, the second product is O."""
    products = iter("SO")
    return [
        next(products) if step.what == "tcgen05.mma" else "P" if step.what == "tcgen05.st" else ""
        for step in steps
    ]


class Svg:
    """An SVG file with a title and a description."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-labelledby="t d" font-family="Helvetica, Arial, sans-serif">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(description)}</desc>',
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        ]

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, stroke: str = INK, thick: float = 1
    ) -> None:
        self.lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" stroke="{stroke}"'
            f' stroke-width="{thick:g}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = GREY, thick: float = 1) -> None:
        self.lines.append(
            f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{stroke}" stroke-width="{thick:g}" fill="none"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        fill: str = INK,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.lines.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>"
        )

    def done(self) -> str:
        return "\n".join([*self.lines, "</svg>"]) + "\n"


def tmem_over_time(steps: list[Step]) -> str:
    """Columns from top to bottom, steps from left to right."""
    left, top, slot, gap, height, columns = 64, 56, 84, 62, 256, 256
    width = left + len(steps) * (slot + gap) + 20
    written = names(steps)
    title = "TMEM over time in one head, lanes 32 to 63"
    svg = Svg(
        width,
        top + height + 52,
        title,
        "The lanes of one warp. The first MMAs write S to columns 0 to 127; the warp loads S, and from then on it is dead; it stores P on"
        " columns 0 to 63; the second MMAs read P there and write O to columns 128 to 255; the warp loads O.",
    )

    def y(column: int) -> float:
        return top + height * column / columns

    def x(step: int) -> float:
        return left + step * (slot + gap)

    for column in (0, 64, 128, 192, 256):
        svg.text(left - 12, y(column) + 4, str(column), 11, GREY, "end")
        svg.line(left - 8, y(column), width - 16, y(column), "#e5e7eb")
    svg.text(14, top - 14, "column", 11, GREY, "start")
    live: dict[int, str] = {}  # column -> what lies there
    for number, step in enumerate(steps):
        result = written[number]
        of = next((live.get(start, "") for start, _ in step.reads), "")
        label = {"tcgen05.mma": {"S": "S = Q Kᵀ", "O": "O = P V"}.get(result, ""), "tcgen05.ld": f"load {of}"}
        svg.text(x(number) + slot / 2, top - 30, step.what, 11.5, INK, bold=True)
        svg.text(x(number) + slot / 2, top - 14, label.get(step.what, f"store {result}"), 11.5)
        for places, colour, word in ((step.reads, READ, "reads"), (step.writes, WRITE, "writes")):
            for start, end in places:
                content = result if colour == WRITE else live[start]
                svg.box(x(number), y(start), slot, y(end) - y(start), COLOUR[content], colour, 2.5)
                svg.text(x(number) + slot / 2, (y(start) + y(end)) / 2 + 4, f"{word} {content}", 12, colour)
                for column in range(start, end):
                    live[column] = content
        # What lies there until the next step; dead, when no later step reads it before it is written.
        start = 0
        while start < columns:
            end = start
            key = (live.get(start), _needed(steps, number, start))
            while end < columns and (live.get(end), _needed(steps, number, end)) == key:
                end += 1
            if key[0] is not None:
                edge = x(number) + slot
                svg.box(
                    edge + 1.5,
                    y(start),
                    gap - 3,
                    y(end) - y(start),
                    COLOUR[key[0]] if key[1] else DEAD,
                    "none",
                )
                word = key[0] if key[1] else f"{key[0]}, dead"
                svg.text(edge + gap / 2, (y(start) + y(end)) / 2 + 4, word, 12, INK if key[1] else GREY)
            start = end
    svg.text(
        left,
        top + height + 30,
        "red: written, blue: read, grey: nobody reads it any more",
        11.5,
        GREY,
        "start",
    )
    svg.text(width - 20, top + height + 30, "order of operations →", 11.5, GREY, "end")
    return svg.done()


def _needed(steps: list[Step], after: int, column: int) -> bool:
    """Whether a later step reads what is in a column now."""
    for step in steps[after + 1 :]:
        if any(start <= column < end for start, end in step.reads):
            return True
        if any(start <= column < end for start, end in step.writes):
            return False
    return False


def major() -> str:
    """K and V in memory, and which of their dimensions each product sums over."""
    svg = Svg(
        760,
        250,
        "K is K-major, V is MN-major",
        "Both lie in memory with one row of D numbers per key. S = Q K^T sums over the head dimension, along a row of K; O = P V sums"
        " over the keys, down a column of V.",
    )
    for left, name, summed, says in (
        (90, "K", "row", "S = Q Kᵀ sums along a row of K: K-major"),
        (460, "V", "column", "O = P V sums down a column of V: MN-major"),
    ):
        for row in range(8):
            for column in range(10):
                chosen = row == 3 if summed == "row" else column == 4
                svg.box(left + 22 * column, 48 + 18 * row, 22, 18, "#fde68a" if chosen else PAPER, "#9aa5b1")
        svg.text(left + 110, 34, "head dimension: contiguous in memory", 11.5, GREY)
        svg.text(left - 12, 124, "keys", 11.5, GREY, "end")
        svg.text(left + 110, 216, says, 13, INK, bold=True)
        svg.text(left - 12, 104, name, 18, INK, "end", bold=True)
    return svg.done()


def figures(scratch: Path) -> dict[str, str]:
    """File -> text."""
    return {"tmem_over_time.svg": tmem_over_time(record(scratch)), "major.svg": major()}


def main(argv: list[str] | None = None) -> int:
    """What `solution_figures.main` does, for the figures of this exercise."""
    return solution_figures.main(
        "tmem_figure.py",
        lambda scratch: {f"{EXERCISE}/{name}": text for name, text in figures(scratch).items()},
        argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
