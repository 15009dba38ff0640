"""The mbarrier object (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier").

A phase completes when no arrival and no transaction byte is pending; the parity then flips and the expected arrivals
are re-armed.  ``generation`` counts completed phases, which the hardware does not expose but a diagnosis needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emulator.machine.cta import Cta

MAX_COUNT = (1 << 20) - 1


@dataclass
class Arrival:
    """One arrival or byte count that the current phase has seen, for the deadlock autopsy."""

    site: int
    warp: int
    count: int
    tx: int


@dataclass(eq=False)
class Mbarrier:
    """State of one mbarrier.

    Attributes:
        expected: arrivals per phase; pending: arrivals still missing; tx: transaction bytes still missing (may be
            negative while the expect_tx has not been executed); generation: completed phases; parity = generation & 1.
        copies: statement and bytes of each copy that was issued to signal this barrier and has not arrived.
        returned: statement and parity of the last wait of each warp that has returned.
    """

    cta: Cta
    offset: int
    expected: int
    pending: int
    init_site: int
    tx: int = 0
    generation: int = 0
    history: list[Arrival] = field(default_factory=list)
    last_history: list[Arrival] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    hb: Any = None
    returned: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def parity(self) -> int:
        return self.generation & 1

    @property
    def name(self) -> str:
        return self.cta.name_of_shared(self.offset)

    def test(self, parity: int) -> bool:
        """``try_wait.parity``: has the phase with this parity completed?"""
        return self.parity != parity

    def update(self, arrivals: int = 0, tx: int = 0, *, site: int = -1, warp: int = -1) -> bool:
        """Apply arrivals and a signed byte count in one atomic step; True when the phase completes.

        Raises:
            OverflowError: more arrivals than the phase expects.
        """
        if arrivals > self.pending:
            raise OverflowError
        self.pending -= arrivals
        self.tx += tx
        self.history.append(Arrival(site, warp, arrivals, tx))
        if self.pending == 0 and self.tx == 0:
            self.generation += 1
            self.pending = self.expected
            self.last_history, self.history = self.history, []
            return True
        return False

    def describe(self) -> dict[str, Any]:
        """State in words and numbers for reports."""
        return {
            "name": self.name,
            "generation": self.generation,
            "parity": self.parity,
            "arrivals_expected": self.expected,
            "arrivals_seen": self.expected - self.pending,
            "bytes_outstanding": self.tx,
        }
