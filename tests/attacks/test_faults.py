"""Faults of the machine at every stage of a grade: nothing half-written, nothing left running, and the next grade works."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autograder import files, progress
from autograder import grade as grading
from autograder.course import Exercise, Limits
from autograder.errors import MachineError, UsageError
from autograder.grade import Settings, grade
from autograder.report.model import Fault, GradeReport
from autograder.runner.process import Pump
from autograder.submission import Submission

from .conftest import REPOSITORY, cell_of, notebook_of, small_course

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through Linux's /proc")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course folder whose notebook holds the solution."""
    folder = small_course(tmp_path_factory.mktemp("faults") / "course")
    solution = folder / "solutions" / "exercise_02" / "exercise_02.ipynb"
    (folder / "exercises" / "exercise_02" / "exercise_02.ipynb").write_bytes(solution.read_bytes())
    return folder


class Run:
    """`autograde exercise_02 --json report.json` with a temporary folder of its own, in a terminal's process group."""

    def __init__(self, root: Path, work: Path, *more: str) -> None:
        work.mkdir(exist_ok=True)
        self.work, self.report = work, work / "report.json"
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autograder", "exercise_02", "--quick", "--json", str(self.report), *more],
            cwd=root,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(work)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self) -> tuple[int, str]:
        """(exit status, what it said on standard error); no process of it is left."""
        _, said = self.process.communicate(timeout=120)
        deadline = time.monotonic() + 10
        while left := list(self.left()):
            assert time.monotonic() < deadline, f"still running: {left}"
            time.sleep(0.05)
        return self.process.returncode, said

    def left(self) -> Iterator[int]:
        """Processes that were started with this run's temporary folder."""
        mark = str(self.work).encode()
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    mark in (place / "environ").read_bytes()
                    and "zombie" not in (place / "status").read_text()
                ):
                    yield int(place.name)
            except OSError:
                continue

    def whole(self) -> bool:
        """The report is there and whole, or not there at all."""
        if not self.report.exists():
            return False
        GradeReport.model_validate_json(self.report.read_text())
        return True


def learners_files(root: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file() and ".autograde" not in p.parts}


def when(run: Run, stage: str) -> None:
    """Wait for a stage of the grade: its first processes, or so long after them."""
    while not list(run.work.glob("autograde-*")) and run.process.poll() is None:
        time.sleep(0.01)
    time.sleep({"starting": 0, "loading": 0.5, "building": 1.3, "running": 2.2}[stage])


@linux
@pytest.mark.parametrize("stage", ["starting", "loading", "building", "running"])
def test_a_killed_grader_leaves_nothing(root: Path, tmp_path: Path, stage: str) -> None:
    """SIGKILL of the process that a learner started."""
    before = learners_files(root)
    run = Run(root, tmp_path / "work")
    when(run, stage)
    run.process.kill()
    code, _ = run.end()
    assert code in (-9, 0)
    assert run.whole() == (code == 0)
    assert learners_files(root) == before
    assert isinstance(progress.load(root), progress.Progress)


@linux
@pytest.mark.parametrize("stage", ["starting", "building"])
def test_ctrl_c_twice(root: Path, tmp_path: Path, stage: str) -> None:
    """One line, no stack trace, status 130, and nothing left, however impatient."""
    before = learners_files(root)
    run = Run(root, tmp_path / "work")
    when(run, stage)
    for _ in range(2):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    code, said = run.end()
    assert "Traceback" not in said and said.strip().count("\n") == 0, said
    assert code in (130, 0, -signal.SIGINT)
    assert run.whole() == (code == 0) and learners_files(root) == before


@linux
def test_two_grades_at_once_in_one_folder(root: Path, tmp_path: Path) -> None:
    """Both end with full marks, and the report that both write is one of them."""
    before = learners_files(root)
    runs = [Run(root, tmp_path / name) for name in ("a", "b")]
    runs[1].report = runs[0].report
    assert [run.end()[0] for run in runs] == [0, 0]
    assert runs[0].whole() and learners_files(root) == before


def test_progress_of_many_at_once(tmp_path: Path) -> None:
    """Each of eight processes records an exercise of its own five times: all eight are there, at their best."""
    code = (
        "import sys; from pathlib import Path; from autograder import progress\n"
        "for points in (10, 30, 20, 5, 1):\n"
        "    with progress.locked(Path(sys.argv[1])):\n"
        "        state = progress.load(Path(sys.argv[1]))\n"
        "        state.record(sys.argv[2], points, 100, False)\n"
        "        assert progress.save(Path(sys.argv[1]), state)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }
    many = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"e{n}"], env=environment)
        for n in range(8)
    ]
    assert [one.wait(60) for one in many] == [0] * 8
    reached = progress.load(tmp_path).reached
    assert {name: (entry.best, entry.latest) for name, entry in reached.items()} == {
        f"e{n}": (30, 1) for n in range(8)
    }


# In this process: each of the grade's own processes dies, at each of its answers --------------------


