"""Grade one submission: start the processes, pass bytes between them, assemble the report."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autograder import __version__
from autograder.assembly import NO_NVCC, Assembler, Assembly, find_nvcc
from autograder.checks import COSTLY, CaseRun, Compiled, Outcome, bank_conflicts, coalescing, run_checks
from autograder.checks.synchronization import lints, same_mistake
from autograder.course import MODELLED, Builder, Case, Exercise, Limits, Timing
from autograder.diagnosis import (
    Diagnosis,
    Stopped,
    clean,
    graders,
    machines,
    printed_by_submission,
    with_last_line,
    yours,
)
from autograder.errors import MachineError
from autograder.gpu import Gpu
from autograder.on_gpu import BACKEND, GpuSide, explain, unmeasured
from autograder.report.model import (
    Evidence,
    Fault,
    GradeReport,
    Isolation,
    Measured,
    ModelledTime,
    Source,
    Verdict,
)
from autograder.runner.build import receive_more, receive_prim_funcs, start_builder, start_spare
from autograder.runner.confinement import level
from autograder.runner.frames import Frame
from autograder.runner.process import Child, ChildEnded, End, Pump
from autograder.runner.sandbox import choose
from autograder.speed import against_the_roof, work_left_out
from autograder.submission import Submission, syntax_problem

SEED_BITS = 40
_KEPT_OUTPUT = 4000


@dataclass(frozen=True)
class Step:
    """How far a grade is: what it does now, and how many of its launches are over."""

    what: str
    done: int = 0
    total: int = 0


Listener = Callable[[Step], None]


@dataclass(frozen=True)
class Settings:
    """How to grade. With `gpu`, the kernels run there and in the emulator; `measure` times them, too, there or by the model.

    `roots` come first on the import path of the trusted processes, `backend` is the module that drives the GPU (stand-ins
    for tests). `cache` is the folder that keeps what nvcc reported, None to keep nothing. `isolation` is `auto`, `basic` or
    `full`; `hidden` are folders that no process of the submission may see even if they lie within Python's own. `listen` is
    told how far the grade is; `heartbeat` is called at least twice a second while it waits, and what it raises ends it.
    """

    seed: int | None = None
    quick: bool = False
    gpu: Gpu | None = None
    measure: bool = True
    roots: tuple[Path, ...] = ()
    backend: str = BACKEND
    cache: Path | None = None
    isolation: str = "auto"
    hidden: tuple[Path, ...] = ()
    listen: Listener | None = None
    heartbeat: Callable[[], None] | None = None


@dataclass
class Session:
    """One grade while it runs, and what it will report."""

    outcome: Outcome
    seed: int
    quick: bool
    gpu: Gpu | None = None
    lowered: int = 0  # kernels that the machine's process has been sent
    versions: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    printed: str = ""
    isolation: Isolation | None = None
    listen: Listener | None = None
    sent: list[int] = field(
        default_factory=list
    )  # indices of the kernels, as the machine's process numbers them

    @property
    def diagnosis(self) -> Diagnosis:
        return self.outcome.diagnosis

    def tell(self, what: str, done: int = 0) -> None:
        """Say how far the grade is to whoever listens."""
        if self.listen is not None:
            self.listen(Step(what, done, len(self.launches)))

    @property
    def measured(self) -> list[Measured]:
        return self.outcome.measured

    @property
    def exercise(self) -> Exercise:
        return self.outcome.exercise

    @property
    def limits(self) -> Limits:
        return self.outcome.diagnosis.limits

    def arch(self, exercise: Exercise) -> str:
        """What the emulator emulates: the exercise's architecture, beside a GPU that GPU's."""
        return (self.gpu.arch if self.gpu else None) or exercise.arch

    @property
    def launches(self) -> list[tuple[int, Case]]:
        """`cases` of the kernels that were built."""
        return [(number, case) for number, case in self.cases if number not in self.outcome.missing]

    @property
    def cases(self) -> list[tuple[int, Case]]:
        """(index of the kernel, case) of every launch that there should be, in order."""
        kernels = enumerate(self.exercise.kernels)
        return [(n, case) for n, kernel in kernels for case in kernel.cases]


def warm_pump(limits: Limits, hidden: tuple[Path, ...] = ()) -> Pump:
    """The processes of a later grade, started ahead: they import what they need and then wait, having run nothing.

    hidden: as in `Settings`; the isolation is the best of this machine.
    """
    pump = Pump(choose("auto", hidden))
    pump.keep_as_spare(pump.start("oracle", "oracle_child", pump.private_folder("oracle")))
    pump.keep_as_spare(_start_machine(pump))
    start_spare(pump, limits)
    return pump


def _start_machine(pump: Pump, roots: tuple[Path, ...] = ()) -> Child:
    return pump.start("machine", "machine_child", pump.private_folder("machine"), roots=roots, confined=True)


def grade(
    exercise: Exercise,
    submission: Submission,
    limits: Limits,
    settings: Settings | None = None,
    pump: Pump | None = None,
) -> GradeReport:
    """The report of one submission. Writes nothing outside of a private temporary folder and `settings.cache`.

    pump: from `warm_pump`; it is used up. None: processes are started now.

    Raises:
        MachineError: no process can be started at all, or not with the isolation that was demanded.
    """
    settings = settings or Settings()
    sandbox = choose(settings.isolation, settings.hidden)
    limits = exercise.within(limits)
    if settings.quick:
        exercise = exercise.only_quick()
    seed = settings.seed if settings.seed is not None else _secret_seed()
    session = Session(Outcome(Diagnosis(exercise, submission, limits)), seed, settings.quick, settings.gpu)
    try:
        with pump or Pump(sandbox) as pump:
            return _graded(session, pump, settings)
    except OSError as error:
        place, why = tempfile.gettempdir(), error.strerror or error
        raise MachineError(f"the folder for temporary files, {place}, cannot be used ({why})") from None


def _graded(session: Session, pump: Pump, settings: Settings) -> GradeReport:
    submission = session.outcome.submission
    if submission.untouched:
        return _stub_report(session)
    problem = syntax_problem(submission.source)
    if problem is not None:
        line, message = problem
        where = session.diagnosis.learner_line(line)
        session.outcome.build_failure = yours(f"syntax error: {message}", "", where)
        return _report(session)
    session.listen, pump.heartbeat = settings.listen, settings.heartbeat
    started = time.perf_counter()
    _run(session, pump, settings)
    session.seconds["total"] = time.perf_counter() - started
    return _report(session)


def _secret_seed() -> int:
    """Fresh for every grade, short enough to be typed after --seed."""
    return int.from_bytes(os.urandom(8), "little") >> (64 - SEED_BITS)


def _run(session: Session, pump: Pump, settings: Settings) -> None:
    """Build, lower, launch, compare; a failure ends it where it happens. The processes load in parallel."""
    session.tell("building the kernel")
    oracle = pump.spare("oracle") or pump.start("oracle", "oracle_child", pump.private_folder("oracle"))
    machine = pump.spare("machine") or _start_machine(pump, settings.roots)
    machine.max_tree_mib = session.limits.memory_mib
    side = _gpu_side(session, pump, settings)
    assembler = _assembler(session, pump, settings)
    modelling = side is None and settings.measure
    timings = list(session.exercise.timing) if (side and side.timer) or modelling else []
    more = [session.exercise.timed(timing).builder for timing in timings]
    builder = start_builder(pump, session.diagnosis, more)
    pump.send(oracle, _plan(session))
    try:
        started = time.perf_counter()
        try:
            outcome, keep = session.outcome, bool(more)
            graphs = receive_prim_funcs(
                pump, builder, session.diagnosis, outcome.tables, outcome.layouts, keep, outcome.missing
            )
            timed = receive_more(pump, builder, session.diagnosis, len(more))
        finally:
            session.seconds["build"] = time.perf_counter() - started
            session.printed = builder.tail[-_KEPT_OUTPUT:]
            session.isolation = _isolation(builder.isolation, settings)
        if side:
            side.compile(graphs)
        if assembler:
            limits = session.limits
            arch = session.exercise.arch
            first = next(graph for graph in graphs if graph is not None)
            assembler.send(first, arch, limits.memory_mib, limits.run_seconds)
        session.tell("lowering the kernel")
        lower(session, pump, machine, graphs)
        modelled = list(zip(timings, timed, strict=True)) if modelling else []
        _run_cases(session, pump, machine, oracle, side, modelled)
        if assembler:
            session.tell("waiting for nvcc", len(session.launches))
            started = time.perf_counter()
            session.outcome.assembly = assembler.result(session.limits.run_seconds)
            session.seconds["assembly"] = time.perf_counter() - started
        if side and timings and not session.outcome.run_failure:
            session.tell("measuring on the GPU", len(session.launches))
            _measure(session, pump, machine, side, list(zip(timings, timed, strict=True)))
    except Stopped as stopped:
        if session.outcome.resources is None:
            session.outcome.build_failure = stopped.failure
        else:
            session.outcome.run_failure = stopped.failure


def _isolation(active: dict[str, bool], settings: Settings) -> Isolation | None:
    """What the submission's process found in force before the submission ran; None where it never came that far."""
    if not active:
        return None
    found = Isolation(
        level=level(active),
        active=[name for name, there in active.items() if there],
        missing=[name for name, there in active.items() if not there],
    )
    if settings.isolation == "full" and found.level != "full":
        raise MachineError(f"--isolation full: only {found.level} isolation was in force")
    return found


