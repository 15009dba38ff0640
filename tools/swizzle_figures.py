"""Draw the figures of exercise 04 from the emulator: python tools/swizzle_figures.py [--check]

The solution runs with the 128-byte swizzle and without any, and the figures show the addresses that the lanes of one
`ldmatrix` really gave. --check writes nothing and fails when a figure is not what the emulator shows today.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
COURSE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(COURSE), str(COURSE / "tools")]

import numpy as np  # noqa: E402
import solution_figures  # noqa: E402
from solution_figures import kernel_source, run_source  # noqa: E402

import emulator  # noqa: E402
from autograder.checks.bank_conflicts import banks_against_lanes  # noqa: E402
from autograder.report.model import Grid  # noqa: E402
from autograder.report.picture import svg  # noqa: E402
from autograder.swizzles import LINE, SHOWN_LINES, SWIZZLES, placed  # noqa: E402

EXERCISE = "exercise_04"
SWIZZLED = "layout = ComposeLayout(3, 3, 3, layout)"
ADDRESSES = ("swizzle_128(source)", "swizzle_128(target)")
ROWS, COLUMNS = 72, 136  # neither is a multiple of the tile


def figures(scratch: Path) -> dict[str, str]:
    """File name -> SVG."""
    source = kernel_source(EXERCISE)
    plain = source.replace(SWIZZLED, "pass")
    for address in ADDRESSES:
        plain = plain.replace(address, address.split("(")[1].rstrip(")"))
    before, after = _load_pattern(plain, scratch), _load_pattern(source, scratch)
    return {
        "swizzles.svg": svg(
            [
                placed(
                    mode,
                    [mode(offset) for offset in range(LINE * SHOWN_LINES)],
                    f"rows of {mode.row_bytes} bytes",
                )
                for mode in SWIZZLES.values()
            ],
            "Where the three swizzles put the chunks of a tile",
            "Eight lines of 128 bytes with eight positions of 16 bytes, for rows of 32, 64 and 128 bytes. Each position"
            " names the row and chunk that lies there. Under the 128-byte swizzle line 1 holds chunks 1 0 3 2 5 4 7 6"
            " of row 1.",
        ),
        "banks_before.svg": svg(
            _titled(before, "without a swizzle"),
            "Banks against lanes without a swizzle",
            "Eight lanes load 16 bytes each from eight rows of 128 bytes. All of them reach banks 0 to 3, and are served"
            " in eight wavefronts.",
        ),
        "banks_after.svg": svg(
            _titled(after, "with the 128-byte swizzle"),
            "Banks against lanes with the 128-byte swizzle",
            "The same eight lanes with the swizzle: each reaches four banks of its own, and one wavefront serves all.",
        ),
        "blocks.svg": svg(
            [_blocks("tile_in", turned=False), _blocks("tile_out", turned=True)],
            "The blocks of both tiles and the warps that move them",
            "64 blocks of 8 by 8 elements in each tile. In tile_in a warp has two columns of blocks, in tile_out two"
            " rows. Four blocks below each other in tile_in, 0 to 3, come to lie side by side in tile_out.",
        ),
    }


def _load_pattern(source: str, scratch: Path) -> dict[str, Any]:
    """The addresses of an `ldmatrix` of the kernel: its worst request, the first where all are alike."""
    kernel = emulator.compile(run_source(source, scratch)["build_kernel"](M=ROWS, N=COLUMNS), arch="sm_100a")
    a = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float16)
    d = np.empty((COLUMNS, ROWS), np.float16)
    run = kernel.run(a, d, profile=True)
    assert run.ok and np.array_equal(d, a.T)
    (pattern,) = (x.pattern for x in run.accesses if x.space == "shared" and not x.write)
    assert pattern is not None
    return {
        "lanes": list(pattern.lanes),
        "addresses": list(pattern.addresses),
        "bytes": pattern.nbytes,
        "groups": pattern.groups,
    }


def _titled(pattern: dict[str, Any], title: str) -> list[Grid]:
    return [grid.model_copy(update={"title": title}) for grid in banks_against_lanes(pattern)]


def _blocks(title: str, turned: bool) -> Grid:
    """Blocks of a tile in the colour of their warp; warp 1's first step is numbered."""
    owner = [[(i if turned else j) // 2 for j in range(8)] for i in range(8)]
    step = [(2, j) if turned else (j, 2) for j in range(4)]
    cells = [[str(step.index((i, j))) if (i, j) in step else "" for j in range(8)] for i in range(8)]
    return Grid(
        title=title,
        cells=cells,
        colours=owner,
        rows=[f"{8 * i} to {8 * i + 7}" for i in range(8)],
        columns=[str(j) for j in range(8)],
        row_axis="rows",
        column_axis="chunk (8 elements, 16 bytes)",
        marked=step,
        note="a colour per warp; framed: step 0 of warp 1",
    )


def main(argv: list[str] | None = None) -> int:
    """What `solution_figures.main` does, for the figures of this exercise."""
    return solution_figures.main(
        "swizzle_figures.py",
        lambda scratch: {f"{EXERCISE}/{name}": text + "\n" for name, text in figures(scratch).items()},
        argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
