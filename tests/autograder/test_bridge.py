"""`check` in a notebook: a number for nbgrader, a report for the learner, no exception, no word on stderr."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autograder import check, nbgrader_bridge
from autograder.nbgrader_bridge import Score
from autograder.report.model import GradeReport

from .conftest import REPOSITORY, SMALL_KERNEL

ANSWERS = {"q1": 32768, "q2": 4, "q3": 0, "q4": 6}


@pytest.fixture
def notebook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Variables of a notebook that runs in the exercise's folder; `run` executes a cell as IPython does."""
    variables: dict[str, Any] = {}

    def run(source: str, number: int = 1) -> None:
        name = f"/tmp/ipykernel_1/{number}.py"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), variables)

    monkeypatch.chdir(folder / "exercises" / "exercise_05")
    monkeypatch.setattr(nbgrader_bridge, "_namespace", lambda: variables)
    monkeypatch.setattr(nbgrader_bridge, "_cache", {})
    variables["run"] = run
    yield variables


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Requests to the worker; each is answered by a report of a fixed grade."""
    requests: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> GradeReport:
        from autograder.course import Limits, load_course
        from autograder.diagnosis import Diagnosis
        from autograder.grade import Outcome, Session, _report
        from autograder.submission import from_cell

        requests.append(request)
        exercise = load_course(Path(request["root"])).find(request["exercise"])
        submission = from_cell(
            request["source"], request["name"], request["cell"], exercise, request["answers"]
        )
        outcome = Outcome(Diagnosis(exercise, submission, Limits()))
        return _report(Session(outcome, 1, False))

    monkeypatch.setattr(nbgrader_bridge, "_ask_worker", answer)
    return requests


def test_the_number_is_the_points_of_the_check(notebook: Any, graded: list[Any]) -> None:
    notebook["run"](SMALL_KERNEL, 3)
    notebook["answers"] = {**ANSWERS, "q1": 5}
    score = check("exercise_05", "predictions")
    assert repr(score) == "8.0" and float(score) == 8.0
    assert "Predictions" in score._repr_html_() and "Mechanism" not in score._repr_html_()
    assert graded[0]["source"] == SMALL_KERNEL
    assert graded[0]["answers"] == {**ANSWERS, "q1": 5}
    whole = check("exercise_05")
    assert whole.report is not None and whole.points == whole.report.points
    assert "Mechanism" in whole._repr_html_() and "100 points" in str(whole)
    assert len(graded) == 1, "the same source and answers are graded once"
    notebook["answers"] = dict(ANSWERS)
    assert repr(check("exercise_05", "predictions")) == "10.0"
    assert len(graded) == 2


def test_answers_of_any_kind_are_cut_to_plain_values(notebook: Any, graded: list[Any]) -> None:
    class Sneaky(int):
        def __repr__(self) -> str:
            raise RuntimeError

    notebook["answers"] = {"q1": Sneaky(32768), "q2": [4], "q3": "x" * 5000, 7: 1, "q4": 6}
    score = check("exercise_05", "predictions")
    assert score.points == 0 and "the grader failed" in score.message
    notebook["answers"] = {"q1": lambda: 1, "q2": [4], "q3": "x" * 5000, 7: 1, "q4": 6}
    assert check("exercise_05", "predictions").points == 3
    notebook["answers"] = 5
    assert check("exercise_05", "predictions").points == 0


def test_predictions_need_no_kernel_and_everything_else_does(notebook: Any, graded: list[Any]) -> None:
    notebook["answers"] = dict(ANSWERS)
    assert check("exercise_05", "predictions").points == 10
    score = check("exercise_05", "correctness")
    assert (score.points, score.report) == (0, None)
    assert "build_kernel is not defined yet: run the cell that defines it" in score.message
    assert score.message in score._repr_html_()


@pytest.mark.parametrize("builder", [5, len, "text", type("C", (), {})])
def test_a_builder_without_a_cell(notebook: Any, graded: list[Any], builder: Any) -> None:
    notebook["build_kernel"] = builder
    assert check("exercise_05", "build").points == 0
    assert graded == []


def test_unknown_names_are_said(notebook: Any, graded: list[Any]) -> None:
    assert "has no check 'speed'; it has predictions, build" in check("exercise_05", "speed").message
    assert "did you mean 'exercise_05'" in check("exercise_55").message


def test_a_broken_course_is_said(notebook: Any, folder: Path) -> None:
    (folder / "course.yaml").write_text("version: 9")
    score = check("exercise_05", "build")
    assert score.points == 0 and "course.yaml: " in score.message


def test_without_a_course_folder_the_installed_course_counts(
    notebook: Any, graded: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook["answers"] = dict(ANSWERS)
    assert check("exercise_05", "predictions").points == 10


def test_a_course_in_a_learners_folder_does_not_count_for_nbgrader(
    notebook: Any, graded: list[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (folder / "course.yaml").read_text(encoding="utf-8")
    cheap = text.replace("points: 10", "points: 50", 1)
    (folder / "exercises" / "exercise_05" / "course.yaml").write_text(cheap, encoding="utf-8")
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    notebook["answers"] = dict(ANSWERS)
    score = check("exercise_05", "predictions")
    assert (score.points, graded[0]["root"]) == (10, str(folder))


@pytest.mark.parametrize(
    "answer", ["", "{", "[]", '{"error": "no", "exit": 2}', '{"report": {"points": 900}}']
)
def test_a_worker_that_does_not_answer(notebook: Any, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    def run(*arguments: Any, **options: Any) -> Any:
        return subprocess.CompletedProcess(arguments, 1, answer, "noise")

    monkeypatch.setattr(nbgrader_bridge.subprocess, "run", run)
    notebook["answers"] = dict(ANSWERS)
    score = check("exercise_05", "predictions")
    assert isinstance(score, Score) and repr(score) == "0.0" and score.message


def test_points_never_leave_their_range(
    notebook: Any, monkeypatch: pytest.MonkeyPatch, graded: list[Any]
) -> None:
    notebook["run"](SMALL_KERNEL)
    notebook["answers"] = dict(ANSWERS)
    report = check("exercise_05").report
    assert report is not None
    for points, shown in ((500.0, "10.0"), (-3.0, "0.0")):
        report.checks[0].points = points
        assert repr(check("exercise_05", "predictions")) == shown


def test_the_real_worker(notebook: Any) -> None:
    """The whole way once: notebook cell, worker, builder, emulator, oracle, report."""
    notebook["run"](SMALL_KERNEL + "import sys\nprint('noise', file=sys.stderr)\n", 4)
    notebook["answers"] = dict(ANSWERS)
    error = Path("stderr.txt")
    with error.open("w") as stream, contextlib.redirect_stderr(stream):
        saved = os.dup(2)
        os.dup2(stream.fileno(), 2)
        try:
            score = check("exercise_05")
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    assert error.read_text() == ""
    assert score.points == 20, str(score)
    assert score.report is not None
    assert "noise" in score.report.output
    assert "notebook cell" not in score.message


def test_check_works_in_a_plain_python_process(folder: Path) -> None:
    code = (
        f"answers = {ANSWERS!r}\n"
        "from autograder import check\n"
        "print(repr(check('exercise_05', 'predictions')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("10.0\n", "")


def test_the_request_is_plain_json(notebook: Any, graded: list[Any]) -> None:
    notebook["run"](SMALL_KERNEL, 9)
    check("exercise_05")
    assert json.loads(json.dumps(graded[0])) == graded[0]
