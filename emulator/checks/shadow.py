"""Shadow memory: for every granule of a memory space, an id of what last happened to it.

The id is a small integer that :mod:`emulator.checks.happens_before` interns (last write plus the reads
since). A
shadow only knows where things are: it turns regions and per-lane addresses into views or row indices of one
    flat
``int32`` array, so that a whole tile or a whole warp access is a handful of NumPy calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.integer[Any]]
SpaceKind = Literal["smem", "tmem", "gmem"]

TMEM_COLUMNS = 512
TMEM_LANES = 128
TMEM_ROW_GROUP = 16  # lanes per shadow row: every TMEM data path touches lanes in multiples of 16
TMEM_CELLS = TMEM_COLUMNS * TMEM_LANES // TMEM_ROW_GROUP


# ---------------------------------------- regions


@dataclass(frozen=True)
class Span:
    """Contiguous bytes ``[start, stop)``."""

    start: int
    stop: int


class Chunks:
    """Equal chunks of ``width`` bytes at the given byte addresses (multiples of ``width``), in any order.

    Reuse the object for repeated accesses: it caches its row indices.
    """

    __slots__ = ("_delta", "_parent", "_rows", "addresses", "width")

    def __init__(self, addresses: IntArray, width: int) -> None:
        self.addresses = addresses
        self.width = width
        self._rows: dict[int, IntArray] = {}
        self._parent: Chunks | None = None
        self._delta = 0

    def shifted(self, delta: int) -> Chunks:
        """The same chunks ``delta`` bytes further."""
        out = Chunks.__new__(Chunks)
        out.width, out._rows = self.width, {}
        out._parent, out._delta = self._parent or self, self._delta + delta
        out.addresses = self.addresses
        return out

    def start_addresses(self) -> IntArray:
        """Byte address of every chunk."""
        return self.addresses + self._delta if self._delta else self.addresses

    def rows(self, shift: int) -> IntArray:
        """Row index of every chunk for rows of ``1 << shift`` bytes."""
        rows = self._rows.get(shift)
        if rows is None:
            if self._parent is not None and self._delta % (1 << shift) == 0:
                rows = self._parent.rows(shift) + (self._delta >> shift)
            else:
                rows = (self.start_addresses().astype(np.intp) >> shift).reshape(-1)
            self._rows[shift] = rows
        return rows


@dataclass(frozen=True)
class Strided:
    """A box in bytes:

    ``start + sum(i[d] * strides[d])``; the innermost extent is contiguous bytes (stride 1).
    """

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class TmemBlock:
    """Columns ``[column, column + columns)`` of TMEM lanes ``[lane0, lane0 + lanes)`` (multiples of 16).

    ``layout="F"`` selects 16 lanes of each 32-lane quarter, from ``lane0`` (0 or 16) on (M = 64 without .ws, PTX ISA
    tcgen05 layout F).
    """

    column: int
    columns: int
    lane0: int = 0
    lanes: int = 128
    layout: str = ""


Region = Span | Chunks | Strided | TmemBlock


# ---------------------------------------- lanes


class Lanes:
    """The lanes that execute one access, and the warp each belongs to.

    Attributes:
        warps: warps with at least one lane, in lane order.
        lane: lane index in the warp, ``int[n]``.
        slot: position in ``warps`` per lane, ``int[n]``.
        full: all 32 lanes of every warp, warp after warp.
    """

    __slots__ = ("_masks", "full", "lane", "n", "slot", "warps")

    def __init__(self, warps: tuple[int, ...], slot: IntArray, lane: IntArray, full: bool) -> None:
        self.warps = warps
        self.slot = slot
        self.lane = lane
        self.full = full
        self.n = len(slot)
        self._masks: list[int] | None = None

    @property
    def masks(self) -> list[int]:
        """The lanes of each warp, as bits."""
        if self._masks is None:
            flags = np.zeros((len(self.warps), 32), bool)
            flags[self.slot, self.lane] = True
            self._masks = np.packbits(flags, axis=1, bitorder="little").view("<u4")[:, 0].tolist()
        return self._masks

    @staticmethod
    def of(warps: Sequence[int]) -> Lanes:
        """All lanes of the given warps."""
        return _full_lanes(tuple(warps))

    @staticmethod
    def one(warp: int, lane: int = 0) -> Lanes:
        """A single thread."""
        return _one_lane(warp, lane)

    def select(self, which: npt.NDArray[Any]) -> Lanes:
        """Active lanes only. ``which``: bool mask or index array over these lanes."""
        slot = self.slot[which]
        lane = self.lane[which]
        present = np.zeros(len(self.warps), bool)
        present[slot] = True
        if present.all():
            return Lanes(self.warps, slot, lane, self.full and len(slot) == self.n)
        renumber = np.cumsum(present) - 1
        warps = tuple(w for w, p in zip(self.warps, present.tolist(), strict=True) if p)
        return Lanes(warps, renumber[slot], lane, len(slot) == 32 * len(warps))


@lru_cache(maxsize=4096)
def _full_lanes(warps: tuple[int, ...]) -> Lanes:
    slot = np.repeat(np.arange(len(warps)), 32)
    return Lanes(warps, slot, np.tile(np.arange(32), len(warps)), True)


@lru_cache(maxsize=65536)
def _one_lane(warp: int, lane: int) -> Lanes:
    return Lanes((warp,), np.zeros(1, np.intp), np.full(1, lane), False)


# ---------------------------------------- shadows


class Shadow:
    """State ids of one memory space.

    Attributes:
        kind, index: which space (index: CTA rank in its cluster, or global buffer number).
        granule: bytes per state id (a power of two); TMEM: one column of 16 lanes.
        ids: flat ``int32`` array, one id per granule; 0 means never written.
    """

    __slots__ = (
        "_fill",
        "_fill_view",
        "_grid",
        "_views",
        "granule",
        "ids",
        "index",
        "kind",
        "nbytes",
        "shift",
    )

    def __init__(self, kind: SpaceKind, index: int, nbytes: int, granule: int, initial: int = 0) -> None:
        if granule <= 0 or granule & (granule - 1):
            raise ValueError(f"shadow granule must be a power of two, got {granule}")
        self.kind = kind
        self.index = index
        self.granule = granule
        self.shift = granule.bit_length() - 1
        self.nbytes = nbytes
        count = -(-nbytes // granule)
        self.ids = np.full(-(-count // 64) * 64, initial, np.int32)
        self._views: dict[int, npt.NDArray[Any]] = {0: self.ids}
        self._fill = np.zeros(4, np.int32)
        self._fill_view: dict[int, npt.NDArray[Any]] = {
            1: self._fill[:2].view(np.int64),
            2: self._fill.view(np.complex128),
        }
        self._grid = self.ids.reshape(4, TMEM_COLUMNS, 2) if kind == "tmem" else None

    @staticmethod
    def tmem(cta: int) -> Shadow:
        """Shadow of one CTA's TMEM: 4 lane quarters x 512 columns x 2 groups of 16 lanes."""
        return Shadow("tmem", cta, TMEM_CELLS, 1)

    def rows_view(self, log2: int) -> npt.NDArray[Any]:
        """The ids as rows of ``2**log2`` granules.

        Rows of 2 and 4 granules are one 8- or 16-byte item each.
        """
        view = self._views.get(log2)
        if view is None:
            if log2 == 1:
                view = self.ids.view(np.int64)
            elif log2 == 2:
                view = self.ids.view(np.complex128)
            else:
                view = self.ids.reshape(-1, 1 << log2)
            self._views[log2] = view
        return view

    def fill_rows(self, view: npt.NDArray[Any], rows: Any, log2: int, state: int) -> None:
        """Set every granule of the given rows to one id."""
        if log2 == 1 or log2 == 2:
            self._fill.fill(state)
            view[rows] = self._fill_view[log2]
        else:
            view[rows] = state

    def span(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """The granules that bytes ``[start, stop)`` touch, as a view."""
        return self.ids[start >> self.shift : (stop + self.granule - 1) >> self.shift]

    def strided(self, box: Strided) -> npt.NDArray[np.int32] | None:
        """The granules of a box as a strided view, or None when a stride is no multiple of the granule."""
        shift, granule = self.shift, self.granule
        if box.start % granule or box.shape[-1] % granule or any(s % granule for s in box.strides[:-1]):
            return None
        shape = (*box.shape[:-1], box.shape[-1] >> shift)
        strides = (*((s >> shift) * 4 for s in box.strides[:-1]), 4)
        return np.ndarray(shape, np.int32, self.ids.data, (box.start >> shift) * 4, strides)

    def block(self, block: TmemBlock) -> npt.NDArray[np.int32]:
        """The shadow cells of a TMEM block, as a view (lane quarters x columns x half quarters)."""
        assert self._grid is not None
        columns = slice(block.column, block.column + block.columns)
        first, last = block.lane0 // TMEM_ROW_GROUP, -(-(block.lane0 + block.lanes) // TMEM_ROW_GROUP)
        if block.layout == "F":
            return self._grid[:, columns, first : first + 1]
        if last - first == 1:
            return self._grid[first >> 1 : (first >> 1) + 1, columns, first & 1 : (first & 1) + 1]
        if (first | last) & 1:
            raise ValueError(f"a TMEM block covers one half or whole lane quarters, not {block}")
        return self._grid[first >> 1 : last >> 1, columns]

    def quarter(
        self, quarter: int, column: int, columns: int, half: int, halves: int
    ) -> npt.NDArray[np.int32]:
        """The cells of ``columns`` in one lane quarter (both 16-lane halves, or one of them), as a view."""
        assert self._grid is not None
        view = self._grid[quarter, column : column + columns]
        return view if halves == 2 else view[:, half : half + 1]

    def byte_of(self, granule_index: int) -> int:
        """Byte address of a granule; for TMEM the address ``lane << 16 | column``."""
        if self.kind == "tmem":
            column, half = divmod(granule_index, 2)
            quarter, column = divmod(column, TMEM_COLUMNS)
            return (quarter * 32 + half * TMEM_ROW_GROUP) << 16 | column
        return granule_index << self.shift
