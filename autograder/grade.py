"""Grade one submission: start the processes, pass bytes between them, assemble the report."""

from __future__ import annotations

import os
import platform
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.course import Exercise, Limits
from autograder.errors import did_you_mean, nearest
from autograder.runner.frames import Frame
from autograder.runner.process import Child, ChildEnded, End, Pump
from autograder.submission import Submission, syntax_problem

if TYPE_CHECKING:
    from autograder.checks import Failure, Outcome
    from autograder.report.model import GradeReport, Location

SEED_BITS = 40
_MAX_IR_BYTES = 64 << 20


@dataclass(frozen=True)
class Settings:
    """How to grade. `roots` come first on the machine process's import path (a stand-in for tests)."""

    seed: int | None = None
    quick: bool = False
    roots: tuple[Path, ...] = ()


@dataclass
class _Session:
    """State of one grade while it runs."""

    exercise: Exercise
    submission: Submission
    limits: Limits
    settings: Settings
    seed: int
    pump: Pump
    outcome: Outcome
    builder: Child
    machine: Child
    oracle: Child
    versions: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    printed: str = ""


class _Stop(Exception):
    """The grade cannot go on; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def grade(
    exercise: Exercise, submission: Submission, limits: Limits, settings: Settings | None = None
) -> GradeReport:
    """The report of one submission. Writes nothing outside of a private temporary folder.

    Raises:
        MachineError: no process can be started at all.
    """
    settings = settings or Settings()
    seed = (
        settings.seed
        if settings.seed is not None
        else int.from_bytes(os.urandom(8), "little") >> (64 - SEED_BITS)
    )
    started = time.perf_counter()
    if submission.untouched:
        return _stub_report(exercise, submission, seed, settings)
    problem = syntax_problem(submission.source)
    if problem is not None:
        return _unbuildable_report(exercise, submission, seed, settings, *problem)
    with Pump() as pump:
        session = _start(exercise, submission, limits, settings, seed, pump)
        try:
            _build(session)
            _run_cases(session)
        except _Stop as stop:
            if session.outcome.resources is None:
                session.outcome.build_failure = stop.failure
            else:
                session.outcome.run_failure = stop.failure
    session.seconds["total"] = time.perf_counter() - started
    return _report(session.outcome, seed, settings, session.versions, session.seconds, session.printed)


def _start(
    exercise: Exercise, submission: Submission, limits: Limits, settings: Settings, seed: int, pump: Pump
) -> _Session:
    """Start the three processes, the slowest first; report code is imported while they load."""
    oracle = pump.start("oracle", "oracle_child", pump.private_folder("oracle"))
    machine = pump.start("machine", "machine_child", pump.private_folder("machine"), roots=settings.roots)
    source, work = pump.private_folder("snapshot") / "kernel.py", pump.private_folder("builder")
    source.write_bytes(submission.source.encode())
    source.chmod(0o444)
    builder = pump.start(
        "builder",
        "build_child",
        work,
        trusted=False,
        max_json=1 << 20,
        max_raw=_MAX_IR_BYTES,
        max_output=limits.output_kib << 10,
    )
    request = {
        "source": str(source),
        "builder": exercise.builder.name,
        "params": exercise.builder.params,
        "memory_mib": limits.memory_mib,
        "cpu_seconds": limits.build_seconds,
        "writable": str(work),
    }
    pump.send(builder, request)
    pump.send(oracle, _plan(exercise, settings, seed))

    from autograder.checks import Outcome

    outcome = Outcome(exercise, submission)
    return _Session(exercise, submission, limits, settings, seed, pump, outcome, builder, machine, oracle)


def _plan(exercise: Exercise, settings: Settings, seed: int) -> dict[str, Any]:
    cases = [c for c in exercise.cases if c.quick or not settings.quick]
    return {
        "stage": "plan",
        "seed": seed,
        "oracle": exercise.oracle,
        "terms": exercise.size(exercise.tolerance.terms),
        "accumulate_eps": exercise.tolerance.accumulate_eps,
        "tensors": _tensors(exercise),
        "cases": [{"id": case.id, "inputs": case.inputs} for case in cases],
    }


def _tensors(exercise: Exercise) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "role": t.role, "dtype": t.dtype, "shape": list(exercise.shape(t))}
        for t in exercise.tensors
    ]


# Build ------------------------------------------------------------------------------------------


def _build(session: _Session) -> None:
    """Submission -> PrimFunc in the builder's process, PrimFunc -> compiled kernel in the machine's."""
    graph = _prim_func(session)
    frame = _ask(session, session.machine, session.limits.start_seconds, "starting the emulator")
    session.versions |= frame.header.get("versions", {})
    kernel = {"stage": "kernel", "arch": session.exercise.arch, "tensors": _tensors(session.exercise)}
    session.pump.send(session.machine, kernel, graph)
    answer = _ask(
        session, session.machine, session.limits.run_seconds, "lowering the kernel", blame_timeout=True
    )
    if answer.stage == "refused":
        raise _Stop(_refusal(session, answer.header))
    session.outcome.resources = answer.header["resources"]
    session.seconds["lower"] = answer.header["seconds"]


def _prim_func(session: _Session) -> bytes:
    """The graph JSON that the builder's process returned. That process tree is dead when this returns."""
    pump, builder = session.pump, session.builder
    try:
        pump.receive(builder, session.limits.start_seconds)
    except ChildEnded as ended:
        message = _with_last_line(f"the process for the submission did not start ({ended.end})", builder)
        raise _Stop(_machines(message, builder.tail)) from None
    started = time.perf_counter()
    try:
        frame = pump.receive(builder, session.limits.build_seconds)
    except ChildEnded as ended:
        raise _Stop(_ended(session, ended)) from None
    finally:
        pump.kill(builder)
        session.seconds["build"] = time.perf_counter() - started
        session.printed = builder.tail[-4000:]
    if frame.stage == "built":
        return frame.raw
    raise _Stop(_build_failure(session, frame.header))


