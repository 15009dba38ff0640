"""All of `autograde check-course`: the files at once, the jobs in a pool, known results from .autograde/check-course."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from autograder import release
from autograder.batch.grading import longest_seconds
from autograder.check_course.files import examine_course_files, examine_exercise
from autograder.check_course.jobs import jobs_of
from autograder.check_course.model import Fault, Found, Job, Verdict
from autograder.course import Course, Exercise
from autograder.errors import UsageError
from autograder.files import write_atomically
from autograder.pool import TRIES, Stuck, Worker, in_parallel
from autograder.progress import FOLDER

KEPT = "check-course"
WORKER = "autograder.check_course.worker"
Progress = Callable[[int, int, int], None]  # (done, of how many, not finished)


def check_course(
    root: Path,
    course: Course,
    exercises: list[Exercise],
    processes: int,
    progress: Progress,
    fix: bool = False,
    fresh: bool = False,
) -> Verdict:
    """Examine these exercises, and what belongs to no exercise if they are all.

    fix: regenerate releases that are not up to date. fresh: use no result of an earlier run.

    Raises:
        UsageError: results cannot be kept.
    """
    verdict = Verdict()
    if fix:
        releases = [job for job in jobs_of(root, course, exercises) if job.kind == "release"]
        known = _results(root, course, releases, processes, progress, fresh, verdict)
        verdict.fixed = [
            job.exercise for job in releases if known[job.key].faults and _fix(root, job.exercise)
        ]
    whole = len(exercises) == len(course.exercises)
    if whole:
        verdict.faults += examine_course_files(root, course)
    for exercise in exercises:
        verdict.faults += examine_exercise(root, exercise)
    jobs = jobs_of(root, course, exercises)
    verdict.looked_at = dict(Counter(job.kind for job in jobs))
    results = _results(root, course, jobs, processes, progress, fresh, verdict)
    for job in jobs:
        found = results[job.key]
        verdict.faults += [Fault(job.exercise, job.kind, text) for text in found.faults]
        verdict.notes += [f"{job.exercise}: {text}" for text in found.notes if job.kind == "assembly"]
        if found.owed:
            verdict.owed.append(f"{job}: {found.owed}")
    if whole:
        _forget_others(root, jobs)
    order = [exercise.id for exercise in course.exercises]
    verdict.faults.sort(key=lambda fault: order.index(fault.exercise) if fault.exercise else -1)
    return verdict


def _results(
    root: Path,
    course: Course,
    jobs: list[Job],
    processes: int,
    progress: Progress,
    fresh: bool,
    verdict: Verdict,
) -> dict[str, Found]:
    """The result of every job by its key, the known ones from files."""
    results = {} if fresh else {job.key: found for job in jobs if (found := _known(root, job))}
    missing = [job for job in jobs if job.key not in results]
    verdict.kept, verdict.now = len(jobs) - len(missing), len(missing)
    seconds = 4 * longest_seconds(course, gpu=False)  # a job is up to three grades
    owed = 0
    if missing:
        progress(0, len(missing), 0)
    done = in_parallel(
        missing, processes, WORKER, lambda worker, job, stopping: _one(worker, job, seconds, stopping)
    )
    with contextlib.closing(done):
        for number, (job, found) in enumerate(done, 1):
            results[job.key] = found
            owed += bool(found.owed)
            _keep(root, job, found)
            progress(number, len(missing), owed)
    return results


def _one(worker: Worker, job: Job, seconds: float, stopping: threading.Event) -> Found:
    problem = ""
    for _ in range(TRIES):
        try:
            return Found.from_json(worker.ask(job, seconds))
        except Stuck as stuck:
            if stopping.is_set():
                break
            problem = str(stuck)
    return Found(owed=f"{problem}, {TRIES} times")


def _fix(root: Path, exercise: str) -> bool:
    """Regenerate the release of an exercise, unless it would give something away; whether that was done."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        try:
            release.generate(root, [exercise], fresh)
        except (UsageError, OSError):
            return False  # the job `release` says why
        if not release.stale(root, fresh, exercise) or release.leaks_in(root, fresh / exercise, exercise):
            return False
        release.refresh(root, fresh, exercise)
        return True


# Kept results -----------------------------------------------------------------------------------


def _file(root: Path, job: Job) -> Path:
    return root / FOLDER / KEPT / f"{job.exercise}-{job.kind}-{job.key[:24]}.json"


def _known(root: Path, job: Job) -> Found | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Found.from_json(json.loads(_file(root, job).read_bytes()))
    return None


def _keep(root: Path, job: Job, found: Found) -> None:
    if found.owed:
        return
    path = _file(root, job)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found.to_json()).encode())
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot be written ({error.strerror or error})") from None


def _forget_others(root: Path, jobs: list[Job]) -> None:
    """Remove results of what is not in the course any more."""
    named = {_file(root, job) for job in jobs}
    for path in _all_kept(root):
        if path not in named:
            with contextlib.suppress(OSError):
                path.unlink()


def _all_kept(root: Path) -> Iterator[Path]:
    return (root / FOLDER / KEPT).glob("*.json")
