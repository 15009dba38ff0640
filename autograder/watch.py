"""`autograde watch`: grade on every save. The quick checks come at once, from processes that were started ahead; then the rest.

Each grade has processes of its own, as always: the ones that wait have imported TVM and PyTorch and have never seen a
submission. A save while a grade runs ends that grade.
"""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from autograder.errors import AutogradeError
from autograder.grade import Settings, warm_pump
from autograder.grading import grade_with_bar
from autograder.learner import learner_submission, remember
from autograder.progress import FOLDER
from autograder.report.model import GradeReport, Verdict
from autograder.report.terminal import brief, changed_rows, make_console
from autograder.submission import syntax_problem

if TYPE_CHECKING:
    from rich.console import Console

    from autograder.course import Course, Exercise
    from autograder.runner.process import Pump
    from autograder.submission import Submission


class Superseded(Exception):
    """The learner has saved again."""


class Saves:
    """Which files were saved, as they are saved."""

    def __init__(self, folder: Path) -> None:
        self._stop = threading.Event()
        self._saved: queue.Queue[set[Path]] = queue.Queue()
        self._thread = threading.Thread(target=self._listen, args=(folder,), daemon=True)
        self._thread.start()

    def _listen(self, folder: Path) -> None:
        import watchfiles

        for changes in watchfiles.watch(
            folder, stop_event=self._stop, debounce=200, step=30, raise_interrupt=False
        ):
            paths = {Path(path) for change, path in changes if change is not watchfiles.Change.deleted}
            # Editors write a temporary file beside the notebook and rename it.
            paths = {p for p in paths if p.suffix in (".ipynb", ".py") and not _hidden(p.relative_to(folder))}
            if paths:
                self._saved.put(paths)

    def wait(self) -> set[Path]:
        """The files of the next saves; all that have come in meanwhile."""
        while True:
            try:
                paths = self._saved.get(timeout=0.5)  # a bounded wait, so that Ctrl-C works everywhere
            except queue.Empty:
                continue
            while not self._saved.empty():
                paths |= self._saved.get()
            return paths

    def interrupt(self) -> None:
        """Raises Superseded when there is something new."""
        if not self._saved.empty():
            raise Superseded

    def end(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2)


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "~")) for part in path.parts)


class Watcher:
    """The state between two saves: what was graded last, and the processes that wait for the next grade."""

    def __init__(self, root: Path, course: Course, plain: bool) -> None:
        self.root, self.course, self.plain = root, course, plain
        self.console: Console = make_console(plain)
        self.pump: Pump = warm_pump(course.limits, (root,))
        self._graded: dict[str, tuple[str, str]] = {}

    def saved(self, spec: Exercise, saves: Saves) -> None:
        """One save of an exercise's notebook or file."""
        try:
            submission = learner_submission(self.root, spec)
        except AutogradeError as error:
            self._say(f"{_now()}  {error}")
            return
        key = (submission.sha256, repr(submission.answers))
        if self._graded.get(spec.id) == key:
            self._say(f"{_now()}  {spec.id}: saved, and nothing in the kernel or the answers has changed")
            return
        self._graded.pop(spec.id, None)
        try:
            self._grade(spec, submission, saves)
            self._graded[spec.id] = key
        except Superseded:
            self._say("saved again: starting over")

    def _grade(self, spec: Exercise, submission: Submission, saves: Saves) -> None:
        started = time.perf_counter()
        pump = None
        if not submission.untouched and syntax_problem(submission.source) is None:  # processes are needed
            pump, self.pump = self.pump, warm_pump(self.course.limits, (self.root,))
        quick = Settings(quick=True, measure=False, hidden=(self.root,))
        first = grade_with_bar(
            spec, submission, self.course, quick, spec.id, self.plain, pump, saves.interrupt
        )
        seconds = time.perf_counter() - started
        self._say(f"{_now()}  {spec.id}, the quick checks, {seconds:.1f} s after the save", "bold")
        brief(first, self.console, self.plain)
        if not _worth_more(first):
            self._say("the other cases follow when these checks pass")
            self._remember_begin(first, submission)
            return
        full = Settings(cache=self.root / FOLDER / "assembly", hidden=(self.root,))
        report = grade_with_bar(
            spec,
            submission,
            self.course,
            full,
            f"{spec.id}, all cases",
            self.plain,
            interrupt=saves.interrupt,
        )
        note = remember(self.root, report, submission.source, submission.answers)
        self._say(f"{_now()}  {spec.id}, all cases", "bold")
        changed_rows(first, report, self.console, self.plain)
        if note:
            self._say(note)

    def _remember_begin(self, report: GradeReport, submission: Submission) -> None:
        """What a quick grade lost is what the next hint should speak of; its points are not recorded."""
        from autograder import hints, progress
        from autograder.learner import todos

        if report.exit_code == 3:
            return
        with progress.locked(self.root):
            state = progress.load(self.root)
            entry = state.reached.setdefault(report.exercise, progress.Reached(max_points=report.max_points))
            entry.failing = [check.id for check in report.checks if check.points < check.max_points]
            entry.todo = todos(report, submission.source, hints.stub_todos(self.root, report.exercise))
            progress.save(self.root, state)

    def _say(self, text: str, style: str = "") -> None:
        from autograder.report.terminal import say

        say(text, self.console, self.plain, style)

    def end(self) -> None:
        with self.pump:
            pass


def _worth_more(report: GradeReport) -> bool:
    """Whether the other cases can tell anything: nothing lost points but predictions, and what a quick grade skips (speed)."""
    skipped = {
        c.id for c in report.checks if c.verdict in (Verdict.SKIPPED, Verdict.ERROR) and c.id == "speed"
    }
    return all(c.points >= c.max_points or c.id == "predictions" or c.id in skipped for c in report.checks)


def _now() -> str:
    return time.strftime("%H:%M:%S")


def watch(root: Path, course: Course, only: Exercise | None, plain: bool) -> None:
    """Grade on every save until Ctrl-C.

    only: one exercise, which is graded at once; None: whichever is saved.
    """
    folder = (root / "exercises" / only.id if only else root / "exercises").resolve()
    if not folder.is_dir():
        from autograder.errors import UsageError

        raise UsageError(f"{folder}: there is no such folder to watch")
    exercises = {spec.id: spec for spec in course.exercises}
    saves, watcher = Saves(folder), Watcher(root, course, plain)
    what = f"exercises/{only.id}" if only else "exercises"
    try:
        watcher._say(f"watching {what}: save your notebook, and it is graded; Ctrl-C ends this")
        if only is not None:
            watcher.saved(only, saves)
        while True:
            paths = saves.wait()
            names = {path.parent.name for path in paths} & exercises.keys()
            for name in sorted(names):
                spec = exercises[name]
                own = {spec.notebook, Path(spec.notebook).with_suffix(".py").name}
                if only in (None, spec) and any(p.parent.name == name and p.name in own for p in paths):
                    watcher.saved(spec, saves)
    finally:
        saves.end()
        watcher.end()
