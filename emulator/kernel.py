"""The public entry points: compile a kernel once, run it on arrays, get a :class:`Run`."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from emulator import instructions
from emulator.checks.bank_conflicts import AccessStatistics, Pattern
from emulator.checks.findings import Finding, FindingLog, SourceLocation
from emulator.counters import MAXIMA
from emulator.errors import DeviceFault, EmulatorError, LaunchError
from emulator.host import BoundTensorMap, Host, HostPlan, HostTensorMap, Launch, unknown_operations
from emulator.lowering import Lowered, lower
from emulator.machine.address import SMEM_LIMIT
from emulator.machine.memory import GlobalMemory
from emulator.scheduler import Machine, NeedsFinerStrands
from emulator.translate import Operation, Program, translate
from emulator.writers import Writer, writers

instructions.load_all()

SCHEDULES = ("late", "eager", "random")


@dataclass(frozen=True)
class Access:
    """How one load or store statement used the memory.

    Attributes:
        location: the learner's line, None where TVM kept none.
        space: ``shared`` or ``global``. write: a store.
        requests: warp-level accesses. passes: wavefronts (shared) or 32-byte sectors (global) they took.
        ideal: the fewest possible.
        degree, bank, lanes: the worst bank conflict: lanes that want different words of one bank (shared only).
        pattern: the addresses of the access with that conflict, of the first access where none has one (shared only).
    """

    location: SourceLocation | None
    space: str
    write: bool
    requests: int
    passes: int
    ideal: int
    degree: int = 1
    bank: int = 0
    lanes: tuple[int, ...] = ()
    pattern: Pattern | None = None

    @property
    def per_request(self) -> float:
        """Wavefronts or sectors per warp-level access."""
        return self.passes / self.requests


@dataclass(frozen=True)
class Run:
    """What one emulated launch did.

    Attributes:
        findings: what is wrong or suspicious, worst first.
        counters: executed warp-level instructions by PTX name, bytes per path, floating-point operations.
        seconds: wall time of the emulation.
        arch: the architecture that was emulated.
        schedule, seed: reproduce this run.
        accesses: how each load and store used the memory, when the run was profiled.
    """

    findings: tuple[Finding, ...]
    counters: dict[str, int]
    seconds: float
    arch: str
    schedule: str
    seed: int
    accesses: tuple[Access, ...] = ()

    @property
    def ok(self) -> bool:
        """No finding of strength error or race."""
        return all(f.strength == "lint" for f in self.findings)


@dataclass(frozen=True)
class FollowedMma:
    """The tcgen05.mma of a line: how many were executed, and whether any element of an output depends on their products."""

    location: SourceLocation | None
    count: int
    matters: bool


@dataclass
class Kernel:
    """A lowered and translated kernel, ready to run any number of times."""

    lowered: Lowered
    programs: dict[str, Program]
    arch: str
    last_launches: list[Launch] = field(default_factory=list)
    last_checked: tuple[Any, GlobalMemory] | None = None  # race detector and memory of the latest checked run
    tmem_columns: int = 0

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Where the kernel touches memory, uses the tensor core or synchronises: line, instruction, buffer names.

        In program order; one entry per line and instruction.
        """
        return tuple(op for program in self.programs.values() for op in program.operations)

    def writers(self, array: Any) -> list[Writer]:
        """Who wrote a tensor of the latest checked run: the warps, and the smallest box that holds what each of them wrote."""
        if self.last_checked is None:
            return []
        checker, memory = self.last_checked
        segment = next((s for s in memory.segments if s.array is array), None)
        return [] if segment is None else writers(checker, segment.index, array)

    @property
    def unknown_host_operations(self) -> list[str]:
        """What the host part does besides launching; a kernel with any must not be run outside of the emulator."""
        return unknown_operations(self.lowered)

    @property
    def resources(self) -> dict[str, Any]:
        """Threads per CTA, grid, cluster, shared memory (bytes) and, once it has run, the most TMEM columns a CTA held."""
        launch = self.last_launches[0] if self.last_launches else self._static_launch()
        if launch is None:
            return {}
        program = self.programs[launch.kernel]
        return {
            "kernel": self.lowered.name,
            "threads_per_cta": launch.block,
            "grid": launch.grid,
            "cluster": launch.cluster,
            "smem_bytes": launch.smem_bytes + program.static_smem,
            "tmem_columns": self.tmem_columns,
        }

    @property
    def clusters_apart(self) -> int | None:
        """Clusters of a launch whose clusters do not wait for one another; None where that, or the grid, is not known."""
        launch = self._static_launch()
        if launch is None or any(op.instruction.startswith(_TOGETHER) for op in self.operations):
            return None
        return int(np.prod(launch.grid)) // int(np.prod(launch.cluster))

    def _static_launch(self) -> Launch | None:
        from emulator.lowering import walk

        for node in walk(self.lowered.host.body):
            if type(node).__name__ == "Call" and str(getattr(node.op, "name", "")).endswith(
                "call_ffi_kernel"
            ):
                probe = Host(self.lowered, [], GlobalMemory())
                try:
                    params = [str(p) for p in node.attrs.launch_params]
                    probe.argument = lambda e: None  # type: ignore[method-assign]
                    del params
                    probe.launch(node)
                except Exception:  # symbolic extents: only known at the launch
                    return None
                return probe.launches[0]
        return None

    def run(
        self,
        *tensors: Any,
        seed: int = 0,
        schedule: str = "late",
        check: bool = True,
        numerics: str = "fast",
        fine: bool = False,
        profile: bool = False,
        tensor_maps: list[HostTensorMap] | None = None,
        doubled: frozenset[int] = frozenset(),
    ) -> Run:
        """Run the kernel on NumPy arrays, writing outputs in place as the compiled module would.

        Args:
            tensors: C-contiguous arrays (bfloat16 and fp8 as ``ml_dtypes``), Python scalars, and :class:`HostTensorMap` for
                ``T.TensorMap()`` parameters, in parameter order.
            seed: seed of the random schedule.
            schedule: ``late``, ``eager`` or ``random``.
            check: race detection (about twice the time).
            numerics: ``fast`` (float32 BLAS) or ``exact`` (the tensor core's alignment and truncation).
            profile: count bank conflicts and sectors per statement (``Run.accesses``); wasteful ones become lint.
            fine: one strand per warp from the start (slower; more interleavings under ``random``).
            tensor_maps: maps whose 128 bytes (:func:`emulator.instructions.tensormap.payload` of their number) lie in tensors;
                the maps that the kernel makes with ``tensormap.replace`` are appended, for kernels that follow.
            doubled: statements whose tcgen05.mma add twice their product, as no tensor core does.

        Raises:
            LaunchError: wrong number, dtype or shape of arguments, or resources that do not fit an SM.
        """
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
        arrays = [_as_argument(i, t) for i, t in enumerate(tensors)]
        tensor_maps = [] if tensor_maps is None else tensor_maps
        given = list(tensor_maps)
        start = time.perf_counter()
        fine_now = fine or schedule == "random"
        while True:
            log = FindingLog()
            counters: dict[str, int] = {}
            accesses: list[Access] = []
            try:
                with _quiet():
                    self._launch_all(
                        arrays,
                        log,
                        counters,
                        seed,
                        schedule,
                        check,
                        numerics,
                        fine_now,
                        accesses if profile else None,
                        tensor_maps,
                        doubled=doubled,
                    )
                if check:
                    self._follow_uninitialised(arrays, log, seed, schedule, numerics, fine_now, given)
                break
            except NeedsFinerStrands:
                fine_now = True
                tensor_maps[:] = given
                for array, b in zip(_memories(arrays, given), self._backup, strict=True):
                    array[...] = b
        return Run(
            log.findings, counters, time.perf_counter() - start, self.arch, schedule, seed, tuple(accesses)
        )

    def record(self, *tensors: Any, recorder: Any, clusters: Sequence[int] | None = None) -> Finding | None:
        """Run (some clusters of) the kernel for the timing model: each strand's events go to ``recorder``.

        Outputs are not meaningful; the run is `eager`, so that nothing waits. Findings are not looked for, but a hang or a
        fault that ended the launch is returned.

        Args:
            recorder: a :class:`emulator.timing.record.Recorder`.
            clusters: numbers of the clusters to run; None: all.
        """
        arrays = [_as_argument(i, t) for i, t in enumerate(tensors)]
        log = FindingLog()
        with _quiet():
            self._launch_all(
                arrays,
                log,
                {},
                0,
                "eager",
                False,
                "fast",
                True,
                None,
                [],
                recorder=recorder,
                clusters=clusters,
            )
        return next((f for f in log.findings if f.code == "deadlock" or f.data.get("stops_kernel")), None)

    def follow_mmas(self, *tensors: Any, outputs: Sequence[int]) -> tuple[list[FollowedMma], float]:
        """Which tcgen05.mma the outputs depend on: the launch is repeated with twice the product of one statement after the other.

        Args:
            tensors: as for :meth:`run`; they stay as they are.
            outputs: which of them the kernel writes.

        Returns:
            the statements that executed any, and the share of the outputs' nonzero elements that depends on none of them.
        """

        def launch(doubled: frozenset[int] = frozenset()) -> list[np.ndarray]:
            arrays = [np.copy(t) if isinstance(t, np.ndarray) else t for t in tensors]
            self.run(*arrays, schedule="eager", check=False, doubled=doubled)
            return [arrays[i] for i in outputs]

        results = launch()
        depends = [np.zeros(r.shape, bool) for r in results]
        statements = []
        for line, sites in self.mmas.items():
            changed = [_differs(*pair) for pair in zip(launch(frozenset(sites)), results, strict=True)]
            for mask, new in zip(depends, changed, strict=True):
                mask |= new
            statements.append(FollowedMma(line, sum(sites.values()), any(mask.any() for mask in changed)))
        nonzero = [r != 0 for r in results]
        kept = sum(int((n & ~mask).sum()) for n, mask in zip(nonzero, depends, strict=True))
        return statements, kept / max(1, sum(int(n.sum()) for n in nonzero))

    def inspect(self, *tensors: Any, clusters: Sequence[int], seed: int = 0) -> tuple[Finding, ...]:
        """Run some clusters of a launch, in a random order of events, and return what the checks find.

        The others do not run: not for kernels whose clusters wait for one another.

        Args:
            tensors: as for :meth:`run`; what these clusters write is written.
            clusters: their numbers.
            seed: of the order of events.
        """
        log = FindingLog()
        arrays = [_as_argument(i, t) for i, t in enumerate(tensors)]
        with _quiet():
            self._launch_all(arrays, log, {}, seed, "random", True, "fast", True, None, [], clusters=clusters)
        return tuple(log.findings)

    _backup: list[Any] = field(default_factory=list)
    # of the latest launch: line -> statement -> tcgen05.mma that it executed
    mmas: dict[SourceLocation | None, dict[int, int]] = field(default_factory=dict)

    @cached_property
    def host(self) -> HostPlan:
        return HostPlan(self.lowered)

    def _launch_all(
        self, arrays: list[Any], log: FindingLog, counters: dict[str, int], seed: int, schedule: str, check: bool, numerics: str, fine: bool,
        accesses: list[Access] | None, tensor_maps: list[HostTensorMap], recorder: Any = None, clusters: Sequence[int] | None = None,
        poison: int | None = None, doubled: frozenset[int] = frozenset(),
    ) -> GlobalMemory:  # fmt: skip
        again = clusters is None and (check or not fine)  # this launch may have to begin once more
        self._backup = [a.copy() for a in _memories(arrays, tensor_maps)] if again else []
        memory = GlobalMemory()
        launches = self.host.launches(arrays, memory)
        memory.tensor_maps = [m.bind(memory, check=False) for m in tensor_maps]
        self.last_launches = launches
        if not launches:
            raise LaunchError("the host function launches no kernel")
        box: list[Machine] = []
        checker = None
        if check:
            from emulator.checks.happens_before import RaceDetector

            program = self.programs[launches[0].kernel]
            checker = RaceDetector(
                log,
                name_of=lambda space, index, byte: box[-1].name_of(space, index, byte),
                smem_granule=program.smem_access,
                uninitialised="error",
            )
            if poison is None:
                self.last_checked = (checker, memory)
            written: dict[int, bool] = {}
            for launch in launches:
                for index, value in _written(memory, launch, self.programs[launch.kernel]).items():
                    written[index] = written.get(index, False) or value
            for bound in memory.tensor_maps:
                written[bound.segment.index] = True
            for segment in memory.segments:
                checker.add_global(
                    segment.nbytes, _granule(segment.array), name=segment.name, written=written[segment.index]
                )
        for k, launch in enumerate(launches):
            program = self.programs[launch.kernel]
            _check_launch(launch, program)
            if checker is not None and k:
                checker.next_kernel()
            machine = Machine(
                program, launch.grid, launch.cluster, launch.block, launch.smem_bytes, launch.args, memory, log,
                schedule=schedule, seed=seed, checker=checker, fine=fine, smem_names=self.lowered.smem_names,
                tmem_names=self.lowered.tmem_names, numerics=numerics, poison=poison, doubled=doubled,
            )  # fmt: skip
            machine.written = _written(memory, launch, program)
            if accesses is not None:
                machine.statistics = AccessStatistics()
            if recorder is not None:
                recorder.attach(machine)
            machine.chosen = None if clusters is None else list(clusters)
            box.append(machine)
            try:
                machine.run()
            except DeviceFault as fault:
                self._report_fault(machine, log, fault)
            except OWN_FAULTS as error:
                raise _own_fault(machine, error) from error
            if accesses is not None:
                _collect_accesses(machine, log, accesses, counters)
            made = memory.tensor_maps[len(tensor_maps) :]
            tensor_maps += [HostTensorMap(bound.map, bound.segment.array) for bound in made]
            self.tmem_columns = max(self.tmem_columns, machine.tmem_columns)
            self.mmas = {}
            for site, count in machine.mmas.items():
                self.mmas.setdefault(machine.location(site), {})[site] = count
            record = machine.tile_record
            observed = record.counters() if record is not None else {}
            for name, n in (*machine.counters.items(), *observed.items()):
                old = counters.get(name, 0)
                counters[name] = max(old, n) if name in MAXIMA else old + n
        return memory

    def _follow_uninitialised(
        self, arrays: list[Any], log: FindingLog, seed: int, schedule: str, numerics: str, fine: bool,
        tensor_maps: list[HostTensorMap],
    ) -> None:  # fmt: skip
        """Plain loads of SMEM that nobody wrote are advice, until an output depends on them: then they are an error.

        The launch is repeated with other contents of fresh shared memory; nothing else differs, so an output that
        changes has read it.
        """
        found = [f for f in log.findings if f.code == "uninitialised.smem"]
        reads = [f for f in found if f.strength == "lint"]
        if not reads or any(f.code == "deadlock" or f.data.get("stops_kernel") for f in log.findings):
            return
        memories, before = _memories(arrays, tensor_maps), self._backup
        results = [a.copy() for a in memories]
        place = ""
        for poison in _OTHER_POISONS:
            for array, b in zip(memories, before, strict=True):
                array[...] = b
            maps = list(tensor_maps)
            with _quiet():
                memory = self._launch_all(
                    arrays, FindingLog(), {}, seed, schedule, True, numerics, fine, None, maps, poison=poison
                )
            place = _changed(memory, memories, results)
            if place:
                break
        self._backup = before
        for array, result in zip(memories, results, strict=True):
            array[...] = result
        for f in reads if place else ():
            which = "this read" if len(reads) == 1 else "this read, or another one like it"
            log.add(
                replace(
                    f, strength="error", data={**f.data, "reaches": place},
                    message=f"{f.message} The output depends on {which}: {place} changes with what the memory happens to hold.",
                )
            )  # fmt: skip

    @staticmethod
    def _report_fault(machine: Machine, log: FindingLog, fault: DeviceFault) -> None:
        site = fault.site
        running = machine.running
        if site < 0 and running is not None:
            site = _site_from_traceback(fault, machine.program)
        sites = [site, fault.context.get("also", -1)]
        where = [machine.location(s) for s in sites if isinstance(s, int) and s >= 0]
        locations = tuple(dict.fromkeys(w for w in where if w is not None))
        log.add(
            Finding(
                fault.code, "error", fault.message, fault.fix, locations,
                (str(fault.context["name"]),) if "name" in fault.context else (),
                running.cta.linear if running is not None else None,
                tuple(running.threads.warps) if running is not None else (), (), {"stops_kernel": True},
            )
        )  # fmt: skip


