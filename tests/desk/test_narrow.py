"""A whole exercise from a terminal of 40 columns, and the same through a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ANSWERS = "answers = {'q1': 32768, 'q2': 4, 'q3': 0, 'q4': 6}\n"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def in_a_terminal(folder: Path, *arguments: str, columns: int = 40, **variables: str) -> tuple[int, str]:
    """(exit status, everything that reached the screen) of a command on a terminal of its own."""
    pty = pytest.importorskip("pty", reason="terminals like this exist on Unix only")
    import fcntl
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color", "PYTHONUTF8": "1", **variables}
    process = subprocess.Popen(
        [sys.executable, "-m", "autograder", *arguments],
        cwd=folder,
        env=environment,
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    return process.wait(timeout=30), shown.decode()


def lines_of(screen: str) -> list[str]:
    """The lines without control sequences; what was drawn and taken back counts, too."""
    return [line for part in screen.split("\n") for line in CONTROL.sub("", part).split("\r")]


def test_forty_columns(folder: Path, fill_in: Callable[..., Path], solution: str) -> None:
    def run(*arguments: str) -> str:
        code, screen = in_a_terminal(folder, *arguments)
        wide = [line for line in lines_of(screen) if len(line.rstrip()) > 40]
        # A word without a blank in it, such as a path, is longer than the terminal by itself.
        assert not [line for line in wide if " " in line.strip().removeprefix("-> ")], (arguments, wide)
        assert code in (0, 1), screen
        return " ".join(CONTROL.sub("", screen).split())

    assert "next: exercise_05" in run()
    fill_in(None, ANSWERS)
    assert "still the released stub" in run("5")
    assert "hint 1 of 3" in run("hint")
    fill_in(solution.replace('T.ptx["fence.proxy.async.shared::cta"]()', "pass"), ANSWERS)
    text = run("5")
    assert "proxy.missing-fence" in text and "80 of 100 points" in text
    assert "for what your last grade lost: synchronization" in run("hint", "5", "2")
    fill_in(solution, ANSWERS)
    text = run("5")
    assert "100 of 100 points" in text
    assert "exercise_05: " in text, "while it takes longer than a second, a bar says what the grade does"
    assert "all exercises done" in run()
    assert "nothing has changed since" in run("diff", "5")


def test_no_colour_and_colour(folder: Path, fill_in: Callable[..., Path]) -> None:
    fill_in(None, ANSWERS)
    colour = re.compile(r"\x1b\[(?:\d+;)*3\d")
    assert colour.search(in_a_terminal(folder, "5", columns=80)[1])
    assert not colour.search(in_a_terminal(folder, "5", columns=80, NO_COLOR="1")[1])
    plain = in_a_terminal(folder, "5", "--plain", columns=80)[1]
    assert "\x1b" not in plain and plain.isascii()


def test_a_pipe(folder: Path, fill_in: Callable[..., Path], solution: str) -> None:
    """Nothing but the report reaches a pipe: no bar, no colour, no line that is taken back."""
    fill_in(solution, ANSWERS)
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "5"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    assert "100 of 100 points" in done.stdout and "exercise_05: " not in done.stdout
