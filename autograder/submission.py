"""Find and extract what a learner wrote: the kernel cell and the answers, from a notebook, a .py file or a
cell's text.

Only text leaves this module; nothing of a submission is executed here. Line L of `Submission.source` is line
L of the cell or file that the learner sees, so every later message can point there.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autograder.errors import SubmissionError

if TYPE_CHECKING:
    from autograder.course import Exercise

MAX_FILE_BYTES = 50 << 20
MAX_SOURCE_BYTES = 1 << 20
MAX_QUOTED = 200
STUB = ("# YOUR CODE HERE", "pass")
BEGIN_SOLUTION, END_SOLUTION = "BEGIN SOLUTION", "END SOLUTION"

Answers = dict[str, Any]


@dataclass(frozen=True)
class Submission:
    """One immutable snapshot of a learner's work.

    Attributes:
        name: file name for messages, e.g. `exercise_05.ipynb`.
        source: text of the kernel cell or file.
        cell: number of the kernel cell in the notebook; None for a .py file, or where it is not known.
        grade_id: nbgrader's grade_id of the kernel cell, None for a .py file.
        answers: literal prediction answers; None stands for unanswered.
        answers_problem: why the answers cannot be read, empty when they can.
        untouched: the kernel is still the released stub.
    """

    name: str
    source: str
    cell: int | None = None
    grade_id: str | None = None
    path: Path | None = None
    answers: Answers = field(default_factory=dict)
    answers_problem: str = ""
    answers_cell: int | None = None
    untouched: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def kind(self) -> Literal["notebook", "file"]:
        return "file" if self.grade_id is None else "notebook"

    @property
    def place(self) -> str:
        """What the learner should open: `cell 7 ("kernel") of exercise_05.ipynb`, or the file's name."""
        if self.grade_id is None:
            return self.name
        which = f'cell {self.cell} ("{self.grade_id}")' if self.cell else f'the cell "{self.grade_id}"'
        return f"{which} of {self.name}"

    def line(self, number: int) -> str:
        """The text of a line of the source without its indentation, cut where it gets too long to be quoted."""
        lines = split_lines(self.source)
        text = lines[number - 1].strip() if 1 <= number <= len(lines) else ""
        return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + " ..."


def split_lines(text: str) -> list[str]:
    """Lines as Python's own tokenizer counts them (str.splitlines also splits at form feeds and U+2028)."""
    return re.split(r"\r\n|\r|\n", text)


def read_submission(path: Path, exercise: Exercise, released: str | None = None) -> Submission:
    """The submission in a notebook or .py file.

    released: text of the kernel cell as it was handed out, when known; it makes the stub recognisable for
        certain.

    Raises:
        SubmissionError: the file is missing, not a regular file, not readable, or not a notebook of this
            exercise.
    """
    suffix = path.suffix.lower()
    if suffix not in (".ipynb", ".py"):
        raise SubmissionError(f"{path}: give a notebook (.ipynb) or a Python file (.py)")
    raw = _read_bytes(path)
    if suffix == ".py":
        return _from_python(path, _decode(raw, path, "utf-8-sig"), released)
    return _from_notebook(path, _decode(raw, path, "utf-8-sig"), exercise, released)


def from_cell(
    source: str,
    name: str,
    cell: int | None,
    exercise: Exercise,
    answers: Answers,
    released: str | None = None,
) -> Submission:
    """The submission that a running notebook holds: the text of its kernel cell and its `answers`.

    Raises:
        SubmissionError: the text is too long or not encodable.
    """
    _check_source(source, name)
    return Submission(
        name=name,
        source=source,
        cell=cell,
        grade_id=exercise.cells.kernel,
        answers=answers,
        untouched=not source.strip() or is_untouched(source, released),
    )


def _from_python(path: Path, text: str, released: str | None) -> Submission:
    _check_source(text, str(path))
    if not text.strip():
        raise SubmissionError(f"{path}: is empty; write the builder into it first")
    answers, problem = read_answers(text)
    return Submission(
        name=path.name,
        source=text,
        path=path,
        answers=answers,
        answers_problem=problem,
        untouched=is_untouched(text, released),
    )


def _from_notebook(path: Path, text: str, exercise: Exercise, released: str | None) -> Submission:
    cells = notebook_cells(text, path)
    number, source = _only_cell(cells, exercise.cells.kernel, path)
    _check_source(source, str(path))
    answers: Answers = {}
    problem, answers_cell = "", None
    if exercise.cells.answers is not None:
        if any(cell_grade_id(cell) == exercise.cells.answers for cell in cells):
            answers_cell, answers_source = _only_cell(cells, exercise.cells.answers, path)
            answers, problem = read_answers(answers_source)
        else:
            problem = f'there is no cell with grade_id "{exercise.cells.answers}" any more'
    return Submission(
        name=path.name,
        source=source,
        cell=number,
        grade_id=exercise.cells.kernel,
        path=path,
        answers=answers,
        answers_problem=problem,
        answers_cell=answers_cell,
        untouched=is_untouched(source, released),
    )


