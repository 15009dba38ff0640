"""What nvcc reports of a kernel: read, bounded, kept, and left out where there is no nvcc."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autograder import assembly, grade
from autograder.assembly import Assembler, Assembly, find_nvcc
from autograder.checks import Outcome
from autograder.checks.resources import resources
from autograder.course import Check, Exercise, load_course, parse_course
from autograder.diagnosis import Diagnosis
from autograder.errors import CourseError
from autograder.report.model import CheckResult, GradeReport, Verdict
from autograder.runner.assembly_child import read_ptxas
from autograder.runner.process import Pump
from autograder.submission import Submission, read_submission

COURSE = Path(__file__).resolve().parents[2]
USED = {"registers": 148, "spill_bytes": 0, "static_smem_bytes": 0, "barriers": 1}
PRINTED = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_100a'
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 3 barriers, 1024 bytes smem
"""
GRAPH = """\
from tvm.script import tirx as T
@T.prim_func
def copy(A: T.Buffer((32,), "float32"), D: T.Buffer((32,), "float32")):
    T.device_entry()
    T.cta_id([1])
    lane = T.thread_id([32])
    D[lane] = A[lane]
"""


def judged(seen: Assembly | None, bounds: dict[str, int] | None) -> CheckResult:
    """The check on a kernel that is right, for bounds of the assembly."""
    exercise: Exercise = load_course(COURSE).find("8")
    own = exercise.check("resources")
    assert own is not None
    check = Check(**{**own.model_dump(), "assembly": bounds})
    source = "x = T.alloc_local((128,), 'float16')\n"
    outcome = Outcome(Diagnosis(exercise, Submission("kernel.py", source), load_course(COURSE).limits))
    outcome.resources = {"threads_per_cta": 128, "smem_bytes": 1024, "tmem_columns": 128}
    outcome.assembly = seen
    right = {"elements": 1, "compared": 1, "mismatches": 0, "unwritten": 0}
    from autograder.checks import CaseRun

    outcome.runs.append(CaseRun("tiles", "tiles", comparison=right))
    return resources(check, outcome)


def test_ptxas_is_read() -> None:
    assert read_ptxas(PRINTED) == {
        "registers": 255,
        "spill_bytes": 32,
        "static_smem_bytes": 1024,
        "barriers": 3,
    }
    assert read_ptxas("Used 40 registers") == {**dict.fromkeys(USED, 0), "registers": 40}


def test_numbers_are_reported_and_cost_nothing_without_bounds() -> None:
    result = judged(Assembly(USED, "13.0"), {})
    assert result.verdict is Verdict.PASS
    assert result.summary.endswith("nvcc 13.0: registers 148, spill_bytes 0, static_smem_bytes 0, barriers 1")


def test_spills_fail_where_they_are_bounded() -> None:
    result = judged(Assembly({**USED, "spill_bytes": 32}, "13.0"), {"spill_bytes": 0})
    assert (result.verdict, result.points) == (Verdict.FAIL, 0)
    (evidence,) = result.evidence
    assert evidence.message.startswith("spill_bytes is 32, at most 0 allowed (per thread, stored to")
    assert "narrower pieces" in evidence.fix and evidence.locations[0].line == 1


def test_a_source_that_nvcc_rejects_fails() -> None:
    result = judged(Assembly(compiler="13.0", error="kernel.cu(3): error: no"), {})
    assert result.verdict is Verdict.FAIL
    assert result.evidence[0].message.endswith("does not compile: kernel.cu(3): error: no")


@pytest.mark.parametrize("seen", [Assembly(reason=assembly.NO_NVCC), None])
def test_no_nvcc_costs_nothing(seen: Assembly | None) -> None:
    result = judged(seen, {"spill_bytes": 0})
    assert result.verdict is Verdict.PASS
    assert "assembly not looked at: " in result.summary


