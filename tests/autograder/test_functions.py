"""The checks `functions` and `bank_conflicts`, from made-up outcomes, and the swizzles that they know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autograder.checks import CaseRun, Compiled, Outcome, run_checks
from autograder.checks.bank_conflicts import observations
from autograder.checks.synchronization import lints
from autograder.course import Course, Exercise, Limits, parse_course
from autograder.diagnosis import Diagnosis, Failure
from autograder.report.html import fragment
from autograder.report.model import CheckResult, Fault, GradeReport, Source, Verdict
from autograder.report.terminal import make_console, show
from autograder.runner.build import Table
from autograder.submission import Submission
from autograder.swizzles import SWIZZLES, Swizzle
from emulator.checks.bank_conflicts import Pattern, shared_conflict
from emulator.machine.swizzle import SwizzleMode, apply

from .conftest import course_of

DOMAIN = 2048
FILE = "/tmp/a/snapshot/kernel.py"
SOURCE = """def swizzle_32(offset):
    swizzled = offset
    return swizzled
def swizzle_128(offset):
    return offset
def build_kernel(M, N, K):
    regs = tile[lane, 0]
    out[0, lane] = regs
"""
RIGHT = {"elements": 10, "compared": 10, "mismatches": 0, "unwritten": 0}
WRONG = {**RIGHT, "mismatches": 3, "where": "w", "first": None, "meaning": "", "suspect": "store"}
COMPILED = Compiled(
    [
        {"file": FILE, "line": 7, "instruction": "ldmatrix", "names": ["tile"]},
        {"file": FILE, "line": 8, "instruction": "st.shared", "names": ["out"]},
    ],
    ["A", "B", "D"],
)


@pytest.fixture(scope="module")
def exercise() -> Exercise:
    text = course_of("exercise_05").replace(
        "    checks:\n",
        "    functions:\n"
        + "".join(
            f"      - {{name: {n}, domain: {DOMAIN}, reference: {n}}}\n"
            for n in ("swizzle_32", "swizzle_128")
        )
        + "    checks:\n"
        "      - {id: functions, title: F, points: 10, looks_at: f}\n"
        "      - {id: bank_conflicts, title: B, points: 10, looks_at: b, times_ideal: 1}\n",
    )
    return parse_course(text).exercises[0]


@pytest.fixture
def outcome(exercise: Exercise) -> Outcome:
    submission = Submission("exercise_05.ipynb", SOURCE, 6, "kernel")
    outcome = Outcome(Diagnosis(exercise, submission, Limits()), resources={}, compiled=[COMPILED])
    for case in exercise.cases:
        outcome.runs.append(CaseRun(case.id, case.title, comparison=RIGHT))
    outcome.planned = len(outcome.runs)
    return outcome


def of(outcome: Outcome, check: str) -> CheckResult:
    return next(c for c in run_checks(outcome) if c.id == check)


def shown(result: CheckResult, notes: list[Any] | None = None) -> tuple[str, str]:
    """The result in the terminal and as HTML."""
    import io

    report = GradeReport(
        exercise="exercise_05", title="t", points=0, max_points=10, device="d", seed=1,
        source=Source(kind="notebook", name="n", sha256="0"), checks=[result], notes=notes or [],
    )  # fmt: skip
    out = io.StringIO()
    show(report, make_console(True, out, 80), True)
    return out.getvalue(), fragment(report)


# Functions --------------------------------------------------------------------------------------


def table(function: Callable[[int], int]) -> Table:
    return Table(tuple(function(n) for n in range(DOMAIN)))


@pytest.mark.parametrize(("name", "mode"), [("swizzle_32", 1), ("swizzle_64", 2), ("swizzle_128", 3)])
def test_the_references_are_the_swizzles_of_the_emulator(name: str, mode: int) -> None:
    offsets = np.arange(16384)
    wanted = apply(SwizzleMode(mode), offsets)
    assert [SWIZZLES[name](n) for n in offsets.tolist()] == wanted.tolist()
    assert SWIZZLES[name].row_bytes == SwizzleMode(mode).row_bytes


def test_equal_functions_get_the_points(outcome: Outcome) -> None:
    outcome.tables = {name: table(SWIZZLES[name]) for name in ("swizzle_32", "swizzle_128")}
    result = of(outcome, "functions")
    assert (result.verdict, result.points, result.summary) == (Verdict.PASS, 10, "2 of 2 functions")


@pytest.mark.parametrize("offset", [0, 17, 1024, DOMAIN - 1])
@pytest.mark.parametrize("change", [1, -1, 16, 1 << 40])
def test_one_wrong_value_anywhere_costs_the_function(outcome: Outcome, offset: int, change: int) -> None:
    wrong = list(table(SWIZZLES["swizzle_32"]).values)
    wrong[offset] += change
    outcome.tables = {"swizzle_32": Table(tuple(wrong)), "swizzle_128": table(SWIZZLES["swizzle_128"])}
    result = of(outcome, "functions")
    assert (result.verdict, result.points) == (Verdict.PARTIAL, 5)
    (evidence,) = result.evidence
    expected = SWIZZLES["swizzle_32"](offset)
    call = f"first swizzle_32({offset}): expected {expected}, got {expected + change}"
    assert evidence.message == f"swizzle_32: 1 of {DOMAIN} offsets are wrong; {call}"
    assert [place.line for place in evidence.locations] == [2, 3]
    terminal, html = shown(result)
    assert "wanted" in terminal and "<svg" in html


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (
            lambda n: n,
            "it returns every offset as it came; the 64-byte swizzle XORs bits 7 to 8 of the offset into bits 4 to 5",
        ),
        (SWIZZLES["swizzle_128"], "it is the 128-byte swizzle; "),
        (lambda n: n ^ (n >> 6 & 3) << 4, "it XORs bits 6 to 7 of the offset into bits 4 to 5; "),
        (lambda n: n ^ (n >> 7 & 3) << 5, "it XORs bits 7 to 8 of the offset into bits 5 to 6; "),
        (
            lambda n: n - n % 64 + (n + n // 128 % 4 * 16) % 64,
            "it adds the line's number to the chunk's number",
        ),
        (lambda n: n ^ n >> 7 & 3, "it tears chunks apart: "),
        (lambda n: n * 2 ^ 64, "it tears chunks apart: "),
        (lambda n: n + 128, "it moves bytes to another line"),
        (lambda n: n & ~16, "it puts two bytes in one place"),
    ],
)
def test_classic_mistakes_in_a_swizzle_are_named(mistake: Callable[[int], int], words: str) -> None:
    mode = SWIZZLES["swizzle_64"]
    values = table(mistake).values
    assert mode.explain(values).startswith(words)
    for grid in mode.picture(values):
        assert len(grid.cells) == 8


def test_the_picture_marks_the_chunks_that_lie_elsewhere() -> None:
    mode = Swizzle(3)
    wanted, yours = mode.picture([n ^ (n >> 8 & 7) << 4 for n in range(DOMAIN)])
    assert wanted.cells[5] == [f"5.{5 ^ position}" for position in range(8)]
    assert yours.cells[5] == [f"5.{2 ^ position}" for position in range(8)]
    assert {row for row, _ in yours.marked} == {1, 2, 3, 4, 5, 6, 7} and wanted.marked == []
    assert mode.picture(range(DOMAIN)) == []


def test_no_table_is_explained(outcome: Outcome) -> None:
    outcome.build_failure = Failure(Fault.YOUR_CODE, "NameError")
    assert of(outcome, "functions").verdict is Verdict.SKIPPED
    outcome.tables = {"swizzle_32": Table(failure=Failure(Fault.YOUR_CODE, "swizzle_32(0) returns None"))}
    result = of(outcome, "functions")
    assert (result.verdict, result.points) == (Verdict.FAIL, 0)
    assert [evidence.message for evidence in result.evidence] == [
        "swizzle_32(0) returns None",
        "swizzle_128: the code ended before it was computed",
    ]
    outcome.tables, outcome.build_failure = {}, Failure(Fault.MACHINE, "killed")
    assert of(outcome, "functions").fault is Fault.MACHINE


# Bank conflicts ---------------------------------------------------------------------------------


def access(line: int, addresses: list[int], nbytes: int, requests: int = 8) -> dict[str, Any]:
    seen = shared_conflict(np.array(addresses), nbytes)
    pattern = Pattern(tuple(range(len(addresses))), tuple(addresses), nbytes)
    return {
        "file": FILE, "line": line, "space": "shared", "write": line == 8, "requests": requests,
        "passes": requests * seen.wavefronts, "ideal": requests * seen.ideal,
        "pattern": {
            "lanes": list(pattern.lanes), "addresses": addresses, "bytes": nbytes, "groups": pattern.groups
        },
    }  # fmt: skip


PLAIN = [1024 + 128 * lane for lane in range(32)]
SWIZZLED = [1024 + SWIZZLES["swizzle_128"](128 * lane) for lane in range(32)]


def test_without_a_conflict_the_points_and_the_pictures_as_notes(outcome: Outcome) -> None:
    for run in outcome.runs:
        run.accesses = [access(7, SWIZZLED, 16), access(8, list(range(0, 128, 4)), 4)]
    result = of(outcome, "bank_conflicts")
    assert (result.verdict, result.points) == (Verdict.PASS, 10)
    assert result.summary == "40 wavefronts per launch, 40 would do"
    notes = observations(outcome)
    assert [note.message for note in notes] == [
        "ldmatrix (tile): a warp's request takes 4 wavefronts, the fewest possible",
        "st.shared (out): a warp's request takes 1 wavefronts, the fewest possible",
    ]
    assert notes[0].pictures[0].text[-1] == "wavefront 1  00001111222233334444555566667777"
    assert notes[1].pictures[0].text[-2] == "wavefront 1  0123456789abcdefghijklmnopqrstuv"
    assert not notes[0].pictures[0].marked


def test_a_conflict_costs_the_points_and_says_which_lanes_and_banks(outcome: Outcome) -> None:
    for run in outcome.runs:
        run.accesses = [access(7, PLAIN, 16), access(8, SWIZZLED, 16)]
        run.findings = [
            {"code": "smem.bank-conflict", "strength": "lint", "message": "m", "fix": "", "locations": [],
             "names": [], "data": {}}
        ]  # fmt: skip
    result = of(outcome, "bank_conflicts")
    assert (result.verdict, result.points, result.fault) == (Verdict.FAIL, 0, Fault.YOUR_CODE)
    (evidence,) = result.evidence
    assert evidence.message == (
        "ldmatrix (tile): 8-way bank conflict: lanes 0 to 7 want different words of banks 0 to 3;"
        " a warp's request takes 32 wavefronts, 4 would do"
    )
    assert evidence.locations[0].line == 7 and evidence.code == "smem.bank-conflict"
    (grid,) = evidence.pictures
    assert grid.cells[2] == ["3"] * 4 + [""] * 28
    assert len(grid.marked) == 7 * 4
    terminal, html = shown(result)
    assert "      wavefront 8  7777............................" in terminal
    assert "<svg" in html and "wavefront that serves it" in html
    assert len(observations(outcome)) == 1 and lints(outcome) == []


@pytest.mark.parametrize(("stride", "degree"), [(4, 1), (8, 2), (12, 1), (128, 32), (136, 2), (132, 1)])
def test_the_picture_agrees_with_the_emulator(outcome: Outcome, stride: int, degree: int) -> None:
    addresses = [stride * lane for lane in range(32)]
    for run in outcome.runs:
        run.accesses = [access(7, addresses, 4)]
    result = of(outcome, "bank_conflicts")
    grids = result.evidence[0].pictures if degree > 1 else observations(outcome)[0].pictures
    assert max(int(cell) for row in grids[0].cells for cell in row if cell) == degree
    assert f"wavefront {degree} " in "\n".join(grids[0].text)
    seen = shared_conflict(np.array(addresses), 4)
    if degree > 1:
        assert result.evidence[0].data["lanes"] == list(seen.lanes)
        assert seen.bank in result.evidence[0].data["banks"]


def test_what_is_judged_late_or_not_at_all(outcome: Outcome) -> None:
    for run in outcome.runs:
        run.accesses, run.comparison = [access(7, PLAIN, 16)], WRONG
    result = of(outcome, "bank_conflicts")
    assert (
        result.points == 0
        and result.evidence[0].message == "build_kernel: judged once a case of it is correct"
    )
    assert "32 wavefronts, 4 would do" in observations(outcome)[0].message
    for run in outcome.runs:
        run.accesses, run.comparison = [], RIGHT
    result = of(outcome, "bank_conflicts")
    assert result.points == 0 and "no thread loads from SMEM" in result.evidence[0].message


def test_other_exercises_have_no_such_notes(course: Course) -> None:
    submission = Submission("exercise_05.ipynb", SOURCE, 6, "kernel")
    plain = Outcome(Diagnosis(course.find("5"), submission, Limits()), compiled=[COMPILED])
    plain.runs = [CaseRun("c", "c", comparison=RIGHT, accesses=[access(7, PLAIN, 16)])]
    assert observations(plain) == []
