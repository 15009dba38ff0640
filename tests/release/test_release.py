"""exercises/ is what nbgrader makes of solutions/ today, and it gives no solution away."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from autograder import release


def test_exercises_are_generated_from_solutions(exercise: str, course: Path, tmp_path: Path) -> None:
    release.generate(course, [exercise], tmp_path)
    assert release.stale(course, tmp_path, exercise) == [], "run: python tools/release.py"


def test_every_release_has_a_source(course: Path) -> None:
    released = {p.name for p in (course / "exercises").iterdir() if p.is_dir()}
    sources = {p.parent.name for p in (course / "solutions").glob("*/*.ipynb")}
    assert released == sources


def test_nothing_leaks(exercise: str, course: Path) -> None:
    """Neither the exercise nor one before it shows what this exercise asks for."""
    notebook = course / "solutions" / exercise / f"{exercise}.ipynb"
    known = release.known_lines(course, exercise)
    assert len(release.solution_lines(notebook) - known) > 5
    for folder in sorted(p for p in (course / "exercises").iterdir() if p.name <= exercise):
        assert release.leaks(notebook, folder, known) == [], folder.name
    released = [p for p in (course / "exercises" / exercise).rglob("*") if p.is_file()]
    for path in released:
        text = path.read_text(encoding="utf-8")
        assert "SOLUTION" not in text, f"{path} still has a solution marker"
        assert "HIDDEN TESTS" not in text
    assert {p.suffix for p in released} <= {".ipynb", ".md", ".svg", ".png"}
    assert not any("instructor" in p.name for p in released)


@pytest.mark.parametrize("where", ["hints.md", "exercise_05.ipynb"])
def test_a_leak_is_found(where: str, course: Path, tmp_path: Path) -> None:
    """The test above can fail: one solution line, spaced differently, in a hint or in an output of a cell."""
    notebook = course / "solutions" / "exercise_05" / "exercise_05.ipynb"
    folder = tmp_path / "exercise_05"
    shutil.copytree(course / "exercises" / "exercise_05", folder)
    secret = "Tx.cta.copy( A_smem[:, :],  A[:, :] )"
    path = folder / where
    if path.suffix == ".md":
        path.write_text(path.read_text() + f"\nTry `{secret}`.\n")
    else:
        content = json.loads(path.read_text())
        content["cells"][-1]["source"].append(secret)
        path.write_text(json.dumps(content))
    assert [leak.split()[0] for leak in release.leaks(notebook, folder)] == [where]


def test_the_previous_step_is_the_solution_before(exercise: str, course: Path) -> None:
    """An exercise that continues another is handed out with that one's kernel, as it is today, and only that."""
    path = course / "exercises" / exercise / release.PREVIOUS
    previous = release.continued(course, exercise)
    assert path.is_file() == (previous is not None)
    assert not release.stale_previous_step(course, exercise), "run: python tools/release.py"
    if previous is not None:
        text = path.read_text(encoding="utf-8")
        code = text.split("```python\n")[1].split("\n```")[0]
        compile(code, previous, "exec")
        assert release.solution_lines(course / "solutions" / previous / f"{previous}.ipynb") & set(
            map(release.squeeze, code.split("\n"))
        )


def test_check_reports_a_stale_release(
    course: Path,
    release_tool: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A course whose exercises/ was edited by hand: --check names the file, a plain run puts it right."""
    for part in ("solutions", "exercises"):
        shutil.copytree(course / part / "exercise_05", tmp_path / part / "exercise_05")
    shutil.copy(course / "course.yaml", tmp_path)

    def generate(_: Path, names: list[str], into: Path) -> None:
        """What nbgrader would write, without its three seconds."""
        for name in names:
            shutil.copytree(course / "exercises" / name, into / name)

    monkeypatch.setattr(release_tool, "COURSE", tmp_path)
    monkeypatch.setattr(release, "generate", generate)
    (tmp_path / "exercises" / "exercise_05" / "hints.md").write_text("edited by hand\n")
    (tmp_path / "exercises" / "exercise_05" / "extra.md").write_text("left over\n")
    assert release_tool.main(["--check"]) == 1
    reported = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in reported] == [
        "exercises/exercise_05/extra.md",
        "exercises/exercise_05/hints.md",
    ]
    assert release_tool.main([]) == 0
    assert release_tool.main(["--check"]) == 0


def test_an_unknown_exercise_is_refused(release_tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        release_tool.main(["exercise_99"])
    assert stop.value.code == 2
    assert "no exercise 'exercise_99' in solutions/" in capsys.readouterr().err
