"""A class graded by a pool of processes on this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from autograder.batch.grading import Task, failed
from autograder.batch.record import write_record
from autograder.pool import TRIES, Stuck, Worker, in_parallel

Done = Callable[[Task, bool], None]
WORKER = "autograder.batch.worker"


def run_local(tasks: Sequence[Task], jobs: int, seconds: float, done: Done) -> None:
    """Grade all tasks in `jobs` processes; `done(task, final)` is called in this thread, in the order of completion.

    Raises:
        OSError: a record cannot be written; there is no point in going on then.
    """

    def one(worker: Worker, task: Task, stopping: threading.Event) -> bool:
        return _one(worker, task, seconds, stopping)

    for task, final in in_parallel(tasks, jobs, WORKER, one):
        done(task, final)


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
