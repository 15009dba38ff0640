"""correctness: every element of the output, for every case. Each case is worth the same."""

from __future__ import annotations

from typing import Any

from autograder.checks import CaseRun, Outcome, check, of_all, result, unless_run
from autograder.checks.whereabouts import explanation, heat_map, place_of
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Fault, Location, Verdict

STORES = ("st.global", "cp.async.bulk.tensor", "cp.async.bulk.global", "red.", "atom.")
FILLS = (
    "st.shared",
    "cp.async",
    "tcgen05.mma",
    "tcgen05.cp",
    "tcgen05.st",
    "wgmma.mma",
    "mma.",
    "ldmatrix",
    "stmatrix",
)
TMA_STORE = "cp.async.bulk.tensor.store"  # names a tensor map and no tensor
NO_FILLS = (TMA_STORE, "cp.async.bulk.commit", "cp.async.bulk.wait", "cp.async.commit", "cp.async.wait")

# Where the parts of a softmax stand: a scale is a number of Python's, and arithmetic on registers has no name of its own.
IN_THE_TEXT = {
    "scale": r"(?i)scale\w* *=|log2|sqrt\(",
    "softmax": r"\b(Tx|T)\.(max|sum|fma|sub|mul|exp2?)\(|row_sum\[0\]|row_max\[0\]|\b(alpha|shift)\b",
    "mask": r"(?i)\bTx\.max\(|\bT\.(if_then_else|Select)\(|-?inf|\bmask\w*|visible|\bsees?\b|/ *row_sum|\bshift\b|\boffset *=",
    "heads": r"(?i)head\w* *(//|%)|head\w* *=",
    "tmem": r"(?i)tmem\w*\.(alloc|move_base)|tmem\w*\[",
}


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
    planned = max(outcome.planned, len(outcome.runs))
    unexplained = next((run for run in outcome.runs if _hangs_without_reason(run)), None)
    if unexplained is not None:
        evidence = [_on_the_gpu(unexplained, outcome)]
        return result(check, Verdict.ERROR, 0, evidence[0].message, evidence, Fault.GRADER)
    right = [run for run in outcome.runs if run.correct]
    evidence = [_evidence(run, outcome.of_kernel(run.kernel)) for run in outcome.runs if not run.correct]
    evidence.sort(key=lambda e: not e.fix)  # the case that explains the mistake comes first, with its lines
    _say_lines_once(evidence)
    if failure is not None:
        evidence.append(failure.evidence())
    evidence += {missing.message: missing.evidence() for missing in outcome.missing.values()}.values()
    summary = of_all(len(right), planned, "case")
    if len(right) == planned:
        return result(check, Verdict.PASS, check.points, summary)
    verdict = Verdict.PARTIAL if right else Verdict.FAIL
    return result(check, verdict, check.points * len(right) / planned, summary, evidence)


def _say_lines_once(evidence: list[Evidence]) -> None:
    """Several cases mostly point to the same lines; only the first of them shows those."""
    shown: list[list[Location]] = []
    for item in evidence:
        if item.locations in shown:
            item.locations = []
        else:
            shown.append(item.locations)


def _hangs_without_reason(run: CaseRun) -> bool:
    """Hung on the GPU and clean in the emulator: one of the two is wrong, and it may not be the kernel."""
    hung = run.gpu is not None and run.gpu["status"] == "hang"
    return hung and not any(finding["strength"] != "lint" for finding in run.findings)


def _on_the_gpu(run: CaseRun, outcome: Outcome) -> Evidence:
    """How a launch on a GPU ended without an output, with the lines that the emulator's findings name."""
    assert run.gpu is not None
    status = run.gpu["status"]
    named = [f for f in run.findings if f["strength"] != "lint"]
    named = [f for f in named if f["code"] == "deadlock"] or named
    places = [outcome.diagnosis.location(p["file"], p["line"]) for f in named[:1] for p in f["locations"]]
    data = {"case": run.case, "gpu": run.gpu}
    if status == "hang":
        message = f"{run.title}: the kernel hangs on the GPU"
        if "seconds" in run.gpu:
            message += f" (stopped after {run.gpu['seconds']:g} s)"
        fix = "" if named else "the emulator runs it to its end: grade again, and report this if it stays"
        return Evidence(kind="mismatch", message=message, fix=fix, locations=places, data=data)
    if status == "fault":
        message = f"{run.title}: the GPU stops the kernel ({run.gpu['kind']}): {run.gpu['message']}"
        fix = "" if named else "the emulator does not see why; please report this kernel"
        return Evidence(kind="mismatch", message=message, fix=fix, locations=places, data=data)
    return Evidence(kind="mismatch", message=f"{run.title}: not run, {run.gpu['message']}", data=data)


