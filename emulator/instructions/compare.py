"""Comparisons and tests (PTX ISA, "set", "setp", "testp", "min", "max").

Ordered comparisons are false when an operand is NaN, unordered ones (``equ`` ... ``geu``) are true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.instructions.registers import (
    FLOATS,
    PACKED,
    as_u64,
    elementwise,
    float_op,
    is_vector,
    packed,
    parts,
    unsupported,
)
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value, ndarray
from emulator.numerics.rounding import flush

Op = Callable[..., Value]

_INTEGER: dict[str, Op] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "lo": lambda a, b: a < b, "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b, "hs": lambda a, b: a >= b,
}  # fmt: skip


def _neither(p: Value) -> Value:
    return np.logical_not(p)


_FLOAT: dict[str, Op] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: (a < b) | (a > b), "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "equ": lambda a, b: _neither((a < b) | (a > b)), "neu": lambda a, b: a != b, "ltu": lambda a, b: _neither(a >= b),
    "leu": lambda a, b: _neither(a > b), "gtu": lambda a, b: _neither(a <= b), "geu": lambda a, b: _neither(a < b),
    "num": lambda a, b: (a == a) & (b == b), "nan": lambda a, b: (a != a) | (b != b),
}  # fmt: skip


def comparison(mods: Mods, ptx_type: str, name: str) -> Op:
    """``cmp(a, b)`` on registers of ``ptx_type``: bool, or ``bool[L, 2]`` for packed halves."""
    if ptx_type in FLOATS or ptx_type in ("f16x2", "bf16x2"):
        compare = _FLOAT.get(mods["cmp"])
        if compare is None:
            raise unsupported(name, mods)
        if ptx_type in PACKED:
            carrier, element = PACKED[ptx_type]
            compare_parts = _flushed(compare, mods)
            return lambda a, b: compare_parts(parts(a, carrier, element), parts(b, carrier, element))
        return _flushed(compare, mods)
    compare = _INTEGER.get(mods["cmp"])
    if compare is None:
        raise unsupported(name, mods)
    if ptx_type in ("b64", "u64"):
        wide = compare
        return lambda a, b: wide(as_u64(a), as_u64(b))
    return compare


def _flushed(compare: Op, mods: Mods) -> Op:
    if "ftz" not in mods:
        return compare
    return lambda a, b: compare(flush_any(a), flush_any(b))


def flush_any(x: Any) -> Any:
    """Subnormals of any float type as zeros of the same sign."""
    if x.dtype == np.float32:
        return flush(np.asarray(x))
    small = np.abs(x) < _SMALLEST_NORMAL[x.dtype.name]
    return x * ~small if x.dtype == np.float64 else np.where(small, np.copysign(np.zeros((), x.dtype), x), x)


_SMALLEST_NORMAL = {
    "float16": np.float16(2.0**-14),
    "bfloat16": FLOATS["bf16"].type(2.0**-126),
    "float64": 2.0**-1022,
}


def _boolean(mods: Mods) -> Callable[[Value, Value], Value]:
    op = mods["boolop"]
    if op == "and":
        return lambda p, c: p & c
    if op == "or":
        return lambda p, c: p | c
    return lambda p, c: p ^ c


def _scalar_type(mods: Mods) -> str:
    return mods["stype"] or mods["type"]


def _scalar_compare(mods: Mods, name: str) -> Op:
    """A comparison with one result; bf16 registers hold one element."""
    ptx_type = _scalar_type(mods)
    compare = comparison(mods, ptx_type, name)
    if ptx_type != "bf16":
        return compare

    def op(a: Value, b: Value) -> Value:
        y = compare(a, b)[:, 0]
        return y if is_vector(a, b) else bool(y[0])

    return op


@instruction("ptx.setp", "ptx.setp_half", pure=True)
def setp(mods: Mods) -> Op:
    return _scalar_compare(mods, "setp")


@instruction("ptx.setp_pq", pure=True)
def setp_pq(mods: Mods) -> Op:
    """``setp p|q``: the comparison and its complement."""
    compare = _scalar_compare(mods, "setp")

    def op(a: Value, b: Value) -> Value:
        p = compare(a, b)
        return p, np.logical_not(p)

    return op


@instruction("ptx.setp_bool", "ptx.setp_half_bool", pure=True)
def setp_bool(mods: Mods) -> Op:
    """``p = cmp(a, b) op c``."""
    compare, combine = _scalar_compare(mods, "setp"), _boolean(mods)
    return lambda a, b, c: combine(compare(a, b), c != 0)


@instruction("ptx.setp_bool_pq", pure=True)
def setp_bool_pq(mods: Mods) -> Op:
    """``p = cmp op c``, ``q = !cmp op c``."""
    compare, combine = _scalar_compare(mods, "setp"), _boolean(mods)

    def op(a: Value, b: Value, c: Value) -> Value:
        p = compare(a, b)
        return combine(p, c != 0), combine(np.logical_not(p), c != 0)

    return op


def _halves(p: ndarray, vector: bool) -> tuple[Value, Value]:
    return (p[:, 0], p[:, 1]) if vector else (bool(p[0, 0]), bool(p[0, 1]))


@instruction("ptx.setp_half_pq", pure=True)
def setp_half_pq(mods: Mods) -> Op:
    """Packed halves: p for the low elements, q for the high ones."""
    compare = comparison(mods, mods["type"], "setp")
    return lambda a, b: _halves(compare(a, b), is_vector(a, b))


@instruction("ptx.setp_half_bool_pq", pure=True)
def setp_half_bool_pq(mods: Mods) -> Op:
    compare, combine = comparison(mods, mods["type"], "setp"), _boolean(mods)

    def op(a: Value, b: Value, c: Value) -> Value:
        p, q = _halves(compare(a, b), is_vector(a, b))
        return combine(p, c != 0), combine(q, c != 0)

    return op


def _truth(dtype: str) -> Callable[[Value], Value]:
    """``set``'s result: 1.0 for float destinations, all ones for integer ones."""
    if dtype == "f32":
        return lambda p: p.astype(np.float32) if isinstance(p, ndarray) else np.float32(bool(p))
    if dtype == "f16":
        return lambda p: p.astype(np.float16) if isinstance(p, ndarray) else np.float16(bool(p))
    one = {"bf16": 0x3F80, "u16": 0xFFFF, "u32": 0xFFFFFFFF, "s16": -1, "s32": -1}[dtype]
    return lambda p: p * np.int64(one) if isinstance(p, ndarray) else one * bool(p)


