"""The machine process: lowers the PrimFuncs that the builders returned and runs them on the emulator.

The submission's Python never runs here, so counters and findings are the emulator's own. Standard input
brings

    {"stage": "kernel", "arch": ..., "tensors": [...], "memory_mib": n, "cpu_seconds": s, "vet": bool} + graph JSON
    {"stage": "run", "case": id, "kernel": index, "schedule": ..., "seed": n, "profile": bool, "follow": bool} +
    raw bytes of all tensors, in order. `follow`: which tcgen05.mma do the outputs depend on?

`vet`: refuse a kernel whose host code does more than launch, because it shall run outside of the emulator, too.

The channel carries {"stage": "ready"}, then one frame per request:

    {"stage": "compiled", "resources": {...}}                              {"stage": "refused", "kind": ...,
    ...}
    {"stage": "ran", "case": id, "findings": [...], "counters": {...}, "accesses": [...]} + raw bytes of the
    outputs
    {"stage": "modelled", "modelled": {...}} + JSON of what warps and engines do when

{"stage": "model", "kernel": index, "clock_ghz": number or null, "intervals": bool, "inspect": seed or null} asks for the last:
a modelled launch, without data. With a seed, a few of its clusters, drawn with it, are run with all checks, too: `findings`.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from autograder.runner import limits
from autograder.runner.frames import Frame, encode, read_frame


def main(channel: int) -> None:
    os.set_inheritable(channel, False)
    import emulator

    _confine(emulator)
    from emulator.tvm_import import import_tvm

    tvm = import_tvm()
    import numpy as np

    sys.setrecursionlimit(10_000)
    with os.fdopen(channel, "wb") as out:
        _answer(out, {"stage": "ready", "versions": {"tvm": tvm.__version__, "numpy": np.__version__}})
        kernels: list[tuple[Any, list[dict[str, Any]]]] = []
        while (frame := read_frame(sys.stdin.buffer)) is not None:
            if frame.stage == "warm":
                from autograder.runner import warm_up

                warm_up.lower()
                continue
            if frame.stage == "kernel":
                if not kernels:
                    limits.set_resource_limits(frame.header["memory_mib"], frame.header["cpu_seconds"])
                kernels.append((_compile(emulator, frame, out), frame.header["tensors"]))
            elif frame.stage == "step":
                kernel, tensors = kernels[frame.header["kernel"]]
                _step(emulator, kernel, tensors, frame, out)
            elif frame.stage == "model":
                kernel, tensors = kernels[frame.header["kernel"]]
                _model(emulator, kernel, tensors, frame.header, out)
            else:
                kernel, tensors = kernels[frame.header["kernel"]]
                _run(emulator, kernel, tensors, frame, out)


def _confine(emulator: Any) -> None:
    """The kernel is the learner's, even if its Python is not here: bound what running it may reach."""
    from autograder.runner.confinement import confine
    from autograder.runner.sandbox import OWN_FILES, PACKAGE_ROOT

    own = [*(PACKAGE_ROOT / name for name in OWN_FILES), Path(emulator.__file__).resolve().parent]
    confine(own, Path.cwd(), {})


def _compile(emulator: Any, frame: Frame, out: BinaryIO) -> Any:
    """The compiled kernel, or None after a refusal was sent."""
    from autograder.runner.ir_json import NotAKernel, load

    started = time.perf_counter()
    try:
        prim_func = load(frame.raw.decode())
        buffers = _buffers(prim_func)
        names = [str(parameter.name) for parameter in prim_func.params]
    except (NotAKernel, UnicodeDecodeError) as error:
        return _answer(out, {"stage": "refused", "kind": "unreadable", "message": str(error)})
    if buffers != [{key: t[key] for key in ("dtype", "shape")} for t in frame.header["tensors"]]:
        return _answer(out, {"stage": "refused", "kind": "buffers", "buffers": _named(buffers, names)})
    try:
        kernel = emulator.compile(prim_func, arch=frame.header["arch"])
    except (emulator.EmulatorError, MemoryError) as error:
        return _answer(out, {"stage": "refused", **_describe(emulator, error)})
    strange = kernel.unknown_host_operations if frame.header.get("vet") else []
    if strange:
        return _answer(out, {"stage": "refused", "kind": "host", "message": ", ".join(strange[:5])})
    seconds = time.perf_counter() - started
    header = {"resources": _resources(kernel), "operations": _operations(kernel), "parameters": names}
    _answer(out, {"stage": "compiled", "seconds": seconds, **header})
    return kernel


