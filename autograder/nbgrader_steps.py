"""What this course puts into nbgrader's steps; nbgrader_config.py names these classes.

`PointsOfCourse` releases every scored cell with the points of course.yaml. `GradeCells` stands where nbgrader executes the
learner's notebook: it has `autograde` grade the submission in processes of its own, and writes the results into the scored cells.
So code of a learner never runs beside the cells that score it, and what it does to its process (a hang, a crash, output on
stderr, a patched `check`) touches nothing. `FlatExtractor` and `FlatCollector` read a flat download of a learning platform.
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import HTMLExporter
from nbgrader.nbgraderformat import MetadataValidator
from nbgrader.plugins import ExtractorPlugin, FileNameCollectorPlugin
from nbgrader.preprocessors import Execute, NbGraderPreprocessor

from autograder.batch.collect import (
    EXERCISE,
    SKIPPED,
    SUFFIXES,
    Handed,
    collect,
    notebook_of,
    stand_in,
    student_of,
    with_submissions,
)
from autograder.batch.grading import run_task, task, unreadable
from autograder.batch.record import Record, kept_record, snapshot
from autograder.batch.run import class_seed
from autograder.course import Course, Exercise, load_course
from autograder.course_folder import find_course_root
from autograder.errors import AutogradeError, CourseError, MachineError
from autograder.report.html import fragment, notice
from autograder.report.model import GradeReport
from autograder.submission import cell_grade_id, read_answers

_CHECK = r'check\("(exercise_\d\d)"(?:, "(\w+)")?\)'
_FROM_NETWORK = re.compile(r"""<script[^>]*\ssrc=["']?https?://[^>]*>\s*</script>""")
_MOODLE = re.compile(r"_\d+_assignsubmission_file.*$")


