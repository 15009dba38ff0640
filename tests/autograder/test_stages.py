"""An exercise in stages: what of it works earns its points, whatever the rest does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autograder.course import Exercise, Limits, parse_course
from autograder.errors import CourseError
from autograder.grade import Settings, grade
from autograder.report.model import CheckResult, GradeReport, Verdict
from autograder.submission import Submission

from .conftest import REPOSITORY, cell_of

TEXT = """
version: 1
title: t
exercises:
  - id: exercise_01
    title: sums
    teaches: t
    notebook: exercise_01.ipynb
    cells: {kernel: kernel}
    arch: sm_100a
    builder: {name: build_add, params: {N: 512}}
    tensors:
      - {name: X, role: input, dtype: float32, shape: [N]}
      - {name: Y, role: input, dtype: float32, shape: [N]}
      - {name: Z, role: output, dtype: float32, shape: [N]}
    oracle: add
    tolerance: {kind: correctly_rounded}
    cases:
      - {id: whole, title: two CTAs, inputs: normal, stage: whole, quick: true}
      - {id: early, title: early completion, inputs: normal, schedule: eager, stage: whole}
      - {id: tail, title: a tail, inputs: normal, stage: tails, quick: true, params: {N: 1000}}
      - {id: odd, title: an odd tail, inputs: normal, stage: tails, params: {N: 501}}
    checks:
      - {id: build, title: Build, points: 10, looks_at: l}
      - {id: whole, kind: correctness, stage: whole, title: Whole, points: 30, looks_at: l}
      - {id: tails, kind: correctness, stage: tails, title: Tails, points: 20, looks_at: l}
      - {id: synchronization, title: Synchronization, points: 20, looks_at: l}
      - {id: loads, kind: mechanism, stage: whole, title: Loads, points: 10, looks_at: l, at_least: {ld.global: 32}}
      - {id: few, kind: mechanism, stage: tails, title: Few, points: 10, looks_at: l, at_most: {st.global: 32}}
"""


def exercise(text: str = TEXT) -> Exercise:
    return parse_course(text).find("1")


@pytest.fixture(scope="module")
def source() -> str:
    path = REPOSITORY / "solutions" / "exercise_01" / "exercise_01.ipynb"
    return cell_of(json.loads(path.read_text(encoding="utf-8")), "kernel")


def at_the_top(source: str, *lines: str) -> str:
    """The kernel's text with lines ahead of everything that build_add does."""
    head, rest = source.split("def build_add(N):\n", 1)
    return head + "def build_add(N):\n" + "".join(f"    {line}\n" for line in lines) + rest


def graded(source: str, **options: Any) -> GradeReport:
    settings = Settings(seed=3, measure=False, **options)
    return grade(exercise(), Submission("kernel.py", source), Limits(), settings)


def of(report: GradeReport, check: str) -> CheckResult:
    found = report.check(check)
    assert found is not None
    return found


def points(report: GradeReport) -> list[float]:
    return [check.points for check in report.checks]


def test_all_stages(source: str) -> None:
    report = graded(source)
    assert points(report) == [10, 30, 20, 20, 10, 10] and report.full_marks
    assert of(report, "tails").summary == "2 of 2 cases"


def test_a_stage_that_is_not_written_yet_costs_its_own_points_only(source: str) -> None:
    later = at_the_top(source, "if N % 256:", '    raise NotImplementedError("tails come later")')
    report = graded(later)
    assert points(report) == [10, 30, 0, 10, 10, 0] and report.exit_code == 1
    assert of(report, "build").summary == "builds and lowers for 1 of 3 problem sizes"
    tails = of(report, "tails")
    assert (tails.verdict, tails.reason) == (Verdict.SKIPPED, "not written yet: tails come later")
    assert of(report, "few").verdict is Verdict.SKIPPED
    assert "tails" in of(report, "synchronization").evidence[0].message
    assert points(graded(later, quick=True)) == [10, 30, 0, 10, 10, 0]


def test_half_a_stage(source: str) -> None:
    report = graded(at_the_top(source, "if N == 501:", "    raise NotImplementedError"))
    assert points(report) == [10, 30, 10, 10, 10, 10]
    assert of(report, "tails").evidence[-1].message == "not written yet: NotImplementedError"


def test_a_mistake_in_the_builder_is_no_missing_stage(source: str) -> None:
    report = graded(at_the_top(source, "if N == 1000:", "    return 1 // 0"))
    assert points(report) == [0, 30, 10, 10, 10, 10]
    build = of(report, "build")
    assert build.summary == "1 of 3 problem sizes do not build"
    assert build.evidence[0].message.startswith("ZeroDivisionError")


def test_what_tvm_refuses_in_one_stage(source: str) -> None:
    wider = at_the_top(source, "N += N == 1000")  # a buffer of another size
    report = graded(wider)
    assert points(report) == [0, 30, 10, 10, 10, 10]
    assert "it must be float32" in of(report, "build").evidence[0].message


def test_wrong_numbers_in_one_stage(source: str) -> None:
    report = graded(
        at_the_top(source, "N = N", "WRONG = N % 256").replace("X[i] + Y[i]", "X[i] + Y[i] + WRONG")
    )
    assert points(report)[:3] == [10, 30, 0]
    assert of(report, "loads").points == 10


def test_nothing_is_there(source: str) -> None:
    report = graded(at_the_top(source, "raise NotImplementedError"))
    assert report.points == 0 and of(report, "build").summary == "not written yet: NotImplementedError"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", stage: whole, quick: true", ", quick: true", "case 'whole' needs a stage"),
        ("stage: tails, quick: true", "stage: tails", "stage 'tails': at least one case needs quick: true"),
        ("correctness, stage: tails", "correctness, stage: tail", "no case has the stage 'tail'.*mean 'tails'"),
        ("few, kind: mechanism, stage: tails", "few, kind: mechanism, stage: rest", "no case has the stage 'rest'"),
        ("id: tails, kind: correctness, stage", "id: tails, kind: mechanism, stage", "'tails' has no check of the kind"),
        ("id: few, kind: mechanism", "id: few", "'few' is not one of .*; a check with another id needs a kind"),
        ("id: synchronization,", "id: synchronisation,", "did you mean 'synchronization'"),
        ("id: build,", "id: build, stage: whole,", "stage belongs to checks of the kinds correctness and mechanism"),
        ("kind: mechanism, stage: whole", "kind: mechanisms, stage: whole", "'mechanisms' is not one of"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) >= 1
    with pytest.raises(CourseError, match=message):
        exercise(TEXT.replace(old, new, 1))
