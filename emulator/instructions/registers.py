"""Registers as the arithmetic instructions see them: wrapping, and the lanes of packed registers.

A value is in the representation of :mod:`emulator.lanes`.  Packed registers (``f32x2``, ``f16x2``, ``bf16x2``, ``u16x2`` ...)
are unsigned integers there; :func:`parts` shows their elements as an array of shape ``[L, n]`` (``[1, n]`` for a uniform
register), element 0 in the low bits, and :func:`packed` is its inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from emulator.errors import UnsupportedInstruction
from emulator.instructions.registry import Mods
from emulator.lanes import M64, Value
from emulator.numerics.rounding import canonical_nan

ndarray = np.ndarray

FLOATS: dict[str, np.dtype] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
INTEGERS: dict[str, tuple[int, bool]] = {
    f"{kind}{bits}": (bits, kind == "s") for kind in "usb" for bits in (8, 16, 32, 64)
}
#: carrier and element dtype of packed registers
PACKED: dict[str, tuple[np.dtype, np.dtype]] = {
    "f32x2": (np.dtype(np.uint64), np.dtype(np.float32)),
    "f16x2": (np.dtype(np.uint32), np.dtype(np.float16)),
    "bf16x2": (np.dtype(np.uint32), np.dtype(ml_dtypes.bfloat16)),
    "u16x2": (np.dtype(np.uint32), np.dtype(np.uint16)),
    "s16x2": (np.dtype(np.uint32), np.dtype(np.int16)),
    "u8x4": (np.dtype(np.uint32), np.dtype(np.uint8)),
    "s8x4": (np.dtype(np.uint32), np.dtype(np.int8)),
    "bf16": (np.dtype(np.uint16), np.dtype(ml_dtypes.bfloat16)),
}


def unsupported(name: str, mods: Mods, why: str = "") -> UnsupportedInstruction:
    """The instruction with all its modifiers, as PTX spells it."""
    return UnsupportedInstruction(f"{name}.{mods!r}" if repr(mods) else name, why=why)


def forbid(name: str, mods: Mods, *tokens: str) -> None:
    """Reject modifiers that have no implementation.

    Raises:
        UnsupportedInstruction: one of ``tokens`` is given.
    """
    for token in tokens:
        if token in mods:
            raise unsupported(name, mods, f"modifier .{token}")


def is_vector(*values: Value) -> bool:
    """Whether any value differs by lane."""
    return any(isinstance(v, ndarray) and v.ndim for v in values)


def wrapper(ptx_type: str) -> Callable[[Value], Value]:
    """The function that reduces an integer result to the range of ``ptx_type``."""
    bits, signed = INTEGERS[ptx_type]
    if bits == 64:
        return _wrap_s64 if signed else _wrap_u64
    mask = (1 << bits) - 1
    if not signed:
        return lambda x: x & mask
    half, narrow = 1 << (bits - 1), np.dtype(f"int{bits}")

    def wrap(x: Value) -> Value:
        if isinstance(x, ndarray):
            return x.astype(narrow).astype(np.int64)
        return ((x + half) & mask) - half

    return wrap


def _wrap_s64(x: Value) -> Value:
    if isinstance(x, ndarray):
        return x.astype(np.int64, copy=False)
    x = int(x) & M64
    return x - (1 << 64) if x >> 63 else x


def _wrap_u64(x: Value) -> Value:
    if isinstance(x, ndarray):
        return x.astype(np.uint64, copy=False)
    return int(x) & M64


def as_u64(x: Value) -> Value:
    """A 64-bit operand as ``uint64[L]`` or a non-negative Python integer."""
    if isinstance(x, ndarray) and x.ndim:
        return x if x.dtype == np.uint64 else x.astype(np.uint64)
    return int(x) & M64


def as_s64(x: Value) -> Value:
    """A 64-bit operand as ``int64[L]`` or a Python integer in the signed range."""
    if isinstance(x, ndarray) and x.ndim:
        return x if x.dtype == np.int64 else x.astype(np.int64)
    return _wrap_s64(int(x))


def exact(x: Value) -> Value:
    """An integer operand as Python integers (an object array for a vector): for rare, wide arithmetic."""
    return x.astype(object) if isinstance(x, ndarray) and x.ndim else int(x)


def inexact(x: Value, ptx_type: str) -> Value:
    """The inverse of :func:`exact`: Python integers reduced to ``ptx_type``."""
    bits, signed = INTEGERS[ptx_type]
    mask = (1 << bits) - 1
    x = x & mask
    if signed:
        half = 1 << (bits - 1)
        x = ((x + half) & mask) - half
    if isinstance(x, ndarray):
        return x.astype(np.uint64 if bits == 64 and not signed else np.int64)
    return x


def parts(x: Value, carrier: np.dtype, element: np.dtype) -> ndarray:
    """The elements of a packed register: ``element[L, n]``, or ``element[1, n]`` for a uniform one."""
    if isinstance(x, ndarray) and x.ndim:
        if x.dtype != carrier:
            x = x.astype(carrier)
        elif not x.flags.c_contiguous:
            x = x.copy()
        return x.reshape(-1, 1).view(element)
    return np.array([[int(x)]], dtype=carrier).view(element)


def packed(y: ndarray, carrier: np.dtype, vector: bool) -> Value:
    """The register that holds ``element[L, n]``, back in lane representation."""
    bits = np.ascontiguousarray(y).view(carrier)
    if not vector:
        return int(bits.flat[0])
    bits = bits.reshape(-1)
    return bits if carrier.itemsize == 8 else bits.astype(np.int64)


def elementwise(fn: Callable[..., ndarray], ptx_type: str) -> Callable[..., Value]:
    """Lift ``fn(elements...)`` to packed registers of ``ptx_type``."""
    carrier, element = PACKED[ptx_type]
    is_float = element.kind not in "iu"
    wide = carrier.itemsize == 8

    def op(*operands: Value) -> Value:
        if wide and all(
            isinstance(x, ndarray) and x.dtype == carrier and x.flags.c_contiguous for x in operands
        ):
            lined_up = canonical_nan(fn(*(x.view(element) for x in operands)))
            return lined_up.view(carrier)
        vector = is_vector(*operands)
        y = fn(*(parts(x, carrier, element) for x in operands))
        if is_float:
            y = canonical_nan(y)
        return packed(y if y.dtype == element else y.astype(element), carrier, vector)

    return op


def float_op(fn: Callable[..., Any], ptx_type: str) -> Callable[..., Value]:
    """Lift ``fn`` over float arrays to registers of a float type, packed or not; uniform stays uniform."""
    if ptx_type in PACKED:
        return elementwise(fn, ptx_type)

    def op(*operands: Value) -> Value:
        y = canonical_nan(fn(*operands))
        return y[()] if isinstance(y, ndarray) and not y.ndim else y

    return op


_U64, _V16 = np.dtype(np.uint64), np.dtype("V16")


def split128(x: Value) -> tuple[Value, Value]:
    """The low and the high 64 bits of a 128-bit register."""
    if isinstance(x, ndarray) and x.ndim:
        both = np.ascontiguousarray(x).view(_U64).reshape(-1, 2)
        return both[:, 0], both[:, 1]
    x = as_int128(x)
    return x & M64, x >> 64


def join128(low: Value, high: Value) -> Value:
    """A 128-bit register from its halves."""
    if not is_vector(low, high):
        return (int(low) & M64) | (int(high) & M64) << 64
    length = len(low) if is_vector(low) else len(high)
    both = np.empty((length, 2), dtype=_U64)
    both[:, 0] = as_u64(low)
    both[:, 1] = as_u64(high)
    return both.view(_V16)[:, 0]


def as_int128(x: Value) -> int:
    """One 128-bit register as a Python integer."""
    return int.from_bytes(x.tobytes(), "little") if isinstance(x, np.void) else int(x)
