"""`autograde batch` and `autograde class`: layouts of folders, records, resuming, engines, tables."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from autograder.batch import grading, local, run
from autograder.batch.class_view import groups
from autograder.batch.collect import collect, with_submissions
from autograder.batch.exports import csv_text, gradescope, junit_xml
from autograder.batch.grading import Task, run_task
from autograder.batch.local import run_local
from autograder.batch.record import kept_record, read_record, snapshot
from autograder.course import Course, load_course
from autograder.errors import MachineError, UsageError
from autograder.gpu import Gpu
from autograder.pool import Stuck, Worker
from autograder.report.model import CheckResult, Verdict

from .conftest import REPOSITORY, Result, one_line

SYNTAX = "def build_kernel(M, N, K):\n    return (\n"  # graded without starting a process
ANSWERS = "answers = {'q1': 1}\n"


@pytest.fixture
def hand_in(folder: Path) -> Callable[..., Path]:
    """Put a notebook into `submitted`, its kernel replaced; returns the notebook's path."""

    def put(student: str, kernel: str | None = None, flat: bool = False) -> Path:
        notebook = json.loads((folder / "exercises" / "exercise_05" / "exercise_05.ipynb").read_text("utf-8"))
        for cell in notebook["cells"]:
            if kernel is not None and cell["metadata"].get("nbgrader", {}).get("grade_id") == "kernel":
                cell["source"] = kernel
        path = folder / "submitted" / student / "exercise_05" / "exercise_05.ipynb"
        path = folder / "submitted" / student if flat else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(notebook), encoding="utf-8")
        return path

    return put


def table(folder: Path) -> dict[str, dict[str, str]]:
    """results.csv by student."""
    text = (folder / "results" / "results.csv").read_text(encoding="utf-8")
    return {row["student"]: row for row in csv.DictReader(io.StringIO(text))}


def test_a_class_from_nbgraders_folders(
    folder: Path, hand_in: Callable[..., Path], solution: str, autograde: Callable[..., Result]
) -> None:
    """A solution, a stub, a mistake, a crash, an unreadable file, a `.py` beside a stub, a link, strange names."""
    hand_in("good", solution)
    hand_in("stub")
    hand_in("=SUM(A1)", SYNTAX)
    hand_in("crash", "import ctypes\nctypes.string_at(0)\n")
    hand_in("broken").write_text("{", encoding="utf-8")
    hand_in("editor").with_suffix(".py").write_text(SYNTAX, encoding="utf-8")
    hand_in("both", SYNTAX).with_suffix(".py").write_text(solution, encoding="utf-8")
    target = hand_in("link")
    target.unlink()
    target.symlink_to(folder / "solutions" / "exercise_05" / "exercise_05.ipynb")
    hand_in("a\nb<&>", SYNTAX)
    (folder / "submitted" / "empty").mkdir()
    done = autograde("batch", "submitted", "--jobs", "2", "--seed", "4", "--quick", "--progress")
    assert done.code == 0 and "Traceback" not in done.out + done.err, done
    assert "5 of 5 graded" in done.err, "two are unreadable, and equal ones are graded once"
    assert done.out.index("9 submissions") < done.out.index("note: empty: holds no folder of an exercise")
    assert done.out.count("empty:") == 1
    rows = table(folder)
    points = {student: float(row["points"]) for student, row in rows.items()}
    assert points == {
        "good": 90, "stub": 0, "'=SUM(A1)": 0, "crash": 0, "broken": 0, "editor": 0, "both": 0, "link": 0, "a\\x0ab<&>": 0,
    }  # fmt: skip
    assert (rows["good"]["predictions"], rows["good"]["correctness"], rows["good"]["status"]) == (
        "0",
        "40",
        "graded",
    )
    assert rows["editor"]["file"].endswith("exercise_05.py") and rows["both"]["file"].endswith(".ipynb")
    assert "is a link" in rows["link"]["note"] and "not valid JSON" in rows["broken"]["note"]
    record = read_record(folder / "results" / "records" / rows["good"]["record"])
    assert record.report is not None and record.isolation and record.versions["apache-tvm"]
    suites = ElementTree.parse(folder / "results" / "junit.xml").getroot()
    assert (
        len(suites) == 9 and len(suites.findall("testsuite[@name='good exercise_05']/testcase/failure")) == 1
    )
    written = json.loads(
        (folder / "results" / "gradescope" / "good" / "exercise_05" / "results.json").read_text()
    )
    assert written["score"] == 90 and [t["score"] for t in written["tests"]][:2] == [0, 10]
    page = (folder / "results" / "class.html").read_text(encoding="utf-8")
    assert "syntax error" in page and "http" not in page and "a\\x0ab&lt;&amp;&gt;" in page
    assert "4 x build: syntax error" in done.out
    again = autograde("batch", "submitted")
    assert "9 submissions, 0 graded now" not in again.out, "a full grade is another result than a quick one"
    shown = autograde("class", "results", "--plain")
    assert shown.code == 0 and "4 x build: syntax error" in shown.out