def _assembler(session: Session, pump: Pump, settings: Settings) -> Assembler | None:
    """The process that asks nvcc, where the exercise wants it and the machine has one."""
    check = session.exercise.check("resources")
    if check is None or check.assembly is None:
        return None
    if settings.quick:
        session.outcome.assembly = Assembly(reason="this is a quick grade")
        return None
    nvcc = find_nvcc()
    if nvcc is None:
        session.outcome.assembly = Assembly(reason=NO_NVCC)
        return None
    assembler = Assembler(pump, nvcc, settings.cache)
    assembler.start()
    return assembler


def _gpu_side(session: Session, pump: Pump, settings: Settings) -> GpuSide | None:
    if session.gpu is None:
        return None
    side = GpuSide(pump, session.gpu, session.exercise, session.limits, settings.backend, settings.roots)
    side.start(measure=settings.measure and not session.quick)
    return side


def _measure(
    session: Session, pump: Pump, machine: Child, side: GpuSide, timed: list[tuple[Timing, bytes | str]]
) -> None:
    """Time what is right on the GPU, after everything else has ended there."""
    assert session.gpu is not None
    started = time.perf_counter()
    names = [kernel.builder.name for kernel in session.exercise.kernels]
    wrong = {names[run.kernel] for run in session.outcome.runs if not run.correct}
    ready: list[tuple[Timing, bytes | str]] = []
    for timing, graph in timed:
        kernel = session.exercise.timed(timing)
        if kernel.builder.name in wrong or not session.outcome.runs:
            message = "only a kernel that is right in every case is measured"
            session.measured.append(unmeasured(kernel, timing, session.gpu, message, Fault.YOUR_CODE))
        elif isinstance(graph, bytes) and (problem := _refused(session, pump, machine, kernel, graph)):
            session.measured.append(unmeasured(kernel, timing, session.gpu, problem, Fault.YOUR_CODE))
        else:
            ready.append((timing, graph))
    pump.kill(machine)
    side.end()
    session.measured.extend(side.measure(ready, session.seed))
    session.seconds["measure"] = time.perf_counter() - started


