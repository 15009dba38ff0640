"""Rules of mbarriers and named barriers, as functions of their state.

Each function looks at a state and at what an instruction is about to do, and returns a :class:`Problem` or
None. What needs the order of events (init not visible, a parity that aliases) is in
:mod:`emulator.checks.happens_before`. Rules: PTX ISA, "mbarrier" (count 1 to 2**20 - 1, tx-count within
+-(2**20 - 1), parity 0 or 1) and "bar, barrier" (16 barriers, counts in whole warps).
"""

from __future__ import annotations

from typing import Protocol

from emulator.checks.findings import Problem

MAX_COUNT = (1 << 20) - 1
NAMED_BARRIERS = 16


class MbarrierState(Protocol):
    """What the rules need to know of an mbarrier.

    Attributes:
        expected: arrivals per phase. pending: arrivals that the current phase still misses.
        tx: transaction bytes it still misses (negative: delivered before they were announced).
        generation: completed phases.
    """

    @property
    def name(self) -> str: ...

    expected: int
    pending: int
    tx: int
    generation: int


def mbarrier_init(offset: int, count: int, existing: MbarrierState | None = None) -> Problem | None:
    """mbarrier.init with ``count`` arrivals at byte ``offset``, where ``existing`` may already live."""
    if offset % 8:
        return Problem(
            "mbarrier.misaligned",
            "error",
            f"mbarrier.init at shared address {offset}, which is not a multiple of 8.",
            "Allocate the barrier with 8-byte alignment.",
        )
    if not 1 <= count <= MAX_COUNT:
        return Problem(
            "mbarrier.bad-count",
            "error",
            f"mbarrier.init with an arrival count of {count}; it must be 1 to {MAX_COUNT}.",
            "Give the number of arrivals that complete one phase.",
        )
    if existing is not None and (existing.pending != existing.expected or existing.tx):
        return Problem(
            "mbarrier.reinit-in-use",
            "error",
            f"{existing.name} is initialised again while a phase is under way: "
            f"{existing.expected - existing.pending} of {existing.expected} arrivals and "
            f"{_bytes(existing.tx)}.",
            "Initialise a barrier once, in one thread, before anybody uses it.",
        )
    return None


def mbarrier_arrive(bar: MbarrierState, count: int) -> Problem | None:
    """``count`` more arrivals in the current phase."""
    if count <= bar.pending:
        return None
    seen = bar.expected - bar.pending
    return Problem(
        "mbarrier.too-many-arrivals",
        "error",
        f"{seen + count} arrivals at {bar.name} in one phase; mbarrier.init announced {bar.expected}.",
        "Count who arrives: every executing thread of mbarrier.arrive is one arrival, a tcgen05.commit "
        "is one. "
        "Make the init count equal to it, and wait for a phase before arriving for the next.",
        {"expected": bar.expected, "seen": seen, "count": count},
    )


def mbarrier_bytes(bar: MbarrierState) -> Problem | None:
    """After a change of the transaction count: is it in range, and can the phase still complete?"""
    if abs(bar.tx) > MAX_COUNT:
        return Problem(
            "mbarrier.tx-overflow",
            "error",
            f"The transaction count of {bar.name} becomes {bar.tx} bytes; the hardware counts to {MAX_COUNT}.",
            "Split the copies of one phase over more barriers or more phases.",
            {"tx": bar.tx},
        )
    if bar.pending == 0 and bar.tx < 0:
        return Problem(
            "mbarrier.over-delivery",
            "error",
            f"Every arrival of the phase has come and {-bar.tx} bytes more were delivered to {bar.name} than "
            "expect_tx announced: the phase cannot complete.",
            "Announce the bytes of all copies of this stage: box elements times element size, all operands, "
            "full boxes also where they reach out of bounds.",
            {"tx": bar.tx},
        )
    return None


def mbarrier_completion(bar: MbarrierState, in_flight: int) -> Problem | None:
    """A phase has completed; ``in_flight`` bytes of copies that signal the barrier have not arrived."""
    if not in_flight:
        return None
    return Problem(
        "mbarrier.early-completion",
        "error",
        f"Phase {bar.generation - 1} of {bar.name} completes while {in_flight} bytes of its copies are still on "
        "their way: expect_tx announced fewer bytes than the copies deliver.",
        "Announce the bytes of all copies of this stage, in the phase in which they are issued.",
        {"in_flight": in_flight},
    )


def mbarrier_parity(bar: MbarrierState, parity: int) -> Problem | None:
    """A wait with this parity operand."""
    if parity in (0, 1):
        return None
    return Problem(
        "mbarrier.bad-parity",
        "error",
        f"A wait on {bar.name} with parity {parity}; a phase parity is 0 or 1.",
        "Keep the phase in one bit: phase ^= 1 after each round.",
        {"parity": parity},
    )


def named_barrier(
    barrier_id: int, threads: int | None, expected: int | None, cta_threads: int
) -> Problem | None:
    """bar.sync or bar.arrive on ``barrier_id``.

    Args:
        threads: the thread count operand; None: all threads of the CTA.
        expected: the count that others gave in the same round; None: this is the first. Pass ``cta_threads``
            for users that gave no count.
        cta_threads: threads of the CTA.
    """
    if not 0 <= barrier_id < NAMED_BARRIERS:
        return Problem(
            "barrier.bad-id",
            "error",
            f"Named barrier {barrier_id} does not exist: a CTA has barriers 0 to {NAMED_BARRIERS - 1}.",
            "Use an id from 0 to 15.",
        )
    if threads is not None and (threads <= 0 or threads % 32):
        return Problem(
            "barrier.bad-count",
            "error",
            f"Named barrier {barrier_id} is used with {threads} threads; the count is a positive "
            "multiple of 32.",
            "Count whole warps.",
        )
    count = cta_threads if threads is None else threads
    if count > cta_threads:
        return Problem(
            "barrier.count-too-large",
            "error",
            f"Named barrier {barrier_id} waits for {count} threads; the CTA has {cta_threads}.",
            "Give the number of threads that meet at this barrier.",
        )
    if expected is not None and expected != count:
        return Problem(
            "barrier.mixed-counts",
            "error",
            f"Named barrier {barrier_id} is used with {count} threads here and with {expected} "
            "elsewhere in the "
            "same round.",
            "All warps that meet at one barrier give the same thread count; other groups use another id.",
        )
    return None


def _bytes(tx: int) -> str:
    return (
        f"{abs(tx)} byte{'s' if abs(tx) != 1 else ''} {'outstanding' if tx >= 0 else 'delivered too early'}"
    )
