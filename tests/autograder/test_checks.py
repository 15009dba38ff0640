"""What costs points, decided from made-up outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autograder.checks import CaseRun, Compiled, Outcome, of_all, run_checks
from autograder.checks.synchronization import distinct, lints
from autograder.course import Exercise, Limits
from autograder.diagnosis import Diagnosis, Failure, graders, machines, yours
from autograder.report.model import CheckResult, Fault, Verdict
from autograder.submission import Submission

ANSWERS = {"q1": 2 * 128 * 64 * 2, "q2": 4.0, "q3": "0", "q4": 6}
COUNTERS = {"tcgen05.alloc": 1, "tcgen05.mma": 4, "tcgen05.commit": 1, "tcgen05.ld": 4, "tcgen05.dealloc": 1}
RESOURCES = {"threads_per_cta": 128, "smem_bytes": 33792, "tmem_columns": 128}
RIGHT = {"elements": 16384, "compared": 16384, "mismatches": 0, "unwritten": 0}
WRONG = {
    "elements": 16384,
    "compared": 16384,
    "mismatches": 1,
    "nonfinite": 0,
    "unwritten": 0,
    "first": {"index": [5, 6], "expected": 1.5, "actual": 2.5, "allowed": [1.5, 1.5]},
    "max_error": 1.0,
    "where": "row 5, column 6",
    "meaning": "",
    "suspect": "operands",
    "samples": [],
}
UNWRITTEN = {**WRONG, "mismatches": 16384, "unwritten": 16384}

Make = Callable[..., Outcome]


def finding(**fields: Any) -> dict[str, Any]:
    place = {"file": "/tmp/a/snapshot/kernel.py", "line": 2}
    return {
        "code": "race.smem",
        "strength": "race",
        "message": "m",
        "fix": "f",
        "locations": [place],
        "names": ["A_smem"],
        "data": {},
        **fields,
    }


@pytest.fixture
def make(exercise: Exercise) -> Make:
    """An outcome with one run per case; `runs` and other arguments change it."""

    def build(
        runs: Callable[[int], dict[str, Any]] = lambda case: {},
        answers: dict[str, Any] | None = None,
        resources: dict[str, int] | None = RESOURCES,
        cases: int = 5,
        build_failure: Failure | None = None,
        run_failure: Failure | None = None,
        source: str = "a = 1\nb = 2\n# 3\n# 4\n# 5\n# 6\n",
    ) -> Outcome:
        submission = Submission(
            "exercise_05.ipynb",
            source,
            6,
            "kernel",
            answers=ANSWERS if answers is None else answers,
        )
        outcome = Outcome(Diagnosis(exercise, submission, Limits()), build_failure, run_failure, resources)
        outcome.planned = len(exercise.cases)
        outcome.compiled = [Compiled([], ["A", "B", "out"])]
        for number, case in enumerate(exercise.cases[:cases]):
            fields = {"counters": COUNTERS, "comparison": RIGHT, **runs(number)}
            outcome.runs.append(CaseRun(case.id, case.title, **fields))
        return outcome

    return build


def results(outcome: Outcome) -> dict[str, CheckResult]:
    return {check.id: check for check in run_checks(outcome)}


def points(outcome: Outcome) -> dict[str, float]:
    return {
        name: result.points for name, result in results(outcome).items() if result.points != result.max_points
    }


def test_everything_right(make: Make) -> None:
    assert points(make()) == {}
    assert all(r.verdict is Verdict.PASS and r.fault is None for r in results(make()).values())


def test_each_case_is_worth_the_same(make: Make) -> None:
    outcome = make(lambda case: {"comparison": WRONG} if case in (1, 4) else {})
    assert points(outcome) == {"correctness": 24}
    correctness = results(outcome)["correctness"]
    assert (correctness.verdict, correctness.fault) == (Verdict.PARTIAL, Fault.YOUR_CODE)
    assert [e.data["case"] for e in correctness.evidence] == ["random_early", "one_hot"]
    assert "first D[5, 6]: expected 1.5, got 2.5" in correctness.evidence[0].message


OPERATIONS = [
    {"file": "/t/snapshot/kernel.py", "line": line, "instruction": instruction, "names": names}
    for line, instruction, names in [
        (1, "tcgen05.alloc", ["slot"]),
        (2, "st.shared", ["A_smem"]),
        (3, "tcgen05.mma", ["A_smem", "B_smem"]),
        (4, "tcgen05.ld", []),
        (5, "st.global", ["scratch"]),
        (6, "st.global", ["out"]),
    ]
]


@pytest.mark.parametrize(
    ("suspect", "lines"), [("operands", [2, 3]), ("cast", [4, 6]), ("store", [6]), ("coverage", [6])]
)
def test_wrong_numbers_name_the_lines_that_can_be_wrong(make: Make, suspect: str, lines: list[int]) -> None:
    """Every case points to its lines, but lines that were shown already are not repeated."""
    outcome = make(lambda case: {"comparison": {**WRONG, "suspect": suspect}})
    outcome.compiled = [Compiled(OPERATIONS, ["A", "B", "out"])]
    first, *others = results(outcome)["correctness"].evidence
    assert [place.line for place in first.locations] == lines
    assert all(other.locations == [] for other in others)


def test_casts_are_named_where_the_source_has_them(make: Make) -> None:
    outcome = make(
        lambda case: {"comparison": {**WRONG, "suspect": "cast"}},
        source="x\nTx.cast(a[:], b[:])\nT.ptx['cvt.rz.f16.f32'](a, b)\n",
    )
    outcome.compiled = [Compiled(OPERATIONS, ["A", "B", "out"])]
    assert [p.line for p in results(outcome)["correctness"].evidence[0].locations] == [2, 3]


def test_findings_name_the_lines_themselves(make: Make) -> None:
    outcome = make(lambda case: {"comparison": WRONG, "findings": [finding()]})
    outcome.compiled = [Compiled(OPERATIONS, ["A", "B", "out"])]
    assert all(e.locations == [] for e in results(outcome)["correctness"].evidence)


def test_mechanism_and_resources_name_lines_too(make: Make) -> None:
    source = (
        "T.warpgroup_id([2])  # tcgen05.alloc\n"
        "T.ptx['tcgen05.alloc.x'](slot)\n"
        "pool.commit(9)\n"
        "T.ptx['tcgen05.commit.x'](bar)\n"
    )
    outcome = make(
        lambda n: {"counters": {**COUNTERS, "tcgen05.mma": 1}},
        resources={"tmem_columns": 256, "smem_bytes": 10**6, "threads_per_cta": 256},
        source=source,
    )
    outcome.compiled = [Compiled(OPERATIONS, ["A", "B", "out"])]
    assert [place.line for place in results(outcome)["mechanism"].evidence[0].locations] == [3]
    evidence = results(outcome)["resources"].evidence
    assert {e.data["resource"]: [place.line for place in e.locations] for e in evidence} == {
        "threads_per_cta": [1],
        "tmem_columns": [2],
        "smem_bytes": [3],
    }
    outcome = make(lambda n: {"counters": {"st.global": 1}})
    outcome.compiled = [Compiled(OPERATIONS[-1:], ["A", "B", "out"])]
    evidence = results(outcome)["mechanism"].evidence
    assert [[place.line for place in e.locations] for e in evidence] == [[6], [], [], [], []]


@pytest.mark.parametrize("case", range(5))
def test_one_wrong_case_is_never_lost(make: Make, case: int) -> None:
    assert points(make(lambda n: {"comparison": WRONG} if n == case else {})) == {"correctness": 32}


@pytest.mark.parametrize(
    "seen", [None, {**RIGHT, "compared": 16383}, {**RIGHT, "elements": 0, "compared": 0}]
)
def test_an_output_that_was_not_compared_is_not_right(make: Make, seen: dict[str, Any] | None) -> None:
    assert points(make(lambda n: {"comparison": seen} if n == 2 else {})) == {"correctness": 32}


def test_changed_inputs_are_wrong(make: Make) -> None:
    outcome = make(lambda n: {"changed_inputs": ["B"]} if n == 0 else {})
    assert points(outcome) == {"correctness": 32}
    assert "changed its input B" in results(outcome)["correctness"].evidence[0].message


@pytest.mark.parametrize("strength", ["error", "race"])
def test_findings_cost_synchronization(make: Make, strength: str) -> None:
    outcome = make(lambda n: {"findings": [finding(strength=strength)] if n else []})
    assert points(outcome) == {"synchronization": 0}
    (evidence,) = results(outcome)["synchronization"].evidence
    assert evidence.locations[0].spell() == "notebook cell 6 line 2: b = 2"
    assert (evidence.data["launches"], evidence.data["names"]) == (4, ["A_smem"])


def test_lint_costs_nothing(make: Make) -> None:
    outcome = make(lambda n: {"findings": [finding(strength="lint")]})
    assert points(outcome) == {}
    assert [note.kind for note in lints(outcome)] == ["lint"]


def test_the_same_code_at_two_places_is_two_findings(make: Make) -> None:
    both = [finding(), finding(locations=[{"file": "/t/snapshot/kernel.py", "line": 1}]), finding()]
    assert len(results(make(lambda n: {"findings": both}))["synchronization"].evidence) == 2


@pytest.mark.parametrize(
    ("comparison", "findings", "idle"),
    [(RIGHT, [], 4), (RIGHT, [finding(strength="lint")], 4), (RIGHT, [finding()], 0), (WRONG, [], 0)],
)
def test_decoys_are_looked_for_where_the_output_is_no_accident(
    comparison: dict[str, Any], findings: list[dict[str, Any]], idle: int
) -> None:
    """A race leaves in D what came first: the same kernel would have the marks of its seed."""
    followed = {"untouched": 0, "lines": [{"count": 4, "matters": False}]}
    run = CaseRun("one", "", findings=findings, comparison=comparison, followed=followed)
    assert run.idle_mmas == idle


@pytest.mark.parametrize(
    ("codes", "order"),
    [
        (["many", "early", "overrun", "race", "overrun"], ["overrun", "many", "early", "race"]),
        (["many", "early", "race"], ["many", "early", "race"]),
        (["race", "many", "overrun"], ["race", "many", "overrun"]),
    ],
)
def test_an_overrun_phase_comes_before_the_arrivals_that_it_let_through(
    codes: list[str], order: list[str]
) -> None:
    names = {"many": "mbarrier.too-many-arrivals", "overrun": "mbarrier.phase-overrun"}
    run = CaseRun("one", "", findings=[finding(code=names.get(code, code)) for code in codes])
    assert [f["code"] for f, _ in distinct([run], ("race",))] == [names.get(code, code) for code in order]


def test_a_hang(make: Make) -> None:
    hang = finding(code="deadlock", strength="error", message="warp 0 waits for mma_done")
    outcome = make(lambda n: {"findings": [hang], "comparison": UNWRITTEN})
    lost = points(outcome)
    assert lost == {"correctness": 0, "synchronization": 0}
    assert "the kernel hangs" in results(outcome)["correctness"].evidence[0].message
    assert results(outcome)["synchronization"].evidence[0].message == "warp 0 waits for mma_done"


def test_mechanism_counts_in_every_launch(make: Make) -> None:
    outcome = make(lambda n: {"counters": {**COUNTERS, "tcgen05.mma": 3} if n == 4 else COUNTERS})
    assert points(outcome) == {"mechanism": 0}
    (evidence,) = results(outcome)["mechanism"].evidence
    assert evidence.message == "tcgen05.mma is executed 3 times in a launch, at least 4 needed"
    outcome = make(lambda n: {"counters": {}})
    assert points(outcome) == {"mechanism": 0}


def test_resources_have_thresholds(make: Make) -> None:
    outcome = make(resources={**RESOURCES, "tmem_columns": 512, "smem_bytes": 10**6})
    assert points(outcome) == {"resources": 0}
    assert len(results(outcome)["resources"].evidence) == 2
    unknown = results(make(resources={}))["resources"]
    assert (unknown.verdict, unknown.fault) == (Verdict.ERROR, Fault.GRADER)


def test_an_empty_kernel_earns_nothing_but_its_answers(make: Make) -> None:
    outcome = make(lambda n: {"counters": {"st.shared": 4}, "comparison": UNWRITTEN})
    verdicts = {name: str(r.verdict) for name, r in results(outcome).items()}
    assert verdicts == {
        "predictions": "pass",
        "build": "fail",
        "correctness": "fail",
        "synchronization": "skipped",
        "mechanism": "fail",
        "resources": "skipped",
    }
    assert sum(r.points for r in results(outcome).values()) == 10


def test_writing_zeros_earns_no_more_than_building(make: Make) -> None:
    zeros = {**WRONG, "mismatches": 16384}
    outcome = make(lambda n: {"counters": {"st.global": 4}, "comparison": zeros})
    assert {n: r.points for n, r in results(outcome).items() if r.points} == {"predictions": 10, "build": 10}


def test_a_wrong_kernel_that_uses_the_mechanism_keeps_what_holds(make: Make) -> None:
    assert points(make(lambda n: {"comparison": WRONG})) == {"correctness": 0}


def test_a_failed_build_leaves_the_answers(make: Make) -> None:
    outcome = make(cases=0, resources=None, build_failure=yours("TVM: no", "fix"))
    assert {n: r.points for n, r in results(outcome).items() if r.points} == {"predictions": 10}
    assert results(outcome)["build"].verdict is Verdict.FAIL
    assert {r.reason for n, r in results(outcome).items() if r.verdict is Verdict.SKIPPED} == {
        "the kernel does not build"
    }


@pytest.mark.parametrize("failure", [graders("crash"), machines("no memory")])
@pytest.mark.parametrize("phase", ["build_failure", "run_failure"])
@pytest.mark.parametrize("cases", [0, 2])
def test_what_the_learner_did_not_do_is_not_blamed_on_them(
    make: Make, failure: Failure, phase: str, cases: int
) -> None:
    outcome = make(cases=cases if phase == "run_failure" else 0, **{phase: failure})
    seen = results(outcome)
    assert failure.fault in {r.fault for r in seen.values()}
    assert all(r.fault in (None, failure.fault) for r in seen.values())
    assert any(r.verdict is Verdict.ERROR and r.summary == failure.message for r in seen.values())


def test_a_launch_that_never_ends_costs_correctness(make: Make) -> None:
    seen = results(make(cases=2, run_failure=yours("stopped after 60 s")))
    assert (seen["correctness"].points, seen["correctness"].verdict) == (16, Verdict.PARTIAL)
    assert seen["correctness"].evidence[-1].message == "stopped after 60 s"
    assert seen["synchronization"].verdict is Verdict.SKIPPED
    seen = results(make(cases=0, run_failure=yours("stopped after 60 s")))
    assert (seen["correctness"].points, seen["correctness"].verdict) == (0, Verdict.FAIL)


@pytest.mark.parametrize(
    ("answers", "earned"),
    [
        (ANSWERS, 10),
        ({}, 0),
        ({**ANSWERS, "q1": 1}, 8),
        ({**ANSWERS, "q4": None}, 7),
        ({**ANSWERS, "q3": True}, 8),
        ({**ANSWERS, "q3": False}, 8),
        ({**ANSWERS, "q3": float("nan")}, 8),
        ({"q1": "32768", "q2": "four"}, 2),
    ],
)
def test_answers(make: Make, answers: dict[str, Any], earned: float) -> None:
    predictions = results(make(answers=answers))["predictions"]
    assert predictions.points == earned
    assert len(predictions.evidence) == 4 - sum(
        q in answers and q not in "".join(e.message[:2] for e in predictions.evidence) for q in ANSWERS
    )


def test_evidence_never_tells_the_right_answer(make: Make) -> None:
    predictions = results(make(answers={"q1": 1, "q2": 1, "q3": 1, "q4": 1}))["predictions"]
    text = " ".join(e.message for e in predictions.evidence)
    assert "32768" not in text and "got" not in text
    assert text.count("is not right") == 4


def test_an_answer_to_no_question_is_mentioned(make: Make) -> None:
    evidence = results(make(answers={**ANSWERS, "q1": None, "Q1": 32768}))["predictions"].evidence
    assert any("there is no question 'Q1'; did you mean 'q1'" in e.message for e in evidence)


def test_one_is_no_plural() -> None:
    assert [of_all(n, n, "case") for n in (0, 1, 4)] == ["0 of 0 cases", "1 of 1 case", "4 of 4 cases"]