def _tensors(tensors: list[dict[str, Any]], raw: bytes) -> list[Any]:
    """The bytes of a launch as arrays."""
    import numpy as np

    from autograder.runner.oracle_child import numpy_dtype

    arrays, position = [], 0
    for tensor in tensors:
        dtype = numpy_dtype(tensor["dtype"])
        size = int(np.prod(tensor["shape"])) * dtype.itemsize
        piece = raw[position : position + size]
        arrays.append(np.frombuffer(bytearray(piece), dtype).reshape(tensor["shape"]))
        position += size
    return arrays


def _step(emulator: Any, kernel: Any, tensors: list[dict[str, Any]], frame: Frame, out: BinaryIO) -> None:
    """One launch, recorded step by step."""
    import json

    from emulator.stepping import Stepper, recording

    request, stepper = frame.header, Stepper(frame.header["cluster"])
    try:
        with recording(stepper):
            run = kernel.run(
                *_tensors(tensors, frame.raw),
                seed=request["seed"],
                schedule=request["schedule"],
                check=False,
                fine=True,
            )
    except (emulator.EmulatorError, MemoryError) as error:
        _answer(out, {"stage": "refused", **_describe(emulator, error)})
        return
    findings = [_plain(finding.to_json()) for finding in run.findings]
    header = {"stage": "stepped", "left_out": stepper.left_out, "findings": findings}
    _answer(out, header, json.dumps(stepper.steps).encode())


def _run(emulator: Any, kernel: Any, tensors: list[dict[str, Any]], frame: Frame, out: BinaryIO) -> None:
    """One launch. Inputs are compared with their bytes afterwards: a kernel must not change them."""
    request, arrays = frame.header, _tensors(tensors, frame.raw)
    before = [a.tobytes() for a in arrays]
    started = time.perf_counter()
    try:
        options = {"profile": True} if request["profile"] else {}
        run = kernel.run(*arrays, seed=request["seed"], schedule=request["schedule"], check=True, **options)
    except (emulator.EmulatorError, MemoryError) as error:
        _answer(out, {"stage": "refused", "case": request["case"], **_describe(emulator, error)})
        return
    seconds = time.perf_counter() - started
    changed = [
        t["name"]
        for t, a, b in zip(tensors, arrays, before, strict=True)
        if t["role"] == "input" and a.tobytes() != b
    ]
    header = {
        "stage": "ran",
        "case": request["case"],
        "findings": [_plain(finding.to_json()) for finding in run.findings],
        "counters": {str(name): int(count) for name, count in run.counters.items()},
        "accesses": _accesses(run) if request["profile"] else [],
        "changed_inputs": changed,
        "writers": _writers(
            kernel, [a for t, a in zip(tensors, arrays, strict=True) if t["role"] == "output"]
        ),
        "resources": _resources(kernel),
        "followed": _followed(emulator, kernel, tensors, frame) if request["follow"] else None,
        "seconds": seconds,
    }
    raw = b"".join(a.tobytes() for t, a in zip(tensors, arrays, strict=True) if t["role"] == "output")
    _answer(out, header, raw)


def _followed(
    emulator: Any, kernel: Any, tensors: list[dict[str, Any]], frame: Frame
) -> dict[str, Any] | None:
    """The tcgen05.mma of each line, and the share of the outputs that none of them decides."""
    outputs = [i for i, t in enumerate(tensors) if t["role"] == "output"]
    try:
        lines, untouched = kernel.follow_mmas(*_tensors(tensors, frame.raw), outputs=outputs)
    except (emulator.EmulatorError, MemoryError):  # the launch itself says why
        return None
    found = [
        {**(_place(m.location) if m.location else {}), "count": m.count, "matters": m.matters} for m in lines
    ]
    return {"lines": found, "untouched": untouched}


