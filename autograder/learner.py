"""Where a learner's work lies, and what every grade of it leaves behind: progress and a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.errors import EXIT_MACHINE, UsageError

if TYPE_CHECKING:
    from autograder.course import Exercise
    from autograder.report.model import GradeReport
    from autograder.submission import Submission


def learner_path(root: Path, spec: Exercise) -> Path:
    """The learner's notebook, or the .py file beside it when that was saved later.

    Raises:
        UsageError: there is neither.
    """
    notebook = root / "exercises" / spec.id / spec.notebook
    script = notebook.with_suffix(".py")
    if script.is_file() and (not notebook.is_file() or script.stat().st_mtime > notebook.stat().st_mtime):
        return script
    if not notebook.is_file():
        raise UsageError(f"{notebook}: there is no such notebook; `autograde reset {spec.id}` brings it back")
    return notebook


def learner_submission(root: Path, spec: Exercise, path: Path | None = None) -> Submission:
    """What the learner has saved.

    Raises:
        AutogradeError: it is missing or cannot be read; one line.
    """
    from autograder.submission import read_submission, released_kernel

    if path is not None and path.is_symlink():  # it may lead to a solution, and be handed in by somebody else
        raise UsageError(f"{path}: is a link; give the file itself")
    return read_submission(path or learner_path(root, spec), spec, released_kernel(root, spec))


def remember(root: Path, report: GradeReport, source: str, answers: dict[str, Any]) -> str:
    """Record a grade; one that the grader or the machine spoilt is not remembered. Returns a note, or nothing."""
    from autograder import checkpoints, hints, progress

    if report.exit_code == EXIT_MACHINE:
        return ""
    failing = [check.id for check in report.checks if check.points < check.max_points]
    todo = todos(report, source, hints.stub_todos(root, report.exercise))
    with progress.locked(root):
        state = progress.load(root)
        state.record(report.exercise, report.points, report.max_points, report.full_marks)
        entry = state.reached[report.exercise]
        entry.failing, entry.todo = failing, todo
        saved = progress.save(root, state)
    if not saved:
        return f"note: {root / progress.FOLDER} is not writable, so this grade is not remembered"
    checkpoints.keep(root, report, source, answers)
    return ""


def todos(report: GradeReport, source: str, stub: Collection[int] = ()) -> list[int]:
    """The numbered TODOs of the kernel that the failing checks point at, the one named first first.

    A line belongs to the TODO whose comment stands last ahead of it. A stub that was not begun points at its first.
    None are found once one of the `stub`'s TODO comments is gone from the kernel: a line might be that one's.
    """
    lines = source.split("\n")
    numbers: list[int | None] = []
    current = None
    for text in lines:
        found = re.search(r"#\s*TODO (\d{1,3})\b", text)
        current = int(found[1]) if found else current
        numbers.append(current)
    if not set(stub) <= set(numbers):
        return []
    places = [
        place.line
        for check in report.checks
        if check.points < check.max_points
        for evidence in check.evidence
        for place in evidence.locations
        if 1 <= place.line <= len(lines)
    ]
    return list(dict.fromkeys(n for n in (numbers[line - 1] for line in places) if n is not None))[:8]