def _ended(session: _Session, ended: ChildEnded) -> Failure:
    """The submission's process ended without a result."""
    name, limits = session.exercise.builder.name, session.limits
    place = f"{name} or the code around it"
    if ended.end is End.TIMEOUT:
        return _learners(
            f"no kernel after {limits.build_seconds:g} s: {place} does not come to an end",
            "look for a Python loop that never stops; the kernel itself is not run here",
        )
    if ended.end is End.OUTPUT:
        return _learners(
            f"more than {limits.output_kib} KiB printed; the run was stopped",
            "remove the prints, above all in loops",
        )
    if ended.end is End.GARBAGE:
        return _learners(
            "the code wrote into the grader's channel", "use print, and leave other file descriptors alone"
        )
    status = ended.status
    if status is not None and status < 0:
        number = -status
        try:
            what = signal.Signals(number).name
        except ValueError:
            what = f"signal {number}"
        if number == signal.SIGKILL:
            return _machines(
                f"the process of the submission was killed ({what}); the machine may be out of memory"
            )
        if number == signal.SIGXCPU:
            return _learners(f"{place} used up its processor time", "look for a loop that never stops")
        return _learners(
            f"Python crashed with {what} while running {place}", "look for ctypes or recursion without end"
        )
    return _learners(
        f"the code ended its process (exit status {status}) before {name} returned",
        f"return the kernel from {name}",
    )


