"""Staged hints: hints.md beside the exercise, one `## Level N` section per level."""

from __future__ import annotations

import re
from pathlib import Path

from autograder.course import Exercise
from autograder.errors import UsageError


def read(root: Path, exercise: Exercise) -> list[str]:
    """The text of each level, in order.

    Raises:
        UsageError: the exercise has no hints here.
    """
    for step in ("exercises", "solutions"):
        path = root / step / exercise.id / "hints.md"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        levels = [part.strip() for part in re.split(r"^## Level \d+[^\n]*$", text, flags=re.MULTILINE)[1:]]
        if levels:
            return levels
    raise UsageError(
        f"there are no hints for {exercise.id} ({root / 'exercises' / exercise.id / 'hints.md'})"
    )
