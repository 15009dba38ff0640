"""What a check reports: findings, their source locations, and the log that collects them.

A finding is a value, never an exception: a kernel that hangs or races still produces a run. This module knows
nothing of TVM, of the scheduler or of grades.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Strength = Literal["error", "race", "lint"]

_RANK: dict[str, int] = {"error": 0, "race": 1, "lint": 2}
_NAMES = 8  # names that a finding collects


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
    def key(self) -> tuple[str, tuple[SourceLocation, ...], str]:
        """Two findings with the same key are the same mistake, met again, perhaps at another stage of a ring."""
        return (self.code, self.locations, base_name(self.names[0]) if self.names else "")

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Strongest first, causes before what follows from them, then by place and code.

        A total order that does not depend on the schedule.
        """
        follows = bool(self.data.get("consequence"))
        return (_RANK[self.strength], follows, self.locations, self.code, self.names, self.message)

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


def base_name(name: str) -> str:
    """``full`` for ``full[1]``."""
    return name.split("[", 1)[0]


def words(numbers: Iterable[int], one: str, many: str) -> str:
    """``warp 3``, ``warps 0 and 2``, ``warps 0 to 3`` and the like."""
    n = sorted(set(numbers))
    if len(n) == 1:
        return f"{one} {n[0]}"
    if len(n) > 2 and n[-1] - n[0] == len(n) - 1:
        return f"{many} {n[0]} to {n[-1]}"
    return f"{many} {', '.join(map(str, n[:-1]))} and {n[-1]}"


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
    """Collects findings: the first of each key is kept, repeats are counted and merged into it.

    The number kept is capped per strength, so that a flood of lints never hides an error.
    """

    def __init__(self, limit: int = 200) -> None:
        """``limit``: distinct findings kept of each strength."""
        self.limit = limit
        self.dropped = 0
        self._kept: dict[tuple[Any, ...], Finding] = {}
        self._counts: dict[tuple[Any, ...], int] = {}
        self._per_strength = {"error": 0, "race": 0, "lint": 0}

    def add(self, finding: Finding, covers: bool = False) -> bool:
        """Record a finding. True when it is the first of its key and was kept.

        A repeat adds its warps, lanes and names to the finding that is kept; its own words win when it is
        stronger, or when it ``covers`` what was kept.
        """
        key = finding.key
        kept = self._kept.get(key)
        if kept is not None:
            self._counts[key] += 1
            if _RANK[finding.strength] < _RANK[kept.strength]:
                self._per_strength[kept.strength] -= 1
                self._per_strength[finding.strength] += 1
                self._kept[key] = _merged(finding, kept)
            elif _RANK[finding.strength] == _RANK[kept.strength]:
                self._kept[key] = _merged(finding, kept) if covers else _merged(kept, finding)
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
        """The distinct findings, strongest first, without those that only echo another one."""
        return tuple(sorted(_without_echoes(list(self._kept.values()))))

    @property
    def ok(self) -> bool:
        """No error and no race."""
        return not (self._per_strength["error"] or self._per_strength["race"])

    def __len__(self) -> int:
        return len(self._kept)


def _merged(kept: Finding, other: Finding) -> Finding:
    """``kept`` with the warps, lanes and names of ``other``; of another CTA only the names."""
    names = tuple(dict.fromkeys((*kept.names, *other.names)))
    if len(names) > _NAMES:
        names = kept.names
    warps, lanes = kept.warps, kept.lanes
    if kept.cta == other.cta:
        warps = (
            tuple(sorted({*kept.warps, *other.warps})) if set(other.warps) - set(kept.warps) else kept.warps
        )
        lanes = tuple(sorted({*kept.lanes, *other.lanes})) if kept.lanes and other.lanes else ()
    if (names, warps, lanes) == (kept.names, kept.warps, kept.lanes):
        return kept
    return replace(kept, names=names, warps=warps, lanes=lanes)


def _without_echoes(findings: list[Finding]) -> list[Finding]:
    """Leave out what only shows the other side of a read that comes too early.

    When nothing orders the read of a line after the write of another, the write may also come second ("it
    overwrites what is being read") and the read may find nothing at all ("nothing has written it").
    """
    early = set()
    for f in findings:
        if f.code.endswith(".write-read") and f.strength == "race" and f.names:
            space = f.code.split(".")[1]
            early.add((f"race.{space}.read-write", f.locations[::-1], base_name(f.names[0])))
            early.add((f"uninitialised.{space}", f.locations[:1], base_name(f.names[0])))

    def echo(f: Finding) -> bool:
        places = f.locations[:1] if f.code.startswith("uninitialised.") else f.locations
        return bool(f.names) and (f.code, places, base_name(f.names[0])) in early

    return [f for f in findings if not echo(f)]