def _set(mods: Mods, extra: Callable[[Value, Value], Value] | None) -> Op:
    dtype, stype = mods["dtype"], mods["stype"]
    if dtype in PACKED and dtype != "bf16":
        if stype != dtype:
            raise unsupported("set", mods)
        carrier, element = PACKED[dtype]
        compare = comparison(mods, stype, "set")

        def packed_op(a: Value, b: Value, *c: Value) -> Value:
            p = compare(a, b)
            if extra is not None:
                p = extra(p, np.reshape(np.asarray(c[0] != 0), (-1, 1)))
            return packed(p.astype(element), carrier, is_vector(a, b, *c))

        return packed_op
    if stype in ("f16x2", "bf16x2"):
        # the result of each half fills one half of the destination
        compare = comparison(mods, stype, "set")
        one = np.dtype(np.uint16)

        def mask_op(a: Value, b: Value, *c: Value) -> Value:
            p = compare(a, b)
            if extra is not None:
                p = extra(p, np.reshape(np.asarray(c[0] != 0), (-1, 1)))
            return packed(p.astype(one) * one.type(0xFFFF), np.dtype(np.uint32), is_vector(a, b, *c))

        return mask_op
    compare, truth = _scalar_compare(mods, "set"), _truth(dtype)
    if extra is None:
        return lambda a, b: truth(compare(a, b))
    return lambda a, b, c: truth(extra(compare(a, b), c != 0))