def test_what_did_not_change_is_not_graded_again(
    folder: Path, hand_in: Callable[..., Path], autograde: Callable[..., Result]
) -> None:
    """Neither after a second run, nor when outputs or names change; a new seed, kernel or rule is another result."""
    path = hand_in("one", SYNTAX)
    hand_in("two", SYNTAX + "#")
    assert "2 graded now" in autograde("batch", "submitted").out
    seed = table(folder)["one"]["seed"]
    notebook = json.loads(path.read_text())
    notebook["cells"][0]["source"] = "a remark"
    path.write_text(json.dumps(notebook))
    path.parent.parent.rename(path.parent.parent.with_name("renamed"))
    again = autograde("batch", "submitted")
    assert "0 graded now" in again.out and table(folder)["renamed"]["seed"] == seed
    hand_in("three", SYNTAX + "##")
    assert "1 graded now" in autograde("batch", "submitted").out
    assert "3 graded now" in autograde("batch", "submitted", "--seed", "12").out
    text = (folder / "course.yaml").read_text(encoding="utf-8")
    (folder / "course.yaml").write_text(text.replace("output_kib: 1024", "output_kib: 512"), encoding="utf-8")
    assert "3 graded now" in autograde("batch", "submitted").out
    for record in (folder / "results" / "records").glob("*.json"):
        record.write_text("{}")
    assert "3 graded now" in autograde("batch", "submitted").out, "a broken record is made again"