def _writers(kernel: Any, outputs: list[Any]) -> list[list[Any]]:
    """Which warp wrote which rows and columns of the one output: [CTA, warp, instruction, first and last row and column]."""
    if len(outputs) != 1 or not hasattr(kernel, "writers"):
        return []
    found = kernel.writers(outputs[0])[:MAX_WRITERS]
    return [[w.cta, w.warp, w.instruction, *w.rows, *w.columns] for w in found]


def _inspected(kernel: Any, arrays: list[Any], seed: int | None) -> list[dict[str, Any]]:
    """What the checks find in clusters of a large launch that its builder could not know."""
    import numpy as np

    clusters = kernel.clusters_apart
    if seed is None or not clusters:
        return []
    chosen = np.random.default_rng(seed).choice(clusters, min(INSPECTED, clusters), replace=False)
    return [_plain(f.to_json()) for f in kernel.inspect(*arrays, clusters=chosen.tolist(), seed=seed)]


MAX_WRITERS = 4096
INSPECTED = (
    2  # clusters of the timed launch; a kernel that is right in most of them only is not found in every grade
)


def _model(
    emulator: Any, kernel: Any, tensors: list[dict[str, Any]], request: dict[str, Any], out: BinaryIO
) -> None:
    """The modelled time of one launch; tensors hold zeros that nobody looks at."""
    import dataclasses
    import json

    import numpy as np

    from autograder.runner.oracle_child import numpy_dtype
    from emulator.errors import Unfinished
    from emulator.timing.model import model

    arrays = [np.zeros(t["shape"], numpy_dtype(t["dtype"])) for t in tensors]
    try:
        found = model(kernel, arrays, clock_ghz=request["clock_ghz"], intervals=request["intervals"])
        findings = _inspected(kernel, arrays, request["inspect"])
    except Unfinished as error:
        _answer(out, {"stage": "refused", **_describe(emulator, error), "kind": "unfinished"})
        return
    except (emulator.EmulatorError, MemoryError) as error:
        _answer(out, {"stage": "refused", **_describe(emulator, error)})
        return
    except ValueError as error:
        _answer(out, {"stage": "refused", "kind": "launch", "message": str(error), "location": None})
        return
    apart = ("intervals", "arrows", "waits_at")
    fields = {f.name: getattr(found, f.name) for f in dataclasses.fields(found) if f.name not in apart}
    lanes = list(dict.fromkeys(i.lane for i in found.intervals))
    lanes.sort(key=lambda lane: (lane[0] == "warp", *map(str, lane[1:-1]), f"{lane[-1]:>20}"))
    number = {lane: n for n, lane in enumerate(lanes)}
    kept = sorted(found.intervals, key=lambda i: i.start)[:MAX_INTERVALS]
    places = next(iter(kernel.programs.values())).sites
    sites = {i.site for i in kept if i.site >= 0 and places[i.site][0] is not None}
    end = kept[-1].start if len(kept) == MAX_INTERVALS else math.inf
    picture = {
        "lanes": [_lane(lane) for lane in lanes],
        "intervals": [
            [number[i.lane], round(i.start, 1), round(i.end, 1), i.kind, i.site, i.what] for i in kept
        ],
        "arrows": [
            [number[a.source], round(a.start, 1), number[a.target], round(a.end, 1), a.what]
            for a in found.arrows
            if a.source in number and a.target in number and a.source != a.target and a.end <= end
        ],
        "sites": {site: _place(places[site][0]) for site in sites},
    }
    waits_at = [_place(places[site][0]) for site in found.waits_at if places[site][0] is not None]
    modelled = {**_plain(fields), "tflops": found.tflops, "waits_at": waits_at}
    _answer(
        out, {"stage": "modelled", "modelled": modelled, "findings": findings}, json.dumps(picture).encode()
    )


MAX_INTERVALS = 100_000


