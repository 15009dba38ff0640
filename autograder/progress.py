"""What a learner has reached, in .autograde/progress.json of the course folder.

Losing this file loses nothing that matters, so every problem with it is silent except one: not being able to
    write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autograder.files import write_atomically

FOLDER = ".autograde"
_FILE = "progress.json"
_MAX_BYTES = 1 << 20


@dataclass
class Reached:
    """Best and latest points of one exercise; what lost points in the latest grade, and at which TODOs of the kernel."""

    best: float = 0.0
    latest: float = 0.0
    max_points: float = 0.0
    full_marks: bool = False
    failing: list[str] = field(default_factory=list)
    todo: list[int] = field(default_factory=list)


@dataclass
class Progress:
    """Per exercise id what was reached. `hints` counts the hint levels that were shown."""

    reached: dict[str, Reached] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)

    def record(self, exercise: str, points: float, max_points: float, full_marks: bool) -> None:
        entry = self.reached.setdefault(exercise, Reached())
        entry.latest, entry.max_points = points, max_points
        entry.best = max(entry.best, points)
        entry.full_marks = entry.full_marks or full_marks


def load(root: Path) -> Progress:
    """The progress stored under a course folder; empty when there is none or it cannot be understood."""
    progress = Progress()
    try:
        with (root / FOLDER / _FILE).open("rb") as file:
            data = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return progress
    reached = data.get("reached") if isinstance(data, dict) else None
    for exercise, entry in (reached if isinstance(reached, dict) else {}).items():
        if isinstance(entry, dict):
            progress.reached[exercise] = Reached(
                best=_number(entry.get("best")),
                latest=_number(entry.get("latest")),
                max_points=_number(entry.get("max_points")),
                full_marks=entry.get("full_marks") is True,
                failing=[i for i in _list(entry.get("failing")) if isinstance(i, str)],
                todo=[i for i in _list(entry.get("todo")) if type(i) is int],
            )
    hints = data.get("hints") if isinstance(data, dict) else None
    for exercise, level in (hints if isinstance(hints, dict) else {}).items():
        if isinstance(level, int) and not isinstance(level, bool) and 0 <= level < 100:
            progress.hints[exercise] = level
    return progress


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Alone with the file, so that two grades at once both count; where there are no locks, the last one does."""
    descriptor = None
    with suppress(ImportError, OSError):
        import fcntl

        (root / FOLDER).mkdir(exist_ok=True)
        descriptor = os.open(root / FOLDER / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def save(root: Path, progress: Progress) -> bool:
    """Replace the file in one step, never half of it. False when the folder is not writable."""
    folder = root / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        write_atomically(folder / _FILE, json.dumps(asdict(progress), indent=1).encode())
    except OSError:
        return False
    return True


def _list(value: Any) -> list[Any]:
    """At most a hundred entries of a list, of anything else none."""
    return value[:100] if isinstance(value, list) else []


def _number(value: Any) -> float:
    """A finite number of points, else 0."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e6
    return float(value) if good else 0.0
