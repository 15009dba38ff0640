"""The three swizzle modes of TMA as integer functions, and what a learner's version of one looks like.

TMA cuts SMEM into lines of 128 bytes and each line into eight chunks of 16 bytes. The swizzle modes for rows of 32, 64
and 128 bytes XOR the lowest 1, 2 or 3 bits of the line's number into the chunk's number (PTX ISA, "Tensors", swizzling
modes). Everything here is plain integers: no submission runs where this is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autograder.report.model import Grid

LINE, CHUNK = 128, 16  # bytes
CHUNKS = LINE // CHUNK  # of a line
SHOWN_LINES = 8
_SHIFTS = range(4, 12)  # bits from and to which a swizzle could move something


@dataclass(frozen=True)
class Swizzle:
    """One mode. `bits` of the line's number go into the chunk's number; a row of the tile has `row_bytes`."""

    bits: int

    @property
    def row_bytes(self) -> int:
        return CHUNK << self.bits

    @property
    def title(self) -> str:
        return f"{self.row_bytes}-byte swizzle"

    def __call__(self, offset: int) -> int:
        line, chunk = offset // LINE, offset // CHUNK % CHUNKS
        return line * LINE + (chunk ^ line % (1 << self.bits)) * CHUNK + offset % CHUNK

    def explain(self, table: Sequence[int]) -> str:
        """What a wrong table of the mode does, in words; empty if nothing known fits."""
        right = f"the {self.title} XORs {_bits(7, self.bits)} of the offset into {_bits(4, self.bits)}"
        if all(value == offset for offset, value in enumerate(table)):
            return f"it returns every offset as it came; {right}"
        for other in SWIZZLES.values():
            if other != self and all(value == other(offset) for offset, value in enumerate(table)):
                return f"it is the {other.title}; {right}"
        if len(set(table)) < len(table):
            return "it puts two bytes in one place; a swizzle only swaps chunks of a line"
        known = _as_xor(table)
        if known:
            source, target, count = known
            return f"it XORs {_bits(source, count)} of the offset into {_bits(target, count)}; {right}"
        if all(value == _rotated(offset, self.bits) for offset, value in enumerate(table)):
            return "it adds the line's number to the chunk's number; a swizzle XORs them"
        if any(value % CHUNK != offset % CHUNK for offset, value in enumerate(table)):
            return "it tears chunks apart: the place of a byte inside of its 16-byte chunk, bits 0 to 3, never changes"
        if any(value // LINE != offset // LINE for offset, value in enumerate(table)):
            return "it moves bytes to another line of 128 bytes: only bits 4 to 6 may change"
        return right

    def picture(self, table: Sequence[int]) -> list[Grid]:
        """Where the chunks of the first lines go, the learner's beside the wanted places; none of them moved: nothing."""
        if all(value == offset for offset, value in enumerate(table)):
            return []
        wanted = placed(self, [self(offset) for offset in range(LINE * SHOWN_LINES)], "wanted")
        yours = placed(self, table, "yours")
        wrong = [
            (i, j)
            for i, row in enumerate(wanted.cells)
            for j, cell in enumerate(row)
            if cell != yours.cells[i][j]
        ]
        return [wanted, yours.model_copy(update={"marked": wrong})]


SWIZZLES = {"swizzle_32": Swizzle(1), "swizzle_64": Swizzle(2), "swizzle_128": Swizzle(3)}


def placed(mode: Swizzle, table: Sequence[int], title: str) -> Grid:
    """Lines by positions: `row.chunk` of the tile that lies there, in the colour of its chunk's number."""
    lines = min(SHOWN_LINES, len(table) // LINE)
    labels: list[list[list[str]]] = [[[] for _ in range(CHUNKS)] for _ in range(lines)]
    colours = [[-1] * CHUNKS for _ in range(lines)]
    for offset in range(0, lines * LINE, CHUNK):
        line, position = divmod(table[offset] // CHUNK, CHUNKS)
        if 0 <= line < lines:
            row, chunk = offset // mode.row_bytes, offset % mode.row_bytes // CHUNK
            labels[line][position].append(f"{row}.{chunk}")
            colours[line][position] = chunk
    return Grid(
        title=title,
        cells=[["\n".join(cell[:2]) for cell in row] for row in labels],
        colours=colours,
        rows=[str(line) for line in range(lines)],
        columns=[str(position) for position in range(CHUNKS)],
        row_axis="line of 128 bytes",
        column_axis="position of 16 bytes",
        note="" if title == "yours" else "in each cell: row.chunk of the tile",
    )


def _as_xor(table: Sequence[int]) -> tuple[int, int, int] | None:
    """(source, target, count) if the table XORs `count` bits from bit `source` on into those from `target` on."""
    for count in (1, 2, 3):
        for source in _SHIFTS:
            for target in _SHIFTS:
                mask = (1 << count) - 1
                if all(v == o ^ (o >> source & mask) << target for o, v in enumerate(table)):
                    return source, target, count
    return None


def _rotated(offset: int, bits: int) -> int:
    """The chunk's number plus the line's, within the chunks of a row."""
    line, chunk = offset // LINE, offset // CHUNK % CHUNKS
    size = 1 << bits
    return line * LINE + (chunk - chunk % size + (chunk + line) % size) * CHUNK + offset % CHUNK


def _bits(first: int, count: int) -> str:
    return f"bit {first}" if count == 1 else f"bits {first} to {first + count - 1}"
