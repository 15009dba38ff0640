"""The modelled time of a kernel at full problem size: a few clusters recorded without data, one node simulated."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.host import HostTensorMap
from emulator.timing.bottleneck import explain
from emulator.timing.cache import Replay, replay
from emulator.timing.classes import Class, Grid, sample
from emulator.timing.parameters import Parameters, load
from emulator.timing.record import ClusterTrace
from emulator.timing.simulate import Arrow, Interval, Late, Memory, Node, Simulated

if TYPE_CHECKING:
    from emulator.kernel import Kernel


@dataclass(frozen=True)
class Modelled:
    """A modelled time and what it is made of.

    Attributes:
        microseconds: from the start of the kernel to its end, launch included.
        cycles: of one node, without the launch. clock_ghz: the SM clock that was assumed.
        device: whose parameters were used.
        waves: clusters that one node works through one after another, and how many at a time.
        flops: of all tensor-core instructions. bytes_loaded, bytes_stored: requested, whole grid; bytes_dram: least traffic.
        bytes_loaded_plainly: those of bytes_loaded that no TMA or bulk copy moved.
        busy: share of the time that each engine of the first SM works.
        stalls: (role, what its warps wait for, share of the time that they are there), worst first.
        bottleneck: one sentence. waits_at: statements at which the warps wait that it is about.
        intervals, arrows: for the picture, in cycles.
    """

    microseconds: float
    cycles: float
    clock_ghz: float
    device: str
    waves: int
    resident: int
    flops: int
    bytes_loaded: int
    bytes_stored: int
    bytes_dram: int
    bytes_loaded_plainly: int
    busy: dict[str, float]
    stalls: tuple[tuple[str, str, float], ...]
    bottleneck: str
    waits_at: tuple[int, ...] = ()
    intervals: tuple[Interval, ...] = ()
    arrows: tuple[Arrow, ...] = ()

    @property
    def tflops(self) -> float:
        return self.flops / self.microseconds / 1e6


def model(
    kernel: Kernel,
    tensors: Sequence[Any],
    *,
    clock_ghz: float | None = None,
    intervals: bool = False,
    device: str | None = None,
) -> Modelled:
    """Model a launch on ``tensors`` (their contents do not matter; outputs are overwritten with nothing useful).

    Args:
        kernel: a compiled kernel.
        clock_ghz: the SM clock; None: that of the parameters.
        intervals: keep what every warp and engine did when, for a picture.
        device: architecture whose parameters to use; None: the one the kernel was compiled for.

    Raises:
        ValueError: no parameters for that architecture, the kernel launches nothing, or it waits for what is not simulated.
        Unfinished: the launch hangs, or a fault ends it.
    """
    p = load(device or kernel.arch)
    if clock_ghz is not None:
        p = p.with_values(clock_ghz=clock_ghz)
    grid = sample(kernel, tensors, order=bool(p.l2_replay))
    resources = kernel.resources
    per_cluster = int(np.prod(resources["cluster"]))
    return _time(p, grid, per_cluster, resources, _bytes(tensors), intervals)


def _bytes(tensors: Sequence[Any]) -> int:
    """Of all tensors; two maps of one tensor count once."""
    arrays = [t.array if isinstance(t, HostTensorMap) else t for t in tensors]
    return sum({id(a): int(a.nbytes) for a in arrays if hasattr(a, "nbytes")}.values())


def _time(
    p: Parameters, grid: Grid, per_cluster: int, resources: dict[str, Any], size: int, intervals: bool
) -> Modelled:
    """``size``: bytes of all tensors."""
    classes, clusters = grid.classes, grid.clusters
    nodes = max(1, int(p.sms) // per_cluster)
    mine = -(-clusters // nodes)  # clusters of the busiest node
    resident = min(occupancy(p, resources, _registers(classes)), mine)
    active = min(clusters, nodes) * per_cluster
    loaded, stored, plainly = (
        round(sum(n * getattr(t, name) for t, n in classes))
        for name in ("loaded", "stored", "loaded_plainly")
    )
    seen = replay(grid.probes if p.l2_replay else {}, nodes * resident, p.l2_capacity)
    dram = min(loaded, max(seen.from_dram, _footprint(classes, max(0, size - stored)))) + stored
    memory = shared_memory_system(p, active, loaded, stored, dram, _sharing(classes))
    longest = max((t for t, _ in classes), key=lambda t: t.size)
    queue = _Queue(seen, nodes)
    simulated, cycles = _node(p, memory, longest, mine, resident, intervals, queue)
    if simulated.unfinished:
        count = simulated.unfinished
        raise ValueError(
            f"this kernel cannot be modelled: {count} warp{'s wait' if count > 1 else ' waits'} for something that the"
            " model does not simulate"
        )
    if len(classes) > 1 and mine > 1:
        cycles = _makespan(p, memory, grid, nodes, resident, queue)
    microseconds = cycles / p.clock_ghz / 1e3 + p.launch_us
    flops = round(sum(n * _flops(t) for t, n in classes))
    busy = {name: spent / simulated.cycles for name, spent in simulated.busy[0].items()}
    why = explain(p, simulated, longest, dram, microseconds, resources)
    return Modelled(
        microseconds, cycles, p.clock_ghz, p.device, mine, resident, flops, loaded, stored, dram, plainly, busy, why.stalls,
        why.sentence, why.statements, tuple(simulated.intervals), tuple(simulated.arrows),
    )  # fmt: skip


@dataclass(frozen=True)
class _Queue:
    """What is known of the loads of the clusters that one node works through: every ``nodes``-th of the grid."""

    seen: Replay
    nodes: int

    def late(self, trace: ClusterTrace, count: int) -> list[Late]:
        """For ``count`` clusters that do what ``trace`` does; empty where nothing is known."""
        late = self.seen.late
        if trace.index not in late:
            return []
        loads = [len(flags) for flags in late[trace.index]]
        own = (late.get(k * self.nodes, []) for k in range(count))
        return [flags if [len(f) for f in flags] == loads else late[trace.index] for flags in own]


def _node(
    p: Parameters,
    memory: Memory,
    trace: ClusterTrace,
    mine: int,
    resident: int,
    intervals: bool,
    queue: _Queue,
) -> tuple[Simulated, float]:
    """(a simulated part of the node's work, cycles of all of it): after a few clusters the rest goes on at their pace."""
    few = 2 * resident

    def run(count: int, intervals: bool = False) -> Simulated:
        node = Node(p, memory, intervals=intervals, resident=resident)
        return node.run([trace] * count, queue.late(trace, count))

    if mine <= 2 * few:
        simulated = run(mine, intervals)
        return simulated, simulated.cycles
    start = run(few).cycles
    simulated = run(2 * few, intervals)
    return simulated, simulated.cycles + (mine - 2 * few) * (simulated.cycles - start) / few


def _makespan(p: Parameters, memory: Memory, grid: Grid, nodes: int, resident: int, queue: _Queue) -> float:
    """Cycles of a grid whose clusters take different times: each starts, in the order of the grid, where one has ended first.

    A cluster's time is that of its class beside others of the class, once a node is at it; what begins and ends a node's
    work is added once.
    """
    paces, leads = [], []
    for trace in grid.traces:
        once, twice = (
            Node(p, memory, resident=resident).run([trace] * n, queue.late(trace, n)).cycles
            for n in (resident, 2 * resident)
        )
        paces.append(twice - once)
        leads.append(2 * once - twice)
    slots = [0.0] * min(nodes * resident, grid.clusters)
    for cycles in grid.shares @ np.array(paces):
        heapq.heapreplace(slots, slots[0] + float(cycles))
    return max(slots) + max(leads)


def occupancy(p: Parameters, resources: dict[str, Any], registers: int = 0) -> int:
    """CTAs that one SM holds at a time: by SMEM, threads, TMEM columns, slots, and registers per thread as far as known."""
    threads = max(1, resources["threads_per_cta"])
    limits = [p.ctas_per_sm, p.threads_per_sm // threads]
    limits.append(p.smem_per_sm // (resources["smem_bytes"] + 1024))
    if resources.get("tmem_columns"):
        limits.append(p.tmem_columns // resources["tmem_columns"])
    if registers:
        limits.append(p.registers_per_sm // (threads * -(-registers // 8) * 8))
    return max(1, int(min(limits)))


def _registers(classes: list[Class]) -> int:
    """Registers per thread, at least: the accumulators of a wgmma and what else such kernels of this course use."""
    widest = max(
        (e[2] for t, _ in classes for s in t.strands for e in s.events if e[0] == "wgmma"), default=0
    )
    return widest // 2 + 26 if widest else 0


def shared_memory_system(
    p: Parameters, active: int, loaded: int, stored: int, dram: int, sharing: float = 1.0
) -> Memory:
    """One SM's share of L2 and DRAM when ``active`` SMs do the same.

    Half of the hits are in the far partition when data is used by SMs of both. L2 delivers more when several SMs ask for the
    same bytes: ``sharing`` is the share of the loads for which another SM asks, too.
    """
    dram_clk = p.dram_tb_per_s * 1e3 / p.clock_ghz  # bytes per clock
    miss = min(1.0, max(0, dram - stored) / loaded) if loaded else 0.0
    per_byte = 1 / p.sm_bytes_per_clk
    l2 = active * (sharing / p.l2_shared_bytes_per_clk + (1 - sharing) / p.l2_bytes_per_clk)
    hit = (p.tma_latency_near + p.tma_latency_far) / 2 if active > 1 else p.tma_latency_near
    latency = (1 - miss) * hit + miss * p.tma_latency_dram
    plain = (1 - miss) * p.gmem_latency_l2 + miss * p.gmem_latency
    return Memory(
        per_byte, max(per_byte, active / p.l2_bytes_per_clk), latency, plain, active / dram_clk, miss,
        stored > p.l2_bytes, l2, p.burst_bytes, hit, p.tma_latency_dram,
    )  # fmt: skip


def _sharing(classes: list[Class]) -> float:
    """Share of the bytes that TMA loads which another cluster loads, too."""
    read: dict[int, float] = {}
    sizes: dict[int, int] = {}
    for t, count in classes:
        sizes.update(t.tensors)
        for (tensor, _), nbytes in t.loads.items():
            read[tensor] = read.get(tensor, 0) + count * nbytes
    total = sum(read.values())
    return 1 - sum(min(sizes[k], n) for k, n in read.items()) / total if total else 0.0


def _footprint(classes: list[Class], inputs: int) -> int:
    """Bytes that the grid reads from DRAM at least: what the recorded clusters read, scaled, at most the whole tensors.

    ``inputs``: bytes of all tensors that the kernel only reads.
    """
    read: dict[int, float] = {}
    sizes: dict[int, int] = {}
    plain = 0.0
    for t, count in classes:
        sizes.update(t.tensors)
        plain += count * t.loaded_plainly
        for (tensor, _), nbytes in t.loads.items():
            read[tensor] = read.get(tensor, 0) + count * nbytes
    by_tma = sum(min(sizes[tensor], nbytes) for tensor, nbytes in read.items())
    return round(by_tma + min(plain, max(0, inputs - sum(sizes.values()))))


def _flops(trace: ClusterTrace) -> int:
    """Of all MMAs, counted as for 16-bit elements (K = 16)."""
    return sum(2 * e[3] * e[4] * 16 for s in trace.strands for e in s.events if e[0] == "mma")
