"""Errors that end a command. Each carries one clear line for the reader and the exit code of the command."""

from __future__ import annotations

EXIT_FULL_MARKS = 0
EXIT_POINTS_LOST = 1
EXIT_USAGE = 2
EXIT_MACHINE = 3


class AutogradeError(Exception):
    """Base of every error that the command line prints as one line; `str(error)` is that line."""

    exit_code = EXIT_USAGE


class UsageError(AutogradeError):
    """The command was called with something that does not exist or cannot be read."""


class UnfinishedError(AutogradeError):
    """The kernel hangs or is stopped by a fault, so that it has no time."""

    exit_code = EXIT_POINTS_LOST


class CourseError(AutogradeError):
    """course.yaml is missing or says something that cannot be right."""


class SubmissionError(AutogradeError):
    """The learner's notebook or file cannot be read as a submission; nothing was run."""


class MachineError(AutogradeError):
    """The grader or the machine failed; this never lowers a grade."""

    exit_code = EXIT_MACHINE


def nearest(name: str, candidates: list[str]) -> str | None:
    """The candidate most like `name`, or None when nothing comes close."""
    from difflib import get_close_matches

    matches = get_close_matches(name.lower(), [c.lower() for c in candidates], n=1, cutoff=0.5)
    if not matches:
        return None
    return next(c for c in candidates if c.lower() == matches[0])


def did_you_mean(name: str, candidates: list[str]) -> str:
    """`, did you mean 'x'?` or an empty string, to be appended to a message."""
    best = nearest(name, candidates)
    return f"; did you mean '{best}'?" if best else ""
