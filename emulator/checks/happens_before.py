"""The race detector: happens-before over SMEM, TMEM and GMEM with vector clocks.

Feed it every access and every synchronization of a run, in the order in which the scheduler executes them,
and it reports each pair of conflicting accesses that nothing orders, whether or not this schedule showed the
damage. It knows nothing of TVM or of the scheduler.

How it works
    * Agents. Every warp is an agent (its lanes are ordered among themselves), every mbarrier is one, and so
      is every queue of asynchronous operations (tcgen05.mma/cp, tcgen05.ld and st of a warp; bulk stores of a
      thread; cp.async and wgmma of a warp). A TMA load that completes on mbarrier b in b's phase number g is
      the event (b, g + 1): only a warp that acquired this phase, directly or through others, knows that it is
      done.
    * An asynchronous access is recorded when it is *issued*, and checked with the clock of its issuer at that
      time. It stays in flight until somebody waits for it.
    * The commits of one thread arrive in their order ("tcgen05 pipelined instructions"): who acquires a phase that a
      commit completed knows of all phases that earlier commits of that thread completed.
    * A successful wait acquires only what it proves. With k phases known to have completed, a wait for parity
      q proves one more phase when (k & 1) == q and nothing otherwise, however far the barrier has run ahead
      in this schedule. This is what makes a wrong phase visible in every schedule.
    * Shadow memory holds one state per granule: the last write and the reads since (FastTrack). States are
      interned integers, so that a tile or warp access is one gather, one check per distinct state and one
      scatter.

Rules: PTX ISA, chapters "Memory Consistency Model", "mbarrier", "Async proxy", "tcgen05 memory consistency
    model".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.checks.conflicts import Address, ConflictChecker
from emulator.checks.events import (
    ALL_LANES,
    ORDER,
    PLANES,
    PROXY_GMEM,
    PROXY_SMEM,
    TCGEN05,
    BarrierOrder,
    Clock,
    Event,
    Kind,
    Queue,
    State,
    join,
    joined,
    kind_of,
)
from emulator.checks.findings import Finding, FindingLog, SourceLocation
from emulator.checks.grid_order import Clocks, GridOrder
from emulator.checks.lane_order import LaneOrder
from emulator.checks.race_reports import Reporter, Uninitialised
from emulator.checks.shadow import TMEM_CELLS, Chunks, Lanes, Region, Shadow, Span, Strided, TmemBlock

__all__ = [
    "BarrierOrder",
    "Chunks",
    "ClusterOrder",
    "Lanes",
    "RaceDetector",
    "Region",
    "Span",
    "Strided",
    "TmemBlock",
]

NameOf = Callable[[str, int, int], str]
Places = Sequence[tuple[int, Region]]

_HISTORY = 16  # completed phases per mbarrier whose clocks are kept
_COMPACT = 1 << 16  # interned states before unused ones are dropped


class RaceDetector:
    """One run of a host function: global memory, and the clusters that live now.

    Args:
        log: receives the findings.
        name_of: ``name_of(space, index, byte) -> str`` names what lies at a place. ``space``: "smem", "tmem"
            or "gmem". ``index``: CTA id or buffer number. A TMEM byte is ``lane << 16 | column``.
        smem_granule: bytes of one SMEM shadow cell, 1 to 16: the smallest SMEM access of the kernel.
        uninitialised: strength of reads of SMEM or TMEM that nobody wrote, or "off"; or one per kind of
            reader, by :data:`~emulator.checks.events.Via` ("mma", "bulk_read"...); "program" is the default.
    """

    def __init__(
        self,
        log: FindingLog,
        name_of: NameOf | None = None,
        *,
        smem_granule: int = 4,
        uninitialised: Uninitialised = "error",
    ) -> None:
        self.log = log
        self.smem_granule = smem_granule
        self.sites: list[SourceLocation | None] = [None]
        self._site_ids: dict[SourceLocation, int] = {}
        self.buffers: list[Shadow | None] = []
        self.buffer_names: list[str] = []
        self.clusters: list[ClusterOrder] = []
        self.locations: dict[Hashable, Clocks] = {}
        self.reporter = Reporter(log, self.sites, name_of or self._plain_name, uninitialised)
        # State 0: never written. State 1: written by the host before the launch.
        nothing = kind_of("nothing", "generic", "program")
        self.unwritten = Event(None, 0, 0, 0, 0, nothing, 0)  # type: ignore[arg-type]
        self.states: list[State] = [(self.unwritten, ()), (None, ())]
        self._compact_at = _COMPACT
        self._spare: dict[tuple[str, int], list[Shadow]] = {}

    def site(self, location: SourceLocation | None) -> int:
        """A number for a source line; 0 when unknown."""
        if location is None:
            return 0
        number = self._site_ids.get(location)
        if number is None:
            number = self._site_ids[location] = len(self.sites)
            self.sites.append(location)
        return number

    def add_global(self, nbytes: int, granule: int, name: str = "", written: bool = True) -> int:
        """Register a global buffer with ``granule`` bytes per cell.

        ``written=False``: nothing writes it, no cost.
        """
        self.buffer_names.append(name or f"buffer {len(self.buffers)}")
        shadow = Shadow("gmem", len(self.buffers), nbytes, granule, initial=1) if written else None
        self.buffers.append(shadow)
        return len(self.buffers) - 1

    def next_kernel(self) -> None:
        """A kernel boundary of one stream: everything before it is visible to everything after it."""
        for shadow in self.buffers:
            if shadow is not None:
                shadow.ids.fill(1)
        self.locations.clear()

    def start_cluster(
        self,
        ctas: int,
        warps_per_cta: int,
        smem_bytes: int,
        cta_ids: Sequence[int] | None = None,
        apart: bool = False,
    ) -> ClusterOrder:
        """A cluster of ``ctas`` CTAs begins. ``cta_ids``: their linear indices in the grid, for reports.

        ``apart``: they are no cluster of the launch and have no barrier in common.
        """
        self.maybe_compact()
        cluster = ClusterOrder(self, ctas, warps_per_cta, smem_bytes, tuple(cta_ids or range(ctas)))
        cluster.apart = apart
        self.clusters.append(cluster)
        return cluster

    def shared_shadow(self, cta: int, nbytes: int) -> Shadow:
        """An empty SMEM shadow, a used one of the same size when there is one."""
        return self._recycled(("smem", nbytes), cta) or Shadow("smem", cta, nbytes, self.smem_granule)

    def tensor_shadow(self, cta: int) -> Shadow:
        """An empty TMEM shadow."""
        return self._recycled(("tmem", TMEM_CELLS), cta) or Shadow.tmem(cta)

    def _recycled(self, key: tuple[str, int], cta: int) -> Shadow | None:
        spare = self._spare.get(key)
        if not spare:
            return None
        shadow = spare.pop()
        shadow.index = cta
        shadow.ids.fill(0)
        return shadow

    def recycle(self, shadows: Iterable[Shadow]) -> None:
        """Shadows of a cluster that is gone."""
        for shadow in shadows:
            self._spare.setdefault((shadow.kind, shadow.nbytes), []).append(shadow)

    def maybe_compact(self) -> None:
        """Drop interned states that no shadow refers to, when there are many."""
        if len(self.states) < self._compact_at:
            return
        shadows = [s for s in self.buffers if s is not None]
        for cluster in self.clusters:
            shadows += cluster.smem + cluster.tmem
            cluster.forget_cached_events()
        live = np.zeros(len(self.states), bool)
        live[:2] = True
        for shadow in shadows:
            live[shadow.ids] = True
        renumber = (np.cumsum(live) - 1).astype(np.int32)
        for shadow in shadows:
            shadow.ids[:] = renumber[shadow.ids]
        self.states = [state for state, keep in zip(self.states, live.tolist(), strict=True) if keep]
        for write, others in self.states:
            for event in (write, *others):
                if event is not None:
                    event.state, event.memo = -1, None
        for number, (write, others) in enumerate(self.states[2:], 2):
            if write is not None and not others:
                write.state = number
        self._compact_at = max(_COMPACT, 2 * len(self.states))

    def _plain_name(self, space: str, index: int, byte: int) -> str:
        if space == "gmem":
            return self.buffer_names[index]
        if space == "tmem":
            return f"TMEM column {byte & 0xFFFF}"
        return f"SMEM byte {byte}"


class ClusterOrder:
    """Clocks, shadows and events of one cluster. Made by :meth:`RaceDetector.start_cluster`.

    ``w`` is the warp index in the cluster, ``cta * warps_per_cta + warp``; ``cta`` is the rank in the
    cluster.
    """

    def __init__(
        self, detector: RaceDetector, ctas: int, warps_per_cta: int, smem_bytes: int, cta_ids: tuple[int, ...]
    ) -> None:
        self.detector = detector
        self.ctas = ctas
        self.warps_per_cta = warps_per_cta
        self.cta_ids = cta_ids
        self.apart = False
        warps = ctas * warps_per_cta
        self.columns = 2 * warps + 48
        self._used = warps
        self.clocks: npt.NDArray[np.int32] = np.zeros((warps, PLANES, self.columns), np.int32)
        self._bind_rows()
        for w in range(warps):
            self.now[w][w] = 1
        self.smem = [detector.shared_shadow(c, smem_bytes) for c in range(ctas)]
        self.tmem = [detector.tensor_shadow(c) for c in range(ctas)]
        # Per CTA: who allocated TMEM (warp, its time, statement), and the warps whose use of it was checked
        self._tmem_owner: list[tuple[int, int, int] | None] = [None] * ctas
        self._tmem_users: list[set[int]] = [set() for _ in range(ctas)]
        self._tmem_pair = [False] * ctas
        self._cluster_arrived = [0] * warps  # time of each warp's latest barrier.cluster.arrive
        self.column_owner: dict[int, Any] = {}
        self.fences: list[list[int]] = [
            [] for _ in range(warps)
        ]  # epochs at which a warp ran fence.proxy.async
        # TCGEN05 plane at the warp's last tcgen05.fence::after_thread_sync
        self.after_fence: list[npt.NDArray[np.int32] | None] = [None] * warps
        # (epoch, lanes) at which some lanes of a warp ran it alone, while other lanes had written
        self.partial_fences: list[list[tuple[int, int]]] = [[] for _ in range(warps)]
        self._wrote = [0] * warps  # lanes that wrote since their warp last met at a barrier, as bits
        self._met = [0] * warps  # its time then
        self._cache: list[dict[Any, Event]] = [{} for _ in range(warps)]
        self.queues: dict[tuple[Any, ...], Queue] = {}
        self._copies = False  # whether any warp has issued cp.async
        self._bars: dict[tuple[int, int], Clock] = {}
        self._cluster_pending: Clock | None = None
        self._cluster_done: Clock | None = None
        self.barriers: list[BarrierOrder] = []
        self.idle_waits: dict[tuple[int, BarrierOrder], tuple[int, int]] = {}
        # wait_groups by threads without stores: (statement, warp) -> lanes
        self.stray_bulk_waits: dict[tuple[int, int], tuple[int, ...]] = {}
        self._in_flight: list[dict[int, Event]] = [{} for _ in range(ctas)]
        # Per CTA: the latest use of its SMEM by each warp of another CTA (time, statement, instruction)
        self._remote: list[dict[int, tuple[int, int, str, tuple[int, ...]]]] = [{} for _ in range(ctas)]
        self._alive = [warps_per_cta] * ctas
        self._exit_clock: list[Clock] = [np.zeros((PLANES, 0), np.int32) for _ in range(ctas)]
        # mbarriers that an ordinary write has hit, and its finding: a mistake once the barrier is used again
        self.overwritten: dict[tuple[int, int], Finding] = {}
        self._unfenced_inits: list[list[BarrierOrder]] = [[] for _ in range(warps)]
        self._fenced_inits: list[list[BarrierOrder]] = [[] for _ in range(warps)]
        # Executed before barrier.cluster, .relaxed or not: enough to give TMEM back.  [arriving, complete]
        self._cluster_executed: list[Clock] = [np.zeros((PLANES, 0), np.int32) for _ in range(2)]
        self.group_waiters: set[tuple[str, int]] = set()  # (kind, warp) that executed a wait_group
        self._cluster_inits: tuple[list[BarrierOrder], list[BarrierOrder]] = ([], [])  # arriving, complete
        self.grid = GridOrder(self, warps)
        self.lane_order = LaneOrder(self, warps)
        self.checker = ConflictChecker(self)

    # ---------------------------------------- columns

    def _bind_rows(self) -> None:
        self.rows = [self.clocks[w] for w in range(len(self.clocks))]
        self.now = [self.clocks[w, ORDER] for w in range(len(self.clocks))]

    def _column(self, owner: Any) -> int:
        """A new clock column."""
        if self._used == self.columns:
            wider = np.zeros((len(self.clocks), PLANES, 2 * self.columns), np.int32)
            wider[:, :, : self.columns] = self.clocks
            self.clocks = wider
            self.columns *= 2
            self._bind_rows()
        self.column_owner[self._used] = owner
        self._used += 1
        return self._used - 1

    def _tick(self, w: int) -> None:
        self.now[w][w] += 1
        if self._cache[w]:
            self._cache[w] = {}

    def _queue(self, kind: str, w: int, lane: int = 0, *, two: bool = False) -> Queue:
        key = (kind, w, lane)
        queue = self.queues.get(key)
        if queue is None:
            queue = Queue(self._column(key), self._column(key) if two else -1)
            self.queues[key] = queue
        return queue

    def forget_cached_events(self) -> None:
        """Drop the per-warp event caches (their interned states are about to be renumbered)."""
        self._cache = [{} for _ in self._cache]

    def cta_of(self, w: int) -> int:
        """CTA rank of a warp of the cluster."""
        return w // self.warps_per_cta

    def lanes(self, first_warp: int, n_warps: int = 1) -> Lanes:
        """All lanes of consecutive warps."""
        return Lanes.of(range(first_warp, first_warp + n_warps))

    def lane(self, w: int, lane: int = 0) -> Lanes:
        """One thread."""
        return Lanes.one(w, lane)

    # ---------------------------------------- generic accesses

    def smem_read(
        self,
        lanes: Lanes,
        cta: int,
        addr: Address,
        nbytes: int,
        site: int = 0,
        what: str = "ld.shared",
        atomic: bool = False,
    ) -> None:
        """Each lane reads ``nbytes`` bytes at ``addr`` (offset in the CTA's SMEM; an int: all the same)."""
        if self.ctas > 1:
            self._note_remote(lanes.warps, cta, site, what)
        self._generic(self.smem[cta], lanes, addr, nbytes, site, what, False, atomic)

    def smem_write(
        self,
        lanes: Lanes,
        cta: int,
        addr: Address,
        nbytes: int,
        site: int = 0,
        what: str = "st.shared",
        atomic: bool = False,
    ) -> None:
        """Each lane writes ``nbytes`` bytes at ``addr``. ``atomic``: a read-modify-write of atom or red."""
        if self.ctas > 1:
            self._note_remote(lanes.warps, cta, site, what)
        self._generic(self.smem[cta], lanes, addr, nbytes, site, what, True, atomic)

    def gmem_read(
        self,
        lanes: Lanes,
        buf: int,
        addr: Address,
        nbytes: int,
        site: int = 0,
        what: str = "ld.global",
        atomic: bool = False,
    ) -> None:
        """Each lane reads ``nbytes`` bytes at ``addr`` of buffer ``buf``. ``atomic``: a strong load."""
        shadow = self.detector.buffers[buf]
        if shadow is not None:
            self._generic(shadow, lanes, addr, nbytes, site, what, False, atomic)

    def gmem_write(
        self,
        lanes: Lanes,
        buf: int,
        addr: Address,
        nbytes: int,
        site: int = 0,
        what: str = "st.global",
        atomic: bool = False,
    ) -> None:
        """Each lane writes ``nbytes`` bytes. ``atomic``: atom, red, strong stores; no races among those."""
        shadow = self.detector.buffers[buf]
        if shadow is not None:
            self._generic(shadow, lanes, addr, nbytes, site, what, True, atomic)

    def _generic(
        self,
        shadow: Shadow,
        lanes: Lanes,
        addr: Address,
        nbytes: int,
        site: int,
        what: str,
        write: bool,
        atomic: bool,
    ) -> None:
        kind = kind_of(what, "generic", "program", (2 if write else 1) if atomic else 0)
        if lanes.full or not write:
            events = [self._event(w, kind, site) for w in lanes.warps]
            if write:
                for w in lanes.warps:
                    self._wrote[w] = ALL_LANES
        else:
            events = []
            for w, mask in zip(lanes.warps, lanes.masks, strict=True):
                events.append(self._event(w, kind, site, mask))
                self._wrote[w] |= mask
        self.checker.lanes(shadow, addr, nbytes, lanes, events, write, site)
        if shadow.kind == "smem" and not atomic:
            if write:
                self.lane_order.wrote(shadow, lanes, addr, nbytes, site, what)
            elif self.lane_order.live:
                self.lane_order.reads(shadow, lanes, addr, nbytes, site, what)

    def _event(self, w: int, kind: Kind, site: int, mask: int = ALL_LANES) -> Event:
        """The event of what lanes of warp ``w`` do now, the same for a kind until its next synchronization."""
        key: Any = kind if mask == ALL_LANES else (kind, mask)
        event = self._cache[w].get(key)
        if event is None:
            epoch = self.now[w].item(w)
            event = self._cache[w][key] = Event(self, w, epoch, w, epoch, kind, site)
            event.mask = mask
        return event

    # ---------------------------------------- TMA and bulk copies

    def tma_load(
        self,
        w: int,
        bar: BarrierOrder,
        site: int = 0,
        writes: Places = (),
        reads: Places = (),
        smem_reads: Places = (),
        what: str = "cp.async.bulk.tensor",
    ) -> None:
        """A copy that completes on ``bar`` (TMA load, bulk copy into SMEM, CLC response), when it is issued.

        ``writes``: (CTA, region) of SMEM; ``reads``: (buffer, region) of GMEM; ``smem_reads``: (CTA, region).
        For a multicast call it once for each receiving CTA, with that CTA's barrier.
        """
        self._use_barrier(w, bar, site, what, asynchronous=True)
        kind = kind_of(what, "async", "mbarrier")
        event = Event(self, bar.col, bar.completed + 1, w, self.now[w].item(w), kind, site, bar)
        bar.pending = joined(bar.pending, self.rows[w])  # the copy, and so the phase, comes after its issue
        for buf, region in reads:
            self._global(buf, region, event, False)
        for cta, region in smem_reads:
            self._shared(cta, region, event, False)
        for cta, region in writes:
            self._shared(cta, region, event, True)
        self._tick(w)

    def _shared(self, cta: int, region: Region, event: Event, write: bool) -> None:
        self.checker.region(self.smem[cta], region, event, write)
        self._in_flight[cta][event.col] = event

    def _global(self, buf: int, region: Region, event: Event, write: bool) -> None:
        shadow = self.detector.buffers[buf]
        if shadow is not None:
            self.checker.region(shadow, region, event, write)

    def tma_store(
        self,
        w: int,
        lane: int = 0,
        site: int = 0,
        reads: Places = (),
        writes: Places = (),
        what: str = "cp.async.bulk.tensor.store",
        atomic: bool = False,
    ) -> None:
        """A bulk store or reduce (bulk async-group completion) by one thread, when it is issued."""
        queue = self._queue("bulk", w, lane, two=True)
        queue.open = True
        for key, lanes in list(self.stray_bulk_waits.items()):
            if key[1] == w and lane in lanes:  # a wait ahead of this thread's first store
                del self.stray_bulk_waits[key]
        wepoch = self.now[w].item(w)
        if reads:
            kind = kind_of(what, "async", "bulk_read")
            event = Event(self, queue.col, queue.epoch, w, wepoch, kind, site)
            for cta, region in reads:
                self._shared(cta, region, event, False)
        if writes:
            kind = kind_of(what, "async", "bulk_write", 2 if atomic else 0)
            event = Event(self, queue.col2, queue.epoch, w, wepoch, kind, site)
            for buf, region in writes:
                self._global(buf, region, event, True)

    def bulk_commit_group(self, w: int, lane: int | Iterable[int] = 0) -> None:
        """cp.async.bulk.commit_group by these lanes of warp ``w``."""
        for one in (lane,) if isinstance(lane, int) else lane:
            queue = self.queues.get(("bulk", w, one))
            if queue is not None:
                queue.groups.append(queue.close())

    def bulk_wait_group(self, w: int, lane: int | Iterable[int], n: int, read: bool, site: int = 0) -> None:
        """cp.async.bulk.wait_group[.read] ``n``: only the executing threads' own groups count."""
        found = False
        lanes = (lane,) if isinstance(lane, int) else tuple(lane)
        if ("bulk", w) not in self.group_waiters and not any(k[:2] == ("bulk", w) for k in self.queues):
            self.group_waiters.add(
                ("bulk", w)
            )  # waits before its first store: the pattern of a staged epilogue
        for one in lanes:
            queue = self.queues.get(("bulk", w, one))
            if queue is None:
                continue
            found = True
            self.group_waiters.add(("bulk", w))
            done = len(queue.groups) - n
            if done > 0:
                row = self.rows[w]
                row[:, queue.col] = queue.groups[done - 1]
                if not read:
                    row[:, queue.col2] = queue.groups[done - 1]
        if not found:
            self.stray_bulk_waits[site, w] = lanes

    # ---------------------------------------- tcgen05

    def mma(
        self,
        w: int,
        site: int = 0,
        smem_reads: Places = (),
        tmem_reads: Places = (),
        tmem_writes: Places = (),
        accumulate: bool = True,
        what: str = "tcgen05.mma",
    ) -> None:
        """tcgen05.mma or tcgen05.cp, when it is issued.

        Ordered after the same thread's earlier ones (PTX ISA, "tcgen05 pipelined instructions"), complete
        when a commit after it is acquired. ``accumulate``: D is also read.
        """
        event = self._queue("mma", w).issue(self, w, kind_of(what, "async", "mma"), site)
        for cta, _ in tmem_writes:
            if w not in self._tmem_users[cta]:
                self._use_tmem(cta, w, site, what)
        for cta, region in smem_reads:
            self._shared(cta, region, event, False)
        for cta, region in tmem_reads:
            self.checker.region(self.tmem[cta], region, event, False)
            self._in_flight[cta][event.col] = event
        for cta, region in tmem_writes:
            self.checker.region(self.tmem[cta], region, event, True, accumulate)
            self._in_flight[cta][event.col] = event

    def tcgen05_commit(
        self, w: int, bars: Iterable[BarrierOrder], site: int = 0, deferred: bool = False
    ) -> Clock:
        """tcgen05.commit: the barriers' phase will carry every earlier mma/cp of this thread.

        Returns the clock it carries. With ``deferred`` nothing is joined yet: call :meth:`commit_landed` when
        the arrive is performed.
        """
        queue = self._queue("mma", w)
        batch = queue.close()
        carried: Clock = self.rows[w].copy()
        carried[:, queue.col] = batch
        for bar in bars:
            self._use_barrier(w, bar, site, "tcgen05.commit", asynchronous=True)
            queue.commits.append((batch, bar, bar.completed))
            bar.last_site = site
            queue.issued += 1
            bar.committer = (queue, queue.issued) if bar.arriver == -1 else None
            if not deferred:
                self.commit_landed(carried, bar, w)
        self._tick(w)
        return carried

    def commit_landed(self, carried: Clock, bar: BarrierOrder, w: int) -> None:
        """The arrive of a deferred commit is performed on ``bar``."""
        bar.pending = joined(bar.pending, carried)
        bar.arriver = -2
        if self.grid.active:
            self.grid.to_barrier(w, bar)

    def tcgen05_ld(
        self, lanes: Lanes | Sequence[int], cta: int, column: int, columns: int, site: int = 0, *,
        lane0: int | None = None, n_lanes: int = 32, what: str = "tcgen05.ld",
    ) -> None:  # fmt: skip
        """tcgen05.ld by whole warps:

        each reads its lane quarter (``lane0`` within it), in flight until wait::ld.
        """
        self._tmem_registers(lanes, cta, column, columns, site, lane0, n_lanes, what, False)

    def tcgen05_st(
        self, lanes: Lanes | Sequence[int], cta: int, column: int, columns: int, site: int = 0, *,
        lane0: int | None = None, n_lanes: int = 32, what: str = "tcgen05.st",
    ) -> None:  # fmt: skip
        """tcgen05.st by whole warps, in flight until wait::st."""
        self._tmem_registers(lanes, cta, column, columns, site, lane0, n_lanes, what, True)

    def _tmem_registers(
        self, lanes: Lanes | Sequence[int], cta: int, column: int, columns: int, site: int,
        lane0: int | None, n_lanes: int, what: str, write: bool,
    ) -> None:  # fmt: skip
        via: Any = "st" if write else "ld"
        kind = kind_of(what, "async", via)
        shadow = self.tmem[cta]
        half, halves = ((lane0 or 0) % 32) >> 4, 2 if n_lanes > 16 else 1
        warps = lanes.warps if isinstance(lanes, Lanes) else tuple(lanes)
        for w in warps:
            if w not in self._tmem_users[cta]:
                self._use_tmem(cta, w, site, what)
        events = [self._queue(via, w).issue(self, w, kind, site) for w in warps]
        quarters = [w % self.warps_per_cta % 4 for w in warps]
        if quarters == [0, 1, 2, 3] and halves == 2:
            self.checker.quarters(shadow, shadow.block(TmemBlock(column, columns)), events, write)
            return
        for quarter, event in zip(quarters, events, strict=True):
            view = shadow.quarter(quarter, column, columns, half, halves)
            self.checker.view(shadow, view, event, write)

    def tcgen05_wait_ld(self, warps: Sequence[int]) -> None:
        """tcgen05.wait::ld: the warps' own loads have returned."""
        self._tmem_wait("ld", warps)

    def tcgen05_wait_st(self, warps: Sequence[int]) -> None:
        """tcgen05.wait::st: the warps' own stores are performed."""
        self._tmem_wait("st", warps)

    def _tmem_wait(self, via: str, warps: Sequence[int]) -> None:
        for w in warps:
            queue = self.queues.get((via, w, 0))
            if queue is not None:
                self.rows[w][:TCGEN05, queue.col] = queue.close()

    def tcgen05_fence_before(self, warps: Sequence[int]) -> None:
        """tcgen05.fence::before_thread_sync: orders the warps' own earlier operations before what they signal."""
        for w in warps:
            row = self.rows[w]
            for kind in ("mma", "ld", "st"):
                queue = self.queues.get((kind, w, 0))
                if queue is not None:
                    row[TCGEN05, queue.col] = max(row[TCGEN05, queue.col], row[ORDER, queue.col])
            self._tick(w)

    def tcgen05_fence_after(self, warps: Sequence[int]) -> None:
        """tcgen05.fence::after_thread_sync."""
        for w in warps:
            self.after_fence[w] = self.rows[w][TCGEN05].copy()

    def tmem_alloc(
        self,
        cta: int,
        column: int,
        columns: int,
        w: int | None = None,
        site: int = 0,
        pair: bool = False,
    ) -> None:
        """The columns belong to somebody new: their contents are undefined.

        With the warp ``w`` that allocates, every use of TMEM in this CTA must come after it. ``pair``: cta_group::2, one
        allocation that a warp of either CTA executes.
        """
        self.tmem[cta].block(TmemBlock(column, columns))[...] = 0
        if w is not None:
            epoch = self.now[w].item(w)
            self._tmem_owner[cta] = (w, epoch, site)
            self._tmem_users[cta] = {w}
            self._tmem_pair[cta] = pair
            self._tick(w)

    def _use_tmem(self, cta: int, w: int, site: int, what: str) -> None:
        """A warp's first use of the TMEM of a CTA."""
        self._tmem_users[cta].add(w)
        owner = self._tmem_owner[cta]
        if owner is not None and self.now[w].item(owner[0]) < owner[1]:
            peer = self._tmem_owner[cta ^ 1] if self._tmem_pair[cta] and cta ^ 1 < self.ctas else None
            if peer is not None and self.now[w].item(peer[0]) >= peer[1]:
                return  # the two allocate together: whoever comes after one half comes after the other
            self.detector.reporter.alloc_not_visible(self, w, site, what, owner[0], owner[2])

    def tmem_dealloc(self, cta: int, column: int, columns: int, w: int | None = None, site: int = 0) -> None:
        """Warp ``w`` gives the columns back: every use of them must have happened before."""
        block = TmemBlock(column, columns)
        if w is not None:
            epoch = self.now[w].item(w)
            kind = kind_of("tcgen05.dealloc", "generic", "program")
            known = self.rows[w].copy()
            join(self.rows[w], self._cluster_executed[1])
            self.checker.region(self.tmem[cta], block, Event(self, w, epoch, w, epoch, kind, site), True)
            self.rows[w][...] = known
        self.tmem[cta].block(block)[...] = 0

    # ---------------------------------------- cp.async and wgmma

    def cp_async(
        self, lanes: Lanes, cta: int, addr: Address, nbytes: int, site: int = 0,
        buf: int | None = None, gaddr: Address | None = None, what: str = "cp.async",
    ) -> None:  # fmt: skip
        """Non-bulk cp.async: writes SMEM at ``addr``, in flight until the warp waits for its group."""
        self._copies = True
        kind = kind_of(what, "generic", "cp.async")
        events = []
        for w in lanes.warps:
            events.append(self._queue("cp.async", w).issue(self, w, kind, site))
        self.checker.lanes(self.smem[cta], addr, nbytes, lanes, events, True, site)
        shadow = None if buf is None else self.detector.buffers[buf]
        if shadow is not None and gaddr is not None:
            self.checker.lanes(shadow, gaddr, nbytes, lanes, events, False, site)

    def cp_async_commit_group(self, warps: Sequence[int]) -> None:
        """cp.async.commit_group."""
        self._commit_group("cp.async", warps)

    def cp_async_wait_group(self, warps: Sequence[int], n: int) -> None:
        """cp.async.wait_group ``n`` (wait_all: commit, then 0)."""
        self._wait_group("cp.async", warps, n)

    def cp_async_mbarrier_arrive(self, warps: Sequence[int], bar: BarrierOrder, site: int = 0) -> None:
        """cp.async.mbarrier.arrive: ``bar``'s phase carries the warps' earlier cp.async operations."""
        for w in warps:
            self._use_barrier(w, bar, site, "cp.async.mbarrier.arrive", asynchronous=False)
            queue = self.queues.get(("cp.async", w, 0))
            if queue is not None:
                carried = np.zeros((PLANES, self.columns), np.int32)
                carried[ORDER, queue.col] = queue.close()
                bar.pending = joined(bar.pending, carried)
            bar.executed[w] = self.now[w].copy()
            bar.arriver = -2

    def wgmma(
        self, warps: Sequence[int], site: int = 0, smem_reads: Places = (), what: str = "wgmma.mma_async"
    ) -> None:
        """wgmma.mma_async of one warpgroup: its SMEM operands are read until the group is waited for."""
        kind = kind_of(what, "async", "wgmma")
        for w in warps:
            event = self._queue("wgmma", w).issue(self, w, kind, site)
            for cta, region in smem_reads:
                self._shared(cta, region, event, False)

    def wgmma_commit_group(self, warps: Sequence[int]) -> None:
        """wgmma.commit_group."""
        self._commit_group("wgmma", warps)

    def wgmma_wait_group(self, warps: Sequence[int], n: int) -> None:
        """wgmma.wait_group ``n``."""
        self._wait_group("wgmma", warps, n)

    def _commit_group(self, kind: str, warps: Sequence[int]) -> None:
        for w in warps:
            queue = self.queues.get((kind, w, 0))
            if queue is not None:
                queue.groups.append(queue.close())

    def _wait_group(self, kind: str, warps: Sequence[int], n: int) -> None:
        for w in warps:
            queue = self.queues.get((kind, w, 0))
            if queue is not None and len(queue.groups) > n:
                self.rows[w][ORDER, queue.col] = queue.groups[len(queue.groups) - 1 - n]

    # ---------------------------------------- mbarriers

    def mbarrier_init(self, w: int, cta: int, offset: int, site: int = 0) -> BarrierOrder:
        """mbarrier.init by warp ``w`` of the object at ``offset`` in CTA ``cta``.

        Keep the result with the barrier.
        """
        epoch = self.now[w].item(w)
        bar = BarrierOrder(self, cta, offset, self._column(None), w, epoch, site)
        self.column_owner[bar.col] = bar
        if self.detector.smem_granule <= 8:  # else its cell may hold something else, too
            self.smem[cta].span(offset, offset + 8)[...] = self.checker.barrier_state(w, epoch, site)
        self.barriers.append(bar)
        self._unfenced_inits[w].append(bar)
        self._tick(w)
        return bar

    def mbarrier_inval(self, cta: int, offset: int) -> None:
        """mbarrier.inval: the bytes are ordinary memory again."""
        self.overwritten.pop((cta, offset), None)
        self.smem[cta].span(offset, offset + 8)[...] = 0

    def mbarrier_arrive(
        self, warps: Sequence[int], bar: BarrierOrder, site: int = 0, release: bool = True
    ) -> None:
        """Arrivals (plain, expect_tx, remote) of these warps, before the phase they may complete."""
        if self.overwritten:
            self._use_overwritten(bar)
        if self.ctas > 1:
            self._note_remote(warps, bar.cta, site, "mbarrier.arrive")
        for w in warps:
            if not bar.visible >> w & 1:
                self._use_barrier(w, bar, site, "mbarrier.arrive", asynchronous=False)
            if release:
                bar.pending = joined(bar.pending, self.rows[w])
                if self.grid.active:
                    self.grid.to_barrier(w, bar)
                self._tick(w)
            bar.arriver = w if bar.arriver in (-1, w) else -2
            bar.arrive_sites[w] = site
        bar.committer = None
        bar.last_site = site

    def mbarrier_complete(self, bar: BarrierOrder) -> None:
        """The current phase of ``bar`` is complete."""
        if self.overwritten:
            self._use_overwritten(bar)
        bar.completed += 1
        n = bar.completed
        if bar.waits:
            released = bar.pending[ORDER]
            for known in bar.executed.values():
                released = joined(released[None].copy(), known[None])[0]
            for w, (proven, epoch, site, batch) in bar.waits.items():
                if (
                    proven == n - 1
                    and released.item(w) < epoch
                    and not self._copied_since(w, batch, released)
                ):
                    self.detector.reporter.phase_overrun(self, bar, w, site)
        bar.pending[:, bar.col] = n
        if bar.committer is not None:
            # The commits of one thread arrive in their order: this one proves the phases that earlier ones completed.
            queue, number = bar.committer
            for col, (phase, earlier) in queue.landed.items():
                if earlier < number:
                    np.maximum(bar.pending[:, col], phase, out=bar.pending[:, col])
            queue.landed[bar.col] = (n, number)
            bar.committer = None
        bar.history[n] = bar.pending.copy()
        bar.history.pop(n - _HISTORY, None)
        if bar.arriver >= 0 and bar.async_visible == 0:
            # The only arrivals came from one warp and no copy signals this barrier: that warp knows.
            self.rows[bar.arriver][:, bar.col] = n
        bar.arriver = -1
        self.detector.maybe_compact()

    def mbarrier_wait(self, warps: Sequence[int], bar: BarrierOrder, parity: int, site: int = 0) -> None:
        """A successful try_wait/test_wait of these warps:

        acquire what the wait proves (see the module's text).
        """
        col = bar.col
        for w in warps:
            self.lane_order.meet(w)
            if not bar.visible >> w & 1:
                self._use_barrier(w, bar, site, "mbarrier.try_wait", asynchronous=False)
            known = self.now[w].item(col)
            if known & 1 != parity & 1 or known >= bar.completed:
                self.idle_waits[(w, bar)] = (site, parity)
                if bar.completed > known:
                    self.detector.reporter.stale_phase(self, bar, w, site, parity, known)
                elif known & 1 != parity & 1:
                    # It returns because of an earlier phase: the present one must not complete before it does.
                    bar.waits[w] = (known, self.now[w].item(w), site, self._open_copies(w))
                continue
            self.idle_waits.pop((w, bar), None)
            if bar.completed > known + 1:
                self.detector.reporter.stale_phase(self, bar, w, site, parity, known)
            acquired = bar.history.get(known + 1)
            if acquired is None:
                acquired = bar.history[min(bar.history)]
            join(self.rows[w], acquired)
            bar.waits[w] = (known + 1, self.now[w].item(w), site, self._open_copies(w))
            if bar.foreign is not None:
                self.grid.learn(w, bar.foreign)

    def _open_copies(self, w: int) -> int:
        """The number of the warp's open batch of cp.async."""
        copies = self.queues.get(("cp.async", w, 0)) if self._copies else None
        return 1 if copies is None else copies.epoch

    def _copied_since(self, w: int, batch: int, released: npt.NDArray[np.int32]) -> bool:
        """Whether ``released`` knows a batch of cp.async that ``w`` closed after a wait.

        cp.async.mbarrier.arrive releases nothing but the copies, yet it comes after what its warp has waited for.
        """
        copies = self.queues.get(("cp.async", w, 0)) if self._copies else None
        return copies is not None and copies.col < len(released) and released.item(copies.col) >= batch

    def _use_overwritten(self, bar: BarrierOrder) -> None:
        finding = self.overwritten.pop((bar.cta, bar.offset), None)
        if finding is not None:
            self.detector.log.add(replace(finding, strength="error"))

    def _use_barrier(self, w: int, bar: BarrierOrder, site: int, what: str, asynchronous: bool) -> None:
        """Report a use of ``bar`` that its init does not precede; async uses also want the init fence."""
        bit = 1 << w
        if not bar.visible & bit:
            bar.visible |= bit
            if self.now[w].item(bar.init_warp) < bar.init_epoch:
                self.detector.reporter.init_not_visible(self, bar, w, site, what)
                bar.async_visible |= bit
                return
        if asynchronous and not bar.async_visible & bit:
            bar.async_visible |= bit
            row = self.rows[w]
            fenced = bar.fence_epoch >= 0 and (
                bar.fenced_for & bit or w == bar.init_warp or row.item(ORDER, bar.init_warp) > bar.fence_epoch
            )
            if not fenced and row.item(PROXY_SMEM, bar.init_warp) < bar.init_epoch:
                self.detector.reporter.init_not_fenced(self, bar, w, site, what)

    # ---------------------------------------- other synchronization

    def bar_arrive(self, warps: Sequence[int], cta: int, barrier_id: int, site: int = 0) -> None:
        """bar.arrive (barrier.cta.arrive) of these warps."""
        pending = self._bars.get((cta, barrier_id))
        for w in warps:
            pending = self.rows[w].copy() if pending is None else joined(pending, self.rows[w])
            self._tick(w)
        if pending is not None:
            self._bars[(cta, barrier_id)] = pending

    def bar_sync(self, warps: Sequence[int], cta: int, barrier_id: int, site: int = 0) -> None:
        """bar.sync completes: call once, with every warp that was blocked in it."""
        pending = self._bars.pop((cta, barrier_id), None)
        first, count = warps[0], len(warps)
        rows = (
            self.clocks[first : first + count] if warps[-1] - first == count - 1 else self.clocks[list(warps)]
        )
        total = rows.max(axis=0)
        if pending is not None:
            join(total, pending)
        if rows.base is self.clocks:
            rows[...] = total
        else:
            self.clocks[list(warps)] = total
        if self.grid.active:
            self.grid.exchange(warps)
        self.warp_sync(warps)
        self.detector.maybe_compact()

    def cta_sync(self, cta: int, site: int = 0) -> None:
        """bar.sync 0 of all warps of the CTA completes."""
        first = cta * self.warps_per_cta
        self.bar_sync(range(first, first + self.warps_per_cta), cta, 0, site)

    def cluster_arrive(self, warps: Sequence[int], site: int = 0, release: bool = True) -> None:
        """barrier.cluster.arrive; ``release=False`` for .relaxed.

        A relaxed arrive after fence.mbarrier_init still hands on the inits before the fence (PTX ISA, "membar /
        fence": the fence exists for exactly this sequence).
        """
        for w in warps:
            self._cluster_arrived[w] = self.now[w].item(w)
            self._cluster_inits[0].extend(self._fenced_inits[w])
            self._fenced_inits[w] = []
            row = self.rows[w]
            self._cluster_executed[0] = joined(self._cluster_executed[0], row)
            if release:
                self._cluster_pending = (
                    row.copy() if self._cluster_pending is None else joined(self._cluster_pending, row)
                )
                self._tick(w)

    def cluster_complete(self) -> None:
        """Every thread of the cluster has arrived."""
        self._cluster_done = self._cluster_pending
        self._cluster_pending = None
        self._cluster_inits = ([], self._cluster_inits[0])
        self._cluster_executed = [np.zeros((PLANES, 0), np.int32), self._cluster_executed[0]]
        if self.grid.active:
            self.grid.exchange(range(len(self.rows)))

    def cluster_wait(self, warps: Sequence[int], site: int = 0, acquire: bool = True) -> None:
        """barrier.cluster.wait returns."""
        for owner, users in zip(self._tmem_owner, self._tmem_users, strict=True):
            # An allocation is no memory access: it is over when its warp arrives, relaxed or not.
            if owner is not None and self._cluster_arrived[owner[0]] >= owner[1]:
                users.update(warps)
        if acquire:
            for bar in self._cluster_inits[1]:
                for w in warps:
                    bar.visible |= 1 << w
                    bar.fenced_for |= 1 << w
        if acquire and self._cluster_done is not None:
            for w in warps:
                join(self.rows[w], self._cluster_done)
            self.warp_sync(warps)

    def fence_proxy_async(
        self, warps: Sequence[int], smem: bool = True, gmem: bool = True, lanes: Lanes | None = None
    ) -> None:
        """fence.proxy.async: what these warps know of generic-proxy writes becomes visible to the async proxy.

        ``lanes``: who executes it, when not whole warps. It does not cover what other lanes of the warp have
        written since the warp last met at a barrier.
        """
        masks = [ALL_LANES] * len(warps) if lanes is None or lanes.full else lanes.masks
        for w, mask in zip(warps, masks, strict=True):
            row = self.rows[w]
            own = row.item(ORDER, w)
            covers = own
            if self._wrote[w] & ~mask:
                self.partial_fences[w].append((own, mask))
                covers = self._met[w]
            for plane, wanted in ((PROXY_SMEM, smem), (PROXY_GMEM, gmem)):
                if wanted:
                    before = row.item(plane, w)
                    row[plane] = row[ORDER]
                    row[plane, w] = max(before, covers)
            self.fences[w].append(own)
            self._fence_inits(w)
            self._tick(w)

    def warp_sync(self, warps: Iterable[int]) -> None:
        """The lanes of each of these warps meet (bar.warp.sync and barriers of whole warps)."""
        for w in warps:
            self._tick(w)
            self._meet(w)

    def _meet(self, w: int) -> None:
        self._met[w] = self.now[w].item(w) - 1
        self._wrote[w] = 0
        self.lane_order.meet(w)

    def fence_mbarrier_init(self, warps: Sequence[int]) -> None:
        """fence.mbarrier_init.release.cluster."""
        for w in warps:
            self._fence_inits(w)
            self._tick(w)

    def _fence_inits(self, w: int) -> None:
        if self._unfenced_inits[w]:
            epoch = self.now[w].item(w)
            for bar in self._unfenced_inits[w]:
                bar.fence_epoch = epoch
            self._fenced_inits[w] += self._unfenced_inits[w]
            self._unfenced_inits[w] = []

    # ---------------------------------------- global memory order

    def sync_location(self, w: int, key: Hashable, order: str) -> None:
        """A strong access (atomic, ld.acquire, st.release...) of warp ``w`` to the global location ``key``.

        ``order``: "relaxed", "acquire", "release" or "acq_rel".
        """
        self.grid.access(w, key, order)
        if order in ("acquire", "acq_rel"):
            self.lane_order.meet(w)
        if order in ("release", "acq_rel"):
            self._tick(w)

    def fence_acq_rel(self, warps: Sequence[int]) -> None:
        """fence.acq_rel, fence.sc, membar: orders this warp's accesses around relaxed strong ones."""
        for w in warps:
            self.grid.fence(w)
            self._tick(w)

    # ---------------------------------------- the end

    def _note_remote(self, warps: Sequence[int], cta: int, site: int, what: str) -> None:
        """Warps use the shared memory of a CTA: another CTA must be alive until then."""
        for w in warps:
            if w // self.warps_per_cta != cta:
                first = w - w % self.warps_per_cta
                peers = tuple(self.now[v].item(v) for v in range(first, first + self.warps_per_cta))
                self._remote[cta][w] = (self.now[w].item(w), site, what, peers)
                if self._alive[cta] == 0:
                    self.detector.reporter.remote_after_exit(self, cta, w, site, what)

    def exit(self, warps: Sequence[int], site: int = 0) -> None:
        """These warps return.

        When the last warp of a CTA does, nothing may still use the CTA's SMEM or TMEM.
        """
        for w in warps:
            cta = self.cta_of(w)
            queue = self.queues.get(("ld", w, 0))
            if queue is not None and queue.open and queue.event is not None:
                self.detector.reporter.never_waited_ld(self, w, queue.event.site)
            self._exit_clock[cta] = joined(self._exit_clock[cta], self.rows[w])
            self._alive[cta] -= 1
            if self._alive[cta] == 0:
                known = self._exit_clock[cta][ORDER]
                for col, event in self._in_flight[cta].items():
                    if (self, col) in self.detector.reporter.reported:
                        continue  # a race with it says more
                    if col >= len(known) or known.item(col) < event.epoch:
                        self.detector.reporter.pending_at_exit(self, cta, event, site)
                for other, (epoch, where, what, peers) in self._remote[cta].items():
                    if known.item(other) < epoch:
                        first = other - other % self.warps_per_cta
                        late = any(known.item(first + i) > peer for i, peer in enumerate(peers))
                        self.detector.reporter.remote_after_exit(self, cta, other, where, what, late)

    def finish(self) -> None:
        """The cluster is gone:

        its clocks and shadows are dropped, its writes to global memory stay on record.
        """
        if self in self.detector.clusters:
            self.detector.clusters.remove(self)
        self.clocks = self.clocks[:0]
        self.rows, self.now = [], []
        self.detector.recycle(self.smem + self.tmem)
        self.smem, self.tmem = [], []
        self.forget_cached_events()
        self._in_flight = []
        for bar in self.barriers:
            bar.history = {}
