"""Bring a released notebook back, and keep what the learner had."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from autograder.course import Exercise
from autograder.errors import SubmissionError, UsageError
from autograder.files import write_atomically
from autograder.progress import FOLDER
from autograder.submission import cell_source, notebook_cells, strip_solution


def reset_exercise(root: Path, exercise: Exercise) -> Path | None:
    """Replace the learner's notebook by the released one; returns where the old one is kept, None if there
    was none.

    Raises:
        UsageError: there is nothing to reset from, or the folder is not writable. The notebook is untouched
            then.
    """
    path = root / "exercises" / exercise.id / exercise.notebook
    released = _released(root, exercise)
    kept = None
    try:
        if path.is_file() and path.read_bytes() != released:
            kept = set_aside(root, exercise.id, path, path.read_bytes())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, released)
    except OSError as error:
        raise UsageError(f"{path}: cannot be reset ({error.strerror or error})") from None
    return kept


def set_aside(root: Path, exercise: str, path: Path, content: bytes) -> Path:
    """Keep a file of the learner's before it is replaced; returns where.

    Raises:
        OSError: it cannot be kept; then it must not be replaced.
    """
    folder = root / FOLDER / "kept" / exercise
    folder.mkdir(parents=True, exist_ok=True)
    kept = _unused(folder / f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}{path.suffix}")
    write_atomically(kept, content)
    return kept


def _released(root: Path, exercise: Exercise) -> bytes:
    """The notebook as committed, else derived from the solution."""
    relative = f"exercises/{exercise.id}/{exercise.notebook}"
    try:
        shown = subprocess.run(
            ["git", "show", f"HEAD:./{relative}"], cwd=root, capture_output=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        shown = None
    if shown is not None and shown.returncode == 0 and shown.stdout:
        return shown.stdout
    solution = root / "solutions" / exercise.id / exercise.notebook
    if not solution.is_file():
        raise UsageError(
            f"{exercise.id} cannot be reset: there is neither git history nor a solution to derive it from"
        )
    return released_from_solution(solution)


def released_from_solution(path: Path) -> bytes:
    """A solution notebook with every solution region replaced by the stub and all outputs removed."""
    try:
        text = path.read_text(encoding="utf-8")
        cells = notebook_cells(text, path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    except SubmissionError as error:
        raise UsageError(str(error)) from None
    notebook: dict[str, Any] = json.loads(text)
    for cell, shown in zip(notebook["cells"], cells, strict=True):
        if cell.get("cell_type") == "code":
            cell["source"] = strip_solution(cell_source(shown) or "").splitlines(keepends=True)
            cell["outputs"], cell["execution_count"] = [], None
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _unused(path: Path) -> Path:
    """`path`, or the same with a number, so that nothing kept is ever overwritten."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate
