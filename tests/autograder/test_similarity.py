"""Copies are found however they are dressed up; what everyone was given counts for nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from autograder import similarity
from autograder.class_folder import find_submissions
from autograder.cli import cli
from autograder.course import load_course
from autograder.errors import UsageError

COURSE = Path(__file__).resolve().parents[2]
MUTANTS = COURSE / "tests" / "mutants"
SOURCE = (
    MUTANTS / "exercise_08" / sorted(p.name for p in (MUTANTS / "exercise_08").glob("*.py"))[0]
).read_text()


OWN = "\n".join(
    f"def step_{i}(a, b):\n    for k in range({i}, a + {i}):\n        b[k + {i}] = a[{i} + k] + {i} + k"
    for i in range(30)
)
OTHER = "\n".join(
    f"class Part{i}:\n    def total(self):\n        while self.left > {i}:\n            self.left -= sum(x**2 for x in self.rows[{i}:])\n        return [self.left, {i}]"
    for i in range(6)
)


def renamed(source: str) -> str:
    """The same kernel with other names for everything that it binds to a value, and with other comments and blank lines."""
    names = set(re.findall(r"^\s+(\w+) = ", source, re.MULTILINE))
    for name in names:
        source = re.sub(rf"(?<![\w.]){name}\b(?!=)", f"my_{name}", source)
    return "# my own work\n\n" + source.replace("\n\n", "\n\n    # thought about this\n\n")


def test_renamed_and_reformatted_is_the_same() -> None:
    copy = renamed(SOURCE)
    assert copy != SOURCE
    found = similarity.pairs([similarity.read("a", SOURCE), similarity.read("b", copy)])
    assert found[0].share > 0.95


def test_other_work_is_not_the_same() -> None:
    other = (MUTANTS / "exercise_01").glob("*.py")
    kernels = [similarity.read("a", SOURCE), similarity.read("b", sorted(other)[0].read_text())]
    assert similarity.pairs(kernels)[0].share < 0.1


def test_what_everyone_was_given_does_not_count() -> None:
    first, second = (f"{SOURCE}\n{work}" for work in (OWN, OTHER))
    plain = similarity.pairs([similarity.read("a", first), similarity.read("b", second)])[0]
    fair = similarity.pairs([similarity.read("a", first, [SOURCE]), similarity.read("b", second, [SOURCE])])[
        0
    ]
    assert plain.share > 0.5
    assert fair.share < 0.1


def test_a_passage_in_the_middle_is_found() -> None:
    passage = "\n".join(SOURCE.split("\n")[SOURCE[: SOURCE.index("def build_kernel")].count("\n") :])
    mixed = f"{OTHER}\n{renamed(passage)}\n{OWN}"
    pair = similarity.pairs([similarity.read("a", SOURCE), similarity.read("b", mixed)])[0]
    begin, end = OTHER.count("\n"), mixed.count("\n") - OWN.count("\n")
    assert pair.share > 0.4
    assert all(begin <= line <= end + 1 for line in pair.second_lines)


@pytest.mark.parametrize("source", ["def f(:", "\0", "x = '", "(" * 5000, ""])
def test_what_is_no_kernel_is_named_and_stops_nobody(source: str) -> None:
    kernels = [similarity.read("bad", source), similarity.read("a", SOURCE), similarity.read("b", SOURCE)]
    assert kernels[0].problem
    assert [(p.first.name, p.second.name) for p in similarity.pairs(kernels)] == [("a", "b")]
    assert "bad" in similarity.as_text("t", kernels, similarity.pairs(kernels), 0.5)


def test_names_and_code_are_escaped() -> None:
    kernels = [similarity.read("<script>a", SOURCE), similarity.read("b", SOURCE + "\n# <script>")]
    html = similarity.as_html("<script>", kernels, similarity.pairs(kernels), 0.5)
    assert "<script>" not in html


def test_the_folders_of_a_class(tmp_path: Path) -> None:
    course = load_course(COURSE)
    for name in (
        "ann/exercise_08/exercise_08.py",
        "bob_exercise_08.py",
        "exercise_08_cy_attempt_2.py",
        "notes.py",
        "dan-08.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE)
    found = find_submissions(tmp_path, course)
    assert [(h.student, h.exercise.id) for h in found] == [
        (s, "exercise_08") for s in ("ann", "bob", "cy", "dan")
    ]
    with pytest.raises(UsageError, match="no such folder"):
        find_submissions(tmp_path / "none", course)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no submission found"):
        find_submissions(tmp_path / "empty", course)


def test_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "ann_08.py").write_text(SOURCE)
    (folder / "bob_08.py").write_text(renamed(SOURCE))
    (folder / "cy_08.py").write_text("def broken(:")
    page = tmp_path / "similar.html"
    done = CliRunner().invoke(cli, ["similarity", str(folder), "--html", str(page), "--course", str(COURSE)])
    assert done.exit_code == 0, done.output
    assert re.search(r"\d+%  ann and bob", done.output) and "cy is not Python" in done.output
    assert "ann and bob" in page.read_text()
