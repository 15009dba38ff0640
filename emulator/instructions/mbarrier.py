"""mbarrier instructions (PTX ISA, "mbarrier")."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from emulator.checks import barrier_protocol
from emulator.checks.findings import Problem
from emulator.errors import DeviceFault
from emulator.instructions.registry import Mods, instruction
from emulator.machine.address import OFFSET_MASK
from emulator.machine.mbarrier import MAX_COUNT, Mbarrier
from emulator.scheduler import Wait
from emulator.threads import Threads

if TYPE_CHECKING:
    from emulator.machine.cta import Cta


class MbarrierWait(Wait):
    """Threads blocked in an mbarrier wait."""

    __slots__ = ("barrier", "parity", "site", "warps", "generation")
    kind = "mbarrier.wait"

    def __init__(self, barrier: Mbarrier, parity: int, site: int, warps: list[int]) -> None:
        self.barrier = barrier
        self.parity = parity
        self.site = site
        self.warps = warps
        self.generation = barrier.generation

    def ready(self) -> bool:
        return self.barrier.test(self.parity)


def arrive(t: Threads, bar: Mbarrier, count: int, tx: int, warps: list[int], *, release: bool = True) -> None:
    """Arrivals and expected bytes by threads (``tx`` > 0: expect_tx)."""
    machine = t.cta.machine
    hb = t.cta.cluster.hb
    if hb is not None:
        first = t.cta.rank * t.cta.num_warps
        hb.mbarrier_arrive(tuple(first + w for w in warps), bar.hb, t.rd_site, release=release)
    if machine.trace is not None:
        machine.trace.add(machine, "arrive", t.site, machine.trace.barrier(machine, bar), count, tx)
    update(machine, bar, count, tx, t.site, warps[0])


def update(machine: Any, bar: Mbarrier, count: int, tx: int, site: int, warp: int) -> None:
    """Apply arrivals and bytes; check the protocol; tell the race detector when a phase completes."""
    machine.progress += 1
    try:
        completed = bar.update(count, tx, site=site, warp=warp)
    except OverflowError:
        _report(machine, bar, barrier_protocol.mbarrier_arrive(bar, count), warp, site, bar.init_site)
        bar.pending = 0
        completed = bar.tx == 0
        if completed:
            bar.generation += 1
            bar.pending = bar.expected
            bar.last_history, bar.history = bar.history, []
    if tx and not completed:
        _report(
            machine, bar, barrier_protocol.mbarrier_bytes(bar), warp, site, *(a.site for a in bar.history)
        )
    if completed:
        if bar.copies:
            late = sum(nbytes for _, nbytes in bar.copies)
            sites = (a.site for a in bar.last_history if a.tx > 0)
            _report(
                machine, bar, barrier_protocol.mbarrier_completion(bar, late), warp, bar.copies[0][0], *sites
            )
        if bar.cta.cluster.hb is not None:
            bar.cta.cluster.hb.mbarrier_complete(bar.hb)


def _report(machine: Any, bar: Mbarrier, problem: Problem | None, warp: int, *sites: int) -> None:
    """A violation of the barrier protocol, at the statements of ``sites``."""
    if problem is None:
        return
    where = [machine.location(site) for site in dict.fromkeys(sites) if site >= 0]
    machine.log.add(problem.at(where, (bar.name,), bar.cta.linear, (warp,) if warp >= 0 else ()))


def issue_copy(bar: Mbarrier, nbytes: int, site: int) -> None:
    """A copy of ``nbytes`` bytes that will signal ``bar`` is issued."""
    bar.copies.append((site, nbytes))


def complete_tx(machine: Any, bar: Mbarrier, nbytes: int, site: int) -> None:
    """An asynchronous copy delivered ``nbytes`` bytes (``mbarrier.complete_tx``)."""
    if bar.copies:
        with contextlib.suppress(ValueError):
            bar.copies.remove((site, nbytes))
    update(machine, bar, 0, -nbytes, site, -1)


@instruction("ptx.mbarrier_init", counter="mbarrier.init")
def mbarrier_init(mods: Mods, t: Threads, address: Any, count: Any) -> None:
    """Initialise the barrier at a shared address for phases of ``count`` arrivals."""
    rows = t.rows(address, count)
    if len(rows) > 1 and len({addr for addr, _ in rows}) < len(rows):
        name = t.cta.name_of_shared(int(rows[0][0]) & OFFSET_MASK)
        t.cta.machine.report(
            "mbarrier.many-initialisers", "lint",
            f"{len(rows)} threads initialise mbarrier {name}; the ISA leaves open what mbarrier.init does to a valid mbarrier, today's hardware just sets it again.",
            "Initialise a barrier in one thread.",
            t, names=(name,), data={"threads": len(rows)},
        )  # fmt: skip
    for addr, n in rows:
        cta, offset = t.cta.cluster.resolve(addr, "mbarrier.init")
        cta.check_shared(offset, offset + 8, "mbarrier.init")
        if offset % 8:
            raise DeviceFault(
                "mbarrier.misaligned",
                "mbarrier.init at an address that is not a multiple of 8",
                "allocate the barrier with align=8",
                site=t.site,
            )
        if not 1 <= n <= MAX_COUNT:
            raise DeviceFault(
                "mbarrier.bad-count",
                f"mbarrier.init with an arrival count of {n}; it must be 1 to {MAX_COUNT}",
                "give the number of arrivals that complete a phase",
                site=t.site,
            )
        old = cta.mbarriers.get(offset)
        if old is not None and (old.pending != old.expected or old.tx):
            t.cta.machine.report(
                "mbarrier.reinit-in-use", "error",
                f"`{old.name}` is initialised again while a phase is under way",
                "initialise a barrier once, in one thread, before anybody uses it",
                t, names=(old.name,), sites=(old.init_site,),
            )  # fmt: skip
        bar = Mbarrier(cta, offset, int(n), int(n), t.site)
        if t.cta.cluster.hb is not None:
            first = t.cta.rank * t.cta.num_warps
            bar.hb = t.cta.cluster.hb.mbarrier_init(first + t.warps[0], cta.rank, offset, t.rd_site)
        cta.mbarriers[offset] = bar
        machine = t.cta.machine
        machine.progress += 1
        if machine.trace is not None:
            machine.trace.add(machine, "init", t.site, machine.trace.barrier(machine, bar), int(n))


@instruction("ptx.mbarrier_inval", counter="mbarrier.inval")
def mbarrier_inval(mods: Mods, t: Threads, address: Any) -> None:
    for (addr,) in t.rows(address):
        cta, offset = t.cta.cluster.resolve(addr, "mbarrier.inval")
        t.cta.cluster.barrier_at(addr, "mbarrier.inval")
        del cta.mbarriers[offset]
        if t.cta.cluster.hb is not None:
            t.cta.cluster.hb.mbarrier_inval(cta.rank, offset)


def _barrier(t: Threads, address: int) -> Mbarrier:
    """The mbarrier at an address, which must belong to a barrier that the statement names."""
    machine = t.cta.machine
    if machine.checker is not None and (t.site, address) not in machine.checked_barriers:
        machine.checked_barriers.add((t.site, address))
        offset = address & OFFSET_MASK
        machine.check_view(t, offset, offset + 8, "mbarrier operation")
    return t.cta.cluster.barrier_at(address, "mbarrier operation")


def _grouped(
    t: Threads, address: Any, *values: Any
) -> list[tuple[Mbarrier, tuple[Any, ...], int, list[int]]]:
    """(barrier, operand values, executing threads, warps) per distinct barrier and operands."""
    if t.lane is None:
        address, *values = (t.common(v) for v in (address, *values))  # type: ignore[assignment]
    if t.lane is not None or not any(hasattr(v, "ndim") and v.ndim for v in (address, *values)):
        bar = _barrier(t, int(address))
        return [(bar, tuple(values), t.active_count(), t.active_warps())]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    rows = t.rows(t.as_vector(t.tid), address, *values)
    for tid, addr, *vals in rows:
        entry = groups.setdefault((addr, *vals), [0, []])
        entry[0] += 1
        warp = tid // 32
        if warp not in entry[1]:
            entry[1].append(warp)
    return [(_barrier(t, int(key[0])), tuple(key[1:]), n, warps) for key, (n, warps) in groups.items()]


@instruction("ptx.mbarrier_arrive", counter="mbarrier.arrive")
def mbarrier_arrive(mods: Mods, t: Threads, address: Any, count: Any = 1) -> None:
    """Every active thread arrives ``count`` times."""
    for bar, (n,), threads, warps in _grouped(t, address, count):
        arrive(t, bar, int(n) * threads, 0, warps, release="relaxed" not in mods)


@instruction("ptx.mbarrier_arrive_nocount", counter="mbarrier.arrive")
def mbarrier_arrive_nocount(mods: Mods, t: Threads, address: Any) -> None:
    mbarrier_arrive(mods, t, address, 1)


@instruction("ptx.mbarrier_arrive_expect_tx", counter="mbarrier.arrive.expect_tx")
def mbarrier_arrive_expect_tx(mods: Mods, t: Threads, address: Any, tx: Any) -> None:
    """Expect ``tx`` more bytes in this phase and arrive once, in one step, per active thread."""
    for bar, (n,), threads, warps in _grouped(t, address, tx):
        arrive(t, bar, threads, int(n) * threads, warps)


@instruction("ptx.mbarrier_expect_tx", counter="mbarrier.expect_tx")
def mbarrier_expect_tx(mods: Mods, t: Threads, address: Any, tx: Any) -> None:
    for bar, (n,), threads, warps in _grouped(t, address, tx):
        machine = t.cta.machine
        if machine.trace is not None:
            machine.trace.add(
                machine, "arrive", t.site, machine.trace.barrier(machine, bar), 0, int(n) * threads
            )
        update(machine, bar, 0, int(n) * threads, t.site, warps[0])


@instruction("ptx.mbarrier_complete_tx", counter="mbarrier.complete_tx")
def mbarrier_complete_tx(mods: Mods, t: Threads, address: Any, tx: Any) -> None:
    for bar, (n,), threads, warps in _grouped(t, address, tx):
        update(t.cta.machine, bar, 0, -int(n) * threads, t.site, warps[0])


def _check_parity(t: Threads, bar: Mbarrier, parity: int) -> None:
    if parity not in (0, 1):
        raise DeviceFault(
            "mbarrier.bad-parity",
            f"waiting on `{bar.name}` with parity {parity}; a phase parity is 0 or 1",
            "keep the phase in one bit: phase ^= 1 after each use",
            site=t.site, name=bar.name,
        )  # fmt: skip


def _wait(t: Threads, address: Any, parity: Any) -> Generator[Wait, None, None]:
    for bar, (p,), _threads, warps in _grouped(t, address, parity):
        p = int(p)
        _check_parity(t, bar, p)
        machine = t.cta.machine
        if machine.trace is not None:
            machine.trace.add(machine, "wait", t.site, machine.trace.barrier(machine, bar), p)
        while not bar.test(p):
            yield MbarrierWait(bar, p, t.site, warps)
        bar.returned.update(dict.fromkeys(warps, (t.site, p)))
        hb = t.cta.cluster.hb
        if hb is not None:
            first = t.cta.rank * t.cta.num_warps
            hb.mbarrier_wait(tuple(first + w for w in warps), bar.hb, p, t.rd_site)


@instruction("cuda.mbarrier_wait", blocking=True, counter="mbarrier.wait")
def mbarrier_wait(mods: Mods, t: Threads, address: Any, parity: Any) -> Generator[Wait, None, None]:
    """Loop on try_wait.parity until the phase with this parity has completed."""
    yield from _wait(t, address, parity)


@instruction("cuda.mbarrier_wait_acquire_cluster", blocking=True, counter="mbarrier.wait")
def mbarrier_wait_acquire_cluster(
    mods: Mods, t: Threads, address: Any, parity: Any
) -> Generator[Wait, None, None]:
    yield from _wait(t, address, parity)


def owner(bar: Mbarrier) -> Cta:
    return bar.cta