class PointsOfCourse(NbGraderPreprocessor):  # type: ignore[misc]
    """Points of scored cells as course.yaml says; a `.py` file in the source stops the release."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        _, course = _course()
        name = resources["nbgrader"]["assignment"]
        exercise = next((e for e in course.exercises if e.id == name), None)
        if exercise is None:
            raise CourseError(f"{name} is no exercise of course.yaml")
        scripts = sorted(Path(resources["metadata"]["path"]).rglob("*.py"))
        if scripts:
            raise CourseError(f"{scripts[0]} would be handed out with its solutions; remove it")
        points = {str(check.id): check.points for check in exercise.checks}
        for cell in nb.cells:
            marked = cell.metadata.get("nbgrader", {})
            if marked.get("grade") and marked.get("grade_id") in points:
                worth = points[marked["grade_id"]]
                marked["points"] = int(worth) if worth.is_integer() else worth
        return nb, resources


class RestoreCells(NbGraderPreprocessor):  # type: ignore[misc]
    """Puts cells of the release that a learner has deleted back into their places.

    nbgrader does so for scored cells only, and fails where the cell before one is deleted, too, or is neither scored nor a solution.
    Where the release is not there any more, the notebook stays as it is.
    """

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        root, course = _course()
        about = resources["nbgrader"]
        exercise = next((e for e in course.exercises if e.id == about["assignment"]), None)
        released = root / "exercises" / about["assignment"] / f"{about['notebook']}.ipynb"
        if exercise is not None and exercise.notebook == released.name and released.is_file():
            nb.cells = with_released_cells(nb.cells, nbformat.read(released, as_version=4).cells)
        return nb, resources


def with_released_cells(cells: list[Any], released: list[Any]) -> list[Any]:
    """The cells, and those of the release whose grade_id is not among them, each behind the one that it followed there."""
    cells = list(cells)
    place = 0
    for cell in released:
        name = cell_grade_id(cell)
        if name is None:
            continue
        at = next((n for n, own in enumerate(cells) if cell_grade_id(own) == name), None)
        if at is None:
            cells.insert(place, cell)
        place = max(place, (place if at is None else at) + 1)
    return cells


class GradeCells(NbGraderPreprocessor):  # type: ignore[misc]
    """Grades a submission with `autograde` and writes number and report into the notebook's scored cells.

    A notebook that is no exercise of course.yaml is executed by nbgrader as usual.
    """

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        root, course = _course()
        about = resources["nbgrader"]
        known = {exercise.id: exercise.notebook for exercise in course.exercises}
        if known.get(about["assignment"]) != f"{about['notebook']}.ipynb":
            return Execute(parent=self.parent).preprocess(nb, resources)
        folder = Path(
            self.parent.parent.coursedir.format_path(
                self.parent.parent.coursedir.submitted_directory, about["student"], about["assignment"]
            )
        )
        exercise = course.find(about["assignment"])
        agree(nb.cells, exercise)  # before seconds are spent
        record = grade_folder(root, course, exercise, about["student"], folder)
        if not record.final:
            raise MachineError(
                f"{about['student']}, {exercise.id}: not graded, {record.problem or 'see the record'}"
            )
        write_outputs(nb.cells, exercise, record)
        return nb, resources


def grade_folder(root: Path, course: Course, exercise: Exercise, student: str, folder: Path) -> Record:
    """The record of what lies in `submitted/STUDENT/EXERCISE`, of an earlier `autograde batch` where there is one."""
    name = f"{student}/{exercise.id}/{exercise.notebook}"
    submitted = folder.parent.parent
    handed = Handed(student, exercise.id, name, notebook_of(folder, exercise), below=submitted)
    [one] = with_submissions([handed], root, course)
    results = root / "results"
    seed = class_seed(results)
    if one.submission is None:
        return unreadable(course, exercise, one.problem, seed, quick=False)
    todo = task(root, results, course, exercise, snapshot(one.submission), seed, quick=False)
    kept = kept_record(results, exercise.id, todo.key)
    return kept if kept is not None and kept.final else run_task(todo)


def write_outputs(cells: list[Any], exercise: Exercise, record: Record) -> None:
    """One result per cell that calls `check`: the points, which nbgrader reads, and the report, which people read.

    Raises:
        CourseError: see `agree`.
    """
    agree(cells, exercise)
    count = 0
    for cell in cells:
        if cell.get("cell_type") == "code":
            cell["outputs"], cell["execution_count"] = [], None
        name = _scored_check(cell, exercise)
        if name is None:
            continue
        count += 1
        points, shown = _result(record, exercise, name)
        data = {"text/plain": repr(points), "text/html": shown}
        cell["outputs"] = [nbformat.v4.new_output("execute_result", data, execution_count=count)]
        cell["execution_count"] = count


def _scored_check(cell: Any, exercise: Exercise) -> str | None:
    """The id of the check that a cell shows, "" for the whole report, None for any other cell."""
    if cell.get("cell_type") != "code":
        return None
    if cell.get("metadata", {}).get("nbgrader", {}).get("grade"):
        return str(cell_grade_id(cell))
    called = re.fullmatch(_CHECK, str(cell.get("source", "")).rstrip().split("\n")[-1])
    return (called[2] or "") if called and called[1] == exercise.id else None


def _result(record: Record, exercise: Exercise, name: str) -> tuple[float, str]:
    """(points, HTML) of one check, or of the whole."""
    report: GradeReport | None = record.report
    if report is None:
        return 0.0, notice(record.problem)
    found = report.check(name)
    points = report.points if not name else found.points if found else 0.0
    most = report.max_points if not name else found.max_points if found else 0.0
    return (min(max(points, 0.0), most) if math.isfinite(points) else 0.0), fragment(report, name or None)


def agree(cells: list[Any], exercise: Exercise) -> None:
    """Look whether the gradebook, whose points nbgrader has put into the scored cells, has the points of course.yaml.

    Raises:
        CourseError: it has not, because course.yaml changed after the release.
    """
    known = {str(check.id): check.points for check in exercise.checks}
    again = f"run `nbgrader generate_assignment {exercise.id} --force`"
    for cell in cells:
        marked = cell.get("metadata", {}).get("nbgrader", {})
        name = str(marked.get("grade_id"))
        if not marked.get("grade"):
            continue
        if name not in known:
            raise CourseError(
                f"{exercise.id} was released with a check {name}, which course.yaml does not have; {again}"
            )
        if float(marked["points"]) != known[name]:
            raise CourseError(
                f"{exercise.id}, {name}: {marked['points']:g} points in the gradebook,"
                f" {known[name]:g} in course.yaml; {again}"
            )


def look_before_grading(autograde: Any) -> None:
    """Let nbgrader's step look at everything that was handed in, and at the points of its gradebook before it removes what it graded
    earlier; it has no hooks there."""
    find, convert = autograde.init_notebooks, autograde.convert_notebooks
    if getattr(convert, "looks", False):  # several steps in one process
        return

    def look_and_convert(self: Any) -> None:
        _points_agree(self)
        convert(self)

    def add_and_find(self: Any) -> None:
        _notebooks_for_all(self)
        find(self)

    look_and_convert.looks = True  # type: ignore[attr-defined]
    autograde.init_notebooks, autograde.convert_notebooks = add_and_find, look_and_convert


def _points_agree(converter: Any) -> None:
    """Nothing, where the gradebook has the points of course.yaml.

    Raises:
        SystemExit: it has others; status 1, after a line in nbgrader's log.
    """
    from nbgrader.api import Gradebook, MissingEntry

    _, course = _course()
    names = {exercise.id for exercise in course.exercises}
    wanted = converter.coursedir.assignment_id
    if wanted not in names:
        return
    with Gradebook(converter.coursedir.db_url, converter.coursedir.course_id) as gradebook:
        try:
            notebooks = gradebook.find_assignment(wanted).notebooks
        except MissingEntry:  # nbgrader has its own words for it
            return
        scored = [
            {"metadata": {"nbgrader": {"grade": True, "grade_id": cell.name, "points": cell.max_score}}}
            for notebook in notebooks
            for cell in notebook.grade_cells
        ]
    try:
        agree(scored, course.find(wanted))
    except CourseError as error:
        converter.log.error("%s; nothing was changed", error)
        raise SystemExit(1) from None


def _notebooks_for_all(converter: Any) -> None:
    """nbgrader passes over a student without a notebook of the exercise's name. Where something else was handed in that counts, a `.py`
    or a notebook of another name, the released notebook is put beside it, respectively a copy of that one under the right name.
    """
    root, course = _course()
    exercise = next((e for e in course.exercises if e.id == converter.coursedir.assignment_id), None)
    if exercise is None:
        return
    pattern = converter.coursedir.format_path(
        converter.coursedir.submitted_directory, converter.coursedir.student_id, exercise.id
    )
    for folder in sorted(Path(found) for found in glob.glob(pattern)):
        path, released = folder / exercise.notebook, root / "exercises" / exercise.id / exercise.notebook
        if os.path.lexists(path) or folder.is_symlink() or folder.parent.is_symlink() or not folder.is_dir():
            continue
        name, found = f"{folder.parent.name}/{exercise.id}/{exercise.notebook}", notebook_of(folder, exercise)
        handed = Handed(folder.parent.name, exercise.id, name, found, below=folder.parent.parent)
        [one] = with_submissions([handed], root, course)
        if handed.path != path:
            path.write_bytes(handed.path.read_bytes())
        elif one.path.suffix == ".py" and one.submission is not None and released.is_file():
            path.write_bytes(released.read_bytes())
        else:
            continue
        converter.log.warning("%s: %s counts", folder, one.path.name)


def set_aside(assignment: str, student: str, notebooks: list[str]) -> None:
    """Before nbgrader autogrades: put the released notebook in the place of one that it cannot process.

    What was handed in is kept outside of the student's folder, and is what gets graded.
    """
    root, course = _course()
    known = {exercise.id: exercise.notebook for exercise in course.exercises}
    for path in map(Path, notebooks):
        name = path.parent.name
        released = root / "exercises" / name / path.name
        linked = path.parent.is_symlink() or path.parent.parent.is_symlink()
        if known.get(name) != path.name or not released.is_file() or linked or _can_be_processed(path):
            continue
        stand_in(path, released)


def _can_be_processed(path: Path) -> bool:
    """Whether nbgrader's own steps can read the notebook and its metadata."""
    try:
        if path.is_symlink():
            return False
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        ids = [cell_grade_id(cell) for cell in notebook.cells]
        if len(ids) - ids.count(None) != len(set(ids) - {None}):
            return False  # nbgrader would choose one of two cells; here that is the learner's to do
        MetadataValidator().validate_nb(notebook)
    except Exception:
        return False
    return True


