"""What can be seen in the course's files without running anything: notebooks, hints, questions, bounds, links, open TODOs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autograder.amounts import evaluate
from autograder.answers import digest
from autograder.check_course.links import dead_links
from autograder.check_course.model import Fault
from autograder.course import Course, Exercise
from autograder.course_folder import COURSE_FILE
from autograder.errors import SubmissionError
from autograder.submission import cell_grade_id, cell_source, notebook_cells, read_answers

TODO = "TODO(author)"
FEWEST_MUTANTS = 8
FEWEST_WORDS = 4  # of a picture's description
_LEVELS = ["Level 1", "Level 2", "Level 3"]


def examine_exercise(root: Path, exercise: Exercise) -> Iterator[Fault]:
    """The faults of one exercise's files, in a moment."""
    folder = root / "solutions" / exercise.id
    path = folder / exercise.notebook
    try:
        cells = notebook_cells(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError):
        yield Fault(exercise.id, "notebook", f"{path.relative_to(root)} cannot be read")
        return
    except SubmissionError as error:
        yield Fault(exercise.id, "notebook", str(error))
        return
    marked = {str(cell_grade_id(cell)): cell for cell in cells if cell_grade_id(cell)}
    for kind, texts in (
        ("notebook", _notebook(exercise, cells, marked)),
        ("notebook", _left_overs(folder, cells)),
        ("questions", _questions(exercise, cells, marked)),
        ("hints", _hints(folder)),
        ("thresholds", _bounds(exercise)),
        ("links", _links(folder, path, cells)),
        ("todo", _todos(root, exercise)),
    ):
        for text in texts:
            yield Fault(exercise.id, kind, text)


def examine_course_files(root: Path, course: Course) -> Iterator[Fault]:
    """The faults of what belongs to no exercise."""
    ids = {exercise.id for exercise in course.exercises}
    for step in ("solutions", "exercises"):
        folders = sorted((root / step).iterdir()) if (root / step).is_dir() else []
        for folder in folders:
            if folder.is_dir() and folder.name.startswith("exercise_") and folder.name not in ids:
                yield Fault("", "course.yaml", f"{step}/{folder.name} is no exercise of {COURSE_FILE}")
    documents = [*root.glob("*.md"), *(root / "docs").glob("*.md")]
    for path in sorted(documents):
        for text in dead_links(path, path.read_text(encoding="utf-8")):
            yield Fault("", "links", f"{path.relative_to(root)}: {text}")


def _metadata(cell: dict[str, Any]) -> dict[str, Any]:
    found = cell.get("metadata", {}).get("nbgrader", {})
    return found if isinstance(found, dict) else {}


