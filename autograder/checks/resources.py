"""resources: what one CTA occupies stays below the thresholds of course.yaml."""

from __future__ import annotations

from autograder.checks import Outcome, check, result, skipped, unless_run
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Fault, Verdict

# How to find the lines that decide a resource: in TIRx, SMEM is sized where the pool is committed.
CAUSES = {
    "tmem_columns": r"tcgen05\.alloc\b",
    "smem_bytes": r"^\s*\w+\.commit\(",
    "threads_per_cta": r"T\.(thread_id|warp_id|warp_id_in_wg|warpgroup_id)\(",
}


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
            locations=outcome.lines_with(CAUSES[name]) if name in CAUSES else [],
            data={"resource": name, "used": used[name], "at_most": most},
        )
        for name, most in check.at_most.items()
        if used[name] > int(most)
    ]
    summary = ", ".join(f"{name} {used[name]}" for name in check.at_most)
    if evidence:
        return result(check, Verdict.FAIL, 0, summary, evidence)
    return result(check, Verdict.PASS, check.points, summary)
