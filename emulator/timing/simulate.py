"""Gives times to recorded events: warps as processes, tensor core, TMA and memory as servers, barriers as they are.

Everything is in cycles of the SM clock. One *node* is simulated: the SMs that hold the CTAs of one cluster. It gets its
share of L2 and DRAM bandwidth; other nodes are taken to do the same at the same time.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from emulator.timing.parameters import Parameters
from emulator.timing.record import Barrier, ClusterTrace, Event, StrandTrace

Work = Callable[[float], None]
Late = Sequence[Sequence[bool]]
Lane = tuple[Any, ...]
TMA_LOAD = "TMA load"


@lru_cache(maxsize=4096)
def base(name: str) -> str:
    """``full[]`` for ``full[3]``: the barriers of a ring count as one."""
    return re.sub(r"\[[\d, ]+\]$", "[]", name)


@dataclass(frozen=True)
class Interval:
    """What a lane of the picture does from ``start`` to ``end`` (cycles).

    Attributes:
        lane: ``("warp", CTA slot, rank, warp)`` or ``("engine", rank, "tensor core" | "TMA load" | "TMA store")``.
        kind: ``wait`` (stalled) or the event's kind.
        site: statement, -1 if none. what: the barrier that is waited for, or a short text.
    """

    lane: tuple[Any, ...]
    start: float
    end: float
    kind: str
    site: int
    what: str = ""


@dataclass(frozen=True)
class Arrow:
    """Who ended a wait: the lane whose signal, at ``start``, completed the phase that ``target`` goes on with at ``end``."""

    source: Lane
    start: float
    target: Lane
    end: float
    what: str


@dataclass
class Memory:
    """One SM's share of L2 and DRAM, and latencies.

    Attributes:
        load_cycles_per_byte, store_cycles_per_byte: the SM's own way to and from L2.
        l2_cycles_per_byte: its share of what L2 delivers. burst: bytes that may come faster than these shares after a pause.
        tma_latency, gmem_latency: cycles from the start of a load to its bytes, without the time that their transfer takes.
        hit_latency, dram_latency: of the TMA loads of which it is known whether they hit L2.
        dram_cycles_per_byte: misses and stores take turns on the way to DRAM. miss: share of the loaded bytes that goes there.
        written_back: whether stores that are still under way to DRAM at the end count (they fill more than L2).
    """

    load_cycles_per_byte: float
    store_cycles_per_byte: float
    tma_latency: float
    gmem_latency: float
    dram_cycles_per_byte: float = 0.0
    miss: float = 0.0
    written_back: bool = False
    l2_cycles_per_byte: float = 0.0
    burst: float = 0.0
    hit_latency: float = 0.0
    dram_latency: float = 0.0


@dataclass
class _Sm:
    """Servers of one SM: when each is free again, and for how long it has worked."""

    tensor_core: float = 0.0
    quarters: list[float] = field(
        default_factory=lambda: [0.0] * 4
    )  # wgmma: each warp of a warpgroup has its own
    tma_load: float = 0.0
    tma_store: float = 0.0
    load_path: float = 0.0
    l2: float = 0.0
    store_path: float = 0.0
    dram: float = 0.0
    special: list[float] = field(default_factory=lambda: [0.0] * 4)
    fma: list[float] = field(default_factory=lambda: [0.0] * 4)
    alu: list[float] = field(default_factory=lambda: [0.0] * 4)
    tmem: float = 0.0
    smem: float = 0.0
    from_l2: float = 0.0  # busy cycles of load_path
    busy: dict[str, float] = field(default_factory=dict)


@dataclass
class _Mbarrier:
    expected: int
    pending: int
    tx: int = 0
    generation: int = 0
    waiters: list[tuple[_Strand, int]] = field(default_factory=list)


@dataclass
class _Named:
    arrived: int = 0
    waiters: list[_Strand] = field(default_factory=list)


@dataclass
class _Cta:
    """A CTA that runs: warps that are left, named barriers."""

    warps: int
    named: dict[int, _Named] = field(default_factory=dict)
    live: int = 0


@dataclass
class _Cluster:
    trace: ClusterTrace
    slot: int
    ctas: list[_Cta]
    bars: dict[Barrier, _Mbarrier] = field(default_factory=dict)
    arrived: int = 0
    waiting: list[_Strand] = field(default_factory=list)
    generation: int = 0
    live: int = 0


@dataclass
class _Strand:
    trace: StrandTrace
    cluster: _Cluster
    born: float = 0.0
    at: int = 0  # next event
    blocked: float = -1.0  # since when
    why: tuple[int, str] = (-1, "")
    mma_done: float = 0.0
    tmem_done: float = 0.0
    tmem_registers: float = 0.0
    loads: deque[float] = field(default_factory=deque)
    left: int = 0  # requests of the current event
    stores: list[tuple[float, float]] = field(default_factory=list)  # of the open group: read, written
    groups: list[tuple[float, float]] = field(default_factory=list)
    late: Iterator[bool] | None = None  # of the loads to come: whether they wait for DRAM
    wgmma: float = 0.0  # when the last wgmma of the open group is done
    wgmma_groups: list[float] = field(default_factory=list)
    cluster_generation: int = 0
    ring: tuple[str, int] | None = (
        None  # of the mbarrier that TMA has just completed: base name, stages being loaded
    )


@dataclass
class Simulated:
    """Cycles of the node, its intervals (if asked for), busy cycles per engine of each SM.

    ``stalls``: cycles that warps of a role waited for something; ``lifetimes``: cycles that they were there at all.
    ``places``: of each of these stalls, cycles by statement. ``ahead``: of each wait for an mbarrier of a ring, by its base name:
    (cycles x stages of the ring that were being loaded when it ended, cycles). ``from_l2``: cycles that the way from L2 into the first SM
    was busy. ``arrows``: as asked for, like the intervals.
    """

    cycles: float
    intervals: list[Interval]
    busy: list[dict[str, float]]
    stalls: dict[tuple[str, str], float]
    lifetimes: dict[str, float]
    unfinished: int = 0
    places: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    ahead: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    from_l2: float = 0.0
    arrows: list[Arrow] = field(default_factory=list)


class Node:
    """The SMs of one cluster slot; :meth:`run` works through clusters, ``resident`` of them at a time."""

    def __init__(self, p: Parameters, memory: Memory, *, intervals: bool = False, resident: int = 1) -> None:
        self.p = p
        self.memory = memory
        self.keep = intervals
        self.resident = resident
        self.intervals: list[Interval] = []
        self.stalls: dict[tuple[str, str], float] = {}
        self.lifetimes: dict[str, float] = {}
        self.places: dict[tuple[str, str], dict[int, float]] = {}
        self.ahead: dict[tuple[str, str], tuple[float, float]] = {}
        self.arrows: list[Arrow] = []
        self.heap: list[tuple[float, int, Work]] = []
        self.count = 0
        self.sms: list[_Sm] = []
        self.now = 0.0
        self.queue: deque[tuple[ClusterTrace, Late]] = deque()
        self.live = 0

    # ------------------------------------------------------------------------------------------ the clock

    def at(self, time: float, work: Work) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, work))

    def run(self, clusters: Sequence[ClusterTrace], late: Sequence[Late] = ()) -> Simulated:
        """Simulate these clusters, in this order.

        Args:
            late: per cluster, per strand that loads, per load: whether it waits for DRAM; empty: not known.
        """
        self.sms = [_Sm() for _ in range(max(c.ctas for c in clusters))]
        self.queue = deque(zip(clusters, late or [()] * len(clusters), strict=True))
        for slot in range(min(self.resident, len(self.queue))):
            self._start(slot, 0.0)
        heap = self.heap
        while heap:
            self.now, _, work = heapq.heappop(heap)
            work(self.now)
        if self.memory.written_back:
            self.now = max(self.now, *(sm.dram for sm in self.sms))
        busy = [sm.busy for sm in self.sms]
        return Simulated(
            self.now, self.intervals, busy, self.stalls, self.lifetimes, self.live,
            self.places, self.ahead, self.sms[0].from_l2, self.arrows,
        )  # fmt: skip

    def _start(self, slot: int, time: float) -> None:
        trace, late = self.queue.popleft()
        known = iter(late)
        ctas = []
        for rank in range(trace.ctas):
            warps = sum(len(s.warps) for s in trace.strands if s.rank == rank)
            ctas.append(_Cta(warps))
        cluster = _Cluster(trace, slot, ctas)
        for s in trace.strands:
            strand = _Strand(s, cluster, born=time)
            if late and s.boxes:
                strand.late = iter(next(known))
            cluster.live += 1
            ctas[s.rank].live += 1
            self.live += 1
            self.at(time + self.p.cta_start, self._resume(strand))

    def _resume(self, strand: _Strand) -> Work:
        return lambda time: self._step(strand, time)

    # ------------------------------------------------------------------------------------------ strands

    def _step(self, strand: _Strand, time: float) -> None:
        """The strand's next event happens at ``time``."""
        if strand.blocked >= 0:
            self._stalled(strand, time)
        events = strand.trace.events
        if strand.at == len(events):
            self._exit(strand, time)
            return
        event = events[strand.at]
        strand.at += 1
        then = getattr(self, "_" + event[0])(strand, time, event)
        if then is not None:
            if self.keep and event[0] not in ("wait", "bar", "cluster_wait", "cluster_arrive"):
                self._interval(strand, time, then, event[0], event[1])
            self.at(then, self._resume(strand))

    def _interval(
        self, strand: _Strand, start: float, end: float, kind: str, site: int, what: str = ""
    ) -> None:
        self.intervals.append(Interval(_lane(strand), start, end, kind, site, what))

    def _engine(self, rank: int, name: str, start: float, end: float, site: int, what: str = "") -> None:
        busy = self.sms[rank].busy
        busy[name] = busy.get(name, 0.0) + end - start
        if self.keep:
            self.intervals.append(Interval(("engine", rank, name), start, end, name, site, what))

    def _block(self, strand: _Strand, time: float, site: int, what: str) -> None:
        strand.blocked = time
        strand.why = (site, what)

    def _stalled(self, strand: _Strand, time: float) -> None:
        self._stall(strand, strand.blocked, time, *strand.why)
        if strand.ring is not None:
            ring, loading = strand.ring
            spent, key = time - strand.blocked, (self._role(strand), ring)
            before = self.ahead.get(key, (0.0, 0.0))
            self.ahead[key] = (before[0] + spent * loading, before[1] + spent)
            strand.ring = None
        strand.blocked = -1.0

    @staticmethod
    def _role(strand: _Strand) -> str:
        kinds = strand.trace.kinds
        if kinds & {"mma", "wgmma"}:
            return "MMA"
        if "load" in kinds:
            return "load"
        return "write-back" if "tmem" in kinds or "store" in kinds else "other"

    def _exit(self, strand: _Strand, time: float) -> None:
        cluster = strand.cluster
        role = self._role(strand)
        self.lifetimes[role] = self.lifetimes.get(role, 0.0) + time - strand.born
        self.live -= 1
        cluster.live -= 1
        cta = cluster.ctas[strand.trace.rank]
        cta.warps -= len(strand.trace.warps)
        for named in cta.named.values():
            self._named_check(strand, cluster, named, 32 * cta.warps, time)
        if not cluster.live and self.queue:
            self._start(cluster.slot, time)

    # ------------------------------------------------------------------------------------------ mbarriers

    def _init(self, strand: _Strand, time: float, e: Event) -> float:
        strand.cluster.bars[e[2]] = _Mbarrier(e[3], e[3])
        return time + self.p.arrive

    def _arrive(self, strand: _Strand, time: float, e: Event) -> float:
        _, _, name, count, tx = e
        there = time + self.p.arrive + (self.p.remote_arrive if name[0] != strand.trace.rank else 0)
        self._signal(strand.cluster, name, count, tx, there, _lane(strand))
        return time + self.p.arrive

    def _signal(
        self, cluster: _Cluster, name: Barrier, count: int, tx: int, time: float, source: Lane
    ) -> None:
        self.at(time, lambda now: self._update(cluster, name, count, tx, now, source))

    def _update(
        self, cluster: _Cluster, name: Barrier, count: int, tx: int, time: float, source: Lane
    ) -> None:
        bar = cluster.bars.get(name)
        if bar is None:
            return
        bar.pending -= count
        bar.tx += tx
        if bar.pending > 0 or bar.tx != 0:
            return
        bar.pending = bar.expected
        bar.generation += 1
        still = []
        for strand, parity in bar.waiters:
            if bar.generation & 1 != parity:
                self._wake(strand, source, time, time + self.p.wake)
            else:
                still.append((strand, parity))
        bar.waiters = still

    def _wait(self, strand: _Strand, time: float, e: Event) -> float | None:
        _, site, name, parity = e
        bar = strand.cluster.bars.get(name)
        if bar is None or bar.generation & 1 != parity:
            return time + self.p.wait
        bar.waiters.append((strand, parity))
        self._block(strand, time, site, strand.cluster.trace.names.get(name, "mbarrier"))
        return None

    @staticmethod
    def _being_loaded(cluster: _Cluster, ring: str) -> int:
        """Stages of a ring, by the base name of its mbarriers, whose bytes are on their way."""
        names = cluster.trace.names
        return sum(bar.tx > 0 for name, bar in cluster.bars.items() if base(names.get(name, "")) == ring)

    def _wake(self, strand: _Strand, source: Lane, time: float, then: float) -> None:
        """A signal of ``source`` at ``time`` lets a waiting strand go on."""
        if source[-1] == TMA_LOAD:
            ring = base(strand.why[1])
            strand.ring = (ring, 1 + self._being_loaded(strand.cluster, ring))
        if self.keep:
            self.arrows.append(Arrow(source, time, _lane(strand), then, strand.why[1]))
        self.at(then, self._resume(strand))

    # ------------------------------------------------------------------------------------------ TMA and memory

    def _load(self, strand: _Strand, time: float, e: Event) -> float:
        _, site, nbytes, lines, targets = e
        p, rank = self.p, strand.trace.rank
        issued = time + p.tma_issue
        sm = self.sms[rank]
        start = max(issued, sm.tma_load)
        sm.tma_load = start + lines * p.tma_cycles_per_line
        self._engine(rank, TMA_LOAD, start, sm.tma_load, site, f"{nbytes} bytes")
        done = max(sm.tma_load, self._fetched(sm, start, nbytes)) + self._latency(strand)
        for name, amount in targets:
            self._signal(strand.cluster, name, 0, -amount, done, ("engine", rank, TMA_LOAD))
        return issued

    def _latency(self, strand: _Strand) -> float:
        if strand.late is None:
            return self.memory.tma_latency
        return self.memory.dram_latency if next(strand.late, False) else self.memory.hit_latency

    def _fetched(self, sm: _Sm, start: float, nbytes: float) -> float:
        """When the last of these bytes has passed L2 and, as far as they miss it, DRAM."""
        m = self.memory
        sm.load_path = max(start, sm.load_path) + nbytes * m.load_cycles_per_byte
        sm.from_l2 += nbytes * max(m.load_cycles_per_byte, m.l2_cycles_per_byte)
        sm.l2 = max(start - m.burst * m.l2_cycles_per_byte, sm.l2) + nbytes * m.l2_cycles_per_byte
        per_byte = m.miss * m.dram_cycles_per_byte
        sm.dram = max(start - m.burst * per_byte, sm.dram) + nbytes * per_byte
        return max(sm.load_path, sm.l2, sm.dram)

    def _stored(self, sm: _Sm, start: float, nbytes: float) -> float:
        """When the last of these bytes is in L2; they go on to DRAM from there."""
        sm.store_path = max(start, sm.store_path) + nbytes * self.memory.store_cycles_per_byte
        sm.dram = max(start, sm.dram) + nbytes * self.memory.dram_cycles_per_byte
        return sm.store_path

    def _store(self, strand: _Strand, time: float, e: Event) -> float:
        _, site, nbytes, lines = e
        p, rank = self.p, strand.trace.rank
        issued = time + p.tma_issue
        sm = self.sms[rank]
        start = max(issued, sm.tma_store)
        sm.tma_store = start + lines * p.tma_cycles_per_line
        self._engine(rank, "TMA store", start, sm.tma_store, site, f"{nbytes} bytes")
        read = max(sm.tma_store, self._stored(sm, start, nbytes)) + p.tma_store_read
        strand.stores.append((read, read - p.tma_store_read + p.tma_store_latency))
        return issued

    def _commit_group(self, strand: _Strand, time: float, e: Event) -> float:
        if strand.stores:
            strand.groups.append((max(r for r, _ in strand.stores), max(w for _, w in strand.stores)))
            strand.stores = []
        return time + self.p.issue

    def _wait_group(self, strand: _Strand, time: float, e: Event) -> float:
        _, site, pending, read = e
        old = strand.groups[: len(strand.groups) - pending] if pending else strand.groups
        done = max((g[0] if read else g[1] for g in old), default=0.0)
        if not read:
            strand.groups = strand.groups[len(old) :]
        if done > time:
            self._block(strand, time, site, "bulk stores")
            self.at(done, self._resume(strand))
            return None  # type: ignore[return-value]
        return time + self.p.issue

    def _gmem(self, strand: _Strand, time: float, e: Event) -> float | None:
        _, site, requests, sectors, write = e
        p, sm = self.p, self.sms[strand.trace.rank]
        if write:
            if self._awaits_loads(strand, time, site):
                return None
            done = self._stored(sm, time, 32 * sectors)
            return max(time + requests * p.issue, done - 4000)  # stores queue up before they stall
        strand.left = strand.left or requests
        while strand.left:
            if len(strand.loads) >= p.gmem_in_flight:
                if strand.loads[0] > time:
                    self._again(strand, time, strand.loads[0], site)
                    return None
                strand.loads.popleft()
            time += p.issue
            strand.loads.append(self._fetched(sm, time, 32 * sectors / requests) + self.memory.gmem_latency)
            strand.left -= 1
        return time

    def _awaits_loads(self, strand: _Strand, time: float, site: int) -> bool:
        """Whether the strand first has to wait for its plain loads; if so, it comes back to this event."""
        done = max(strand.loads, default=time)
        if done > time:
            self._again(strand, time, done, site)
            return True
        strand.loads.clear()
        return False

    def _again(self, strand: _Strand, time: float, then: float, site: int) -> None:
        """Wait for plain loads until ``then``, and do the current event at that time, not ahead of other warps' work."""
        strand.at -= 1
        self._block(strand, time, site, "global memory")
        self.at(then, self._resume(strand))

    def _stall(self, strand: _Strand, start: float, end: float, site: int, what: str) -> None:
        """A wait whose end is known."""
        if end > start:
            role = self._role(strand)
            self.stalls[role, what] = self.stalls.get((role, what), 0.0) + end - start
            places = self.places.setdefault((role, what), {})
            places[site] = places.get(site, 0.0) + end - start
            if self.keep:
                self._interval(strand, start, end, "wait", site, what)

    def _smem(self, strand: _Strand, time: float, e: Event) -> float | None:
        _, site, requests, wavefronts, write = e
        p, sm = self.p, self.sms[strand.trace.rank]
        if self._awaits_loads(strand, time, site):
            return None
        start = max(time, sm.smem)
        sm.smem = start + wavefronts
        return max(time + requests * p.issue, sm.smem) + (0 if write else p.smem_latency)

    # ------------------------------------------------------------------------------------------ tensor core and TMEM

    def _mma(self, strand: _Strand, time: float, e: Event) -> float:
        _, site, group, m, n, a_in_tmem = e
        p, rank = self.p, strand.trace.rank
        issued = time + p.mma_issue
        sms = self.sms[rank : rank + 1] if group == 1 else self.sms[rank & ~1 : (rank & ~1) + 2]
        start = max(issued, *(sm.tensor_core for sm in sms))
        end = start + p.mma_interval(group, m, n, a_in_tmem)
        for k, sm in enumerate(sms):
            sm.tensor_core = end
            self._engine(
                (rank & ~1) + k if group == 2 else rank, "tensor core", start, end, site, f"{m} x {n}"
            )
        strand.mma_done = start + p.mma_latency(group, m, n, a_in_tmem)
        return issued

    def _wgmma(self, strand: _Strand, time: float, e: Event) -> float:
        """Every warp of a warpgroup multiplies its 16 rows on the tensor core of its quarter of the SM."""
        _, site, n, _k, a_in_registers, _warps = e
        p, rank = self.p, strand.trace.rank
        sm = self.sms[rank]
        issued = time + p.wgmma_issue
        for warp in strand.trace.warps:
            quarter = warp % 4
            start = max(issued, sm.quarters[quarter])
            sm.quarters[quarter] = start + p.wgmma_interval(int(n), bool(a_in_registers))
            strand.wgmma = sm.quarters[quarter] + p.wgmma_latency
            if quarter == 0:
                self._engine(rank, "tensor core", start, sm.quarters[0], site, f"64 x {n}")
        return issued

    def _wgmma_commit(self, strand: _Strand, time: float, e: Event) -> float:
        strand.wgmma_groups.append(strand.wgmma)
        return time + self.p.issue

    def _wgmma_wait(self, strand: _Strand, time: float, e: Event) -> float | None:
        _, site, pending = e
        groups = strand.wgmma_groups
        over = groups[: len(groups) - pending] if pending else groups
        strand.wgmma_groups = groups[len(over) :]
        done = max(over, default=0.0)
        if done > time:
            self._block(strand, time, site, "wgmma")
            self.at(done, self._resume(strand))
            return None
        return time + self.p.issue

    def _work(self, strand: _Strand, time: float, e: Event) -> float:
        """Arithmetic on the pipes of the quarters of the SM that the warps belong to; a pipe does one warp after another."""
        p, sm, rank = self.p, self.sms[strand.trace.rank], strand.trace.rank
        then = time
        for name, pipe, count, per_clk in (
            ("special functions", sm.special, e[2], p.special_per_clk),
            ("float32", sm.fma, e[3], p.fma_per_clk),
            ("compare", sm.alu, e[4], p.alu_per_clk),
        ):
            for warp in strand.trace.warps if count else ():
                quarter = warp % 4
                start = max(time, pipe[quarter])
                pipe[quarter] = start + count * 128 / per_clk
                then = max(then, pipe[quarter])
                if quarter == 0 and name == "special functions":
                    self._engine(rank, name, start, pipe[0], e[1])
        return then

    def _commit(self, strand: _Strand, time: float, e: Event) -> float:
        done = time + self.p.commit
        for name in e[2]:
            finished = max(done, strand.mma_done - self.p.wake)
            self._signal(strand.cluster, name, 1, 0, finished, ("engine", strand.trace.rank, "tensor core"))
        return done

    def _tmem(self, strand: _Strand, time: float, e: Event) -> float:
        _, _, nbytes, warps, _load = e
        p, sm = self.p, self.sms[strand.trace.rank]
        start = max(time, sm.tmem)
        sm.tmem = start + nbytes / p.tmem_bytes_per_clk
        slow = nbytes / (warps * p.tmem_warp_bytes_per_clk)
        strand.tmem_done = max(strand.tmem_done, max(sm.tmem, start + slow) + p.tmem_latency)
        strand.tmem_registers += nbytes / (128 * warps)
        return start + p.issue

    def _tmem_wait(self, strand: _Strand, time: float, e: Event) -> float:
        time = max(time, strand.tmem_done) + strand.tmem_registers * self.p.instructions_per_tmem_register
        strand.tmem_registers = 0.0
        return time

    def _alloc(self, strand: _Strand, time: float, e: Event) -> float:
        return time + self.p.tmem_alloc

    def _fence(self, strand: _Strand, time: float, e: Event) -> float:
        return time + self.p.fence

    # ------------------------------------------------------------------------------------------ barriers of warps

    def _bar(self, strand: _Strand, time: float, e: Event) -> float | None:
        _, site, index, warps, threads, sync = e
        if self._awaits_loads(strand, time, site):
            return None
        cluster = strand.cluster
        cta = cluster.ctas[strand.trace.rank]
        named = cta.named.setdefault(index, _Named())
        named.arrived += 32 * warps
        if sync:
            named.waiters.append(strand)
            self._block(
                strand, time, site, "cta_sync" if threads < 0 and not index else f"named barrier {index}"
            )
        self._named_check(strand, cluster, named, 32 * cta.warps if threads < 0 else threads, time)
        return None if sync else time + self.p.issue

    def _named_check(self, last: _Strand, cluster: _Cluster, named: _Named, needed: int, time: float) -> None:
        """Let the waiters of a named barrier go on, if ``last`` was the last to arrive."""
        if not named.arrived or named.arrived < needed:
            return
        cost = self.p.bar_base + self.p.bar_per_warp * needed / 32
        waiters, named.waiters, named.arrived = named.waiters, [], 0
        for strand in waiters:
            self._wake(strand, _lane(last), time, time + cost)

    def _cluster_arrive(self, strand: _Strand, time: float, e: Event) -> float:
        cluster = strand.cluster
        cluster.arrived += e[2]
        strand.cluster_generation = cluster.generation
        if cluster.arrived >= sum(cta.warps for cta in cluster.ctas):
            cluster.arrived = 0
            cluster.generation += 1
            for waiter in cluster.waiting:
                self._wake(waiter, _lane(strand), time, time + self.p.cluster_barrier)
            cluster.waiting = []
        return time + self.p.issue

    def _cluster_wait(self, strand: _Strand, time: float, e: Event) -> float | None:
        if strand.cluster.generation > strand.cluster_generation:
            return time + self.p.cluster_barrier
        strand.cluster.waiting.append(strand)
        self._block(strand, time, e[1], "cluster barrier")
        return None


def _lane(strand: _Strand) -> Lane:
    return ("warp", strand.cluster.slot, strand.trace.rank, strand.trace.warps[0])


__all__ = ["Arrow", "Interval", "Lane", "Late", "Memory", "Node", "Simulated", "base"]
