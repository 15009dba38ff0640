"""Who holds up whom in a hang: let one wait return as if it were satisfied, go on, and see which others end.

A launch that hangs is over, so its state may be used up: the machine goes on with its log, its counters and
its race detector put aside, and global memory is restored afterwards.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from emulator.checks.findings import FindingLog
from emulator.errors import EmulatorError

if TYPE_CHECKING:
    from emulator.scheduler import Machine, Strand

_log = logging.getLogger(__name__)

_STEPS = 4000  # of strands, in one rehearsal
_ROUNDS = 64  # waits in a row that one role is let through
# What watches a launch, and has no business in a rehearsal.
_PUT_ASIDE = ("log", "counters", "printed", "checker", "tile_record", "trace", "statistics")
_WAITS = 32  # that are released (two clusters with two consumers have 20); hangs of more are reported without


@dataclass(eq=False)
class Stuck:
    """Warps that wait at one statement for one thing.

    Attributes:
        strands: they. wait: what the first of them waits for.
        holders: waits that must return first, by what a rehearsal or the barrier itself shows.
        freed_by: those of them whose release ended this wait in a rehearsal.
        holds_itself: what it waits for comes when it goes on.
        signals: statements that arrived at its mbarrier in a rehearsal.
        overtaken: the phase it waits for is over, and so is the next one.
        astray: the barrier at the same place in another CTA got what this one misses.
    """

    strands: list[Strand]
    wait: Any
    holders: list[Stuck] = field(default_factory=list)
    freed_by: list[Stuck] = field(default_factory=list)
    holds_itself: bool = False
    signals: list[int] = field(default_factory=list)
    released: bool = False
    overtaken: bool = False
    astray: bool = False
    _generation: int = 0

    def __post_init__(self) -> None:
        self._generation = self._now()

    @property
    def kind(self) -> str:
        return "" if self.wait is None else str(self.wait.kind)

    def _now(self) -> int:
        """Completed phases of what it waits for."""
        if self.kind == "barrier.cluster.wait":
            return int(self.wait.cluster.barrier_generation)
        barrier = getattr(self.wait, "barrier", None)
        return 0 if barrier is None else int(barrier.generation)

    def over(self) -> bool:
        """Whether what it waits for has happened."""
        return self._now() > self._generation

    @property
    def follows(self) -> bool:
        """It only waits for somebody else who waits, and who does not wait for it in turn.

        When warps meet at a barrier that others do not reach because they wait for what comes after it, the
        barrier stands in the wrong place. A named barrier where a role hands something on is part of the circle.
        """
        if self.overtaken:
            return False
        if self.freed_by and self not in _closure(self, "freed_by"):
            return True
        if self.kind == "mbarrier.wait" and any(
            holder.kind == "bar.sync" and (not holder.wait.barrier.index or holder in self.freed_by)
            for holder in self.holders
        ):
            return True
        return bool(self.holders) and self not in all_holders(self)


def all_holders(stuck: Stuck) -> list[Stuck]:
    """Those that hold it up, directly or through others: first those that a rehearsal showed, nearest first."""
    return list(dict.fromkeys(_closure(stuck, "freed_by") + _closure(stuck, "holders")))


def _closure(stuck: Stuck, edges: str) -> list[Stuck]:
    found: list[Stuck] = []
    todo = [stuck]
    while todo:
        for holder in getattr(todo.pop(0), edges):
            if holder not in found:
                found.append(holder)
                todo.append(holder)
    return found


def rehearse(machine: Machine, waits: list[Stuck]) -> None:
    """Fill in ``holders``, ``holds_itself`` and ``signals`` of every wait."""
    for stuck in waits:
        missing = _missing(machine, stuck)
        stuck.holders += [w for w in waits if w is not stuck and any(s in missing for s in w.strands)]
    if len(waits) > _WAITS:
        return
    with _aside(machine):
        for stuck in sorted(waits, key=_order):
            _release(machine, _together(stuck, waits), waits)


def _order(stuck: Stuck) -> tuple[int, int]:
    """Barriers of warps first, whose holders are known; then what is likely a cause: a wait that was overtaken, or
    whose signals went to another CTA, or whose phase has seen a part of its arrivals, or that nobody ever signalled; then what few warps wait for.

    A named barrier at which roles hand something on comes behind a phase that has begun: it may only wait for a role that
    waits for that phase.
    """
    if stuck.kind == "bar.sync":
        return 3 if _hands_on(stuck) else 0, len(stuck.strands)
    barrier = getattr(stuck.wait, "barrier", None) if stuck.kind == "mbarrier.wait" else None
    begun = (
        barrier is not None
        and barrier.pending != barrier.expected
        and all(_hands_on(holder) for holder in stuck.holders)
    )
    unused = barrier is not None and barrier.generation == 0 and barrier.pending == barrier.expected
    likely = 1 if stuck.overtaken or stuck.astray else 2 if begun else 4 if unused else 5
    return likely, len(stuck.strands)


def _hands_on(stuck: Stuck) -> bool:
    """It waits at a named barrier for warps of which some wait at an mbarrier."""
    return (
        stuck.kind == "bar.sync"
        and stuck.wait.barrier.index != 0
        and any(holder.kind == "mbarrier.wait" for holder in stuck.holders)
    )


def _missing(machine: Machine, stuck: Stuck) -> set[Strand]:
    """Strands that have not arrived at a barrier of warps; of an mbarrier's phase, those who arrived in the one before."""
    cta = stuck.strands[0].cta
    if stuck.kind == "bar.sync":
        barrier = stuck.wait.barrier
        here = set(barrier.warps)
        used = set().union(*barrier.users.values()) if barrier.generation and barrier.index else None
        return {
            s
            for s in machine.live
            if s.cta is cta
            and not set(s.threads.warps) & here
            and (used is None or set(s.threads.warps) & used)
        }
    if stuck.kind == "barrier.cluster.wait":
        cluster = stuck.wait.cluster
        target = stuck.wait.generation + 1
        arrived = {key for key, generation in cluster.barrier_arrived.items() if generation >= target}
        return {
            s
            for s in machine.live
            if s.cta.cluster is cluster and not {(s.cta.rank, w) for w in s.threads.warps} & arrived
        }
    if stuck.kind == "mbarrier.wait" and 0 < stuck.wait.barrier.pending < stuck.wait.barrier.expected:
        barrier = stuck.wait.barrier
        before, now = (
            {a.warp for a in history if a.count > 0} for history in (barrier.last_history, barrier.history)
        )
        return {
            s
            for s in machine.live
            if s.cta.cluster is cta.cluster
            and set(s.threads.warps) & (before - now)
            and getattr(s.wait, "kind", "") != "barrier.cluster.wait"
        }
    return set()


