"""correctness: every element of the output, for every case. Each case is worth the same."""

from __future__ import annotations

from typing import Any

from autograder.checks import CaseRun, Outcome, check, result, unless_run
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Fault, Verdict


@check
def correctness(check: Check, outcome: Outcome) -> CheckResult:
    failure = outcome.run_failure
    if failure is not None and failure.fault is not Fault.YOUR_CODE:
        return result(check, Verdict.ERROR, 0, failure.message, [failure.evidence()], failure.fault)
    if failure is not None and not outcome.runs:
        return result(check, Verdict.FAIL, 0, failure.message, [failure.evidence()])
    early = unless_run(check, outcome)
    if early is not None:
        return early
    planned = len(outcome.runs)
    if failure is not None:  # it stopped between two cases
        planned = len(outcome.exercise.cases)
    right = [run for run in outcome.runs if run.correct]
    evidence = [_evidence(run, outcome) for run in outcome.runs if not run.correct]
    evidence.sort(key=lambda e: not e.fix)  # the case that explains the mistake comes first
    if failure is not None:
        evidence.append(failure.evidence())
    summary = f"{len(right)} of {planned} cases"
    if len(right) == planned:
        return result(check, Verdict.PASS, check.points, summary)
    verdict = Verdict.PARTIAL if right else Verdict.FAIL
    return result(check, verdict, check.points * len(right) / planned, summary, evidence)


def _evidence(run: CaseRun, outcome: Outcome) -> Evidence:
    if any(finding["code"] == "deadlock" for finding in run.findings):
        return Evidence(kind="mismatch", message=f"{run.title}: the kernel hangs", data={"case": run.case})
    if run.changed_inputs:
        names = ", ".join(run.changed_inputs)
        return Evidence(
            kind="mismatch",
            message=f"{run.title}: the kernel changed its input {names}",
            fix="write to the output only",
            data={"case": run.case, "changed_inputs": run.changed_inputs},
        )
    seen = run.comparison
    if seen is None or not seen["mismatches"]:
        return Evidence(
            kind="mismatch", message=f"{run.title}: no complete output came back", data={"case": run.case}
        )
    output = next(t.name for t in outcome.exercise.tensors if t.role == "output")
    message = f"{run.title}: {seen['mismatches']} of {seen['elements']} elements are wrong ({seen['where']})"
    first = seen["first"]
    if first is not None:
        index = ", ".join(str(i) for i in first["index"])
        message += f"; first {output}[{index}]: expected {_spell(first['expected'])}, {_got(first['actual'])}"
    return Evidence(kind="mismatch", message=message, fix=seen["meaning"], data={"case": run.case, **seen})


def _got(actual: Any) -> str:
    return actual if actual == "never written" else f"got {_spell(actual)}"


def _spell(number: Any) -> str:
    return number if isinstance(number, str) else f"{number:.6g}"
