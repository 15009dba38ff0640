"""Modelled times in a grade: for right kernels only, once per problem size, below every roof."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("number", ["exercise_04", "exercise_07", "exercise_11"])
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


def test_a_grade_that_does_not_ask_has_none() -> None:
    found = report("2", measure=False)
    check = found.check("speed")
    assert not found.modelled and check is not None
    assert (check.verdict, check.points, check.reason) == (
        "skipped",
        0,
        "this grade was not asked for the speed",
    )


HEAD = "def build_kernel(M, N):"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (HEAD, f"{HEAD}\n    if M == 8192:\n        raise ValueError('not this size')", "not this size"),
        (HEAD, f"{HEAD}\n    if M == 8192:\n        M = 256", "8192"),
        ("ROWS - 1) // ROWS", "ROWS - 1) // ROWS // (2 if M == 8192 else 1)", "leaves out work: 67108864 of 134217728 bytes loaded"),
    ],
)  # fmt: skip
def test_a_kernel_of_its_own_for_the_timed_size_gets_no_points(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    """What is timed must be what was compared; nothing else may be taken for it."""
    source = kernel_of("2")
    assert old in source
    path = tmp_path / "kernel.py"
    path.write_text(source.replace(old, new, 1), encoding="utf-8")
    found = report("2", path, quick=True)
    check = found.check("speed")
    assert check is not None and (check.verdict, check.points, check.fault) == ("fail", 0, "your code")
    assert "cannot be timed" in check.summary and words in check.summary


def test_waits_that_only_the_timed_size_leaves_out_are_seen(tmp_path: Path) -> None:
    """A kernel that is right where it is compared, and races where it is timed."""
    source = kernel_of("8")
    line = next(line for line in source.split("\n") if line.strip().startswith("full.wait("))
    indent = line[: len(line) - len(line.lstrip())]
    path = tmp_path / "kernel.py"
    path.write_text(source.replace(line, f"{indent}if M != 4096:\n    {line}"), encoding="utf-8")
    found = report("8", path, quick=True)
    check = found.check("speed")
    assert check is not None and (check.verdict, check.points) == ("fail", 0)
    assert "other statements than any kernel whose output was compared" in check.summary


@pytest.mark.parametrize(
    ("number", "old", "new", "words"),
    [
        ("8", "full.wait(mma.stage,", "full.wait(mma.stage & (2 if M == 4096 else 3),", "full["),
        ("9", "acc_ready.wait(0, acc_phase)", "acc_ready.wait(0, acc_phase ^ (M == 4096))", ""),
    ],
)  # fmt: skip
def test_a_race_at_the_timed_size_alone_is_found(
    number: str, old: str, new: str, words: str, tmp_path: Path
) -> None:
    """The same statements, and right where it is compared; a few clusters of the timed launch are checked, too."""
    source = kernel_of(number)
    assert old in source
    path = tmp_path / "kernel.py"
    path.write_text(source.replace(old, new), encoding="utf-8")
    found = report(number, path, quick=True)
    check = found.check("speed")
    assert check is not None and (check.verdict, check.points, check.fault) == ("fail", 0, "your code")
    assert "cannot be timed" in check.summary and words in check.summary


@pytest.mark.parametrize("number", ["2", "4"])
def test_a_race_that_the_cases_show_costs_once(number: str) -> None:
    spec = COURSE.find(number)
    found = report(number, REPOSITORY / "tests" / "mutants" / spec.id / "no_proxy_fence.py")
    verdicts = {check.id: (check.verdict, check.points) for check in found.checks}
    assert verdicts["synchronization"] == ("fail", 0)
    assert verdicts["speed"] == ("pass", spec.check("speed").points)  # type: ignore[union-attr]


def kernel_of(number: str) -> str:
    spec = COURSE.find(number)
    cells = json.loads((REPOSITORY / "solutions" / spec.id / spec.notebook).read_text(encoding="utf-8"))[
        "cells"
    ]
    return next(
        "".join(c["source"]) for c in cells if c["metadata"].get("nbgrader", {}).get("grade_id") == "kernel"
    )