@contextlib.contextmanager
def _aside(machine: Machine) -> Iterator[None]:
    """Nothing of what happens inside is reported, counted or kept in global memory."""
    kept = {name: getattr(machine, name) for name in _PUT_ASIDE}
    memory = [segment.raw.copy() for segment in machine.memory.segments]
    for name in _PUT_ASIDE:
        setattr(machine, name, None)
    machine.log, machine.counters, machine.printed = FindingLog(), {}, []
    for cluster in machine.clusters:
        cluster.hb = None
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(machine, name, value)
        for segment, raw in zip(machine.memory.segments, memory, strict=True):
            segment.raw[...] = raw


def _together(stuck: Stuck, waits: list[Stuck]) -> list[Stuck]:
    """It and those that stand where it stands: at its statement in its CTA, for mbarriers that are as far as its own.

    They are one role in several warps. When what comes next needs all of them, such as a stage that two consumers
    read, one alone would not get far.
    """
    if stuck.kind != "mbarrier.wait":
        return [stuck]
    mine = stuck.wait.barrier
    others = [
        w
        for w in waits
        if w is not stuck
        and w.kind == stuck.kind
        and w.wait.site == stuck.wait.site
        and w.strands[0].cta is stuck.strands[0].cta
        and w.wait.parity == stuck.wait.parity
        and (w.wait.barrier.generation, w.wait.barrier.pending) == (mine.generation, mine.pending)
        and not w.over()
        and not w.released
    ]
    return [stuck, *others]


def _release(machine: Machine, group: list[Stuck], waits: list[Stuck]) -> None:
    """Let the waits of a group return, run on, and note whose wait is over because of it."""
    stuck = group[0]
    if stuck.over() or stuck.released or stuck.kind not in ("bar.sync", "mbarrier.wait"):
        return
    before = {w for w in waits if w.over()}
    barrier = stuck.wait.barrier
    # A fault of the kernel is as good an end of the rehearsal as any. Anything else is a mistake of the emulator: the report
    # goes on without what this rehearsal would have shown.
    try:
        if stuck.kind == "bar.sync":
            here = [w for w in waits if getattr(w.wait, "barrier", None) is barrier]
            before.update(here)
            group = here
            for other in here:
                other.released = True
            met = [strand for other in here for strand in other.strands]
            for _ in range(_ROUNDS):
                barrier.generation += 1
                barrier.arrived, barrier.expected, barrier.warps = 0, None, []
                _run_on(machine)
                if not any(getattr(s.wait, "barrier", None) is barrier for s in met if not s.done):
                    break
        else:
            for member in group:
                member.released = True
            for _ in range(_ROUNDS):
                if not any([_step_through(machine, member) for member in group]):
                    break
                _run_on(machine)
    except EmulatorError:
        pass
    except Exception as error:
        _log.warning("the rehearsal of a hang failed: %r", error, exc_info=error)
    for other in waits:
        if other.over() and other not in before:
            other.holds_itself |= other in group
            credited = group
            if other.kind == "mbarrier.wait":
                history = other.wait.barrier.history + other.wait.barrier.last_history
                other.signals = list(dict.fromkeys(a.site for a in history if a.site >= 0))
                signalled = {a.warp for a in history}
                came = [m for m in group if any(signalled & set(s.threads.warps) for s in m.strands)]
                credited = came or group
            credited = [m for m in credited if m is not other]
            other.freed_by += [m for m in credited if m not in other.freed_by]
            other.holders += [m for m in credited if m not in other.holders]


def _step_through(machine: Machine, stuck: Stuck) -> bool:
    """Let its warps pass the mbarrier wait that holds them now (the next round's, too); False: none does."""
    moved = False
    for strand in stuck.strands:
        if strand.done or strand.wait is None or strand.wait.kind != "mbarrier.wait":
            continue
        barrier = strand.wait.barrier  # type: ignore[attr-defined]
        barrier.test = lambda parity: True
        try:
            machine.step(strand)
        finally:
            del barrier.test
        moved = True
    return moved


def _run_on(machine: Machine) -> None:
    limit = machine.steps + _STEPS
    while machine.steps < limit and machine.live:
        before = machine.steps
        if not machine._pass() and not machine.complete_one():
            return
        if machine.steps == before and not machine.order:
            return