def _evidence(run: CaseRun, outcome: Outcome) -> Evidence:
    if run.gpu is not None and run.gpu["status"] != "ran":
        return _on_the_gpu(run, outcome)
    if run.gpu is None and any(finding["code"] == "deadlock" for finding in run.findings):
        return Evidence(kind="mismatch", message=f"{run.title}: the kernel hangs", data={"case": run.case})
    if run.changed_inputs:
        names = ", ".join(run.changed_inputs)
        return Evidence(
            kind="mismatch",
            message=f"{run.title}: the kernel changed its input {names}",
            fix="write to the output only",
            locations=[line for name in run.changed_inputs for line in outcome.lines_on(name, STORES)],
            data={"case": run.case, "changed_inputs": run.changed_inputs},
        )
    seen = run.comparison
    if seen is None or not seen["mismatches"]:
        return Evidence(
            kind="mismatch", message=f"{run.title}: no complete output came back", data={"case": run.case}
        )
    output = outcome.output
    message = f"{run.title}: {seen['mismatches']} of {seen['elements']} elements are wrong ({seen['where']})"
    first = seen["first"]
    if first is not None:
        index = ", ".join(str(i) for i in first["index"])
        message += f"; first {output}[{index}]: expected {_spell(first['expected'])}, {_got(first['actual'])}"
        message += place_of(run, outcome, first["index"])
    named = any(finding["strength"] != "lint" for finding in run.findings)  # those name the lines already
    lines = [] if named else suspects(outcome, seen["suspect"])
    data = {"case": run.case, **seen}
    pictures = heat_map(output, seen)
    fix = explanation(seen, outcome)
    return Evidence(kind="mismatch", message=message, fix=fix, locations=lines, data=data, pictures=pictures)


def suspects(outcome: Outcome, suspect: str) -> list[Location]:
    """The lines where a mistake of this sort can be: where the output is stored, under which conditions and by how
    many CTAs, where the sum leaves the tensor core and is cast, where tiles get their layout, or where the operands are
    filled, loaded and multiplied; for a softmax, where its parts are computed.
    """
    stores = outcome.lines_on_output(STORES) or outcome.lines_of(TMA_STORE)
    if suspect == "store":
        return stores
    if suspect == "coverage":
        grid = outcome.lines_in_builder(r"\bT\.cta_id\(") + outcome.lines_that_define_arguments("T.cta_id")
        return outcome.around(outcome.lines_on_output() or stores) + grid
    if suspect == "cast":
        casts = outcome.lines_with(r"(?i)cast\(|cvt\.")
        return casts or outcome.lines_of("cvt") or outcome.lines_of("tcgen05.ld") + stores
    if suspect in IN_THE_TEXT:
        return outcome.lines_in_builder(IN_THE_TEXT[suspect]) or stores
    fills = outcome.lines(lambda name, _: name.startswith(FILLS) and not name.startswith(NO_FILLS))
    # Another layout, or another view of the same memory, leaves no instruction.
    pattern = r"\blayout\w* *=|\balign=|\.view\(" if suspect == "layout" else r"\.view\("
    views = outcome.lines_in_builder(pattern)
    found = fills or outcome.around(outcome.lines(lambda name, _: name in ("ld.global", "cvt"))) + stores
    return found + [line for line in views if line not in found]


def _got(actual: Any) -> str:
    return actual if actual == "never written" else f"got {_spell(actual)}"


def _spell(number: Any) -> str:
    return number if isinstance(number, str) else f"{number:.6g}"
