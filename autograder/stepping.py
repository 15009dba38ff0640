"""A run of the learner's kernel, recorded step by step: for `step()` in a notebook.

Built and run like a grade: the submission's Python in a process of its own, the kernel in the machine's process.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.checks import Outcome
from autograder.course import Exercise, Limits
from autograder.diagnosis import Diagnosis, Stopped
from autograder.errors import UsageError, did_you_mean
from autograder.grade import Session, ask, lower
from autograder.runner.build import receive_prim_funcs, start_builder
from autograder.runner.oracle_child import _make_inputs
from autograder.runner.process import Pump
from autograder.runner.sandbox import choose
from autograder.submission import Submission, split_lines, syntax_problem

SEED = 1


@dataclass(frozen=True)
class SteppedRun:
    """A recorded launch.

    Attributes:
        exercise, case, schedule: what ran. steps: see :mod:`emulator.stepping`, with lines of the learner's.
        left_out: steps that were not recorded any more. findings: what the emulator found, as messages.
        source: the kernel's lines.
    """

    exercise: str
    case: str
    schedule: str
    steps: list[dict[str, Any]]
    left_out: int
    findings: list[str]
    source: list[str]

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def record(
    exercise: Exercise,
    submission: Submission,
    limits: Limits,
    case_id: str | None = None,
    cluster: int = 0,
    hidden: tuple[Path, ...] = (),
) -> SteppedRun:
    """Run one case (the first one, or `case_id`) and record cluster number `cluster` of it.

    Raises:
        UsageError: there is no such case, or the kernel does not build, lower or run; one line.
    """
    problem = syntax_problem(submission.source)
    if problem is not None:
        raise UsageError(f"{submission.name}: syntax error in line {problem[0]}: {problem[1]}")
    if submission.untouched:
        raise UsageError(
            f"{submission.name}: {exercise.builder.name} is still the released stub; there is nothing to run"
        )
    cases = [(kernel, case) for kernel in exercise.kernels for case in kernel.cases]
    names = [case.id for _, case in cases]
    if case_id is not None and case_id not in names:
        known = did_you_mean(case_id, names) or f"; it has {', '.join(names)}"
        raise UsageError(f"{exercise.id} has no case '{case_id}'{known}")
    kernel, case = next((k, c) for k, c in cases if case_id in (None, c.id))
    narrowed = kernel.model_copy(update={"more_kernels": [], "functions": [], "layouts": [], "cases": [case]})
    diagnosis = Diagnosis(narrowed, submission, limits)
    session = Session(Outcome(diagnosis), seed=SEED, quick=True)
    raw = _make_inputs(SEED, {"tensors": narrowed.tensor_specs()}, {"id": case.id, "inputs": case.inputs})
    try:
        with Pump(choose("auto", hidden)) as pump:
            machine = pump.start("machine", "machine_child", pump.private_folder("machine"), confined=True)
            builder = start_builder(pump, diagnosis)
            lower(session, pump, machine, receive_prim_funcs(pump, builder, diagnosis))
            request = {
                "stage": "step",
                "kernel": 0,
                "cluster": cluster,
                "seed": SEED,
                "schedule": case.schedule,
            }
            pump.send(machine, request, raw.launch_bytes)
            answer = ask(session, pump, machine, limits.run_seconds, "running the kernel", blame_time=True)
            if answer.stage == "refused":
                raise Stopped(diagnosis.refusal(answer.header))
    except Stopped as stopped:
        failure = stopped.failure
        where = f" ({failure.location.spell()})" if failure.location else ""
        raise UsageError(f"{submission.name}: {failure.message}{where}") from None
    return SteppedRun(
        exercise.id,
        case.title,
        case.schedule,
        _learners(json.loads(answer.raw), diagnosis),
        int(answer.header["left_out"]),
        [str(finding["message"]) for finding in answer.header["findings"]],
        split_lines(submission.source),
    )


def _learners(steps: list[dict[str, Any]], diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Only the learner's own variables, as registers; TVM makes more."""
    words = set(re.findall(r"[A-Za-z_]\w*", diagnosis.submission.source))
    for step in steps:
        step["registers"] = [[name, value] for name, value in step["registers"] if name in words]
        step.pop("file", None)
    return steps
