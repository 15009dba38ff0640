"""Run a submission in the builder's process and bring its PrimFuncs back as inert JSON."""

from __future__ import annotations

import time
from dataclasses import replace

from autograder.diagnosis import SNAPSHOT, Diagnosis, Stopped, machines, with_last_line
from autograder.runner.process import Child, ChildEnded, Pump

MAX_GRAPH_BYTES = 64 << 20


def start_builder(pump: Pump, diagnosis: Diagnosis) -> Child:
    """Start the process that gets one immutable snapshot of the submission's source, and nothing else."""
    exercise, limits = diagnosis.exercise, diagnosis.limits
    folder, name = SNAPSHOT.split("/")
    source, work = pump.private_folder(folder) / name, pump.private_folder("builder")
    source.write_bytes(diagnosis.submission.source.encode())
    source.chmod(0o444)
    builder = pump.start(
        "builder",
        "build_child",
        work,
        trusted=False,
        max_json=1 << 20,
        max_raw=MAX_GRAPH_BYTES,
        max_output=limits.output_kib << 10,
    )
    request = {
        "source": str(source),
        "builders": [kernel.builder.model_dump() for kernel in exercise.kernels],
        "memory_mib": limits.memory_mib,
        "cpu_seconds": limits.build_seconds,
        "writable": str(work),
    }
    pump.send(builder, request)
    return builder


def receive_prim_funcs(pump: Pump, builder: Child, diagnosis: Diagnosis) -> list[bytes]:
    """The graph JSON of each kernel's PrimFunc. The builder's whole process tree is dead when this returns.

    Raises:
        Stopped: there is none; the failure says why and whose fault that is.
    """
    try:
        pump.receive(builder, diagnosis.limits.start_seconds)
    except ChildEnded as ended:
        message = with_last_line(f"the process for the submission did not start ({ended.end})", builder)
        raise Stopped(machines(message, builder.tail)) from None
    deadline = time.monotonic() + diagnosis.limits.build_seconds
    graphs = []
    try:
        for kernel in diagnosis.exercise.kernels:
            own = replace(diagnosis, exercise=kernel)
            try:
                frame = pump.receive(builder, deadline - time.monotonic())
            except ChildEnded as ended:
                raise Stopped(own.ended(ended)) from None
            if frame.stage != "built":
                raise Stopped(own.build_failure(frame.header))
            graphs.append(frame.raw)
    finally:
        pump.kill(builder)
    return graphs