@pytest.mark.parametrize(
    ("name", "answer"),
    [("builder", 0), ("builder", 1), ("machine", 0), ("machine", 2), ("oracle", 0)],
)
def test_a_process_of_the_grade_is_killed(
    exercise: Exercise, limits: Limits, monkeypatch: pytest.MonkeyPatch, name: str, answer: int
) -> None:
    """Never the learner's fault, exit status 3, and a sentence. The builder's SIGKILL is the machine's too: it cannot send one."""
    receive, counts = Pump.receive, {name: 0}

    def killing(pump: Pump, child: Any, seconds: float) -> Any:
        if child.name == name:
            if counts[name] == answer:
                os.killpg(child.process.pid, signal.SIGKILL)
                time.sleep(0.05)
                child.frames.clear()
            counts[name] += 1
        return receive(pump, child, seconds)

    monkeypatch.setattr(Pump, "receive", killing)
    source = cell_of(notebook_of(exercise), exercise.cells.kernel)
    report = grade(exercise, Submission("k.py", source), limits, Settings(quick=True, measure=False))
    assert counts[name] > answer, "the fault was injected"
    assert report.exit_code == 3 and Fault.YOUR_CODE not in {
        c.fault for c in report.checks if c.id != "predictions"
    }
    assert all("\n" not in (c.reason or c.summary) for c in report.checks)


def test_the_clock_jumps(exercise: Exercise, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day goes back and forth by years while a grade runs: full marks, and sensible durations."""
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(jumps) * 1e9)
    notebook = notebook_of(exercise)
    report = grade(
        exercise, Submission("k.py", cell_of(notebook, exercise.cells.kernel)), limits, Settings(quick=True)
    )
    assert {c.id for c in report.checks if c.points < c.max_points} <= {"predictions", "speed"}
    assert all(0 <= seconds < 100 for seconds in report.seconds.values())


# No space, broken disks, files that cannot be read ------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("step", ["write", "fsync", "replace", "mkstemp"])
def test_a_file_is_whole_or_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    """Progress, reports and records are written by one function; whichever of its steps fails, the old file stays."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    state = progress.Progress()
    state.record("exercise_02", 50, 100, False)
    assert progress.save(tmp_path, state)
    report = tmp_path / "report.json"
    report.write_text("old")
    if step == "write":
        opened = os.fdopen

        def fdopen(*arguments: Any, **options: Any) -> Any:
            file = opened(*arguments, **options)

            class Broken:
                def __enter__(self) -> Any:
                    return self

                def __exit__(self, *_: object) -> None:
                    file.close()

                write = fail

            return Broken()

        monkeypatch.setattr(files.os, "fdopen", fdopen)
    elif step == "mkstemp":
        monkeypatch.setattr(files.tempfile, "mkstemp", fail)
    else:
        monkeypatch.setattr(files.os, step, fail)
    state.record("exercise_02", 100, 100, True)
    assert not progress.save(tmp_path, state)
    with pytest.raises(UsageError) as caught:
        files.write_text(report, "new")
    assert os.strerror(number) in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.undo()
    assert progress.load(tmp_path).reached["exercise_02"].best == 50 and report.read_text() == "old"
    left = [p.name for p in tmp_path.rglob("*") if p.is_file()]
    assert set(left) <= {"report.json", "progress.json", ".lock"}, "no half-written file stays"


@linux
def test_a_full_device_is_one_line(root: Path, tmp_path: Path) -> None:
    """A report that goes to a device that is full; the grade itself is done and remembered."""
    run = Run(root, tmp_path / "work", "--html", "/dev/full")
    code, said = run.end()
    assert code == 2 and said.count("\n") == 1 and "No space left on device" in said


def test_no_space_for_temporary_files(
    exercise: Exercise, limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary folder is gone, full, or not ours: the machine's fault in one line, and no process is left."""
    submission = Submission("k.py", "x = 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(grading.tempfile, "tempdir", str(tmp_path / "missing"))
        with pytest.raises(MachineError, match="temporary files") as caught:
            grade(exercise, submission, limits)
        assert "\n" not in str(caught.value)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MachineError, match="No space left on device"):
        grade(exercise, submission, limits)


@pytest.mark.parametrize("damage", ["a folder", "a link in a circle", "a file instead of the folder"])
def test_state_that_cannot_be_read(root: Path, tmp_path: Path, damage: str) -> None:
    """What the grader remembers is damaged in a way that even root cannot read: it is empty then, and saving says no."""
    folder = tmp_path / progress.FOLDER
    if damage == "a file instead of the folder":
        folder.write_text("x")
    else:
        folder.mkdir()
        if damage == "a folder":
            (folder / "progress.json").mkdir()
        else:
            (folder / "progress.json").symlink_to("progress.json")
    state = progress.load(tmp_path)
    assert state.reached == {}
    state.record("exercise_02", 1, 100, False)
    with progress.locked(tmp_path):
        saved = progress.save(tmp_path, state)
    assert saved == (damage == "a link in a circle"), "a link is replaced by a file"
