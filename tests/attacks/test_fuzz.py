"""Any course.yaml, notebook, JSON file and command line: a result, or one sentence and an exit status; never a stack trace."""

from __future__ import annotations

import copy
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autograder import cli, progress
from autograder.batch import grading
from autograder.batch.record import read_record
from autograder.batch.run import read_class
from autograder.course import Course, Exercise, parse_course
from autograder.errors import AutogradeError, CourseError, SubmissionError
from autograder.submission import Submission, read_submission

from .conftest import REPOSITORY, notebook_of, small_course


def quietly(examples: int) -> settings:
    """Settings of a fuzz test; derandomized, so that a change is red because of itself."""
    unhealthy = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=unhealthy)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["\ud800", "\x00", "../..", "kernel", "code", 4, 1e308, -1])
)
things = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=6), scalars, max_size=3)


def changed(data: st.DataObject, tree: Any) -> Any:
    """A copy of a tree of lists and maps in which one to three values are replaced or removed."""
    tree = copy.deepcopy(tree)
    for _ in range(data.draw(st.integers(1, 3))):
        node = tree
        while True:
            keys = sorted(node, key=str) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            deeper = isinstance(node[key], dict | list) and node[key]
            if deeper and data.draw(st.integers(0, 5)):
                node = node[key]
                continue
            if data.draw(st.booleans()):
                node[key] = data.draw(things)
            else:
                del node[key]
            break
    return tree


def sentence(error: AutogradeError) -> None:
    text = str(error)
    assert text.strip() and "\n" not in text and "Traceback" not in text and len(text) < 2000, text


# course.yaml ------------------------------------------------------------------------------------

COURSE = (REPOSITORY / "course.yaml").read_text(encoding="utf-8").partition("  - id: exercise_03")[0]
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@quietly(40)
@given(
    cut=st.integers(0, len(COURSE)),
    length=st.integers(0, 40),
    put=st.text(max_size=8)
    | st.sampled_from(["\t", ": ", "- ", "&a", "*a", "!!python/name:os.system ", "{", "|", "\n", "<<: *x"]),
)
def test_any_text_as_a_course(cut: int, length: int, put: str) -> None:
    try:
        parse_course(COURSE[:cut] + put + COURSE[cut + length :])
    except CourseError as error:
        sentence(error)


@pytest.mark.parametrize(
    "text",
    [BOMB + "title: *i\n", BOMB + "exercises: *i\n", "a: " + "[" * 20000, "x: 0x" + "f" * 100000, "{" * 5000],
)
def test_bombs_in_a_course(text: str) -> None:
    """Aliases that multiply, brackets without end, numbers of a hundred thousand digits: refused within seconds."""
    started = time.monotonic()
    with pytest.raises(CourseError) as caught:
        parse_course(text)
    sentence(caught.value)
    assert time.monotonic() - started < 20


# Notebooks --------------------------------------------------------------------------------------


@quietly(80)
@given(data=st.data())
def test_any_change_of_a_notebook(exercise: Exercise, tmp_path: Path, data: st.DataObject) -> None:
    notebook = changed(data, notebook_of(exercise))
    path = tmp_path / "exercise_02.ipynb"
    path.write_text(json.dumps(notebook))
    try:
        assert isinstance(read_submission(path, exercise), Submission)
    except SubmissionError as error:
        sentence(error)