def _build_failure(session: _Session, header: dict[str, Any]) -> Failure:
    """The builder's process said why there is no PrimFunc."""
    spec = session.exercise.builder
    call = f"{spec.name}({', '.join(spec.params)})"
    line = header.get("line")
    line = line if isinstance(line, int) else None
    message = _clean(header.get("message", ""))
    match header.get("kind"):
        case "builder_missing":
            defined = [str(n) for n in header.get("defined", [])]
            close = nearest(spec.name, defined)
            found = next((_definition(session, n) for n in [close] if n), None)
            return _learners(
                f"there is no function {spec.name}" + did_you_mean(spec.name, defined),
                f"define {call}; its name and parameters are fixed",
                found,
            )
        case "builder_not_callable":
            return _learners(f"{spec.name} is a {header.get('returned')}, not a function", f"define {call}")
        case "builder_signature":
            return _learners(
                f"{spec.name}{header.get('signature', '')} cannot be called as {call}: {message}",
                f"define it as {call}",
                _here(session, line),
            )
        case "not_a_prim_func":
            return _learners(
                f"{spec.name} returned {_article(str(header.get('returned')))}, not a tvm.tirx.PrimFunc",
                "end it with `return` and the function under @T.prim_func",
                _definition(session, spec.name),
            )
        case "not_a_kernel":
            return _learners(f"{spec.name} returned something that is no kernel: {message}")
        case "exit":
            return _learners(
                f"the code called sys.exit({message}) before {spec.name} returned",
                "remove it; return the kernel instead",
                _here(session, line),
            )
        case "rejected":
            return _rejected(session, message, line)
        case "raised":
            return _learners(f"{header.get('type')}: {message}", "", _here(session, line))
    return _learners(
        "the code wrote into the grader's channel", "use print, and leave other file descriptors alone"
    )


_DIAGNOSTIC = re.compile(r"\A(?:error: )?(?P<message>.*?)\n\s*--> (?P<file>.*):(?P<line>\d+):\d+", re.DOTALL)


def _rejected(session: _Session, text: str, line: int | None) -> Failure:
    """TVM's parser rejected the kernel: its own words, at the learner's line."""
    found = _DIAGNOSTIC.search(text)
    if found and found["file"].endswith("kernel.py"):
        return _learners(f"TVM: {_one_line(found['message'])}", "", _here(session, int(found["line"])))
    return _learners(f"TVM: {_one_line(text)[:500]}", "", _here(session, line))


_DISPATCH = re.compile(r"(?P<what>[^\n:]*).*dispatch failed.*exception — \w+: (?P<why>[^\n|]*)", re.DOTALL)


def _essence(text: str) -> str:
    """TVM's words without its tables and Python tracebacks: those speak of TVM's own files."""
    found = _DISPATCH.search(text)
    if found:
        return f"{_one_line(found['what'])}: {_one_line(found['why'])}"
    return _one_line(text.split("Traceback (most recent call last)")[0] or text)[:600]


def _refusal(session: _Session, header: dict[str, Any]) -> Failure:
    """The machine's process does not run the PrimFunc."""
    place, where = header.get("location"), None
    if place:
        where = session.outcome.location(place["file"], place["line"])
    text = str(header.get("message", ""))
    message = _one_line(text)
    match header["kind"]:
        case "buffers":
            return _buffer_mismatch(session, header["buffers"])
        case "unreadable":
            return _learners(
                f"{session.exercise.builder.name} returned something that is no kernel: {message[:300]}"
            )
        case "lowering":
            return _learners(f"TVM: {_essence(text)}", "", where)
        case "launch":
            return _learners(f"the launch is refused: {message}", "", where)
        case "unsupported":
            return _graders(
                message, "use --device cuda on a machine with a Blackwell GPU, or another instruction", where
            )
    return _graders(f"the emulator failed: {message}", "", where)


def _buffer_mismatch(session: _Session, buffers: list[dict[str, Any]]) -> Failure:
    """Wrong number, dtype or shape of the PrimFunc's parameters."""
    wanted = _tensors(session.exercise)
    signature = ", ".join(f"{t['name']}: {t['dtype']} {tuple(t['shape'])}" for t in wanted)
    where = _definition(session, session.exercise.builder.name)
    if len(buffers) != len(wanted):
        return _learners(
            f"the kernel has {len(buffers)} parameters, not {len(wanted)}", f"it takes {signature}", where
        )
    for number, (have, want) in enumerate(zip(buffers, wanted, strict=True), 1):
        if have["shape"] is None:
            return _learners(
                f"parameter {number}, {have['name']}, is no buffer", f"it takes {signature}", where
            )
        if (have["dtype"], have["shape"]) != (want["dtype"], want["shape"]):
            return _learners(
                f"parameter {number}, {have['name']}, is {have['dtype']} {_shape(have['shape'])};"
                f" it must be {want['dtype']} {_shape(want['shape'])}",
                f"the kernel takes {signature}",
                where,
            )
    return _learners("the kernel's parameters do not fit", f"it takes {signature}", where)


