"""Pictures of layouts: a coloured grid over the indices of the domain whose labels say where each element lies.

Used by the check `layouts` and for the figures of the lesson.
"""

from __future__ import annotations

from autograder.course import WantedLayout
from autograder.layouts import Table, compute, differences
from autograder.report.model import Grid

WINDOW_ROWS, WINDOW_COLUMNS = 16, 16  # the part of a domain that a picture shows
# One letter for each axis; m is a number of its own where there is no other axis.
_SHORT = {"m": "v", "laneid": "T", "tid_in_wg": "T", "TLane": "L", "TCol": "C", "warpid": "W"}

Index = tuple[int, ...]


def picture(
    title: str,
    wanted: WantedLayout,
    extents: list[int],
    table: Table,
    index: Index = (0, 0),
    other: Table | None = None,
) -> Grid:
    """The window of a layout that holds `index`; where it differs from `other`, the cell is marked.

    extents: of the one or two indices of the domain. The marked cell of `index` comes first.
    """
    rows, columns = (1, *extents)[-2:]
    row, column = (0, *index)[-2:]
    down, across = _window(row, rows, WINDOW_ROWS), _window(column, columns, WINDOW_COLUMNS)
    wrong = set() if other is None else set(differences(table, other))
    marked = [(i - down.start, j - across.start) for i in down for j in across if i * columns + j in wrong]
    axes = [axis for axis in dict.fromkeys([*wanted.wanted, *table]) if axis in table]
    names = list(wanted.shape)
    note = f"{len(wrong)} of {rows * columns} elements differ; " if wrong else ""
    return Grid(
        title=title,
        cells=[[_label(table, axes, i * columns + j) for j in across] for i in down],
        colours=[[_colour(wanted, table, i * columns + j) for j in across] for i in down],
        rows=[str(i) for i in down],
        columns=[str(j) for j in across],
        row_axis=names[0] if len(names) == 2 else "",
        column_axis=names[-1],
        marked=sorted(marked, key=lambda mark: mark != (row - down.start, column - across.start)),
        note=note + legend(axes),
    )


def legend(axes: list[str]) -> str:
    """What the labels of a picture mean."""
    if len(axes) == 1:
        return f"numbers: {axes[0]}"
    return ", ".join(f"{_short(axis, axes)}: {axis}" for axis in axes)


def _window(place: int, size: int, most: int) -> range:
    """The part of an index's range that is shown; its start is a multiple of its length."""
    start = place - place % most
    return range(start, min(start + most, size))


def _label(table: Table, axes: list[str], n: int) -> str:
    if len(axes) == 1:
        return str(table[axes[0]][n])
    return "\n".join(f"{_short(axis, axes)}{table[axis][n]}" for axis in axes)


def _short(axis: str, axes: list[str]) -> str:
    """A letter for an axis, its name where two would get the same one."""
    letters = [_SHORT.get(name, name) for name in axes]
    letter = _SHORT.get(axis, axis)
    return letter if letters.count(letter) == 1 else axis


def _colour(wanted: WantedLayout, table: Table, n: int) -> int:
    axes = {axis: table[axis][n] if axis in table else 0 for axis in wanted.wanted}
    return max(-1, compute(wanted.colour, axes))
