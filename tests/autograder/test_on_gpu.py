"""Grades with a GPU that is not there: a stand-in device beside the real emulator, so that every outcome is seen."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytest

from autograder.course import Course, Exercise
from autograder.gpu import Gpu
from autograder.grade import Settings, grade
from autograder.report.html import fragment
from autograder.report.model import CheckResult, Fault, GradeReport, Verdict
from autograder.report.terminal import make_console, show
from autograder.submission import Submission

from .conftest import REPOSITORY, cell_of

H200 = Gpu("NVIDIA H200", (9, 0), "580.1")
B200 = Gpu("NVIDIA B200", (10, 0), "580.1")

FAKE = '''
"""A stand-in for the GPU: the emulator runs the kernel, then the test's statements change what happened."""
import os, time
import numpy as np
import emulator
from autograder.runner.backends.cuda import DeviceError
from autograder.runner.measure import Sample

def neighbours(): return NEIGHBOURS

class Bench:
    def __init__(self, plan): self.plan, self.n = plan, 0
    def prepare(self, number): self.n = number
    def call(self, which):
        n = self.n
        us = 100.0 + n % 3 if which == "kernel" else 95.0 + n % 3
        SAMPLE
        return Sample(us, True)
    def verify(self): return WRONG
    def clocks(self): return {"sm_mhz": 1980, "memory_mhz": 3201, "reasons": 0}
    def facts(self):
        return {"device": "NVIDIA H200", "l2_bytes": 50 << 20, "input_bytes": 1000, "output_bytes": 1000,
                "peak_bytes_per_s": 4.8e12}

class Device:
    def __init__(self, arch): self.arch = arch
    def compile(self, prim_func):
        COMPILE
        return emulator.compile(prim_func, arch=self.arch)
    def launch(self, kernel, arrays):
        copies = [a.copy() for a in arrays]
        n = len(os.listdir("."))
        open(f"launch-{n}", "w").close()
        kernel.run(*copies, check=False)
        LAUNCH
        return copies
    def bench(self, kernel, plan, seed): return Bench(plan)
    def versions(self): return {"compiler": "stand-in"}

def open_device(arch):
    OPEN
    return Device(arch)
