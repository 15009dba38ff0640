"""The order of tiles, the roles of warps, and overlap: what a launch under schedule ``late`` shows beyond one instruction.

Recorded while instructions are issued: a few list and dictionary operations per TMA load, tcgen05.mma and tcgen05.ld.
:meth:`TileRecord.counters` turns the record into observables of :mod:`emulator.counters` when the launch is over.

An *accumulation* begins with a tcgen05.mma that overwrites its accumulator (enable-input-d is false). It is read back when
tcgen05.ld has loaded as many of its cells as it has. The next accumulation of the CTA is *serial* when all earlier ones are
read back and the program's own synchronisation orders all of these loads before it, so that the race detector's clocks
know of them: then no execution whatever lets an epilogue and the tensor core work side by side. A kernel with a second
accumulator is never serial, because it waits for the epilogue before the last one. Without race detection there is nothing
to report.

Tiles are found like this: the TMA loads of each warp are cut, in the order of their issue, into as many equal parts as one
warp of its cluster began accumulations (the most of any warp). Part w belongs to the cluster's w-th tile; the w-th tiles
of all clusters are wave w.  ``waves.bytes`` adds up, over the waves, the bytes of the *distinct* boxes (tensor, corner,
size) that a wave reads: what L2 has to bring in when nothing survives from wave to wave. ``waves.bytes.ideal`` is that
sum for waves that are rectangles of tiles: with a and b bytes per tile from the two tensors, R and C different slices of
them in the launch, and n tiles in the wave, the least r * a + c * b with r <= R, c <= C and r * c >= n.  Both depend on
the program alone, unless tiles are handed out at run time. There is nothing to report when a launch does not load from
exactly two tensors, or when its loads cannot be cut like that.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emulator.machine.cta import Cta

LOAD, MMA, READ_BACK = 1, 2, 4

Box = tuple[int, tuple[int, ...], int]  # tensor, corner, bytes
Slice = frozenset[Box]


class Accumulation:
    """One accumulator from its first MMA on: its columns, the cells that nobody has loaded yet, and who has.

    `readers`: warp of the cluster -> that warp's own time (see :mod:`emulator.checks.events`) at its last tcgen05.ld.
    """

    __slots__ = ("columns", "readers", "unread")

    def __init__(self, columns: int, cells: int) -> None:
        self.columns = columns
        self.unread = cells
        self.readers: dict[int, int] = {}

    def is_read(self, known: Any) -> bool:
        """All of it is loaded, and a warp with the clock `known` comes after that."""
        return self.unread <= 0 and all(known.item(reader) >= time for reader, time in self.readers.items())


class TileRecord:
    """The record of one launch."""

    def __init__(self) -> None:
        self.serial: int | None = None  # not known without race detection
        self.roles: dict[tuple[int, int], int] = {}  # (CTA, warp) -> what it executed
        self.loads: dict[int, dict[tuple[int, int], list[Box]]] = {}  # cluster -> (rank, warp) -> boxes
        self.mma_warps: dict[int, set[tuple[int, int]]] = {}  # cluster -> (CTA, warp) that issued an MMA
        self.begun: dict[int, Counter[tuple[int, int]]] = {}  # cluster -> (CTA, warp) -> accumulations
        self.open: dict[
            int, dict[int, Accumulation]
        ] = {}  # CTA -> first column -> what may still be read there

    # ------------------------------------------------------------------------------------------ while it runs

    def load(self, cta: Cta, warp: int, tensor: int, corner: tuple[int, ...], nbytes: int) -> None:
        """A warp issued a TMA load of one box."""
        key = (cta.linear, warp)
        self.roles[key] = self.roles.get(key, 0) | LOAD
        streams = self.loads.setdefault(cta.cluster.index, {})
        streams.setdefault((cta.rank, warp), []).append((tensor, corner, nbytes))

    def mma(self, cta: Cta, warp: int, column: int, columns: int, cells: int, overwrites: bool) -> None:
        """A warp issued a tcgen05.mma on `columns` TMEM columns, `cells` cells of each CTA."""
        key = (cta.linear, warp)
        self.roles[key] = self.roles.get(key, 0) | MMA
        self.mma_warps.setdefault(cta.cluster.index, set()).add(key)
        if not overwrites:
            return
        self.begun.setdefault(cta.cluster.index, Counter())[key] += 1
        if cta.cluster.hb is not None:
            self._begin(cta, warp, column, columns, cells)

    def _begin(self, cta: Cta, warp: int, column: int, columns: int, cells: int) -> None:
        """Is anything of what this CTA accumulated before still to be read, as far as this warp knows?"""
        known = cta.cluster.hb.now[cta.rank * cta.num_warps + warp]
        earlier = self.open.get(cta.linear)
        if earlier is None:
            earlier = self.open[cta.linear] = {}
            self.serial = self.serial or 0
        else:
            for first, accumulation in list(earlier.items()):
                if accumulation.is_read(known):
                    del earlier[first]
            if not earlier:
                self.serial = (self.serial or 0) + 1
        earlier[column] = Accumulation(columns, cells)

    def read_back(self, cta: Cta, warps: list[int], column: int, columns: int, lanes: int) -> None:
        """Some warps executed a tcgen05.ld of `columns` columns, `lanes` lanes each."""
        for warp in warps:
            key = (cta.linear, warp)
            self.roles[key] = self.roles.get(key, 0) | READ_BACK
        hb = cta.cluster.hb
        for first, accumulation in self.open.get(cta.linear, {}).items():
            shared = min(first + accumulation.columns, column + columns) - max(first, column)
            if shared > 0:
                accumulation.unread -= shared * lanes * len(warps)
                for warp in warps:
                    reader = cta.rank * cta.num_warps + warp
                    accumulation.readers[reader] = hb.now[reader].item(reader)

    # ------------------------------------------------------------------------------------------ afterwards

    def counters(self) -> dict[str, int]:
        """The observables; nothing where no TMA load, tcgen05.mma or tcgen05.ld was executed."""
        if not self.roles:
            return {}
        out = {"warps.two_roles": sum(1 for role in self.roles.values() if role & (role - 1))}
        if self.mma_warps:
            out["warps.mma"] = min(len(warps) for warps in self.mma_warps.values())
        if self.begun:
            out["accumulations"] = sum(count.total() for count in self.begun.values())
            if self.serial is not None:
                out["accumulations.serial"] = self.serial
        waves = self._waves()
        if waves is not None:
            out["waves.bytes"], out["waves.bytes.ideal"] = waves
            out["waves.percent"] = -(-100 * waves[0] // waves[1])
        return out

    def _waves(self) -> tuple[int, int] | None:
        """(bytes of distinct boxes per wave, the least possible), each summed over the waves."""
        tiles: list[list[set[Box]]] = []  # cluster -> its tiles -> boxes
        for cluster, streams in self.loads.items():
            count = max(self.begun.get(cluster, {}).values(), default=0)
            if not count or any(len(boxes) % count for boxes in streams.values()):
                return None
            own: list[set[Box]] = [set() for _ in range(count)]
            for boxes in streams.values():
                part = len(boxes) // count
                for w in range(count):
                    own[w].update(boxes[w * part : (w + 1) * part])
            tiles.append(own)
        tensors = sorted({box[0] for own in tiles for tile in own for box in tile})
        if len(tensors) != 2:
            return None
        slices = [{_slice(tile, tensor) for own in tiles for tile in own} for tensor in tensors]
        actual = ideal = 0
        for w in range(max(map(len, tiles))):
            wave = [own[w] for own in tiles if w < len(own)]
            read = _bytes(set().union(*wave))
            each = [max(_bytes(_slice(tile, tensor)) for tile in wave) for tensor in tensors]
            actual += read
            ideal += min(read, _rectangle(len(wave), each, [len(s) for s in slices]))
        return actual, ideal


def _slice(tile: set[Box], tensor: int) -> Slice:
    """The boxes that a tile reads from one tensor."""
    return frozenset(box for box in tile if box[0] == tensor)


def _bytes(boxes: Any) -> int:
    return sum(box[2] for box in boxes)


def _rectangle(n: int, each: list[int], most: list[int]) -> int:
    """The least bytes of a rectangle of n tiles: `each` bytes per row and column, at `most` so many of them."""
    fits = [
        r * each[0] + -(-n // r) * each[1] for r in range(1, min(n, most[0]) + 1) if -(-n // r) <= most[1]
    ]
    return min(fits) if fits else most[0] * each[0] + most[1] * each[1]
