"""From a task to a record. The same function runs in the pool's processes, in a cluster's jobs and in a replay."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.batch.record import (
    Device,
    Record,
    Snapshot,
    digest,
    exercise_sha256,
    key_of,
    verdicts_sha256,
    versions,
    write_record,
)
from autograder.course import load_course
from autograder.errors import AutogradeError, CourseError
from autograder.gpu import Gpu, NoGpu, choose, find_gpu
from autograder.grade import Settings, grade

if TYPE_CHECKING:
    from autograder.course import Course, Exercise

EMULATED = "emulated"


@dataclass(frozen=True)
class Task:
    """One result to compute. Plain data, so that any engine can carry it.

    root: the course folder. results: where the record goes. key: of the record.
    """

    key: str
    root: str
    results: str
    exercise: str
    exercise_sha256: str
    seed: int
    quick: bool
    device: Device
    submission: dict[str, Any]
    isolation: str = "auto"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def task(
    root: Path,
    results: Path,
    course: Course,
    exercise: Exercise,
    submission: Snapshot,
    seed: int,
    quick: bool,
    gpu: Gpu | None = None,
    isolation: str = "auto",
) -> Task:
    """The task whose record holds the result of a submission."""
    spec = exercise_sha256(course, exercise)
    key = key_of(spec, submission.sha256, seed, quick, device_key(gpu))
    device: Device = "cuda" if gpu else "emulated"
    snapshot = submission.model_dump(mode="json")
    return Task(key, str(root), str(results), exercise.id, spec, seed, quick, device, snapshot, isolation)


def device_key(gpu: Gpu | None) -> str:
    """What names a device in a key."""
    return f"{gpu.name} {gpu.driver}" if gpu else EMULATED


def unreadable(course: Course, exercise: Exercise, problem: str, seed: int, quick: bool) -> Record:
    """The record of something that is no submission: nothing ran, and no device is to blame."""
    spec, about = exercise_sha256(course, exercise), digest(problem)
    return Record(
        key=key_of(spec, about, seed, quick, EMULATED),
        exercise=exercise.id,
        exercise_sha256=spec,
        submission_sha256=about,
        seed=seed,
        quick=quick,
        device=f"emulated {exercise.arch}",
        versions=versions(),
        problem=problem,
    )


def run_task(todo: Task) -> Record:
    """Grade, write the record, return it. What goes wrong is in the record; only a full disk raises OSError."""
    started = time.perf_counter()
    record = _graded(todo)
    record.seconds = round(time.perf_counter() - started, 3)
    write_record(Path(todo.results), record)
    return record


def failed(todo: Task, problem: str) -> Record:
    """The record of a result that the grader owes."""
    submission = Snapshot.model_validate(todo.submission)
    return Record(
        key=todo.key,
        exercise=todo.exercise,
        exercise_sha256=todo.exercise_sha256,
        submission_sha256=submission.sha256,
        seed=todo.seed,
        quick=todo.quick,
        device=todo.device,
        versions=versions(),
        submission=submission,
        problem=problem,
    )


def _graded(todo: Task) -> Record:
    record = failed(todo, "")
    assert record.submission is not None
    try:
        course = load_course(Path(todo.root))
        exercise = course.find(todo.exercise)
        if exercise_sha256(course, exercise) != todo.exercise_sha256:
            raise CourseError("course.yaml changed while the class was graded; run the command again")
        gpu = choose(todo.device, exercise, find_gpu() if todo.device == "cuda" else NoGpu(""))
        record.report = grade(
            exercise, record.submission.submission(), course.limits, settings(todo, exercise, gpu)
        )
    except AutogradeError as error:
        record.problem = str(error)
    except Exception as error:
        record.problem = f"the grader failed: {type(error).__name__}: {error}"
    if record.report is not None:
        record.device = record.report.device
        record.verdicts_sha256 = verdicts_sha256(record.report)
        found = record.report.isolation
        record.isolation = (
            {name: name in found.active for name in found.active + found.missing} if found else {}
        )
    return record


def has_speed(exercise: Exercise) -> bool:
    """Whether points depend on how fast the kernel is."""
    return "speed" in [str(check.id) for check in exercise.checks]


def settings(todo: Task, exercise: Exercise, gpu: Gpu | None) -> Settings:
    """Time what points depend on, and on a GPU always."""
    measure = gpu is not None or has_speed(exercise)
    cache = Path(todo.results) / "assembly"
    return Settings(
        seed=todo.seed,
        quick=todo.quick,
        gpu=gpu,
        measure=measure,
        cache=cache,
        isolation=todo.isolation,
        hidden=(Path(todo.root), Path(todo.results)),
    )


def longest_seconds(course: Course, gpu: bool) -> float:
    """After this long a grade is stuck: its own watchdogs have all had their turn."""
    limits = course.limits
    patience = max(exercise.patience for exercise in course.exercises)
    seconds = 4 * limits.start_seconds + patience * (2 * limits.build_seconds + 4 * limits.run_seconds)
    return seconds + (8 * (limits.gpu_seconds + limits.timing_seconds) if gpu else 0)
