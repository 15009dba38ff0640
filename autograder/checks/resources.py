"""resources: what one CTA occupies stays below the thresholds of course.yaml."""

from __future__ import annotations

from autograder.checks import Outcome, check, result, skipped, unless_run
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Fault, Verdict

CAUSES = {"tmem_columns": "tcgen05.alloc"}  # the instruction whose lines explain a resource


@check
def resources(check: Check, outcome: Outcome) -> CheckResult:
    early = unless_run(check, outcome)
    if early is not None:
        return early
    if not outcome.substantial:
        return skipped(
            check, "nothing to judge: no case is correct, and the kernel does not use the mechanism"
        )
    used = outcome.resources or {}
    unknown = [name for name in check.at_most if name not in used]
    if unknown:
        message = f"the emulator did not report {', '.join(unknown)}"
        return result(
            check, Verdict.ERROR, 0, message, [Evidence(kind="error", message=message)], Fault.GRADER
        )
    evidence = [
        Evidence(
            kind="resource",
            message=f"{name} is {used[name]}, at most {most} allowed",
            locations=outcome.lines_of(CAUSES.get(name, "")),
            data={"resource": name, "used": used[name], "at_most": most},
        )
        for name, most in check.at_most.items()
        if used[name] > most
    ]
    summary = ", ".join(f"{name} {used[name]}" for name in check.at_most)
    if evidence:
        return result(check, Verdict.FAIL, 0, summary, evidence)
    return result(check, Verdict.PASS, check.points, summary)
