"""Pictures of a report: coloured, numbered grids as SVG (HTML views, figures) and as text (terminal).

A picture is data, `Grid` in autograder.report.model: what stands in each cell, which cells have the same
colour, and which are marked because they are wrong. Nothing here knows what the cells mean.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from autograder.report.model import Grid

# Light enough for dark text in every cell; neighbours in the list are far apart in hue.
PALETTE = (
    "#dbeafe",
    "#fef3c7",
    "#dcfce7",
    "#fce7f3",
    "#e0e7ff",
    "#ffedd5",
    "#ccfbf1",
    "#f3e8ff",
    "#bfdbfe",
    "#fde68a",
    "#bbf7d0",
    "#fbcfe8",
    "#c7d2fe",
    "#fed7aa",
    "#99f6e4",
    "#e9d5ff",
)
_EMPTY = "#f5f7fa"
_INK, _PALE, _LINE, _WRONG = "#1f2933", "#52606d", "#9aa5b1", "#b91c1c"
_SIZE, _GLYPH, _ROW = 10, 6.1, 13  # font size, width of a character and height of a text line, in px
_GAP = 28
TEXT_ROWS, TEXT_COLUMNS = 4, 8  # the part of a grid that the terminal shows


# SVG --------------------------------------------------------------------------------------------


def svg(grids: Sequence[Grid], title: str = "", description: str = "", per_line: int | None = None) -> str:
    """The grids side by side, on a white ground so that they read the same in a light and a dark page.

    title, description: name and alternative text of the image; by default made of the grids' titles.
    per_line: how many grids stand side by side before the next line of them begins; by default all.
    """
    name = title or ", ".join(grid.title for grid in grids)
    per_line = per_line or max(1, len(grids))
    parts, width, height = [], 0.0, 0.0
    for first in range(0, len(grids), per_line):
        x, top = 8.0, height
        for grid in grids[first : first + per_line]:
            text, wide, below = _panel(grid, x)
            parts.append(f'<g transform="translate(0 {top:g})">{text}</g>' if top else text)
            x += wide + _GAP
            height = max(height, top + below + 8)
        width = max(width, x - _GAP + 8)
    words = f"<title>{_escape(name)}</title>" + (
        f"<desc>{_escape(description)}</desc>" if description else ""
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}" role="img" aria-label="{_escape(name)}" font-family="Helvetica, Arial, sans-serif"'
        f' font-size="{_SIZE}" fill="{_INK}">{words}'
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>{"".join(parts)}</svg>'
    )


def _panel(grid: Grid, left: float) -> tuple[str, float, float]:
    """(SVG of one grid, its width, its lower edge); `left` is its left edge, the upper one is 0."""
    lines = [[cell.split("\n") for cell in row] for row in grid.cells]
    longest = max((len(part) for row in lines for cell in row for part in cell), default=1)
    longest = max([longest, *(len(name) for name in grid.columns)])
    tall = max((len(cell) for row in lines for cell in row), default=1)
    cell_w, cell_h = max(18.0, _GLYPH * longest + 6), _ROW * tall + 5.0
    margin = max((_GLYPH * len(name) for name in grid.rows), default=0.0)
    x0 = left + margin + (6 if grid.rows else 0) + (_ROW if grid.row_axis else 0)
    y0 = 20.0 + (_ROW if grid.column_axis else 0) + (_ROW if grid.columns else 0)
    count = max((len(row) for row in grid.cells), default=0)
    wide, high = cell_w * count, cell_h * len(grid.cells)
    out = [f'<text x="{left:g}" y="13" font-size="12" font-weight="bold">{_escape(grid.title)}</text>']
    out.append(f'<g text-anchor="middle" fill="{_PALE}">')
    if grid.column_axis:
        out.append(f'<text x="{x0 + wide / 2:g}" y="29">{_escape(grid.column_axis)}</text>')
    for j, name in enumerate(grid.columns):
        out.append(f'<text x="{x0 + (j + 0.5) * cell_w:g}" y="{y0 - 4:g}">{_escape(name)}</text>')
    if grid.row_axis:
        x, y = left + 9, y0 + high / 2
        out.append(
            f'<text x="{x:g}" y="{y:g}" transform="rotate(-90 {x:g} {y:g})">{_escape(grid.row_axis)}</text>'
        )
    for i, name in enumerate(grid.rows):
        y = y0 + (i + 0.5) * cell_h + 3.5
        out.append(f'<text x="{x0 - 4:g}" y="{y:g}" text-anchor="end">{_escape(name)}</text>')
    out.append(f'</g><g stroke="{_LINE}" stroke-width="0.7">')
    for i, row in enumerate(grid.cells):
        for j, _ in enumerate(row):
            out.append(
                f'<rect x="{x0 + j * cell_w:g}" y="{y0 + i * cell_h:g}" width="{cell_w:g}" height="{cell_h:g}"'
                f' fill="{_colour(grid, i, j)}"/>'
            )
    out.append('</g><g text-anchor="middle">')
    for i, words in enumerate(lines):
        for j, cell in enumerate(words):
            top = y0 + i * cell_h + (cell_h - _ROW * len(cell)) / 2
            for n, part in enumerate(cell):
                if part:
                    out.append(
                        f'<text x="{x0 + (j + 0.5) * cell_w:g}" y="{top + n * _ROW + 10:g}">{_escape(part)}</text>'
                    )
    out.append(f'</g><g fill="none" stroke="{_WRONG}" stroke-width="2">')
    for i, j in grid.marked:
        out.append(
            f'<rect x="{x0 + j * cell_w + 1:g}" y="{y0 + i * cell_h + 1:g}" width="{cell_w - 2:g}"'
            f' height="{cell_h - 2:g}"/>'
        )
    out.append("</g>")
    below = y0 + high
    if grid.note:
        below += _ROW + 4
        out.append(f'<text x="{left:g}" y="{below - 3:g}" fill="{_PALE}">{_escape(grid.note)}</text>')
    titles = max(6.8 * len(grid.title), 5.4 * len(grid.note))
    return "".join(out), max(x0 - left + wide, titles), below


def _escape(text: str) -> str:
    """Text for SVG: no markup, and no character that XML forbids."""
    return html.escape("".join(c if c.isprintable() else " " for c in text))


def _colour(grid: Grid, i: int, j: int) -> str:
    number = grid.colours[i][j] if grid.colours else (0 if grid.cells[i][j] else -1)
    return _EMPTY if number < 0 else PALETTE[number % len(PALETTE)]


# Text -------------------------------------------------------------------------------------------


def text_lines(grids: Sequence[Grid], width: int) -> Iterator[str]:
    """The neighbourhood of the first marked cell of each grid, or its own text, side by side where `width` allows it.

    Marked cells stand in [brackets]. All grids show the same window, so that they can be compared.
    """
    marks = [mark for grid in grids for mark in grid.marked]
    row, column = marks[0] if marks else (0, 0)
    blocks = [_block(grid, row, column) for grid in grids]
    line: list[list[str]] = []
    for block in blocks:
        if line and sum(len(b[0]) + 4 for b in line) + len(block[0]) > width:
            yield from _side_by_side(line)
            line = []
        line.append(block)
    if line:
        yield from _side_by_side(line)


def _block(grid: Grid, row: int, column: int) -> list[str]:
    """Text lines of equal length: the grid's own text, or title, column names, one line per row."""
    if grid.text:
        longest = max(len(line) for line in grid.text)
        return [f"{line:<{longest}}" for line in grid.text]
    top = _start(row, len(grid.cells), TEXT_ROWS)
    left = _start(column, max((len(r) for r in grid.cells), default=0), TEXT_COLUMNS)
    marked = {(i, j) for i, j in grid.marked}
    rows = []
    for i in range(top, min(top + TEXT_ROWS, len(grid.cells))):
        cells = grid.cells[i][left : left + TEXT_COLUMNS]
        words = [cell.replace("\n", ":") or "." for cell in cells]
        rows.append([f"[{w}]" if (i, left + j) in marked else f" {w} " for j, w in enumerate(words)])
    names = [f" {name} " for name in grid.columns[left : left + TEXT_COLUMNS]]
    room = max((len(word) for words in [*rows, names] for word in words), default=1)
    side = max((len(name) for name in grid.rows), default=0)
    lines = [grid.title]
    if names:
        lines.append(" " * side + "".join(f"{name:>{room}}" for name in names))
    for i, words in enumerate(rows, top):
        name = grid.rows[i] if i < len(grid.rows) else ""
        lines.append(f"{name:>{side}}" + "".join(f"{word:>{room}}" for word in words))
    if grid.note:
        lines.append(grid.note)
    longest = max(len(line) for line in lines)
    return [f"{line:<{longest}}" for line in lines]


def _start(wanted: int, size: int, window: int) -> int:
    """Where a window of a grid starts that holds `wanted`; a multiple of the window where that is possible."""
    return max(0, min(wanted - wanted % window, size - window))


def _side_by_side(blocks: list[list[str]]) -> Iterator[str]:
    for n in range(max(len(block) for block in blocks)):
        parts = [block[n] if n < len(block) else " " * len(block[0]) for block in blocks]
        yield "    ".join(parts).rstrip()
