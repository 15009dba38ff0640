"""One grade with a bar on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from autograder.grade import Settings, grade
from autograder.report.bar import Bar
from autograder.runner.process import Pump

if TYPE_CHECKING:
    from autograder.course import Course, Exercise
    from autograder.report.model import GradeReport
    from autograder.submission import Submission


def grade_with_bar(
    spec: Exercise,
    submission: Submission,
    course: Course,
    settings: Settings,
    label: str,
    plain: bool = False,
    pump: Pump | None = None,
    interrupt: Callable[[], None] | None = None,
) -> GradeReport:
    """Grade, and show how far it is where that takes more than a second.

    interrupt: called at least twice a second; what it raises ends the grade.
    """
    with Bar(label, plain) as bar:

        def beat() -> None:
            bar.tick()
            if interrupt is not None:
                interrupt()

        return grade(spec, submission, course.limits, replace(settings, listen=bar, heartbeat=beat), pump)
