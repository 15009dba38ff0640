"""synchronization: what the emulator saw while the kernel ran, over all launches.

Findings of strength `error` (proven wrong) and `race` (a legal execution gives another result) cost all
points; `lint` (against the letter of the ISA, works on today's hardware) is shown and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autograder.checks import COSTLY, CaseRun, Outcome, check, result, skipped, unless_run
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Fault, Verdict


@check
def synchronization(check: Check, outcome: Outcome) -> CheckResult:
    early = unless_run(check, outcome)
    if early is not None:
        return early
    if outcome.exercise.stages:
        return _by_stage(check, outcome)
    return _of_all(check, outcome)


def _by_stage(check: Check, outcome: Outcome) -> CheckResult:
    """Each stage is worth the same; one that does not run, or in which nothing works, earns nothing."""
    stages = outcome.exercise.stages
    parts = {stage: outcome.of_stage(stage) for stage in stages}
    whole = [stage for stage, part in parts.items() if len(part.runs) == part.planned]
    clean = [stage for stage in whole if _of_all(check, parts[stage]).verdict is Verdict.PASS]
    if not clean:
        return _of_all(check, outcome)
    if len(clean) == len(stages):
        return result(check, Verdict.PASS, check.points, f"no findings in {len(outcome.runs)} launches")
    costly = distinct(outcome.runs, COSTLY)
    evidence = [finding_evidence(f, outcome, launches) for f, launches in costly]
    if not evidence:
        rest = ", ".join(stage for stage in stages if stage not in clean)
        evidence = [
            Evidence(kind="note", message=f"not judged before it runs and has something right: {rest}")
        ]
    points = check.points * len(clean) / len(stages)
    return result(
        check, Verdict.PARTIAL, points, f"no findings in {len(clean)} of {len(stages)} stages", evidence
    )


def _of_all(check: Check, outcome: Outcome) -> CheckResult:
    evidence = [finding_evidence(f, outcome, runs) for f, runs in distinct(outcome.runs, COSTLY)]
    if evidence:
        what = "1 finding" if len(evidence) == 1 else f"{len(evidence)} findings"
        return result(check, Verdict.FAIL, 0, what, evidence)
    failure = outcome.run_failure
    if failure is not None and failure.fault is not Fault.YOUR_CODE:
        return skipped(check, f"not graded, because {failure.fault} failed", failure.fault)
    if failure is not None:
        return skipped(check, "the kernel did not run to its end")
    if not outcome.substantial:
        return skipped(
            check, "nothing to judge: no case is correct, and not all of the mechanism was executed"
        )
    return result(check, Verdict.PASS, check.points, f"no findings in {len(outcome.runs)} launches")


def lints(outcome: Outcome) -> list[Evidence]:
    """Findings that cost nothing. What the checks `coalescing` and `bank_conflicts` judge is no finding here."""
    by_check = {"coalescing": "gmem.uncoalesced", "bank_conflicts": "smem.bank-conflict"}
    judged = [code for kind, code in by_check.items() if outcome.exercise.check(kind)]
    found = [(f, runs) for f, runs in distinct(outcome.runs, ("lint",)) if f["code"] not in judged]
    return [finding_evidence(f, outcome, runs, "lint") for f, runs in found]


def same_mistake(finding: dict[str, Any]) -> tuple[Any, ...]:
    """What two findings of the same mistake have in common: their code and their places."""
    return (finding["code"], *((place["file"], place["line"]) for place in finding["locations"]))


def distinct(runs: Iterable[CaseRun], strengths: tuple[str, ...]) -> list[tuple[dict[str, Any], int]]:
    """(finding, number of launches that showed it), one per code and place, in order of first appearance, but a cause first.

    Too many arrivals in a phase often mean that somebody arrived who should still have waited: where a phase was overrun, that
    comes first.
    """
    seen: dict[tuple[Any, ...], tuple[dict[str, Any], int]] = {}
    for run in runs:
        in_this_run = set()
        for finding in run.findings:
            if finding["strength"] not in strengths:
                continue
            key = same_mistake(finding)
            first, count = seen.get(key, (finding, 0))
            seen[key] = (first, count + (key not in in_this_run))
            in_this_run.add(key)
    found = list(seen.values())
    if found and found[0][0]["code"] == "mbarrier.too-many-arrivals":
        cause = next((one for one in found if one[0]["code"] == "mbarrier.phase-overrun"), None)
        found.sort(key=lambda one: one is not cause)
    return found


def finding_evidence(
    finding: dict[str, Any], outcome: Outcome, launches: int, kind: str = "finding"
) -> Evidence:
    """A finding with its places spelled as the learner's lines."""
    return Evidence(
        kind="lint" if kind == "lint" else "finding",
        code=finding["code"],
        message=finding["message"],
        fix=finding["fix"],
        locations=[outcome.diagnosis.location(p["file"], p["line"]) for p in finding["locations"]],
        data={
            **finding["data"],
            "strength": finding["strength"],
            "names": finding["names"],
            "launches": launches,
        },
    )
