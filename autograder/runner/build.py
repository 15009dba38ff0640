"""Run a submission in the builder's process: its PrimFuncs, functions and layouts come back as inert data."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autograder.course import Builder, Limits
from autograder.diagnosis import SNAPSHOT, Diagnosis, Failure, Stopped, machines, with_last_line
from autograder.runner.frames import Frame
from autograder.runner.process import Child, ChildEnded, Pump
from autograder.runner.sandbox import namespaces

MAX_GRAPH_BYTES = 64 << 20


def _start(pump: Pump, limits: Limits, snapshot: Path, work: Path) -> Child:
    """The builder's process before it knows a submission."""
    return pump.start(
        "builder",
        "build_child",
        work,
        confined=True,
        readable=(snapshot,),
        max_tree_mib=limits.memory_mib,
        max_json=1 << 20,
        max_raw=MAX_GRAPH_BYTES,
        max_output=limits.output_kib << 10,
    )


def start_spare(pump: Pump, limits: Limits) -> None:
    """Start the builder's process ahead: it confines itself, imports TVM and waits for `start_builder`."""
    folder, name = SNAPSHOT.split("/")
    snapshot, work = pump.private_folder(folder), pump.private_folder("builder")
    child = _start(pump, limits, snapshot, work)
    pump.keep_as_spare(child, source=str(snapshot / name), writable=str(work), outside=namespaces())


def start_builder(pump: Pump, diagnosis: Diagnosis, more: list[Builder] | None = None) -> Child:
    """Start the process that gets one immutable snapshot of the submission's source, and nothing else.

    more: calls to make after those of the exercise's kernels.
    """
    exercise, limits = diagnosis.exercise, diagnosis.limits
    folder, name = SNAPSHOT.split("/")
    source, work = pump.private_folder(folder) / name, pump.private_folder("builder")
    source.write_bytes(diagnosis.submission.source.encode())
    source.chmod(0o444)
    builder = pump.spare("builder") or _start(pump, limits, source.parent, work)
    request = {
        "source": str(source),
        "functions": [{"name": function.name, "domain": function.domain} for function in exercise.functions],
        "builders": [b.model_dump() for b in [*(k.builder for k in exercise.kernels), *(more or [])]],
        "layouts": [
            {"name": wanted.name, "params": params} for wanted in exercise.layouts for params in wanted.calls
        ],
        "memory_mib": limits.memory_mib,
        "cpu_seconds": limits.build_seconds,
        "writable": str(work),
        "outside": namespaces(),
    }
    pump.send(builder, request)
    return builder


@dataclass(frozen=True)
class Table:
    """A function of the submission at 0, 1, ...: its values, or why there are none."""

    values: tuple[int, ...] = ()
    failure: Failure | None = None


def receive_prim_funcs(
    pump: Pump,
    builder: Child,
    diagnosis: Diagnosis,
    tables: dict[str, Table] | None = None,
    layouts: list[dict[str, Any]] | None = None,
    keep: bool = False,
    missing: dict[int, Failure] | None = None,
) -> list[bytes | None]:
    """The graph JSON of each kernel's PrimFunc; `tables` gets one entry per function of the exercise.

    The builder's whole process tree is dead when this returns, unless it is kept for `receive_more`.

    layouts: filled with what the builder sent about each call of each layout, also if there is no PrimFunc.
    missing: in an exercise in stages, why a kernel, by its index, was not built; its graph is None. One is built at least.

    Raises:
        Stopped: there is no PrimFunc; the failure says why and whose fault that is.
    """
    tables = {} if tables is None else tables
    graphs: list[bytes | None] = []
    missing = {} if missing is None else missing
    try:
        builder.isolation = pump.receive(builder, diagnosis.limits.start_seconds).header["isolation"]
    except ChildEnded as ended:
        message = with_last_line(f"the process for the submission did not start ({ended.end})", builder)
        raise Stopped(machines(message, builder.tail)) from None
    deadline = time.monotonic() + diagnosis.limits.build_seconds
    try:
        for function in diagnosis.exercise.functions:
            try:
                frame = pump.receive(builder, deadline - time.monotonic())
            except ChildEnded as ended:
                raise Stopped(diagnosis.ended(ended, function.name)) from None
            if frame.stage not in ("table", "no_table"):
                raise Stopped(diagnosis.build_failure(frame.header))
            tables[function.name] = _table(frame, function.name, function.domain, diagnosis)
        if diagnosis.exercise.layouts:
            sent = _receive_layouts(pump, builder, diagnosis, deadline)
            layouts = sent if layouts is None else layouts
            layouts[:] = sent
        for number, kernel in enumerate(diagnosis.exercise.kernels):
            own = replace(diagnosis, exercise=kernel)
            try:
                frame = pump.receive(builder, deadline - time.monotonic())
            except ChildEnded as ended:
                raise Stopped(own.ended(ended)) from None
            if frame.stage != "built" or not frame.raw:
                missing[number] = own.build_failure(frame.header)
                if not diagnosis.exercise.stages:
                    raise Stopped(missing[number])
            graphs.append(None if number in missing else frame.raw)
        if not any(graphs):
            raise Stopped(missing[0])
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            pump.kill(builder)
    return graphs


def receive_more(pump: Pump, builder: Child, diagnosis: Diagnosis, count: int) -> list[bytes | str]:
    """The PrimFuncs for the timed sizes, or in words why one is missing. The builder is dead afterwards."""
    deadline = time.monotonic() + diagnosis.limits.build_seconds
    try:
        return [_one_more(pump, builder, diagnosis, deadline) for _ in range(count)]
    finally:
        pump.kill(builder)


def _one_more(pump: Pump, builder: Child, diagnosis: Diagnosis, deadline: float) -> bytes | str:
    try:
        frame = pump.receive(builder, deadline - time.monotonic())
    except ChildEnded as ended:
        return diagnosis.ended(ended).message
    return frame.raw if frame.stage == "built" else diagnosis.build_failure(frame.header).message


def _table(frame: Frame, name: str, domain: int, diagnosis: Diagnosis) -> Table:
    if frame.stage == "table" and len(frame.raw) == 8 * domain:
        return Table(tuple(array("q", frame.raw)))
    return Table(failure=diagnosis.table_failure(name, frame.header))


def _receive_layouts(
    pump: Pump, builder: Child, diagnosis: Diagnosis, deadline: float
) -> list[dict[str, Any]]:
    try:
        frame = pump.receive(builder, deadline - time.monotonic())
    except ChildEnded as ended:
        raise Stopped(diagnosis.ended(ended)) from None
    sent = frame.header.get("layouts")
    calls = sum(len(wanted.calls) for wanted in diagnosis.exercise.layouts)
    whole = isinstance(sent, list) and len(sent) == calls and all(isinstance(one, dict) for one in sent)
    if frame.stage != "layouts" or not isinstance(sent, list) or not whole:
        raise Stopped(diagnosis.build_failure(frame.header))
    return sent
