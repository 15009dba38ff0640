"""The jobs of a course: which there are, what each depends on, and how one is done."""

from __future__ import annotations

import importlib.metadata
import tempfile
import time
from functools import lru_cache
from pathlib import Path

from autograder import release
from autograder.assembly import find_nvcc
from autograder.batch.record import digest, exercise_sha256, versions
from autograder.check_course import kernels
from autograder.check_course.model import Found, Job
from autograder.course import Course, Exercise, load_course
from autograder.errors import AutogradeError

# The longest first, so that the pool does not end with one process working and the others idle.
KINDS = ("solution", "assembly", "stub", "release", "mutant")


def jobs_of(root: Path, course: Course, exercises: list[Exercise]) -> list[Job]:
    """Every job of these exercises, each with the key of what it depends on."""
    made = [job for exercise in exercises for job in _of_exercise(root, course, exercise)]
    return sorted(made, key=lambda job: KINDS.index(job.kind))


def _of_exercise(root: Path, course: Course, exercise: Exercise) -> list[Job]:
    solution, released = root / "solutions" / exercise.id, root / "exercises" / exercise.id
    notebook = [solution / exercise.notebook]
    found = []
    for kind, paths in (
        ("solution", notebook),
        ("assembly", notebook),
        ("stub", [*notebook, released / exercise.notebook]),
        ("release", [solution, released, root / release.CONFIG]),
    ):
        found.append(Job(kind, str(root), exercise.id, "", _key(root, course, exercise, kind, paths)))
    for path in sorted((root / "tests" / "mutants" / exercise.id).glob("*.py")):
        key = _key(root, course, exercise, "mutant", [*notebook, path])
        found.append(Job("mutant", str(root), exercise.id, path.stem, key))
    return found


def _key(root: Path, course: Course, exercise: Exercise, kind: str, paths: list[Path]) -> str:
    """Digest of what decides the result: the exercise, the grader and its tools, the files."""
    parts: list[object] = [kind, exercise_sha256(course, exercise), versions(), _contents(root, paths)]
    if kind == "release":
        later = [release.source_notebook(root, name) for name in release.sources(root)]
        parts += [_version("nbgrader"), _contents(root, later)]
    if kind in ("assembly", "solution"):
        nvcc = find_nvcc()
        parts.append(f"{nvcc} {nvcc.stat().st_mtime_ns}" if nvcc else None)
    return digest(parts)


def _contents(root: Path, paths: list[Path]) -> dict[str, str]:
    """File -> its content; folders stand for all files in them."""
    files = [f for path in paths for f in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return {str(f.relative_to(root)): digest(f.read_bytes().hex()) for f in files if f.is_file()}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def do(job: Job) -> Found:
    """The result of a job. Never raises: what goes wrong with the grader is owed."""
    started = time.perf_counter()
    try:
        found = _do(job)
    except AutogradeError as error:
        found = Found((str(error),))
    except Exception as error:
        found = Found(owed=f"the grader failed: {type(error).__name__}: {error}")
    return Found(found.faults, found.notes, round(time.perf_counter() - started, 3), found.owed)


def _do(job: Job) -> Found:
    root = Path(job.root)
    course = _course(root)
    exercise = course.find(job.exercise)
    match job.kind:
        case "stub":
            return kernels.stub(root, course, exercise)
        case "solution":
            return kernels.solution(root, course, exercise)
        case "assembly":
            return kernels.assembly(root, course, exercise)
        case "mutant":
            return kernels.mutant(root, course, exercise, job.name)
    return released(root, exercise)


@lru_cache(maxsize=1)
def _course(root: Path) -> Course:
    return load_course(root)


def released(root: Path, exercise: Exercise) -> Found:
    """exercises/ is what nbgrader makes of solutions/ today, and gives nothing away."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        release.generate(root, [exercise.id], fresh)
        faults = release.stale(root, fresh, exercise.id)
        faults += release.leaks_in(root, fresh / exercise.id, exercise.id)
        for path in sorted(p for p in (fresh / exercise.id).rglob("*") if p.is_file()):
            text = path.read_text(encoding="utf-8", errors="replace")
            faults += [
                f"{path.name} still has the words {w}"
                for w in ("BEGIN SOLUTION", "HIDDEN TESTS")
                if w in text
            ]
    return Found(tuple(faults))
