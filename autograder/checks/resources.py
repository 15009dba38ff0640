"""resources: what one CTA occupies stays below the thresholds of course.yaml."""

from __future__ import annotations

from autograder.assembly import Assembly
from autograder.checks import Outcome, check, result, skipped, unless_run
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Fault, Verdict

# How to find the lines that decide a resource: in TIRx, SMEM is sized where the pool is committed.
CAUSES = {
    "tmem_columns": r"tcgen05\.alloc\b|\bTMEMPool\(",
    "smem_bytes": r"^\s*\w+\.commit\(",
    "threads_per_cta": r"T\.(thread_id|warp_id|warp_id_in_wg|warpgroup_id)\(",
}
# What ptxas counts, per thread or per CTA, and what helps against too much of it.
MEANING = {
    "registers": "per thread",
    "spill_bytes": "per thread, stored to and loaded from local memory because registers ran out",
    "static_smem_bytes": "per CTA, beside the pool",
    "barriers": "per CTA, of sixteen",
}
FIXES = {
    "registers": "Hold fewer values in registers at a time: read the accumulator back in narrower pieces.",
    "spill_bytes": "Hold fewer values in registers at a time: read the accumulator back in narrower pieces.",
}


@check
def resources(check: Check, outcome: Outcome) -> CheckResult:
    early = unless_run(check, outcome)
    if early is not None:
        return early
    if not outcome.substantial:
        return skipped(
            check, "nothing to judge: no case is correct, and not all of the mechanism was executed"
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
    if check.assembly is not None:
        summary = f"{summary}; {_spelled(outcome.assembly)}"
        evidence += _of_assembly(check.assembly, outcome)
    if evidence:
        return result(check, Verdict.FAIL, 0, summary, evidence)
    return result(check, Verdict.PASS, check.points, summary)


def _spelled(assembly: Assembly | None) -> str:
    """What nvcc reports, or why nothing was compiled; for the summary."""
    if assembly is None or assembly.reason:
        return f"assembly not looked at: {assembly.reason if assembly else 'nothing was compiled'}"
    if assembly.error:
        return f"nvcc {assembly.compiler} rejects the generated CUDA source"
    return f"nvcc {assembly.compiler}: " + ", ".join(f"{name} {n}" for name, n in assembly.used.items())


def _of_assembly(bounds: dict[str, int], outcome: Outcome) -> list[Evidence]:
    """What nvcc's code occupies beyond its bounds; nothing where nothing was compiled."""
    assembly = outcome.assembly
    if assembly is None or assembly.reason:
        return []
    if assembly.error:
        message = f"the CUDA source that TVM generates does not compile: {assembly.error}"
        return [Evidence(kind="resource", message=message, data={"compiler": assembly.compiler})]
    return [
        Evidence(
            kind="resource",
            message=f"{name} is {assembly.used[name]}, at most {most} allowed ({MEANING[name]})",
            fix=FIXES.get(name, ""),
            locations=outcome.lines_with(r"alloc_local\(|_frag\(") if name in FIXES else [],
            data={"resource": name, "used": assembly.used[name], "at_most": most},
        )
        for name, most in bounds.items()
        if assembly.used[name] > most
    ]
