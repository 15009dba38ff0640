"""Draw the figures of exercise 03 from the TileLayouts of its solution.

`python tools/layout_figures.py` writes solutions/exercise_03/figures/*.svg. Every number in them is what TIRx's own
`TileLayout.apply` says; `python tools/layout_figures.py --check` only says whether the files are up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import solution_figures  # noqa: E402
from solution_figures import kernel_source  # noqa: E402

from autograder.drawing import apply_everywhere  # noqa: E402
from autograder.report.model import Grid  # noqa: E402
from autograder.report.picture import svg  # noqa: E402
from emulator.tvm_import import import_tvm  # noqa: E402

EXERCISE = "exercise_03"
GAP = -1  # stands for rows or columns that are left out

Axes = dict[str, int]
Label = Callable[[Axes], str]
Colour = Callable[[int, int, Axes], int]


def solution() -> dict[str, Any]:
    """What the solution cell of the notebook defines."""
    import_tvm()
    scope: dict[str, Any] = {}
    exec(compile(kernel_source(EXERCISE), "exercise_03", "exec"), scope)
    return scope


def grid(
    title: str,
    layout: Any,
    shape: tuple[int, int],
    label: Label,
    colour: Colour,
    rows: list[int] | None = None,
    columns: list[int] | None = None,
    note: str = "",
    names: tuple[str, str] = ("r", "c"),
) -> Grid:
    """A layout over its domain; `rows` and `columns` name those that are shown, GAP stands for a gap."""
    table = apply_everywhere(layout, *shape)
    down, across = rows or list(range(shape[0])), columns or list(range(shape[1]))
    cells, colours = [], []
    for i in down:
        line, tints = [], []
        for j in across:
            shown = GAP not in (i, j)
            axes = {axis: values[i * shape[1] + j] for axis, values in table.items()} if shown else {}
            line.append(label(axes) if shown else "…")
            tints.append(colour(i, j, axes) if shown else -1)
        cells.append(line)
        colours.append(tints)
    return Grid(
        title=title,
        cells=cells,
        colours=colours,
        rows=["…" if i == GAP else str(i) for i in down],
        columns=["…" if j == GAP else str(j) for j in across],
        row_axis=names[0],
        column_axis=names[1],
        note=note,
    )


def at_m(axes: Axes) -> str:
    return str(axes["m"])


def memory_layouts(own: dict[str, Any]) -> str:
    """The three layouts of 8 x 16 elements in memory; equal colours are neighbours in memory."""
    grids = [
        grid(name, own[name](8, 16), (8, 16), at_m, lambda r, c, axes, run=run: axes["m"] // run, note=note)
        for name, run, note in (
            ("row_major", 16, "number: m. One colour: 16 places in a row"),
            ("column_major", 8, "number: m. One colour: 8 places in a row"),
            ("padded", 24, "number: m. 16 to 23, 40 to 47, ... hold nothing"),
        )
    ]
    return svg(
        grids,
        "Three layouts of 8 x 16 elements",
        "Row-major: element (r, c) at m = 16 r + c. Column-major: at r + 8 c. Padded: at 24 r + c.",
        per_line=2,
    )


def tiles(own: dict[str, Any]) -> str:
    """Corners of the four tiles of a 16 x 256 matrix."""
    picked_rows = [0, 1, GAP, 7, 8, 9, GAP, 15]
    picked_columns = [0, 1, 2, GAP, 127, 128, 129, 130, GAP, 255]
    shown = grid(
        "tiled_8x128, 16 x 256",
        own["tiled_8x128"](16, 256),
        (16, 256),
        at_m,
        lambda r, c, axes: axes["m"] // 1024,
        picked_rows,
        picked_columns,
        note="number: m. One colour: one tile, 1024 places in a row",
    )
    description = (
        "Four tiles of 8 rows and 128 columns. The first one fills m = 0 to 1023 row by row, the one to its right"
        " 1024 to 2047, the one below the first 2048 to 3071."
    )
    return svg([shown], "A matrix in tiles of 8 x 128", description)


def mma_accumulator(own: dict[str, Any]) -> str:
    """Which lane holds which element of the fragment, and the same read the other way round."""
    layout = own["mma_accumulator"]()
    held = grid(
        "who holds element (r, c)?",
        layout,
        (16, 8),
        lambda axes: f"T{axes['laneid']}\nv{axes['m']}",
        lambda r, c, axes: axes["laneid"],
        note="T: laneid, v: m",
    )
    table = apply_everywhere(layout, 16, 8)
    holds = {
        (lane, value): divmod(n, 8)
        for n, (lane, value) in enumerate(zip(table["laneid"], table["m"], strict=True))
    }
    lanes = [*range(12), GAP, 30, 31]
    inverse = Grid(
        title="what does a lane hold?",
        cells=[
            ["…" if lane == GAP else "({}, {})".format(*holds[lane, value]) for value in range(4)]
            for lane in lanes
        ],
        colours=[[lane] * 4 for lane in lanes],
        rows=["…" if lane == GAP else f"T{lane}" for lane in lanes],
        columns=[f"v{value}" for value in range(4)],
        note="(r, c) of its four values",
    )
    description = (
        "Lane 4 g + t holds elements (g, 2 t) and (g, 2 t + 1) as values 0 and 1, and (g + 8, 2 t) and (g + 8, 2 t + 1)"
        " as values 2 and 3."
    )
    return svg([held, inverse], "The accumulator of mma.sync.m16n8k16", description)


def lanes_and_threads(own: dict[str, Any]) -> str:
    """TMEM and the registers of a warpgroup."""
    some = [0, 1, GAP, 31, 32, GAP, 127]
    tmem = grid(
        "second_accumulator, 128 x 64",
        own["second_accumulator"](128, 64),
        (128, 64),
        lambda axes: f"L{axes['TLane']}\nC{axes['TCol']}",
        lambda r, c, axes: axes["TLane"] // 32,
        some,
        [0, 1, 2, GAP, 63],
        note="L: TLane, C: TCol. One colour: one warp's lanes",
    )
    registers = grid(
        "row_per_thread, 128 x 16",
        own["row_per_thread"](128, 16),
        (128, 16),
        lambda axes: f"T{axes['tid_in_wg']}\nv{axes['m']}",
        lambda r, c, axes: axes["tid_in_wg"],
        some,
        [0, 1, 2, 3, GAP, 15],
        note="T: tid_in_wg, v: m",
    )
    description = (
        "Left: row r of the accumulator is TMEM lane r, column c is TMEM column 64 + c. Right: thread r of the"
        " warpgroup holds row r, column c in its value c."
    )
    return svg([tmem, registers], "TMEM and registers of a warpgroup", description)


def two_layouts(own: dict[str, Any]) -> str:
    """A transpose of 4 x 8 elements: the way of each column of the tile."""
    rows, columns = 4, 8
    turned = (columns, rows)
    seen, held = own["column_major"](*turned), own["row_per_thread"](*turned)
    plain = own["row_major"]
    grids = [
        grid("tile", plain(rows, columns), (rows, columns), at_m, lambda r, c, _: c, note="as TMA leaves it"),
        grid("columns", seen, turned, at_m, lambda r, c, _: r, note="the same memory", names=("c", "r")),
        grid(
            "regs",
            held,
            turned,
            lambda axes: f"T{axes['tid_in_wg']}\nv{axes['m']}",
            lambda r, c, _: r,
            note="one column per thread",
            names=("c", "r"),
        ),
        grid(
            "turned",
            plain(*turned),
            turned,
            at_m,
            lambda r, c, _: r,
            note="as TMA takes it",
            names=("c", "r"),
        ),
    ]
    description = (
        "Column c of a tile of 4 rows and 8 columns is row c of the view, is held by thread c, and becomes row c of the"
        " turned tile. Numbers: the place m in SMEM, or thread and value."
    )
    return svg(grids, "A transpose made of two layouts", description)


FIGURES = {
    "memory_layouts": memory_layouts,
    "tiles": tiles,
    "mma_accumulator": mma_accumulator,
    "lanes_and_threads": lanes_and_threads,
    "two_layouts": two_layouts,
}


def main(argv: list[str] | None = None) -> int:
    """What `solution_figures.main` does, for the figures of this exercise."""
    own = solution()
    return solution_figures.main(
        "layout_figures.py",
        lambda _: {f"{EXERCISE}/{name}.svg": make(own) + "\n" for name, make in FIGURES.items()},
        argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