def _place(location: Any) -> dict[str, Any]:
    return {"file": location.file, "line": location.line}


def _lane(lane: tuple[Any, ...]) -> str:
    if lane[0] == "engine":
        return f"CTA {lane[1]}: {lane[2]}"
    slot = f" (slot {lane[1]})" if lane[1] else ""
    return f"CTA {lane[2]}: warp {lane[3]}{slot}"


def _plain(value: Any) -> Any:
    """A finding's data as strict JSON: NumPy numbers become Python's, NaN and Infinity become text."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _resources(kernel: Any) -> dict[str, int]:
    """What one CTA occupies. Some of it, e.g. TMEM columns, only shows once the kernel has run."""
    return {name: value for name, value in kernel.resources.items() if isinstance(value, int)}


def _operations(kernel: Any) -> list[dict[str, Any]]:
    """The lines where the kernel touches memory or the tensor core: line, instruction, names, in program
    order.
    """
    return [
        {
            "file": operation.location.file,
            "line": operation.location.line,
            "instruction": operation.instruction,
            "names": list(operation.names),
        }
        for operation in kernel.operations[:1000]
        if operation.location is not None
    ]


def _accesses(run: Any) -> list[dict[str, Any]]:
    """How each load and store used the memory: line, space, requests, passes taken and fewest possible, and for
    shared memory the lanes and addresses of its worst request.
    """
    return [
        {
            "file": access.location.file,
            "line": access.location.line,
            "space": access.space,
            "write": access.write,
            "requests": int(access.requests),
            "passes": int(access.passes),
            "ideal": int(access.ideal),
            "pattern": _pattern(access),
        }
        for access in run.accesses
        if access.location is not None
    ]


def _pattern(access: Any) -> dict[str, Any] | None:
    """Which lanes gave which byte addresses, how many bytes each, and which of them are served together."""
    pattern = access.pattern
    if pattern is None:
        return None
    return {
        "lanes": [int(lane) for lane in pattern.lanes],
        "addresses": [int(address) for address in pattern.addresses],
        "bytes": int(pattern.nbytes),
        "groups": pattern.groups,
    }


def _named(buffers: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    return [{"name": name, **buffer} for name, buffer in zip(names, buffers, strict=True)]


def _buffers(prim_func: Any) -> list[dict[str, Any]]:
    """dtype and shape of each parameter's buffer, in order; a parameter without a buffer has neither.

    Raises:
        NotAKernel: the object is no PrimFunc.
    """
    import tvm

    from autograder.runner.ir_json import NotAKernel

    if not isinstance(prim_func, tvm.tirx.PrimFunc):
        raise NotAKernel(f"a {type(prim_func).__name__} instead of a PrimFunc")
    buffers = []
    for parameter in prim_func.params:
        shape, dtype = getattr(parameter, "shape", None), getattr(parameter, "dtype", None)
        is_buffer = shape is not None and type(parameter.ty).__name__ == "BufferType"
        buffer = {
            "dtype": str(dtype) if is_buffer else None,
            "shape": [_extent(extent) for extent in shape or ()] if is_buffer else None,
        }
        buffers.append(buffer)
    return buffers


def _extent(extent: Any) -> int | str:
    value = getattr(extent, "value", extent)
    return value if isinstance(value, int) else str(extent)


def _describe(emulator: Any, error: Any) -> dict[str, Any]:
    """An emulator's exception as plain data. Memory is bounded, so running out of it is the kernel's doing."""
    if isinstance(error, MemoryError):
        return {"kind": "memory", "message": str(error), "location": None}
    kind = {
        emulator.LoweringError: "lowering",
        emulator.UnsupportedInstruction: "unsupported",
        emulator.LaunchError: "launch",
    }.get(type(error), "emulator")
    location = getattr(error, "location", None)
    place = {"file": location.file, "line": location.line} if location is not None else None
    return {"kind": kind, "message": getattr(error, "message", str(error)), "location": place}


def _answer(out: BinaryIO, header: dict[str, Any], raw: bytes = b"") -> None:
    out.write(encode(header, raw))
    out.flush()
