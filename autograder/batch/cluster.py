"""The same tasks as jobs of a cluster, through submitit.

submitit needs nothing but Slurm's own commands and a shared folder: no scheduler process of ours that has to live as long as the
class is graded, no ports between nodes. Its local executor runs the same jobs on this machine, which is how they are tested.
A job takes a share of the tasks and writes their records; whether a job is lost does not matter, because the next run of
the command finds what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autograder.batch.grading import Task, failed
from autograder.batch.local import WORKER, Done
from autograder.batch.record import kept_record, write_record
from autograder.errors import MachineError, UsageError
from autograder.pool import Stuck, Worker

POLL_SECONDS = 0.5


def run_share(tasks: list[dict[str, Any]], seconds: float) -> int:
    """What a job does: grade its share, each submission in a process that may die; the number of final results."""
    worker, final = Worker(WORKER), 0
    try:
        for task in (Task(**fields) for fields in tasks):
            kept = kept_record(Path(task.results), task.exercise, task.key)
            if kept is not None and kept.final:
                continue  # the job was restarted
            for left in (1, 0):
                try:
                    final += bool(worker.ask(task, seconds).get("final"))
                    break
                except Stuck as stuck:
                    if not left:
                        write_record(Path(task.results), failed(task, f"{stuck}, 2 times"))
    finally:
        worker.stop()
    return final


def run_submitit(
    tasks: Sequence[Task],
    jobs: int,
    seconds: float,
    done: Done,
    folder: Path,
    cluster: str,
    options: dict[str, Any],
) -> None:
    """Grade all tasks in `jobs` jobs.

    cluster: `slurm`, `local`, or empty for what submitit finds. options: of submitit's executor, e.g. slurm_partition.

    Raises:
        UsageError: submitit is not installed, or does not take the options. MachineError: a job was lost.
    """
    try:
        import submitit
    except ImportError:
        raise UsageError(
            "--engine submitit: submitit is not installed; run: pip install 'tirx-kernel-course[cluster]'"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    shares = [[task.to_json() for task in tasks[start::jobs]] for start in range(min(jobs, len(tasks)))]
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster or None)
        minutes = int(seconds / 60) + max(map(len, shares))  # one minute each, and one of them may be stuck
        executor.update_parameters(
            **{"name": "autograde", "cpus_per_task": 2, "mem_gb": 8, "timeout_min": minutes, **options}
        )
        running = [executor.submit(run_share, share, seconds) for share in shares]
    except (NameError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"--engine submitit: {error}") from None
    try:
        _wait(tasks, running, done)
    except BaseException:
        for job in running:
            job.cancel()
        raise


def _wait(tasks: Sequence[Task], running: list[Any], done: Done) -> None:
    """Call `done` for each record that appears, until all jobs have ended."""
    missing = list(tasks)
    while True:
        over = all(job.done() for job in running)
        left = []
        for task in missing:
            record = kept_record(Path(task.results), task.exercise, task.key)
            if record is None:
                left.append(task)
            else:
                done(task, record.final)
        missing = left
        if over:
            break
        time.sleep(POLL_SECONDS)
    if missing:
        lost = next((job for job in running if job.exception() is not None), None)
        reason = str(lost.exception()).strip().splitlines()[-1] if lost is not None else "no reason is known"
        raise MachineError(
            f"{len(missing)} submissions are not graded because a job ended early ({reason[:200]});"
            " run the command again to go on"
        )
