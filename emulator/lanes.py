"""Polymorphic lane arithmetic: a value is a Python scalar (the same in every lane) or a NumPy vector (one per lane).

Representation, the one convention that every instruction relies on:

=============  =======================  ==========================
TIR dtype      uniform value            per-lane value
=============  =======================  ==========================
bool           ``bool``                 ``bool[L]``
int8..int32    ``int`` (in range)       ``int64[L]`` (in range)
uint8..uint32  ``int`` (in range)       ``int64[L]`` (in range)
int64, handle  ``int``                  ``int64[L]``
uint64         ``int``                  ``uint64[L]``
uint128        ``int``                  ``V16[L]``
float16/32/64  NumPy scalar             ``float16/32/64[L]``
bfloat16, fp8  ml_dtypes scalar         ``ml_dtypes`` array ``[L]``
=============  =======================  ==========================

The generated warp programs import everything from here under the names below.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

M32 = 0xFFFFFFFF
M64 = 0xFFFFFFFFFFFFFFFF
f16, f32, f64 = np.float16, np.float32, np.float64
i64, u64, u32, i32 = np.int64, np.uint64, np.uint32, np.int32
ndarray = np.ndarray

Value = Any  # scalar or ndarray

_NP = {
    "bool": np.bool_,
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
    "float16": np.float16, "float32": np.float32, "float64": np.float64,
    "handle": np.int64, "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip
STORED = frozenset((*_NP, "uint128"))  # dtypes that memory and local arrays can have
SMALL_FLOATS = frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"))
FLOATS = SMALL_FLOATS | {"float16", "float32", "float64"}


def np_dtype(dtype: str) -> np.dtype:
    """NumPy storage dtype of a TIR scalar dtype (``ml_dtypes`` for bf16 and fp8)."""
    if dtype in _NP:
        return np.dtype(_NP[dtype])
    if dtype == "uint128":
        return np.dtype("V16")
    raise KeyError(dtype)


def is_vector(x: Value) -> bool:
    return isinstance(x, ndarray) and x.ndim > 0


def s32(x: Value) -> Value:
    """Wrap to int32 (two's complement)."""
    if isinstance(x, ndarray):
        return ((x + 0x80000000) & M32) - 0x80000000
    return ((x + 0x80000000) & M32) - 0x80000000


def wrap_int(x: Value, bits: int, signed: bool) -> Value:
    """Wrap an integer value to ``bits`` bits; 64-bit vectors change between int64 and uint64."""
    if bits == 64:
        if isinstance(x, ndarray):
            return x.astype(i64 if signed else u64, copy=False) if x.dtype != object else x
        x = int(x) & M64
        return x - (1 << 64) if signed and x >> 63 else x
    mask = (1 << bits) - 1
    if isinstance(x, ndarray):
        if x.dtype != i64:
            x = x.astype(i64)
        x = x & mask
        return ((x + (1 << (bits - 1))) & mask) - (1 << (bits - 1)) if signed else x
    x = int(x) & mask
    return x - (1 << bits) if signed and x >> (bits - 1) else x


def to_int(x: Value, bits: int, signed: bool) -> Value:
    """Float to integer as a C cast compiles on sm_90 (compared with an H200): ``cvt.rzi`` to 32 or 64 bits, which saturates.

    A NaN gives 0; from float64 or to 64 bits only the top bit. Types of 8 and 16 bits take the low bits of the 32-bit
    conversion, except from bfloat16, whose conversion saturates at the narrow type itself.
    """
    vector = isinstance(x, ndarray)
    values = x if isinstance(x, ndarray) else np.asarray([x])
    small = values.dtype.itemsize == 2 and values.dtype != f16
    wide = bits if bits >= 32 or small else 32
    low, high = (-(1 << (wide - 1)), (1 << (wide - 1)) - 1) if signed else (0, (1 << wide) - 1)
    no_number = 1 << (wide - 1) if wide == 64 or (values.dtype == f64 and wide == 32) else 0
    y = np.trunc(values.astype(f64))
    nan, above, below = y != y, y >= float(high), y <= float(low)
    integer = u64 if wide == 64 and not signed else i64
    inside = np.where(nan | above | below, 0.0, y).astype(integer)
    out = np.where(above, integer(high), np.where(below, integer(low), inside))
    if nan.any():
        out = np.where(nan, integer(no_number - (1 << wide) if signed and no_number else no_number), out)
    if bits < wide:
        out = wrap_int(out, bits, signed)
    return out if vector else int(out[0])


def to_f32(x: Value) -> Value:
    return x.astype(f32) if isinstance(x, ndarray) else f32(x)


def to_f16(x: Value) -> Value:
    with np.errstate(over="ignore"):
        return x.astype(f16) if isinstance(x, ndarray) else f16(x)


def to_f64(x: Value) -> Value:
    return x.astype(f64) if isinstance(x, ndarray) else f64(x)


def to_bool(x: Value) -> Value:
    return x.astype(bool) if isinstance(x, ndarray) else bool(x)


def lo32(x: Value) -> Value:
    """Low word of a 64-bit value as uint32."""
    if isinstance(x, ndarray):
        return (x & (u64(M32) if x.dtype == u64 else M32)).astype(i64)
    return x & M32


def hi32(x: Value) -> Value:
    """High word of a 64-bit value as uint32."""
    if isinstance(x, ndarray):
        return (x >> (u64(32) if x.dtype == u64 else 32)).astype(i64) & M32
    return (x >> 32) & M32


def pack64(lo: Value, hi: Value) -> Value:
    """uint64 from two uint32 words."""
    if isinstance(lo, ndarray) or isinstance(hi, ndarray):
        lo_v = np.asarray(lo, dtype=i64).astype(u64)
        hi_v = np.asarray(hi, dtype=i64).astype(u64)
        return lo_v | (hi_v << u64(32))
    return (lo & M32) | ((hi & M32) << 32)


def vmin(a: Value, b: Value) -> Value:
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        return np.minimum(a, b)
    return a if a < b else b


def vmax(a: Value, b: Value) -> Value:
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        return np.maximum(a, b)
    return a if a > b else b


def lnot(a: Value) -> Value:
    return ~a if isinstance(a, ndarray) else not a


def land(a: Value, b: Value) -> Value:
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        return np.logical_and(a, b)
    return bool(a) and bool(b)


def lor(a: Value, b: Value) -> Value:
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        return np.logical_or(a, b)
    return bool(a) or bool(b)


def select(c: Value, a: Value, b: Value) -> Value:
    """``c ? a : b`` with both sides already computed."""
    if isinstance(c, ndarray):
        return np.where(c, a, b)
    return a if c else b


def merge(mask: Value, new: Value, old: Value) -> Value:
    """What a register holds after a masked assignment (``mask`` None: every lane assigned)."""
    if mask is None:
        return new
    return np.where(mask, new, old)


def to_small(x: Value, dtype: str) -> Value:
    """Convert to bfloat16 or an 8-bit float, round to nearest even."""
    np_type = _NP[dtype]
    with np.errstate(over="ignore"):
        return x.astype(np_type) if isinstance(x, ndarray) else np_type(x)


_BITS_INT = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_BITS_FLOAT = {name: _NP[name] for name in FLOATS}
_WIDTH = {name: np.dtype(_NP[name]).itemsize * 8 for name in FLOATS}


def float_bits(x: Value, dtype: str) -> Value:
    """Bit pattern of a float value as an unsigned integer value."""
    bits = _WIDTH[dtype]
    if isinstance(x, ndarray):
        raw = np.ascontiguousarray(x.astype(_BITS_FLOAT[dtype], copy=False)).view(_BITS_INT[bits])
        return raw if bits == 64 else raw.astype(i64)
    return int(np.asarray(x, dtype=_BITS_FLOAT[dtype]).view(_BITS_INT[bits]))


def bits_float(x: Value, dtype: str) -> Value:
    """Float value of an unsigned bit pattern."""
    bits = _WIDTH[dtype]
    if isinstance(x, ndarray):
        return x.astype(_BITS_INT[bits]).view(_BITS_FLOAT[dtype])
    return np.asarray(int(x) & ((1 << bits) - 1), dtype=_BITS_INT[bits]).view(_BITS_FLOAT[dtype])[()]


def shl(x: Value, n: Value, bits: int, signed: bool) -> Value:
    """Logical shift left in ``bits`` bits; amounts of ``bits`` and more give 0."""
    if isinstance(x, ndarray) or isinstance(n, ndarray):
        if bits == 64:
            xv = np.asarray(x).astype(u64) if not isinstance(x, int) else u64(x & M64)
            nv = np.asarray(n).astype(u64)
            out = np.where(nv < 64, xv << np.minimum(nv, u64(63)), u64(0))
            return out.astype(i64) if signed else out
        n = np.minimum(n, 32) if isinstance(n, ndarray) else min(n, 32)
        return wrap_int(np.asarray(x, dtype=i64) << n, bits, signed)
    return wrap_int(x << n, bits, signed) if n < bits else 0


def shr(x: Value, n: Value, bits: int, signed: bool) -> Value:
    """Arithmetic (signed) or logical shift right; amounts of ``bits`` and more give 0 or the sign."""
    if isinstance(x, ndarray) or isinstance(n, ndarray):
        if bits == 64 and not signed:
            return np.where(
                np.asarray(n) < 64,
                np.asarray(x).astype(u64) >> np.minimum(np.asarray(n), 63).astype(u64),
                u64(0),
            )
        return np.asarray(x, dtype=i64) >> (np.minimum(n, 63) if isinstance(n, ndarray) else min(n, 63))
    return x >> n


def pick(x: Value, lane: int) -> Value:
    """One lane of a value as a Python (or NumPy float) scalar."""
    if isinstance(x, ndarray) and x.ndim:
        y = x[lane]
        return y if y.dtype.kind == "f" else y.item()
    return x


def put(x: Value, lane: int, new: Value, count: int) -> Value:
    """The value after lane ``lane`` of ``count`` lanes was assigned ``new``."""
    if count == 1:
        return new
    if isinstance(x, ndarray) and x.ndim:
        x = x.copy()
    else:
        if x is new or (type(x) is type(new) and x == new):
            return x
        kind: Any = type(new) if isinstance(new, np.floating) else (bool if isinstance(new, bool) else i64)
        if (
            isinstance(new, int)
            and not isinstance(new, bool)
            and (new >> 63 > 0 or (isinstance(x, int) and x >> 63 > 0))
        ):
            kind = u64
            x = int(x) & 0xFFFFFFFFFFFFFFFF
        x = np.full(count, x, dtype=kind)
    x[lane] = new
    return x


def floordiv(a: Value, b: Value) -> Value:
    return a // b


def truncdiv(a: Value, b: Value) -> Value:
    """C integer division."""
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        q = np.abs(a) // np.abs(b)
        return np.where((np.asarray(a) < 0) != (np.asarray(b) < 0), -q, q)
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def truncmod(a: Value, b: Value) -> Value:
    """C integer remainder."""
    return a - truncdiv(a, b) * b
