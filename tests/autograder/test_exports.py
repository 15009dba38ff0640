"""What `autograde batch` writes for other programs, each against the rules of its format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from autograder.batch import run
from autograder.batch.exports import csv_text, gradescope, junit_xml
from autograder.batch.grading import failed, task
from autograder.batch.record import snapshot
from autograder.course import Course, load_course
from autograder.submission import Submission

from .conftest import Result

NAMES = ["plain", "=SUM(A1)", 'a,b;"c"', "<&>", "漢字 Ü", "\x07bell", "two\nlines"]
SYNTAX = "def build_kernel(M, N, K):\n    return (\n"

# https://gradescope-autograders.readthedocs.io/en/latest/specs/
_VISIBILITY = {"enum": ["hidden", "after_due_date", "after_published", "visible"]}
_FORMAT = {"enum": ["text", "html", "simple_format", "md", "ansi"]}
_TEST = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0},
        "max_score": {"type": "number", "minimum": 0},
        "status": {"enum": ["passed", "failed"]},
        "name": {"type": "string", "minLength": 1},
        "name_format": _FORMAT,
        "number": {"type": "string"},
        "output": {"type": "string"},
        "output_format": _FORMAT,
        "tags": {"type": "array", "items": {"type": "string"}},
        "visibility": _VISIBILITY,
        "extra_data": {"type": "object"},
    },
    "additionalProperties": False,
}
GRADESCOPE = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0},
        "execution_time": {"type": "number"},
        "output": {"type": "string"},
        "output_format": _FORMAT,
        "test_output_format": _FORMAT,
        "test_name_format": _FORMAT,
        "visibility": _VISIBILITY,
        "stdout_visibility": _VISIBILITY,
        "extra_data": {"type": "object"},
        "tests": {"type": "array", "items": _TEST},
        "leaderboard": {"type": "array"},
    },
    "required": ["tests"],
    "additionalProperties": False,
}


@pytest.fixture
def whole(folder: Path) -> run.Class:
    """A class of names that no format likes, graded without a process, and one line that the machine owes."""
    course = load_course(folder)
    exercise = course.find("5")
    rows = []
    for number, name in enumerate(NAMES):
        submission = Submission(name="exercise_05.ipynb", source=f"{SYNTAX}# {number}", answers={"q1": 32768})
        todo = task(folder, folder / "results", course, exercise, snapshot(submission), 1, True)
        from autograder.batch.grading import run_task

        rows.append(run.Row(name, exercise, f"{name}/exercise_05.ipynb", run_task(todo)))
    owed = task(folder, folder / "results", course, exercise, snapshot(submission), 2, True)
    rows.append(run.Row("owed", exercise, "owed.ipynb", failed(owed, "the process died")))
    return run.Class("A course & more", rows)


def test_csv(whole: run.Class) -> None:
    """RFC 4180: the same number of fields in each line; a column per check, numbers that add up, nothing that a spreadsheet runs."""
    text = csv_text(whole)
    lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert {len(line) for line in lines} == {len(lines[0])} and len(set(lines[0])) == len(lines[0])
    checks = [str(check.id) for check in whole.rows[0].exercise.checks]
    assert [name for name in lines[0] if name in checks] == checks
    rows = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    assert len(rows) == len(NAMES) + 1
    for row in rows[:-1]:
        assert float(row["points"]) == sum(float(row[check]) for check in checks) == 2
        assert float(row["max_points"]) == 100
    assert rows[-1]["points"] == "" and {rows[-1][check] for check in checks} == {""}
    assert not [cell for line in lines for cell in line if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]


def test_junit(whole: run.Class) -> None:
    """What CI systems read: suites with counts that are right, cases with a name, and known elements only."""
    root = ElementTree.fromstring(junit_xml(whole))
    assert root.tag == "testsuites" and len(root) == len(whole.rows)
    for suite in root:
        assert suite.tag == "testsuite" and {"name", "tests", "failures", "errors", "skipped", "time"} <= set(
            suite.attrib
        )
        cases = suite.findall("testcase")
        assert len(cases) == len(suite) == int(suite.attrib["tests"]) == 6
        assert all(case.attrib["name"] and case.attrib["classname"] for case in cases)
        found = [child.tag for case in cases for child in case]
        assert set(found) <= {"failure", "error", "skipped"} and all(len(case) <= 1 for case in cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[name]) == found.count(tag)
        assert float(suite.attrib["time"]) >= 0
    assert [suite.attrib["errors"] for suite in root][-1] == "6", (
        "what is owed is no failure of the learner's"
    )


def test_gradescope(whole: run.Class) -> None:
    """The documented keys and values; the score is the sum of the tests; none where the grader owes it."""
    for row in whole.rows[:-1]:
        result = json.loads(json.dumps(gradescope(row)))
        jsonschema.validate(result, GRADESCOPE)
        assert result["score"] == sum(test["score"] for test in result["tests"]) == 2
        assert sum(test["max_score"] for test in result["tests"]) == 100
        assert [test["status"] for test in result["tests"]] == ["failed"] * 6
    owed = gradescope(whole.rows[-1])
    jsonschema.validate(owed, GRADESCOPE)
    assert "score" not in owed and owed["tests"] == [] and "not graded yet" in owed["output"]


def test_gradebook(whole: run.Class, folder: Path, tmp_path: Path) -> None:
    """nbgrader reads the points of every check; a new gradebook and one that already has the assignment; nobody waits for a person."""
    api = pytest.importorskip("nbgrader.api")
    from autograder.batch.gradebook import write_gradebook

    path = tmp_path / "gradebook.db"
    for _ in range(2):  # the second time nothing is new
        assert write_gradebook(path, whole) == len(NAMES)
    with api.Gradebook(f"sqlite:///{path}") as gradebook:
        assert {student.id for student in gradebook.students} == set(NAMES)
        assert gradebook.find_assignment("exercise_05").max_score == 100
        submissions = gradebook.assignment_submissions("exercise_05")
        assert {submission.score for submission in submissions} == {2.0}
        assert not any(submission.needs_manual_grade for submission in submissions)
        grades = submissions[0].notebooks[0].grades
        assert {grade.name: grade.auto_score for grade in grades}["predictions"] == 2.0 and len(grades) == 6


def test_gradebook_of_another_release(whole: run.Class, course: Course, tmp_path: Path) -> None:
    """A check that the gradebook does not know is one line, not half a class."""
    pytest.importorskip("nbgrader.api")
    from autograder.batch.gradebook import write_gradebook
    from autograder.errors import UsageError

    path = tmp_path / "gradebook.db"
    write_gradebook(path, whole)
    check = whole.rows[0].exercise.checks[0].model_copy(update={"id": "extra"})
    for row in whole.rows:
        row.exercise = row.exercise.model_copy(update={"checks": [*row.exercise.checks, check]})
    with pytest.raises(UsageError, match="has no cell extra; release the exercise again"):
        write_gradebook(path, whole)


def test_the_command_names_what_it_wrote(folder: Path, autograde: Callable[..., Result]) -> None:
    """One folder per student for Gradescope, and names that cannot leave it."""
    notebook: dict[str, Any] = json.loads(
        (folder / "exercises/exercise_05/exercise_05.ipynb").read_text("utf-8")
    )
    path = folder / "submitted" / "dots.." / "exercise_05" / "exercise_05.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    done = autograde("batch", "submitted", "--gradebook", "gradebook.db")
    assert done.code == 0 and "1 submissions written to gradebook.db" in done.out
    [written] = (folder / "results" / "gradescope").rglob("results.json")
    assert written.relative_to(folder / "results").parts == (
        "gradescope",
        "dots..",
        "exercise_05",
        "results.json",
    )
