"""Lanes of one warp that talk to each other: through SMEM without bar.warp.sync, or at one address in one store.

The race detector knows warps, not lanes. Here the lanes of a warp are told apart, for plain loads and stores:

* A load that reads what another lane of its warp has stored since the warp last met. Lanes meet at ``bar.warp.sync``
  (``__syncwarp``) and at barriers of whole warps; a wait on an mbarrier counts, too. Shuffles and votes do not: they
  order no memory (CUDA C++ Programming Guide, "Warp Shuffle Functions", "Warp Vote Functions").
* A store by which lanes of one warp put different values at one address: which of them stays is undefined (CUDA C++
  Programming Guide, "SIMT Architecture").

Not seen: a store over what another lane has loaded, and what a lane signals or copies asynchronously on behalf of the
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulator.checks.findings import words
from emulator.checks.shadow import Lanes, Shadow

if TYPE_CHECKING:
    from emulator.checks.happens_before import ClusterOrder

_POSITION_BITS = 11  # of a lane among those of one store; a CTA has at most 1024
_WAITING = 64  # stores that are not entered into the table yet
_LANE_WRITES = ("st.shared", "stmatrix")
_LANE_READS = ("ld.shared", "ldmatrix")


@dataclass(frozen=True)
class _Store:
    """A store: its lanes, the eras of their warps, its statement; ``rows``: several lanes hold a row (stmatrix)."""

    shadow: Shadow
    address: Any
    nbytes: int
    lanes: Lanes
    eras: tuple[int, ...]
    site: int
    rows: bool


class LaneOrder:
    """Who of a warp has stored what to SMEM since the lanes of that warp last met.

    An era is what lies between two meetings of one warp, and has a number of its own. A table per CTA holds, for every
    granule, the number of its last store and the position of the lane in it. Stores wait in a list until somebody reads.
    """

    def __init__(self, order: ClusterOrder, warps: int) -> None:
        self.order = order
        self.era = list(range(1, warps + 1))
        self._next = warps + 1
        self.live: set[int] = set()  # warps with stores in their present era
        self._waiting: list[_Store] = []
        self._stores: dict[int, _Store] = {}
        self._count = 1  # of stores that were entered, and one
        self._tables: dict[int, npt.NDArray[np.int64]] = {}
        self._reach: dict[int, tuple[int, int]] = {}  # bytes that the live stores lie between, per CTA
        self._known: tuple[Any, int, int] = (None, 0, 0)

    def extent(self, addr: Any, first: int, last: int) -> None:
        """The next access is at ``addr``, between bytes ``first`` and ``last``: saves looking for them again."""
        self._known = addr, first, last

    def _extent(self, addr: Any, nbytes: int) -> tuple[int, int]:
        known, first, last = self._known
        if known is addr:
            return first, last
        return int(np.min(addr)), int(np.max(addr)) + nbytes

    def meet(self, w: int) -> None:
        """The lanes of warp ``w`` are ordered."""
        if w in self.live:
            self.live.discard(w)
            self.era[w] = self._next
            self._next += 1
            if not self.live:
                self._waiting.clear()
                self._stores.clear()
                self._reach.clear()

    def wrote(self, shadow: Shadow, lanes: Lanes, addr: Any, nbytes: int, site: int, what: str) -> None:
        """A plain store of ``nbytes`` bytes per lane at ``addr``."""
        if what not in _LANE_WRITES:
            return
        self.live.update(lanes.warps)
        eras = tuple([self.era[w] for w in lanes.warps])
        first, last = self._extent(addr, nbytes)
        low, high = self._reach.get(shadow.index, (first, last))
        self._reach[shadow.index] = min(low, first), max(high, last)
        self._waiting.append(_Store(shadow, addr, nbytes, lanes, eras, site, what == "stmatrix"))
        if len(self._waiting) > _WAITING:
            self._enter()

    def reads(self, shadow: Shadow, lanes: Lanes, addr: Any, nbytes: int, site: int, what: str) -> None:
        """A plain load: report it when another lane of the same warp has stored there in the present era."""
        if what not in _LANE_READS or self.live.isdisjoint(lanes.warps):
            return
        first, last = self._extent(addr, nbytes)
        low, high = self._reach.get(shadow.index, (0, 0))
        if last <= low or high <= first:
            return
        if self._waiting:
            self._enter()
        table = self._tables.get(shadow.index)
        if table is None or not self._stores:
            return
        rows = _granules(shadow, addr, nbytes)
        codes = table.take(rows)
        if codes.max() >> _POSITION_BITS < next(iter(self._stores)):  # the oldest
            return
        codes = np.broadcast_to(codes.reshape(len(codes), -1), (lanes.n, codes.size // len(codes)))
        rows = np.broadcast_to(rows.reshape(len(rows), -1), codes.shape)
        numbers = codes >> _POSITION_BITS
        for number in np.unique(numbers).tolist():
            store = self._stores.get(number)
            if store is None:
                continue
            for slot, w in enumerate(lanes.warps):
                if w not in store.lanes.warps or store.eras[store.lanes.warps.index(w)] != self.era[w]:
                    continue
                mine = (numbers == number) & (lanes.slot == slot)[:, None]
                position = codes & ((1 << _POSITION_BITS) - 1)
                writer = store.lanes.lane[np.where(mine, position, 0)]
                mine &= np.array(store.lanes.warps)[store.lanes.slot[np.where(mine, position, 0)]] == w
                if not store.rows and what == "ld.shared":
                    mine &= writer != lanes.lane[:, None]
                if mine.any():
                    granules = np.unique(rows[mine])
                    readers = np.flatnonzero(mine.any(axis=1))
                    self.order.detector.reporter.lanes_not_ordered(
                        self.order, w, shadow, int(granules[0]), len(granules), what,
                        sorted(set(lanes.lane[readers].tolist())),
                        [] if store.rows else sorted(set(writer[mine].tolist())), site, store.site,
                    )  # fmt: skip

    def _enter(self) -> None:
        """Enter the stores that wait into the tables."""
        for store in self._waiting:
            if not any(self.era[w] == era for w, era in zip(store.lanes.warps, store.eras, strict=True)):
                continue
            table = self._tables.get(store.shadow.index)
            if table is None:
                table = self._tables[store.shadow.index] = np.zeros(len(store.shadow.ids), np.int64)
            rows = _granules(store.shadow, store.address, store.nbytes)
            self._stores[self._count] = store
            code = (self._count << _POSITION_BITS) + np.arange(store.lanes.n)
            self._count += 1
            if len(rows) != store.lanes.n:
                table[rows] = code[-1]  # one address for all lanes
            else:
                table[rows] = code if rows.ndim == 1 else code[:, None]
        self._waiting.clear()


def _granules(shadow: Shadow, addr: Any, nbytes: int) -> npt.NDArray[Any]:
    """Granules of the accesses: ``[lanes]`` or ``[lanes, granules of one]``; one row for one address of all lanes."""
    first = np.asarray(addr).reshape(-1) >> shadow.shift
    several = nbytes >> shadow.shift
    return first if several < 2 else first[:, None] + np.arange(several)


def colliding_lanes(
    index: Any, values: npt.NDArray[Any], warp_of_lane: npt.NDArray[Any], lane: npt.NDArray[Any]
) -> tuple[int, tuple[int, ...], int] | None:
    """(warp, lanes, element) where lanes of one warp store different values to one element; the lowest such element.

    Args:
        index: element of each active lane, or one integer for all.
        values, warp_of_lane, lane: of the same lanes.
    """
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    elements = np.broadcast_to(np.asarray(index), len(values))
    order = np.lexsort((warp_of_lane, elements))
    same = (elements[order][1:] == elements[order][:-1]) & (
        warp_of_lane[order][1:] == warp_of_lane[order][:-1]
    )
    differs = (raw[order][1:] != raw[order][:-1]).any(axis=1)
    hits = np.flatnonzero(same & differs)
    if not len(hits):
        return None
    first = order[hits[0]]
    mine = (elements == elements[first]) & (warp_of_lane == warp_of_lane[first])
    return int(warp_of_lane[first]), tuple(lane[mine].tolist()), int(elements[first])


def collision(warp: int, lanes: Sequence[int], place: str) -> tuple[str, str]:
    """(message, fix) for lanes that store different values to one place."""
    who = words(lanes, "lane", "lanes")
    return (
        f"{who[0].upper()}{who[1:]} of warp {warp} store different values to {place} in one instruction: which of them "
        "stays is undefined.",
        "Give each lane an element of its own, let one lane store, or combine the values first (a warp reduction, an atomic).",
    )
