"""What people stumbled over when they tried the course, each with the words that help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

ANSWERS = "answers = {'q1': 32768, 'q2': 4, 'q3': 0, 'q4': 6}\n"


def test_a_comment_at_the_left_edge(autograde: Any, fill_in: Callable[..., Path], solution: str) -> None:
    """Python does not mind where a comment stands; TVM does, and only said `invalid syntax`."""
    text = solution.replace("        # TODO 4:", "# TODO 4:")
    assert text != solution
    fill_in(text, ANSWERS)
    result = autograde("5", "--quick")
    assert "this comment stands further to the left than the kernel around it" in " ".join(result.out.split())
    assert "# TODO 4:" in result.out and "indent the comment" in result.out
