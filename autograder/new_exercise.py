"""`autograde new-exercise`: a small exercise that works, with a TODO at everything that its author has to replace.

The kernel doubles a matrix, one element per thread. It is there so that the author starts from something that builds, is
graded, and passes `autograde check-course` but for its TODOs.
"""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from autograder import release
from autograder.answers import digest
from autograder.check_course.files import TODO
from autograder.course import Course, parse_course
from autograder.course_folder import COURSE_FILE
from autograder.errors import UsageError
from autograder.files import write_text

ANSWER = 7  # CTAs of 128 threads for 8 x 100 elements

BLOCK = """\
  - id: {id}
    title: {title}
    teaches: "{todo}: what it teaches, in one line"
    notebook: {id}.ipynb
    cells: {{kernel: kernel, answers: answers}}
    arch: sm_100a

    # {todo}: the function that learners write, its parameters, and the buffers of the kernel that it returns, in order.
    builder:
      name: build_kernel
      params: {{M: 8, N: 100}}
    tensors:
      - {{name: A, role: input, dtype: float16, shape: [M, N]}}
      - {{name: D, role: output, dtype: float16, shape: [M, N]}}

    # {todo}: what is right (autograder/oracles/), and how far an output may be from it, with the reason.
    oracle: double
    tolerance:
      kind: correctly_rounded

    # {todo}: inputs that each show another mistake; sizes that are no multiple of anything.
    cases:
      - {{id: distinct, title: all values different, inputs: distinct, schedule: late, quick: true}}
      - {{id: random, title: random values, inputs: normal, schedule: random}}

    # {todo}: checks and points.
    checks:
      - id: predictions
        title: Predictions
        points: 10
        looks_at: your answers, written down before the kernel runs
      - id: build
        title: Build
        points: 10
        looks_at: build_kernel returns a PrimFunc with the right buffers, and TVM lowers it
      - id: correctness
        title: Correctness
        points: 60
        looks_at: D against PyTorch for every case, each element exactly
      - id: synchronization
        title: Memory and races
        points: 10
        looks_at: findings of the emulator - accesses outside of a tensor, and two threads that write one element
      - id: resources
        title: Resources
        points: 10
        looks_at: what one CTA occupies
        at_most:
          threads_per_cta: 128

    # {todo}: two or three questions. `python -m autograder.answers {id} QUESTION ANSWER` prints the digest.
    questions:
      - id: q1
        points: 10
        kind: integer
        prompt: {question}
        answer: {answer}
"""
QUESTION = "A CTA has 128 threads, and each has one element. How many CTAs does an 8 x 100 matrix need?"

KERNEL = '''\
from tvm.script import tirx as T

THREADS = 128  # per CTA


def build_kernel(M, N):
    """D = 2 A for A and D (M, N), float16; one element per thread."""
    ctas = (M * N + THREADS - 1) // THREADS

    @T.prim_func
    def double(A: T.Buffer((M, N), "float16"), D: T.Buffer((M, N), "float16")):
        T.device_entry()
        cta = T.cta_id([ctas])
        thread = T.thread_id([THREADS])
        i = cta * THREADS + thread  # the last CTA has threads without an element
        # TODO 1: this thread's element of D, if it has one.
        # BEGIN SOLUTION
        if i < M * N:
            D[i // N, i % N] = A[i // N, i % N] * T.float16(2)
        # END SOLUTION

    return double'''

RIGHT = "A[i // N, i % N] * T.float16(2)"
WRONG = "A[i // N, i % N] * T.float16(3)"

HINTS = """\
# Hints for {spoken}

## Level 1

{todo}: point the way: the question that the learner should ask.

## Level 2

{todo}: say for each TODO of the kernel what belongs there.

## Level 3

{todo}: the outline of the whole kernel, without a line of the solution.
"""

NOTES = """\
# {Spoken}, for instructors (never released)

{todo}: what it teaches, in the order in which learners get stuck; what the solution does differently from kernels in the wild.

## Answers

q1: 7 (800 elements, 128 to a CTA).
"""


def create(root: Path, course: Course, number: int, title: str) -> list[str]:
    """Write the exercise; the paths of what was written, relative to the course folder.

    Raises:
        UsageError: the number is taken, or the title cannot stand in course.yaml.
    """
    name = f"exercise_{number:02d}"
    if not 1 <= number <= 99:
        raise UsageError(f"an exercise has a number from 1 to 99, not {number}")
    taken = [e.id for e in course.exercises if e.id == name]
    taken += [str(p.relative_to(root)) for p in _folders(root, name) if p.exists()]
    if taken:
        raise UsageError(f"{taken[0]} exists already; choose another number")
    if not title.strip() or not title.isprintable():
        raise UsageError("the title of an exercise is a few printable words")
    text = _with_block(root, name, title.strip())
    folder, _, mutants = _folders(root, name)
    spoken = name.replace("_", " ")
    files = {
        folder / f"{name}.ipynb": json.dumps(_notebook(name, title.strip()), indent=1, ensure_ascii=False)
        + "\n",
        folder / "hints.md": HINTS.format(spoken=spoken, todo=TODO),
        folder / "instructor_notes.md": NOTES.format(Spoken=spoken.capitalize(), todo=TODO),
        mutants / "three_times.py": _mutant(),
        root / COURSE_FILE: text,
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, content)
    written = [str(path.relative_to(root)) for path in files]
    if importlib.util.find_spec("nbgrader") is not None and (root / release.CONFIG).is_file():
        with tempfile.TemporaryDirectory() as fresh:
            release.generate(root, [name], Path(fresh))
            release.refresh(root, Path(fresh), name)
        written.append(f"exercises/{name}")
    return written


