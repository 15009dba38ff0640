"""What overlaps with what in a launch under schedule ``late``: the observables of :mod:`emulator.counters`.

An operation runs from its issue to its completion. ``late`` lets it complete only when no strand can run, oldest first.
So what runs together here may run together on the GPU, and where the program waits for one operation before it issues
another, the two never do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emulator.scheduler import Machine

MANY_LOADS = 2  # one load of A and one of B


class RunningMma:
    """MMA instructions that were issued one behind the other and complete together: their loads and their number."""

    __slots__ = ("instructions", "most_loads")

    def __init__(self, loads: int) -> None:
        self.instructions = 1
        self.most_loads = loads


class LoadsBesideMma:
    """TMA loads and tcgen05.mma of one cluster that are in flight at the same moment.

    ``tma.loads_in_flight_at_mma``, ``tcgen05.mma.beside_loads`` and ``tcgen05.mma.busiest`` of the launch are kept in the
    machine's counters.
    """

    __slots__ = ("instructions", "loads", "machine", "mmas")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.loads = self.instructions = 0
        self.mmas: list[RunningMma] = []

    def load_issued(self) -> None:
        self.loads += 1
        for mma in self.mmas:
            mma.most_loads = max(mma.most_loads, self.loads)

    def load_completed(self) -> None:
        self.loads -= 1

    def mma_issued(self) -> RunningMma:
        mma = RunningMma(self.loads)
        self.mmas.append(mma)
        return mma

    def mma_joined(self, mma: RunningMma) -> None:
        """One more instruction of the same queue entry."""
        mma.instructions += 1
        mma.most_loads = max(mma.most_loads, self.loads)

    def mma_completed(self, mma: RunningMma) -> None:
        self.mmas.remove(mma)
        self.instructions += mma.instructions
        counters = self.machine.counters
        counters["tcgen05.mma.busiest"] = max(counters.get("tcgen05.mma.busiest", 0), self.instructions)
        most = "tma.loads_in_flight_at_mma"
        counters[most] = max(counters.get(most, 0), mma.most_loads)
        if mma.most_loads >= MANY_LOADS:
            self.machine.count("tcgen05.mma.beside_loads", mma.instructions)