class OfflineFeedback(HTMLExporter):  # type: ignore[misc]
    """A feedback page without what it would load from the network."""

    def from_notebook_node(self, nb: Any, resources: Any = None, **kw: Any) -> tuple[str, Any]:
        page, resources = super().from_notebook_node(nb, resources, **kw)
        return _FROM_NETWORK.sub("", page), resources


# A flat download --------------------------------------------------------------------------------


class FlatExtractor(ExtractorPlugin):  # type: ignore[misc]
    """Unpacks a download. A `.py` file is put into the released notebook, because nbgrader grades notebooks."""

    def extract(self, archive_path: str, extracted_path: str) -> None:
        root, course = _course()
        exercise = course.find(self.parent.coursedir.assignment_id)
        refused = [path for path in sorted(Path(archive_path).rglob("*.zip")) if of_a_class(path, exercise)]
        if refused:
            self.parent.fail(
                f"{refused[0]}: holds the work of several students; unzip a class zip and take it out of this folder"
            )
        super().extract(archive_path, extracted_path)
        for path in sorted(Path(extracted_path).rglob("*.py")):
            if path.is_file() and not path.is_symlink():
                text = as_notebook(root, exercise, path.read_bytes().decode("utf-8", "replace"))
                path.with_suffix(".ipynb").write_text(text, encoding="utf-8")
                path.unlink()


