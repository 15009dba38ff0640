"""A bar that shows how far a grade is: on a terminal only, after a second, and gone when the grade is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

if TYPE_CHECKING:
    from autograder.grade import Step

AFTER = 1.0  # seconds: what is faster needs no bar


class Bar:
    """Pass it as `Settings.listen`, and `tick` as the pump's heartbeat. Nothing is drawn in a pipe or with --plain.

    label: stands ahead, e.g. the exercise. console: where it is drawn; default: standard error.
    """

    def __init__(self, label: str, plain: bool = False, console: Console | None = None) -> None:
        self.label = label
        self.console = console or Console(stderr=True, force_jupyter=False, highlight=False, emoji=False)
        self.drawn = self.console.is_terminal and not self.console.is_dumb_terminal and not plain
        self._started = time.monotonic()
        self._what, self._done, self._total = "starting", 0, 0
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __call__(self, step: Step) -> None:
        """The grade has come this far."""
        self._what, self._done, self._total = step.what, step.done, step.total
        self.tick()

    def tick(self) -> None:
        """Draw, if it is time for it."""
        if not self.drawn or time.monotonic() - self._started < AFTER:
            return
        if self._progress is None:
            self._progress = _progress(self.console)
            self._task = self._progress.add_task(self._words(), total=None)
            self._progress.start()
        assert self._task is not None
        self._progress.update(
            self._task, description=self._words(), completed=self._done, total=self._total or None
        )

    def _words(self) -> str:
        return f"{self.label}: {self._what}"


@contextmanager
def waiting(what: str, plain: bool = False) -> Iterator[None]:
    """A spinner beside what takes a while and cannot say how far it is. On a terminal only."""
    console = Console(stderr=True, force_jupyter=False, highlight=False, emoji=False)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    with console.status(what):
        yield


def _progress(console: Console) -> Progress:
    """Words, bar and seconds; the words give way on a narrow terminal."""
    words = TextColumn(
        "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
    )
    bar = BarColumn(bar_width=max(6, min(30, console.width // 5)))
    return Progress(words, bar, TimeElapsedColumn(), console=console, transient=True, expand=True)
