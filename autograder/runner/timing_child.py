"""The process that measures: compiles PrimFuncs for their timing shapes and times each against a library call.

Like the GPU's process it runs no Python of the submission, and only PrimFuncs that the emulator's process accepted.
Standard input brings

    {"stage": "time", "backend": module, "arch": ..., "plan": {...}, "pairs": n, "seconds": s, "seed": n} + graph JSON

The channel carries {"stage": "ready"}, then for each request

    {"stage": "samples", "neighbours": n, ...what `measure` returns...}
    {"stage": "refused", "message": ...}      {"stage": "fault", "kind": ..., "message": ..., "sticky": bool}
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, BinaryIO

from autograder.runner.backends.cuda import load_cuda_runtime
from autograder.runner.frames import Frame, encode, read_frame

_kept: list[BaseException] = []  # their frames hold tensors: freeing those of a lost context would abort


def main(channel: int) -> None:
    os.set_inheritable(channel, False)
    from autograder.runner import limits
    from emulator.tvm_import import import_tvm

    limits.die_with_parent()
    load_cuda_runtime()
    import_tvm()
    sys.setrecursionlimit(10_000)
    with os.fdopen(channel, "wb") as out:
        _answer(out, {"stage": "ready"})
        compiled: dict[bytes, Any] = {}
        while (frame := read_frame(sys.stdin.buffer)) is not None:
            answer = _time(frame, compiled)
            _answer(out, answer)
            if answer.get("sticky"):
                os._exit(0)


def _time(frame: Frame, compiled: dict[bytes, Any]) -> dict[str, Any]:
    from autograder.runner.backends.cuda import DeviceError, last_line
    from autograder.runner.ir_json import load
    from autograder.runner.measure import measure

    request = frame.header
    backend = importlib.import_module(request["backend"])
    try:
        neighbours = None if compiled else backend.neighbours()
        device = backend.open_device(request["arch"])
        if frame.raw not in compiled:
            compiled[frame.raw] = device.compile(load(frame.raw.decode()))
        bench = device.bench(compiled[frame.raw], request["plan"], request["seed"])
        samples = measure(bench, request["pairs"], request["seed"], request["seconds"])
    except DeviceError as error:
        _kept.append(error)
        return {"stage": "fault", "kind": error.kind, "message": error.message, "sticky": error.sticky}
    except ValueError as error:
        return {"stage": "refused", "message": str(error)[:500]}
    except Exception as error:  # PyTorch and TVM raise what their C++ sides name
        _kept.append(error)
        failed = DeviceError(last_line(error))
        return {"stage": "fault", "kind": failed.kind, "message": failed.message, "sticky": failed.sticky}
    return {"stage": "samples", "neighbours": neighbours, **samples}


def _answer(out: BinaryIO, header: dict[str, Any]) -> None:
    out.write(encode(header))
    out.flush()
