"""What several files of the `autograde` command share: the course, the exercise, and lines that fit the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autograder.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from autograder.course import Course, Exercise


def course_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--course FOLDER`, as the parameter `folder`."""
    return click.option(
        "--course",
        "folder",
        type=click.Path(path_type=Path),
        help="Course folder (default: found from here upwards).",
    )(function)


def course_root(folder: Path | None) -> Path:
    """The course's folder: the given one, or the one found from here upwards."""
    from autograder.course_folder import find_course_root

    return folder if folder is not None else find_course_root(Path())


def open_course(folder: Path | None) -> tuple[Path, Course]:
    """The course's folder and the course."""
    from autograder.course import load_course

    root = course_root(folder)
    return root, load_course(root)


def find_exercise(course: Course, spelled: str) -> Exercise:
    """The exercise, or an error that also considers a mistyped command, and a path."""
    if Path(spelled).suffix.lower() in (".ipynb", ".py"):
        known = [e.id for e in course.exercises if e.id in (*Path(spelled).parts, Path(spelled).stem)]
        name = known[0] if known else "EXERCISE"
        raise UsageError(
            f"{spelled} is a file: `autograde {name}` grades your notebook, and"
            f" `autograde {name} --file {spelled}` this file"
        )
    try:
        return course.find(spelled)
    except UsageError:
        context = click.get_current_context(silent=True)
        group = context.find_root().command if context is not None else None
        commands = [name for name in getattr(group, "commands", {}) if name != "grade"]
        near = did_you_mean(spelled, commands)
        if near and not any(c.isdigit() for c in spelled):
            raise UsageError(f"there is no exercise and no command '{spelled}'{near}") from None
        raise


def width() -> int:
    """Columns that text may take."""
    import shutil

    return max(20, min(shutil.get_terminal_size().columns, 110))


def echo_wrapped(text: str, indent: int) -> None:
    """Print a line that fits the terminal; continued lines are indented."""
    import textwrap

    for line in textwrap.wrap(text, width(), subsequent_indent=" " * indent, break_on_hyphens=False) or [""]:
        echo(line)


def echo(text: str) -> None:
    """Print a line; a stream that cannot show a character gets a replacement."""
    encoding = sys.stdout.encoding or "ascii"
    click.echo(text.encode(encoding, "replace").decode(encoding))
