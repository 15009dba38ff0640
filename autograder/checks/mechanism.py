"""mechanism: the instructions that the exercise teaches were really executed, counted by the emulator."""

from __future__ import annotations

from autograder.checks import Outcome, check, missing_counters, result, unless_run
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Verdict


@check
def mechanism(check: Check, outcome: Outcome) -> CheckResult:
    early = unless_run(check, outcome)
    if early is not None:
        return early
    missing = missing_counters(check, outcome.runs)
    if not missing:
        return result(check, Verdict.PASS, check.points, "all required instructions are executed")
    evidence = [
        Evidence(
            kind="counter",
            message=f"{name} is executed {_times(seen)} per launch, at least {check.at_least[name]} needed",
            data={"counter": name, "seen": seen, "at_least": check.at_least[name]},
        )
        for name, seen in missing.items()
    ]
    return result(check, Verdict.FAIL, 0, f"missing: {', '.join(missing)}", evidence)


def _times(count: int) -> str:
    return "never" if count == 0 else "once" if count == 1 else f"{count} times"
