"""`autograde check-course`: solutions pass, released stubs earn nothing, the course's files fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autograder import hints
from autograder.course import Course, Exercise
from autograder.errors import AutogradeError
from autograder.grade import grade
from autograder.report.model import CheckResult
from autograder.submission import read_submission, released_kernel


def examine_course(root: Path, course: Course) -> Iterator[tuple[bool, str]]:
    """(is a problem, what was seen), one after the other."""
    for exercise in course.exercises:
        try:
            yield from _examine(root, course, exercise)
        except AutogradeError as error:
            yield True, f"{exercise.id}: {error}"


def _examine(root: Path, course: Course, exercise: Exercise) -> Iterator[tuple[bool, str]]:
    released = released_kernel(root, exercise)
    stub = read_submission(root / "exercises" / exercise.id / exercise.notebook, exercise, released)
    report = grade(exercise, stub, course.limits)
    good = stub.untouched and report.points == 0
    yield (
        not good,
        f"{exercise.id}: the release is the solution without its regions and earns {report.points:g} points",
    )
    solution = read_submission(root / "solutions" / exercise.id / exercise.notebook, exercise)
    report = grade(exercise, solution, course.limits)
    lost = ", ".join(_lost(check) for check in report.checks if check.points < check.max_points)
    text = f"{exercise.id}: the solution earns {report.points:g} of {report.max_points:g} points"
    yield not report.full_marks, f"{text} ({lost})" if lost else text
    levels = len(hints.read(root, exercise))
    yield levels < 2, f"{exercise.id}: {levels} hint levels"


def _lost(check: CheckResult) -> str:
    return f"{check.id}: {check.reason or check.summary}"
