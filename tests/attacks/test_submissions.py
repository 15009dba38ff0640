"""What is handed in: notebooks, files beside them, links, names. Only the text of two cells is ever looked at."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from autograder.batch import exports
from autograder.batch.class_view import html as class_html
from autograder.batch.collect import collect, with_submissions
from autograder.batch.grading import task, unreadable
from autograder.batch.record import snapshot
from autograder.batch.run import Class, Row
from autograder.course import Course, Exercise, load_course
from autograder.errors import CourseError, SubmissionError, UsageError
from autograder.learner import learner_submission
from autograder.report import html, terminal
from autograder.report.model import Verdict
from autograder.submission import Submission, read_submission

from .conftest import REPOSITORY, Graded, notebook_of, points, small_course

Notebook = dict[str, Any]


def written(path: Path, notebook: Notebook) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def cell(notebook: Notebook, grade_id: str) -> Notebook:
    [found] = (c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)
    return found  # type: ignore[no-any-return]


def code(text: str) -> Notebook:
    return {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": text}


# Notebooks --------------------------------------------------------------------------------------

CHEATS = """
import autograder, builtins, sys, IPython
class Full(float):
    def _repr_html_(self): return "<b>100</b>"
autograder.check = builtins.check = lambda *a, **k: Full(100)
sys.modules["autograder.nbgrader_bridge"] = type(sys)("x")
get_ipython().display_formatter.formatters["text/plain"].for_type(float, lambda *a: a[1].text("100.0"))
open("/tmp/autograde-notebook-ran", "w").write("x")
"""


def cheating(exercise: Exercise) -> Notebook:
    """The released notebook with a wrong kernel, and everything around it that could make a grade of its own."""
    notebook = notebook_of(exercise)
    kernel = cell(notebook, exercise.cells.kernel)
    kernel["source"] = "".join(kernel["source"]).replace("T.float16(2)", "T.float16(3)")
    for check in exercise.checks:
        scored = cell(notebook, str(check.id))
        scored["metadata"]["nbgrader"]["points"] = 1000  # A47
        scored["source"] = "100.0"
        scored["outputs"] = [  # A49, A52
            {
                "output_type": "execute_result",
                "metadata": {},
                "execution_count": 1,
                "data": {"text/plain": "1000"},
            }
        ]
    notebook["cells"].insert(0, code(CHEATS))
    notebook["cells"].append(code("import atexit, os\natexit.register(lambda: os._exit(0))\nos._exit(0)"))
    notebook["metadata"] = {  # A51
        "kernelspec": {"name": "evil", "display_name": "evil", "language": "R"},
        "language_info": {"name": "R", "file_extension": ".sh"},
        "celltoolbar": "<script>alert(1)</script>",
    }
    return notebook


def test_a_cheating_notebook_in_nbgrader(exercise: Exercise, tmp_path: Path) -> None:
    """A47, A49, A51, A52: nbgrader's autograding runs none of its cells; each scored cell gets what its check is worth."""
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbgrader")
    from autograder.nbgrader_steps import grade_folder, write_outputs

    marker = Path("/tmp/autograde-notebook-ran")
    marker.unlink(missing_ok=True)
    root = small_course(tmp_path / "course")
    notebook = cheating(exercise)
    path = written(root / "submitted" / "mallory" / exercise.id / exercise.notebook, notebook)
    # Our own: a course of one's own beside the notebook, and in the folder of all one's notebooks.
    for folder in (path.parent, path.parent.parent):
        (folder / "course.yaml").write_text(
            (root / "course.yaml").read_text().replace("points: 10", "points: 90")
        )
    course = load_course(root)
    record = grade_folder(root, course, exercise, "mallory", path.parent)
    node = nbformat.from_dict(copy.deepcopy(notebook))
    with pytest.raises(CourseError, match="1000 points in the gradebook"):
        write_outputs(node.cells, exercise, record)
    for check in exercise.checks:  # nbgrader restores them from its gradebook before this step
        cell(node, str(check.id))["metadata"]["nbgrader"]["points"] = check.points
    write_outputs(node.cells, exercise, record)
    shown = {}
    for check in exercise.checks:
        [output] = cell(node, str(check.id))["outputs"]
        shown[str(check.id)] = float(output["data"]["text/plain"])
    assert (
        shown["correctness"] == 0
        and shown["build"] == exercise.checks[1].points
        and sum(shown.values()) < 100
    )
    assert not marker.exists(), "no cell ran"

    # A43: a link to the solution is no submission, whoever follows it.
    path.unlink()
    path.symlink_to(root / "solutions" / exercise.id / exercise.notebook)
    linked = grade_folder(root, course, exercise, "mallory", path.parent)
    assert linked.submission is None and "is a link" in linked.problem


