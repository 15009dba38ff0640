"""Prediction answers: equal answers have one digest, and the notebook's text is read without running it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.answers import digest, main, normal_form
from autograder.submission import read_answers


@pytest.mark.parametrize("same", [128, 128.0, "128", " 128 ", "128.0", "1.28e2"])
def test_equal_numbers_have_one_digest(same: object) -> None:
    assert digest("exercise_05", "q1", same) == hashlib.sha256(b"exercise_05/q1/128").hexdigest()


@pytest.mark.parametrize("other", [129, 0.5, "one hundred", True, "", "nan", float("inf")])
def test_other_answers_have_another(other: object) -> None:
    assert digest("exercise_05", "q1", other) != digest("exercise_05", "q1", 128)


def test_text_ignores_case_and_blanks() -> None:
    assert normal_form("  The   Async proxy ") == "the async proxy"


@pytest.mark.parametrize("strange", [None, [], {}, b"1", 1j])
def test_an_answer_is_a_number_or_text(strange: object) -> None:
    with pytest.raises(ValueError, match="number or text"):
        normal_form(strange)


def test_the_tool_prints_the_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise_05", "q1", "32768"]) == 0
    assert capsys.readouterr().out.strip() == digest("exercise_05", "q1", 32768)
    assert main([]) == 2


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("answers = {'q1': 5, 'q2': 'async'}", {"q1": 5, "q2": "async"}),
        (
            "answers = {'q1': 2 * 128 * 64 * 2, 'q2': 3 ^ (13 % 8), 'q3': -1}",
            {"q1": 32768, "q2": 6, "q3": -1},
        ),
        ("answers = {'q1': None, 'q2': ...}", {"q1": None, "q2": None}),
        ("answers = {'q1': None}\nanswers = {'q1': 64 // 16}", {"q1": 4}),
        ("answers = {}\nanswers['q1'] = 1 << 5", {"q1": 32}),
        ("answers: dict = {'q1': 1 / 2}", {"q1": 0.5}),
        ("other = {'q1': 5}", {}),
        ("", {}),
    ],
)
def test_answers_are_read(text: str, answers: dict[str, object]) -> None:
    assert read_answers(text) == (answers, "")


@pytest.mark.parametrize(
    "text",
    [
        "answers = dict(q1=5)",
        "answers = {'q1': open('/etc/passwd').read()}",
        "answers = {'q1': 10 ** 10 ** 10}",
        "answers = {'q1': 9 ** 9 ** 9}",
        "answers = {'q1': 1 << 99999999}",
        "answers = {'q1': 1 / 0}",
        "answers = {1: 5}",
        "answers = {**{}}",
        "answers = {'q1': [1]}",
        "answers = {'q1': 'x' * 10**9}",
        "answers = {'q1': ",
        "answers = {'q1': \x00}",
        "(" * 500,
        "answers = {'q1': " + "-" * 5000 + "1}",
    ],
)
def test_answers_that_are_not_plain_values(text: str) -> None:
    _, problem = read_answers(text)
    assert problem


@given(st.text(max_size=80))
def test_reading_answers_never_raises(text: str) -> None:
    read_answers(text)
    read_answers(f"answers = {{'q1': {text}}}")


@pytest.mark.parametrize("bad", ["q", "f(1)", "[1]", "1 if x else 2", "b'1'"])
@pytest.mark.parametrize("place", ["q1", "q2", "q3"])
def test_one_unreadable_answer_spoils_no_other(bad: str, place: str) -> None:
    """Wherever it stands, in the dict or in an assignment of its own."""
    right = {"q1": 1, "q2": 2, "q3": 3}
    want = {**right, place: None}
    entries = ", ".join(f"'{q}': {bad if q == place else value}" for q, value in right.items())
    lines = "\n".join(f"answers['{q}'] = {bad if q == place else value}" for q, value in right.items())
    for text in (f"answers = {{{entries}}}", f"answers = {{}}\n{lines}"):
        answers, problem = read_answers(text)
        assert answers == want
        assert bad[:3].replace('"', "'") in problem and "write the answer as a number or text" in problem