def _refused(session: Session, pump: Pump, machine: Child, kernel: Exercise, graph: bytes) -> str:
    """Why the emulator does not accept a kernel that is to be measured; empty where it does."""
    pump.send(machine, _kernel_request(session, kernel), graph)
    try:
        answer = ask(
            session, pump, machine, session.limits.run_seconds, "lowering the kernel for its measurement"
        )
    except Stopped as stopped:
        return stopped.failure.message
    if answer.stage != "refused":
        return ""
    return replace(session.diagnosis, exercise=kernel).refusal(answer.header).message


def _kernel_request(session: Session, kernel: Exercise) -> dict[str, Any]:
    return {
        "stage": "kernel",
        "arch": session.arch(kernel),
        "tensors": kernel.tensor_specs(),
        "memory_mib": session.limits.memory_mib,
        "cpu_seconds": session.limits.run_seconds,
        "vet": session.gpu is not None,
    }


def _plan(session: Session) -> dict[str, Any]:
    return {
        "stage": "plan",
        "seed": session.seed,
        "kernels": [
            {
                "oracle": kernel.oracle,
                "terms": kernel.size(kernel.tolerance.terms),
                "accumulate_eps": kernel.tolerance.eps,
                "options": kernel.options,
                "tensors": kernel.tensor_specs(),
            }
            for kernel in session.exercise.kernels
        ],
        "cases": [{"id": case.id, "inputs": case.inputs, "kernel": number} for number, case in session.cases],
    }