# Run --------------------------------------------------------------------------------------------


def _run_cases(session: _Session) -> None:
    """Every case: inputs from the oracle, launch on the machine, output to the oracle, verdict back."""
    from autograder.checks import CaseRun

    exercise, pump, limits = session.exercise, session.pump, session.limits
    deadline = time.monotonic() + limits.run_seconds
    cases = {c.id: c for c in exercise.cases if c.quick or not session.settings.quick}
    for number, case in enumerate(cases.values()):
        inputs = _ask(session, session.oracle, limits.start_seconds, "making the inputs")
        launch_seed = (session.seed + number) % 2**32
        launch = {"stage": "run", "case": case.id, "schedule": case.schedule, "seed": launch_seed}
        pump.send(session.machine, launch, inputs.raw)
    launch_seconds = 0.0
    stopped: _Stop | None = None
    for case in cases.values():
        try:
            ran = _ask(
                session,
                session.machine,
                deadline - time.monotonic(),
                f"running the case {case.id}",
                blame_timeout=True,
            )
        except _Stop as stop:
            stopped = stop
            break
        if ran.stage == "refused":
            stopped = _Stop(_refusal(session, ran.header))
            break
        launch_seconds += ran.header["seconds"]
        run = CaseRun(
            case.id, case.title, ran.header["findings"], ran.header["counters"], ran.header["changed_inputs"]
        )
        session.outcome.runs.append(run)
        pump.send(session.oracle, {"stage": "output", "case": case.id}, ran.raw)
    session.seconds["launches"] = launch_seconds
    pump.kill(session.machine)
    loaded = _ask(session, session.oracle, limits.start_seconds, "loading PyTorch")
    session.versions |= loaded.header["versions"]
    for run in session.outcome.runs:
        verdict = _ask(session, session.oracle, limits.start_seconds, "comparing the output")
        run.comparison = {k: v for k, v in verdict.header.items() if k not in ("stage", "case")}
    if stopped is not None:
        raise stopped


def _ask(session: _Session, child: Child, seconds: float, doing: str, blame_timeout: bool = False) -> Frame:
    """The next frame of a trusted process. Its end is the grader's or the machine's fault, except that a
    launch which takes too long is the kernel's."""
    try:
        return session.pump.receive(child, seconds)
    except ChildEnded as ended:
        if ended.end is End.TIMEOUT and blame_timeout:
            raise _Stop(
                _learners(
                    f"the kernel was stopped after {session.limits.run_seconds:g} s while {doing}",
                    "look for a loop whose end is never reached",
                )
            ) from None
        if ended.end is End.TIMEOUT:
            raise _Stop(_machines(f"{doing} took more than {seconds:g} s", child.tail)) from None
        message = _with_last_line(f"{doing} failed (exit status {ended.status})", child)
        raise _Stop(
            _graders(message, "please report this; --json FILE has the details", log=child.tail)
        ) from None


# Failures ---------------------------------------------------------------------------------------


def _learners(message: str, fix: str = "", where: Location | None = None) -> Failure:
    from autograder.checks import Failure
    from autograder.report.model import Fault

    return Failure(Fault.YOUR_CODE, message, fix, where)


def _graders(message: str, fix: str = "", where: Location | None = None, log: str = "") -> Failure:
    from autograder.checks import Failure
    from autograder.report.model import Fault

    return Failure(Fault.GRADER, message, fix, where, log)


