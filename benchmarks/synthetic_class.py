"""A class that nobody taught: submissions of one exercise, each with its own text, in nbgrader's folders.

`kernels` of them build and run a kernel, the solution or one of the mutants, as good and as wrong as in a real class; a grade
of these takes seconds. The others are what a class also hands in, and cost next to nothing: stubs, syntax errors, files that
are no notebook.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from autograder.course import Exercise
from autograder.submission import cell_grade_id

RIGHT = 0.5  # share of the kernels that are the solution
SYNTAX = "def build_kernel(*sizes):\n    return (\n"


def write_class(
    root: Path, exercise: Exercise, into: Path, count: int, kernels: int, seed: int = 1
) -> dict[str, str]:
    """Write `count` submissions into the folder `into`; student -> what was handed in.

    root: the course folder. The same seed gives the same class.
    """
    chance = random.Random(seed)
    released = json.loads((root / "exercises" / exercise.id / exercise.notebook).read_text(encoding="utf-8"))
    source = json.loads((root / "solutions" / exercise.id / exercise.notebook).read_text(encoding="utf-8"))
    texts = {cell_grade_id(cell): "".join(cell["source"]) for cell in source["cells"]}
    answers = texts[exercise.cells.answers or exercise.cells.kernel]
    mutants = sorted((root / "tests" / "mutants" / exercise.id).glob("*.py"))
    kinds = ["kernel"] * kernels + chance.choices(
        ["stub", "syntax", "no notebook"], [3, 5, 1], k=count - kernels
    )
    chance.shuffle(kinds)
    written = {}
    for number, kind in enumerate(kinds):
        student = f"s{number:04d}"
        path = into / student / exercise.id / exercise.notebook
        path.parent.mkdir(parents=True)
        own = f"\n# {student}\n"
        if kind == "no notebook":
            path.write_text(f"{{ {student}", encoding="utf-8")
        elif kind == "kernel":
            wrong = chance.choice(mutants)
            kind = "solution" if chance.random() < RIGHT else wrong.stem
            kernel = texts[exercise.cells.kernel] if kind == "solution" else wrong.read_text(encoding="utf-8")
            path.write_text(_notebook(released, exercise, kernel + own, answers), encoding="utf-8")
        else:
            stub = next(
                "".join(c["source"]) for c in released["cells"] if cell_grade_id(c) == exercise.cells.kernel
            )
            kernel = (stub if kind == "stub" else SYNTAX) + own
            path.write_text(_notebook(released, exercise, kernel, None), encoding="utf-8")
        written[student] = kind
    return written


def _notebook(released: dict[str, Any], exercise: Exercise, kernel: str, answers: str | None) -> str:
    """The released notebook with these texts in the learner's cells."""
    texts = {exercise.cells.kernel: kernel, exercise.cells.answers: answers}
    cells = [
        {**cell, "source": texts[name]} if (name := cell_grade_id(cell)) in texts and texts[name] else cell
        for cell in released["cells"]
    ]
    return json.dumps({**released, "cells": cells})
