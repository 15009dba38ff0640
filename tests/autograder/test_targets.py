"""Report files never replace anybody's work, and what a submission printed is shown without foreign traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autograder import files
from autograder.diagnosis import printed_by_submission
from autograder.errors import UsageError


@pytest.mark.parametrize(
    "name", ["exercise_05.ipynb", "kernel.py", "course.yaml", "notes.MD", "pyproject.toml"]
)
def test_a_source_file_is_never_a_report(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("mine")
    with pytest.raises(UsageError, match="overwrite"):
        files.check_target("--json", str(path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("target", "words"), [("", "name of a file"), (".", "folder"), ("no/such/x.json", "no folder")]
)
def test_bad_targets_are_refused_before_grading(target: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        files.check_target("--html", target)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_text(pipe, "report")
    assert os.read(reader, 100) == b"report"
    os.close(reader)
    assert not pipe.is_file()


def test_a_symlink_keeps_pointing(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    files.write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_traces_of_the_grader_and_of_a_crash_are_not_the_submissions_words() -> None:
    printed = "\n".join(
        [
            "mine",
            "!!!!!!! Segfault encountered !!!!!!!",
            '  File "Python/ceval.c", line 6434, in _PyEval_Vector',
            '  File "<unknown>", line 0, in 0xffffffffffffffff',
            "",
            "Traceback (most recent call last):",
            '  File "/x/autograder/runner/build_child.py", line 158, in _send',
            "OSError: [Errno 9] Bad file descriptor",
            "During handling of the above exception, another exception occurred:",
            "Traceback (most recent call last):",
            '  File "kernel.py", line 3, in <module>',
            "ValueError: mine, too",
            "last",
        ]
    )
    kept = [line for line in printed_by_submission(printed).splitlines() if line]
    assert kept == [
        "mine",
        "Traceback (most recent call last):",
        '  File "kernel.py", line 3, in <module>',
        "ValueError: mine, too",
        "last",
    ]
