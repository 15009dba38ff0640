"""The learner's commands: where you are, hints that fit the last grade, kept states, completion, bars."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autograder import checkpoints, hints, progress
from autograder.course import Exercise
from autograder.grade import Step
from autograder.learner import remember, todos
from autograder.report.bar import Bar
from autograder.report.model import CheckResult, Evidence, GradeReport, Location, Measured, Source, Verdict

Autograde = Callable[..., Any]
NOTEBOOK = Path("exercises/exercise_05/exercise_05.ipynb")
REPOSITORY = Path(__file__).resolve().parents[2]


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.startswith("autograde: ") and "Traceback" not in text


def a_report(points: float = 100, lines: tuple[int, ...] = (), micros: float | None = None) -> GradeReport:
    """A grade of exercise_05 that lost its points at these lines of the kernel."""
    full = points == 100
    places = [Location(file="exercise_05.ipynb", cell=6, line=line) for line in lines]
    check = CheckResult(
        id="synchronization",
        title="Synchronization",
        verdict=Verdict.PASS if full else Verdict.FAIL,
        points=points,
        max_points=100,
        evidence=[] if full else [Evidence(kind="finding", message="m", locations=places)],
    )
    report = GradeReport(
        exercise="exercise_05",
        title="One tile",
        points=points,
        max_points=100,
        device="emulated sm_100a",
        seed=1,
        source=Source(kind="notebook", name="exercise_05.ipynb", sha256="0" * 64),
        checks=[check],
    )
    if micros is not None:
        report.measured = [
            Measured(
                builder="build_kernel",
                params={"M": 128},
                reference="matmul",
                device="B200",
                verdict="fast",
                pairs=1,
                bytes_moved=1,
                kernel_us=micros,
            )
        ]
    return report


def test_where_you_are(autograde: Autograde, folder: Path) -> None:
    first = autograde()
    assert first.code == 0 and "0 of 100 points, 0 of 1 exercises done" in first.out
    assert f"open {NOTEBOOK}, then run: autograde exercise_05" in first.out
    remember(folder, a_report(80, (1,)), "# TODO 2\n", {"q1": 1})
    autograde("hint", "5")
    second = autograde()
    assert "80/100" in second.out and "lost points in your last grade: synchronization" in second.out
    assert "you have seen level 1" in second.out
    plain = autograde("--plain")
    assert plain.out.isascii() and ".. exercise_05" in plain.out
    remember(folder, a_report(), "# better\n", {"q1": 1})
    third = autograde()
    assert "✓ exercise_05" in third.out and "all exercises done" in third.out


@pytest.mark.parametrize("level", ["0", "-1", "4", "99"])
def test_a_level_that_does_not_exist(autograde: Autograde, level: str) -> None:
    result = autograde("hint", "5", "--", level)
    assert result.code == 2 and one_line(result.err)
    assert f"exercise_05 has 3 hint levels, there is no {level}" in result.err


def test_a_hint_speaks_of_what_the_last_grade_lost(autograde: Autograde, folder: Path) -> None:
    source = "# TODO 1\n# TODO 2\n# TODO 3: fill\ny\n# TODO 4\n# TODO 5: wait\nw\n# TODO 6\n# TODO 7\n"
    remember(folder, a_report(80, (7, 4)), source, {"q1": 1})
    result = autograde("hint", "5", "2")
    assert "for what your last grade lost: synchronization" in result.out
    shown = re.findall(r"^\d+\. TODO (\d)", result.out, re.MULTILINE)
    assert shown == ["5", "3"], "in the order in which the grade names them"
    assert "--all" in result.out
    whole = autograde("hint", "5", "2", "--all")
    assert re.findall(r"^\d+\. TODO (\d)", whole.out, re.MULTILINE) == list("1234567")
    assert autograde("hint", "5").out == result.out, "without a level: the highest that was seen"
    assert autograde("hint").out == result.out, "without an exercise: the next one"
    assert progress.load(folder).hints == {"exercise_05": 2}


@pytest.mark.parametrize("gone", range(1, 8))
def test_a_kernel_without_a_todo_comment_gets_the_whole_level(
    autograde: Autograde, folder: Path, gone: int
) -> None:
    """Learners delete a TODO comment when they are done with it; its lines are not those of the TODO above."""
    source = "".join(f"# TODO {n}\nx\n" for n in range(1, 8) if n != gone)
    remember(folder, a_report(80, (4,)), source, {"q1": 1})
    result = autograde("hint", "5", "2")
    assert re.findall(r"^\d+\. TODO (\d)", result.out, re.MULTILINE) == list("1234567")
    assert "--all" not in result.out


@pytest.mark.parametrize("name", sorted(p.name for p in (REPOSITORY / "solutions").iterdir()))
def test_the_todos_of_a_stub_are_known(name: str) -> None:
    text = (REPOSITORY / "exercises" / name / f"{name}.ipynb").read_text(encoding="utf-8")
    numbers = {int(number) for number in re.findall(r"# TODO (\d+)", text)}
    assert hints.stub_todos(REPOSITORY, name) == numbers


def test_todos_of_lines() -> None:
    source = "a\n    # TODO 1 (of two)\nb\n# TODO 2\nc\n"
    assert todos(a_report(0, (5, 3, 1, 99)), source) == [2, 1]
    assert todos(a_report(100), source) == []


@pytest.mark.parametrize("name", sorted(p.name for p in (REPOSITORY / "solutions").iterdir()))
def test_every_exercise_has_hints_by_todo(name: str) -> None:
    """Level 2 of every exercise can be chosen from: most of its numbered items name the TODO that they speak of."""
    text = (REPOSITORY / "solutions" / name / "hints.md").read_text(encoding="utf-8")
    level = re.split(r"^## Level \d+[^\n]*$", text, flags=re.MULTILINE)[2]
    items = [line for line, code in hints.lines(level) if not code and re.match(r"\d+\. ", line)]
    named = [hints._named(item) for item in items]
    assert items and sum(map(bool, named)) > 0.7 * len(items)
    number = max(max(n) for n in named if n)
    assert hints.about(level, [number]) and not hints.about(level, [number + 50])


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("3. TODO 4: x", {4}),
        ("3. TODO 4 and 6: x 9", {4, 6}),
        ("1. TODO 1 to 3: x", {1, 2, 3}),
        ("1. TODO 1, 2 and 5 are", {1, 2, 5}),
        ("1. no TODO 1", set()),
        ("text", set()),
    ],
)
def test_the_todos_that_an_item_names(line: str, numbers: set[int]) -> None:
    assert hints._named(line) == numbers


# Checkpoints --------------------------------------------------------------------------------------


def keep(folder: Path, source: str, points: float = 100, micros: float | None = None) -> Any:
    return checkpoints.keep(folder, a_report(points, micros=micros), source, {})


def test_what_is_kept(tmp_path: Path) -> None:
    assert keep(tmp_path, "zero", 0) is None
    assert keep(tmp_path, "some", 40) is not None
    assert keep(tmp_path, "less", 20) is None and keep(tmp_path, "same points", 40) is None
    assert keep(tmp_path, "right", micros=9.0) is not None
    assert keep(tmp_path, "right", micros=9.0) is None, "once"
    assert keep(tmp_path, "slower", micros=12.0) is not None, "each state that passes"
    assert keep(tmp_path, "broken", 90) is None
    states = checkpoints.kept(tmp_path, "exercise_05")
    assert [state.source for state in states] == ["some", "right", "slower"]
    right, fast = checkpoints.last_right(states), checkpoints.fastest(states)
    assert right and right.source == "slower" and fast and fast.source == "right"


def test_times_of_different_machines_are_not_compared(tmp_path: Path) -> None:
    keep(tmp_path, "a", micros=1.0)
    report = a_report(micros=5.0)
    report.measured[0].device = "H200"
    checkpoints.keep(tmp_path, report, "b", {})
    fast = checkpoints.fastest(checkpoints.kept(tmp_path, "exercise_05"))
    assert fast and fast.source == "b"


def test_the_number_of_kept_states_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MOST", 5)
    for n in range(12):
        keep(tmp_path, f"kernel {n}", micros=1.0 if n == 2 else 5.0)
    sources = [state.source for state in checkpoints.kept(tmp_path, "exercise_05")]
    assert len(sources) == 5 and "kernel 2" in sources and sources[-1] == "kernel 11"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b"[" * 10**5, b'{"number": "x"}', b'{"number": 1, "time": 5}']
)
def test_damaged_checkpoints_do_not_count(tmp_path: Path, content: bytes) -> None:
    assert keep(tmp_path, "good")
    (tmp_path / ".autograde/checkpoints/exercise_05/0002.json").write_bytes(content)
    assert [state.source for state in checkpoints.kept(tmp_path, "exercise_05")] == ["good"]


def test_diff_and_restore(
    autograde: Autograde, folder: Path, fill_in: Callable[..., Path], solution: str, exercise: Exercise
) -> None:
    for command in (["diff", "5"], ["restore", "5"]):
        result = autograde(*command)
        assert result.code == 2 and one_line(result.err) and "nothing is kept" in result.err
    keep(folder, solution, micros=7.0)
    path = fill_in(solution)
    assert "nothing has changed since" in autograde("diff", "5").out
    broken = solution.replace("Tx.gemm_async(", "Tx.gemm_sync(")
    fill_in(broken)
    before = path.read_bytes()
    result = autograde("diff", "5")
    assert result.code == 0 and "\x1b" not in result.out
    changed = [line for line in result.out.splitlines() if re.match(r"[-+](?![-+])", line)]
    assert len(changed) == 2 and "gemm_sync(" in changed[1]
    assert "100 of 100 points, 7.0 us measured on B200" in result.out
    assert autograde("diff", "5", "--fastest").out == result.out
    assert path.read_bytes() == before, "diff changes nothing"
    assert one_line(autograde("diff", "5", "--number", "9").err)

    result = autograde("restore", "5")
    assert result.code == 0
    (kept,) = (folder / ".autograde/kept/exercise_05").iterdir()
    assert str(kept) in result.out and kept.read_bytes() == before, "the file as it was is kept"
    cells = json.loads(path.read_text())["cells"]
    texts = [
        "".join(c["source"]) for c in cells if c["metadata"].get("nbgrader", {}).get("grade_id") == "kernel"
    ]
    assert texts == [solution]
    assert "exactly this kernel already" in autograde("restore", "5").out
    assert autograde("restore", "5", "--list").out.startswith("1  20")


def test_where_nothing_was_right_the_best_is_meant(
    autograde: Autograde, folder: Path, fill_in: Callable[..., Path]
) -> None:
    keep(folder, "better = 1", 40)
    fill_in("worse = 1")
    for command in ("diff", "restore"):
        said = " ".join(autograde(command, "5").out.split())
        assert said.startswith("no state was right yet; the best so far is checkpoint 1")
    fill_in("worse = 1")
    assert autograde("restore", "5", "--number", "1").out.startswith("checkpoint 1")


def test_restore_never_overwrites_what_it_could_not_keep(
    autograde: Autograde, folder: Path, fill_in: Callable[..., Path], solution: str
) -> None:
    keep(folder, solution)
    path = fill_in("mine = 1")
    before = path.read_bytes()
    (folder / ".autograde" / "kept").write_text("a file where the folder should be")
    result = autograde("restore", "5")
    assert result.code == 2 and one_line(result.err) and path.read_bytes() == before


# Completion, bars --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("autograde exer", "exercise_05"),
        ("autograde wa", "watch"),
        ("autograde hint ex", "exercise_05"),
        ("autograde exercise_05 --so", "--solution"),
    ],
)
def test_the_shell_completes(folder: Path, words: str, expected: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "_AUTOGRADE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "autograder"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert f"plain,{expected}" in done.stdout.splitlines(), done


def test_how_to_switch_completion_on(autograde: Autograde) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert f"{shell}_source" in autograde("completion", shell).out


def screen(width: int = 80, terminal: bool = True, **options: Any) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=width, **options), text


@pytest.mark.parametrize("width", [30, 40, 80, 200])
def test_the_bar_fits_and_says_what_happens(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autograder.report.bar.AFTER", 0.0)
    console, text = screen(width)
    with Bar("exercise_05", console=console) as bar:
        bar(Step("running random values", 2, 5))
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", text.getvalue()).splitlines()
    assert any(line.startswith("exerc") for line in lines)
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("terminal", "plain", "after"), [(False, False, 0.0), (True, True, 0.0), (True, False, 60.0)]
)
def test_no_bar_in_pipes_in_plain_and_for_what_is_fast(
    terminal: bool, plain: bool, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autograder.report.bar.AFTER", after)
    console, text = screen(terminal=terminal)
    with Bar("x", plain, console) as bar:
        bar(Step("y", 1, 2))
    assert text.getvalue() == ""
