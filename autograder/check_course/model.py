"""What is examined and what was found, as plain data that goes to other processes and into files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with the course. `exercise` is empty where it belongs to none, `kind` names what was looked at."""

    exercise: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.exercise or 'course'}: {self.kind}: {self.text}"


@dataclass(frozen=True)
class Job:
    """One thing to examine that takes seconds. `name` is a mutant's, empty for other kinds."""

    kind: str
    root: str
    exercise: str
    name: str = ""
    key: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.exercise}, {self.kind}{' ' if self.name else ''}{self.name}"


@dataclass(frozen=True)
class Found:
    """The result of a job. `owed` says why there is none: the grader or the machine failed, and nothing is known."""

    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    owed: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Found:
        return cls(tuple(data["faults"]), tuple(data["notes"]), float(data["seconds"]), str(data["owed"]))


@dataclass
class Verdict:
    """What a run of `check-course` found. `looked_at` counts jobs by kind, `graded` those that were done now."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    owed: list[str] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)
    fixed: list[str] = field(default_factory=list)
    now: int = 0
    kept: int = 0