def test_only_two_cells_of_a_notebook_count(exercise: Exercise, tmp_path: Path) -> None:
    """A47, A51, A52: with every other part changed, the submission is the same."""
    plain = read_submission(written(tmp_path / "a" / "n.ipynb", notebook_of(exercise)), exercise)
    notebook = notebook_of(exercise)
    for one in notebook["cells"]:
        grade_id = one["metadata"].get("nbgrader", {}).get("grade_id")
        if grade_id not in (exercise.cells.kernel, exercise.cells.answers):
            one["source"] = "raise SystemExit"
        one["metadata"].setdefault("nbgrader", {}).update(
            points=10**9, locked=False, solution=True, checksum="0"
        )
        one["metadata"]["tags"] = ["skip", {"deep": [[[["x"]]]]}]
        one["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "100 of 100 points"}]
    notebook["metadata"] = {"kernelspec": {"name": "../../evil"}, "nbgrader": {"points": 1}}
    other = read_submission(written(tmp_path / "b" / "n.ipynb", notebook), exercise)
    assert (other.source, other.answers, other.sha256) == (plain.source, plain.answers, plain.sha256)


TRICKS: dict[str, Callable[[Notebook, Exercise], Any]] = {
    "two kernel cells": lambda n, e: n["cells"].append(copy.deepcopy(cell(n, e.cells.kernel))),  # A48
    "no kernel cell": lambda n, e: n["cells"].remove(cell(n, e.cells.kernel)),
    "a kernel in markdown": lambda n, e: cell(n, e.cells.kernel).update(cell_type="markdown"),
    "a kernel that is raw": lambda n, e: cell(n, e.cells.kernel).update(cell_type="raw"),
    "a grade_id that is a list": lambda n, e: cell(n, e.cells.kernel)["metadata"]["nbgrader"].update(
        grade_id=["kernel"]
    ),
    "a source of numbers": lambda n, e: cell(n, e.cells.kernel).update(source=[1, 2]),
    "a source of lists": lambda n, e: cell(n, e.cells.kernel).update(source=[["x"]]),
    "cells that are text": lambda n, e: n["cells"].append("x"),
    "cells that are a map": lambda n, e: n.update(cells={"0": n["cells"][0]}),
    "another format": lambda n, e: n.update(nbformat="4"),
    "half a character": lambda n, e: cell(n, e.cells.kernel).update(source="x = '\ud800'"),
}


@pytest.mark.parametrize("name", TRICKS)
def test_ambiguous_or_broken_notebooks_are_one_sentence(
    exercise: Exercise, tmp_path: Path, name: str
) -> None:
    notebook = notebook_of(exercise)
    TRICKS[name](notebook, exercise)
    with pytest.raises(SubmissionError) as caught:
        read_submission(written(tmp_path / "n.ipynb", notebook), exercise)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("answer", [
    "__import__('os').system('touch /tmp/autograde-answer')",
    "(lambda: 8192)()", "[8192]", "{8192}", "type('X', (), {'__eq__': lambda *a: True})()", "8192 if True else 0",
    "10 ** 10 ** 10", "1 << 10**9", "'%d' % 8192", "f'{8192}'", "answers", "float('nan')", "9" * 3000, "1e999",
])  # fmt: skip
def test_answers_are_values_and_never_code(exercise: Exercise, tmp_path: Path, answer: str) -> None:
    """An expression that would run, an object that equals everything, a number that takes forever: read as unanswered."""
    path = tmp_path / "k.py"
    path.write_text(f"answers = {{'q1': {answer}}}\nx = 1\n")
    read = read_submission(path, exercise)
    assert read.answers.get("q1") is None or read.answers["q1"] == float("inf")
    assert not Path("/tmp/autograde-answer").exists()


# Files ------------------------------------------------------------------------------------------


def test_links_pipes_and_devices_are_no_submissions(
    exercise: Exercise, course: Course, tmp_path: Path
) -> None:
    """A43: in both layouts, and for the student's folder as a whole. The class goes on."""
    folder = tmp_path / "submitted"
    good = written(folder / "good" / exercise.id / exercise.notebook, notebook_of(exercise))
    solution = REPOSITORY / "solutions" / exercise.id / exercise.notebook
    for student in ("link", "dangling", "script", "folder_link", "directory", "pipe"):
        (folder / student).mkdir()
    places = {s: folder / s / exercise.id for s in ("link", "dangling", "script", "directory", "pipe")}
    for place in places.values():
        place.mkdir()
    (places["link"] / exercise.notebook).symlink_to(solution)
    (places["dangling"] / exercise.notebook).symlink_to("/nowhere")
    (places["script"] / exercise.notebook).with_suffix(".py").symlink_to(good)
    (places["directory"] / exercise.notebook).mkdir()
    os.mkfifo(places["pipe"] / exercise.notebook)
    (folder / "folder_link" / exercise.id).symlink_to(good.parent)
    (folder / "another").symlink_to(folder / "good")
    (folder / "flat_exercise_02.ipynb").symlink_to(solution)
    found, _ = collect(folder, course)
    read = {one.student: one for one in with_submissions(found, REPOSITORY, course)}
    assert read.pop("good").submission is not None
    assert len(read) >= 7
    for one in read.values():
        assert one.submission is None and one.problem and "\n" not in one.problem, one.student


@pytest.mark.parametrize("level", ["student", "exercise", "as_submitted", ".as_submitted"])
@pytest.mark.parametrize("target", ["solution", "alice"])
def test_no_link_below_the_class_is_followed(
    exercise: Exercise, course: Course, tmp_path: Path, level: str, target: str
) -> None:
    """B32: at each place of a student's path, to the solution and to another student, for `batch` and for nbgrader."""
    pytest.importorskip("nbgrader")
    from autograder.nbgrader_steps import grade_folder

    root = small_course(tmp_path / "course")
    submitted = root / "submitted"
    alice = written(submitted / "alice" / exercise.id / exercise.notebook, notebook_of(exercise)).parent
    there = alice if target == "alice" else root / "solutions" / exercise.id
    place = submitted / "mallory" / exercise.id
    link = {"student": place.parent, "exercise": place}.get(level, place / level)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(there.parent if level == "student" else there)
    if level == ".as_submitted":  # beside a notebook that cannot be read
        (place / exercise.notebook).write_text("{")
    found, _ = collect(submitted, course)
    read = {one.student: one for one in with_submissions(found, REPOSITORY, course)}
    assert read.pop("alice").submission is not None
    assert all(one.submission is None and one.problem for one in read.values())
    record = grade_folder(root, load_course(root), exercise, "mallory", place)
    assert record.submission is None and record.problem


def test_only_the_grader_sets_a_notebook_aside(exercise: Exercise, course: Course, tmp_path: Path) -> None:
    """B33: a folder `as_submitted` of a student's own means nothing; the grader's counts until something new is handed in."""
    from autograder.batch.collect import notebook_of as found_notebook
    from autograder.batch.collect import stand_in

    submitted = tmp_path / "submitted"
    released = REPOSITORY / "exercises" / exercise.id / exercise.notebook
    place = submitted / "kim" / exercise.id
    path = written(place / exercise.notebook, notebook_of(exercise))
    for name in ("as_submitted", ".as_submitted"):
        written(place / name / exercise.notebook, notebook_of(exercise))
        written(place.parent / name / exercise.id / exercise.notebook, notebook_of(exercise))

    def handed() -> Path:
        [one] = [one for one in collect(submitted, course)[0] if one.student == "kim"]
        assert one.path == found_notebook(place, exercise)
        return one.path

    assert handed() == path
    path.write_text("{")
    stand_in(path, released)
    assert path.read_bytes() == released.read_bytes() and handed().read_text() == "{"
    assert place not in handed().parents
    written(path, notebook_of(exercise))
    assert handed() == path, "a new notebook counts"
    path.write_text("[")
    stand_in(path, released)
    assert handed().read_text() == "[", "the newest that was set aside"


def test_a_link_is_no_file_to_grade_by_hand(exercise: Exercise, tmp_path: Path) -> None:
    """A43: `autograde EX --file` of a link to the solution, as an instructor may grade one file of a class."""
    link = tmp_path / exercise.notebook
    link.symlink_to(REPOSITORY / "solutions" / exercise.id / exercise.notebook)
    with pytest.raises(UsageError, match="is a link; give the file itself"):
        learner_submission(REPOSITORY, exercise, link)


def test_what_is_graded_is_what_was_read(exercise: Exercise, course: Course, tmp_path: Path) -> None:
    """A45: a file that is exchanged after it was read changes nothing; the record's hash is that of the text that ran."""
    path = tmp_path / "submitted" / "eve_exercise_02.py"
    path.parent.mkdir()
    path.write_text("first = 1\n")
    [one] = with_submissions(collect(path.parent, course)[0], REPOSITORY, course)
    path.write_text("second = 2\n")
    assert one.submission is not None
    todo = task(REPOSITORY, tmp_path, course, exercise, snapshot(one.submission), 1, True)
    assert todo.submission["source"] == "first = 1\n"
    assert Submission(**{**todo.submission}).sha256 == one.submission.sha256


SHADOWS = (
    "torch",
    "numpy",
    "yaml",
    "json",
    "tvm",
    "emulator",
    "pydantic",
    "conftest",
    "sitecustomize",
    "usercustomize",
    "reference",
)


def test_files_beside_a_submission_are_never_imported(solution: str, tmp_path: Path) -> None:
    """A33, A42: modules, plugins and settings in the current folder and on PYTHONPATH of the grader's own processes."""
    marker = tmp_path / "ran"
    folder = tmp_path / "submission"
    folder.mkdir()
    trap = f"open({str(marker)!r}, 'a').write(__name__ + chr(10))\n"
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(trap)
    (folder / "x.pth").write_text(f"import os; {trap}")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p conftest\n")
    (folder / "kernel.py").write_text(solution)
    root = small_course(tmp_path / "course")
    # As the installed command does it: the current folder is not on the import path of the command itself.
    start = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from autograder.__main__ import main; main()"
    )
    arguments = ["exercise_02", "--file", "kernel.py", "--quick", "--course", str(root), "--json", "-"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", start, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONSTARTUP": str(folder / "json.py")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    report = json.loads(done.stdout)
    assert {c["id"] for c in report["checks"] if c["verdict"] != "pass"} <= {"predictions", "speed"}
    assert not marker.exists(), marker.read_text()
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        [*(f"{n}.py" for n in SHADOWS), "x.pth", "pytest.ini", "kernel.py"]
    )


