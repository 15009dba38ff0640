"""What a class handed in: nbgrader's folders `STUDENT/exercise_NN/`, or a flat folder of files.

In nbgrader's layout the notebook counts. A `.py` file of the exercise's name, else the one that defines the
builder, counts where there is no notebook, or where the notebook's kernel is still the released stub: somebody worked in an editor then. Links are never followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autograder.errors import SubmissionError, UsageError
from autograder.submission import MAX_FILE_BYTES, Submission, read_submission, released_kernel

if TYPE_CHECKING:
    from autograder.course import Course, Exercise

SUFFIXES = (".ipynb", ".py")
EXERCISE = re.compile(r"exercise[_\- ]?(\d{1,2})(?!\d)", re.IGNORECASE)
_COPY = re.compile(
    r"(?:-|\s*\()(\d{1,3})\)?$"
)  # what a learning platform appends to the name of a second attempt
_NUMBERED = re.compile(r"\s*\((\d{1,3})\)$")
# SUBMITTED/.as_submitted/STUDENT/EXERCISE holds a notebook that nbgrader cannot process, see `autograder.nbgrader_steps`:
# outside of the student's folder, and of a name that is no student's.
AS_SUBMITTED = ".as_submitted"
_STAND_IN = "stand_in.sha256"
SKIPPED = {".ipynb_checkpoints", "__pycache__", "__MACOSX", ".autograde"}


@dataclass(frozen=True)
class Handed:
    """One student's work on one exercise. `problem` says why there is no submission to grade, `name` is relative to the folder.

    below: SUBMITTED, in nbgrader's layout; no part of the path below it may be a link. note: for the instructor.
    """

    student: str
    exercise: str
    name: str
    path: Path
    submission: Submission | None = None
    problem: str = ""
    below: Path | None = None
    note: str = ""


def collect(folder: Path, course: Course, only: Exercise | None = None) -> tuple[list[Handed], list[str]]:
    """(everything handed in, in the order of students and exercises; notes on what was left out).

    only: in the flat layout also the exercise of files whose name does not say one.

    Raises:
        UsageError: the folder cannot be read, or holds no submission.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read ({error.strerror or error})") from None
    known = {exercise.id: exercise for exercise in course.exercises}
    notes: list[str] = []
    found: list[Handed] = []
    for entry in entries:
        if entry.name in SKIPPED or entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            found += _of_student(folder, entry.name, known, notes)
        elif Path(entry.name).suffix.lower() in SUFFIXES:
            one = _flat(folder, entry.name, known, only, notes)
            found += [one] if one else []
        elif entry.name.lower().endswith((".zip", ".tar.gz", ".tgz", ".7z")):
            notes.append(f"{printable(entry.name)}: unpack it first; left out")
    found = _newest(found, notes)
    if only is not None:
        found = [one for one in found if one.exercise == only.id]
    if not found:
        raise UsageError(
            f"{folder}: no submission in it; it holds either STUDENT/exercise_NN/exercise_NN.ipynb,"
            " as nbgrader collects them, or files such as STUDENT_exercise_NN.ipynb"
        )
    return found, notes


def with_submissions(found: list[Handed], root: Path, course: Course) -> list[Handed]:
    """The same with each submission read, or with what is wrong with it. Executes nothing."""
    released: dict[str, str | None] = {}
    read = []
    for one in found:
        exercise = course.find(one.exercise)
        if one.exercise not in released:
            released[one.exercise] = released_kernel(root, exercise)
        read.append(_read(one, exercise, released[one.exercise]))
    return read


def _of_student(folder: Path, student: str, known: dict[str, Exercise], notes: list[str]) -> list[Handed]:
    found = []
    for exercise in known.values():
        place = Path(student) / exercise.id
        if os.path.lexists(folder / place):
            name = printable(str(place / exercise.notebook))
            path = notebook_of(folder / place, exercise)
            found.append(Handed(printable(student), exercise.id, name, path, below=folder))
    if not found:
        where = next(iter(known))
        notes.append(
            f"{printable(student)}: holds no folder of an exercise of this course, such as {printable(student)}/{where}; left out"
        )
    return found


def notebook_of(folder: Path, exercise: Exercise) -> Path:
    """The notebook that was handed in, in SUBMITTED/STUDENT/EXERCISE.

    That is the one set aside, as long as what stands in for it in the folder is still there.
    """
    path = folder / exercise.notebook
    if not os.path.lexists(path):
        return _other_notebook(folder, exercise) or path
    aside = set_aside_as(path)
    try:
        whole = path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_FILE_BYTES
        if os.path.lexists(aside) and whole:
            kept = (aside.parent / _STAND_IN).read_text(encoding="utf-8")
            return aside if hashlib.sha256(path.read_bytes()).hexdigest() == kept else path
    except (OSError, ValueError):
        pass
    return path


def _other_notebook(folder: Path, exercise: Exercise) -> Path | None:
    """The one notebook of another name that holds the exercise's kernel cell; None where there is none or more than one."""
    marked = f'"grade_id": "{exercise.cells.kernel}"'.encode()
    found = []
    for path in sorted(folder.glob("*.ipynb")) if folder.is_dir() and not folder.is_symlink() else []:
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_FILE_BYTES:
                found += [path] if marked in path.read_bytes() else []
    return found[0] if len(found) == 1 else None


def set_aside_as(path: Path) -> Path:
    """Where a notebook SUBMITTED/STUDENT/EXERCISE/NAME is kept that nbgrader cannot process."""
    student, submitted = path.parent.parent, path.parent.parent.parent
    return submitted / AS_SUBMITTED / student.name / path.parent.name / path.name