def lower(session: Session, pump: Pump, machine: Child, graphs: Sequence[bytes | None]) -> None:
    """PrimFuncs -> compiled kernels in the machine's process.

    In an exercise in stages, one that TVM refuses is missing like one that was not built, unless it is the last.
    """
    ready = ask(session, pump, machine, session.limits.start_seconds, "starting the emulator")
    session.versions |= ready.header["versions"]
    outcome, compiled, resources = session.outcome, [], None
    session.seconds["lower"] = 0.0
    for number, (kernel, graph) in enumerate(zip(session.exercise.kernels, graphs, strict=True)):
        if graph is None:
            compiled.append(Compiled())
            continue
        pump.send(machine, _kernel_request(session, kernel), graph)
        session.sent.append(number)
        session.lowered += 1
        limit = session.limits.run_seconds
        answer = ask(session, pump, machine, limit, "lowering the kernel", blame_time=True)
        seen = answer.header
        if answer.stage == "refused":
            failure = replace(session.diagnosis, exercise=kernel).refusal(seen)
            if not session.exercise.stages or failure.fault is not Fault.YOUR_CODE:
                raise Stopped(failure)
            outcome.missing[number] = failure
            compiled.append(Compiled())
            continue
        compiled.append(Compiled(seen["operations"], seen["parameters"]))
        resources = _most(resources, seen["resources"])
        session.seconds["lower"] += seen["seconds"]
    if resources is None:
        raise Stopped(next(iter(outcome.missing.values())))
    outcome.compiled, outcome.resources, outcome.planned = compiled, resources, len(session.cases)


def _most(one: dict[str, int] | None, other: dict[str, int]) -> dict[str, int]:
    """What the largest of several kernels occupies."""
    return {name: max(value, (one or {}).get(name, value)) for name, value in other.items()}


def _run_cases(
    session: Session,
    pump: Pump,
    machine: Child,
    oracle: Child,
    side: GpuSide | None = None,
    modelled: Sequence[tuple[Timing, bytes | str]] = (),
) -> None:
    """Every case: inputs from the oracle, launch on the machine, output to the oracle, verdict back.

    Beside a GPU, the verdict on the output is the one on the GPU's, and everything else comes from the emulator. Without
    one, the kernels of `modelled` are timed by the model once all cases have run.
    """
    limits = session.limits
    profile = any(session.exercise.check(kind) for kind in ("coalescing", "bank_conflicts"))
    raw_inputs: list[bytes] = []
    follow = _followed_case(session)
    for number, (kernel, case) in enumerate(session.cases):
        inputs = ask(session, pump, oracle, limits.start_seconds, "making the inputs")
        if kernel in session.outcome.missing:
            continue
        seed = (session.seed + number) % 2**32
        launch = {
            "case": case.id,
            "kernel": session.sent.index(kernel),
            "schedule": case.schedule,
            "seed": seed,
        }
        pump.send(
            machine, {"stage": "run", "profile": profile, "follow": number == follow, **launch}, inputs.raw
        )
        raw_inputs.append(inputs.raw)
    stopped = None
    expected: list[tuple[CaseRun, str]] = []  # whose output the oracle's next verdict is about
    try:
        outputs = _launch(session, pump, machine, oracle, expected)
        if side is not None:
            _launch_on_gpu(session, pump, oracle, side, raw_inputs, outputs, expected)
        _model(session, pump, machine, modelled)
    except Stopped as early:  # what ran before it is still compared
        stopped = early
    if side is None:
        pump.kill(machine)
    loaded = ask(session, pump, oracle, limits.start_seconds, "loading PyTorch")
    session.versions |= loaded.header["versions"]
    for run, place in expected:
        verdict = ask(session, pump, oracle, limits.start_seconds, "comparing the output")
        setattr(run, place, {k: v for k, v in verdict.header.items() if k not in ("stage", "case")})
    if not all(run.correct for run in session.outcome.runs):  # how long a wrong kernel takes says nothing
        session.outcome.modelled, session.outcome.untimed = [], []
    if stopped is not None:
        raise stopped


