"""What people stumbled over when they tried the course, each with the words that help."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autograder import check, progress

ANSWERS = "answers = {'q1': 32768, 'q2': 4, 'q3': 0, 'q4': 6}\n"


def test_a_comment_at_the_left_edge(autograde: Any, fill_in: Callable[..., Path], solution: str) -> None:
    """Python does not mind where a comment stands; TVM does, and only said `invalid syntax`."""
    text = solution.replace("        # TODO 4:", "# TODO 4:")
    assert text != solution
    fill_in(text, ANSWERS)
    result = autograde("5", "--quick")
    assert "this comment stands further to the left than the kernel around it" in " ".join(result.out.split())
    assert "# TODO 4:" in result.out and "indent the comment" in result.out


def test_a_grade_piped_into_head_is_recorded(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # the reader has left before the first line
    path = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "exercise_05"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path)},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, ""), "the exit code of a grade that lost points, and no word"
    assert "exercise_05" in progress.load(folder).reached


def test_a_quick_grade_says_that_it_is_not_recorded(
    autograde: Any, fill_in: Callable[..., Path], solution: str
) -> None:
    fill_in(solution, ANSWERS)
    result = autograde("5", "--quick")
    assert "next: quick grade, not recorded: run `autograde exercise_05`" in result.out


def test_after_a_wrong_prediction_alone_the_next_step_is_to_answer_it(
    autograde: Any, fill_in: Callable[..., Path], solution: str
) -> None:
    fill_in(solution, ANSWERS.replace("32768", "1").replace("'q4': 6", "'q4': None"))
    result = autograde("5", "--quick")
    assert "next: answer q1 and q4" in result.out and "autograde hint" not in result.out


def test_a_kernel_that_hangs_has_no_timeline(
    autograde: Any, fill_in: Callable[..., Path], solution: str
) -> None:
    fill_in(solution.replace("mma_done.ptr_to([0]), T.uint32(1))", "mma_done.ptr_to([0]), T.uint32(2))"))
    result = autograde("timeline", "5")
    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1 and "does not run to its end" in result.err
    assert "mma_done" in result.err and "T.cuda.mbarrier_wait(" in result.err


def test_a_check_of_another_exercise_says_where_it_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "exercises" / "exercise_05")
    text = (folder / "course.yaml").read_text(encoding="utf-8")
    block = (Path(__file__).resolve().parents[2] / "course.yaml").read_text(encoding="utf-8")
    other = block[block.index("  - id: exercise_02\n") : block.index("  - id: exercise_03\n")]
    (folder / "course.yaml").write_text(text + other, encoding="utf-8")
    score = check("exercise_02")
    assert str(score).startswith("this notebook is exercise_05's, and this is a grade of exercise_02")
    assert "this notebook is exercise_05" in score._repr_html_()
    assert "this notebook is" not in str(check("exercise_5"))
