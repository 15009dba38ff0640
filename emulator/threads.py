"""The threads that execute one statement together.

A *strand* is a set of warps of one CTA that run in lockstep; a :class:`Threads` is the part of a strand that is active
at one place of the program: all of it, a masked part, or a single lane.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.errors import DeviceFault

if TYPE_CHECKING:
    from emulator.machine.cta import Cta


@lru_cache(maxsize=1024)
def _lane_numbers(warps: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(thread index, warp index) per lane; read-only."""
    warp_of_lane = np.repeat(np.asarray(warps, dtype=np.int64), 32)
    tid = warp_of_lane * 32 + np.tile(np.arange(32, dtype=np.int64), len(warps))
    tid.flags.writeable = warp_of_lane.flags.writeable = False
    return tid, warp_of_lane


class Threads:
    """Active threads of a strand.

    Attributes:
        cta: the CTA they belong to.
        warps: warp indices in the CTA, in lane order; lane ``l`` of the strand belongs to ``warps[l // 32]``.
        count: lanes of the strand (``32 * len(warps)``), or 1 in single-lane code.
        lane: None, or the strand lane that runs single-lane (scalar) code.
        mask: None (all lanes active) or ``bool[count]``.
        tid: ``threadIdx.x`` per lane, ``int64[count]`` (an int in single-lane code).
        site: index of the statement being executed (see ``Program.sites``).
    """

    __slots__ = (
        "cta",
        "warps",
        "count",
        "lane",
        "mask",
        "tid",
        "site",
        "strand",
        "warp_of_lane",
        "_hb",
        "parent",
    )

    def __init__(self, cta: Cta, warps: list[int]) -> None:
        self.cta = cta
        self.warps = warps
        self.count = 32 * len(warps)
        self.lane: int | None = None
        self.mask: np.ndarray | None = None
        self.tid: Any
        self.tid, self.warp_of_lane = _lane_numbers(tuple(warps))
        self.site = -1
        self.strand: Any = None
        self.parent: Threads | None = None
        self._hb: Any = None

    def _copy(self) -> Threads:
        t = Threads.__new__(Threads)
        t.cta, t.warps, t.count, t.lane, t.mask, t.tid = (
            self.cta,
            self.warps,
            self.count,
            self.lane,
            self.mask,
            self.tid,
        )
        t.site, t.strand, t.warp_of_lane, t._hb, t.parent = (
            self.site,
            self.strand,
            self.warp_of_lane,
            None,
            self,
        )
        return t

    def masked(self, mask: np.ndarray | None) -> Threads:
        """The same strand with ``mask`` active (None: unchanged)."""
        if mask is None:
            return self
        t = self._copy()
        t.mask = mask
        return t

    def single(self, lane: int) -> Threads:
        """One lane, for scalar code."""
        t = self._copy()
        t.lane = lane
        t.mask = None
        t.count = 1
        t.tid = int(self.tid[lane])
        t.warps = [self.warps[lane // 32]]
        t.warp_of_lane = self.warp_of_lane[lane : lane + 1]
        return t

    # ------------------------------------------------------------------------------------------ branches

    def branch(self, cond: Any) -> Any:
        """Resolve a condition: None (all active lanes take it), False (none does) or the new mask.

        ``cond`` is a scalar or ``bool[count]``.
        """
        if not isinstance(cond, np.ndarray):
            return self.mask if cond else False
        if cond.dtype != bool:
            cond = cond != 0
        if self.mask is not None:
            cond = cond & self.mask
            hits = int(np.count_nonzero(cond))
            return cond if hits else False
        hits = int(np.count_nonzero(cond))
        if hits == self.count:
            return None
        return cond if hits else False

    def select_lanes(self, cond: Any) -> list[int]:
        """Strand lanes that are active and for which ``cond`` holds, ascending."""
        if self.lane is not None:
            return [self.lane] if cond else []
        if not isinstance(cond, np.ndarray):
            if not cond:
                return []
            return list(range(self.count)) if self.mask is None else np.flatnonzero(self.mask).tolist()
        cond = cond != 0
        if self.mask is not None:
            cond = cond & self.mask
        return cond.nonzero()[0].tolist()

    def select_thread(self, tid: int) -> list[int]:
        """The strand lane of thread ``tid`` when it is active here, as :meth:`select_lanes` of ``threadIdx.x == tid``."""
        if self.lane is not None:
            return [self.lane] if self.tid == tid else []
        warp, lane = divmod(tid, 32)
        if warp not in self.warps:
            return []
        lane += 32 * self.warps.index(warp)
        return [lane] if self.mask is None or self.mask[lane] else []

    def elected(self) -> list[int]:
        """The lowest active lane of every warp, as :meth:`select_lanes` of ``elect.sync``."""
        if self.lane is not None:
            return [self.lane]
        if self.mask is None:
            return list(range(0, self.count, 32))
        by_warp = self.mask.reshape(-1, 32)
        first = by_warp.argmax(axis=1).tolist()
        some: Any = by_warp.any(axis=1).tolist()
        return [32 * k + lane for k, lane in enumerate(first) if some[k]]

    def guard(self, cond: Any) -> Threads:
        """The lanes of ``self`` for which ``cond`` holds (possibly none)."""
        if not isinstance(cond, np.ndarray):
            if cond:
                return self
            cond = np.zeros(self.count, dtype=bool)
        t = self._copy()
        t.mask = cond if self.mask is None else cond & self.mask
        return t

    # ------------------------------------------------------------------------------------------ identity

    @property
    def lanes(self) -> Any:
        """Lane index in the warp, per lane."""
        return self.tid % 32

    def active_warps(self) -> list[int]:
        """Warps with at least one active lane."""
        if self.mask is None:
            return self.warps
        some: Any = self.mask.reshape(-1, 32).any(axis=1).tolist()
        return [w for w, a in zip(self.warps, some, strict=True) if a]

    def active_count(self) -> int:
        return self.count if self.mask is None else int(np.count_nonzero(self.mask))

    def active_indices(self) -> list[int]:
        """Strand lanes that are active."""
        if self.lane is not None:
            return [self.lane]
        return list(range(self.count)) if self.mask is None else np.flatnonzero(self.mask).tolist()

    def rows(self, *values: Any) -> list[tuple[Any, ...]]:
        """One tuple of scalars per active lane (for instructions that every active thread issues by itself)."""
        if self.lane is not None or (self.mask is None and self.count == 1):
            return [values]
        out = []
        for i in self.active_indices():
            out.append(tuple(v[i].item() if isinstance(v, np.ndarray) and v.ndim else v for v in values))
        return out

    def per_warp(self, value: Any) -> list[tuple[int, Any]]:
        """(warp, value) for each active warp; the value of its first active lane."""
        if self.lane is not None:
            return [(self.warps[0], value)]
        warps = self.warps
        positions = list(range(len(warps)))
        if self.mask is None:
            first = [32 * k for k in positions]
        else:
            by_warp = self.mask.reshape(-1, 32)
            some: Any = by_warp.any(axis=1).tolist()
            first = [32 * k + lane for k, lane in enumerate(by_warp.argmax(axis=1).tolist())]
            positions = [k for k in positions if some[k]]
        if not (isinstance(value, np.ndarray) and value.ndim):
            return [(warps[k], value) for k in positions]
        return [(warps[k], value[first[k]].item()) for k in positions]

    def common(self, value: Any) -> Any:
        """The one value that all active lanes have, as a scalar; ``value`` itself when they differ or none is active."""
        if not (isinstance(value, np.ndarray) and value.ndim):
            return value
        active = value if self.mask is None else value[self.mask]
        return active[0].item() if active.size and bool((active == active[0]).all()) else value

    def as_vector(self, value: Any, dtype: Any = np.int64) -> np.ndarray:
        """``value`` as an array of ``count`` lanes."""
        if isinstance(value, np.ndarray) and value.ndim:
            return value
        return np.full(self.count, value, dtype=dtype)

    def compact(self, value: Any) -> Any:
        """Only the active lanes of a vector; scalars unchanged."""
        if self.mask is None or not (isinstance(value, np.ndarray) and value.ndim):
            return value
        return value[self.mask]

    def require_whole_warps(self, what: str) -> None:
        """``.sync.aligned``: all 32 threads of a warp execute the instruction together.

        Raises:
            DeviceFault: only part of some warp is active.
        """
        if self.lane is None:
            if self.mask is None:
                return
            per_warp = self.mask.reshape(-1, 32)
            missing = (self.tid >= self.cta.machine.num_threads).reshape(-1, 32)
            if bool((per_warp.any(axis=1) == (per_warp | missing).all(axis=1)).all()):
                return
        raise DeviceFault(
            "warp.divergent",
            f"{what} is executed by only part of a warp; it is .sync.aligned",
            f"move {what} out of the branch: all 32 threads of the warp must execute it together",
            site=self.site,
        )

    # ------------------------------------------------------------------------------------------ bookkeeping

    def count_op(self, name: str) -> None:
        """Count one execution per active warp."""
        counters = self.cta.machine.counters
        counters[name] = counters.get(name, 0) + (
            len(self.warps) if self.mask is None else len(self.active_warps())
        )

    def hb_lanes(self) -> Any:
        """The race detector's view of the active lanes (only called when checking is on)."""
        if self._hb is None:
            hb = self.cta.cluster.hb
            first = self.cta.rank * self.cta.num_warps
            if self.lane is not None:
                self._hb = hb.lane(first + self.warps[0], self.lane % 32)
            else:
                if self.warps[-1] - self.warps[0] + 1 == len(self.warps):
                    lanes = hb.lanes(first + self.warps[0], len(self.warps))
                else:
                    index = np.concatenate([np.arange(32) + 32 * w for w in self.warps])
                    lanes = hb.lanes(first, self.cta.num_warps).select(index)
                self._hb = lanes if self.mask is None else lanes.select(self.mask)
        return self._hb

    def hb_warps(self) -> tuple[int, ...]:
        first = self.cta.rank * self.cta.num_warps
        return tuple(first + w for w in self.active_warps())

    @property
    def rd_site(self) -> int:
        return self.cta.machine.rd_site(self.site)