def _folders(root: Path, name: str) -> tuple[Path, Path, Path]:
    return root / "solutions" / name, root / "exercises" / name, root / "tests" / "mutants" / name


def _with_block(root: Path, name: str, title: str) -> str:
    """course.yaml with the block of the new exercise, in the order of numbers."""
    text = (root / COURSE_FILE).read_text(encoding="utf-8")
    head, *blocks = re.split(r"(?m)^(?=  - id: exercise_)", text)
    block = BLOCK.format(
        id=name,
        title=json.dumps(title, ensure_ascii=False),
        todo=TODO,
        question=json.dumps(QUESTION),
        answer=digest(name, "q1", ANSWER),
    )
    before = [b for b in blocks if b.split()[2] < name]
    after = blocks[len(before) :]
    if before:
        before[-1] = before[-1].rstrip("\n") + "\n\n"
    whole = head + "".join(before) + block + ("\n" if after else "") + "".join(after)
    parse_course(whole)  # a title may break the file; better now than when it is read
    return whole


def _notebook(name: str, title: str) -> dict[str, Any]:
    number = name.rpartition("_")[2]
    cells = [
        _text(
            "lesson",
            f"# Exercise {number}: {title}\n\n{TODO}: the lesson, 600 to 1,500 words with figures: what the learner will write,"
            " why it is done so on this GPU, and every word that the checks use.",
        ),
        _text(
            "predict",
            f"## Predict\n\nReplace `None` by an integer before you run anything.\n\n- **q1** {QUESTION}",
        ),
        _code(
            "answers",
            'answers = {\n    "q1": None,  # CTAs\n}\n# BEGIN SOLUTION\nanswers = {\n    "q1": -(-8 * 100 // 128),\n}\n# END SOLUTION',
            solution=True,
        ),
        _scored(name, "predictions", 10),
        _text(
            "task",
            f"## Write the kernel\n\n{TODO}: what is given, what is missing, and a table of the TIRx and PTX that is needed.\n\n"
            f"Stuck? `autograde hint {name}` gives the first of three hints.",
        ),
        _code("kernel", KERNEL, solution=True),
        _text(
            "try",
            f"## Grade it\n\nThe next cell gives the full report, and so does `autograde {name}` in a terminal.",
        ),
        _cell("report", "code", f'from autograder import check\n\ncheck("{name}")', None),
        _text(
            "scored", "## Scored checks\n\nEach of these cells shows the part of the report that it scores."
        ),
        *(_scored(name, check, points) for check, points in _SCORED.items()),
        _text("after", f"## When it passes\n\n{TODO}: what to break on purpose, and what comes next."),
    ]
    kernelspec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernelspec, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


_SCORED = {"build": 10, "correctness": 60, "synchronization": 10, "resources": 10}


def _text(name: str, source: str) -> dict[str, Any]:
    return _cell(name, "markdown", source, _marks(name, locked=True))


def _code(name: str, source: str, solution: bool) -> dict[str, Any]:
    return _cell(name, "code", source, _marks(name, solution=solution))


def _scored(exercise: str, check: str, points: int) -> dict[str, Any]:
    source = f'from autograder import check\n\ncheck("{exercise}", "{check}")'
    return _cell(check, "code", source, {**_marks(check, locked=True, grade=True), "points": points})


def _marks(name: str, locked: bool = False, grade: bool = False, solution: bool = False) -> dict[str, Any]:
    """nbgrader's metadata, schema version 3."""
    flags = {"grade": grade, "locked": locked, "solution": solution, "task": False}
    return {"grade_id": name, "schema_version": 3, **flags}


def _cell(name: str, kind: str, source: str, marks: dict[str, Any] | None) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": name,
        "metadata": {"nbgrader": marks} if marks else {},
        "source": source.splitlines(keepends=True),
    }
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _mutant() -> str:
    """The solution with another factor."""
    lines = [line for line in KERNEL.split("\n") if "SOLUTION" not in line and "# TODO" not in line]
    source = "\n".join(
        f"{line.replace(RIGHT, WRONG)}  # <- here" if RIGHT in line else line for line in lines
    )
    return f"# mutant: every element three times\n# check: correctness\n# finding: -\n{source}\n"
