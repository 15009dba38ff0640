"""Staged hints: hints.md beside the exercise, one `## Level N` section per level."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autograder import progress
from autograder.course import Exercise
from autograder.errors import UsageError
from autograder.progress import Progress


def read(root: Path, exercise: Exercise) -> list[str]:
    """The text of each level, in order.

    Raises:
        UsageError: the exercise has no hints here.
    """
    for step in ("exercises", "solutions"):
        path = root / step / exercise.id / "hints.md"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        levels = [part.strip() for part in re.split(r"^## Level \d+[^\n]*$", text, flags=re.MULTILINE)[1:]]
        if levels:
            return levels
    raise UsageError(
        f"there are no hints for {exercise.id} ({root / 'exercises' / exercise.id / 'hints.md'})"
    )


def stub_todos(root: Path, exercise: str) -> set[int]:
    """The numbers of the TODO comments that the released kernel has, as far as hints and solution here tell."""
    numbers: set[int] = set()
    for path in (root / step / exercise for step in ("exercises", "solutions")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = (path / "hints.md").read_text(encoding="utf-8")
            numbers.update(*(_named(line) for line, code in lines(text) if not code))
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = (root / "solutions" / exercise / f"{exercise}.ipynb").read_text(encoding="utf-8")
        numbers.update(int(number) for number in re.findall(r"#\s*TODO (\d{1,3})\b", text))
    return set(range(1, max(numbers, default=0) + 1))


@dataclass(frozen=True)
class Hint:
    """A level of an exercise's hints. `chosen`: only the items that speak of what the last grade lost (`failing`)."""

    level: int
    levels: int
    text: str
    chosen: bool
    failing: tuple[str, ...] = ()


def choose(root: Path, exercise: Exercise, level: int | None, state: Progress, everything: bool) -> Hint:
    """The hint to show. level None: the highest that was seen.

    Raises:
        UsageError: there is no such level, or there are no hints.
    """
    levels = read(root, exercise)
    if level is None:
        level = max(1, min(state.hints.get(exercise.id, 0), len(levels)))
    if not 1 <= level <= len(levels):
        raise UsageError(
            f"{exercise.id} has {len(levels)} hint level{'s' if len(levels) != 1 else ''}, there is no {level}"
        )
    text, entry = levels[level - 1], state.reached.get(exercise.id)
    chosen = [] if everything or entry is None else about(text, entry.todo)
    failing = tuple(entry.failing) if entry is not None else ()
    return Hint(level, len(levels), "\n".join(chosen) or text, bool(chosen), failing)


def remember(root: Path, exercise: Exercise, level: int) -> None:
    """Record that a level was shown."""
    with progress.locked(root):
        state = progress.load(root)
        state.hints[exercise.id] = max(level, state.hints.get(exercise.id, 0))
        progress.save(root, state)


def about(text: str, todo: list[int]) -> list[str]:
    """The items of a level that speak of these TODOs, each as one line, in the order of `todo`; none where there are none."""
    items = [(line, _named(line)) for line, code in lines(text) if not code]
    return list(dict.fromkeys(line for number in todo for line, named in items if number in named))


def _named(line: str) -> set[int]:
    """`3. TODO 4 and 6: ...` -> {4, 6}; `TODO 1 to 3` -> {1, 2, 3}."""
    head = re.match(r"\s*\d+[.)]\s+TODOs? (\d+)(?:(?P<to> to (\d+))|(?P<more>(?:,? and |, )\d+)*)", line)
    if head is None:
        return set()
    numbers = [int(n) for n in re.findall(r"\d+", head[0].split("TODO", 1)[1])]
    return set(range(numbers[0], numbers[-1] + 1)) if head["to"] else set(numbers)


def lines(text: str) -> Iterator[tuple[str, bool]]:
    """(line, whether it belongs to a code block): each paragraph and list item as one long line, code as it stands."""
    code, pending = False, ""
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        if not (code or fence) and pending and line.strip() and not _BEGINS.match(line):
            pending += " " + line.strip()
            continue
        if pending:
            yield pending, False
            pending = ""
        if code or fence:
            yield line, True
            code ^= fence
        elif line.strip():
            pending = line.rstrip()
        else:
            yield "", False
    if pending:
        yield pending, False


_BEGINS = re.compile(
    r"\s*([-*+]|\d+[.)])\s|\s*[#|>]"
)  # of a list item, a heading, a row of a table, a quotation


def indent(line: str, code: bool) -> int:
    """Where a line goes on that is longer than the terminal is wide: below its text, in code below its second column."""
    if not code:
        return len(line) - len(line.lstrip(" -0123456789."))
    column = re.match(r"\s*(\S+( \S+)* {2,})?", line)
    return column.end() if column and column.end() <= 24 else len(line) - len(line.lstrip())