@quietly(60)
@given(
    content=st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace")),
    suffix=st.sampled_from([".ipynb", ".py"]),
)
@example(content=b"[" * 100_000, suffix=".ipynb")
@example(content=b"9" * 100_000, suffix=".ipynb")
@example(content=b'{"nbformat": 4, "cells": ' + b"[" * 50_000, suffix=".ipynb")
@example(content=b"(" * 50_000, suffix=".py")
@example(content=b"answers = " + b"-" * 50_000 + b"1", suffix=".py")
@example(content=b"\xef\xbb\xbf\x00", suffix=".py")
def test_any_bytes_as_a_submission(exercise: Exercise, tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"k{suffix}"
    path.write_bytes(content)
    try:
        read_submission(path, exercise)
    except SubmissionError as error:
        sentence(error)


# JSON files that the grader reads -----------------------------------------------------------------


@quietly(60)
@given(data=st.data())
def test_any_change_of_the_files_that_the_grader_keeps(
    exercise: Exercise, course: Course, tmp_path: Path, data: st.DataObject
) -> None:
    """Records, the state of a batch, progress: each is read as what it is, or refused in one sentence."""
    record = grading.unreadable(course, exercise, "x", 1, False).model_dump(mode="json")
    name = "r.json"
    (tmp_path / "records").mkdir(exist_ok=True)
    (tmp_path / "records" / name).write_text(json.dumps(record))
    row = {"student": "a", "exercise": exercise.id, "name": "n", "record": name, "confirmed": ""}
    state = {"format": "autograde-batch", "version": 1, "seed": 1, "rows": [row]}
    kept = {
        "reached": {exercise.id: {"best": 1, "latest": 1, "max_points": 2, "full_marks": False}},
        "hints": {exercise.id: 1},
    }
    which = data.draw(st.sampled_from(["record", "state", "progress"]))
    if which == "record":
        (tmp_path / "records" / name).write_text(json.dumps(changed(data, record)))
    (tmp_path / "batch.json").write_text(json.dumps(changed(data, state) if which == "state" else state))
    (tmp_path / progress.FOLDER).mkdir(exist_ok=True)
    (tmp_path / progress.FOLDER / "progress.json").write_text(
        json.dumps(changed(data, kept) if which == "progress" else kept)
    )
    for read in (lambda: read_record(tmp_path / "records" / name), lambda: read_class(tmp_path, course)):
        try:
            read()
        except AutogradeError as error:
            sentence(error)
    found = progress.load(tmp_path)
    assert all(0 <= entry.best <= 1e6 for entry in found.reached.values())
    assert progress.save(tmp_path, found)


# The command line -------------------------------------------------------------------------------

WORDS = [
    "exercise_02", "2", "02", "all", "exercise_99", "exercsie_02", "list", "hint", "diff", "restore", "reset", "timeline", "batch", "class",
    "replay", "similarity", "completion", "grade", "--solution", "--file", "--device", "cuda", "emulated", "--seed", "-1", "7", "9" * 30,
    "--json", "-", "--html", "--plain", "--quick", "--isolation", "full", "basic", "none", "--course", ".", "..", "/", "/dev/null", "/nowhere",
    "course.yaml", "report.json", "x.html", "exercises/exercise_02/exercise_02.ipynb", "--size", "M=0", "M=", "=1", "M=4096", "--clock", "nan",
    "inf", "--builder", "x", "--from", "--to", "--trace", "--jobs", "0", "1", "--engine", "submitit", "local", "--cluster", "--set", "a=b",
    "--gradebook", "--least", "0.5", "--out", "--exercise", "--help", "--version", "-h", "--", "", " ", "é", "\udcff", "-x", "--no-such", "*",
]  # fmt: skip


# What an operating system passes: no zero byte, and bytes that are no UTF-8 as half characters of one kind.
ARGUMENT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.just("\udcff"), max_size=8
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A course without solutions, whose one notebook is a stub: no command has anything to run."""
    root = small_course(tmp_path_factory.mktemp("line") / "course")
    import shutil

    shutil.rmtree(root / "solutions")
    before = Path.cwd()
    os.chdir(root)
    yield root
    os.chdir(before)


def command(arguments: list[str]) -> tuple[int, str, str]:
    """`autograde ARGUMENTS` in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape") for _ in range(2))
    kept = sys.argv, sys.stdout, sys.stderr
    sys.argv, sys.stdout, sys.stderr = ["autograde", *arguments], out, err
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv, sys.stdout, sys.stderr = kept
    for stream in (out, err):
        stream.flush()
    return code, *(s.buffer.getvalue().decode("utf-8", "replace") for s in (out, err))  # type: ignore[attr-defined, return-value]


@quietly(150)
@given(arguments=st.lists(st.sampled_from(WORDS) | ARGUMENT, max_size=6))
@example(arguments=["exercise_02", "--html", "\udcff"])
@example(arguments=["timeline", "2", "--size", "M=4096", "--clock", "nan"])
def test_any_command_line(folder: Path, arguments: list[str]) -> None:
    code, out, err = command(arguments)
    assert code in (0, 1, 2, 3, 130), (code, err)
    for text in (out, err):
        assert "Traceback" not in text and "the grader failed" not in text, text
    if code == 2 and err:
        lines = [line for line in err.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1 and lines[0].startswith("autograde: "), err
    assert (folder / "course.yaml").is_file()


@quietly(20)
@given(text=st.text(max_size=60) | st.sampled_from(["", "{}", "version: 1", "[]", "\x00", BOMB]))
def test_any_course_on_the_command_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "course.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    for arguments in (["list"], ["exercise_02"], ["hint", "2"]):
        code, out, err = command([*arguments, "--course", str(tmp_path)])
        assert code in (2, 3) and "Traceback" not in out + err and "the grader failed" not in err, err
        assert err.count("\n") == 1
