"""A pool on one machine: a few long-lived processes, each doing one task after the other.

`concurrent.futures` is not used: there the death of one process fails all tasks that are waiting. Here a process that dies or
hangs is replaced, its task is tried once more, and the others go on.
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
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

TRIES = 2


class HasJson(Protocol):
    """A task: plain data, so that it can be carried to another process."""

    def to_json(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=HasJson)
R = TypeVar("R")


class Stuck(Exception):
    """The process of a worker is dead or does not answer; the message says which."""


class Worker:
    """One process that runs `main` of a module, see `serve`. Starts when it is first needed."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the worker
        self._said = 0  # bytes of it that processes before this one wrote

    def ask(self, task: HasJson, seconds: float) -> dict[str, Any]:
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
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)  # its pipes end a moment before it does
            status = process.poll()
            self.stop()
            how = f"exit status {status}" if status is not None else type(error).__name__
            how = ": ".join(filter(None, (how, self._last_words())))
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

    def _last_words(self) -> str:
        """The last line that the process wrote to stderr, mostly its exception. Its own position in that file stays."""
        size = os.fstat(self._errors.fileno()).st_size
        start = max(self._said, size - 4096)
        lines = os.pread(self._errors.fileno(), size - start, start).decode(errors="replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._said = os.fstat(self._errors.fileno()).st_size
            root = str(Path(__file__).resolve().parents[1])
            code = f"import sys; sys.path.insert(0, {root!r}); from {self._module} import main; main()"
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


def in_parallel(
    tasks: Sequence[T], jobs: int, module: str, one: Callable[[Worker, T, threading.Event], R]
) -> Generator[tuple[T, R], None, None]:
    """(task, result of `one`) for each task, in the order of completion; `jobs` processes run `module`.

    `one(worker, task, stopping)` is called in a thread. Closing the iterator ends all processes.

    Raises:
        whatever `one` raises; there is no point in going on then.
    """
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    finished: queue.SimpleQueue[tuple[T, R] | BaseException | None] = queue.SimpleQueue()
    stopping = threading.Event()
    workers = [Worker(module) for _ in range(max(1, min(jobs, len(tasks))))]

    def work(worker: Worker) -> None:
        try:
            while not stopping.is_set():
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                finished.put((task, one(worker, task, stopping)))
        except BaseException as error:
            finished.put(error)
        finally:
            finished.put(None)

    threads = [threading.Thread(target=work, args=[worker], daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        yield from _until_all_ended(finished, len(threads))
    finally:
        stopping.set()
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(timeout=10)


def _until_all_ended(finished: Any, threads: int) -> Iterator[tuple[Any, Any]]:
    while threads:
        item = finished.get()
        if item is None:
            threads -= 1
        elif isinstance(item, BaseException):
            raise item
        else:
            yield item


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """What a process of the pool does: a task as a JSON line on standard input, an answer as a JSON line on standard output.

    Ends with its input. Whatever else prints goes to standard error.
    """
    from autograder.runner.limits import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides when this process ends
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    die_with_parent()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()
