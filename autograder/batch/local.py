"""The pool on one machine: a few long-lived processes, each grading one submission after the other.

`concurrent.futures` is not used: there the death of one process fails all tasks that are waiting. Here a process that dies or
hangs is replaced, its task is tried once more, and the class goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from autograder.batch.grading import Task, failed
from autograder.batch.record import write_record

TRIES = 2
Done = Callable[[Task, bool], None]


class Stuck(Exception):
    """The process of a worker is dead or does not answer; the message says which."""


class Worker:
    """One process that grades. Starts when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the worker

    def ask(self, task: Task, seconds: float) -> dict[str, Any]:
        """The answer to a task.

        Raises:
            Stuck: there is none; the process is gone afterwards.
        """
        process = self._started()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(task.to_json()).encode() + b"\n")
            process.stdin.flush()
            line = _read_line(process.stdout.fileno(), seconds)
            answer: dict[str, Any] = json.loads(line)
            return answer
        except TimeoutError:
            self.stop()
            raise Stuck(f"the process that graded it did not answer within {seconds:g} s") from None
        except (OSError, ValueError) as error:
            status = process.poll()
            self.stop()
            how = f"exit status {status}" if status is not None else type(error).__name__
            raise Stuck(f"the process that graded it died ({how})") from None

    def stop(self) -> None:
        """Kill the process; the processes that it started die with it. Safe to repeat."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            root = str(Path(__file__).resolve().parents[2])
            code = (
                f"import sys; sys.path.insert(0, {root!r}); from autograder.batch.worker import main; main()"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-X", "utf8", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        return self._process


def _read_line(pipe: int, seconds: float) -> bytes:
    """The next line of a pipe that nobody else reads.

    Raises:
        TimeoutError: none came in time. EOFError, a ValueError here: the pipe ended.
    """
    deadline, data = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not data.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            piece = os.read(pipe, 1 << 16)
            if not piece:
                raise ValueError("the pipe ended")
            data += piece
    return data


def run_local(tasks: Sequence[Task], jobs: int, seconds: float, done: Done) -> None:
    """Grade all tasks in `jobs` processes; `done(task, final)` is called in this thread, in the order of completion.

    Raises:
        OSError: a record cannot be written; there is no point in going on then.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    finished: queue.SimpleQueue[tuple[Task, bool] | BaseException | None] = queue.SimpleQueue()
    stopping = threading.Event()
    workers = [Worker() for _ in range(max(1, min(jobs, len(tasks))))]

    def serve(worker: Worker) -> None:
        try:
            while not stopping.is_set():
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                finished.put((task, _one(worker, task, seconds, stopping)))
        except BaseException as error:
            finished.put(error)
        finally:
            finished.put(None)

    threads = [threading.Thread(target=serve, args=[worker], daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        for task, final in _until_all_ended(finished, len(threads)):
            done(task, final)
    finally:
        stopping.set()
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(timeout=10)


def _until_all_ended(finished: Any, threads: int) -> Iterator[tuple[Task, bool]]:
    while threads:
        item = finished.get()
        if item is None:
            threads -= 1
        elif isinstance(item, BaseException):
            raise item
        else:
            yield item


def _one(worker: Worker, task: Task, seconds: float, stopping: threading.Event) -> bool:
    """Grade one task; True when its result is final."""
    problem = ""
    for _ in range(TRIES):
        try:
            answer = worker.ask(task, seconds)
        except Stuck as stuck:
            if stopping.is_set():
                return False
            problem = str(stuck)
            continue
        if "error" in answer:
            raise OSError(answer["error"])
        return bool(answer["final"])
    write_record(Path(task.results), failed(task, f"{problem}, {TRIES} times"))
    return False