def _followed_case(session: Session) -> int | None:
    """The number of the case in which it is looked at what D depends on, where an exercise asks for MMAs: one that nobody knows
    before the grade, with random inputs, of which every product matters."""
    if not any("mma" in name.split(".") for name in session.exercise.counters("at_least")):
        return None
    normal = [n for n, (_, case) in enumerate(session.cases) if case.inputs == "normal"]
    return normal[session.seed % len(normal)] if normal else None


def _model(
    session: Session, pump: Pump, machine: Child, kernels: Sequence[tuple[Timing, bytes | str]]
) -> None:
    """The modelled time at the problem sizes of `timing`, or why there is none."""
    if not kernels:
        return
    session.tell("modelling its time at full size", len(session.launches))
    started, seen = time.perf_counter(), list[Builder]()
    for timing, graph in sorted(kernels, key=lambda pair: MODELLED not in pair[0].tiers):
        kernel = session.exercise.timed(timing)
        if kernel.builder in seen:  # measured against several references, modelled once
            continue
        seen.append(kernel.builder)
        try:
            if isinstance(graph, str):
                raise Stopped(yours(graph))
            _model_one(session, pump, machine, timing, kernel, graph)
        except Stopped as stopped:
            failure = stopped.failure
            sizes = ", ".join(f"{name} = {value}" for name, value in kernel.builder.params.items())
            message = f"{kernel.builder.name}({sizes}) cannot be timed: {failure.message}"
            session.outcome.untimed.append(replace(failure, message=message))
            if machine.end is not None:
                break
    session.seconds["model"] = time.perf_counter() - started


def _model_one(
    session: Session, pump: Pump, machine: Child, timing: Timing, kernel: Exercise, graph: bytes
) -> None:
    """Raises Stopped where the kernel that was built for the timed size is refused, or is no kernel for that size."""
    outcome, limit = session.outcome, session.limits.run_seconds
    diagnosis = replace(session.diagnosis, exercise=kernel)
    pump.send(machine, _kernel_request(session, kernel), graph)
    answer = ask(session, pump, machine, limit, "lowering the kernel for its model", blame_time=True)
    session.lowered += 1
    if answer.stage == "refused":
        raise Stopped(diagnosis.refusal(answer.header))
    graded = [_statements(one.operations) for one in outcome.compiled]
    if _statements(answer.header["operations"]) not in graded:
        message = "it consists of other statements than any kernel whose output was compared"
        fix = "build the same kernel for every size, or let one of the tested sizes take this way, too"
        raise Stopped(yours(message, fix))
    request = {"stage": "model", "kernel": session.lowered - 1, "clock_ghz": None, "intervals": False}
    pump.send(machine, {**request, "inspect": session.seed})
    answer = ask(session, pump, machine, limit, "modelling the kernel", blame_time=True)
    if answer.stage == "refused":
        raise Stopped(diagnosis.refusal(answer.header))
    found = answer.header["modelled"]
    lacking = work_left_out(kernel, timing, found)
    if lacking:
        raise Stopped(yours(f"it leaves out work: {lacking}"))
    paid = {same_mistake(finding) for run in outcome.runs for finding in run.findings}
    costly = [f for f in answer.header["findings"] if f["strength"] in COSTLY and same_mistake(f) not in paid]
    if costly:
        at = [diagnosis.location(place["file"], place["line"]) for place in costly[0]["locations"][:1]]
        raise Stopped(yours(costly[0]["message"], costly[0]["fix"], *at))
    modelled = ModelledTime(
        builder=kernel.builder.name,
        params=dict(kernel.builder.params),
        tensor_core=found["busy"].get("tensor core"),
        **{name: found[name] for name in _MODELLED},
    )
    outcome.modelled.append(against_the_roof(modelled, timing, kernel))
    places = {(place["file"], place["line"]): None for place in found["waits_at"]}
    outcome.slow_lines.append([session.diagnosis.location(file, line) for file, line in places])