def test_noise_is_no_verdict(graded: Graded, solution: str) -> None:
    """A50: warnings, text on standard error, also from C, and a broken sys.stderr: full marks for a right kernel."""
    noise = (
        "import os, sys, warnings\nwarnings.warn('old')\nprint('error: failed', file=sys.stderr)\n"
        "os.write(2, b'Segmentation fault\\nTraceback (most recent call last):\\n')\nsys.stderr = None\n"
    )
    report = graded(noise + solution)
    assert {c.id for c in report.checks if c.verdict is not Verdict.PASS} <= {"predictions", "speed"}


def test_a_stub_with_a_decoy_is_graded_as_what_it_is(graded: Graded, exercise: Exercise) -> None:
    """A16: the released stub gets nothing, whatever is written around it."""
    kernel = "".join(cell(notebook_of(exercise, "exercises"), exercise.cells.kernel)["source"])
    report = graded(kernel + "\nPOINTS = 100\n__all__ = ['passed']\n")
    assert points(report)["correctness"] == points(report)["mechanism"] == 0


# Names and words in what instructors read --------------------------------------------------------

NAMES = [
    "=cmd|'/C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "../../../etc/passwd", "..", "a/../../b", "\x1b[31mred\x1b[0m", "<script>alert(1)</script>",
    "a\nb,100,100", '"quoted",1', "\ud800", "\u202egnp.exe", "x" * 300, "\t=1", "\x00",
]  # fmt: skip


def test_names_of_students_stay_names(course: Course, exercise: Exercise, tmp_path: Path) -> None:
    """Our own: formulas for a spreadsheet, paths, control sequences, markup, separators. One row each, nothing runs, nothing escapes."""
    from autograder.batch.collect import printable

    record = unreadable(course, exercise, "=HYPERLINK(1)\n<b>", 1, False)
    rows = [Row(printable(name), exercise, printable(name), record) for name in NAMES]
    whole = Class(course.title, rows)
    table = list(csv.reader(io.StringIO(exports.csv_text(whole))))
    assert len(table) == len(NAMES) + 1
    for line in table[1:]:
        for field in line:
            assert field[:1] not in ("=", "+", "@", "\t", "\r") and (field[:1] != "-" or field[1:].isdigit())
    assert len(ElementTree.fromstring(exports.junit_xml(whole).encode())) == len(NAMES)
    page = class_html(whole)
    assert "<script>" not in page and "\x1b" not in page
    results = tmp_path / "results"
    results.mkdir()
    try:
        exports.write_all(results, whole)
    except OSError as error:  # a name that no file system takes is refused by it, before anything escapes
        assert error.errno == 36
    assert {p.name for p in tmp_path.iterdir()} == {"results"}
    assert all(results in p.resolve().parents for p in results.rglob("*"))


def test_words_of_a_submission_are_shown_and_not_obeyed(graded: Graded) -> None:
    """Our own: markup, control sequences and half characters in an exception, in printed text and in a function's name."""
    evil = "<script>alert(1)</script>\\x1b]0;title\\x07\\x1b[2J\\ud800\\r\\n100 of 100 points"
    report = graded(f"print('{evil}'.encode('utf-8', 'replace').decode())\nraise Exception('{evil}')\n")
    page = html.page(report)
    page.encode()
    json.dumps(report.model_dump(mode="json")).encode()
    assert "<script>" not in page and "\x1b" not in page
    console = terminal.make_console(True, width=100)
    with console.capture() as shown:
        terminal.show(report, console, True)
    assert "\x1b" not in shown.get() and "\n100 of 100 points" not in shown.get()
