"""The whole path through the processes, with a stand-in for the emulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autograder.course import Exercise, Limits
from autograder.grade import Settings, grade
from autograder.report.model import CheckResult, Fault, GradeReport, Verdict
from autograder.runner.limits import landlock_version
from autograder.runner.sandbox import bubblewrap
from autograder.submission import Submission

from .conftest import REPOSITORY, SMALL_KERNEL

Roots = Callable[..., tuple[Path, ...]]
ANSWERS = {"q1": 32768, "q2": 4, "q3": 0, "q4": 6}


@pytest.fixture
def graded(exercise: Exercise, limits: Limits, stand_in: Roots) -> Callable[..., GradeReport]:
    """Grade SMALL_KERNEL on a stand-in that executes `body` in each launch and `compile` before."""

    def run(body: str = "pass", compile: str = "pass", **changes: Any) -> GradeReport:
        submission = Submission(
            name="exercise_05.ipynb", source=SMALL_KERNEL, cell=6, grade_id="kernel", answers=ANSWERS
        )
        roots = stand_in(body, compile)
        return grade(exercise, submission, limits.model_copy(update=changes), Settings(seed=11, roots=roots))

    return run


def of(report: GradeReport, check: str) -> CheckResult:
    result = report.check(check)
    assert result is not None
    return result


def test_full_marks(graded: Callable[..., GradeReport]) -> None:
    report = graded()
    assert [str(check.verdict) for check in report.checks] == ["pass"] * 6
    assert (report.points, report.max_points, report.exit_code) == (100, 100, 0)
    assert report.device == "emulated sm_100a"
    assert report.seed == 11
    assert set(report.versions) == {"autograder", "python", "tvm", "numpy", "torch"}
    assert set(report.seconds) == {"build", "lower", "launches", "total"}
    assert report.full_marks and report.faults == set()


def test_everything_that_can_be_wrong_arrives(graded: Callable[..., GradeReport]) -> None:
    """A wrong element, a changed input, a finding, a missing instruction, a resource: each in its check."""
    report = graded(
        "if schedule == 'eager': d[5, 6] = -1000\n"
        "if schedule == 'late': b[3] = 0\n"
        "place = {'file': '/s/snapshot/kernel.py', 'line': 13}\n"
        "run.findings = (Finding(code='race.x', strength='race', locations=[place]),)\n"
        "run.counters = {**run.counters, 'tcgen05.dealloc': 0}\n"
        "self.resources = {**self.resources, 'tmem_columns': 512}"
    )
    correctness = of(report, "correctness")
    assert (correctness.verdict, correctness.points) == (Verdict.PARTIAL, 24)
    messages = " ".join(e.message for e in correctness.evidence)
    assert "first D[5, 6]: expected " in messages and "got -1000" in messages
    assert "changed its input B" in messages
    (finding,) = of(report, "synchronization").evidence
    assert finding.locations[0].spell() == "notebook cell 6 line 13: D[lane, 0] = A[lane, 0]"
    assert [e.message for e in of(report, "mechanism").evidence] == ["tcgen05.dealloc is never executed"]
    assert [e.message for e in of(report, "resources").evidence] == [
        "tmem_columns is 512, at most 128 allowed"
    ]
    assert (report.points, report.exit_code, report.faults) == (44, 1, {Fault.YOUR_CODE})


def test_an_unknown_instruction_is_not_the_learners_fault(graded: Callable[..., GradeReport]) -> None:
    report = graded(
        compile="e = UnsupportedInstruction('no wgmma here')\n"
        "    e.location = Place('/x/snapshot/kernel.py', 11)\n"
        "    raise e"
    )
    build = of(report, "build")
    assert (build.verdict, build.fault) == (Verdict.ERROR, Fault.GRADER)
    assert build.evidence[0].locations[0].line == 11
    assert report.exit_code == 3


@pytest.mark.parametrize("body", ["raise RuntimeError('emulator bug')", "import ctypes; ctypes.string_at(0)"])
def test_a_crash_of_the_emulator_is_the_graders_fault(graded: Callable[..., GradeReport], body: str) -> None:
    report = graded(body)
    correctness = of(report, "correctness")
    assert (correctness.verdict, correctness.fault) == (Verdict.ERROR, Fault.GRADER)
    assert report.exit_code == 3
    assert Fault.YOUR_CODE not in report.faults
    if "RuntimeError" in body:
        assert "RuntimeError: emulator bug" in correctness.summary
        assert "Traceback" in correctness.evidence[0].data["log"]


@pytest.mark.parametrize("schedule", ["late", "eager", "random"])
def test_a_launch_that_is_refused_leaves_the_others(
    graded: Callable[..., GradeReport], schedule: str
) -> None:
    """Whichever comes first: what the other cases show is graded, and the refusal is told."""
    report = graded(f"if schedule == {schedule!r}: raise LaunchError('not this one')")
    correctness = of(report, "correctness")
    right = {"late": 4, "eager": 4, "random": 2}[schedule]
    assert (correctness.verdict, correctness.summary) == (Verdict.PARTIAL, f"{right} of 5 cases")
    assert correctness.evidence[-1].message == "the launch is refused: not this one"
    assert of(report, "mechanism").points == 10


def test_an_emulation_without_end_is_stopped(graded: Callable[..., GradeReport]) -> None:
    report = graded("time.sleep(60 if schedule == 'eager' else 0)", run_seconds=4)
    correctness = of(report, "correctness")
    assert (correctness.verdict, correctness.points, correctness.fault) == (
        Verdict.PARTIAL,
        8,
        Fault.YOUR_CODE,
    )
    assert "stopped after 4 s while running the case random_early" in correctness.evidence[-1].message
    assert report.seconds["total"] < 20


def test_the_process_that_runs_the_kernel_is_confined(graded: Callable[..., GradeReport]) -> None:
    if not landlock_version() and bubblewrap()[0] is None:
        pytest.skip("this machine has neither Landlock nor bubblewrap")
    course = str(REPOSITORY / "course.yaml")
    report = graded(
        "open('mine', 'w').close()\n"
        f"try:\n    open({course!r})\n"
        "except OSError:\n    raise LaunchError('out of reach')"
    )
    assert of(report, "correctness").summary == "the launch is refused: out of reach"


def test_inputs_differ_per_run_and_a_seed_repeats_them(
    exercise: Exercise, limits: Limits, stand_in: Roots
) -> None:
    roots = stand_in("d[0, 0] = -1000")
    submission = Submission(name="k.py", source=SMALL_KERNEL)

    def expected(seed: int | None) -> tuple[int, Any]:
        report = grade(exercise, submission, limits, Settings(seed=seed, quick=True, roots=roots))
        assert report.quick
        assert of(report, "correctness").summary == "0 of 2 cases"
        seen = {e.data["case"]: e.data["first"]["expected"] for e in of(report, "correctness").evidence}
        return report.seed, seen

    first = expected(None)
    second = expected(first[0])
    assert first == second
    assert 0 <= first[0] < 2**40


def test_secret_seeds_differ() -> None:
    from autograder.grade import _secret_seed

    assert len({_secret_seed() for _ in range(50)}) == 50