def _statements(operations: list[dict[str, Any]]) -> set[tuple[str, int, str]]:
    """What a kernel consists of, whatever its size: its lines and their instructions."""
    return {(op["file"], op["line"], op["instruction"]) for op in operations}


_MODELLED = ("device", "clock_ghz", "microseconds", "bytes_dram", "flops", "bottleneck")


def _launch_on_gpu(
    session: Session,
    pump: Pump,
    oracle: Child,
    side: GpuSide,
    inputs: list[bytes],
    outputs: list[bytes],
    expected: list[tuple[CaseRun, str]],
) -> None:
    """Launch every case that the emulator ran on the GPU, too, with the same bytes."""
    started = time.perf_counter()
    side.await_compiled()
    session.versions |= side.versions
    launches = zip(session.launches, session.outcome.runs, inputs, outputs, strict=False)
    for (number, case), run, raw, emulated in launches:
        output = side.launch(number, case, run, raw)
        if output is not None:
            run.same_bytes = output == emulated
            pump.send(oracle, {"stage": "output", "case": case.id}, output)
            expected.append((run, "comparison"))
    session.seconds["gpu"] = time.perf_counter() - started


def _launch(
    session: Session, pump: Pump, machine: Child, oracle: Child, expected: list[tuple[CaseRun, str]]
) -> list[bytes]:
    """Collect the launches in order and pass every output on. All of them share one deadline.

    Raises:
        Stopped: one of them was refused (the others ran), or the process ended.
    """
    place = "comparison" if session.gpu is None else "emulated"
    outputs, refused = [], None
    deadline = time.monotonic() + session.limits.run_seconds
    session.seconds["launches"] = 0.0
    for done, (number, case) in enumerate(session.launches):
        session.tell(f"running {case.title}", done)
        rest = deadline - time.monotonic()
        ran = ask(session, pump, machine, rest, f"running the case {case.id}", blame_time=True)
        if ran.stage == "refused":
            refused = refused or Stopped(session.diagnosis.refusal(ran.header))
            continue
        seen = ran.header
        run = CaseRun(case.id, case.title, seen["findings"], seen["counters"], seen["changed_inputs"])
        run.kernel, run.schedule, run.accesses = number, case.schedule, seen["accesses"]
        run.stage, run.writers, run.followed = case.stage, seen["writers"], seen["followed"]
        session.outcome.runs.append(run)
        session.outcome.resources = _most(session.outcome.resources, seen["resources"])
        session.seconds["launches"] += seen["seconds"]
        pump.send(oracle, {"stage": "output", "case": case.id}, ran.raw)
        expected.append((run, place))
        outputs.append(ran.raw)
    if refused is not None:
        raise refused
    return outputs


def ask(
    session: Session, pump: Pump, child: Child, seconds: float, doing: str, blame_time: bool = False
) -> Frame:
    """The next frame of a trusted process.

    Its early end is the grader's fault; taking too long is the machine's, with `blame_time` the kernel's.
    """
    try:
        return pump.receive(child, seconds)
    except ChildEnded as ended:
        if ended.end is End.TIMEOUT and blame_time:
            message = f"the kernel was stopped after {session.limits.run_seconds:g} s while {doing}"
            raise Stopped(yours(message, "look for a loop whose end is never reached")) from None
        if ended.end is End.TIMEOUT:
            raise Stopped(machines(f"{doing} took more than {seconds:g} s", child.tail)) from None
        message = with_last_line(f"{doing} failed (exit status {ended.status})", child)
        fix = "please report this; --json FILE has the details"
        raise Stopped(graders(message, fix, log=child.tail)) from None


