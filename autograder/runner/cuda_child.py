"""The GPU's process: compiles one PrimFunc of a submission and launches it on raw bytes.

No Python of the submission runs here, and nothing is launched before the emulator's process has accepted the same
PrimFunc: its host part may only check arguments, encode tensor maps and launch, and every device instruction is known.
Standard input brings

    {"stage": "kernel", "backend": module, "arch": ...} + graph JSON
    {"stage": "run", "case": id, "tensors": [...]} + raw bytes of all tensors, in order

The channel carries {"stage": "ready"}, then one frame per request:

    {"stage": "compiled", "seconds": s, "versions": {...}}       {"stage": "refused", "message": ...}
    {"stage": "ran", "case": id, "changed_inputs": [...], "seconds": s} + raw bytes of the outputs
    {"stage": "fault", "case": id, "kind": ..., "message": ..., "sticky": bool}

After a sticky fault the process ends: the CUDA context is lost. A kernel that never ends is the parent's to kill. The
process has no limit on its address space, which CUDA reserves by the terabyte, and keeps its file access, which the
driver needs.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any, BinaryIO

from autograder.runner.backends.cuda import load_cuda_runtime
from autograder.runner.frames import Frame, encode, read_frame

_kept: list[BaseException] = []


def main(channel: int) -> None:
    os.set_inheritable(channel, False)
    from autograder.runner import limits
    from emulator.tvm_import import import_tvm

    limits.die_with_parent()
    load_cuda_runtime()
    import_tvm()
    with os.fdopen(channel, "wb") as out:
        _answer(out, {"stage": "ready"})
        device: Any = None
        kernel: Any = None
        while (frame := read_frame(sys.stdin.buffer)) is not None:
            if frame.stage == "kernel":
                device, kernel = _compile(frame, out)
            elif not _run(device, kernel, frame, out):
                out.flush()
                os._exit(0)


def _compile(frame: Frame, out: BinaryIO) -> tuple[Any, Any]:
    from autograder.runner.backends.cuda import DeviceError
    from autograder.runner.ir_json import NotAKernel, load

    started = time.perf_counter()
    sys.setrecursionlimit(10_000)
    try:
        device = importlib.import_module(frame.header["backend"]).open_device(frame.header["arch"])
        kernel = device.compile(load(frame.raw.decode()))
    except DeviceError as error:
        _answer(out, {"stage": "fault", "case": "", **_plain(error)})
        return None, None
    except (ValueError, NotAKernel) as error:
        _answer(out, {"stage": "refused", "message": str(error)})
        return None, None
    seconds = time.perf_counter() - started
    _answer(out, {"stage": "compiled", "seconds": seconds, "versions": device.versions()})
    return device, kernel


def _run(device: Any, kernel: Any, frame: Frame, out: BinaryIO) -> bool:
    """One launch; False when the process can launch no more."""
    import numpy as np

    from autograder.runner.backends.cuda import DeviceError
    from autograder.runner.oracle_child import numpy_dtype

    request, arrays, position = frame.header, [], 0
    for tensor in request["tensors"]:
        dtype = numpy_dtype(tensor["dtype"])
        size = int(np.prod(tensor["shape"])) * dtype.itemsize
        piece = np.frombuffer(bytearray(frame.raw[position : position + size]), dtype).reshape(
            tensor["shape"]
        )
        arrays.append(piece)
        position += size
    started = time.perf_counter()
    try:
        after = device.launch(kernel, arrays)
    except DeviceError as error:
        _kept.append(error)  # its frames hold tensors: freeing those of a lost context would abort
        _answer(out, {"stage": "fault", "case": request["case"], **_plain(error)})
        return not error.sticky
    seconds = time.perf_counter() - started
    pairs = list(zip(request["tensors"], arrays, after, strict=True))
    changed = [t["name"] for t, a, b in pairs if t["role"] == "input" and a.tobytes() != b.tobytes()]
    raw = b"".join(b.tobytes() for t, _, b in pairs if t["role"] == "output")
    header = {"stage": "ran", "case": request["case"], "changed_inputs": changed, "seconds": seconds}
    _answer(out, header, raw)
    return True


def _plain(error: Any) -> dict[str, Any]:
    return {"kind": error.kind, "message": error.message, "sticky": error.sticky}


def _answer(out: BinaryIO, header: dict[str, Any], raw: bytes = b"") -> None:
    out.write(encode(header, raw))
    out.flush()
