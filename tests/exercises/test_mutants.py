"""Every mutant is the solution with one mistake, and gets the diagnosis that its header promises."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

COURSE = Path(__file__).resolve().parents[2]
MOST_CHANGED_LINES = 12
REWRITTEN = {"no_tensor_core"}  # solves the task by other means, so it is no small change
MUTANTS = sorted((COURSE / "tests" / "mutants").glob("*/*.py"))


@dataclass(frozen=True)
class Mutant:
    """A broken kernel and what its header promises. `line` is the one that ends in `# <- here`."""

    path: Path
    what: str
    check: str
    finding: str | None
    line: int

    @property
    def exercise(self) -> str:
        return self.path.parent.name


def read(path: Path) -> Mutant:
    text = path.read_text(encoding="utf-8")
    header = dict(re.findall(r"^# (mutant|check|finding): (.+)$", text, flags=re.M))
    marked = [number for number, line in enumerate(text.split("\n"), 1) if line.endswith("# <- here")]
    assert set(header) == {"mutant", "check", "finding"}, f"{path.name}: the header is not complete"
    assert len(marked) == 1, f"{path.name}: one line ends in '# <- here'"
    finding = None if header["finding"] == "-" else header["finding"]
    return Mutant(path, header["mutant"], header["check"], finding, marked[0])


@pytest.fixture(params=MUTANTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def mutant(request: pytest.FixtureRequest) -> Mutant:
    return read(request.param)


def block(exercise: str) -> dict[str, Any]:
    """The exercise's block in course.yaml."""
    content = yaml.safe_load((COURSE / "course.yaml").read_text(encoding="utf-8"))
    return next(e for e in content["exercises"] if e["id"] == exercise)


def test_there_are_enough() -> None:
    assert len([p for p in MUTANTS if p.parent.name == "exercise_05"]) >= 14


def test_mutant_is_the_solution_with_one_mistake(mutant: Mutant, solution_cell: Callable[[str], str]) -> None:
    """Comments and layout aside, a mutant differs in a few lines, so it cannot fall behind the solution."""
    assert mutant.check in {check["id"] for check in block(mutant.exercise)["checks"]}
    if mutant.path.stem in REWRITTEN:
        return
    solution = ast.unparse(ast.parse(solution_cell(mutant.exercise))).split("\n")
    changed = ast.unparse(ast.parse(mutant.path.read_text(encoding="utf-8"))).split("\n")
    difference = [line for line in difflib.ndiff(solution, changed) if line[:1] in "+-"]
    assert 1 <= len(difference) <= MOST_CHANGED_LINES
