"""A case, how it runs on the GPU and in the emulator, and how the bytes are compared.

A :class:`Case` is a small TIRx kernel with seeded inputs.  The GPU side runs what ``tvm.compile`` makes of it, the
emulator side runs the same ``PrimFunc``; both start from the same bytes, outputs included, and every byte of every
argument is compared afterwards, so a stray write anywhere in a tensor shows up, too.
"""

from __future__ import annotations

import hashlib
import linecache
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emulator.tvm_import import import_tvm

ARCH = "sm_90a"


@dataclass(frozen=True)
class Case:
    """One kernel that runs in both places.

    Attributes:
        id: ``family/what/details``, unique.
        family: row of the table in docs/hardware_validation.md.
        build: makes the ``PrimFunc``.
        arguments: makes all arguments in parameter order from a seeded generator (C-contiguous arrays).
        rows: PTX text that produced ``argument[row]`` of the outputs (one instruction per row), or empty.
        ulps: for approximate instructions: largest distance in units in the last place that is accepted (by row name
            prefix; the longest prefix counts).  Empty: every bit must be equal.
        absolute: the same as a distance of float32 values, for functions whose error PTX bounds absolutely.
        numerics: ``exact`` or ``fast``, as :meth:`emulator.Kernel.run` takes it.
        expect: finding codes that the emulator is right to report.
        known: why the case is expected to differ; it is run and reported all the same.
        fault: code of the error the emulator must report because the GPU stops with a fault; nothing is compared then.
    """

    id: str
    family: str
    build: Callable[[], Any]
    arguments: Callable[[np.random.Generator], list[np.ndarray]]
    rows: tuple[str, ...] = ()
    ulps: dict[str, float] = field(default_factory=dict)
    absolute: dict[str, float] = field(default_factory=dict)
    numerics: str = "exact"
    expect: frozenset[str] = frozenset()
    schedule: str = "late"
    fault: str = ""
    known: str = ""

    def make_arguments(self) -> list[np.ndarray]:
        """The same arguments on every call and every machine."""
        rng = np.random.default_rng(zlib.crc32(self.id.encode()))
        return [np.ascontiguousarray(a) for a in self.arguments(rng)]


def kernel_from_source(name: str, source: str, **names: Any) -> Any:
    """A ``PrimFunc`` from generated TVMScript text: ``source`` defines ``kernel``; ``names`` are its free variables."""
    from tvm.script import tirx as T

    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"T": T, **names}
    exec(compile(source, filename, "exec"), scope)
    return scope["kernel"]


# ---------------------------------------------------------------------------------------------- the two sides


def compile_for_gpu(func: Any) -> Any:
    """The compiled module, as a user of TVM gets it."""
    tvm = import_tvm()
    target = tvm.target.Target({"kind": "cuda", "arch": ARCH})
    with target:
        return tvm.compile(tvm.IRModule({"main": func}), target=target, tir_pipeline="tirx")


