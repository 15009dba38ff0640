"""`autograde` alone: where you are, your points, and what comes next. Starts light."""

from __future__ import annotations

import sys
from pathlib import Path

from autograder import progress
from autograder.cli_parts import course_root, echo, echo_wrapped
from autograder.course_index import Entry, load_index

_MARKS = {"done": ("✓", "ok"), "begun": ("◐", ".."), "new": ("·", "  ")}


def next_exercise(root: Path) -> Entry:
    """The first exercise without full marks after the last one with full marks; else the first without, else the last."""
    entries = load_index(root).entries
    reached = progress.load(root).reached
    done = [bool((r := reached.get(entry.id)) and r.full_marks) for entry in entries]
    furthest = max((n for n, d in enumerate(done) if d), default=-1)
    order = [*range(furthest + 1, len(entries)), *range(furthest + 1)]
    return next((entries[n] for n in order if not done[n]), entries[-1])


def show(plain: bool = False) -> None:
    """Print one line per exercise, the sum, and what to do next."""
    root = course_root(None)
    state, index = progress.load(root), load_index(root)
    ascii_only = plain or not (sys.stdout.encoding or "ascii").lower().startswith("utf")
    echo_wrapped(index.title, 2)
    echo("")
    points = finished = 0.0
    for entry in index.entries:
        reached = state.reached.get(entry.id)
        kind = "new" if reached is None else "done" if reached.full_marks else "begun"
        mark = _MARKS[kind][ascii_only]
        best = f"{reached.best:g}" if reached else "-"
        echo_wrapped(f"{mark} {entry.id}  {f'{best}/{entry.total:g}':>8}  {entry.title}", 4)
        points, finished = points + (reached.best if reached else 0), finished + (kind == "done")
    total = sum(entry.total for entry in index.entries)
    echo("")
    echo_wrapped(f"{points:g} of {total:g} points, {finished:g} of {len(index.entries)} exercises done", 2)
    _next(root, state, int(finished) == len(index.entries))


def _next(root: Path, state: progress.Progress, all_done: bool) -> None:
    if all_done:
        echo("all exercises done")
        return
    entry = next_exercise(root)
    reached, level = state.reached.get(entry.id), state.hints.get(entry.id, 0)
    so_far = f"{reached.best:g} of {entry.total:g} points so far" if reached else "not graded yet"
    echo_wrapped(f"next: {entry.id}, {entry.title} ({so_far})", 2)
    if reached and reached.failing:
        echo_wrapped(f"  lost points in your last grade: {', '.join(reached.failing)}", 4)
    echo_wrapped(f"  you learn: {entry.teaches}", 4)
    echo_wrapped(f"  open {Path('exercises') / entry.id / entry.notebook}, then run: autograde {entry.id}", 4)
    echo_wrapped(f"  or let it grade whenever you save: autograde watch {entry.id}", 4)
    seen = f"; you have seen level {level}" if level else ""
    echo_wrapped(f"  stuck? autograde hint {entry.id}{seen}", 4)