def of_a_class(archive: Path, exercise: Exercise) -> bool:
    """Whether a zip holds the work of others than the one student whose name it bears: a folder of Moodle's, a zip, a file
    with a student's name, or the exercise's file more than once.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            names = [Path(name) for name in file.namelist() if not name.endswith("/")]
    except (OSError, zipfile.BadZipFile):
        return False  # nbgrader says what is wrong with it
    names = [name for name in names if not SKIPPED.intersection(name.parts)]
    stem = Path(exercise.notebook).stem
    works = {name.with_suffix("") for name in names if name.stem == stem and name.suffix in SUFFIXES}
    named = [name for name in names if name.stem != stem and stem in name.stem and name.suffix in SUFFIXES]
    inner = [name for name in names if name.suffix == ".zip" or any(map(_MOODLE.search, name.parts))]
    return len(works) > 1 or bool(named or inner)


def as_notebook(root: Path, exercise: Exercise, script: str) -> str:
    """The released notebook with a `.py` file's text as its kernel cell, and the answers that the file gives."""
    notebook = json.loads((root / "exercises" / exercise.id / exercise.notebook).read_text(encoding="utf-8"))
    answers, _ = read_answers(script)
    texts = {exercise.cells.kernel: script.rstrip()}
    if exercise.cells.answers is not None:
        texts[exercise.cells.answers] = f"answers = {answers!r}"
    for cell in notebook["cells"]:
        name = cell_grade_id(cell)
        if name in texts:
            cell["source"] = texts[name].splitlines(keepends=True)
    return json.dumps(notebook, indent=1) + "\n"


class FlatCollector(FileNameCollectorPlugin):  # type: ignore[misc]
    """Tells student and attempt from names such as `alice_exercise_05.ipynb` or `exercise_05_alice (2).ipynb`, as `batch` does."""

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        path = Path(submitted_file)
        _, course = _course()
        exercise = course.find(self.parent.coursedir.assignment_id)
        top = Path(self.parent._format_collect_path(self.parent.extracted_directory))
        relative = path.relative_to(top)
        if path.suffix != ".ipynb" or path.is_symlink():
            return None
        if len(relative.parts) > 1:  # an archive or a folder per student
            student = _student_of_folder(relative.parts[0])
            return (
                {"student_id": student, "file_id": exercise.notebook}
                if path.name == exercise.notebook
                else None
            )
        kept = next((one for one in _flat_files(top, exercise.id) if one.path == path), None)
        return {"student_id": kept.student, "file_id": exercise.notebook} if kept else None


def _student_of_folder(name: str) -> str:
    """The student in the name of an archive or a folder: `lena`, `lena_exercise_05`, or one of Moodle's."""
    match = EXERCISE.search(name)
    found = student_of(name[: match.start()], name[match.end() :]) if match else ""
    return found or _MOODLE.sub("", name).strip(" _-")


@lru_cache(maxsize=1)
def _flat_files(top: Path, name: str) -> list[Handed]:
    _, course = _course()
    try:
        return collect(top, course, course.find(name))[0]
    except AutogradeError:
        return []


def _course() -> tuple[Path, Course]:
    """The course that nbgrader runs in."""
    return _load(find_course_root(Path.cwd()))


def need_a_course() -> None:
    """Nothing, where course.yaml can be read.

    Raises:
        SystemExit: it cannot; its text says where. nbgrader would show a stack trace, and only after it has begun.
    """
    try:
        _course()
    except AutogradeError as error:
        raise SystemExit(f"nbgrader_config.py: {error}") from None


@lru_cache(maxsize=1)
def _load(root: Path) -> tuple[Path, Course]:
    return root, load_course(root)