def notebook_cells(text: str, path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook of format 4.

    Raises:
        SubmissionError: the text is empty, not JSON, or not such a notebook.
    """
    if not text.strip():
        raise SubmissionError(
            f"{path}: is empty; `autograde reset EXERCISE` brings the released notebook back"
        )
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise SubmissionError(
            f"{path}: is not a notebook, because it is not valid JSON ({where});"
            " `autograde reset EXERCISE` brings the released notebook back and keeps this file"
        ) from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(notebook, dict):
        raise SubmissionError(
            f"{path}: is JSON, but not a notebook; `autograde reset EXERCISE` brings it back"
        )
    if not isinstance(cells, list) or notebook.get("nbformat") != 4:
        raise SubmissionError(f"{path}: is not a notebook of format 4; open and save it once in JupyterLab")
    if not cells:
        raise SubmissionError(
            f"{path}: has no cells; `autograde reset EXERCISE` brings the released notebook back"
        )
    if not all(isinstance(cell, dict) for cell in cells):
        raise SubmissionError(f"{path}: holds something that is not a cell")
    return cells


def cell_grade_id(cell: dict[str, Any]) -> str | None:
    """nbgrader's grade_id of a cell, None where there is none."""
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    return grade_id if isinstance(grade_id, str) else None


def cell_source(cell: dict[str, Any]) -> str | None:
    """A cell's text (stored as one string or as a list of lines), None when it is neither."""
    source = cell.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        return "".join(source)
    return source if isinstance(source, str) else None


def _only_cell(cells: list[dict[str, Any]], grade_id: str, path: Path) -> tuple[int, str]:
    """(1-based position, text) of the one cell with this grade_id."""
    found = [number for number, cell in enumerate(cells, 1) if cell_grade_id(cell) == grade_id]
    if not found:
        raise SubmissionError(
            f'{path}: has no cell with grade_id "{grade_id}"; `autograde reset EXERCISE` brings the notebook back'
        )
    if len(found) > 1:
        places = " and ".join(str(number) for number in found)
        raise SubmissionError(
            f'{path}: cells {places} have the same grade_id "{grade_id}"; delete the copy that must not count'
        )
    if cells[found[0] - 1].get("cell_type") != "code":
        raise SubmissionError(f"{path}: cell {found[0]} is not a code cell; change its type back to code")
    source = cell_source(cells[found[0] - 1])
    if source is None:
        raise SubmissionError(f"{path}: cell {found[0]} has no text")
    return found[0], source


def _read_bytes(path: Path) -> bytes:
    """The content of a regular file; never blocks on a pipe or device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise SubmissionError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise SubmissionError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise SubmissionError(f"{path}: is not a regular file")
        if state.st_size > MAX_FILE_BYTES:
            raise SubmissionError(f"{path}: is larger than {MAX_FILE_BYTES >> 20} MiB; clear its outputs")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SubmissionError(f"{path}: cannot be read ({error.strerror or error})") from None
    finally:
        os.close(descriptor)


def _decode(raw: bytes, path: Path, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise SubmissionError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _check_source(source: str, name: str) -> None:
    try:
        size = len(source.encode())
    except UnicodeEncodeError as error:
        raise SubmissionError(f"{name}: character {error.start} of the kernel is not valid Unicode") from None
    if size > MAX_SOURCE_BYTES:
        raise SubmissionError(f"{name}: the kernel is longer than {MAX_SOURCE_BYTES >> 20} MiB")


def syntax_problem(source: str) -> tuple[int, str] | None:
    """(line, message) of the first syntax error, or None. Parses, never runs."""
    try:
        compile(source, "kernel.py", "exec", dont_inherit=True, flags=ast.PyCF_ONLY_AST)
    except SyntaxError as error:
        line = error.lineno or 1
        lines = split_lines(source)
        text = lines[line - 1].lstrip() if line <= len(lines) else ""
        if text[:1] in ("%", "!"):
            return line, "only plain Python is graded; move IPython commands (% and !) into another cell"
        return line, error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return 1, str(error) or "the code is nested too deeply"
    return None


# The stub ---------------------------------------------------------------------------------------


def strip_solution(source: str) -> str:
    """The text with each solution region replaced by the stub, as nbgrader does it on release."""
    result: list[str] = []
    inside = False
    for line in source.split("\n"):
        if BEGIN_SOLUTION in line:
            inside = True
            indent = line[: len(line) - len(line.lstrip())]
            result += [indent + stub for stub in STUB]
        elif END_SOLUTION in line:
            inside = False
        elif not inside:
            result.append(line)
    return "\n".join(result)


def released_kernel(root: Path, exercise: Exercise) -> str | None:
    """The kernel cell as handed out, derived from the solution; None when there is none here."""
    path = root / "solutions" / exercise.id / exercise.notebook
    if not path.is_file():
        return None
    try:
        cells = notebook_cells(_decode(_read_bytes(path), path, "utf-8"), path)
        return strip_solution(_only_cell(cells, exercise.cells.kernel, path)[1])
    except SubmissionError:
        return None


def is_untouched(source: str, released: str | None) -> bool:
    """Whether the kernel is still the released stub, up to comments and layout.

    Without the released text, as many of the stub's two lines, standing together, as there are numbered TODOs
    decide: who has filled in one of several places has begun.
    """
    if released is not None:
        try:
            return _same_program(source, released)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    lines = [line.strip() for line in split_lines(source)]
    stubs = sum(tuple(lines[i : i + 2]) == STUB for i in range(len(lines) - 1))
    places = max((int(number) for number in re.findall(r"# TODO (\d{1,3})\b", source)), default=1)
    return stubs >= max(places, 1)


def _same_program(first: str, second: str) -> bool:
    return first == second or ast.dump(ast.parse(first)) == ast.dump(ast.parse(second))


# Answers ----------------------------------------------------------------------------------------


def read_answers(source: str) -> tuple[Answers, str]:
    """(`answers` as written, problem) from text that assigns `answers = {...}` and perhaps `answers["q1"] =
    ...`.

    The values are read, not run: numbers, text, and arithmetic on numbers. `...` and None stand for
        unanswered.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        return {}, f"line {line}: {getattr(error, 'msg', error)}" if line else str(error)
    answers: Answers = {}
    problems: list[str] = []
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            _assign(answers, target, statement.value, problems)
    return answers, "; ".join(problems[:3])


class _NotLiteral(Exception):
    """An answer is not a plain value."""


def _assign(answers: Answers, target: ast.expr, value: ast.expr, problems: list[str]) -> None:
    """Take over what can be read of one assignment; the rest counts as unanswered and is told in `problems`."""
    if isinstance(target, ast.Name) and target.id == "answers":
        if not isinstance(value, ast.Dict):
            problems.append(f"line {value.lineno}: answers must be a dict such as {{'q1': 128}}")
            return
        answers.clear()
        for key, entry in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                answers[key.value] = _readable(entry, problems)
            else:
                problems.append(f"line {value.lineno}: the keys of answers are question names such as 'q1'")
    elif (
        isinstance(target, ast.Subscript)
        and isinstance(target.value, ast.Name)
        and target.value.id == "answers"
        and isinstance(target.slice, ast.Constant)
        and isinstance(target.slice.value, str)
    ):
        answers[target.slice.value] = _readable(value, problems)


def _readable(node: ast.expr, problems: list[str]) -> Any:
    try:
        return _value(node)
    except _NotLiteral as error:
        problems.append(str(error))
        return None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        if node.value is None or node.value is Ellipsis:
            return None
        if isinstance(node.value, int | float | str) and len(str(node.value)) <= 1000:
            return node.value
    elif isinstance(node, ast.UnaryOp | ast.BinOp):
        number = _number(node)
        if number is not None:
            return number
    raise _NotLiteral(
        f"line {node.lineno}: write the answer as a number or text, '{ast.unparse(node)[:60]}' is neither"
    )


def _number(node: ast.expr) -> int | float | None:
    """Arithmetic on numbers, with bounds that keep it instant; None for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value: int | float = node.value  # type: ignore[assignment]
        return value if abs(value) < 1e18 else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _number(node.operand)
        return None if inner is None else (-inner if isinstance(node.op, ast.USub) else inner)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None:
        return None
    try:
        match node.op:
            case ast.Add():
                result: int | float = left + right
            case ast.Sub():
                result = left - right
            case ast.Mult():
                result = left * right
            case ast.Div():
                result = left / right
            case ast.FloorDiv():
                result = left // right
            case ast.Mod():
                result = left % right
            case ast.BitXor() if isinstance(left, int) and isinstance(right, int):
                result = left ^ right
            case ast.BitAnd() if isinstance(left, int) and isinstance(right, int):
                result = left & right
            case ast.BitOr() if isinstance(left, int) and isinstance(right, int):
                result = left | right
            case ast.LShift() if isinstance(left, int) and isinstance(right, int) and 0 <= right <= 64:
                result = left << right
            case ast.RShift() if isinstance(left, int) and isinstance(right, int) and 0 <= right <= 64:
                result = left >> right
            case ast.Pow() if abs(left) <= 1 << 20 and 0 <= right <= 64:
                result = left**right
            case _:
                return None
    except (ArithmeticError, ValueError):
        return None
    return result if abs(result) < 1e18 else None
