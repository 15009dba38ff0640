"""Instructions that are executed only to be counted: D is made in another way, and an MMA runs beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.course import Course, Exercise, Limits
from autograder.grade import Settings, grade
from autograder.report.model import GradeReport, Verdict
from autograder.submission import Submission

# Every thread makes its row of D on the CUDA cores: from column `first` on.
BY_HAND = """        total = T.alloc_local((1,), "float32")
        for n in T.serial({first}, N):
            total[0] = 0.0
            for k in T.serial(K):
                total[0] = total[0] + T.cast(A[warp * 32 + lane, k], "float32") * T.cast(B[n, k], "float32")
            D[warp * 32 + lane, n] = T.cast(total[0], "float16")
"""
STORE = "        Tx.copy(D[warp * 32 + lane, 0:N], out_regs[:])\n"
ISSUE = "                Tx.gemm_async(\n"
TWICE = """                Tx.gemm_async(
                    acc[:, :], A_smem[:, :], B_smem[:, :],
                    accum=False, dispatch="tcgen05", cta_group=1,
                )
"""


@pytest.fixture(scope="module")
def five(course: Course) -> Exercise:
    return course.find("5")


@pytest.fixture(scope="module")
def source(five: Exercise, solution_of: Callable[[Exercise], str]) -> str:
    text = solution_of(five)
    assert text.count(STORE) == text.count(ISSUE) == 1
    return text


def graded(exercise: Exercise, limits: Limits, source: str) -> GradeReport:
    return grade(exercise, Submission("kernel.py", source), limits, Settings(seed=None, quick=False))


@pytest.mark.parametrize("first", [0, 96])
def test_mmas_that_d_does_not_depend_on_do_not_count(
    first: int, five: Exercise, limits: Limits, source: str
) -> None:
    """The values are right in every case. With `first` a part of D comes from the tensor core."""
    report = graded(five, limits, source.replace(STORE, STORE + BY_HAND.format(first=first)))
    correct, mechanism = report.check("correctness"), report.check("mechanism")
    assert correct is not None and correct.verdict is Verdict.PASS
    assert mechanism is not None and (mechanism.verdict, mechanism.points) == (Verdict.FAIL, 0)
    message = mechanism.evidence[0].message
    assert message.startswith("tcgen05.mma is executed 4 times") and "4 of them do not count" in message
    assert any("gemm_async" in place.text for place in mechanism.evidence[0].locations)


def test_another_mma_takes_nothing_from_those_that_count(five: Exercise, limits: Limits, source: str) -> None:
    """An honest kernel that multiplies once too often, and overwrites the first product."""
    report = graded(five, limits, source.replace(ISSUE, TWICE + ISSUE))
    mechanism = report.check("mechanism")
    assert mechanism is not None and mechanism.verdict is Verdict.PASS, mechanism


def test_what_the_outputs_depend_on_is_told_line_by_line(source: str, tmp_path: Path) -> None:
    """Kernel.follow_mmas: the first of two MMAs, whose product is overwritten, does not matter; the tensors stay as they are."""
    import importlib.util

    import numpy as np

    import emulator

    path = tmp_path / "kernel.py"
    path.write_text(source.replace(ISSUE, TWICE + ISSUE), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("decoyed", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = emulator.compile(module.build_kernel(128, 128, 64))
    a, b = (np.random.default_rng(n).standard_normal((128, 64)).astype(np.float16) for n in (1, 2))
    d = np.zeros((128, 128), np.float16)
    lines, untouched = kernel.follow_mmas(a, b, d, outputs=[2])
    assert [(m.count, m.matters) for m in lines] == [(4, False), (4, True)]
    assert untouched == 0 and not d.any()
