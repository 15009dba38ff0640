"""build: the builder returns a PrimFunc with the right buffers, TVM lowers it, and it does something."""

from __future__ import annotations

from autograder.checks import Outcome, check, result, skipped
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Fault, Verdict


@check
def build(check: Check, outcome: Outcome) -> CheckResult:
    failure = outcome.build_failure
    if failure is not None and failure.fault is not Fault.YOUR_CODE:
        return result(check, Verdict.ERROR, 0, failure.message, [failure.evidence()], failure.fault)
    if failure is not None:
        return result(check, Verdict.FAIL, 0, failure.message, [failure.evidence()])
    stopped = outcome.run_failure
    if stopped is not None and stopped.fault is not Fault.YOUR_CODE:
        return skipped(check, f"not graded, because {stopped.fault} failed", stopped.fault)
    if stopped is not None and not outcome.runs:
        return result(check, Verdict.PASS, check.points, "builds and lowers")
    if not outcome.does_something:
        empty = Evidence(
            kind="note",
            message="it builds, but writes nothing to its output and does not use the mechanism yet",
            fix="fill in the solution cell, then grade again",
        )
        return result(check, Verdict.FAIL, 0, empty.message, [empty])
    wrong = [failure for failure in outcome.missing.values() if not failure.unwritten]
    if wrong:
        some = f"{len(wrong)} of {len(outcome.exercise.kernels)} problem sizes do not build"
        evidence = [failure.evidence() for failure in wrong]
        return result(check, Verdict.FAIL, 0, some, list({e.message: e for e in evidence}.values()))
    if outcome.missing:
        there, every = len(outcome.compiled) - len(outcome.missing), len(outcome.compiled)
        return result(
            check, Verdict.PASS, check.points, f"builds and lowers for {there} of {every} problem sizes"
        )
    return result(check, Verdict.PASS, check.points, "builds and lowers")
