"""Several kernels in one exercise, their sectors per request, and the roofline, from made-up outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autograder.checks import CaseRun, Compiled, Outcome, run_checks
from autograder.checks.coalescing import observations
from autograder.checks.synchronization import lints
from autograder.course import Course, CourseError, Exercise, Limits, parse_course
from autograder.diagnosis import Diagnosis
from autograder.report.model import CheckResult, Verdict
from autograder.submission import Submission

from .conftest import REPOSITORY

FILE = "/tmp/a/snapshot/kernel.py"
RIGHT = {"elements": 10, "compared": 10, "mismatches": 0, "unwritten": 0}
WRONG = {**RIGHT, "mismatches": 3, "where": "w", "first": None, "meaning": "", "suspect": "store"}
SOURCE = """def build_add(N):
    cta = T.cta_id([4])
    if i < N:
        Z[i] = X[i] + Y[i]
def build_gemm(M, N, K):
    cta = T.cta_id([4, 4])
    for k in range(K):
        D[m, n] += A[m, k]
"""
COMPILED = [
    Compiled([{"file": FILE, "line": 4, "instruction": "st.global", "names": ["out"]}], ["X", "Y", "out"]),
    Compiled(
        [
            {"file": FILE, "line": 8, "instruction": name, "names": names}
            for name, names in [("ld.global", ["A"]), ("st.global", ["D"])]
        ],
        ["A", "B", "D"],
    ),
]
Make = Callable[..., Outcome]


def access(line: int, write: bool, requests: int, passes: int, ideal: int) -> dict[str, Any]:
    place = {"file": FILE, "line": line, "space": "global", "write": write}
    return {**place, "requests": requests, "passes": passes, "ideal": ideal}


@pytest.fixture
def naive(course: Course) -> Exercise:
    return course.find("1")


@pytest.fixture
def make(naive: Exercise) -> Make:
    """An outcome with one run per case; the arguments are the accesses and comparison of each kernel."""

    def build(accesses: list[list[dict[str, Any]]], comparisons: list[dict[str, Any]]) -> Outcome:
        submission = Submission("exercise_01.ipynb", SOURCE, 6, "kernel")
        outcome = Outcome(Diagnosis(naive, submission, Limits()), resources={}, compiled=COMPILED)
        for number, kernel in enumerate(naive.kernels):
            for case in kernel.cases:
                run = CaseRun(case.id, case.title, comparison=comparisons[number])
                run.kernel, run.accesses = number, accesses[number]
                outcome.runs.append(run)
        outcome.planned = len(outcome.runs)
        return outcome

    return build


def of(outcome: Outcome, check: str) -> CheckResult:
    return next(c for c in run_checks(outcome) if c.id == check)


FINE = [[access(4, True, 32, 128, 128)], [access(8, False, 10, 10, 10), access(8, True, 10, 50, 40)]]
WASTEFUL = [FINE[0], [access(8, False, 10, 80, 10), access(8, True, 10, 51, 40)]]


def test_up_to_the_threshold_is_fine(make: Make) -> None:
    """5 sectors where 4 would do are 1.25 times the fewest."""
    assert of(make(FINE, [RIGHT, RIGHT]), "coalescing").points == 20


def test_each_kernel_is_worth_the_same(make: Make) -> None:
    check = of(make(WASTEFUL, [RIGHT, RIGHT]), "coalescing")
    assert (check.verdict, check.points) == (Verdict.PARTIAL, 10)
    load, store = check.evidence
    assert "loads A: a warp's request touches 8 sectors of 32 bytes, 1 would do" in load.message
    assert "stores D" in store.message
    assert load.locations[0].line == 8 and load.locations[0].cell == 6


def test_wrong_kernels_earn_nothing(make: Make) -> None:
    check = of(make(FINE, [WRONG, RIGHT]), "coalescing")
    assert check.points == 10
    assert check.evidence[0].message == "build_add: judged once a case of it is correct"
    assert of(make(FINE, [WRONG, WRONG]), "coalescing").points == 0


def test_the_report_shows_sectors_and_intensity(make: Make) -> None:
    add, add_roof, gemm, _ = [note.message for note in observations(make(WASTEFUL, [RIGHT, RIGHT]))]
    assert add == "build_add, sectors per request: line 4 stores out 4 (fewest possible 4)"
    assert "line 8 loads A 8 (fewest possible 1); line 8 stores D 5.1 (fewest possible 4)" in gemm
    assert "1000 FLOP; each tensor moved once is 12000 bytes, 0.0833 FLOP per byte" in add_roof
    assert "ask for 4096 bytes, 0.244 FLOP per byte" in add_roof
    assert "9.71 (fp32 on CUDA cores), 293 (fp16 on tensor cores)" in add_roof
    assert "memory decides its speed: at most 1.87 TFLOPS at 7.672 TB/s" in add_roof


def test_arithmetic_decides_beyond_the_ridge(make: Make) -> None:
    few = [FINE[0], [access(8, False, 10, 10, 10)]]
    assert observations(make(few, [RIGHT, RIGHT]))[3].message.endswith("arithmetic decides its speed")


def test_other_exercises_are_not_observed(exercise: Exercise, make: Make) -> None:
    outcome = make(FINE, [RIGHT, RIGHT])
    outcome.diagnosis = Diagnosis(exercise, outcome.submission, Limits())
    assert observations(outcome) == []


def test_what_coalescing_judges_is_no_lint_as_well(make: Make) -> None:
    outcome = make(FINE, [RIGHT, RIGHT])
    finding = {"strength": "lint", "message": "m", "fix": "f", "locations": [], "names": [], "data": {}}
    outcome.runs[0].findings = [{**finding, "code": code} for code in ("gmem.uncoalesced", "other")]
    assert [note.code for note in lints(outcome)] == ["other"]


def test_unwritten_elements_name_the_grid_the_mask_and_the_store_of_their_kernel(make: Make) -> None:
    outcome = make(FINE, [{**WRONG, "suspect": "coverage"}, {**WRONG, "suspect": "operands"}])
    lines = [[place.line for place in e.locations] for e in of(outcome, "correctness").evidence]
    assert lines == [[3, 4, 2], [], [7, 8, 8], [], []]


def test_a_changed_input_names_the_line_that_writes_it(make: Make) -> None:
    outcome = make(FINE, [RIGHT, RIGHT])
    outcome.runs[0].changed_inputs = ["X"]
    outcome.compiled = [Compiled(COMPILED[0].operations, ["out", "Y", "Z"]), COMPILED[1]]
    assert [place.line for place in of(outcome, "correctness").evidence[0].locations] == [4]


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "times_ideal: 1.25",
            "at_most: {a: 1}",
            "at_most belongs to the checks 'mechanism' and 'resources' only",
        ),
        (
            "        times_ideal: 1.25\n",
            "",
            "times_ideal and the checks 'coalescing' and 'bank_conflicts' belong together",
        ),
        ("flop: [2, M, N, K]", "flop: [2, M, N, L]", "flop uses 'L', which is no parameter"),
        ("flop: [2, M, N, K]", "flop: [2, M, N, K - 48]", "flop uses 'K - 48', which is 0 here"),
        ("flop: [2, M, N, K]", "flop: [2, M, N, K / 2]", "flop: 'K / 2' is not possible here"),
        ("id: gemm_random", "id: add_random", "case 'add_random' appears twice"),
        ("          terms: K\n", "", "kind: rounding_interval needs terms and an accumulate_eps above 0"),
        ("kind: correctly_rounded", "kind: correctly_rounded\n      terms: 2", "terms belong"),
    ],
)
def test_a_broken_course_is_explained(right: str, wrong: str, message: str) -> None:
    text = (REPOSITORY / "course.yaml").read_text(encoding="utf-8")
    assert right in text
    with pytest.raises(CourseError, match=message):
        parse_course(text.replace(right, wrong, 1))
