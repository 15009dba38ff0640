"""Kept states of a learner's kernel, in .autograde/checkpoints: each that passed, and each that was better or faster.

One JSON file per state. Losing them loses nothing that the learner has not saved; a file that cannot be understood is as
if it were not there.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.errors import UsageError
from autograder.files import write_atomically
from autograder.progress import FOLDER

if TYPE_CHECKING:
    from autograder.report.model import GradeReport

MOST = 100  # states of one exercise
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Checkpoint:
    """A kept state.

    Attributes:
        number: counts up from 1; time: local, `2026-12-01 14:05`.
        source: text of the kernel cell or file. answers: as they were then.
        microseconds: of the last kernel, at the size and on the device that `speed_of` names; None where nothing
            was measured or modelled. Only states with the same `speed_of` are compared.
    """

    number: int
    time: str
    source: str
    points: float
    max_points: float
    full_marks: bool
    microseconds: float | None = None
    speed_of: str = ""
    answers: dict[str, Any] = field(default_factory=dict)

    def spell(self) -> str:
        """One line for a reader."""
        speed = f", {self.microseconds:.1f} us {self.speed_of}" if self.microseconds is not None else ""
        return f"{self.number}  {self.time}  {self.points:g} of {self.max_points:g} points{speed}"


def kept(root: Path, exercise: str) -> list[Checkpoint]:
    """The kept states of an exercise, oldest first."""
    found = []
    for path in sorted((root / FOLDER / "checkpoints" / exercise).glob("[0-9]*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            with path.open("rb") as file:
                data = json.loads(file.read(_MAX_BYTES))
            state = Checkpoint(**data)
            if _is_sound(state):
                found.append(state)
    return sorted(found, key=lambda state: state.number)


def _is_sound(state: Checkpoint) -> bool:
    numbers = (state.points, state.max_points, 0.0 if state.microseconds is None else state.microseconds)
    return (
        type(state.number) is int
        and all(isinstance(text, str) for text in (state.time, state.source, state.speed_of))
        and all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < 1e12 for n in numbers)
        and isinstance(state.full_marks, bool)
    )


def keep(root: Path, report: GradeReport, source: str, answers: dict[str, Any]) -> Checkpoint | None:
    """Keep this state if it passes, or is better or faster than all that are kept. None if not, or if the folder is not
    writable.
    """
    states = kept(root, report.exercise)
    if any(state.source == source and state.points >= report.points for state in states):
        return None
    microseconds, speed_of = _speed(report)
    better = report.points > max((state.points for state in states), default=0.0)
    if not (report.full_marks or better):
        return None
    number = max((state.number for state in states), default=0) + 1
    state = Checkpoint(
        number,
        time.strftime("%Y-%m-%d %H:%M"),
        source,
        report.points,
        report.max_points,
        report.full_marks,
        microseconds,
        speed_of,
        answers,
    )
    folder = root / FOLDER / "checkpoints" / report.exercise
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{number:04}.json", json.dumps(asdict(state), indent=1).encode())
        _forget(folder, [*states, state])
    except (OSError, TypeError, ValueError):
        return None
    return state


def _forget(folder: Path, states: list[Checkpoint]) -> None:
    """At most MOST states stay; the fastest and the best always do."""
    fast = fastest(states)
    dispensable = [s for s in states[:-1] if s is not fast]
    for state in dispensable[: max(0, len(states) - MOST)]:
        (folder / f"{state.number:04}.json").unlink(missing_ok=True)


def _speed(report: GradeReport) -> tuple[float | None, str]:
    """(microseconds of the last kernel, how and where they were found)."""
    measured = [m for m in report.measured if m.kernel_us]
    if measured:
        last = measured[-1]
        return last.kernel_us, f"measured on {last.device}, {_size(last.params)}"
    if report.modelled:
        model = report.modelled[-1]
        return model.microseconds, f"modelled on {model.device}, {_size(model.params)}"
    return None, ""


def _size(params: dict[str, int | str]) -> str:
    return " ".join(f"{name}={value}" for name, value in params.items())


def last_right(states: list[Checkpoint]) -> Checkpoint | None:
    """The latest state with full marks; where there is none, the latest of those with the most points."""
    right = [state for state in states if state.full_marks]
    if right:
        return right[-1]
    most = max((state.points for state in states), default=0.0)
    return next((state for state in reversed(states) if state.points == most), None)


def fastest(states: list[Checkpoint]) -> Checkpoint | None:
    """The right state with the least time, among those whose time was found like the latest one's."""
    timed = [state for state in states if state.full_marks and state.microseconds is not None]
    like = [state for state in timed if state.speed_of == timed[-1].speed_of]
    return min(like, key=lambda state: state.microseconds or 0.0, default=None)


def choose(root: Path, exercise: str, number: int | None, fast: bool) -> Checkpoint:
    """The state that a command means: by its number, the fastest, or the one that was right last.

    Raises:
        UsageError: there is none; one line.
    """
    states = kept(root, exercise)
    if not states:
        raise UsageError(f"nothing is kept of {exercise} yet; a grade with points keeps the kernel's text")
    if number is not None:
        found = next((state for state in states if state.number == number), None)
        if found is None:
            numbers = ", ".join(str(state.number) for state in states[-8:])
            raise UsageError(f"{exercise} has no checkpoint {number}; it has {numbers}")
        return found
    if fast:
        found = fastest(states)
        if found is None:
            raise UsageError(f"no kept state of {exercise} has full marks and a time")
        return found
    found = last_right(states)
    assert found is not None
    return found


def restore(root: Path, path: Path, grade_id: str, exercise: str, state: Checkpoint) -> Path | None:
    """Put a kept kernel back into the learner's notebook or .py file; returns where the file as it was is kept, None if
    nothing had to change.

    Raises:
        UsageError, SubmissionError: the file cannot be read or written; it is untouched then.
    """
    from autograder.reset import set_aside
    from autograder.submission import cell_grade_id, cell_source, notebook_cells

    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
        if path.suffix == ".py":
            new = state.source
            same = text == new
        else:
            notebook_cells(text, path)
            notebook = json.loads(text)
            cells = [cell for cell in notebook["cells"] if cell_grade_id(cell) == grade_id]
            if len(cells) != 1:
                raise UsageError(
                    f'{path}: has no single cell "{grade_id}"; `autograde reset {exercise}` brings it back'
                )
            same = cell_source(cells[0]) == state.source
            cells[0]["source"] = state.source.splitlines(keepends=True)
            new = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        if same:
            return None
        aside = set_aside(root, exercise, path, raw)
        write_atomically(path, new.encode())
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be restored ({error.strerror or error})") from None
    return aside
