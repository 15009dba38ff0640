"""One batch: collect, find out what is missing, let an engine grade it, read the records back as rows."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.batch.collect import Handed, collect, with_submissions
from autograder.batch.grading import Task, has_speed, longest_seconds, task, unreadable
from autograder.batch.local import Done, run_local
from autograder.batch.record import Record, kept_record, read_record, snapshot, write_record
from autograder.errors import MachineError, UsageError
from autograder.files import write_atomically
from autograder.gpu import Gpu, NoGpu, find_gpu, missing_software, why_not

if TYPE_CHECKING:
    from autograder.course import Course, Exercise

STATE = "batch.json"
Engine = Callable[[Sequence[Task], int, float, Done], None]
Progress = Callable[[int, int, int], None]  # (graded, of how many, not final)


@dataclass(frozen=True)
class Options:
    """What the command line says. `jobs`: processes, or jobs of a cluster."""

    submitted: Path
    results: Path
    jobs: int = 1
    seed: int | None = None
    quick: bool = False
    device: str = "emulated"
    isolation: str = "auto"
    only: Exercise | None = None


@dataclass
class Row:
    """One line of the class's table.

    `confirmed` is the record of the same submission on a GPU, where there is one. `remark` is about what was handed in.
    """

    student: str
    exercise: Exercise
    name: str
    record: Record
    confirmed: Record | None = None
    remark: str = ""

    @property
    def status(self) -> str:
        """`not graded` is the grader's or the machine's fault; `provisional` marks wait for the GPU."""
        if not self.record.final:
            return "not graded"
        if self.confirmed is not None:
            return "confirmed"
        return "provisional" if has_speed(self.exercise) and self.is_right else "graded"

    @property
    def is_right(self) -> bool:
        """Whether the kernel is correct in the emulator; only such a kernel is ever measured."""
        found = self.record.report.check("correctness") if self.record.report else None
        return found is not None and found.verdict == "pass"

    @property
    def checks(self) -> dict[str, float]:
        """Check -> points: the emulator's, but for the speed, which only a GPU can confirm. Empty where nothing is graded."""
        if not self.record.final:
            return {}
        report = self.record.report
        points = {str(c.id): 0.0 for c in self.exercise.checks}
        points |= {c.id: c.points for c in report.checks} if report else {}
        measured = self.confirmed.report.check("speed") if self.confirmed and self.confirmed.report else None
        return points | ({"speed": measured.points} if measured else {})

    @property
    def points(self) -> float | None:
        """The sum, None where the grader owes it."""
        return round(sum(self.checks.values()), 2) if self.record.final else None

    @property
    def note(self) -> str:
        """What the instructor should know of this line, mostly nothing."""
        return "; ".join(filter(None, (self.remark, self._of_records())))

    def _of_records(self) -> str:
        if self.record.problem:
            return self.record.problem
        if not self.record.final and self.record.report:
            found = next((c for c in self.record.report.checks if c.fault and c.fault != "your code"), None)
            return f"{found.fault} failed: {found.reason or found.summary}" if found else ""
        return "; ".join(self._differs())

    def _differs(self) -> Iterator[str]:
        """Checks that the GPU's grade decides otherwise: to be looked at, the emulator's marks stay."""
        on_gpu = self.confirmed.report if self.confirmed else None
        for check in on_gpu.checks if on_gpu else []:
            here = self.record.report.check(check.id) if self.record.report else None
            if here is not None and check.id != "speed" and here.points != check.points:
                yield f"{check.id}: {here.points:g} points emulated, {check.points:g} on {on_gpu.device}"  # type: ignore[union-attr]


@dataclass
class Class:
    """The result of a batch."""

    title: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    seed: int = 0
    graded: int = 0  # how many results this run computed

    @property
    def owed(self) -> list[Row]:
        return [row for row in self.rows if row.status == "not graded"]


def run_batch(root: Path, course: Course, options: Options, engine: Engine, progress: Progress) -> Class:
    """Grade what is missing and return the whole class.

    Raises:
        UsageError: nothing to grade, or the results folder belongs to something else. MachineError: no GPU, lost jobs.
    """
    gpu = _gpu(options)
    handed, notes = collect(options.submitted, course, options.only)
    with _locked(options.results):
        seed = class_seed(options.results, options.seed)
        handed = with_submissions(handed, root, course)
        plan = _plan(root, course, options, seed, handed)
        graded = _grade(course, [todo for _, todo in plan if todo], options, engine, progress)
        earlier = _earlier(options.results)
        rows = [_row(course, options, one, todo, earlier) for one, todo in plan]
        if gpu is not None:
            graded += _confirm(root, course, options, gpu, rows, progress)
        _write_state(options, seed, rows)
    return Class(course.title, rows, notes, seed, graded)


