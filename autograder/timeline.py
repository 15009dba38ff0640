"""`autograde timeline`: the modelled time of a submission's kernel, and what every warp and engine does when.

The submission is built as for a grade, in a process of its own; the kernel is recorded and timed in the machine's
process, where the submission's Python never runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.checks import Outcome
from autograder.course import MODELLED, Builder, Exercise, Limits, too_large
from autograder.diagnosis import Diagnosis, Stopped
from autograder.errors import UnfinishedError, UsageError, did_you_mean
from autograder.grade import Session, ask, lower
from autograder.report.model import RoofPoint
from autograder.roofline import roof
from autograder.runner.build import receive_prim_funcs, start_builder
from autograder.runner.process import Pump
from autograder.runner.sandbox import choose
from autograder.speed import roof_point
from autograder.submission import Submission, syntax_problem


@dataclass(frozen=True)
class Timeline:
    """A modelled launch.

    Attributes:
        exercise, title, source: what was timed. params: the builder's arguments.
        modelled: the fields of :class:`emulator.timing.model.Modelled` without the intervals, and `tflops`.
        intervals: [lane, start, end, kind, line, what] with times in cycles; `lanes` names them, top to bottom.
        arrows: [lane, time, lane, time, what]: a signal of the first lane let the other one go on, which had waited for `what`.
        waits_at: lines at which the warps wait that the bottleneck is about, with their text.
        roof: the physical roof of the kernel at this size, None where its arithmetic is not known.
    """

    exercise: str
    title: str
    source: str
    params: dict[str, int | str]
    modelled: dict[str, Any]
    lanes: list[str]
    intervals: list[tuple[int, float, float, str, int, str]]
    arrows: list[tuple[int, float, int, float, str]] = field(default_factory=list)
    waits_at: list[str] = field(default_factory=list)
    roof: RoofPoint | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, with a version."""
        return {
            "format": "autograde-timeline", "version": 1, "exercise": self.exercise, "title": self.title, "source": self.source,
            "params": self.params, "modelled": self.modelled, "lanes": self.lanes, "intervals": self.intervals,
            "arrows": self.arrows, "waits_at": self.waits_at, "roof": self.roof.model_dump() if self.roof else None,
        }  # fmt: skip


def at_size(exercise: Exercise, sizes: Mapping[str, int], builder: str | None = None) -> Exercise:
    """The exercise narrowed to one kernel (the last one, or that of `builder`) with other problem sizes.

    Without sizes they are those of course.yaml's `timing`, at which a grade tells the modelled time, and where it has none for
    the kernel, those of the tests.

    Raises:
        UsageError: there is no such size or builder; one line.
    """
    kernels = exercise.kernels
    names = list(dict.fromkeys(k.builder.name for k in kernels))
    name = builder or names[-1]
    if name not in names:
        known = did_you_mean(name, names) or f"; it has {', '.join(names)}"
        raise UsageError(f"{exercise.id} has no builder '{name}'{known}")
    kernel = next(k for k in kernels if k.builder.name == name)
    params = dict(kernel.builder.params)
    timed = [t.params for t in exercise.timing if exercise.timed(t).builder.name == name]
    if not sizes and timed:
        params |= timed[-1]
    for size, value in sizes.items():
        if size not in params:
            known = ", ".join(params)
            raise UsageError(f"--size {size}={value}: {name} has no parameter {size}; it has {known}")
        params[size] = value
    case = kernel.cases[0].model_copy(update={"params": {}})
    narrowed = {
        "builder": Builder(name=name, params=params),
        "functions": [],
        "more_kernels": [],
        "cases": [case],
    }
    return kernel.model_copy(update=narrowed)


def timeline(
    exercise: Exercise,
    submission: Submission,
    limits: Limits,
    *,
    clock_ghz: float | None = None,
    roots: tuple[Path, ...] = (),
) -> Timeline:
    """Model one launch of the exercise's only kernel (see :func:`at_size`).

    Raises:
        UsageError: the kernel does not build, lower or run; the message is the diagnosis, in one line.
        UnfinishedError: it hangs or is stopped by a fault; the line names the wait.
    """
    large = too_large(exercise, limits)
    if large:
        raise UsageError(f"{exercise.id}: {large}")
    problem = syntax_problem(submission.source)
    if problem is not None:
        raise UsageError(f"{submission.name}: syntax error in line {problem[0]}: {problem[1]}")
    if submission.untouched:
        raise UsageError(
            f"{submission.name}: {exercise.builder.name} is still the released stub; there is nothing to time"
        )
    diagnosis = Diagnosis(exercise, submission, limits)
    answer = None
    session = Session(Outcome(diagnosis), seed=0, quick=True)
    try:
        with Pump(choose("auto")) as pump:
            folder = pump.private_folder("machine")
            machine = pump.start("machine", "machine_child", folder, roots=roots, confined=True)
            builder = start_builder(pump, diagnosis)
            graphs = receive_prim_funcs(pump, builder, diagnosis)
            lower(session, pump, machine, graphs)
            pump.send(
                machine,
                {"stage": "model", "kernel": 0, "clock_ghz": clock_ghz, "intervals": True, "inspect": None},
            )
            answer = ask(session, pump, machine, limits.run_seconds, "modelling the kernel", blame_time=True)
            if answer.stage == "refused":
                raise Stopped(diagnosis.refusal(answer.header))
    except Stopped as stopped:
        failure = stopped.failure
        where = f" ({failure.location.spell()})" if failure.location else ""
        if answer is not None and answer.header.get("kind") == "unfinished":
            see = f"; `autograde {exercise.id}` says why"
            raise UnfinishedError(f"{submission.name}: {failure.message}{where}{see}") from None
        fix = f"; {failure.fix}" if failure.fix else ""
        raise UsageError(f"{submission.name}: {failure.message}{where}{fix}") from None
    data = json.loads(answer.raw)
    lines = _lines(diagnosis, data["sites"])
    intervals = [
        (lane, start, end, kind, lines.get(site, 0), what)
        for lane, start, end, kind, site, what in data["intervals"]
    ]
    modelled = answer.header["modelled"]
    places = [diagnosis.location(place["file"], place["line"]) for place in modelled["waits_at"]]
    return Timeline(
        exercise.id,
        exercise.title,
        submission.name,
        dict(exercise.builder.params),
        modelled,
        data["lanes"],
        intervals,
        [tuple(arrow) for arrow in data["arrows"]],
        [place.spell() for place in places],
        _roof(exercise, modelled["clock_ghz"]),
    )


def _roof(exercise: Exercise, clock_ghz: float) -> RoofPoint:
    """The roof at this size; with the reference solution's share of it at the size of course.yaml, where that is known."""
    sizes = dict(exercise.builder.params)
    same = [t for t in exercise.timing if {**sizes, **t.params} == sizes and MODELLED in t.tiers]
    tiers = same[0].tiers[MODELLED].roofline if same else None
    return roof_point(roof(exercise, "sm_100a", clock_ghz), tiers)


def _lines(diagnosis: Diagnosis, sites: Mapping[str, Mapping[str, Any]]) -> dict[int, int]:
    """Statement -> line of the submission."""
    found = {}
    for site, place in sites.items():
        found[int(site)] = diagnosis.location(place["file"], place["line"]).line
    return found