# What Python and NumPy raise where the emulator itself is wrong: the launch ends, whoever asked for it goes on.
OWN_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def _own_fault(machine: Machine, error: Exception) -> EmulatorError:
    """A fault of the emulator, at the learner's line that it was executing."""
    site = _site_from_traceback(error, machine.program)
    return EmulatorError(
        f"{type(error).__name__} in the emulator: {error}", machine.location(site) if site >= 0 else None
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """NaNs and overflows are the learner's business, not NumPy's; garbage collection only costs time in a launch."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        if collecting:
            gc.enable()


def _site_from_traceback(fault: BaseException, program: Program) -> int:
    """The statement of the warp program that raised."""
    tb, site = fault.__traceback__, -1
    while tb is not None:
        if tb.tb_frame.f_code is program.main.__code__:
            site = program.line_sites.get(tb.tb_lineno, -1)
        tb = tb.tb_next
    return site


def _written(memory: GlobalMemory, launch: Launch, program: Program) -> dict[int, bool]:
    """Per tensor: may the kernel write it? False when it is only reachable through tensor maps that are only read."""
    out = {segment.index: False for segment in memory.segments}
    for (name, _dtype), value in zip(program.params, launch.args, strict=True):
        if isinstance(value, BoundTensorMap):
            if name in program.stored_maps:
                out[value.segment.index] = True
        elif isinstance(value, int) and (name in program.written or "*" in program.written):
            for segment in memory.segments:
                if segment.base <= value < segment.base + max(1, segment.nbytes):
                    out[segment.index] = True
    return out


def _collect_accesses(
    machine: Machine, log: FindingLog, accesses: list[Access], counters: dict[str, int]
) -> None:
    """Turn the statistics of a launch into :class:`Access` rows, counters and lint."""
    statistics = machine.statistics
    for space, table in (("shared", statistics.shared), ("global", statistics.global_)):
        merged: dict[tuple[SourceLocation | None, bool], Access] = {}
        unit = "wavefronts" if space == "shared" else "sectors"
        for site, totals in table.items():
            location, write = machine.location(site // 2), bool(site % 2)
            old = merged.get((location, write))
            row = Access(
                location,
                space,
                write,
                totals.requests,
                totals.passes,
                totals.ideal,
                totals.degree,
                totals.bank,
                totals.lanes,
                totals.pattern,
            )
            if old is not None:
                worst = max(old, row, key=lambda a: a.degree)
                row = Access(
                    location, space, write, old.requests + row.requests, old.passes + row.passes, old.ideal + row.ideal,
                    worst.degree, worst.bank, worst.lanes, worst.pattern,
                )  # fmt: skip
            merged[location, write] = row
        for row in merged.values():
            counters[f"{space}.requests"] = counters.get(f"{space}.requests", 0) + row.requests
            counters[f"{space}.{unit}"] = counters.get(f"{space}.{unit}", 0) + row.passes
            counters[f"{space}.{unit}.ideal"] = counters.get(f"{space}.{unit}.ideal", 0) + row.ideal
        accesses += merged.values()
    for site, problem in statistics.problems():
        location = machine.location(site // 2)
        log.add(problem.at((location,) if location is not None else ()))


# With these, a part of the grid does not do what all of it does.
_TOGETHER = ("grid.sync", "clusterlaunchcontrol")

# Words for fresh shared memory: zero, and a negative number in every format (large ones of both signs as 16-bit floats).
_OTHER_POISONS = (0, 0xFBFB7BFB)


def _differs(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Per element, whether any byte differs."""
    size = old.dtype.itemsize
    a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(-1, size) for x in (new, old))
    return (a != b).any(axis=1).reshape(old.shape)