# Report -----------------------------------------------------------------------------------------


def _report(session: Session, next_step: str | None = None) -> GradeReport:
    outcome = session.outcome
    submission, exercise = outcome.submission, outcome.exercise
    checks = run_checks(outcome)
    emulated = f"emulated {session.arch(exercise)}"
    report = GradeReport(
        exercise=exercise.id,
        title=exercise.title,
        points=round(sum(c.points for c in checks), 2),
        max_points=exercise.total,
        device=session.gpu.name if session.gpu else emulated,
        seed=session.seed,
        quick=session.quick,
        source=Source(
            kind=submission.kind, name=submission.name, sha256=submission.sha256, cell=submission.cell
        ),
        checks=checks,
        judged_on=_judged_on(session, emulated),
        isolation=session.isolation,
        measured=session.measured,
        modelled=outcome.modelled,
        notes=[
            *_beside(session, emulated),
            *coalescing.observations(outcome),
            *bank_conflicts.observations(outcome),
            *lints(outcome),
        ],
        output=printed_by_submission(clean(session.diagnosis.own_name(session.printed))),
        versions={"autograder": __version__, "python": platform.python_version(), **session.versions},
        seconds={name: round(value, 3) for name, value in session.seconds.items()},
    )
    report.next_step = _next_step(report, exercise) if next_step is None else next_step
    return report


# What a GPU decides where it runs the kernel.
ON_GPU = ("correctness", "speed")
# What the emulator alone can see, also where a GPU runs the kernel.
_EMULATORS_CHECKS = ("synchronization", "mechanism", "coalescing", "bank_conflicts", "resources")


def _judged_on(session: Session, emulated: str) -> dict[str, str]:
    """Check -> device, where there are two."""
    if session.gpu is None:
        return {}
    checks = session.exercise.checks
    on_gpu = {check.id: session.gpu.name for check in checks if check.kind in ON_GPU}
    return on_gpu | {check.id: emulated for check in checks if check.kind in _EMULATORS_CHECKS}


def _beside(session: Session, emulated: str) -> list[Evidence]:
    if session.gpu is None:
        return []
    runs = session.outcome.runs
    notes = [Evidence(kind="note", message=text) for text in explain(runs, session.gpu, emulated)]
    if notes:
        notes[0].data = {"launches": [run.both() for run in runs]}
    return notes


def _next_step(report: GradeReport, exercise: Exercise) -> str:
    if report.exit_code == 3:
        return "no points were taken for this; run `autograde doctor`, then grade again"
    lacking = {check.id for check in report.checks if check.verdict is not Verdict.PASS}
    if report.quick and all(c.verdict in (Verdict.PASS, Verdict.SKIPPED) for c in report.checks):
        return f"quick grade, not recorded: run `autograde {exercise.id}`"
    if report.full_marks:
        return "done; `autograde` says what comes next"
    wrong = [
        e.data["question"]
        for c in report.checks
        if c.id in lacking
        for e in c.evidence
        if "question" in e.data
    ]
    kinds = {check.kind for check in exercise.checks if check.id in lacking}
    if kinds == {"predictions"} and wrong:
        return f"answer {' and '.join(wrong)}"
    return f"`autograde hint {exercise.id}` helps without giving it away"


def _stub_report(session: Session) -> GradeReport:
    """The released stub: nothing to run, and a friendly word."""
    exercise, place = session.exercise, session.outcome.submission.place
    names = list(dict.fromkeys(kernel.builder.name for kernel in exercise.kernels))
    name = " and ".join(names)
    session.outcome.build_failure = yours(
        f"{name} {'is' if len(names) == 1 else 'are'} still the released stub",
        f"open {place}, replace each `pass` under YOUR CODE HERE, save, and grade again",
    )
    step = f"open {place} and fill in {name}; `autograde hint {exercise.id}` gets you started"
    return _report(session, step)
