"""The graded checks. Each is one small function (check, outcome) -> CheckResult, registered under its id.

They look at an Outcome, which holds only what trusted processes reported, and decide verdict, points and
evidence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from autograder.amounts import evaluate
from autograder.assembly import Assembly
from autograder.course import Check, Exercise
from autograder.diagnosis import Diagnosis, Failure
from autograder.report.model import CheckResult, Evidence, Fault, Location, Measured, ModelledTime, Verdict
from autograder.runner.build import Table
from autograder.submission import Submission, split_lines
from emulator.counters import COUNTED_BY, INSTRUCTIONS, OBSERVABLES

COSTLY = ("error", "race")  # strengths of findings that cost points


@dataclass
class CaseRun:
    """One launch: what the emulator reported and what the oracle said about its output.

    `kernel` is the index of the exercise's kernel that ran. Where a GPU ran it, `comparison` is of the GPU's output,
    `emulated` of the emulator's, `same_bytes` whether the two are equal, and `gpu` says how the launch ended: `status`
    ran, hang, fault or not run. `followed`, of one case: which MMAs the output depends on.
    """

    case: str
    title: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    changed_inputs: list[str] = field(default_factory=list)
    comparison: dict[str, Any] | None = None
    kernel: int = 0
    schedule: str = "late"
    stage: str | None = None
    accesses: list[dict[str, Any]] = field(default_factory=list)
    writers: list[list[Any]] = field(default_factory=list)
    gpu: dict[str, Any] | None = None
    emulated: dict[str, Any] | None = None
    same_bytes: bool | None = None
    followed: dict[str, Any] | None = None

    @property
    def idle_mmas(self) -> int:
        """Executed tcgen05.mma that the output does not depend on; all of them, when a part of the output depends on none."""
        if self.followed is None or not self.correct or any(f["strength"] in COSTLY for f in self.findings):
            return 0  # what a race leaves in D says nothing about what it depends on
        whole = self.followed["untouched"] <= MOST_UNTOUCHED
        return sum(line["count"] for line in self.followed["lines"] if not (whole and line["matters"]))

    @property
    def correct(self) -> bool:
        """The output was compared completely, no element is wrong, and no input was changed."""
        seen = self.comparison
        if seen is None or self.changed_inputs:
            return False
        return bool(seen["mismatches"] == 0 and seen["compared"] == seen["elements"] > 0)

    def both(self) -> dict[str, Any]:
        """How the launch ended on the GPU and in the emulator: right, wrong, hang, fault or not run."""
        hung = any(finding["code"] == "deadlock" for finding in self.findings)
        right = self.emulated is not None and self.emulated["mismatches"] == 0
        status = (self.gpu or {"status": "not run"})["status"]
        return {
            "case": self.case,
            "gpu": ("right" if self.correct else "wrong") if status == "ran" else status,
            "emulated": "hang" if hung else "right" if right else "wrong",
            "same_bytes": self.same_bytes,
            "gpu_error": (self.gpu or {}).get("message", ""),
        }

    @property
    def ended(self) -> bool:
        """The kernel neither hung nor was stopped by a fault."""
        return not any(f["code"] == "deadlock" or f["data"].get("stops_kernel") for f in self.findings)

    @property
    def wrote(self) -> bool:
        """At least one element of the output was written."""
        seen = self.comparison or self.emulated
        return seen is not None and seen["unwritten"] < seen["elements"]


@dataclass(frozen=True)
class Compiled:
    """One lowered kernel: its operations and parameters, under the learner's own names."""

    operations: list[dict[str, Any]] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """Everything a grade has seen. `build_failure` and `run_failure` tell how far it came.

    `compiled` has one entry per kernel of the exercise; in an exercise in stages, `missing` says why a kernel, by its index,
    was not built, and its entry is empty. `resources` is the most that any of them occupies;
    `planned` is the number of launches that there should be, `tables` holds what the functions returned.
    `layouts` is what the builder's process sent about each call of each layout; empty if it did not come that far.
    `measured` or `modelled` holds times, `slow_lines` for each modelled one the lines where the warps wait that hold it up,
    and `untimed` why a kernel has no modelled time.
    """

    diagnosis: Diagnosis
    build_failure: Failure | None = None
    run_failure: Failure | None = None
    resources: dict[str, int] | None = None
    compiled: list[Compiled] = field(default_factory=list)
    planned: int = 0
    missing: dict[int, Failure] = field(default_factory=dict)
    assembly: Assembly | None = None
    layouts: list[dict[str, Any]] = field(default_factory=list)
    runs: list[CaseRun] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    modelled: list[ModelledTime] = field(default_factory=list)
    slow_lines: list[list[Location]] = field(default_factory=list)
    untimed: list[Failure] = field(default_factory=list)

    @property
    def exercise(self) -> Exercise:
        return self.diagnosis.exercise

    @property
    def submission(self) -> Submission:
        return self.diagnosis.submission

    def lines(self, wanted: Callable[[str, list[str]], bool]) -> list[Location]:
        """The learner's lines with an operation for which wanted(instruction, buffer names) holds."""
        places = {
            (op["file"], op["line"])
            for kernel in self.compiled
            for op in kernel.operations
            if wanted(op["instruction"], op["names"])
        }
        return [self.diagnosis.location(file, line) for file, line in sorted(places)]

    def lines_of(self, instruction: str) -> list[Location]:
        """The learner's lines that execute an instruction."""
        return self.lines(lambda name, _: name == instruction)

    def lines_with(self, pattern: str) -> list[Location]:
        """The learner's lines that match a pattern, comments aside, for what lowering does not keep."""
        lines = [line.split("#")[0] for line in split_lines(self.submission.source)]
        return [self.diagnosis.learner_line(n) for n, text in enumerate(lines, 1) if re.search(pattern, text)]

    def lines_in_builder(self, pattern: str) -> list[Location]:
        """`lines_with`, inside of the function that builds the kernel."""
        name = self.exercise.builder.name
        defined = [
            node for node in self.statements() if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        return [place for place in self.lines_with(pattern) if any(_holds(node, place) for node in defined)]

    def lines_that_define_arguments(self, function: str) -> list[Location]:
        """The lines of the builder that assign a name which occurs in a call of a function, e.g. `T.cta_id`."""
        name = self.exercise.builder.name
        builders = [
            node for node in self.statements() if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        inside = [node for builder in builders for node in ast.walk(builder)]
        calls = [node for node in inside if isinstance(node, ast.Call) and ast.unparse(node.func) == function]
        names = {part.id for call in calls for part in ast.walk(call) if isinstance(part, ast.Name)}
        assigned = [
            node.lineno
            for node in inside
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
        ]
        return [self.diagnosis.learner_line(line) for line in sorted(assigned)]

    def around(self, places: list[Location]) -> list[Location]:
        """These lines and the learner's `if` and loop statements that hold them, in order."""
        own = [place for place in places if place.file == self.submission.name]
        kinds = (ast.If, ast.For, ast.While)
        heads = {
            node.lineno
            for node in self.statements()
            if isinstance(node, kinds) and any(_holds(node, place) for place in own)
        }
        heads -= {place.line for place in own}
        return sorted(
            places + [self.diagnosis.learner_line(line) for line in heads],
            key=lambda place: (place.file, place.line),
        )

    def statements(self) -> list[ast.AST]:
        """The syntax tree of the submission; nothing where it has none."""
        try:
            return list(ast.walk(ast.parse(self.submission.source)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []

    def of_kernel(self, number: int) -> Outcome:
        """What was seen of one kernel of the exercise."""
        return replace(
            self,
            diagnosis=replace(self.diagnosis, exercise=self.exercise.kernels[number]),
            compiled=self.compiled[number : number + 1],
            runs=[run for run in self.runs if run.kernel == number],
        )

    def of_stage(self, stage: str | None) -> Outcome:
        """What was seen of the cases of one stage; all of it where none is named."""
        if stage is None:
            return self
        kernels = self.exercise.kernels
        cases = [
            (n, case) for n, kernel in enumerate(kernels) for case in kernel.cases if case.stage == stage
        ]
        runs = [run for run in self.runs if run.stage == stage]
        missing = {n: self.missing[n] for n, _ in cases if n in self.missing}
        failure, stopped = self.build_failure, self.run_failure
        if failure is None and not runs and missing:
            failure = next(iter(missing.values()))
        if len(runs) == len(cases):
            stopped = None
        return replace(
            self, runs=runs, missing=missing, planned=len(cases), build_failure=failure, run_failure=stopped
        )

    @property
    def output(self) -> str:
        """Name of the output tensor in the exercise."""
        return next(t.name for t in self.exercise.tensors if t.role == "output")

    def lines_on_output(self, instructions: tuple[str, ...] = ("",)) -> list[Location]:
        """The lines that touch the output with one of these instructions."""
        return self.lines_on(self.output, instructions)

    def lines_on(self, tensor: str, instructions: tuple[str, ...] = ("",)) -> list[Location]:
        """The lines that touch a tensor of the exercise, whatever the learner calls it."""
        place = next(i for i, t in enumerate(self.exercise.tensors) if t.name == tensor)
        parameters = next((kernel.parameters for kernel in self.compiled if kernel.parameters), [])
        own = parameters[place] if place < len(parameters) else tensor
        return self.lines(lambda name, buffers: name.startswith(instructions) and own in buffers)

    @property
    def failure(self) -> Failure | None:
        return self.build_failure or self.run_failure

    @property
    def substantial(self) -> bool:
        """A case is solved, or every instruction of the mechanism executed: there is something to judge."""
        return any(run.correct for run in self.runs) or self._executed(all)

    @property
    def does_something(self) -> bool:
        """No empty stub: something of the output is written, or of the mechanism executed or, in a kernel that does not end, written down."""
        stopped = any(not run.ended for run in self.runs)
        return any(run.wrote for run in self.runs) or self._executed(any) or (stopped and self._complete)

    @property
    def _complete(self) -> bool:
        """Every instruction that the mechanism asks for stands in the kernel, wherever it was stopped."""
        names = [
            name for name in self.exercise.counters("at_least") if name in INSTRUCTIONS or name in COUNTED_BY
        ]
        return bool(names) and all(self.stands(name) for name in names)

    def stands(self, counter: str) -> bool:
        """Whether an instruction that a counter counts stands in the kernel."""
        return any(self.lines_of(name) for name in COUNTED_BY.get(counter, (counter,)))

    def _executed(self, how_many: Callable[[Iterable[bool]], bool]) -> bool:
        names = self.exercise.counters("at_least")
        return bool(names) and any(
            how_many(run.counters.get(name, 0) > 0 for name in names) for run in self.runs
        )


def _holds(node: ast.stmt, place: Location) -> bool:
    return node.lineno <= place.line <= (node.end_lineno or node.lineno)


CheckFunction = Callable[[Check, Outcome], CheckResult]
CHECKS: dict[str, CheckFunction] = {}


def check(function: CheckFunction) -> CheckFunction:
    """Register a check under its function's name."""
    CHECKS[function.__name__] = function
    return function


def run_checks(outcome: Outcome) -> list[CheckResult]:
    """All checks of the exercise, in the order of course.yaml."""
    from autograder.checks import (  # noqa: F401
        bank_conflicts,
        build,
        coalescing,
        correctness,
        functions,
        layouts,
        mechanism,
        predictions,
        resources,
        speed,
        synchronization,
    )

    return [CHECKS[c.kind](c, outcome.of_stage(c.stage)) for c in outcome.exercise.checks]


MMAS = ("tcgen05.mma", "tcgen05.mma.cta_group::2")
MOST_UNTOUCHED = 0.01  # share of the output's elements that need not depend on any MMA


@dataclass(frozen=True)
class Breach:
    """A counter that left its bounds in a launch: what it was, what the bound is there, and of which kind."""

    counter: str
    seen: int
    bound: int
    kind: str  # at_least or at_most
    case: str
    idle: int = 0  # of those that were executed and are not in `seen`: D does not depend on them


def breaches(check: Check, outcome: Outcome) -> list[Breach]:
    """The counters of `check` that are out of bounds, each in the launch where it is furthest out."""
    worst: dict[tuple[str, str], Breach] = {}
    kernels = outcome.exercise.kernels
    for kind, bounds in (("at_least", check.at_least), ("at_most", check.at_most)):
        for name, amount in bounds.items():
            for run in _telling(name, outcome.runs):
                idle = (
                    min(run.idle_mmas, run.counters.get(name, 0))
                    if kind == "at_least" and name in MMAS
                    else 0
                )
                seen = run.counters.get(name, 0) - idle
                bound = evaluate(amount, kernels[run.kernel].builder.params)
                lacking = bound - seen if kind == "at_least" else seen - bound
                old = worst.get((kind, name))
                if lacking > 0 and (old is None or lacking > abs(old.bound - old.seen)):
                    worst[kind, name] = Breach(name, seen, bound, kind, run.title, idle)
    return list(worst.values())


def _telling(counter: str, runs: list[CaseRun]) -> list[CaseRun]:
    """The launches that say something about a counter: where possible those that ran to their end.

    The emulator records observables under schedule late only.
    """
    recorded = [run for run in runs if counter not in OBSERVABLES or run.schedule == "late"]
    return [run for run in recorded if run.ended] or recorded


# Results ----------------------------------------------------------------------------------------


def of_all(right: int, of: int, what: str) -> str:
    """How many of all are right: `3 of 4 cases`."""
    return f"{right} of {of} {what}{'s' * (of != 1)}"


def result(
    check: Check,
    verdict: Verdict,
    points: float,
    summary: str,
    evidence: list[Evidence] | None = None,
    fault: Fault | None = None,
) -> CheckResult:
    """A decided check. Points are clamped; lost points are the learner's unless said otherwise."""
    points = round(min(max(points, 0.0), check.points), 2)
    if fault is None and verdict in (Verdict.FAIL, Verdict.PARTIAL):
        fault = Fault.YOUR_CODE
    return CheckResult(
        id=check.id,
        title=check.title,
        verdict=verdict,
        points=points,
        max_points=check.points,
        fault=fault,
        summary=summary,
        evidence=evidence or [],
    )


def skipped(check: Check, reason: str, fault: Fault = Fault.YOUR_CODE) -> CheckResult:
    """A check that there was nothing to judge for."""
    return CheckResult(
        id=check.id,
        title=check.title,
        verdict=Verdict.SKIPPED,
        points=0,
        max_points=check.points,
        fault=fault,
        reason=reason,
    )


def unless_run(check: Check, outcome: Outcome) -> CheckResult | None:
    """The result of a check that needs launches when there were none, else None."""
    failure = outcome.failure
    if failure is None or outcome.runs:
        return None
    if failure.fault is not Fault.YOUR_CODE:
        return skipped(check, f"not graded, because {failure.fault} failed", failure.fault)
    if outcome.missing:
        return skipped(check, failure.message)
    return skipped(check, "the kernel does not build" if outcome.build_failure else "the kernel did not run")
