"""Prediction answers: normal forms and digests.

course.yaml stores digests so that reading it does not spoil a question. They keep answers out of sight, not
out of
reach: a number between 0 and 512 is quickly tried.
"""

from __future__ import annotations

import hashlib
import sys


def normal_form(answer: object) -> str:
    """One spelling for equal answers: 128, 128.0 and "128" are the same; text ignores case and outer blanks.

    Raises:
        ValueError: the answer is neither a number nor text.
    """
    if isinstance(answer, bool):
        return str(answer).lower()
    if isinstance(answer, str):
        text = " ".join(answer.split()).lower()
        try:
            answer = float(text) if not text.lstrip("+-").isdigit() else int(text)
        except ValueError:
            return text
    if isinstance(answer, float):
        return str(int(answer)) if answer.is_integer() else repr(answer)
    if isinstance(answer, int):
        return str(answer)
    raise ValueError(f"an answer is a number or text, not {type(answer).__name__}")


def digest(exercise: str, question: str, answer: object) -> str:
    """Hex SHA-256 of the answer's normal form, salted with exercise and question."""
    return hashlib.sha256(f"{exercise}/{question}/{normal_form(answer)}".encode()).hexdigest()


def main(arguments: list[str]) -> int:
    """`python -m autograder.answers EXERCISE QUESTION ANSWER` prints the digest for course.yaml."""
    if len(arguments) != 3:
        print("usage: python -m autograder.answers EXERCISE QUESTION ANSWER", file=sys.stderr)
        return 2
    exercise, question, answer = arguments
    problem = _misfit(exercise, question, answer)
    if problem:
        print(f"autograder.answers: {problem}", file=sys.stderr)
    print(digest(exercise, question, answer))
    return 0


def _misfit(exercise: str, question: str, answer: str) -> str:
    """What is wrong with an answer for the course of this folder, empty where nothing is. Questions not written yet are no fault."""
    from pathlib import Path

    from autograder.course import load_course
    from autograder.course_folder import find_course_root
    from autograder.errors import AutogradeError

    try:
        found = load_course(find_course_root(Path.cwd())).find(exercise)
    except AutogradeError as error:
        return f"note: {error}"
    known = {asked.id: asked for asked in found.questions}
    if question in known and known[question].kind in ("integer", "number"):
        try:
            float(answer)
        except ValueError:
            return f"note: {question} of {exercise} wants a number, and {answer!r} is none"
    if question not in known:
        return f"note: {exercise} has no question {question} yet, it has {', '.join(known) or 'none'}"
    return ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
