"""CTA barriers, warp and warpgroup barriers, cluster barriers (PTX ISA, "Parallel Synchronization: bar, barrier").

``bar.sync id, n`` counts threads in whole warps; the barrier completes when ``n`` threads have arrived (``bar.arrive``
included) and re-arms itself.  A warp that has exited counts as arrived at the all-threads barrier, as on hardware.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.checks.findings import Finding, words
from emulator.errors import DeviceFault, UnsupportedInstruction
from emulator.instructions.registry import Mods, instruction
from emulator.machine.cta import Twice
from emulator.scheduler import Wait
from emulator.threads import Threads

if TYPE_CHECKING:
    from emulator.machine.cta import Cluster, Cta, NamedBarrier

ALL = -1  # "every thread of the CTA", the count of bar.sync without a count


class NamedBarrierWait(Wait):
    """Warps blocked in bar.sync."""

    __slots__ = ("barrier", "generation", "cta", "site", "warps")
    kind = "bar.sync"

    def __init__(self, cta: Cta, barrier: NamedBarrier, generation: int, site: int, warps: list[int]) -> None:
        self.cta = cta
        self.barrier = barrier
        self.generation = generation
        self.site = site
        self.warps = warps

    def ready(self) -> bool:
        return self.barrier.generation != self.generation


class ClusterWait(Wait):
    """Warps blocked in barrier.cluster.wait."""

    __slots__ = ("cluster", "generation", "site", "warps")
    kind = "barrier.cluster.wait"

    def __init__(self, cluster: Cluster, generation: int, site: int, warps: list[int]) -> None:
        self.cluster = cluster
        self.generation = generation
        self.site = site
        self.warps = warps

    def ready(self) -> bool:
        return self.cluster.barrier_generation > self.generation


def _arrive(t: Threads, index: int, count: int, warps: list[int], sync: bool) -> NamedBarrier:
    cta = t.cta
    if not 0 <= index < 16:
        raise DeviceFault(
            "barrier.bad-id",
            f"named barrier {index} does not exist: a CTA has barriers 0 to 15",
            "use an id from 0 to 15",
            site=t.site,
        )
    if count != ALL and (count % 32 or count <= 0):
        raise DeviceFault(
            "barrier.bad-count",
            f"named barrier {index} is used with {count} threads; the count must be a positive multiple of 32",
            "count whole warps",
            site=t.site,
        )
    b = cta.named_barrier(index)
    machine = cta.machine
    if count > 32 * cta.num_warps:
        machine.report(
            "barrier.count-too-large", "error",
            f"named barrier {index} waits for {count} threads, but the CTA has {machine.num_threads}",
            "give the number of threads that meet at this barrier",
            t, names=(f"named barrier[{index}]",),
        )  # fmt: skip
    if b.expected is not None and b.expected != count:
        machine.report(
            "barrier.mixed-counts", "error",
            f"named barrier {index} is used with {_words(count)} here and with {_words(b.expected)} elsewhere in the same round",
            "all warps that meet at one barrier must give the same thread count, or use another barrier id",
            t, names=(f"named barrier[{index}]",), sites=(b.site,),
        )  # fmt: skip
    b.expected = count
    b.site = t.site
    if machine.trace is not None:
        machine.trace.add(machine, "bar", t.site, index, len(warps), count, sync)
    doubtful = b.doubtful
    if doubtful is not None and doubtful.count == count and not doubtful.present.issuperset(warps):
        _report_twice(cta, b, doubtful, t.site)
        b.doubtful = None
    twice = b.present.intersection(warps)
    if twice and b.again is None:
        b.again = Twice(count, tuple(sorted(twice)), t.site, tuple(b.users))
    b.present.update(warps)
    users = b.users.get(t.site)
    if users is None:
        users = b.users[t.site] = set()
    users.update(warps)
    b.arrived += 32 * len(warps)
    first = cta.rank * cta.num_warps
    hb = cta.cluster.hb
    if hb is not None and not sync:
        hb.bar_arrive(tuple(first + w for w in warps), cta.rank, index, t.rd_site)
    if sync:
        b.warps += warps
    _complete_if_full(cta, b, t.rd_site if hb is not None else 0)
    machine.progress += 1
    return b


def _words(count: int) -> str:
    return "all threads of the CTA" if count == ALL else f"{count} threads"


def _complete_if_full(cta: Cta, b: NamedBarrier, rd_site: int = 0) -> None:
    if b.expected is None:
        return
    needed = 32 * cta.live_warps if b.expected == ALL else b.expected
    if b.expected == ALL and cta.machine.num_threads % 32:
        needed = 32 * cta.live_warps
    if b.arrived < needed:
        return
    hb = cta.cluster.hb
    if hb is not None and b.warps:
        first = cta.rank * cta.num_warps
        hb.bar_sync(tuple(first + w for w in b.warps), cta.rank, b.index, rd_site)
    b.generation += 1
    b.arrived = 0
    b.expected = None
    b.warps = []
    if b.again is not None:
        # A count that is higher than the warps that ever come may be meant so; one in place of another warp is not.
        b.again.present = set(b.present)
        if all(warps <= b.present for warps in b.users.values()):
            b.doubtful = b.again
        else:
            _report_twice(cta, b, b.again)
        b.again = None
    b.present.clear()


def _report_twice(cta: Cta, b: NamedBarrier, twice: Twice, missing: int = -1) -> None:
    """A round was over without a warp that uses the barrier, because another one had arrived twice.

    ``missing``: the statement at which that warp came, when that was later.
    """
    machine = cta.machine
    who = f"{words(twice.warps, 'Warp', 'Warps')} {'arrives' if len(twice.warps) == 1 else 'arrive'}"
    sites = [machine.location(site) for site in (twice.site, *twice.sites, missing)]
    machine.log.add(
        Finding(
            "barrier.double-arrive", "race",
            f"{who} again at named barrier {b.index} before its round is over: the arrival counts twice, in place of a warp "
            "that has not come yet.",
            "Let a warp arrive once per round: it may come again only after it has met the others at a barrier.",
            tuple(dict.fromkeys(x for x in sites if x is not None)), (f"named barrier[{b.index}]",),
            cta.linear, twice.warps,
        )
    )  # fmt: skip


def recheck_after_exit(cta: Cta) -> None:
    """Exited warps no longer count at the all-threads barrier."""
    for b in cta.named.values():
        if b.expected == ALL and cta.live_warps:
            _complete_if_full(cta, b)
    _complete_cluster(cta.cluster)


def _sync(t: Threads, index: int, count: int, warps: list[int]) -> Generator[Wait, None, None]:
    b = t.cta.named_barrier(index)
    generation = b.generation
    _arrive(t, index, count, warps, True)
    if b.generation == generation:
        yield NamedBarrierWait(t.cta, b, generation, t.site, warps)
        while b.generation == generation:
            yield NamedBarrierWait(t.cta, b, generation, t.site, warps)


@instruction("cuda.cta_sync", blocking=True, collective=True, counter="bar.sync")
def cta_sync(mods: Mods, t: Threads) -> Generator[Wait, None, None]:
    """``bar.sync 0``: all threads of the CTA."""
    t.require_whole_warps("cta_sync")
    yield from _sync(t, 0, ALL, t.active_warps())


@instruction("cuda.warpgroup_sync", blocking=True, collective=True, counter="bar.sync")
def warpgroup_sync(mods: Mods, t: Threads, index: Any) -> Generator[Wait, None, None]:
    """``bar.sync id, 128``."""
    t.require_whole_warps("warpgroup_sync")
    yield from _sync_by_id(t, index, 128)


def _sync_by_id(t: Threads, index: Any, count: Any) -> Generator[Wait, None, None]:
    """bar.sync where warps of the strand may use different barriers."""
    groups: dict[tuple[int, int], list[int]] = {}
    counts = dict(t.per_warp(count))
    for w, i in t.per_warp(index):
        groups.setdefault((int(i), int(counts[w])), []).append(w)
    waits = []
    for (i, n), warps in groups.items():
        b = t.cta.named_barrier(i)
        generation = b.generation
        _arrive(t, i, n, warps, True)
        if b.generation == generation:
            waits.append((b, generation, warps))
    for b, generation, warps in waits:
        while b.generation == generation:
            yield NamedBarrierWait(t.cta, b, generation, t.site, warps)


def _require_whole_warps(mods: Mods, t: Threads, what: str) -> None:
    """bar and barrier.aligned demand whole warps.

    barrier without .aligned does not (PTX ISA, "barrier"): its threads may come from different branches.

    Raises:
        UnsupportedInstruction: part of a warp executes barrier without .aligned.
    """
    try:
        t.require_whole_warps(what)
    except DeviceFault:
        if not what.startswith("barrier") or "aligned" in mods:
            raise
        raise UnsupportedInstruction(
            what, t.cta.machine.location(t.site), "without .aligned, by part of a warp"
        ) from None


@instruction("ptx.bar_sync_count", blocking=True, collective=True, counter="bar.sync")
def bar_sync_count(mods: Mods, t: Threads, index: Any, count: Any) -> Generator[Wait, None, None]:
    t.require_whole_warps("bar.sync")
    yield from _sync_by_id(t, index, count)


@instruction("ptx.barrier_sync_count", blocking=True, collective=True, counter="bar.sync")
def barrier_sync_count(mods: Mods, t: Threads, index: Any, count: Any) -> Generator[Wait, None, None]:
    _require_whole_warps(mods, t, "barrier.sync")
    yield from _sync_by_id(t, index, count)


@instruction("ptx.bar_sync", blocking=True, collective=True, counter="bar.sync")
def bar_sync(mods: Mods, t: Threads, index: Any) -> Generator[Wait, None, None]:
    t.require_whole_warps("bar.sync")
    yield from _sync_by_id(t, index, ALL)


@instruction("ptx.barrier_sync", blocking=True, collective=True, counter="bar.sync")
def barrier_sync(mods: Mods, t: Threads, index: Any) -> Generator[Wait, None, None]:
    _require_whole_warps(mods, t, "barrier.sync")
    yield from _sync_by_id(t, index, ALL)


@instruction("ptx.barrier_arrive", collective=True, counter="bar.arrive")
def barrier_arrive(mods: Mods, t: Threads, index: Any, count: Any) -> None:
    _require_whole_warps(mods, t, "barrier.arrive")
    counts = dict(t.per_warp(count))
    for w, i in t.per_warp(index):
        _arrive(t, int(i), int(counts[w]), [w], False)


@instruction("ptx.bar_arrive", collective=True, counter="bar.arrive")
def bar_arrive(mods: Mods, t: Threads, index: Any, count: Any) -> None:
    t.require_whole_warps("bar.arrive")
    counts = dict(t.per_warp(count))
    for w, i in t.per_warp(index):
        _arrive(t, int(i), int(counts[w]), [w], False)


@instruction("cuda.warp_sync", "ptx.bar_warp_sync")
def warp_sync(mods: Mods, t: Threads, *mask: Any) -> None:
    """Lanes of a warp run in lockstep here: only the race detector needs to know."""
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.warp_sync(t.hb_warps())


# ---------------------------------------------------------------------------------------------- cluster barrier


def _cluster_arrive(t: Threads, release: bool) -> None:
    cluster = t.cta.cluster
    generation = cluster.barrier_generation
    for w in t.active_warps():
        key = (t.cta.rank, w)
        if key in cluster.barrier_arrived and cluster.barrier_arrived[key] >= generation + 1:
            raise DeviceFault(
                "barrier.cluster-double-arrive",
                f"warp {w} arrives twice at the cluster barrier without waiting in between",
                "pair every barrier.cluster.arrive with one barrier.cluster.wait",
                site=t.site,
            )
        cluster.barrier_arrived[key] = generation + 1
        cluster.barrier_count += 1
    machine = t.cta.machine
    if machine.trace is not None:
        machine.trace.add(machine, "cluster_arrive", t.site, len(t.active_warps()))
    if cluster.hb is not None:
        cluster.hb.cluster_arrive(t.hb_warps(), t.rd_site, release=release)
    _complete_cluster(cluster)
    t.cta.machine.progress += 1


def _complete_cluster(cluster: Cluster) -> None:
    arrived = cluster.barrier_count
    missing = sum(cta.num_warps for cta in cluster.ctas) - arrived
    if not arrived or missing > sum(len(cta.exited_warps) for cta in cluster.ctas):
        return
    target = cluster.barrier_generation + 1
    exited = sum(
        1
        for cta in cluster.ctas
        for w in cta.exited_warps
        if cluster.barrier_arrived.get((cta.rank, w), 0) < target
    )
    if missing <= exited:
        cluster.barrier_generation += 1
        cluster.barrier_count = 0
        if cluster.hb is not None:
            cluster.hb.cluster_complete()


def _cluster_wait(t: Threads, acquire: bool) -> Generator[Wait, None, None]:
    cluster = t.cta.cluster
    warps = t.active_warps()
    mine = [cluster.barrier_arrived.get((t.cta.rank, w), 0) for w in warps]
    if not all(mine):
        raise DeviceFault(
            "barrier.cluster-wait-without-arrive",
            "barrier.cluster.wait without a barrier.cluster.arrive before it",
            "execute barrier.cluster.arrive first",
            site=t.site,
        )
    generation = max(mine) - 1
    machine = t.cta.machine
    if machine.trace is not None:
        machine.trace.add(machine, "cluster_wait", t.site)
    while cluster.barrier_generation <= generation:
        yield ClusterWait(cluster, generation, t.site, warps)
    if cluster.hb is not None:
        cluster.hb.cluster_wait(t.hb_warps(), t.rd_site, acquire=acquire)


@instruction("ptx.barrier_cluster_arrive", collective=True, counter="barrier.cluster.arrive")
def barrier_cluster_arrive(mods: Mods, t: Threads) -> None:
    _cluster_arrive(t, "relaxed" not in mods)


@instruction("ptx.barrier_cluster_wait", blocking=True, collective=True, counter="barrier.cluster.wait")
def barrier_cluster_wait(mods: Mods, t: Threads) -> Generator[Wait, None, None]:
    yield from _cluster_wait(t, True)


@instruction("cuda.cluster_sync", blocking=True, collective=True, counter="barrier.cluster.wait")
def cluster_sync(mods: Mods, t: Threads) -> Generator[Wait, None, None]:
    t.require_whole_warps("cluster_sync")
    _cluster_arrive(t, True)
    yield from _cluster_wait(t, True)


__all__ = ["ClusterWait", "NamedBarrierWait", "np", "recheck_after_exit"]
