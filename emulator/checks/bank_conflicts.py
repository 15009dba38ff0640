"""Shared-memory bank conflicts and global-memory coalescing, per access and per statement.

SMEM has 32 banks of 4 bytes. A warp's access is served in groups of lanes that together move at most 128
bytes: the whole warp up to 4 bytes per lane, half a warp at 8, a quarter at 16. A group takes as many
wavefronts as the busiest bank has distinct 4-byte words; lanes that want the same word share it (CUDA
programming guide, "Shared memory"). ldmatrix and stmatrix move 16-byte rows whose addresses the lanes give, eight
rows of one matrix at a time, so they are served like a 16-byte access of the lanes that give addresses. Global memory moves 32-byte sectors; a warp's request touches a number of
them, and the fewest possible is its bytes divided by 32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from emulator.checks.findings import Problem

IntArray = npt.NDArray[np.integer]

BANKS = 32
BANK_BYTES = 4
SECTOR_BYTES = 32
_REMEMBERED = 4096  # address patterns kept by an AccessStatistics


@dataclass(frozen=True)
class Conflict:
    """How one warp's SMEM access is served.

    Attributes:
        wavefronts: passes that the access takes. ideal: passes without any conflict.
        degree: wavefronts of the worst group of lanes (1: no conflict).
        bank: the busiest bank of that group.
        lanes: the lanes of that group that want different words of that bank (empty without conflict).
    """

    wavefronts: int
    ideal: int
    degree: int
    bank: int
    lanes: tuple[int, ...]


def lanes_per_group(nbytes: int) -> int:
    """How many neighbouring lanes are served together: those that move 128 bytes, or the whole warp."""
    return 32 * BANK_BYTES // max(nbytes, BANK_BYTES)


def shared_conflict(addr: IntArray, nbytes: int, lanes: IntArray | None = None) -> Conflict:
    """Conflicts of one warp.

    Args:
        addr: byte address of every active lane, shape (n,), n <= 32, aligned to ``nbytes``.
        nbytes: bytes per lane: 1, 2, 4, 8 or 16.
        lanes: lane index of every entry, default 0..n-1; it decides which lanes are served together.
    """
    if nbytes not in (1, 2, 4, 8, 16):
        raise ValueError(f"a lane accesses 1, 2, 4, 8 or 16 bytes, not {nbytes}")
    addr = np.asarray(addr, np.int64).reshape(-1)
    lane = np.arange(len(addr)) if lanes is None else np.asarray(lanes).reshape(-1)
    if len(addr) > 32 or len(lane) != len(addr):
        raise ValueError(f"one warp has at most 32 lanes, got {len(addr)} addresses for {len(lane)} lanes")
    words_per_lane = max(1, nbytes // BANK_BYTES)
    word = (addr // BANK_BYTES)[:, None] + np.arange(words_per_lane)
    group = np.broadcast_to((lane // lanes_per_group(nbytes))[:, None], word.shape)
    total = ideal = 0
    degree, bank, colliding = 1, 0, ()
    for g in np.unique(group).tolist():
        mine = group == g
        words = np.unique(word[mine])
        per_bank = np.bincount(words % BANKS, minlength=BANKS)
        worst = int(per_bank.max())
        total += worst
        ideal += -(-len(words) // BANKS)
        if worst > degree:
            degree, bank = worst, int(per_bank.argmax())
            hit = ((word % BANKS == bank) & mine).any(axis=1)
            colliding = tuple(sorted(lane[hit].tolist()))
    return Conflict(total, ideal, degree, bank, colliding)


def global_sectors(addr: IntArray, nbytes: int) -> tuple[int, int]:
    """(32-byte sectors that one warp's request touches, fewest possible for its distinct bytes)."""
    addr = np.asarray(addr, np.int64).reshape(-1)
    first, last = addr // SECTOR_BYTES, (addr + nbytes - 1) // SECTOR_BYTES
    span = int((last - first).max()) + 1
    touched = first[:, None] + np.arange(span)
    sectors = len(np.unique(np.minimum(touched, last[:, None])))
    distinct_bytes = len(np.unique(addr)) * nbytes
    return sectors, -(-distinct_bytes // SECTOR_BYTES)


@dataclass(frozen=True)
class Pattern:
    """The addresses of one warp's SMEM access.

    Attributes:
        lanes: the lanes that give an address. addresses: their byte addresses in the CTA's SMEM, same order.
        nbytes: bytes per lane.
    """

    lanes: tuple[int, ...]
    addresses: tuple[int, ...]
    nbytes: int

    @property
    def groups(self) -> list[list[int]]:
        """Positions in ``lanes`` that are served together."""
        size = lanes_per_group(self.nbytes)
        return [
            [i for i, lane in enumerate(self.lanes) if lane // size == group]
            for group in sorted({lane // size for lane in self.lanes})
        ]


@dataclass
class Totals:
    """Sums over the accesses of one statement.

    Attributes:
        requests: warp-level accesses. passes: wavefronts (SMEM) or sectors (GMEM). ideal: the fewest
            possible.
        degree, bank, lanes: the worst bank conflict seen (SMEM only).
        pattern: the addresses of that access, or of the first one if none has a conflict (SMEM only).
    """

    requests: int = 0
    passes: int = 0
    ideal: int = 0
    degree: int = 1
    bank: int = 0
    lanes: tuple[int, ...] = ()
    pattern: Pattern | None = None


@dataclass
class AccessStatistics:
    """Conflicts and coalescing per statement.

    The answer depends only on where the lanes are relative to each other and to the period of the banks or
    sectors, so every pattern is analysed once.
    """

    shared: dict[int, Totals] = field(default_factory=dict)
    global_: dict[int, Totals] = field(default_factory=dict)
    _shared_patterns: dict[tuple[int, int, bytes, bytes], Conflict] = field(default_factory=dict)
    _global_patterns: dict[tuple[int, int, bytes], tuple[int, int]] = field(default_factory=dict)

    def add_shared(self, site: int, addr: IntArray, nbytes: int, lane: IntArray | None = None) -> Conflict:
        """Count one warp's SMEM access (``addr``: bytes; ``lane``: lane of each entry, default 0..n-1)."""
        first = int(addr[0])
        lanes = b"" if lane is None else np.ascontiguousarray(lane).tobytes()
        key = (nbytes, first % (BANKS * BANK_BYTES), (addr - first).tobytes(), lanes)
        conflict = self._shared_patterns.get(key)
        if conflict is None:
            if len(self._shared_patterns) >= _REMEMBERED:
                self._shared_patterns.clear()
            conflict = self._shared_patterns[key] = shared_conflict(addr, nbytes, lane)
        totals = self.shared.setdefault(site, Totals())
        totals.requests += 1
        totals.passes += conflict.wavefronts
        totals.ideal += conflict.ideal
        if totals.pattern is None or conflict.degree > totals.degree:
            totals.degree, totals.bank, totals.lanes = conflict.degree, conflict.bank, conflict.lanes
            who = range(len(addr)) if lane is None else lane.tolist()
            totals.pattern = Pattern(tuple(who), tuple(addr.tolist()), nbytes)
        return conflict

    def add_global(self, site: int, addr: IntArray, nbytes: int) -> int:
        """Count one warp's global access; its sectors."""
        first = int(addr[0])
        key = (nbytes, first % SECTOR_BYTES, (addr - first).tobytes())
        found = self._global_patterns.get(key)
        if found is None:
            if len(self._global_patterns) >= _REMEMBERED:
                self._global_patterns.clear()
            found = self._global_patterns[key] = global_sectors(addr, nbytes)
        totals = self.global_.setdefault(site, Totals())
        totals.requests += 1
        totals.passes += found[0]
        totals.ideal += found[1]
        return found[0]

    def problems(self, at_least: float = 2.0) -> list[tuple[int, Problem]]:
        """(site, lint) of every statement that takes ``at_least`` times the fewest possible passes."""
        out: list[tuple[int, Problem]] = []
        tables: list[tuple[dict[int, Totals], Callable[[Totals], Problem]]] = [
            (self.shared, _shared_problem),
            (self.global_, _global_problem),
        ]
        for table, describe in tables:
            for site, totals in sorted(table.items()):
                if totals.passes >= at_least * totals.ideal:
                    out.append((site, describe(totals)))
        return out


def _shared_problem(totals: Totals) -> Problem:
    lanes = ", ".join(map(str, totals.lanes[:6])) + (", ..." if len(totals.lanes) > 6 else "")
    return Problem(
        "smem.bank-conflict",
        "lint",
        f"{totals.degree}-way bank conflict: lanes {lanes} want different words of bank {totals.bank}; "
        f"{totals.requests} warp accesses take {totals.passes} wavefronts instead of {totals.ideal}.",
        "Swizzle the layout or pad its rows, so that lanes of one access fall into different banks.",
        {
            "degree": totals.degree,
            "bank": totals.bank,
            "lanes": list(totals.lanes),
            "requests": totals.requests,
            "wavefronts": totals.passes,
            "ideal": totals.ideal,
        },
    )


def _global_problem(totals: Totals) -> Problem:
    per_request = totals.passes / totals.requests
    return Problem(
        "gmem.uncoalesced",
        "lint",
        f"Each warp access touches {per_request:.3g} sectors of 32 bytes, "
        f"{totals.ideal / totals.requests:.3g} "
        "would do for the same bytes.",
        "Let neighbouring lanes access neighbouring addresses.",
        {"requests": totals.requests, "sectors": totals.passes, "ideal": totals.ideal},
    )
