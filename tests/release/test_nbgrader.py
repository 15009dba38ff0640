"""A class of three goes through nbgrader's own steps, from the source to the scores in the gradebook."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

POINTS = {
    "predictions": 10,
    "build": 10,
    "correctness": 40,
    "synchronization": 20,
    "mechanism": 10,
    "resources": 10,
}
FENCE = 'T.ptx["fence.proxy.async.shared::cta"]()'
WRONG_ANSWER = '    "q3": 1,'


def nbgrader(folder: Path, *arguments: str) -> None:
    """Run one nbgrader step as a person with an activated environment does, and demand exit status 0."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]


def submit(folder: Path, student: str, notebook: Path, replace: dict[str, str]) -> None:
    """Hand in `notebook`, each key of `replace` exchanged for its value in the cells' text."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for old, new in replace.items():
        cells = [cell for cell in content["cells"] if old in "".join(cell["source"])]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert len(code) == 1, f"{old!r} stands in {len(code)} code cells"
        code[0]["source"] = "".join(code[0]["source"]).replace(old, new)
    target = folder / "submitted" / student / "exercise_05" / "exercise_05.ipynb"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def classroom(course: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course folder in which three submissions have been graded and one got feedback."""
    folder = tmp_path_factory.mktemp("class")
    for name in ("course.yaml", "nbgrader_config.py"):
        shutil.copy(course / name, folder)
    shutil.copytree(course / "solutions" / "exercise_05", folder / "solutions" / "exercise_05")
    nbgrader(folder, "generate_assignment", "exercise_05")
    solution = folder / "solutions" / "exercise_05" / "exercise_05.ipynb"
    submit(folder, "right", solution, {})
    submit(folder, "no_fence", solution, {FENCE: "pass", '    "q3": 0,': WRONG_ANSWER})
    submit(folder, "untouched", folder / "exercises" / "exercise_05" / "exercise_05.ipynb", {})
    nbgrader(folder, "autograde", "exercise_05")
    nbgrader(folder, "generate_feedback", "exercise_05", "--student", "no_fence")
    return folder


def scores(folder: Path, student: str) -> dict[str, float]:
    """grade_id -> what nbgrader wrote into its gradebook. None of them waits for a person."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as gradebook:
        [notebook] = gradebook.find_submission("exercise_05", student).notebooks
        assert not any(grade.needs_manual_grade for grade in notebook.grades)
        return {grade.name: grade.auto_score for grade in notebook.grades}


def test_gradebook_release_equals_the_release_tool(classroom: Path, course: Path) -> None:
    """`nbgrader generate_assignment` with a gradebook writes the files that tools/release.py writes."""
    for path in sorted(p for p in (course / "exercises" / "exercise_05").rglob("*") if p.is_file()):
        other = classroom / path.relative_to(course)
        assert other.read_bytes() == path.read_bytes(), path.name


def test_solution_gets_full_marks(classroom: Path) -> None:
    assert scores(classroom, "right") == POINTS


def test_one_missing_fence_costs_one_check(classroom: Path) -> None:
    """Without the proxy fence the numbers are right, but not the synchronization; one answer is wrong."""
    assert scores(classroom, "no_fence") == {**POINTS, "synchronization": 0, "predictions": 8}


def test_stub_gets_nothing(classroom: Path) -> None:
    assert scores(classroom, "untouched") == dict.fromkeys(POINTS, 0)


def test_feedback_shows_the_report_and_the_figures(classroom: Path) -> None:
    page = (classroom / "feedback" / "no_fence" / "exercise_05" / "exercise_05.html").read_text(
        encoding="utf-8"
    )
    assert "fence.proxy.async" in page
    assert page.count("data:image/svg+xml") >= 3
    assert "Traceback (most recent call last)" not in page
