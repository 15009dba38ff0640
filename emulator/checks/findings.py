"""What a check reports: findings, their source locations, and the log that collects them.

A finding is a value, never an exception: a kernel that hangs or races still produces a run. This module knows
nothing of TVM, of the scheduler or of grades.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Strength = Literal["error", "race", "lint"]

_RANK: dict[str, int] = {"error": 0, "race": 1, "lint": 2}


@dataclass(frozen=True, order=True)
class SourceLocation:
    """A line of the learner's source.

    Attributes:
        file: file name as Python knows it (a path, or the pseudo file of a notebook cell).
        line: 1-based line number.
        function: the function or helper the line belongs to, "" when unknown.
    """

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the three fields."""
        return {"file": self.file, "line": self.line, "function": self.function}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a kernel.

    Attributes:
        code: stable dotted identifier, e.g. ``race.smem.write-read``; listed in :mod:`emulator.checks`.
        strength: ``error`` (proven wrong), ``race`` (a legal execution gives another result) or ``lint``
            (against the letter of the ISA, works on today's hardware).
        message: what happened, one or two sentences.
        fix: one sentence on what would fix it, naming the concept.
        locations: the lines involved; the first one is the access at which the problem was noticed.
        names: buffers and barriers involved, as the learner wrote them.
        cta: linear index of the CTA, None when it does not apply.
        warps: warps of that CTA that take part.
        lanes: lanes that take part, empty when all do.
        data: further facts as JSON values.
    """

    code: str
    strength: Strength
    message: str
    fix: str = ""
    locations: tuple[SourceLocation, ...] = ()
    names: tuple[str, ...] = ()
    cta: int | None = None
    warps: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, tuple[SourceLocation, ...], tuple[str, ...]]:
        """Two findings with the same key are the same mistake, met again."""
        return (self.code, self.locations, self.names)

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Strongest first, then by place and code: a total order that does not depend on the schedule."""
        return (_RANK[self.strength], self.locations, self.code, self.names, self.message)

    def __lt__(self, other: Finding) -> bool:
        return self.sort_key < other.sort_key

    def __hash__(self) -> int:
        return hash((self.key, self.strength, self.message))

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "code": self.code,
            "strength": self.strength,
            "message": self.message,
            "fix": self.fix,
            "locations": [location.to_json() for location in self.locations],
            "names": list(self.names),
            "cta": self.cta,
            "warps": list(self.warps),
            "lanes": list(self.lanes),
            "data": dict(self.data),
        }

    def __str__(self) -> str:
        where = f"{self.locations[0]}: " if self.locations else ""
        return f"{where}{self.strength} {self.code}: {self.message}" + (f" {self.fix}" if self.fix else "")


@dataclass(frozen=True)
class Problem:
    """What a rule says is wrong, before it is known where. The rule functions of this package return it."""

    code: str
    strength: Strength
    message: str
    fix: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def at(
        self,
        locations: Iterable[SourceLocation | None] = (),
        names: Iterable[str] = (),
        cta: int | None = None,
        warps: Iterable[int] = (),
        lanes: Iterable[int] = (),
    ) -> Finding:
        """The finding for a place; unknown locations and repeated ones are left out."""
        known = tuple(dict.fromkeys(location for location in locations if location is not None))
        return Finding(
            self.code,
            self.strength,
            self.message,
            self.fix,
            known,
            tuple(names),
            cta,
            tuple(warps),
            tuple(lanes),
            self.data,
        )


class FindingLog:
    """Collects findings: the first of each key is kept, repeats are counted, and the number kept is capped.

    The cap is per strength, so that a flood of lints never hides an error.
    """

    def __init__(self, limit: int = 200) -> None:
        """``limit``: distinct findings kept of each strength."""
        self.limit = limit
        self.dropped = 0
        self._kept: dict[tuple[Any, ...], Finding] = {}
        self._counts: dict[tuple[Any, ...], int] = {}
        self._per_strength = {"error": 0, "race": 0, "lint": 0}

    def add(self, finding: Finding) -> bool:
        """Record a finding. True when it is the first of its key and was kept."""
        key = finding.key
        if key in self._kept:
            self._counts[key] += 1
            if _RANK[finding.strength] < _RANK[self._kept[key].strength]:
                self._per_strength[self._kept[key].strength] -= 1
                self._per_strength[finding.strength] += 1
                self._kept[key] = finding
            return False
        if self._per_strength[finding.strength] >= self.limit:
            self.dropped += 1
            return False
        self._per_strength[finding.strength] += 1
        self._kept[key] = finding
        self._counts[key] = 1
        return True

    def extend(self, findings: Iterable[Finding]) -> None:
        """Record several findings."""
        for finding in findings:
            self.add(finding)

    def count(self, finding: Finding) -> int:
        """How often a finding of this key was reported."""
        return self._counts.get(finding.key, 0)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The distinct findings, strongest first."""
        return tuple(sorted(self._kept.values()))

    @property
    def ok(self) -> bool:
        """No error and no race."""
        return not (self._per_strength["error"] or self._per_strength["race"])

    def __len__(self) -> int:
        return len(self._kept)