def test_other_exercises_say_nothing_of_it() -> None:
    assert "assembly" not in judged(None, None).summary


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("        assembly: {spill: 0} ", "assembly: nvcc reports no 'spill'; did you mean 'spill_bytes'"),
        ("        assembly: {registers: -1} ", "assembly.*greater than or equal to 0"),
    ],
)
def test_a_broken_course_is_explained(changed: str, message: str) -> None:
    text = (COURSE / "course.yaml").read_text(encoding="utf-8")
    assert "        assembly: {} " in text
    with pytest.raises(CourseError, match=message):
        parse_course(text.replace("        assembly: {} ", changed, 1))


# With a stand-in for nvcc ------------------------------------------------------------------------


@pytest.fixture
def graph(tmp_path: Path) -> bytes:
    """A small kernel as JSON."""
    from autograder.runner.build_child import _import
    from autograder.runner.ir_json import dump

    path = tmp_path / "kernel.py"
    path.write_text(GRAPH, encoding="utf-8")
    return dump(_import(str(path))["copy"]).encode()


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., Path]:
    """An executable that prints like nvcc, and leaves a line in a file for every compilation."""

    def make(printed: str = PRINTED, status: int = 0) -> Path:
        path = tmp_path / "bin" / "nvcc"
        path.parent.mkdir(exist_ok=True)
        (path.parent / "printed").write_text(printed, encoding="utf-8")
        path.write_text(
            "#!/bin/sh\n"
            'if [ "$1" = --version ]; then echo "Cuda compilation tools, release 99.1, V99.1.1"; exit 0; fi\n'
            f"cat {path.parent / 'printed'}\nexit {status}\n",
            encoding="utf-8",
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def compiled(nvcc: Path, graph: bytes, cache: Path | None = None) -> Assembly:
    with Pump() as pump:
        assembler = Assembler(pump, nvcc, cache)
        assembler.start()
        assembler.send(graph, "sm_100a", 4096, 60)
        return assembler.result(120)


def test_results_are_kept(fake: Callable[..., Path], graph: bytes, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    expected = Assembly({**read_ptxas(PRINTED)}, "99.1")
    nvcc = fake()
    assert compiled(nvcc, graph, cache) == expected
    (nvcc.parent / "printed").write_text("Used 7 registers")
    assert compiled(nvcc, graph, cache) == expected, "known, so it is not compiled again"
    (kept,) = cache.iterdir()
    kept.write_text("{", encoding="utf-8")
    assert compiled(nvcc, graph, cache).used["registers"] == 7, "what cannot be read is made anew"
    assert json.loads(kept.read_text(encoding="utf-8"))["used"]["registers"] == 7


def test_what_goes_wrong_is_a_plain_line(fake: Callable[..., Path], graph: bytes) -> None:
    rejected = compiled(fake("noise\nkernel.cu(7): error: expected a ';'\nmore", 2), graph)
    assert rejected == Assembly(compiler="99.1", error="kernel.cu(7): error: expected a ';'")
    old = compiled(fake("nvcc fatal   : Unsupported gpu architecture 'sm_100a'", 1), graph)
    assert old.reason.startswith("nvcc 99.1 does not know the architecture") and not old.error
    assert compiled(fake(), b"{}").reason.startswith("TVM generates no CUDA source: ")


def test_a_grade_without_nvcc_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade, "find_nvcc", lambda: None)
    report = _report()
    assert "assembly not looked at: there is no nvcc on this machine" in _resources(report).summary
    assert _resources(report).verdict is Verdict.PASS


@pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")
def test_a_grade_with_nvcc_counts_registers() -> None:
    """The solution of exercise 08: no spills, all registers of a thread are not more than the hardware has."""
    summary = _resources(_report()).summary
    assert "spill_bytes 0" in summary and "barriers 1" in summary, summary


def _report() -> GradeReport:
    course: Any = load_course(COURSE)
    exercise = course.find("8")
    path = COURSE / "solutions" / "exercise_08" / "exercise_08.ipynb"
    one_case = exercise.model_copy(update={"cases": exercise.cases[:1]})
    return grade.grade(one_case, read_submission(path, exercise), course.limits, grade.Settings(seed=1))


def _resources(report: GradeReport) -> CheckResult:
    return next(check for check in report.checks if check.id == "resources")