def _changed(memory: GlobalMemory, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> str:
    """The first element of an array that differs from an earlier result, in words; "" when none does."""
    for array, result in zip(arrays, results, strict=True):
        differs = np.flatnonzero(_differs(array, result))
        if len(differs):
            name = next((s.name for s in memory.segments if s.array is array), "an output")
            return f"element {differs[0]} of {name}"
    return ""


def _memories(arrays: Sequence[Any], tensor_maps: Sequence[HostTensorMap]) -> list[np.ndarray]:
    """All memory that a launch can reach."""
    maps = [a for a in arrays if isinstance(a, HostTensorMap)] + list(tensor_maps)
    return [a for a in arrays if isinstance(a, np.ndarray)] + [m.array for m in maps]


def _granule(array: np.ndarray) -> int:
    size = array.dtype.itemsize
    return size if size in (1, 2, 4, 8, 16) else 1


def _as_argument(index: int, value: Any) -> Any:
    if isinstance(value, (int, float, np.integer, np.floating, HostTensorMap)):
        return value
    if not isinstance(value, np.ndarray):
        raise LaunchError(f"argument {index} must be a NumPy array, not {type(value).__name__}")
    if not value.flags["C_CONTIGUOUS"]:
        raise LaunchError(f"argument {index} must be C-contiguous")
    return value


def _check_launch(launch: Launch, program: Program) -> None:
    smem = launch.smem_bytes + program.static_smem
    if smem > SMEM_LIMIT:
        raise LaunchError(
            f"the kernel asks for {smem} bytes of shared memory per CTA; an SM gives at most {SMEM_LIMIT} (227 KiB)"
        )
    if launch.block > 1024 or launch.block < 1:
        raise LaunchError(f"the kernel asks for {launch.block} threads per CTA; the limit is 1024")
    ctas = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    if ctas > 16:
        raise LaunchError(f"a cluster of {ctas} CTAs is too large; the limit is 16 (8 portable)")
    for g, c, axis, most in zip(launch.grid, launch.cluster, "xyz", (2**31 - 1, 65535, 65535), strict=True):
        if g < 1:
            raise LaunchError(
                f"the grid has {g} CTAs in {axis}; it needs at least 1 (a size divided by a larger tile gives 0)"
            )
        if g > most:
            raise LaunchError(f"the grid has {g} CTAs in {axis}; the limit is {most}")
        if g % c:
            raise LaunchError(
                f"the grid has {g} CTAs in {axis}, which is not a multiple of the cluster's {c}"
            )


def compile(prim_func: Any, arch: str = "sm_100a") -> Kernel:
    """Lower and translate a kernel.

    Raises:
        LoweringError: TVM rejects it. UnsupportedInstruction: the emulator does not know one of its operations.
    """
    lowered = lower(prim_func, arch)
    return Kernel(lowered, {name: translate(lowered, name) for name in lowered.devices}, arch)


def run(
    prim_func: Any,
    *tensors: Any,
    arch: str = "sm_100a",
    seed: int = 0,
    schedule: str = "late",
    check: bool = True,
    numerics: str = "fast",
) -> Run:
    """Compile and run; see :meth:`Kernel.run`."""
    return compile(prim_func, arch).run(
        *tensors, seed=seed, schedule=schedule, check=check, numerics=numerics
    )
