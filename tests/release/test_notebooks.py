"""The source notebooks agree with course.yaml and keep the rules that nbgrader needs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from autograder.answers import digest


def cells(notebook: Path) -> list[dict[str, Any]]:
    """The notebook's cells, sources joined."""
    return [
        {**c, "source": "".join(c["source"])}
        for c in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    ]


def graded(notebook: Path) -> dict[str, dict[str, Any]]:
    """grade_id -> cell, for the cells that nbgrader knows."""
    found = [
        (c["metadata"]["nbgrader"]["grade_id"], c) for c in cells(notebook) if "nbgrader" in c["metadata"]
    ]
    assert len(dict(found)) == len(found), "a grade_id occurs twice"
    return dict(found)


def block(course: Path, exercise: str) -> dict[str, Any]:
    """The exercise's block in course.yaml."""
    content = yaml.safe_load((course / "course.yaml").read_text(encoding="utf-8"))
    return next(e for e in content["exercises"] if e["id"] == exercise)


def test_scored_cells_are_the_checks_of_the_course(exercise: str, course: Path) -> None:
    """Same ids, same points, same order, and each cell ends in the call that scores it."""
    notebook = course / "solutions" / exercise / f"{exercise}.ipynb"
    scored = {i: c for i, c in graded(notebook).items() if c["metadata"]["nbgrader"]["grade"]}
    checks = block(course, exercise)["checks"]
    assert list(scored) == [check["id"] for check in checks]
    assert {i: c["metadata"]["nbgrader"]["points"] for i, c in scored.items()} == {
        check["id"]: check["points"] for check in checks
    }
    assert sum(check["points"] for check in checks) == 100
    for check_id, cell in scored.items():
        assert cell["source"].split("\n")[-1] == f'check("{exercise}", "{check_id}")'
        assert cell["metadata"]["nbgrader"]["locked"]


def test_solution_cells_are_those_that_the_course_names(exercise: str, course: Path) -> None:
    notebook = course / "solutions" / exercise / f"{exercise}.ipynb"
    solutions = [i for i, c in graded(notebook).items() if c["metadata"]["nbgrader"]["solution"]]
    assert set(solutions) == set(block(course, exercise)["cells"].values())


def test_questions_of_the_notebook_are_those_of_the_course(exercise: str, course: Path) -> None:
    """Each prompt stands in the lesson word for word, and the answers cell has one entry per question."""
    notebook = course / "solutions" / exercise / f"{exercise}.ipynb"
    questions = block(course, exercise)["questions"]
    text = "\n".join(c["source"] for c in cells(notebook) if c["cell_type"] == "markdown")
    assert [q["prompt"] for q in questions if q["prompt"] not in text] == []
    released = course / "exercises" / exercise / f"{exercise}.ipynb"
    answers_id = block(course, exercise)["cells"]["answers"]
    scope: dict[str, Any] = {}
    exec(graded(released)[answers_id]["source"], scope)
    assert scope["answers"] == {q["id"]: None for q in questions}


def test_solution_answers_are_right(exercise: str, course: Path) -> None:
    """The digests of course.yaml belong to the answers of the solution notebook."""
    description = block(course, exercise)
    notebook = course / "solutions" / exercise / f"{exercise}.ipynb"
    scope: dict[str, Any] = {}
    exec(graded(notebook)[description["cells"]["answers"]]["source"], scope)
    wrong = [
        question["id"]
        for question in description["questions"]
        if digest(exercise, question["id"], scope["answers"][question["id"]]) != question["answer"]
    ]
    assert wrong == []


def test_source_notebook_is_clean(exercise: str, course: Path) -> None:
    """No outputs, counts, blank cell ends, old metadata or random ids: they break checksums or diffs."""
    folder = course / "solutions" / exercise
    notebook = json.loads((folder / f"{exercise}.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in cells(folder / f"{exercise}.ipynb"):
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert cell["source"] == cell["source"].rstrip()
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", cell["id"]), "give the cell a readable id"
        assert set(cell["metadata"]) <= {"nbgrader", "tags"}
        if "nbgrader" in cell["metadata"]:
            assert cell["metadata"]["nbgrader"]["schema_version"] == 3
    assert not list(folder.rglob("*.py")), "nbgrader would release a .py file with its solutions"


def test_figures_have_a_description(exercise: str, course: Path) -> None:
    """Every image of the lesson is a file of the exercise and carries an alternative text; no network."""
    folder = course / "solutions" / exercise
    text = "\n".join(c["source"] for c in cells(folder / f"{exercise}.ipynb") if c["cell_type"] == "markdown")
    images = re.findall(r"!\[(.*?)\]\((.*?)\)", text, flags=re.S)
    assert images
    for alternative, target in images:
        assert len(alternative.split()) >= 8
        assert (folder / target).is_file()
    assert "<img" not in text


def test_lesson_length(exercise: str, course: Path) -> None:
    """600 to 1,500 words from the title to the first question."""
    notebook = cells(course / "solutions" / exercise / f"{exercise}.ipynb")
    first_code = next(i for i, c in enumerate(notebook) if c["cell_type"] == "code")
    lesson = "\n".join(c["source"] for c in notebook[: first_code - 1])
    words = len(re.sub(r"!\[.*?\]\(.*?\)", "", lesson, flags=re.S).split())
    assert 600 <= words <= 1500


def test_hints_come_in_three_levels(exercise: str, course: Path) -> None:
    text = (course / "solutions" / exercise / "hints.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, flags=re.M) == ["Level 1", "Level 2", "Level 3"]
