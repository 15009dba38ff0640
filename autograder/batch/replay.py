"""`autograde replay RECORD`: compute a record's result again in the emulator, and say what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autograder.batch.grading import has_speed
from autograder.batch.record import Record, exercise_sha256, verdicts, verdicts_sha256, versions
from autograder.errors import UsageError
from autograder.grade import ON_GPU, Settings, grade

if TYPE_CHECKING:
    from autograder.course import Course
    from autograder.report.model import GradeReport

MOST_DIFFERENCES = 20
_OF_A_GPU = {"device", "judged_on", "versions", "notes", "modelled"}


@dataclass(frozen=True)
class Replay:
    """`changed`: what is not as it was when the record was made. `differences`: what came out otherwise.

    not_recomputed: the checks, by id, that a GPU decided then and that this replay says nothing about.
    """

    report: GradeReport
    changed: list[str]
    differences: list[str]
    not_recomputed: list[str]


def replay(record: Record, course: Course) -> Replay:
    """Grade a record's submission again, with its seed.

    Raises:
        UsageError: the record holds no result of a kernel, or has been edited.
    """
    if record.submission is None or record.report is None:
        raise UsageError(
            f"this record holds no grade that could be replayed: {record.problem or 'nothing was graded'}"
        )
    if record.submission.sha256 != record.submission_sha256:
        raise UsageError("this record was edited: its submission does not fit its submission_sha256")
    if verdicts_sha256(record.report) != record.verdicts_sha256:
        raise UsageError("this record was edited: its report does not fit its verdicts_sha256")
    exercise = course.find(record.exercise)
    settings = Settings(seed=record.seed, quick=record.quick, measure=has_speed(exercise))
    report = grade(exercise, record.submission.submission(), course.limits, settings)
    changed = [f"{name} was {then}, is {now}" for name, then, now in _changed(record)]
    if exercise_sha256(course, exercise) != record.exercise_sha256:
        changed.append(f"{record.exercise} or the limits in course.yaml are not what they were")
    before, after = verdicts(record.report), verdicts(report)
    exempt: list[str] = []
    if not record.device.startswith("emulated"):
        exempt = [str(check.id) for check in exercise.checks if check.kind in ON_GPU]
        before, after = _without_gpu(before, exempt), _without_gpu(after, exempt)
    return Replay(report, changed, list(_differences(before, after, "")), exempt)


def _changed(record: Record) -> Iterator[tuple[str, str, str]]:
    now = versions()
    for name, then in record.versions.items():
        if now.get(name) != then:
            short = 12 if name == "code" else 40
            yield ("the grader's code" if name == "code" else name), then[:short], str(now.get(name))[:short]


def _without_gpu(report: dict[str, Any], exempt: list[str]) -> dict[str, Any]:
    """What the emulator decided of a grade on a GPU. Which checks those are says course.yaml, never the record."""
    kept = {name: value for name, value in report.items() if name not in _OF_A_GPU and name != "points"}
    kept["checks"] = [check for check in report["checks"] if check["id"] not in exempt]
    return kept


def _differences(before: Any, after: Any, place: str) -> Iterator[str]:
    """Paths at which two JSON values differ, e.g. `correctness.points: 40, now 30`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            where = f"{place}.{name}" if place else name
            yield from _differences(before.get(name), after.get(name), where)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            name = one.get("id") if isinstance(one, dict) else None
            yield from _differences(one, other, str(name) if name else f"{place}[{number}]")
    elif before != after:
        yield f"{place}: {_short(before)}, now {_short(after)}"


def _short(value: Any) -> str:
    text = f"{len(value)} entries" if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
