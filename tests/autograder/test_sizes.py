"""Problem sizes per case, bounds that depend on them, and observables."""

from __future__ import annotations

from pathlib import Path

import pytest

from autograder.amounts import evaluate
from autograder.checks import CaseRun, Compiled, Outcome, run_checks
from autograder.course import Exercise, Limits, parse_course
from autograder.diagnosis import Diagnosis
from autograder.errors import CourseError
from autograder.report.model import CheckResult, Verdict
from autograder.submission import Submission

PARAMS: dict[str, int | str] = {"M": 256, "N": 384, "K": 320, "dtype": "float16"}
TEXT = """
version: 1
title: t
exercises:
  - id: exercise_05
    title: one tile
    teaches: t
    notebook: exercise_05.ipynb
    cells: {kernel: kernel}
    arch: sm_100a
    builder: {name: build, params: {N: 8}}
    tensors: [{name: D, role: output, dtype: float16, shape: [N]}]
    oracle: double
    tolerance: {kind: correctly_rounded}
    cases: [{id: a, title: a, inputs: normal, quick: true}]
    checks: [{id: build, title: Build, points: 100, looks_at: l}]
  - id: exercise_06
    title: many tiles
    teaches: t
    notebook: exercise_06.ipynb
    cells: {kernel: kernel}
    arch: sm_100a
    continues: exercise_05
    builder:
      name: build_kernel
      params: {M: 256, N: 384, K: 320, dtype: float16}
    tensors:
      - {name: A, role: input, dtype: dtype, shape: [M, K]}
      - {name: B, role: input, dtype: dtype, shape: [N, K]}
      - {name: D, role: output, dtype: dtype, shape: [M, N]}
    oracle: gemm_nt
    tolerance: {kind: rounding_interval, terms: K, accumulate_eps: 1.0e-7}
    cases:
      - {id: tiles, title: six tiles, inputs: normal, quick: true}
      - {id: one, title: one tile, inputs: normal, params: {M: 128, N: 128, K: 64}}
      - {id: early, title: early completion, inputs: normal, schedule: eager}
      - {id: bf16, title: bfloat16, inputs: normal, schedule: eager, params: {dtype: bfloat16}}
    checks:
      - id: mechanism
        title: Mechanism
        points: 100
        looks_at: l
        at_least:
          tcgen05.mma: M * N * K // 262144
          tcgen05.mma.beside_loads: (M // 128) * (N // 128) * 4 * (K // 64 - 1)
        at_most: {ld.global: 0}
        fixes: {ld.global: Let TMA load the operands.}
"""


def exercise() -> Exercise:
    return parse_course(TEXT).find("6")


def mechanism(stopped: tuple[str, ...] = (), **changed: dict[str, int]) -> CheckResult:
    """The verdict on launches of all four cases; a keyword changes the counters of the case of that name."""
    one = exercise()
    outcome = Outcome(Diagnosis(one, Submission("kernel.py", "\n\n"), Limits()), compiled=[Compiled()] * 3)
    for number, kernel in enumerate(one.kernels):
        for case in kernel.cases:
            counters = {"tcgen05.mma": evaluate("M * N * K // 262144", kernel.builder.params)}
            if case.schedule == "late":
                counters["tcgen05.mma.beside_loads"] = counters["tcgen05.mma"]
            run = CaseRun(case.id, case.title, counters=counters | changed.get(case.id, {}))
            run.kernel, run.schedule = number, case.schedule
            if case.id in stopped:
                run.findings = [{"code": "deadlock", "data": {}, "strength": "error"}]
            outcome.runs.append(run)
    (result,) = run_checks(outcome)
    return result


def test_cases_of_one_size_share_a_kernel() -> None:
    kernels = exercise().kernels
    assert [[case.id for case in kernel.cases] for kernel in kernels] == [
        ["tiles", "early"],
        ["one"],
        ["bf16"],
    ]
    assert [kernel.builder.params for kernel in kernels] == [
        PARAMS,
        {"M": 128, "N": 128, "K": 64, "dtype": "float16"},
        PARAMS | {"dtype": "bfloat16"},
    ]
    assert [kernel.tensor_specs()[1] for kernel in kernels] == [
        {"name": "B", "role": "input", "dtype": "float16", "shape": [384, 320]},
        {"name": "B", "role": "input", "dtype": "float16", "shape": [128, 64]},
        {"name": "B", "role": "input", "dtype": "bfloat16", "shape": [384, 320]},
    ]


def test_a_quick_grade_builds_what_it_runs() -> None:
    (kernel,) = exercise().only_quick().kernels
    assert [case.id for case in kernel.cases] == ["tiles"]


