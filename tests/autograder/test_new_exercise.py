"""`autograde new-exercise` begins an exercise that works; what an instructor changes stands in course.yaml alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from autograder import release
from autograder.check_course.files import examine_exercise
from autograder.course import load_course
from autograder.errors import UsageError
from autograder.grade import Settings, grade
from autograder.new_exercise import create
from autograder.report.model import GradeReport
from autograder.submission import read_submission

from .conftest import REPOSITORY, Result, one_line


@pytest.fixture
def course_folder(folder: Path) -> Path:
    shutil.copy(REPOSITORY / "nbgrader_config.py", folder)
    return folder


def test_it_passes_check_course_but_for_its_todos(
    course_folder: Path, autograde: Callable[..., Result]
) -> None:
    """Release included; nothing of it is an error of another kind."""
    pytest.importorskip("nbgrader")
    done = autograde("new-exercise", "7", "Half and double: a test")
    assert done.code == 0 and "wrote exercises/exercise_07" in done.out
    course = load_course(course_folder)
    assert [(e.id, e.title) for e in course.exercises][1] == ("exercise_07", "Half and double: a test")
    done = autograde("check-course", "7", "--plain", "--jobs", "2")
    faults = [line for line in done.out.splitlines() if line.startswith("--")]
    assert done.code == 1 and len(faults) == 14, done.out
    assert [line for line in faults if not line.startswith("-- exercise_07: todo: ")] == []
    assert "1 solution, 1 assembly, 1 stub, 1 release, 1 mutant" in done.out and "??" not in done.out


def edited(folder: Path, old: str, new: str) -> None:
    """Exchange a piece of course.yaml, in the block of exercise_07."""
    path = folder / "course.yaml"
    head, block = path.read_text(encoding="utf-8").split("  - id: exercise_07")
    assert block.count(old) == 1, old
    path.write_text(f"{head}  - id: exercise_07{block.replace(old, new)}", encoding="utf-8")


def graded(folder: Path) -> GradeReport:
    course = load_course(folder)
    exercise = course.find("7")
    submission = read_submission(folder / "solutions/exercise_07/exercise_07.ipynb", exercise)
    return grade(exercise, submission, course.limits, Settings(seed=1, quick=True, measure=False))


def test_points_shapes_and_thresholds_change_in_course_yaml_alone(
    course_folder: Path, tmp_path: Path
) -> None:
    """And a release hands the new points out, without a change of the notebook."""
    pytest.importorskip("nbgrader")
    create(course_folder, load_course(course_folder), 7, "Doubling")
    notebook = course_folder / "solutions/exercise_07/exercise_07.ipynb"
    before = notebook.read_bytes()
    edited(course_folder, "points: 60", "points: 55.5")
    edited(course_folder, "params: {M: 8, N: 100}", "params: {M: 3, N: 50}")
    edited(course_folder, "threads_per_cta: 128", "threads_per_cta: 64")
    report = graded(course_folder)
    assert {check.id: (check.points, check.max_points) for check in report.checks} == {
        "predictions": (10, 10),
        "build": (10, 10),
        "correctness": (55.5, 55.5),
        "synchronization": (10, 10),
        "resources": (0, 10),
    }
    release.generate(course_folder, ["exercise_07"], tmp_path)
    cells = json.loads((tmp_path / "exercise_07/exercise_07.ipynb").read_text(encoding="utf-8"))["cells"]
    points = {c["id"]: c["metadata"]["nbgrader"]["points"] for c in cells if "points" in str(c["metadata"])}
    assert points == {
        "predictions": 10,
        "build": 10,
        "correctness": 55.5,
        "synchronization": 10,
        "resources": 10,
    }
    assert notebook.read_bytes() == before
    stale = release.stale(course_folder, tmp_path, "exercise_07")
    assert stale[-1] == "solutions/exercise_07/exercise_07.ipynb has other points than course.yaml"
    release.refresh(course_folder, tmp_path, "exercise_07")
    assert release.stale(course_folder, tmp_path, "exercise_07") == []
    assert not [
        f for f in examine_exercise(course_folder, load_course(course_folder).find("7")) if f.kind != "todo"
    ]


@pytest.mark.parametrize(
    ("number", "title", "message"),
    [
        ("5", "x", "exercise_05 exists already; choose another number"),
        ("100", "x", "an exercise has a number from 1 to 99, not 100"),
        ("7", "a\nb", "the title of an exercise is a few printable words"),
        ("7", " ", "the title of an exercise is a few printable words"),
    ],
)
def test_what_cannot_be_an_exercise(
    number: str, title: str, message: str, course_folder: Path, autograde: Callable[..., Result]
) -> None:
    before = (course_folder / "course.yaml").read_bytes()
    done = autograde("new-exercise", number, title)
    assert done.code == 2 and one_line(done.err) and message in done.err
    assert (course_folder / "course.yaml").read_bytes() == before


@pytest.mark.parametrize("title", ['Say "no": {a} # b', "Größe, 漢字 & <b>", "[1, 2]", "yes"])
def test_any_printable_title(title: str, course_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML, Markdown and JSON take it as it is."""
    monkeypatch.setattr("autograder.new_exercise.importlib.util.find_spec", lambda name: None)
    written = create(course_folder, load_course(course_folder), 4, title)
    assert "exercises/exercise_04" not in written
    assert load_course(course_folder).find("4").title == title
    assert [e.id for e in load_course(course_folder).exercises] == ["exercise_04", "exercise_05"]
    cells = json.loads((course_folder / "solutions/exercise_04/exercise_04.ipynb").read_text("utf-8"))[
        "cells"
    ]
    assert "".join(cells[0]["source"]).startswith(f"# Exercise 04: {title}\n")


def test_without_a_solution_to_continue(course_folder: Path) -> None:
    """One line when an exercise continues one whose notebook is missing."""
    with pytest.raises(UsageError, match="cannot be read, but a later exercise continues exercise_05"):
        (course_folder / "solutions/exercise_05/exercise_05.ipynb").unlink()
        release.kernel_cell(course_folder, "exercise_05")
