"""Staged hints: hints.md beside the exercise, one `## Level N` section per level."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from autograder.course import Exercise
from autograder.errors import UsageError


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
