"""coalescing: how many 32-byte sectors the learner's loads and stores touch, against the fewest possible.

Also the observations that the report shows whatever the points: sectors per request of each access, and
where the kernel sits under the roofline of course.yaml.
"""

from __future__ import annotations

from math import prod
from typing import Any

from autograder.checks import CaseRun, Outcome, check, result, unless_run
from autograder.course import Check, Exercise, Roofline
from autograder.report.model import CheckResult, Evidence, Verdict

SECTOR_BYTES = 32
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
FINDING = "gmem.uncoalesced"


@check
def coalescing(check: Check, outcome: Outcome) -> CheckResult:
    """Each kernel is worth the same; it is judged once one of its cases is correct."""
    early = unless_run(check, outcome)
    if early is not None:
        return early
    allowed = check.times_ideal or 1.0
    count = len(outcome.exercise.kernels)
    good, evidence = 0, []
    for kernel in (outcome.of_kernel(number) for number in range(count)):
        run = next((run for run in kernel.runs if run.correct), None)
        if run is None:
            message = f"{_name(kernel)}: judged once a case of it is correct"
            evidence.append(Evidence(kind="note", message=message))
            continue
        wasteful = [a for a in _global(run) if a["passes"] > allowed * a["ideal"]]
        good += not wasteful
        evidence += [_wasteful(kernel, access) for access in wasteful]
    evidence.sort(key=lambda item: item.kind == "note")
    summary = f"{good} of {count} kernels"
    if good == count:
        return result(check, Verdict.PASS, check.points, summary)
    verdict = Verdict.PARTIAL if good else Verdict.FAIL
    return result(check, verdict, check.points * good / count, summary, evidence)


def observations(outcome: Outcome) -> list[Evidence]:
    """Sectors per request and the roofline, for each kernel with a launch, if the exercise judges coalescing."""
    if outcome.exercise.check("coalescing") is None:
        return []
    notes = []
    for number in range(len(outcome.exercise.kernels)):
        kernel = outcome.of_kernel(number)
        run = next((run for run in kernel.runs if run.wrote), None)
        if run is None or not _global(run):
            continue
        rows = "; ".join(_row(kernel, access) for access in _global(run))
        notes.append(Evidence(kind="note", message=f"{_name(kernel)}, sectors per request: {rows}"))
        roofline = kernel.exercise.roofline
        if roofline is not None and kernel.exercise.flop:
            notes.append(_under_the_roof(kernel.exercise, run, roofline))
    return notes


def _name(kernel: Outcome) -> str:
    return kernel.exercise.builder.name


def _global(run: CaseRun) -> list[dict[str, Any]]:
    return [access for access in run.accesses if access["space"] == "global"]


def _row(kernel: Outcome, access: dict[str, Any]) -> str:
    """`line 29 loads A 8, fewest 1`."""
    line = kernel.diagnosis.location(access["file"], access["line"]).line
    took, fewest = (access[key] / access["requests"] for key in ("passes", "ideal"))
    return f"line {line} {_what(kernel, access)} {took:.3g} (fewest possible {fewest:.3g})"


def _what(kernel: Outcome, access: dict[str, Any]) -> str:
    """`loads A, B` or `stores D`: the tensors that the line accesses, under the learner's names."""
    operation, verb = ("st.global", "stores") if access["write"] else ("ld.global", "loads")
    names = {
        name
        for op in kernel.compiled[0].operations
        if (op["file"], op["line"], op["instruction"]) == (access["file"], access["line"], operation)
        for name in op["names"]
    }
    return f"{verb} {', '.join(sorted(names))}".rstrip()


def _wasteful(kernel: Outcome, access: dict[str, Any]) -> Evidence:
    took, fewest = (access[key] / access["requests"] for key in ("passes", "ideal"))
    message = (
        f"{_what(kernel, access)}: a warp's request touches {took:.3g} sectors of {SECTOR_BYTES} bytes,"
        f" {fewest:.3g} would do for the same elements"
    )
    fix = "let neighbouring lanes of a warp access neighbouring elements of a row"
    place = kernel.diagnosis.location(access["file"], access["line"])
    data = {key: access[key] for key in ("requests", "passes", "ideal", "write")}
    return Evidence(kind="counter", code=FINDING, message=message, fix=fix, locations=[place], data=data)


def _under_the_roof(exercise: Exercise, run: CaseRun, roofline: Roofline) -> Evidence:
    """Arithmetic intensity in FLOP per byte, of the best possible traffic and of the traffic asked for."""
    flop = exercise.operations
    once = sum(prod(exercise.shape(t)) * DTYPE_BYTES[t.dtype] for t in exercise.tensors)
    asked = SECTOR_BYTES * sum(access["passes"] for access in _global(run))
    bandwidth = roofline.memory_tb_per_s
    ridges = ", ".join(f"{roof.tflops / bandwidth:.3g} ({roof.name})" for roof in roofline.roofs)
    lowest = min(roof.tflops / bandwidth for roof in roofline.roofs)
    side = "memory decides its speed" if flop / asked < lowest else "arithmetic decides its speed"
    message = (
        f"{exercise.builder.name}, arithmetic intensity: {flop} FLOP; each tensor moved once is {once} bytes,"
        f" {flop / once:.3g} FLOP per byte; your requests ask for {asked} bytes, {flop / asked:.3g} FLOP per"
        f" byte. A {roofline.device} has its ridge points at {ridges} FLOP per byte; with what you ask for, {side}"
    )
    if flop / asked < lowest:
        message += f": at most {flop / asked * bandwidth:.3g} TFLOPS at {bandwidth:g} TB/s, if no cache helps"
    data = {"flop": flop, "bytes_once": once, "bytes_asked": asked, "source": roofline.source}
    return Evidence(kind="note", message=message, data=data)
