"""What solves one exercise does not solve the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.course import load_course
from autograder.report.model import GradeReport

COURSE = load_course(Path(__file__).resolve().parents[2])
IDS = sorted(exercise.id for exercise in COURSE.exercises)


@pytest.mark.parametrize(("one", "other"), list(zip(IDS, IDS[1:] + IDS[:1], strict=True)))
def test_a_solution_does_not_pass_another_exercise(
    one: str,
    other: str,
    solution_cell: Callable[[str], str],
    quick_grade: Callable[[str, Path], GradeReport],
    tmp_path: Path,
) -> None:
    path = tmp_path / f"{other}.py"
    path.write_text(solution_cell(one), encoding="utf-8")
    exercise = COURSE.find(other)
    report = quick_grade(other, path)
    assert report.exit_code == 1
    if exercise.continues == one:  # it builds, and may be right; but it lacks what is new
        new = {c.id for c in exercise.checks if c.kind in ("build", "correctness", "mechanism")}
        assert "fail" in {check.verdict for check in report.checks if check.id in new}
        return
    assert report.points == 0
    build = report.check("build")
    assert build is not None and exercise.builder.name in build.summary
