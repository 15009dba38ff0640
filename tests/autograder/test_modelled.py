"""Modelled times in a grade: for right kernels only, once per problem size, below every roof."""

from __future__ import annotations

from pathlib import Path

import pytest

from autograder.course import load_course
from autograder.grade import Settings, grade
from autograder.report.html import page
from autograder.report.model import GradeReport
from autograder.report.terminal import make_console, show
from autograder.submission import read_submission
from emulator.timing.parameters import load

from .conftest import REPOSITORY

COURSE = load_course(REPOSITORY)
P = load("sm_100a")


def report(number: str, path: Path | None = None, **settings: bool) -> GradeReport:
    spec = COURSE.find(number)
    where = path or REPOSITORY / "solutions" / spec.id / spec.notebook
    return grade(spec, read_submission(where, spec, None), COURSE.limits, Settings(seed=1, **settings))


@pytest.mark.parametrize("number", ["exercise_02", "exercise_04", "exercise_07", "exercise_11"])
def test_solutions_stay_below_the_roofs(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = COURSE.find(number)
    found = report(number)
    assert len(found.modelled) == len({(t.builder, str(t.params)) for t in spec.timing})
    for time in found.modelled:
        assert time.device == P.device and time.microseconds > P.launch_us
        assert time.bytes_dram / time.microseconds / 1e6 < P.dram_tb_per_s
        assert time.flops / time.microseconds / 1e6 < 8192 * P.sms * time.clock_ghz / 1e3
        assert (time.tensor_core is None) == (time.flops == 0)
    show(found, make_console(True), True)
    shown = capsys.readouterr().out
    assert "modelled on NVIDIA B200" in shown and "modelled on NVIDIA B200" in page(found)
    assert "measured" not in shown


def test_a_wrong_kernel_has_no_time() -> None:
    assert not report("2", REPOSITORY / "tests/mutants/exercise_02/tiles_rounded_down.py").modelled


def test_a_quick_grade_and_one_that_does_not_ask_have_none() -> None:
    assert not report("2", quick=True).modelled
    assert not report("2", measure=False).modelled
