"""Where the submissions of a class lie: nbgrader's folders, or a flat download."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from autograder.course import Course, Exercise
from autograder.errors import UsageError

SUFFIXES = (".ipynb", ".py")


@dataclass(frozen=True)
class HandedIn:
    """One file that a student handed in for one exercise."""

    student: str
    exercise: Exercise
    path: Path


def find_submissions(folder: Path, course: Course) -> list[HandedIn]:
    """What lies in `folder`, sorted by exercise and student.

    Two layouts are known and may be mixed: nbgrader's `STUDENT/exercise_NN/exercise_NN.ipynb` (or the same with .py), and files
    whose names hold the exercise, as most learning platforms hand them out: `alice_exercise_05.ipynb`, `alice-05.py`,
    `exercise_05_alice_attempt_2.ipynb`. Of two files of one student for one exercise the notebook counts, then the name that sorts last.

    Raises:
        UsageError: the folder is missing or holds no submission.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder; give the one that holds what students handed in"
        )
    found: dict[tuple[str, str], HandedIn] = {}
    by_id = {exercise.id: exercise for exercise in course.exercises}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.suffix not in SUFFIXES or path.is_symlink() or any(p.startswith(".") for p in relative.parts):
            continue
        handed_in = _nested(path, relative, by_id) or _flat(path, relative, by_id)
        if handed_in is None:
            continue
        key = (handed_in.exercise.id, handed_in.student)
        if key not in found or path.suffix == ".ipynb" or found[key].path.suffix == ".py":
            found[key] = handed_in
    if not found:
        raise UsageError(
            f"{folder}: no submission found; expected STUDENT/exercise_NN/exercise_NN.ipynb or files such as STUDENT_exercise_NN.ipynb"
        )
    return [found[key] for key in sorted(found)]


def _nested(path: Path, relative: Path, by_id: dict[str, Exercise]) -> HandedIn | None:
    """nbgrader's layout: the file of that exercise in STUDENT/exercise_NN/."""
    if len(relative.parts) < 3:
        return None
    student, name = relative.parts[-3], relative.parts[-2]
    exercise = by_id.get(name)
    if exercise is None or path.stem != Path(exercise.notebook).stem:
        return None
    return HandedIn(student, exercise, path)


def _flat(path: Path, relative: Path, by_id: dict[str, Exercise]) -> HandedIn | None:
    """A file whose name holds the exercise; what is left of the name is the student."""
    if len(relative.parts) != 1:
        return None
    match = re.search(r"(?:exercise[_-]?)?(?<!\d)(\d{2})(?!\d)", path.stem)
    exercise = by_id.get(f"exercise_{match.group(1)}") if match else None
    if match is None or exercise is None:
        return None
    rest = path.stem[: match.start()] + " " + path.stem[match.end() :]
    student = re.sub(r"[\s_-]*attempt[\s_-]*\d+|[\s_-]+", " ", rest).strip().replace(" ", "_")
    return HandedIn(student or path.stem, exercise, path)
