"""`draw`: a picture of any TileLayout in a notebook, made of what TIRx's own `apply` says of every element."""

from __future__ import annotations

from itertools import product
from typing import Any

from autograder.layouts import MAX_ELEMENTS, Table
from autograder.report.html import notice
from autograder.report.model import Grid


class Drawing:
    """One layout as a grid. Its HTML form is the picture, its text form the upper left corner of it."""

    def __init__(self, grid: Grid | None, message: str = "") -> None:
        self.grid, self.message = grid, message

    def __repr__(self) -> str:
        from autograder.report.picture import text_lines

        return self.message if self.grid is None else "\n".join(text_lines([self.grid], 120))

    def _repr_html_(self) -> str:
        from autograder.report.picture import svg

        return notice(self.message) if self.grid is None else svg([self.grid])


def draw(layout: Any, rows: int, columns: int, at: tuple[int, int] = (0, 0)) -> Drawing:
    """Where a TileLayout puts the elements (r, c) of a (rows, columns) domain.

    Sixteen rows and columns are shown, those around the element `at`. Colours follow the first axis. Never
    raises: what cannot be drawn says why.
    """
    from autograder.checks.layout_pictures import picture
    from autograder.course import WantedLayout

    if layout is None:
        return Drawing(None, "nothing to draw yet: the function returns None")
    try:
        table = apply_everywhere(layout, rows, columns)
        first = next(iter(table))
        line = max(1, columns if list(table) == ["m"] else 1)
        spec = WantedLayout(
            name="layout",
            title="layout",
            points=0,
            shape={"r": rows, "c": columns},
            wanted=dict.fromkeys(table, "0"),
            colour=f"{first} // {line}",
        )
        return Drawing(picture(str(layout), spec, [rows, columns], table, at))
    except Exception as error:
        return Drawing(None, f"this cannot be drawn: {' '.join(str(error).split())[-200:]}")


def apply_everywhere(layout: Any, rows: int, columns: int) -> Table:
    """axis -> coordinates of all elements in row-major order, by the layout's own `apply`.

    Raises:
        ValueError: the layout has another number of elements.
    """
    if rows * columns > MAX_ELEMENTS:
        raise ValueError(f"more than {MAX_ELEMENTS} elements")
    if int(layout.size()) != rows * columns:
        raise ValueError(
            f"the layout has {int(layout.size())} elements, {rows} x {columns} is {rows * columns}"
        )
    places = [layout.apply(r, c, shape=[rows, columns]) for r, c in product(range(rows), range(columns))]
    axes = sorted(places[0], key=lambda axis: str(axis) == "m")  # who holds it, then where in that
    return {str(axis): [int(place[axis]) for place in places] for axis in axes}