@pytest.mark.parametrize(
    ("amount", "value"),
    [
        (7, 7),
        ("M * N * K // 262144", 120),
        ("min(4, 2 * (K // 64 - 1)) + N % 100", 88),
        ("(M + N) // 2", 320),
    ],
)
def test_amounts(amount: int | str, value: int) -> None:
    assert evaluate(amount, PARAMS) == value


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        ("M *", "is no expression"),
        ("M * L", "'L' is no number of builder.params"),
        ("M * dtype", "'dtype' is no number of builder.params"),
        ("M ** 9", "is not possible here"),
        ("M / 2", "is not possible here"),
        ("__import__('os')", "is not possible here"),
        ("(1).real", "is not possible here"),
        ("True", "is not possible here"),
        ("M % 0", "divides by 0"),
        ("K - M * N", "below 0"),
        ("min(M)", "at least two numbers"),
        ("(" * 3000 + "M" + ")" * 3000, "is no expression"),
    ],
)
def test_other_amounts_are_refused(amount: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(amount, PARAMS)


def test_bounds_follow_the_size() -> None:
    assert mechanism().verdict is Verdict.PASS
    result = mechanism(one={"tcgen05.mma": 3})
    assert (result.points, result.summary) == (0, "too few: tcgen05.mma")
    (evidence,) = result.evidence
    assert evidence.message == 'tcgen05.mma is executed 3 times in the launch "one tile", at least 4 needed'
    assert evidence.data == {"counter": "tcgen05.mma", "seen": 3, "at_least": 4}


def test_the_worst_launch_is_told() -> None:
    (evidence,) = mechanism(one={"tcgen05.mma": 3}, bf16={"tcgen05.mma": 20}).evidence
    assert 'in the launch "bfloat16", at least 120 needed' in evidence.message


def test_a_launch_that_was_stopped_says_little() -> None:
    """What is missing there is missing because the kernel never came to its end; others tell."""
    assert mechanism(stopped=("one",), one={"tcgen05.mma": 1}).verdict is Verdict.PASS
    every = ("tiles", "one", "early", "bf16")
    assert mechanism(stopped=every, one={"tcgen05.mma": 1}).summary == "too few: tcgen05.mma"
    late = mechanism(
        stopped=("tiles",), tiles={"tcgen05.mma.beside_loads": 1}, one={"tcgen05.mma.beside_loads": 0}
    )
    assert late.verdict is Verdict.PASS  # one K tile has nothing to load beside it


def test_too_many_is_a_breach_with_a_remedy() -> None:
    result = mechanism(early={"ld.global": 16})
    assert (result.points, result.summary) == (0, "too many: ld.global")
    (evidence,) = result.evidence
    assert (
        evidence.message
        == 'ld.global is executed 16 times in the launch "early completion", at most 0 allowed'
    )
    assert evidence.fix == "Let TMA load the operands."


def test_observables_count_in_late_launches_only() -> None:
    """The early launches have none, and that costs nothing; a late one with too little does."""
    (evidence,) = mechanism(tiles={"tcgen05.mma.beside_loads": 95}).evidence
    assert 'beside_loads is 95 in the launch "six tiles", at least 96 needed: the number of tcgen05.mma' in (
        evidence.message
    )


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("params: {M: 128,", "params: {L: 128,", "case 'one', params: builder has no 'L'"),
        ("{dtype: bfloat16}", "{dtype: bfloat17}", "dtype of tensor A is the builder parameter 'dtype'"),
        (", dtype: float16}", "}", "case 'bf16', params: builder has no 'dtype'"),
        ("params: {M: 128,", "params: {M: [1],", r"cases\[one\]\.params"),
        ("N: 128, K: 64}", "N: 128, K: many}", "shape of tensor A uses 'K'"),
        ("(K // 64 - 1)", "(K // 64 - 2)", "mechanism, tcgen05.mma.beside_loads: .* is -4, below 0"),
        ("tcgen05.mma: M * N", "tcgen05.mma: M * L", "mechanism, tcgen05.mma: 'L' is no number"),
        ("at_most: {ld.global: 0}", "at_most: {ld.globl: 0}", "no 'ld.globl'; did you mean 'ld.global'"),
        ("{ld.global: Let", "{st.global: Let", "fixes: the emulator reports no 'st.global'"),
        ("id: mechanism", "id: resources", "at_least belongs to the check 'mechanism' only"),
        ("inputs: normal, quick: true}\n      - {id: one", "inputs: normal, schedule: eager, quick: true}\n"
         "      - {id: one", "recorded under schedule late only"),
        ("continues: exercise_05", "continues: exercise_07", "continues exercise_07, which does not come before it"),
        ("continues: exercise_05", "continues: exercise_06", "continues exercise_06, which does not come before it"),
    ],
)  # fmt: skip
def test_a_broken_course_is_explained(right: str, wrong: str, message: str) -> None:
    assert right in TEXT
    with pytest.raises(CourseError, match=message):
        parse_course(TEXT.replace(right, wrong))


def test_the_course_of_this_repository_has_sizes_that_fit() -> None:
    text = (Path(__file__).resolve().parents[2] / "course.yaml").read_text(encoding="utf-8")
    for one in parse_course(text).exercises:
        for kernel in one.kernels:
            assert all(
                isinstance(extent, int) and extent > 0 for t in kernel.tensors for extent in kernel.shape(t)
            )