def test_a_killed_batch_goes_on(folder: Path, hand_in: Callable[..., Path], solution: str) -> None:
    """SIGKILL in the middle: what was graded stays, no process is left, and the rest follows."""
    for number in range(3):
        hand_in(f"student{number}", f"{solution}\n# {number}\n")
    command = [
        sys.executable,
        "-m",
        "autograder",
        "batch",
        "submitted",
        "--jobs",
        "1",
        "--quick",
        "--seed",
        "1",
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    first = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    records, deadline = folder / "results" / "records", time.monotonic() + 120
    while not list(records.glob("exercise*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = {path: path.stat().st_mtime_ns for path in records.glob("exercise*.json")}
    assert 1 <= len(before) < 3
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"3 submissions, {3 - len(before)} graded now" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {float(row["points"]) for row in table(folder).values()} == {90.0}


def test_submitit_gives_the_same_results(
    folder: Path, hand_in: Callable[..., Path], autograde: Callable[..., Result]
) -> None:
    pytest.importorskip("submitit")
    for number in range(3):
        hand_in(f"student{number}", f"{SYNTAX}# {number}\n")
    hand_in("stub")
    options = ("--jobs", "2", "--seed", "9")
    here = autograde("batch", "submitted", *options)
    there = autograde(
        "batch", "submitted", "--out", "other", *options, "--engine", "submitit", "--cluster", "local",
        env={"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert (here.code, there.code) == (0, 0), there
    assert (folder / "results" / "results.csv").read_text() == (folder / "other" / "results.csv").read_text()
    first, second = (
        {p.name: read_record(p).verdicts_sha256 for p in (folder / out / "records").iterdir()}
        for out in ("results", "other")
    )
    assert first == second and all(first.values())


def test_a_flat_folder(folder: Path, hand_in: Callable[..., Path], course: Course) -> None:
    """Names as learning platforms write them; the last attempt counts; --exercise speaks for files that name none."""
    for name in (
        "jane_doe_exercise_05.ipynb",
        "exercise_05-bob.ipynb",
        "exercise_05_s-12.ipynb",
        "exercise_5 (2)_carol.ipynb",
        "exercise_05_erin.ipynb",
        "exercise_05_erin (2).ipynb",
        "homework.ipynb",
    ):
        hand_in(name, flat=True)
    hand_in("jane_doe_exercise_05-2.ipynb", SYNTAX, flat=True)
    (folder / "submitted" / "notes.txt").write_text("no submission")
    (folder / "submitted" / "all.zip").write_bytes(b"PK")
    found, notes = collect(folder / "submitted", course)
    names = {one.student: one.name for one in found}
    assert names == {
        "jane_doe": "jane_doe_exercise_05-2.ipynb",
        "bob": "exercise_05-bob.ipynb",
        "s-12": "exercise_05_s-12.ipynb",
        "(2)_carol": "exercise_5 (2)_carol.ipynb",
        "erin": "exercise_05_erin (2).ipynb",
    }
    assert "all.zip: unpack it first; left out" in notes
    assert any("later attempt" in note for note in notes) and any("homework" in note for note in notes)
    assert {one.student: one.note for one in found if one.note} == {
        "jane_doe": "counts as a later attempt than jane_doe_exercise_05.ipynb, which was left out",
        "erin": "counts as a later attempt than exercise_05_erin.ipynb, which was left out",
    }
    found, notes = collect(folder / "submitted", course, course.find("5"))
    assert {one.student for one in found} == {*names, "homework"}
    read = with_submissions(found, folder, course)
    assert [one.submission.untouched for one in read if one.submission] == [
        True,
        True,
        True,
        True,
        False,
        True,
    ]


def test_a_later_attempt_is_told_wherever_the_class_is_read(
    folder: Path, hand_in: Callable[..., Path], autograde: Callable[..., Result]
) -> None:
    """Anybody can choose the name of a file: the instructor sees which one it displaced, now and when read again."""
    hand_in("alice_exercise_05.ipynb", SYNTAX, flat=True)
    hand_in("alice_exercise_05-99.ipynb", SYNTAX + "#", flat=True)
    hand_in("bob_exercise_05.ipynb", SYNTAX, flat=True)
    words = "counts as a later attempt than alice_exercise_05.ipynb, which was left out"
    results = folder / "results"
    for _ in range(2):
        assert autograde("batch", "submitted", "--quick").code == 0
        with open(results / "results.csv", newline="", encoding="utf-8") as file:
            notes = {row["student"]: row["note"] for row in csv.DictReader(file)}
        assert notes == {"alice": words, "bob": ""}
        shown = autograde("class", "results")
        assert f"look: alice, exercise_05: alice_exercise_05-99.ipynb {words}" in " ".join(shown.out.split())
    assert words in (results / "class.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "cannot be read"),
        (["exercises"], "no submission in it"),
        (["submitted", "--out", "submitted/results"], "do not belong among the submissions"),
        (["submitted", "--exercise", "77"], "no exercise '77'"),
        (["submitted", "--set", "a=b"], "belong to --engine submitit"),
        (["submitted", "--engine", "submitit", "--set", "a"], "write NAME=VALUE"),
        (["submitted", "--device", "cuda"], "--device cuda: "),
        (["submitted", "--device", "cuda", "--quick"], "drop one of them"),
        (["submitted", "--gradebook", "nowhere/gradebook.db"], "--gradebook"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str],
    words: str,
    folder: Path,
    hand_in: Callable[..., Path],
    autograde: Callable[..., Result],
) -> None:
    hand_in("one", SYNTAX)
    (folder / "exercises").rename(folder / "kept")
    (folder / "exercises").mkdir()
    done = autograde("batch", *arguments)
    assert done.code in (2, 3) and one_line(done.err) and words in done.err, done


def test_class_needs_results(folder: Path, autograde: Callable[..., Result]) -> None:
    done = autograde("class", "exercises")
    assert done.code == 2 and one_line(done.err) and "holds no results" in done.err


def test_two_batches_do_not_share_a_folder(
    folder: Path, hand_in: Callable[..., Path], autograde: Callable[..., Result]
) -> None:
    hand_in("one", SYNTAX)
    with run._locked(folder / "results"):
        done = autograde("batch", "submitted")
    assert done.code == 2 and one_line(done.err) and "another `autograde batch`" in done.err


# Processes that die -----------------------------------------------------------------------------


@pytest.fixture
def tasks(folder: Path, hand_in: Callable[..., Path]) -> list[Task]:
    """Two tasks that take no time."""
    course = load_course(folder)
    for name in ("one", "two"):
        hand_in(name, SYNTAX + f"# {name}")
    found = with_submissions(collect(folder / "submitted", course)[0], folder, course)
    exercise = course.find("5")
    return [
        grading.task(folder, folder / "results", course, exercise, snapshot(one.submission), 1, True)
        for one in found
        if one.submission
    ]


def test_a_worker_that_dies_is_replaced(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try of each task kills its process; the second one succeeds."""
    seen: list[str] = []
    ask = Worker.ask

    def fragile(self: Worker, task: Task, seconds: float) -> dict[str, Any]:
        if task.key not in seen:
            seen.append(task.key)
            os.kill(self._started().pid, signal.SIGKILL)
        return ask(self, task, seconds)

    monkeypatch.setattr(Worker, "ask", fragile)
    done: list[bool] = []
    run_local(tasks, 2, 60, lambda _, final: done.append(final))
    assert done == [True, True] and len(seen) == 2


def test_a_task_that_always_kills_is_owed(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    """No points are taken, the class goes on, and the record says what happened."""

    def dying(self: Worker, task: Task, seconds: float) -> dict[str, Any]:
        raise Stuck("the process that graded it died (exit status -9)")

    monkeypatch.setattr(Worker, "ask", dying)
    done: list[bool] = []
    run_local(tasks, 1, 60, lambda _, final: done.append(final))
    assert done == [False, False]
    record = kept_record(Path(tasks[0].results), tasks[0].exercise, tasks[0].key)
    assert record is not None and not record.final and "2 times" in record.problem


def test_a_worker_that_does_not_answer_is_killed(tasks: list[Task]) -> None:
    worker = Worker(local.WORKER)
    with pytest.raises(Stuck, match="did not answer within 0 s"):
        worker.ask(tasks[0], 0.0)
    assert worker._process is None


@pytest.mark.parametrize("tries", [1, 2])
def test_a_worker_that_dies_says_its_last_words(tasks: list[Task], tries: int) -> None:
    """Each death has its own; one without a word has none."""
    worker = Worker("no_such_module")
    for _ in range(tries):
        with pytest.raises(
            Stuck, match=r"died \(exit status 1: ModuleNotFoundError: No module named 'no_such"
        ):
            worker.ask(tasks[0], 60)
    worker._said = os.fstat(worker._errors.fileno()).st_size
    assert worker._last_words() == ""


def test_what_the_grader_owes_is_graded_by_the_next_run(
    folder: Path,
    hand_in: Callable[..., Path],
    autograde: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand_in("one", SYNTAX)
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "ask", lambda *_: (_ for _ in ()).throw(Stuck("it died")))
        done = autograde("batch", "submitted")
    assert done.code == 3 and "not graded: one, exercise_05: it died, 2 times" in done.out
    row = table(folder)["one"]
    assert (row["points"], row["correctness"], row["status"]) == ("", "", "not graded")
    done = autograde("batch", "submitted")
    assert done.code == 0 and "1 graded now" in done.out and table(folder)["one"]["points"] == "0"


def test_a_full_disk_ends_the_batch_with_one_line(
    folder: Path,
    hand_in: Callable[..., Path],
    autograde: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand_in("one", SYNTAX)
    monkeypatch.setattr(
        Worker, "ask", lambda *_: {"error": "the record cannot be written (No space left on device)"}
    )
    done = autograde("batch", "submitted")
    assert done.code == 2 and one_line(done.err) and "No space left" in done.err


def test_records_of_another_course_are_not_mixed(tasks: list[Task]) -> None:
    """A task carries the hash of the exercise that it was planned with."""
    record = run_task(replace(tasks[0], exercise_sha256="0" * 64))
    assert not record.final and "course.yaml changed" in record.problem


# The GPU's part ---------------------------------------------------------------------------------


def speedy(points: float) -> CheckResult:
    verdict = Verdict.PASS if points else Verdict.FAIL
    return CheckResult(id="speed", title="Speed", verdict=verdict, points=points, max_points=10)


@pytest.fixture
def provisional(tasks: list[Task], folder: Path) -> run.Row:
    """A line whose exercise has a check of the speed."""
    record = run_task(tasks[0])
    assert record.report is not None
    record.report.checks.append(speedy(0))
    correctness = record.report.check("correctness")
    assert correctness is not None
    correctness.verdict, correctness.points = Verdict.PASS, 40
    exercise = load_course(folder).find("5")
    speed = exercise.checks[0].model_copy(update={"id": "speed", "title": "Speed", "points": 10})
    exercise = exercise.model_copy(update={"checks": [*exercise.checks, speed]})
    return run.Row("one", exercise, "one.ipynb", record)


def test_the_gpu_confirms_the_speed_and_nothing_else(provisional: run.Row) -> None:
    """Its points replace the emulator's; where it decides another check otherwise, a note says so."""
    assert (provisional.status, provisional.points) == ("provisional", 40)
    assert "provisional" in gradescope(provisional)["output"]
    confirmed = provisional.record.model_copy(deep=True)
    assert confirmed.report is not None
    confirmed.report.device = "NVIDIA B200"
    confirmed.report.checks[-1] = speedy(10)
    confirmed.report.checks[0].points = 5
    provisional.confirmed = confirmed
    assert (provisional.status, provisional.points, provisional.checks["speed"]) == ("confirmed", 50, 10)
    assert "0 points emulated, 5 on NVIDIA B200" in provisional.note
    whole = run.Class("course", [provisional])
    assert "confirmed" in csv_text(whole) and "speed" in csv_text(whole)
    assert ElementTree.fromstring(junit_xml(whole))[0].get("tests") == "7"
    assert groups(whole)


def test_only_right_kernels_wait_for_the_gpu_one_at_a_time(
    folder: Path,
    hand_in: Callable[..., Path],
    solution: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = load_course(folder)
    hand_in("right", solution)
    hand_in("wrong", SYNTAX)
    asked: list[tuple[str, int]] = []

    def engine(tasks: Any, jobs: int, seconds: float, done: local.Done) -> None:
        for task in tasks:
            asked.append((task.device, jobs))
            run_task(replace(task, device="emulated"))
            done(task, True)

    monkeypatch.setattr(run, "find_gpu", lambda: Gpu("NVIDIA B200", (10, 0), "580.1"))
    monkeypatch.setattr(run, "missing_software", lambda: None)
    monkeypatch.setattr(run, "run_local", engine)
    monkeypatch.setattr(run, "has_speed", lambda exercise: True)
    options = run.Options(folder / "submitted", folder / "results", jobs=4, seed=1, device="cuda")
    found = run.run_batch(folder, course, options, engine, lambda *_: None)
    assert asked == [("emulated", 4), ("emulated", 4), ("cuda", 1)]
    assert [(row.student, row.status) for row in found.rows] == [("right", "confirmed"), ("wrong", "graded")]
    asked.clear()
    again = run.run_batch(folder, course, replace(options, device="emulated"), engine, lambda *_: None)
    assert asked == [] and again.rows[0].status == "confirmed", "an emulated run keeps what the GPU confirmed"


def test_a_gpu_is_needed_for_cuda(folder: Path, course: Course, hand_in: Callable[..., Path]) -> None:
    hand_in("one", SYNTAX)
    options = run.Options(folder / "submitted", folder / "results", device="cuda")
    with pytest.raises((MachineError, UsageError)):
        run.run_batch(folder, course, options, run_local, lambda *_: None)


def test_a_notebook_of_another_name_counts_where_it_is_the_only_one(
    folder: Path, hand_in: Callable[..., Path], course: Course
) -> None:
    for name in ("one", "two"):
        path = hand_in(name)
        path.rename(path.with_name("Exercise 5 (final).ipynb"))
    shutil.copy(folder / "submitted/two/exercise_05/Exercise 5 (final).ipynb", path.with_name("copy.ipynb"))
    read = with_submissions(collect(folder / "submitted", course)[0], folder, course)
    assert [(one.student, bool(one.submission)) for one in read] == [("one", True), ("two", False)]
    assert read[0].path.name == "Exercise 5 (final).ipynb" and "no such file" in read[1].problem


def test_without_its_answers_a_notebook_still_has_a_kernel(
    folder: Path, hand_in: Callable[..., Path], course: Course
) -> None:
    path = hand_in("one")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    kept = [c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") != "answers"]
    path.write_text(json.dumps({**notebook, "cells": kept}), encoding="utf-8")
    [one] = with_submissions(collect(folder / "submitted", course)[0], folder, course)
    assert one.submission is not None and one.submission.answers == {}
    assert 'no cell with grade_id "answers"' in one.submission.answers_problem


def test_an_oracle_concerns_the_exercises_that_name_it(
    course: Course, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is graded again after a change of autograder/oracles."""
    from autograder.batch import record

    files = {name: path for name, path in record.oracle_files().items()}
    other = course.find("exercise_01")
    before = [record.exercise_sha256(course, e) for e in (course.find("exercise_05"), other)]
    copy = tmp_path / "gemm.py"
    used = course.find("exercise_05").oracle
    copy.write_text(files[used].read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    monkeypatch.setattr(record, "oracle_files", lambda: {**files, used: copy})
    after = [record.exercise_sha256(course, e) for e in (course.find("exercise_05"), other)]
    assert before[0] != after[0]
    assert (before[1] == after[1]) == (used not in {k.oracle for k in other.kernels})
    assert not [p for p in record.code_files() if p.parent == record.ORACLES and p.name != "__init__.py"]
    assert [p for p in record.code_files() if p.name == "grade.py"]
