"""What each strand of warps did, as a list of events that :mod:`emulator.timing.simulate` gives times to.

An event is a tuple ``(kind, statement, ...)``:

==================  ==============================================================================
``init``            mbarrier, arrivals per phase
``arrive``          mbarrier, arrivals, transaction bytes that are expected in addition
``wait``            mbarrier, parity
``load``            bytes, 128-byte lines, ((mbarrier, bytes), ...): a TMA load and whom it signals
``store``           bytes, 128-byte lines: a TMA or bulk store
``commit_group``    the stores since the last one form a bulk group
``wait_group``      groups that may be pending, whether only their reads are awaited
``mma``             cta_group, M, N, A in tensor memory
``commit``          (mbarrier, ...) that hear of the completion of all MMAs so far
``tmem``            bytes, warps, is a load
``tmem_wait``       tcgen05.wait
``wgmma``           N, K, A in registers, warps (16 rows each)
``wgmma_commit``    the wgmma since the last one form a group
``wgmma_wait``      groups that may be pending
``work``            special functions, float32 operations, comparisons of each warp's lanes
``bar``             named barrier, warps that arrive, threads in all (-1: the CTA's), waits
``cluster_arrive``  warps
``cluster_wait``
``smem``            wavefronts, is a store
``gmem``            requests, sectors, is a store
``alloc``           tcgen05.alloc
``fence``           fence.proxy.async and the like
==================  ==============================================================================

An mbarrier is named by (CTA rank in the cluster, byte offset).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from emulator.checks.bank_conflicts import AccessStatistics, Conflict, IntArray
from emulator.timing.arithmetic import counted

Event = tuple[Any, ...]
Barrier = tuple[int, int]


@dataclass
class StrandTrace:
    """One strand: its CTA's rank in the cluster, its warps, its events in program order.

    ``boxes``: what each of its loads reads: (tensor, first coordinates).
    """

    rank: int
    warps: tuple[int, ...]
    events: list[Event] = field(default_factory=list)
    boxes: list[tuple[int, Hashable]] = field(default_factory=list)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Kinds of the events, once all are recorded."""
        return frozenset(e[0] for e in self.events)


@dataclass
class ClusterTrace:
    """All strands of one cluster.

    Attributes:
        index: number of the cluster in the grid.
        ctas: CTAs in the cluster.
        names: mbarrier -> name in the learner's words.
        loaded: bytes that TMA and bulk copies moved into SMEM (once per multicast), and that plain loads asked for;
        loaded_plainly: the latter alone.
        stored: bytes that went to global memory.
        loads: what TMA loads read: (tensor, first coordinates) -> bytes; the same box counts once.
        tensors: size of each tensor that they read, in bytes.
    """

    index: int
    ctas: int
    strands: list[StrandTrace] = field(default_factory=list)
    names: dict[Barrier, str] = field(default_factory=dict)
    loaded: int = 0
    loaded_plainly: int = 0
    stored: int = 0
    loads: dict[tuple[int, Hashable], int] = field(default_factory=dict)
    tensors: dict[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of events."""
        return sum(len(s.events) for s in self.strands)


class Recorder:
    """Attached to a :class:`~emulator.scheduler.Machine` as ``trace``; ``dry`` launches move and multiply no data."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.clusters: dict[int, ClusterTrace] = {}
        self._strands: dict[int, tuple[Any, StrandTrace, ClusterTrace]] = {}

    def attach(self, machine: Any) -> None:
        """Listen to a launch."""
        machine.trace = self
        machine.program = counted(machine.program, lambda pipe, n: self._work(machine, pipe, n))
        machine.statistics = statistics = RecordingStatistics(self)
        statistics.machine = machine

    def _of(self, machine: Any) -> tuple[StrandTrace, ClusterTrace]:
        strand = machine.running
        found = self._strands.get(id(strand))
        if found is None:
            cta = strand.cta
            cluster = self.clusters.get(cta.cluster.index)
            if cluster is None:
                cluster = ClusterTrace(cta.cluster.index, len(cta.cluster.ctas))
                self.clusters[cta.cluster.index] = cluster
            trace = StrandTrace(cta.rank, tuple(strand.threads.warps))
            cluster.strands.append(trace)
            found = self._strands[id(strand)] = (strand, trace, cluster)
        return found[1], found[2]

    def add(self, machine: Any, kind: str, site: int, *data: Any) -> None:
        """Append an event to the running strand."""
        self._of(machine)[0].events.append((kind, site, *data))

    def _work(self, machine: Any, pipe: str, operations: int) -> None:
        """Arithmetic of the running strand; what follows without another event in between is one event."""
        events = self._of(machine)[0].events
        last = events[-1] if events else None
        counts = list(last[2:]) if last is not None and last[0] == "work" else [0, 0, 0]
        counts[("special", "fma", "alu").index(pipe)] += operations
        event = ("work", -1, *counts)
        if last is not None and last[0] == "work":
            events[-1] = event
        else:
            events.append(event)

    def barrier(self, machine: Any, bar: Any) -> Barrier:
        """The name of an mbarrier in events."""
        key = (bar.cta.rank, bar.offset)
        names = self._of(machine)[1].names
        if key not in names:
            names[key] = bar.name
        return key

    def load(
        self,
        machine: Any,
        site: int,
        nbytes: int,
        lines: int,
        targets: list[Any],
        tensor: Any,
        where: Hashable,
    ) -> None:
        """A TMA load of ``nbytes`` bytes of ``tensor`` to the CTAs of ``targets`` = [(CTA, offset, mbarrier), ...]."""
        strand, cluster = self._of(machine)
        bars = tuple((self.barrier(machine, bar), nbytes) for _, _, bar in targets)
        cluster.loaded += nbytes
        cluster.loads[tensor.index, where] = nbytes
        strand.boxes.append((tensor.index, where))
        cluster.tensors[tensor.index] = tensor.nbytes
        strand.events.append(("load", site, nbytes, lines, bars))

    def store(self, machine: Any, site: int, nbytes: int, lines: int) -> None:
        strand, cluster = self._of(machine)
        cluster.stored += nbytes
        strand.events.append(("store", site, nbytes, lines))

    def access(self, machine: Any, kind: str, site: int, passes: int, write: bool) -> None:
        """SMEM wavefronts or global sectors of one warp's access; neighbours of one statement become one event."""
        strand, cluster = self._of(machine)
        events = strand.events
        if kind == "gmem":
            if write:
                cluster.stored += 32 * passes
            else:
                cluster.loaded += 32 * passes
                cluster.loaded_plainly += 32 * passes
        last = events[-1] if events else None
        if last is not None and last[0] == kind and last[1] == site and last[-1] == write:
            events[-1] = (kind, site, last[2] + 1, last[3] + passes, write)
        else:
            events.append((kind, site, 1, passes, write))


class RecordingStatistics(AccessStatistics):
    """The profile's statistics, which also tell a recorder what each access costs."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.machine: Any = None

    def add_shared(self, site: int, addr: IntArray, nbytes: int, lane: IntArray | None = None) -> Conflict:
        conflict = super().add_shared(site, addr, nbytes, lane)
        self.recorder.access(self.machine, "smem", site // 2, conflict.wavefronts, bool(site % 2))
        return conflict

    def add_global(self, site: int, addr: IntArray, nbytes: int) -> int:
        sectors = super().add_global(site, addr, nbytes)
        self.recorder.access(self.machine, "gmem", site // 2, sectors, bool(site % 2))
        return sectors