@instruction("ptx.set", "ptx.set_half", pure=True)
def set_(mods: Mods) -> Op:
    return _set(mods, None)


@instruction("ptx.set_bool", "ptx.set_half_bool", pure=True)
def set_bool(mods: Mods) -> Op:
    return _set(mods, _boolean(mods))


@instruction("ptx.testp", pure=True)
def testp(mods: Mods) -> Op:
    """Classify a float."""
    dtype = FLOATS[mods["type"]]
    tiny = np.finfo(dtype).smallest_normal
    tests: dict[str, Op] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: a == a,
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= tiny) | (a == 0)),  # a zero counts as normal
        "subnormal": lambda a: (np.abs(a) < tiny) & (a != 0),
    }
    return tests[mods["op"]]


# ---------------------------------------------------------------------------------------------- min and max


def float_extreme(mods: Mods, ptx_type: str, largest: bool) -> Callable[..., Any]:
    """min or max over float arrays: the number wins over NaN unless ``.NaN``; -0 is less than +0."""
    pick = (np.maximum if largest else np.minimum) if "NaN" in mods else (np.fmax if largest else np.fmin)
    flushes, absolute, xorsign, relu = "ftz" in mods, "abs" in mods, "xorsign" in mods, "relu" in mods
    half = ptx_type.startswith("bf16")  # NumPy's fmax knows no bfloat16

    def one(a: Any, b: Any) -> Any:
        if half:
            wide = one_wide(a.astype(np.float32), b.astype(np.float32))
            return wide.astype(FLOATS["bf16"])
        return one_wide(a, b)

    def one_wide(a: Any, b: Any) -> Any:
        y = pick(a, b)
        if ptx_type == "f64" and np.count_nonzero(both := (a != a) & (b != b)):
            y = np.where(both, b + b, y)  # of two NaNs the second, made quiet (H200)
        if np.count_nonzero(y == 0):
            # equal zeros: the sign of the result is min's or max's, not the first operand's
            negative = (np.signbit(a) & np.signbit(b)) if largest else (np.signbit(a) | np.signbit(b))
            both = (a == 0) & (b == 0)
            y = np.where(both, np.where(negative, -np.zeros((), y.dtype), np.zeros((), y.dtype)), y)
        return y

    def op(*values: Any) -> Any:
        if flushes:
            values = tuple(flush_any(v) for v in values)
        sign = None
        if xorsign:
            sign = np.signbit(values[0]) ^ np.signbit(values[1])
        if absolute:
            values = tuple(np.abs(v) for v in values)
        y = values[0]
        for v in values[1:]:
            y = one(y, v)
        if sign is not None:
            y = np.where(sign, -np.abs(y), np.abs(y))
        if relu:
            y = np.where((y > 0) | (y != y), y, np.zeros((), y.dtype))
        return y

    return op


def _extreme(largest: bool) -> Callable[[Mods], Op]:
    def build(mods: Mods) -> Op:
        ptx_type = mods["type"]
        if ptx_type in FLOATS or ptx_type in ("f16x2", "bf16x2"):
            return float_op(float_extreme(mods, ptx_type, largest), ptx_type)
        relu = "relu" in mods
        if ptx_type in PACKED:
            pick = np.maximum if largest else np.minimum
            if relu:
                return elementwise(lambda a, b: np.maximum(pick(a, b), 0), ptx_type)
            return elementwise(pick, ptx_type)
        wide = as_u64 if ptx_type == "u64" else None

        def op(a: Value, b: Value) -> Value:
            if wide is not None:
                a, b = wide(a), wide(b)
            if is_vector(a, b):
                y = np.maximum(a, b) if largest else np.minimum(a, b)
                return np.maximum(y, 0) if relu else y
            y = max(a, b) if largest else min(a, b)
            return max(y, 0) if relu else y

        return op

    return build


instruction("ptx.max", "ptx.max3", pure=True)(_extreme(True))
instruction("ptx.min", "ptx.min3", pure=True)(_extreme(False))

__all__ = ["comparison", "float_extreme", "flush_any"]
