"""hint, reset, timeline and step in a notebook: what they show, what they say when something is missing."""

from __future__ import annotations

import json
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autograder import nbgrader_bridge, progress
from autograder.notebook import Shown, check, hint, reset, step, timeline

Run = Callable[[str], None]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Executes a cell of a notebook that lies in the exercise's folder."""
    variables: dict[str, Any] = {}

    def execute(source: str) -> None:
        name = f"/tmp/ipykernel_1/{len(variables)}.py"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), variables)

    monkeypatch.chdir(folder / "exercises" / "exercise_05")
    monkeypatch.setattr(nbgrader_bridge, "_namespace", lambda: variables)
    monkeypatch.setattr(nbgrader_bridge, "_cache", {})
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    yield execute


def bundle(shown: Shown) -> dict[str, str]:
    """What a front end gets; every one can show text, and HTML or Markdown without a network."""
    found = shown._repr_mimebundle_()
    assert found["text/plain"] == repr(shown) and set(found) & {"text/html", "text/markdown"}
    assert not any("://" in text.replace("http://www.w3.org/2000/svg", "") for text in found.values())
    return found


def test_hint(run: Run, folder: Path) -> None:
    first = bundle(hint())["text/markdown"]
    assert "hint 1 of 3" in first and "more: `hint(2)`" in first
    assert "hint 2 of 3" in repr(hint(2)) and "hint 2 of 3" in repr(hint())
    assert progress.load(folder).hints == {"exercise_05": 2}
    for wrong in (0, 9):
        assert f"there is no {wrong}" in bundle(hint(wrong))["text/html"]
    state = progress.load(folder)
    state.reached["exercise_05"] = progress.Reached(failing=["correctness"], todo=[4])
    progress.save(folder, state)
    chosen = repr(hint(2))
    assert "TODO 4" in chosen and "TODO 3" not in chosen and "TODO 3" in repr(hint(2, everything=True))


def test_what_is_missing_is_one_sentence(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (timeline, step):
        assert "build_kernel is not defined yet: run the cell that defines it" in repr(function())
    assert "not defined yet" in str(check())
    monkeypatch.chdir(folder)
    for answer in (hint(), timeline(), step(), reset(), check()):
        assert "which exercise?" in str(answer if not isinstance(answer, Shown) else repr(answer))
    assert "there is no exercise" in repr(hint("exercise_99"))


def test_reset(run: Run, folder: Path, fill_in: Callable[..., Path]) -> None:
    path = fill_in("mine = 1")
    before = path.read_bytes()
    text = repr(reset())
    (kept,) = (folder / ".autograde/kept/exercise_05").iterdir()
    assert "nothing had to be kept" in repr(reset())
    assert kept.read_bytes() == before and str(kept) in text and "Reload Notebook from Disk" in text


def test_step_timeline_and_a_recorded_grade(run: Run, folder: Path, solution: str) -> None:
    run(solution)
    run("answers = {'q1': 32768, 'q2': 4, 'q3': 0, 'q4': 6}")
    shown = bundle(step())
    assert "waits for mbarrier mma_done, parity 0" in shown["text/plain"]
    assert "tcgen05.mma completes" in shown["text/plain"] and "<section" in shown["text/html"]
    assert "there is no case" in repr(step(case="nonsense")) or "has no case" in repr(step(case="nonsense"))
    shown = bundle(timeline())
    assert "modelled on NVIDIA B200" in shown["text/plain"] and "<svg" in shown["text/html"]
    score = check()
    assert score.points == 100 and "from autograder.notebook import" in score._repr_html_()
    assert "from autograder.notebook import" not in check(None, "build")._repr_html_()
    assert progress.load(folder).reached["exercise_05"].full_marks
    assert list((folder / ".autograde/checkpoints/exercise_05").iterdir())


def test_nbgraders_run_is_not_recorded(
    run: Run, folder: Path, solution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autograder.report.model import GradeReport

    report = json.loads(
        json.dumps(
            {
                "exercise": "exercise_05", "title": "t", "points": 1, "max_points": 100, "device": "d", "seed": 1,
                "source": {"kind": "notebook", "name": "n", "sha256": "0"}, "checks": [],
            }
        )
    )  # fmt: skip
    monkeypatch.setattr(nbgrader_bridge, "_ask_worker", lambda request: GradeReport.model_validate(report))
    run(solution)
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    check("exercise_05", "build")
    assert not (folder / ".autograde/progress.json").exists()
