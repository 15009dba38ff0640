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
            message=_message(name, seen, check.at_least[name]),
            locations=outcome.lines_of(name),
            data={"counter": name, "seen": seen, "at_least": check.at_least[name]},
        )
        for name, seen in missing.items()
    ]
    if len(missing) == len(check.at_least) and not any(e.locations for e in evidence):
        evidence[0].locations = outcome.lines_on_output()
    return result(check, Verdict.FAIL, 0, f"missing: {', '.join(missing)}", evidence)


def _message(name: str, seen: int, needed: int) -> str:
    if seen == 0:
        return f"{name} is never executed"
    return f"{name} is executed {seen} time{'s' if seen > 1 else ''} in a launch, at least {needed} needed"
