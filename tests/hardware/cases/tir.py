"""Plain TIR arithmetic and casts, as TVM's compiler flags make them: ``--use_fast_math`` flushes, contracts and approximates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hardware.cases import values
from hardware.harness import Case, kernel_from_source

N = 2048
FLOAT = {
    "add": "a + b", "sub": "a - b", "mul": "a * b", "div": "a / b", "fma": "a * b + c", "fms": "a * b - c", "fnma": "c - a * b", "dot2": "a * b + b * c",
    "min": "T.min(a, b)", "max": "T.max(a, b)", "select": "T.if_then_else(a < b, a, c)", "neg": "-a", "abs": "T.abs(a)",
    "exp": "T.exp(a)", "exp2": "T.exp2(a)", "log": "T.log(a)", "log2": "T.log2(a)", "sqrt": "T.sqrt(a)", "rsqrt": "T.rsqrt(a)", "tanh": "T.tanh(a)",
    "sin": "T.sin(a)", "cos": "T.cos(a)", "floor": "T.floor(a)", "ceil": "T.ceil(a)", "trunc": "T.trunc(a)", "round": "T.round(a)",
    "sigmoid": "T.sigmoid(a)", "axpy": "a * T.float32(0.7) + b", "scale": "(a - b) * T.float32(1.4426950408889634)",
}  # fmt: skip
INTEGER = {
    "add": "a + b", "mul": "a * b", "floordiv": "a // (b | 1)", "floormod": "a % (b | 1)", "and": "a & b", "xor": "a ^ b", "shl": "a << (b & 31)", "shr": "a >> (b & 31)",
    "min": "T.min(a, b)", "max": "T.max(a, b)", "select": "T.if_then_else(a < b, a - b, c)",
}  # fmt: skip
CASTS = [
    (s, d) for s in ("float32", "float16", "bfloat16", "int32", "int8", "uint8", "uint32", "int64", "float64") for d in ("float32", "float16", "bfloat16", "int32", "int8", "uint32", "int64", "float64")
    if s != d
]  # fmt: skip


def _kernel(name: str, expression: str, source: str, target: str) -> Any:
    text = f"""@T.prim_func
def kernel(A: T.Buffer(({N},), "{source}"), B: T.Buffer(({N},), "{source}"), C: T.Buffer(({N},), "{source}"), D: T.Buffer(({N},), "{target}")):
    T.device_entry()
    bx = T.cta_id([{N // 128}])
    tx = T.thread_id([128])
    i = T.meta_var(bx * 128 + tx)
    a = T.meta_var(A[i])
    b = T.meta_var(B[i])
    c = T.meta_var(C[i])
    D[i] = {expression}
"""
    return kernel_from_source(name, text)


def _dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _arguments(source: str, target: str, moderate: bool, rng: np.random.Generator) -> list[np.ndarray]:
    dtype = _dtype(source)
    out = []
    for _ in range(3):
        if moderate:
            x = (rng.standard_normal(N) * 4).astype(np.float32)
            x[:8] = [0, -0.0, 1, -1, 2, 0.5, 1e-3, 88]
            out.append(x.astype(dtype))
        elif dtype.kind in "iu":
            out.append(values.integers(rng, N, dtype.itemsize * 8).view(dtype))
        else:
            ptx = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}[source]
            carrier = {2: "uint16", 4: "float32", 8: "float64"}[dtype.itemsize]
            out.append(values.of_type(rng, N, ptx, carrier).view(dtype))
    return [*out, np.zeros(N, _dtype(target))]


ULPS = {
    "exp": 32,
    "exp2": 2,
    "sqrt": 1,
    "rsqrt": 2,
    "tanh": 128,
    "sigmoid": 16,
    "div": 2,
    "log": 8,
    "log2": 8,
}
ABSOLUTE = {"log": 2.0**-20, "log2": 2.0**-20, "sin": 2.0**-17, "cos": 2.0**-17}
# TVM compiles with --use_fast_math: a product that is only added becomes one fused operation.
CONTRACTED = ("fma", "fms", "fnma", "dot2", "axpy")
CONTRACTION = "the CUDA compiler contracts a * b + c to one fma; the emulator executes TVM's two operations and rounds twice"


def cases() -> Iterator[Case]:
    for name, expression in FLOAT.items():
        for dtype in ("float32", "float16", "bfloat16"):
            if dtype != "float32" and (
                name in ULPS
                or name in ABSOLUTE
                or "float32" in expression
                or name in ("floor", "ceil", "trunc", "round", "abs")
            ):
                continue
            case_id = f"tir/{dtype}/{name}"
            contracted = name in CONTRACTED
            yield Case(
                case_id, "TIR contraction" if contracted else "TIR arithmetic", partial(_kernel, case_id, expression, dtype, dtype),
                partial(_arguments, dtype, dtype, True), ulps={"argument": ULPS[name]} if name in ULPS else {},
                absolute={"argument": ABSOLUTE[name]} if name in ABSOLUTE else {}, known=CONTRACTION if contracted else "",
            )  # fmt: skip
    for name, expression in INTEGER.items():
        for dtype in ("int32", "uint32", "int64"):
            text = expression.replace("31", f"T.{dtype}(31)").replace("| 1", f"| T.{dtype}(1)")
            case_id = f"tir/{dtype}/{name}"
            yield Case(
                case_id,
                "TIR arithmetic",
                partial(_kernel, case_id, text, dtype, dtype),
                partial(_arguments, dtype, dtype, False),
            )
    for source, target in CASTS:
        case_id = f"tir/cast/{source}.{target}"
        # Between floats a NaN's payload and subnormals depend on the compiler's flags: ordinary values there.
        moderate = "float" in source and "float" in target
        yield Case(
            case_id,
            "TIR casts",
            partial(_kernel, case_id, f'T.Cast("{target}", a)', source, target),
            partial(_arguments, source, target, moderate),
        )