def read_class(results: Path, course: Course) -> Class:
    """The class of an earlier batch, from its results folder.

    Raises:
        UsageError: the folder holds no such results.
    """
    state = _read_state(results)
    if not isinstance(state.get("rows"), list):
        raise UsageError(f"{results}: holds no results of `autograde batch`")
    try:
        rows = [_kept_row(results, entry, course) for entry in state["rows"]]
        return Class(course.title, rows, seed=int(state["seed"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(f"{results / STATE}: is damaged; run `autograde batch` again") from None


def _kept_row(results: Path, entry: dict[str, Any], course: Course) -> Row:
    record, confirmed = (_entry_record(results, entry, which) for which in ("record", "confirmed"))
    if record is None:
        raise UsageError(f"{results / STATE}: a line names no record; run `autograde batch` again")
    student, name, remark = str(entry["student"]), str(entry["name"]), str(entry.get("remark") or "")
    return Row(student, course.find(record.exercise), name, record, confirmed, remark)


def _entry_record(results: Path, entry: dict[str, Any], which: str) -> Record | None:
    name = Path(str(entry.get(which) or "")).name
    return read_record(results / "records" / name) if name else None


def _plan(
    root: Path, course: Course, options: Options, seed: int, handed: list[Handed]
) -> list[tuple[Handed, Task | Record]]:
    """What holds the result of each line: a task (done or not), or the record of what cannot be read."""
    plan: list[tuple[Handed, Task | Record]] = []
    for one in handed:
        exercise = course.find(one.exercise)
        if one.submission is None:
            record = unreadable(course, exercise, one.problem, seed, options.quick)
            if kept_record(options.results, exercise.id, record.key) is None:
                write_record(options.results, record)
            plan.append((one, record))
            continue
        todo = task(
            root,
            options.results,
            course,
            exercise,
            snapshot(one.submission),
            seed,
            options.quick,
            isolation=options.isolation,
        )
        plan.append((one, todo))
    return plan


def _grade(
    course: Course, tasks: Sequence[Task | Record], options: Options, engine: Engine, progress: Progress
) -> int:
    """Compute the records that are missing or that the grader owes; how many that were."""
    missing: dict[str, Task] = {}
    for todo in tasks:
        if not isinstance(todo, Task):
            continue
        kept = kept_record(options.results, todo.exercise, todo.key)
        if kept is None or not kept.final or not _isolated_enough(kept, options.isolation):
            if kept is not None:
                kept.file(options.results).unlink(missing_ok=True)
            missing[todo.key] = todo
    return _run(list(missing.values()), options.jobs, longest_seconds(course, gpu=False), engine, progress)


def _isolated_enough(record: Record, wanted: str) -> bool:
    """Whether a kept result was graded in the isolation that is demanded now."""
    found = record.report.isolation if record.report else None
    return wanted != "full" or found is None or found.level == "full"


def _run(tasks: list[Task], jobs: int, seconds: float, engine: Engine, progress: Progress) -> int:
    counts = [0, 0]

    def done(_: Task, final: bool) -> None:
        counts[0] += 1
        counts[1] += not final
        progress(counts[0], len(tasks), counts[1])

    if tasks:
        progress(0, len(tasks), 0)
        engine(tasks, jobs, seconds, done)
    return len(tasks)


def _row(
    course: Course, options: Options, one: Handed, todo: Task | Record, earlier: dict[tuple[str, str], Any]
) -> Row:
    """The line of a result; the GPU's word on the very same record is kept."""
    exercise = course.find(one.exercise)
    record = todo if isinstance(todo, Record) else kept_record(options.results, todo.exercise, todo.key)
    if record is None:
        raise MachineError(f"{one.name}: its record is gone; run the command again")
    row = Row(one.student, exercise, one.name, record, remark=one.note)
    entry = earlier.get((one.student, one.exercise))
    if entry and entry.get("confirmed") and entry.get("record") == record.file(options.results).name:
        with contextlib.suppress(UsageError):
            row.confirmed = read_record(options.results / "records" / Path(str(entry["confirmed"])).name)
    return row


# The GPU ----------------------------------------------------------------------------------------


def _gpu(options: Options) -> Gpu | None:
    """The one GPU that `--device cuda` asks for."""
    if options.device != "cuda":
        return None
    if options.quick:
        raise UsageError("--device cuda confirms the speed, which --quick leaves out; drop one of them")
    found = find_gpu()
    reason = found.reason if isinstance(found, NoGpu) else missing_software()
    if reason is not None:
        raise MachineError(f"--device cuda: {reason} (without it, marks are the emulator's)")
    assert isinstance(found, Gpu)
    return found


def _confirm(
    root: Path, course: Course, options: Options, gpu: Gpu, rows: list[Row], progress: Progress
) -> int:
    """The queue for the GPU: one grade at a time, of the kernels that are right in the emulator."""
    waiting: list[tuple[Row, Task]] = []
    for row in rows:
        timed = has_speed(row.exercise) or bool(row.exercise.timing)
        if row.record.submission is None or not row.is_right or not timed or why_not(gpu, row.exercise):
            continue
        seed, submission = row.record.seed, row.record.submission
        waiting.append(
            (
                row,
                task(
                    root,
                    options.results,
                    course,
                    row.exercise,
                    submission,
                    seed,
                    False,
                    gpu,
                    options.isolation,
                ),
            )
        )
    kept = {todo.key: kept_record(options.results, todo.exercise, todo.key) for _, todo in waiting}
    missing = {todo.key: todo for _, todo in waiting if (found := kept[todo.key]) is None or not found.final}
    graded = _run(list(missing.values()), 1, longest_seconds(course, gpu=True), run_local, progress)
    for row, todo in waiting:
        found = kept_record(options.results, todo.exercise, todo.key)
        row.confirmed = found if found is not None and found.final else None
    return graded


# The results folder -----------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(results: Path) -> Iterator[None]:
    """The results folder, ours alone where the file system has locks."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(results / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"{results}: cannot be written ({error.strerror or error})") from None
    try:
        _lock(descriptor, results)
        yield
    except OSError as error:
        raise UsageError(f"{results}: cannot be written ({error.strerror or error})") from None
    finally:
        os.close(descriptor)


def _lock(descriptor: int, results: Path) -> None:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{results}: another `autograde batch` writes there now") from None
    except (ImportError, OSError):  # no such locks here: the records stay whole without them
        return


def class_seed(results: Path, wanted: int | None = None) -> int:
    """The seed of the whole class, kept in the folder before anything is graded: all get the same inputs, run after run."""
    from autograder.grade import SEED_BITS

    results.mkdir(parents=True, exist_ok=True)
    kept = _read_state(results).get("seed")
    seed = wanted if wanted is not None else kept
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        seed = int.from_bytes(os.urandom(8), "little") >> (64 - SEED_BITS)
    if seed != kept:
        _save_state(results, {"seed": seed, "rows": []})
    return seed


def _earlier(results: Path) -> dict[tuple[str, str], Any]:
    """(student, exercise) -> the line that an earlier run wrote."""
    rows = _read_state(results).get("rows")
    whole = [e for e in rows if isinstance(e, dict)] if isinstance(rows, list) else []
    return {(str(entry.get("student")), str(entry.get("exercise"))): entry for entry in whole}


def _write_state(options: Options, seed: int, rows: list[Row]) -> None:
    """Which record belongs to whom; the lines of exercises that this run did not look at stay."""
    kept = _earlier(options.results) if options.only else {}
    for row in rows:
        kept[row.student, row.exercise.id] = {
            "student": row.student,
            "exercise": row.exercise.id,
            "name": row.name,
            "remark": row.remark,
            "record": row.record.file(options.results).name,
            "confirmed": row.confirmed.file(options.results).name if row.confirmed else "",
        }
    _save_state(options.results, {"seed": seed, "rows": [kept[key] for key in sorted(kept)]})


def _save_state(results: Path, state: dict[str, Any]) -> None:
    state = {"format": "autograde-batch", "version": 1, **state}
    write_atomically(results / STATE, (json.dumps(state, indent=1) + "\n").encode())


def _read_state(results: Path) -> dict[str, Any]:
    try:
        state = json.loads((results / STATE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) and state.get("format") == "autograde-batch" else {}
