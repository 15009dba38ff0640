"""Finding a learner's work: the right cell, the stub, and files that are no submission."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autograder.course import Exercise
from autograder.errors import SubmissionError
from autograder.submission import (
    from_cell,
    is_untouched,
    read_submission,
    released_kernel,
    split_lines,
    strip_solution,
    syntax_problem,
)

from .conftest import REPOSITORY, cell_of

RELEASED = REPOSITORY / "exercises" / "exercise_05" / "exercise_05.ipynb"


def test_the_kernel_cell_of_the_release(exercise: Exercise) -> None:
    released = released_kernel(REPOSITORY, exercise)
    submission = read_submission(RELEASED, exercise, released)
    assert (
        submission.source == cell_of(json.loads(RELEASED.read_text(encoding="utf-8")), "kernel") == released
    )
    assert submission.untouched
    assert set(submission.answers.values()) == {None}
    cells = json.loads(RELEASED.read_text(encoding="utf-8"))["cells"]
    assert submission.cell is not None
    assert cells[submission.cell - 1]["metadata"]["nbgrader"]["grade_id"] == "kernel"


def test_the_solution_is_no_stub_and_its_answers_are_read(exercise: Exercise) -> None:
    path = REPOSITORY / "solutions" / "exercise_05" / "exercise_05.ipynb"
    submission = read_submission(path, exercise, released_kernel(REPOSITORY, exercise))
    assert not submission.untouched
    assert submission.answers == {"q1": 32768, "q2": 4, "q3": 0, "q4": 6}


def test_a_file_with_the_same_text(tmp_path: Path, exercise: Exercise, solution: str) -> None:
    path = tmp_path / "mein Kernel – 漢.py"
    path.write_text(solution + "\nanswers = {'q1': 32768}\n", encoding="utf-8-sig")
    submission = read_submission(path, exercise)
    assert submission.cell is None
    assert submission.kind == "file"
    assert submission.answers == {"q1": 32768}
    assert submission.line(1) == "from tvm.script import tirx as T"


def test_untouched_means_the_same_program(exercise: Exercise) -> None:
    released = released_kernel(REPOSITORY, exercise)
    assert released is not None
    assert is_untouched(released + "\n# a remark\n", released)
    assert not is_untouched(released.replace("pass", "T.evaluate(0)", 1), released)
    assert not is_untouched("def build_kernel(:", released)


def test_without_the_release_the_stub_is_known_by_its_marker(solution: str) -> None:
    assert is_untouched(strip_solution(solution), None)
    assert not is_untouched(solution, None)
    begun = solution.replace("# BEGIN SOLUTION", "", 1).replace("# END SOLUTION", "", 1)
    assert not is_untouched(strip_solution(begun), None)
    assert is_untouched("x = 1\n# YOUR CODE HERE\npass\n", None)


def test_an_empty_cell_is_a_stub(exercise: Exercise) -> None:
    assert from_cell(" \n", "n.ipynb", 3, exercise, {}).untouched


def test_regions_become_stubs_with_their_indentation() -> None:
    source = "def f():\n    # BEGIN SOLUTION\n    return 1\n    # END SOLUTION\n"
    assert strip_solution(source) == "def f():\n    # YOUR CODE HERE\n    pass\n"


def test_lines_are_those_of_python() -> None:
    assert split_lines("a\x0cb\r\nc\rd\u2028e") == ["a\x0cb", "c", "d\u2028e"]


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("x = 1\ndef f(:\n", 2, "invalid syntax"),
        ("x = 1\n  %matplotlib inline\n", 2, "only plain Python"),
        ("!pip install x", 1, "only plain Python"),
        ("a\x00b", 1, "null bytes"),
        ("x = " + "(" * 300 + ")" * 300, 1, "nested"),
        ("'abc", 1, "unterminated"),
    ],
)
def test_syntax_problems(source: str, line: int, message: str) -> None:
    problem = syntax_problem(source)
    assert problem is not None
    assert problem[0] == line
    assert message in problem[1]


def test_deep_nesting_does_not_bring_the_grader_down() -> None:
    assert syntax_problem("x = " + "-" * 100_000 + "1") is not None


def notebook(*cells: dict[str, Any]) -> str:
    return json.dumps({"cells": list(cells), "nbformat": 4, "nbformat_minor": 5, "metadata": {}})


def cell(grade_id: str, source: Any) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "metadata": {"nbgrader": {"grade_id": grade_id}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"{", "not valid JSON"),
        (b"<html>", "not valid JSON .line 1"),
        (b'{"cells": []', "not valid JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b"[" * 100_000, "not valid JSON|not a notebook"),
        (b"[]", "is JSON, but not a notebook"),
        (b'{"worksheets": [], "nbformat": 3}', "not a notebook of format 4"),
        (notebook().encode(), "has no cells"),
        (notebook(cell("other", "")).encode(), 'has no cell with grade_id "kernel"'),
        (
            notebook(cell("kernel", ""), cell("kernel", ""), cell("answers", "")).encode(),
            "cells 1 and 2 have the same",
        ),
        (notebook(cell("kernel", 5), cell("answers", "")).encode(), "cell 1 has no text"),
        (notebook(cell("kernel", "\ud800"), cell("answers", "")).encode(), "not valid Unicode"),
        (json.dumps({"cells": [1], "nbformat": 4}).encode(), "not a cell"),
    ],
)
def test_files_that_are_no_notebook(tmp_path: Path, exercise: Exercise, content: bytes, message: str) -> None:
    path = tmp_path / "exercise_05.ipynb"
    path.write_bytes(content)
    with pytest.raises(SubmissionError, match=message) as caught:
        read_submission(path, exercise)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_a_kernel_cell_of_another_type_is_refused(tmp_path: Path, exercise: Exercise) -> None:
    """JupyterLab would not run it, so it is not graded either."""
    path = tmp_path / "n.ipynb"
    path.write_text(notebook({**cell("kernel", "x"), "cell_type": "markdown"}, cell("answers", "")))
    with pytest.raises(SubmissionError, match="cell 1 is not a code cell"):
        read_submission(path, exercise)


def test_long_lines_are_quoted_in_part(exercise: Exercise) -> None:
    submission = from_cell("x = '" + "y" * 5000 + "'", "n.ipynb", 1, exercise, {})
    assert len(submission.line(1)) < 250 and submission.line(1).endswith(" ...")


def test_files_that_cannot_be_read(tmp_path: Path, exercise: Exercise) -> None:
    for name, make in {
        "missing.py": lambda path: None,
        "folder.py": Path.mkdir,
        "pipe.py": os.mkfifo,
        "loop.py": lambda path: path.symlink_to(path),
    }.items():
        make(tmp_path / name)
        with pytest.raises(SubmissionError):
            read_submission(tmp_path / name, exercise)
    with pytest.raises(SubmissionError, match="give a notebook"):
        read_submission(tmp_path / "kernel.txt", exercise)
    (tmp_path / "empty.py").write_text("\n")
    with pytest.raises(SubmissionError, match="is empty"):
        read_submission(tmp_path / "empty.py", exercise)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_notebook_is_read_or_refused(
    tmp_path: Path, exercise: Exercise, data: st.DataObject
) -> None:
    """Any part of a real notebook replaced by anything: a submission, or a SubmissionError of one line."""
    tree: Any = {"root": copy.deepcopy(json.loads(RELEASED.read_text(encoding="utf-8")))}
    node, key = tree, "root"
    while isinstance(node[key], dict | list) and node[key] and data.draw(st.integers(0, 5)):
        node = node[key]
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
    node[key] = data.draw(JSON)
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(tree["root"]), encoding="utf-8")
    try:
        read_submission(path, exercise)
    except SubmissionError as error:
        assert "\n" not in str(error)


def test_answers_that_cannot_be_read_keep_the_kernel(
    fill_in: Callable[..., Path], exercise: Exercise
) -> None:
    submission = read_submission(fill_in(kernel="x = 1", answers="answers = {'q1': f()}"), exercise)
    assert submission.source == "x = 1"
    assert "neither" in submission.answers_problem
