"""speed: how a right kernel's time, measured or modelled, stands to the tiers of course.yaml."""

from __future__ import annotations

from autograder.checks import CHECKS, Outcome, check, result, skipped, unless_run
from autograder.course import Check
from autograder.report.model import (
    CheckResult,
    Evidence,
    Fault,
    Location,
    Measured,
    ModelledTime,
    Tier,
    Verdict,
)

HALF = 0.5  # of the points, for the tier `partial`
SHARE: dict[Tier, float] = {"full": 1.0, "partial": HALF, "none": 0.0}
VERDICT: dict[Tier, Verdict] = {"full": Verdict.PASS, "partial": Verdict.PARTIAL, "none": Verdict.FAIL}


@check
def speed(check: Check, outcome: Outcome) -> CheckResult:
    """The slowest of the timed kernels decides."""
    early = unless_run(check, outcome)
    if early is not None:
        return early
    if not outcome.runs or not all(run.correct for run in outcome.runs) or outcome.missing:
        return skipped(check, "only a kernel that is right in every case is timed", _whose_fault(outcome))
    if outcome.untimed:
        return _untimed(check, outcome)
    if outcome.measured:
        return _measured(check, outcome.measured)
    if outcome.modelled:
        return _modelled(check, outcome)
    if outcome.run_failure is not None:
        return skipped(check, "the kernel did not run in every case", outcome.run_failure.fault)
    return skipped(check, "this grade was not asked for the speed")


def _whose_fault(outcome: Outcome) -> Fault:
    """Who is to blame that a case is not right: the grader or the machine where the check of correctness says so."""
    found = [
        CHECKS[one.kind](one, outcome).fault for one in outcome.exercise.checks if one.kind == "correctness"
    ]
    others = [fault for fault in found if fault in (Fault.GRADER, Fault.MACHINE)]
    return others[0] if others else Fault.YOUR_CODE


def _untimed(check: Check, outcome: Outcome) -> CheckResult:
    failure = next((f for f in outcome.untimed if f.fault is Fault.YOUR_CODE), outcome.untimed[0])
    evidence = [one.evidence() for one in outcome.untimed]
    verdict = Verdict.FAIL if failure.fault is Fault.YOUR_CODE else Verdict.ERROR
    return result(check, verdict, 0, failure.message, evidence, failure.fault)


def _measured(check: Check, measured: list[Measured]) -> CheckResult:
    failed = next((m for m in measured if m.verdict == "error" or not m.goals), None)
    if failed is not None:
        fault = failed.fault or Fault.MACHINE
        verdict = Verdict.FAIL if fault is Fault.YOUR_CODE else Verdict.ERROR
        message = f"no time was measured: {failed.message}"
        return result(check, verdict, 0, message, [Evidence(kind="error", message=message)], fault)
    worst = min(measured, key=lambda m: SHARE[m.tier])
    summary = f"measured on {worst.device}: {_reached(worst)}"
    evidence = [_evidence(m, "measured", m.device, "", []) for m in measured if m.tier != "full"]
    return _scored(check, worst.tier, summary, evidence)


def _modelled(check: Check, outcome: Outcome) -> CheckResult:
    worst = min(outcome.modelled, key=lambda m: SHARE[m.tier])
    summary = f"modelled on {worst.device}: {_reached(worst)}"
    evidence = [
        _evidence(m, "modelled", m.device, m.bottleneck, lines)
        for m, lines in zip(outcome.modelled, outcome.slow_lines, strict=True)
        if m.tier != "full"
    ]
    return _scored(check, worst.tier, summary, evidence)


def _scored(check: Check, tier: Tier, summary: str, evidence: list[Evidence]) -> CheckResult:
    return result(check, VERDICT[tier], SHARE[tier] * check.points, summary, evidence)


def _reached(time: Measured | ModelledTime) -> str:
    """The yardstick that counts, in a few words."""
    best = max(time.goals, key=lambda goal: (SHARE[goal.tier], goal.ratio / goal.full))
    us = time.kernel_us if isinstance(time, Measured) else time.microseconds
    what = "PyTorch's speed" if best.to == "library" else "the roofline"
    return f"{us:.1f} µs, {100 * best.ratio:.0f} % of {what} ({100 * best.full:g} wanted)"


def _evidence(
    time: Measured | ModelledTime, how: str, device: str, why: str, lines: list[Location]
) -> Evidence:
    sizes = ", ".join(f"{name} = {value}" for name, value in time.params.items())
    us = time.kernel_us if isinstance(time, Measured) else time.microseconds
    goals = "; ".join(goal.sentence() for goal in time.goals)
    return Evidence(
        kind="counter",
        message=f"{time.builder}({sizes}), {how} on {device}, takes {us:.1f} µs: {goals}",
        fix=why or "`autograde timeline` shows, modelled, which warp waits for what",
        locations=lines,
        data={"how": how, "microseconds": us, "goals": [goal.model_dump() for goal in time.goals]},
    )
