"""Rules of mbarriers, as functions of their state.

Each function looks at a state and at what an instruction is about to do, and returns a :class:`Problem` or
None. What needs the order of events (init not visible, a parity that aliases) is in
:mod:`emulator.checks.happens_before`. Rules: PTX ISA, "mbarrier" (tx-count within +-(2**20 - 1)).
"""

from __future__ import annotations

from typing import Protocol

from emulator.checks.findings import Problem

MAX_COUNT = (1 << 20) - 1


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


def _bytes(tx: int) -> str:
    return (
        f"{abs(tx)} byte{'s' if abs(tx) != 1 else ''} {'outstanding' if tx >= 0 else 'delivered too early'}"
    )