def stand_in(path: Path, released: Path) -> None:
    """Set a notebook SUBMITTED/STUDENT/EXERCISE/NAME aside, and put the released one into its place."""
    aside = set_aside_as(path)
    aside.parent.mkdir(parents=True, exist_ok=True)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    path.replace(aside)
    content = released.read_bytes()
    (aside.parent / _STAND_IN).write_text(hashlib.sha256(content).hexdigest(), encoding="utf-8")
    path.write_bytes(content)


def _flat(
    folder: Path, name: str, known: dict[str, Exercise], only: Exercise | None, notes: list[str]
) -> Handed | None:
    stem = Path(name).stem
    match = EXERCISE.search(stem)
    exercise = f"exercise_{int(match[1]):02d}" if match else only.id if only else ""
    if exercise not in known:
        notes.append(
            f"{printable(name)}: its name says no exercise of this course; left out (--exercise names one)"
        )
        return None
    if not match:
        return Handed(printable(stem), exercise, printable(name), folder / name)
    before, after = stem[: match.start()], stem[match.end() :]
    return Handed(printable(student_of(before, after) or stem), exercise, printable(name), folder / name)


def student_of(before: str, after: str) -> str:
    """The student in a name, from what stands ahead of the exercise and behind it. A number in parentheses at the end is
    an attempt; `-2` is one where a name stands ahead of the exercise, else it may be part of a student's number.
    """
    after = (_COPY if before.strip(" _-.") else _NUMBERED).sub("", after)
    return (before + after).strip(" _-.")


def _newest(found: list[Handed], notes: list[str]) -> list[Handed]:
    """Of several files of one student for one exercise, the last attempt: the highest number, then the last name."""
    kept: dict[tuple[str, str], Handed] = {}
    for one in found:
        other = kept.get((one.student, one.exercise))
        if other is None:
            kept[one.student, one.exercise] = one
            continue
        old, new = sorted((other, one), key=_attempt)
        remark = f"counts as a later attempt than {old.name}, which was left out"
        kept[one.student, one.exercise] = replace(
            new, note="; ".join(filter(None, (old.note, new.note, remark)))
        )
        notes.append(f"{old.name}: {new.name} is a later attempt; left out")
    return sorted(kept.values(), key=lambda one: (one.student, one.exercise))


def _attempt(one: Handed) -> tuple[int, str]:
    stem = Path(one.name).stem
    match = EXERCISE.search(stem)
    numbered = _COPY if match and stem[: match.start()].strip(" _-.") else _NUMBERED
    copy = numbered.search(stem, match.end()) if match else None
    return (int(copy[1]) if copy else 0, one.name)


def _read(one: Handed, exercise: Exercise, released: str | None) -> Handed:
    path = one.path
    try:
        script = path.with_suffix(".py")
        if one.below is not None:
            _refuse_links(path.parent, one.below)
            if not os.path.lexists(script):
                script = _other_script(path, script, exercise, released)
            if os.path.lexists(script):
                path = _notebook_or_script(path, script, exercise, released)
        _refuse_link(path)
        name = (
            printable(one.name) if path == one.path else str(Path(one.name).with_name(printable(path.name)))
        )
        submission = read_submission(path, exercise, released)
        # Its record may serve others who handed in the same text: no name of a student in it.
        submission = replace(submission, name=Path(exercise.notebook).stem + path.suffix.lower())
        return replace(one, path=path, name=name, submission=submission)
    except SubmissionError as error:
        text = printable(str(error)).replace(printable(str(path.parent)) + os.sep, "")
        return replace(one, path=path, problem=text)
    except (ValueError, RecursionError, MemoryError, OSError) as error:  # nothing here may stop the class
        return replace(one, path=path, problem=f"{path.name}: cannot be read ({type(error).__name__})")


def _other_script(notebook: Path, script: Path, exercise: Exercise, released: str | None) -> Path:
    """The one `.py` file of another name that defines the builder, beside a stub or alone; else `script`.

    Raises:
        SubmissionError: there are several.
    """
    defines = re.compile(rb"^def +" + exercise.builder.name.encode() + rb"\b", re.MULTILINE)
    others = [p for p in sorted(notebook.parent.glob("*.py")) if p.is_file() and not p.is_symlink()]
    others = [p for p in others if p.stat().st_size < 1 << 20 and defines.search(p.read_bytes())]
    if not others or _notebook_or_script(notebook, others[0], exercise, released) == notebook:
        return script
    if len(others) > 1:
        names = ", ".join(p.name for p in others)
        raise SubmissionError(f"{names}: left out; rename the one that counts to {script.name}")
    return others[0]


def _notebook_or_script(notebook: Path, script: Path, exercise: Exercise, released: str | None) -> Path:
    if not os.path.lexists(notebook):
        return script
    try:
        _refuse_link(notebook)
        return script if read_submission(notebook, exercise, released).untouched else notebook
    except SubmissionError:
        return notebook


def _refuse_links(folder: Path, below: Path) -> None:
    """A link to a folder is as good as a link to a file: none of the folders below SUBMITTED may be one."""
    for part in folder.relative_to(below).parts:
        below = below / part
        if below.is_symlink():
            raise SubmissionError(f"{part}: is a link; hand in the folder itself")


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise SubmissionError(f"{path}: is a link; hand in the file itself")


def printable(text: str) -> str:
    """A name of the file system that every file and terminal can show."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
