"""predictions: the learner's answers against the digests of course.yaml. Needs no launch."""

from __future__ import annotations

import re

from autograder.answers import digest, normal_form
from autograder.checks import Outcome, check, of_all, result
from autograder.course import Check, Question
from autograder.errors import did_you_mean
from autograder.report.model import CheckResult, Evidence, Location, Verdict


@check
def predictions(check: Check, outcome: Outcome) -> CheckResult:
    exercise, submission = outcome.exercise, outcome.submission
    points, right, evidence = 0.0, 0, []
    for question in exercise.questions:
        problem = _problem(exercise.id, question, submission.answers.get(question.id))
        if problem:
            data = {"question": question.id, "prompt": question.prompt}
            evidence.append(Evidence(kind="answer", message=f"{question.id}: {problem}", data=data))
        else:
            points += question.points
            right += 1
    evidence = _reading_problems(outcome) + evidence
    summary = of_all(right, len(exercise.questions), "answer")
    if right == len(exercise.questions):
        return result(check, Verdict.PASS, check.points, summary)
    return result(check, Verdict.PARTIAL if right else Verdict.FAIL, points, summary, evidence)


def _problem(exercise: str, question: Question, answer: object) -> str:
    """What is wrong with an answer, empty when it is right. Never says what would be right."""
    if answer is None:
        return f"not answered yet ({question.prompt})"
    try:
        spelled = normal_form(answer)
        right = digest(exercise, question.id, answer) == question.answer
    except ValueError as error:
        return str(error)
    if question.kind in ("integer", "number") and not re.fullmatch(r"[-+]?[0-9].*", spelled):
        return f"{answer!r} is not a number ({question.prompt})"
    if question.kind == "choice" and spelled not in (normal_form(choice) for choice in question.choices):
        return f"{answer!r} is none of {', '.join(question.choices)}"
    return "" if right else f"{answer!r} is not right ({question.prompt})"


def _reading_problems(outcome: Outcome) -> list[Evidence]:
    """Why answers could not be read, and answers to questions that do not exist."""
    submission, found = outcome.submission, []
    names = [q.id for q in outcome.exercise.questions]
    if submission.answers_problem:
        found.append(
            Evidence(kind="error", message=f"the answers cannot be read: {submission.answers_problem}")
        )
        if submission.answers_cell is not None:
            place = Location(file=submission.name, cell=submission.answers_cell, line=1)
            found[-1].locations.append(place)
    if submission.kind == "file" and not submission.answers:
        message = (
            f"{submission.name} has no answers; it may define answers = {{'q1': ...}} as the notebook does"
        )
        found.append(Evidence(kind="note", message=message))
    for name in submission.answers:
        if name not in names:
            found.append(
                Evidence(kind="note", message=f"there is no question '{name}'{did_you_mean(name, names)}")
            )
    return found
