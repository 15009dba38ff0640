"""Builds and runs mutants in a process of their own, under several schedules, and judges the outcome.

A worker process imports TVM once and handles one mutant after the other; a mutant that takes too long costs the
worker its life, and the next one gets a new worker.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import linecache
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mutation.mutants import Mutant
from mutation.subjects import SUBJECTS, Arrays, Subject

# Lints that say: against the letter of the PTX ISA, but today's hardware forgives it. Other lints are advice.
LETTER = (
    "exit.bulk-store-pending",
    "mbarrier.init-not-fenced",
    "mbarrier.many-initialisers",
    "tcgen05.missing-fence",
    "tcgen05.missing-wait-ld",
    "tcgen05.missing-wait-st",
)
SCHEDULES: tuple[tuple[str, int], ...] = (
    ("late", 0),
    ("eager", 0),
    ("random", 1),
    ("random", 2),
    ("random", 3),
)


@dataclass
class Report:
    """One finding, with the lines of the mutated module that it names."""

    code: str
    strength: str
    lines: tuple[int, ...]
    message: str
    fix: str = ""


@dataclass
class Outcome:
    """What happened to a mutant.

    Attributes:
        rejected: why it could not be run at all (TVM, the emulator's compiler or the launch refused it), or "".
        crashed: traceback of an exception that the emulator should not raise, or "".
        timeout: it did not end in time.
        wrong: schedules whose output differs from that of the unchanged kernel.
        reports: distinct findings of all schedules, worst first, in the order of the schedules.
        caught_by: schedules that showed an error, a race or a wrong output.
        seconds: build and runs.
    """

    rejected: str = ""
    crashed: str = ""
    timeout: bool = False
    wrong: list[str] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    caught_by: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def strong(self) -> list[Report]:
        return [r for r in self.reports if r.strength != "lint"]

    @property
    def caught(self) -> bool:
        return bool(self.caught_by) or self.timeout

    @property
    def letter(self) -> bool:
        """Nothing but the letter of the ISA is against it."""
        return not self.caught and any(r.code in LETTER for r in self.reports)

    def located(self, mutant: Mutant, first_only: bool = False) -> bool:
        """Whether a report (the first one of all) names a line that it should, see :mod:`mutation.operators`."""
        allowed = mutant.changed | mutant.partners
        reports = self.strong[:1] if first_only else self.strong
        return any(allowed & set(r.lines) for r in reports)


# ---------------------------------------------------------------------------------------------- in the worker


def _build(path: Path, subject: Subject) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stderr(io.StringIO()):
        spec.loader.exec_module(module)
        return getattr(module, subject.builder)(*subject.args, **subject.kwargs)


def _differs(ours: Arrays, reference: Arrays, tolerance: float) -> bool:
    import numpy as np

    for a, b in zip(ours, reference, strict=True):
        if tolerance == 0:
            if a.tobytes() != b.tobytes():
                return True
        elif not np.allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=0, atol=tolerance * float(np.abs(b).max())
        ):
            return True  # NaN is never close
    return False


def execute(
    subject: Subject, text: str, schedules: Sequence[tuple[str, int]], reference: Arrays | None, folder: Path
) -> tuple[Outcome, Arrays]:
    """Build ``text`` and run it under every schedule; compare with ``reference`` where there is one.

    Returns the outcome and the arrays after the first schedule.
    """
    import emulator

    out = Outcome()
    start = time.perf_counter()
    path = folder / f"mutant_{time.monotonic_ns()}.py"
    path.write_text(text, encoding="utf-8")
    arrays: Arrays = []
    try:
        try:
            kernel = emulator.compile(_build(path, subject))
        except Exception as error:
            out.rejected = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            return out, arrays
        seen: set[tuple[Any, ...]] = set()
        for schedule, seed in schedules:
            mine = [a.copy() for a in subject.arrays()]
            try:
                run = kernel.run(*mine, schedule=schedule, seed=seed)
            except emulator.LaunchError as error:
                out.rejected = f"LaunchError: {error}"
                return out, arrays
            except emulator.UnsupportedInstruction as error:
                out.rejected = f"UnsupportedInstruction: {error}"
                return out, arrays
            name = schedule if schedule != "random" else f"random {seed}"
            wrong = reference is not None and _differs(mine, reference, subject.tolerance)
            arrays = arrays or mine
            if wrong:
                out.wrong.append(name)
            if wrong or not run.ok:
                out.caught_by.append(name)
            for f in run.findings:
                lines = tuple(x.line for x in f.locations if x.file == str(path))
                if (f.code, f.strength, lines, f.names) not in seen:
                    seen.add((f.code, f.strength, lines, f.names))
                    out.reports.append(Report(f.code, f.strength, lines, f.message, f.fix))
        return out, arrays
    except Exception:
        import traceback

        out.crashed = traceback.format_exc()
        return out, arrays
    finally:
        out.seconds = time.perf_counter() - start
        linecache.checkcache(str(path))
        path.unlink(missing_ok=True)


def _work(pipe: Connection, folder: str) -> None:
    """The worker's loop: (subject name, text, schedules) -> Outcome."""
    import emulator
    import emulator.lowering

    references: dict[str, Arrays] = {}
    pipe.send(emulator.__name__)
    while True:
        try:
            name, text, schedules = pipe.recv()
        except EOFError:
            return
        subject = SUBJECTS[name]
        if name not in references:
            _, references[name] = execute(subject, subject.text, [("eager", 0)], None, Path(folder))
        pipe.send(execute(subject, text, schedules, references[name], Path(folder))[0])


# ---------------------------------------------------------------------------------------------- outside


class Workers:
    """One worker process at a time; use as a context manager."""

    def __init__(self, timeout: float = 60.0) -> None:
        """``timeout``: seconds per mutant."""
        self.timeout = timeout
        self._folder = tempfile.TemporaryDirectory(prefix="mutants")
        self._process: Any = None
        self._pipe: Any = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def _start(self) -> None:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, self._folder.name), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None

    def run(self, subject: str, text: str, schedules: Sequence[tuple[str, int]] = SCHEDULES) -> Outcome:
        """The outcome of one module of a subject."""
        if self._process is None:
            self._start()
        self._pipe.send((subject, text, tuple(schedules)))
        if self._pipe.poll(self.timeout):
            try:
                outcome: Outcome = self._pipe.recv()
                return outcome
            except EOFError:
                self._stop()
                return Outcome(crashed="the worker process died")
        self._stop()
        return Outcome(timeout=True, seconds=self.timeout)


def run_all(
    mutants: Iterable[Mutant], schedules: Sequence[tuple[str, int]] = SCHEDULES, timeout: float = 60.0
) -> Iterator[tuple[Mutant, Outcome]]:
    """Every mutant and what happened to it."""
    with Workers(timeout) as workers:
        for mutant in mutants:
            yield mutant, workers.run(mutant.subject, mutant.text, schedules)
