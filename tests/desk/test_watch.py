"""`autograde watch` as a learner sees it: a stub, a syntax error, the solution, a save that changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ANSWERS = "answers = {'q1': 32768, 'q2': 4, 'q3': 0, 'q4': 6}\n"


class Watching:
    """A running `autograde watch` and the lines that it has printed."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1", "COLUMNS": "100"}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "autograder", "watch", "5"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.seen = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def until(self, pattern: str, seconds: float = 90) -> str:
        """What is printed from the last time on up to a line with this pattern."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for n in range(self.seen, len(self.lines)):
                if re.search(pattern, self.lines[n]):
                    text = "".join(self.lines[self.seen : n + 1])
                    self.seen = n + 1
                    return text
            time.sleep(0.05)
        pytest.fail(f"no {pattern!r} within {seconds} s in:\n{''.join(self.lines)}")


@pytest.fixture
def watching(folder: Path) -> Iterator[Watching]:
    running = Watching(folder)
    yield running
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=20) == 130


def test_a_session(watching: Watching, folder: Path, fill_in: Callable[..., Path], solution: str) -> None:
    text = watching.until("the other cases follow")
    assert "still the released stub" in text and "Traceback" not in text

    fill_in(solution.replace("Tx.gemm_async(", "Tx.gemm_async(("), ANSWERS)
    text = watching.until("the other cases follow")
    assert "syntax error" in text and "notebook cell 6 line" in text

    fill_in(solution, ANSWERS)
    quick = watching.until("the quick checks, [0-9.]+ s after")
    seconds = float(re.findall(r"checks, ([0-9.]+) s after", quick)[-1])
    assert seconds < 60, "about one second where the machine has nothing else to do"
    text = watching.until("100 of 100 points")
    assert "all cases" in text and "5 of 5 cases" in text
    reached = json.loads((folder / ".autograde/progress.json").read_text())["reached"]["exercise_05"]
    assert reached["full_marks"] and reached["failing"] == []
    assert len(list((folder / ".autograde/checkpoints/exercise_05").iterdir())) == 1

    fill_in(solution, ANSWERS)
    watching.until("nothing in the kernel or the answers has changed")

    # A second save while the grade of the first one runs: only the second one counts.
    fill_in(solution + "\n# once more\n", ANSWERS)
    watching.until("the quick checks")
    fill_in(solution.replace("Tx.gemm_async(", "Tx.gemm_asinc("), ANSWERS)
    assert "gemm_asinc" in watching.until("at notebook cell 6")


def test_no_process_is_left(watching: Watching) -> None:
    watching.until("the other cases follow")
    children = subprocess.run(
        ["ps", "--ppid", str(watching.process.pid), "-o", "pid="], capture_output=True, text=True
    ).stdout.split()
    assert len(children) == 3, "three processes wait for the next grade"
    watching.process.send_signal(signal.SIGINT)
    watching.process.wait(timeout=20)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/stat").exists() for pid in children):
        assert time.monotonic() < deadline, "a process outlives the watch"
        time.sleep(0.1)
