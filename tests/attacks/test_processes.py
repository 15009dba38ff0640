"""Submissions that take too much, or that do not want to end."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import pytest

from autograder.course import Exercise, Limits
from autograder.diagnosis import Diagnosis, Failure
from autograder.report.model import Fault
from autograder.runner.build import start_builder
from autograder.runner.process import Pump
from autograder.runner.sandbox import choose
from autograder.runner.tree import MAX_PROCESSES, children
from autograder.submission import Submission

from .conftest import LEVELS, Tried, need

linux = pytest.mark.skipif(sys.platform != "linux", reason="process trees are bounded on Linux only")

# name: (code, words of the one sentence that it gets)
HOSTILE = {
    "a bomb of threads": (
        "import threading, time\nthreading.stack_size(65536)\nfor _ in range(400): threading.Thread(target=time.sleep, args=[60], daemon=True).start()\n"
        "time.sleep(60)\n",
        f"started more than {MAX_PROCESSES} threads or processes",
    ),
    "signals that are ignored": (
        "import os, signal, time\nfor n in range(1, 60):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "try: os.nice(19)\nexcept OSError: pass\nsignal.alarm(0)\ntime.monotonic = lambda: 0\n"
        "try: time.clock_settime(time.CLOCK_REALTIME, 0)\nexcept OSError: pass\nelse: os._exit(7)\n"
        "os.mkfifo('f')\nopen('f')\n",
        "no kernel after 2 s",
    ),
    "a stop": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n", "no kernel after 2 s"),
    "its own death": ("import os\nos.kill(os.getpid(), 9)\n", "PermissionError"),
    "another program": ("import os\nos.execv('/bin/true', ['true'])\n", "PermissionError"),
    "output without end": ("import os\nwhile True: os.write(1, b'x' * 65536)\n", "more than 64 KiB printed"),
    "an end without a kernel": (
        "import atexit, os\natexit.register(os._exit, 0)\nos._exit(0)\n",
        "(exit status 0)",
    ),
}


@linux
@pytest.mark.parametrize("name", HOSTILE)
def test_the_tree_dies_and_the_submission_is_to_blame(tried: Tried, name: str) -> None:
    """A31, A35, A36, A38 and our own. One clear sentence, soon, no process left, and not the machine's fault."""
    code, words = HOSTILE[name]
    before, started = descendants(), time.monotonic()
    failure = tried(code, build_seconds=2)
    assert isinstance(failure, Failure) and words in failure.message, failure
    assert failure.fault is Fault.YOUR_CODE and "\n" not in failure.message
    assert time.monotonic() - started < 40
    assert descendants() <= before


FORKS = """
import multiprocessing, os, subprocess, sys, threading, ctypes
refused = []
def attempt(name, start):
    try: pid = start()
    except OSError: return refused.append(name)
    if pid == 0: os._exit(0)
libc = ctypes.CDLL(None)
def raw(number, *flags):
    pid = libc.syscall(number, *flags)
    if pid < 0: raise OSError
    return pid
attempt("fork", os.fork)
attempt("vfork", lambda: raw(58))
attempt("clone", lambda: raw(56, 17, 0, 0, 0, 0))
attempt("clone3", lambda: raw(435, None, 0))
attempt("subprocess", lambda: subprocess.Popen(["/bin/true"]))
attempt("spawn", lambda: os.posix_spawn("/bin/true", ["true"], {}))
attempt("pool", lambda: multiprocessing.get_context("fork").Process(target=print).start())
done = []
thread = threading.Thread(target=lambda: done.append(1)); thread.start(); thread.join()
raise Exception(*refused, *done)
"""


@linux
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the attack names Linux's calls on x86_64")
@pytest.mark.parametrize("level", LEVELS)
def test_no_submission_starts_a_process(tried: Tried, level: str) -> None:
    """A35: neither a bomb nor a daemon begins, in either level; a thread does, and ends with the process."""
    need(level)
    failure = tried(FORKS, level)
    assert isinstance(failure, Failure)
    names = ("fork", "vfork", "clone", "clone3", "subprocess", "spawn", "pool")
    assert failure.message == f"Exception: {(*names, 1)}"


def descendants() -> set[int]:
    found, waiting = set(), [os.getpid()]
    while waiting:
        new = [pid for pid in children(waiting.pop()) if pid not in found]
        found |= set(new)
        waiting += new
    return found


@linux
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter of system calls here")
def test_threads_are_confined_like_the_process(tried: Tried) -> None:
    """A thread that TVM started before the submission, and one that the submission starts, reach nothing more."""
    code = f"""
import os, threading
found = []
def look():
    for place in ({str(Path(__file__))!r}, "/etc/passwd"):
        try: open(place).close(); found.append(place)
        except OSError: pass
    import socket
    try: socket.socket(); found.append("socket")
    except OSError: pass
thread = threading.Thread(target=look); thread.start(); thread.join(); look()
raise Exception("found", found)
"""
    failure = tried(code, "basic")
    assert isinstance(failure, Failure) and failure.message == "Exception: ('found', [])"


@linux
def test_every_thread_of_the_builder_has_the_filter(exercise: Exercise, limits: Limits) -> None:
    """Seen from outside: no thread without the filter, and none that may gain privileges."""
    diagnosis = Diagnosis(
        exercise, Submission("k.py", "import time\nprint('there', flush=True)\ntime.sleep(60)\n"), limits
    )
    with Pump(choose("basic")) as pump:
        builder = start_builder(pump, diagnosis)
        frame = pump.receive(builder, 60)
        tasks = list(Path(f"/proc/{builder.process.pid}/task").iterdir())
        status = [(task / "status").read_text() for task in tasks]
    assert frame.header["isolation"]["system calls"]
    assert all("\nSeccomp:\t2\n" in text and "\nNoNewPrivs:\t1\n" in text for text in status)


BOUNDED = """
import os, sys
refused = []
def memory(): bytearray(1 << 40)
def size():
    import signal
    with open("big", "wb") as f:
        for _ in range(1000): f.write(bytes(1 << 20))
def descriptors():
    kept = []
    while len(kept) < 5000: kept.append(os.dup(1))
def folder():
    for i in range(20):
        with open(f"piece{i}", "wb") as f: f.write(bytes(60 << 20))
def depth():
    sys.setrecursionlimit(5000)
    import json
    json.loads("[" * 10**5)
for test in (memory, size, folder, depth, descriptors):
    try: test()
    except (OSError, MemoryError, RecursionError) as e: refused.append(test.__name__)
raise Exception(*refused)
"""


@linux
def test_what_one_process_takes_is_bounded(tried: Tried) -> None:
    """Memory, size of a file, of all files together (full isolation only), recursion and descriptors: each refused at its bound."""
    failure = tried(BOUNDED, memory_mib=1024)
    assert isinstance(failure, Failure)
    folder = "'folder', " if choose("auto").program else ""
    assert failure.message == f"Exception: ('memory', 'size', {folder}'depth', 'descriptors')"