def _notebook(
    exercise: Exercise, cells: list[dict[str, Any]], marked: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Scored cells are the checks of course.yaml, and solution cells those that it names."""
    scored = [i for i, cell in marked.items() if _metadata(cell).get("grade")]
    checks = [str(check.id) for check in exercise.checks]
    if scored != checks:
        yield f"its scored cells are {', '.join(scored) or 'none'}; the checks of {COURSE_FILE} are {', '.join(checks)}"
    for check in exercise.checks:
        cell = marked.get(str(check.id))
        if cell is None:
            continue
        last = (cell_source(cell) or "").rstrip().split("\n")[-1]
        wanted = f'check("{exercise.id}", "{check.id}")'
        if last != wanted:
            yield f"the scored cell {check.id} does not end in {wanted}"
        if not _metadata(cell).get("locked"):
            yield f"the scored cell {check.id} is not locked"
    named = {name for name in (exercise.cells.kernel, exercise.cells.answers) if name}
    solved = {i for i, cell in marked.items() if _metadata(cell).get("solution")}
    for name in sorted(named - solved):
        yield f"it has no solution cell {name}, which {COURSE_FILE} names"
    for name in sorted(solved - named):
        yield f"{COURSE_FILE} does not name its solution cell {name}"


def _left_overs(folder: Path, cells: list[dict[str, Any]]) -> Iterator[str]:
    """What an editor leaves behind, and what nbgrader would hand out with its solutions."""
    for number, cell in enumerate(cells, 1):
        if cell.get("outputs") or cell.get("execution_count") is not None:
            yield f"cell {number} has outputs; clear them"
        source = cell_source(cell) or ""
        if source != source.rstrip():
            yield f"cell {number} ends in blanks or an empty line, which breaks nbgrader's checksums"
    for path in sorted(folder.rglob("*.py")):
        yield f"{path.relative_to(folder.parent.parent)} would be handed out with its solutions; remove it"


def _questions(
    exercise: Exercise, cells: list[dict[str, Any]], marked: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """The lesson asks what course.yaml asks, and the solution's answers are the right ones."""
    lesson = "\n".join(cell_source(cell) or "" for cell in cells if cell.get("cell_type") == "markdown")
    own = marked.get(exercise.cells.answers or "", {})
    answers, problem = read_answers(cell_source(own) or "")
    if problem:
        yield f"the solution's answers cannot be read ({problem})"
    for question in exercise.questions:
        if question.prompt not in lesson:
            yield f"{question.id}: the notebook does not ask it in the words of {COURSE_FILE}"
        answer = answers.get(question.id)
        if answer is None:
            yield f"{question.id}: the solution does not answer it"
        elif digest(exercise.id, question.id, answer) != question.answer:
            yield (
                f"{question.id}: the solution's answer {answer!r} is not the one whose digest {COURSE_FILE} holds;"
                f" `python -m autograder.answers {exercise.id} {question.id} ANSWER` prints it"
            )


def _hints(folder: Path) -> Iterator[str]:
    path = folder / "hints.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    levels = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    if levels != _LEVELS:
        yield f"hints.md has {'the headings ' + ', '.join(levels) if levels else 'no heading'}; it needs {', '.join(_LEVELS)}"
    if not (folder / "instructor_notes.md").is_file():
        yield "there is no instructor_notes.md"


def _bounds(exercise: Exercise) -> Iterator[str]:
    """At every problem size a lower bound lies below the upper bound of the same counter."""
    for check in exercise.checks:
        for name in check.at_least.keys() & check.at_most.keys():
            for kernel in exercise.kernels:
                params = kernel.builder.params
                least, most = evaluate(check.at_least[name], params), evaluate(check.at_most[name], params)
                if least > most:
                    yield f"{check.id}, {name}: at_least is {least:g} and at_most {most:g}"
                    break


def _links(folder: Path, path: Path, cells: list[dict[str, Any]]) -> Iterator[str]:
    lesson = "\n\n".join(cell_source(cell) or "" for cell in cells if cell.get("cell_type") == "markdown")
    yield from (f"{path.name}: {text}" for text in dead_links(path, lesson))
    for description, target in re.findall(r"!\[(.*?)\]\((.*?)\)", lesson, flags=re.DOTALL):
        if len(description.split()) < FEWEST_WORDS:
            yield f"{path.name}: the picture {target} has no description for those who cannot see it"
    for other in sorted(folder.glob("*.md")):
        yield from (f"{other.name}: {text}" for text in dead_links(other, other.read_text(encoding="utf-8")))


def _todos(root: Path, exercise: Exercise) -> Iterator[str]:
    """What an author has still to do, see `autograde new-exercise`."""
    folder = root / "solutions" / exercise.id
    mutants = root / "tests" / "mutants" / exercise.id
    texts = [*sorted(folder.glob("*.md")), folder / exercise.notebook, *sorted(mutants.glob("*.py"))]
    for path in texts:
        yield from _todos_in(path.read_text(encoding="utf-8"), str(path.relative_to(root)))
    block = re.search(
        rf"(?ms)^  - id: {exercise.id}$.*?(?=^  - id: |\Z)",
        (root / COURSE_FILE).read_text(encoding="utf-8"),
    )
    yield from _todos_in(block[0] if block else "", COURSE_FILE)
    count = len(list(mutants.glob("*.py")))
    if count < FEWEST_MUTANTS:
        yield f"tests/mutants/{exercise.id} has {count} mutant{'s' if count != 1 else ''}; an exercise needs {FEWEST_MUTANTS}"


def _todos_in(text: str, where: str) -> Iterator[str]:
    for line in text.split("\n"):
        before, marker, after = line.partition(TODO)
        if marker:
            words = after.lstrip(": ").rstrip('\\n",')
            yield f"{where}: {words or before.strip()}"