def _machines(message: str, log: str = "") -> Failure:
    from autograder.checks import Failure
    from autograder.report.model import Fault

    return Failure(Fault.MACHINE, message, "`autograde doctor` looks at the machine", log=log)


def _with_last_line(message: str, child: Child) -> str:
    """The message and the last line that the grader's own process printed."""
    last = _one_line((child.tail.strip().splitlines() or [""])[-1])
    return f"{message}: {last[:300]}" if last else message


def _here(session: _Session, line: int | None) -> Location | None:
    from autograder.checks import learner_line

    return None if line is None else learner_line(session.submission, line)


def _definition(session: _Session, name: str) -> Location | None:
    """The line that defines a function of the submission."""
    found = re.search(rf"^[ \t]*(?:def|class)\s+{re.escape(name)}\b", session.submission.source, re.MULTILINE)
    if found is None:
        return None
    return _here(session, session.submission.source.count("\n", 0, found.start()) + 1)


def _clean(text: Any) -> str:
    """Text of the submission without control characters, cut to a sensible length."""
    return re.sub(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f-\x9f]", " ", str(text))[:20_000]


def _one_line(text: str) -> str:
    return " ".join(_clean(text).split())


def _shape(shape: list[Any]) -> str:
    return "(" + ", ".join(str(extent) for extent in shape) + ")"


def _article(noun: str) -> str:
    return noun if noun == "NoneType" else f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


# Report -----------------------------------------------------------------------------------------


def _report(
    outcome: Outcome,
    seed: int,
    settings: Settings,
    versions: dict[str, str],
    seconds: dict[str, float],
    printed: str = "",
    next_step: str | None = None,
) -> GradeReport:
    from autograder import __version__
    from autograder.checks import run_checks
    from autograder.checks.synchronization import lints
    from autograder.report.model import GradeReport, Source

    submission, exercise = outcome.submission, outcome.exercise
    checks = run_checks(outcome)
    source = Source(
        kind=submission.kind, name=submission.name, sha256=submission.sha256, cell=submission.cell
    )
    report = GradeReport(
        exercise=exercise.id,
        title=exercise.title,
        points=round(sum(c.points for c in checks), 2),
        max_points=exercise.total,
        device=f"emulated {exercise.arch}",
        seed=seed,
        quick=settings.quick,
        source=source,
        checks=checks,
        notes=lints(outcome),
        output=_clean(printed),
        versions={"autograder": __version__, "python": platform.python_version(), **versions},
        seconds={name: round(value, 3) for name, value in seconds.items()},
    )
    report.next_step = _next_step(report, exercise) if next_step is None else next_step
    return report


def _next_step(report: GradeReport, exercise: Exercise) -> str:
    if report.exit_code == 3:
        return "no points were taken for this; run `autograde doctor`, then grade again"
    if report.full_marks:
        return "done; `autograde` says what comes next"
    return f"`autograde hint {exercise.id}` helps without giving it away"


def _stub_report(exercise: Exercise, submission: Submission, seed: int, settings: Settings) -> GradeReport:
    """The released stub: nothing to run, and a friendly word."""
    from autograder.checks import Outcome

    name = exercise.builder.name
    outcome = Outcome(exercise, submission)
    outcome.build_failure = _learners(
        f"{name} is still the released stub",
        f"open {submission.place}, replace each `pass` under YOUR CODE HERE, save, and grade again",
    )
    step = f"open {submission.place} and fill in {name}; `autograde hint {exercise.id}` gets you started"
    return _report(outcome, seed, settings, {}, {}, next_step=step)


def _unbuildable_report(
    exercise: Exercise, submission: Submission, seed: int, settings: Settings, line: int, message: str
) -> GradeReport:
    """Python cannot even parse it; no process is started."""
    from autograder.checks import Outcome, learner_line

    outcome = Outcome(exercise, submission)
    outcome.build_failure = _learners(f"syntax error: {message}", "", learner_line(submission, line))
    return _report(outcome, seed, settings, {}, {})