'''


@pytest.fixture
def graded(course: Course, tmp_path: Path) -> Callable[..., GradeReport]:
    """Grade exercise_02 (or another kernel text) on the stand-in with these statements in it."""
    exercise = course.find("2")

    def run(
        source: str | None = None,
        gpu: Gpu = H200,
        spec: Exercise = exercise,
        quick: bool = False,
        measure: bool = False,
        limits: dict[str, Any] | None = None,
        **parts: str,
    ) -> GradeReport:
        text = FAKE
        blanks = {
            "NEIGHBOURS": "0",
            "WRONG": "''",
            "SAMPLE": "pass",
            "COMPILE": "pass",
            "LAUNCH": "pass",
            "OPEN": "pass",
        }
        for name, default in blanks.items():
            indent = re.search(rf"(?m)^( *){name}$", text)
            body = parts.get(name.lower(), default)
            text = text.replace(name, body.replace("\n", "\n" + (indent[1] if indent else "")))
        (tmp_path / "fake_gpu.py").write_text(text, encoding="utf-8")
        settings = Settings(
            seed=5, quick=quick, gpu=gpu, measure=measure, roots=(tmp_path,), backend="fake_gpu"
        )
        submission = Submission(name="kernel.py", source=source or solution(spec))
        bounds = course.limits.model_copy(update=limits or {})
        return grade(spec, submission, bounds, settings)

    return run


def solution(exercise: Exercise) -> str:
    path = REPOSITORY / "solutions" / exercise.id / exercise.notebook
    return cell_of(json.loads(path.read_text(encoding="utf-8")), exercise.cells.kernel)


def of(report: GradeReport, check: str) -> CheckResult:
    result = report.check(check)
    assert result is not None
    return result


def test_the_report_names_the_gpu_and_what_the_emulator_judged(graded: Callable[..., GradeReport]) -> None:
    report = graded(measure=True)
    assert [str(c.verdict) for c in report.checks if c.id != "predictions"] == ["pass"] * 6
    assert report.device == "NVIDIA H200"
    assert report.judged_on == {
        "correctness": "NVIDIA H200",
        "speed": "NVIDIA H200",
        "synchronization": "emulated sm_90a",
        "mechanism": "emulated sm_90a",
        "resources": "emulated sm_90a",
    }
    assert "NVIDIA H200 and emulated sm_90a left the same bytes in all 4 launches" in [
        note.message for note in report.notes
    ]
    assert report.versions["compiler"] == "stand-in"
    (measured,) = report.measured
    assert (measured.verdict, measured.tier, measured.pairs) == ("fast", "full", 60)
    assert measured.params == {"M": 8192, "N": 8192} and measured.device == "NVIDIA H200"
    assert "measured on NVIDIA H200: build_kernel(M = 8192, N = 8192) takes 101.0 µs" in measured.sentence()
    text = io.StringIO()
    show(report, make_console(plain=True, file=text, width=200), plain=True)
    assert "emulated sm_90a: Synchronization, Mechanism, Resources" in text.getvalue()
    assert measured.sentence().replace("µ", "u") in text.getvalue()
    assert escape(measured.sentence()) in fragment(report)


def test_the_verdict_on_the_output_is_the_gpus(graded: Callable[..., GradeReport]) -> None:
    report = graded(launch="if n == 1: copies[1][3, 4] = 7")
    correctness = of(report, "correctness")
    assert (correctness.verdict, correctness.points, correctness.fault) == ("partial", 26.25, Fault.YOUR_CODE)
    assert "first D[3, 4]: expected " in correctness.evidence[0].message
    notes = " ".join(note.message for note in report.notes)
    assert "all values different, early completion: wrong on NVIDIA H200, right on emulated sm_90a" in notes
    assert "left different bytes in: all values different, early completion" in notes


def test_a_hang_that_the_emulator_explains_is_the_learners(graded: Callable[..., GradeReport]) -> None:
    """The line is the one that the emulator's autopsy names; later cases are not run."""
    source = (REPOSITORY / "tests" / "mutants" / "exercise_02" / "arrival_count.py").read_text(
        encoding="utf-8"
    )
    report = graded(source, launch="time.sleep(60)", limits={"gpu_seconds": 2})
    correctness = of(report, "correctness")
    assert (correctness.verdict, correctness.points, correctness.fault) == ("fail", 0, Fault.YOUR_CODE)
    (first, *rest) = correctness.evidence
    assert "the kernel hangs on the GPU (stopped after 2 s)" in first.message
    assert [place.text for place in first.locations if "# <- here" in place.text or "mbarrier" in place.text]
    assert {e.message.split(": ")[1] for e in rest} == {"not run, the kernel hung in an earlier case"}
    assert report.exit_code == 1
    assert any(e.code == "deadlock" for e in of(report, "synchronization").evidence)


def test_a_hang_that_nobody_explains_takes_no_points(graded: Callable[..., GradeReport]) -> None:
    report = graded(quick=True, launch="time.sleep(60)", limits={"gpu_seconds": 2})
    correctness = of(report, "correctness")
    assert (correctness.verdict, correctness.fault) == (Verdict.ERROR, Fault.GRADER)
    assert "the emulator runs it to its end" in correctness.evidence[0].fix
    assert report.exit_code == 3 and Fault.YOUR_CODE not in {
        c.fault for c in report.checks if c.id != "predictions"
    }


def test_a_sticky_fault_is_a_finding(graded: Callable[..., GradeReport]) -> None:
    report = graded(
        launch="if n == 1: raise DeviceError('CUDA Runtime Error: cudaErrorIllegalAddress (700): an illegal memory access')"
    )
    correctness = of(report, "correctness")
    assert (correctness.verdict, correctness.points, correctness.fault) == ("partial", 8.75, Fault.YOUR_CODE)
    messages = [e.message for e in correctness.evidence]
    assert any("the GPU stops the kernel (illegal address): CUDA Runtime Error" in m for m in messages)
    assert sum("not run, the GPU stopped the kernel in an earlier case" in m for m in messages) == 2


def test_host_code_that_does_more_than_launch_is_not_run(
    graded: Callable[..., GradeReport], tmp_path: Path
) -> None:
    """Neither a packed function of the process nor a C function: the module is never compiled for the GPU's host."""
    source = """
from tvm.script import tirx as T


def build_kernel(M, N):
    @T.prim_func
    def kernel(A: T.Buffer((M, N), "float16"), D: T.Buffer((M, N), "float16")):
        T.evaluate(T.call_packed("runtime.GetCudaFreeMemory"))
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([32])
        D[0, lane] = A[0, lane]

    return kernel
"""
    report = graded(source, quick=True)
    build = of(report, "build")
    assert (build.verdict, report.points) == ("fail", 0)
    assert "host code does more than launch (runtime.GetCudaFreeMemory)" in build.evidence[0].message
    assert "gpu" not in report.seconds, "no launch was tried"


def test_a_kernel_that_cannot_be_built_for_the_size_keeps_its_points(
    graded: Callable[..., GradeReport], course: Course
) -> None:
    source = solution(course.find("2")).replace(
        "def build_kernel(M, N):", "def build_kernel(M, N):\n    assert M < 1000, 'too large for me'"
    )
    report = graded(source, measure=True)
    (measured,) = report.measured
    assert of(report, "correctness").verdict == "pass"
    assert measured.verdict == "error" and "too large for me" in measured.message