def run_on_gpu(executable: Any, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run the compiled module on copies of ``arguments``; returns all of them afterwards."""
    tvm = import_tvm()
    device = tvm.cuda(0)
    tensors = [tvm.runtime.tensor(a, device=device) for a in arguments]
    device.sync()
    executable["main"](*tensors)
    device.sync()
    return [t.numpy() for t in tensors]


def run_in_emulator(func: Any, case: Case, arguments: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Any]:
    """Run in the emulator on copies of ``arguments``; returns all of them afterwards and the ``Run``."""
    import emulator

    copies = [a.copy() for a in arguments]
    run = emulator.compile(func, arch=ARCH).run(*copies, numerics=case.numerics, schedule=case.schedule)
    return copies, run


# ---------------------------------------------------------------------------------------------- comparison


def raw(array: np.ndarray) -> np.ndarray:
    """The bytes of an array as unsigned integers of its element size, in its own shape."""
    a = np.ascontiguousarray(array)
    return a.view(np.dtype(f"u{a.dtype.itemsize}")) if a.dtype.itemsize in (1, 2, 4, 8) else a.view(np.uint8)


def digest(arrays: Sequence[np.ndarray]) -> str:
    """SHA-256 over the bytes of all arguments, the first 128 bits."""
    h = hashlib.sha256()
    for a in arrays:
        h.update(np.ascontiguousarray(a).tobytes())
    return h.hexdigest()[:32]


_EXPONENT = {"f16": (np.uint16, 0x7C00), "bf16": (np.uint16, 0x7F80), "f32": (np.uint32, 0x7F800000)}


def ulp_distance(a: np.ndarray, b: np.ndarray, fmt: str) -> np.ndarray:
    """Distance in units in the last place of two arrays of float bits; two NaNs are 0 apart, a NaN and a number infinity."""
    dtype, infinity = _EXPONENT[fmt]
    a, b = a.view(dtype).astype(np.int64), b.view(dtype).astype(np.int64)
    sign = 1 << (8 * np.dtype(dtype).itemsize - 1)
    nan_a, nan_b = (a & (sign - 1)) > infinity, (b & (sign - 1)) > infinity
    a, b = np.where(a >= sign, sign - a, a), np.where(b >= sign, sign - b, b)
    distance = np.abs(a - b).astype(np.float64)
    distance[nan_a & nan_b] = 0
    distance[nan_a ^ nan_b] = np.inf
    return distance


def _format_of(name: str, array: np.ndarray) -> str:
    """The float format of a row, from the PTX type at the end of its text."""
    last = name.rsplit(".", 1)[-1].removesuffix("x2")
    return last if last in _EXPONENT else {2: "f16", 4: "f32"}.get(array.dtype.itemsize, "")


def compare(
    case: Case, before: Sequence[np.ndarray], gpu: Sequence[np.ndarray], emulated: Sequence[np.ndarray]
) -> dict[str, Any]:
    """What is equal and the first differences.

    Returns a JSON value: ``equal`` (accepted), ``bitwise`` (every byte equal), ``rows`` (per instruction with a
    difference: count, largest distance in ulps, first example with its inputs), ``instructions`` (rows compared).
    """
    result: dict[str, Any] = {"equal": True, "bitwise": True, "rows": {}, "instructions": len(case.rows) or 1}
    single = [raw(b) for b in before if b.ndim == 1]
    for index, (g, e) in enumerate(zip(gpu, emulated, strict=True)):
        g, e = raw(g), raw(e)
        if np.array_equal(g, e):
            continue
        result["bitwise"] = False
        named = bool(case.rows) and g.ndim == 2 and len(g) == len(case.rows)
        parts = (
            [(case.rows[k], g[k], e[k]) for k in range(len(g))]
            if named
            else [(f"argument {index}", g.reshape(-1), e.reshape(-1))]
        )
        for name, x, y in parts:
            wrong = np.flatnonzero(x != y)
            if not len(wrong):
                continue
            first = int(wrong[0])
            row: dict[str, Any] = {
                "count": len(wrong), "of": len(x), "index": first, "gpu": hex(int(x[first])), "emulated": hex(int(y[first])),
                "inputs": [hex(int(s[first])) for s in single if len(s) == len(x)] if named else [],
            }  # fmt: skip
            accepted = np.zeros(len(x), bool)
            bound = max((p for p in case.ulps if name.startswith(p)), key=len, default=None)
            if bound is not None and _format_of(name, x):
                distance = ulp_distance(x, y, _format_of(name, x)).reshape(len(x), -1).max(axis=1)
                worst = int(np.argmax(distance))
                row |= {
                    "ulps": float(distance[worst]),
                    "worst_gpu": hex(int(x[worst])),
                    "worst_emulated": hex(int(y[worst])),
                }
                row["worst_inputs"] = [hex(int(s[worst])) for s in single if len(s) == len(x)]
                accepted |= distance <= case.ulps[bound]
            near = max((p for p in case.absolute if name.startswith(p)), key=len, default=None)
            if near is not None and x.dtype.itemsize == 4:
                with np.errstate(invalid="ignore"):
                    gap = np.abs(
                        x.view(np.float32).astype(np.float64) - y.view(np.float32).astype(np.float64)
                    )
                row["absolute"] = float(np.nanmax(gap, initial=0))
                accepted |= gap <= case.absolute[near]
            accepted = bool((accepted | (x == y)).all())
            result["rows"][name] = row | {"accepted": accepted}
            result["equal"] &= accepted
    return result
