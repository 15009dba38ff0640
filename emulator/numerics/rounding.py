"""Floating-point arithmetic with the rounding modes and flush-to-zero of PTX, exact to the last bit.

float32 operations take arrays (or scalars) of float32 and return float32 arrays. `mode` is rn (nearest, ties
to even), rz (toward zero), rm (toward minus infinity) or rp (toward plus infinity); `ftz` flushes subnormal
inputs and results to zeros of the same sign; `sat` clamps to [0, 1] and turns NaN into +0.
f32x2 registers are uint64 arrays (low half first): `registers.view(np.float32)` gives their 2n floats, on
which all functions here work as they are.

How it is exact: a product of two float32 is exact in float64; the float64 sum s of two numbers has an error
term that TwoSum computes exactly; the rounding of s to float32 can only go wrong when s lies on a float32 or
on the midpoint of two, and there the sign of the error term decides.
NaN results of these functions are quiet NaNs with unspecified payload; `canonical_nan` gives the one pattern that
sm_90 produces. Callers silence NumPy's floating-point warnings
(`np.errstate(all="ignore")`), which is too slow to do per operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import ml_dtypes
import numpy as np

from emulator.numerics.formats import Array

Mode = Literal["rn", "rz", "rm", "rp"]
# Constants are 0-d arrays: NumPy combines them with short arrays faster than scalars.
_MIN_NORMAL = {np.dtype(t): np.array(2.0**-126, t) for t in (np.float32, np.float64)}
_MIN_NORMAL_32 = _MIN_NORMAL[np.dtype(np.float32)]
_LARGEST = np.array(2.0**128 - 2.0**104, np.float32)
_MINUS_INFINITY, _PLUS_INFINITY = np.array(-np.inf, np.float32), np.array(np.inf, np.float32)
_ZERO = np.array(0.0)
# A normal float32 keeps all but the low 29 mantissa bits of a float64.
_KEPT_BITS = np.array(~((1 << 29) - 1) & ((1 << 64) - 1), np.uint64)
_TOP_29 = np.array(35, np.uint64)  # shift that leaves only the low 29 bits of a float64
_MIDPOINT, _NOTHING = np.array(1 << 63, np.uint64), np.array(0, np.uint64)


_CANONICAL_NAN = {
    np.dtype(np.float16): np.array(0x7FFF, np.uint16).view(np.float16),
    np.dtype(ml_dtypes.bfloat16): np.array(0x7FFF, np.uint16).view(ml_dtypes.bfloat16),
    np.dtype(np.float32): np.array(0x7FFFFFFF, np.uint32).view(np.float32),
}


def canonical_nan(y: Any) -> Any:
    """Every NaN as the hardware's: 0x7fffffff in float32, 0x7fff in float16 and bfloat16; float64 keeps its payloads.

    Seen on an H200 for arithmetic, min, max, abs, neg and the conversions between these formats.
    """
    nan = y != y
    if isinstance(nan, np.ndarray):
        if not _any(nan):
            return y
        one = _CANONICAL_NAN.get(y.dtype)
        return y if one is None else np.where(nan, one, y)
    if not nan or not isinstance(y, np.generic):
        return y
    one = _CANONICAL_NAN.get(y.dtype)
    return y if one is None else one[()]


def flush(x: Array) -> Array:
    """Values below 2^-126 become zeros of the same sign, for float32 and float64 arrays."""
    small = np.abs(x) < _MIN_NORMAL[x.dtype]
    if not _any(small):
        return x
    flushed: Array = x * ~small
    return flushed


def saturate(x: Array) -> Array:
    """Clamp to [0, 1]; NaN and -0 become +0."""
    return np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0))


def add(a: Any, b: Any, mode: Mode = "rn", ftz: bool = False, sat: bool = False) -> Array:
    """a + b in float32 (PTX add.f32)."""
    if mode == "rn":
        a, b = _inputs(ftz, a, b)
        return _finish(a + b, ftz, sat)
    a, b = _widened(ftz, a, b)
    y = round_sum(a, b, mode, ftz)
    return saturate(y) if sat else y


def sub(a: Any, b: Any, mode: Mode = "rn", ftz: bool = False, sat: bool = False) -> Array:
    """a - b in float32 (PTX sub.f32)."""
    return add(a, -np.asarray(b, np.float32), mode, ftz, sat)


def mul(a: Any, b: Any, mode: Mode = "rn", ftz: bool = False, sat: bool = False) -> Array:
    """a * b in float32 (PTX mul.f32)."""
    if mode == "rn":
        a, b = _inputs(ftz, a, b)
        y = a * b
        if ftz:
            y = flush_tiny(y, lambda: a.astype(np.float64) * b, mode)
        return saturate(y) if sat else y
    a, b = _widened(ftz, a, b)
    exact = a * b
    y = round_float32(exact, mode)
    if ftz:
        y = flush_tiny(y, lambda: exact, mode)
    return saturate(y) if sat else y


def fma(a: Any, b: Any, c: Any, mode: Mode = "rn", ftz: bool = False, sat: bool = False) -> Array:
    """a * b + c with one rounding to float32 (PTX fma.f32)."""
    a, b, c = _widened(ftz, a, b, c)
    y = round_sum(a * b, c, mode, ftz)
    return saturate(y) if sat else y


def fma_f32(a: Any, b: Any, c: Any) -> Array:
    """a * b + c with one rounding to nearest."""
    return fma(a, b, c)


def div(a: Any, b: Any, mode: Mode = "rn", ftz: bool = False) -> Array:
    """a / b in float32, correctly rounded (PTX div.rn/rz/rm/rp.f32)."""
    a, b = _inputs(ftz, a, b)
    y = np.asarray(a / b)
    if mode != "rn":
        # a - y b is exact in float64, and its sign against b says on which side of a / b the quotient y is.
        wide = b.astype(np.float64)
        residual = (a.astype(np.float64) - y.astype(np.float64) * wide) * np.sign(wide)
        y = _step(y, _with_overflow(residual, y, np.isfinite(a) & (b != 0)), mode)
    return flush_tiny(y, lambda: a.astype(np.float64) / b, mode) if ftz else y


def rcp(a: Any, mode: Mode = "rn", ftz: bool = False) -> Array:
    """1 / a in float32, correctly rounded (PTX rcp.rn/rz/rm/rp.f32)."""
    return div(np.float32(1), a, mode, ftz)


def sqrt(a: Any, mode: Mode = "rn", ftz: bool = False) -> Array:
    """Square root in float32, correctly rounded (PTX sqrt.rn/rz/rm/rp.f32)."""
    (a,) = _inputs(ftz, a)
    y = np.asarray(np.sqrt(a))
    if mode != "rn":
        wide = y.astype(np.float64)
        y = _step(y, a.astype(np.float64) - wide * wide, mode)
    return _finish(y, ftz, False)


# ---------------------------------------------------------------------------------------------------------
# 16-bit floats: results of one operation, rounded to nearest even
# ---------------------------------------------------------------------------------------------------------


def add_half(a: Array, b: Array) -> Array:
    """a + b for float16 or bfloat16 arrays (PTX add.rn.f16/bf16)."""
    # float32 has more than twice the digits of either, so rounding twice is rounding once.
    return (a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype)


def mul_half(a: Array, b: Array) -> Array:
    """a * b for float16 or bfloat16 arrays (PTX mul.rn.f16/bf16)."""
    return (a.astype(np.float32) * b.astype(np.float32)).astype(a.dtype)


def fma_half(a: Array, b: Array, c: Array, relu: bool = False) -> Array:
    """a * b + c with one rounding for float16 or bfloat16 arrays (PTX fma.rn.f16/bf16)."""
    product = a.astype(np.float64) * b.astype(np.float64)
    # Round the float64 sum to odd, so that only the second rounding, to the narrow type, counts.
    wide = c.astype(np.float64)
    s = product + wide
    y = _narrow(_round_to_odd(s, _error(s, product, wide)), a.dtype)
    return np.where((y > 0) | np.isnan(y), y, np.zeros((), a.dtype)) if relu else y


def _narrow(x: Array, dtype: Any) -> Array:
    """float64 to float16 or bfloat16, one rounding to nearest even."""
    if dtype == np.float16:
        half: Array = x.astype(np.float16)
        return half
    # float32 toward zero with the last bit set when inexact: the second rounding is the only one.
    y = round_float32(x, "rz")
    inexact = (y.astype(np.float64) != x) & np.isfinite(x)
    bits = y.view(np.uint32) | inexact.astype(np.uint32)
    narrow: Array = bits.view(np.float32).astype(ml_dtypes.bfloat16)
    return narrow


# ---------------------------------------------------------------------------------------------------------
# Rounding float64 values and sums to float32
# ---------------------------------------------------------------------------------------------------------


def round_float32(x: Array, mode: Mode = "rn") -> Array:
    """Round float64 values to float32; overflow goes to infinity or the largest finite, per IEEE 754."""
    y = np.asarray(x.astype(np.float32))
    return y if mode == "rn" else _step(y, x - y.astype(np.float64), mode)


def round_sum(p: Array, c: Array, mode: Mode = "rn", ftz: bool = False) -> Array:
    """Round the exact sum of two float64 arrays (each exact in itself) to float32, once.

    With `ftz` results that round to less than 2^-126 become zeros of the same sign.
    """
    s = np.asarray(p + c)
    if mode == "rz" and ftz:
        return _cut(s, p, c)
    y = np.asarray(s.astype(np.float32))
    if mode == "rn":
        doubtful = (s.view(np.uint64) << _TOP_29) == _MIDPOINT
        if _any(doubtful) or (not ftz and _any_subnormal(y)):
            y = np.asarray(_round_to_odd(s, _error(s, p, c)).astype(np.float32))
        return flush_tiny(y, lambda: s, mode) if ftz else y
    difference = s - y.astype(np.float64)
    exact = difference == _ZERO
    if _any(exact):
        e = _error(s, p, c)
        if _any(e != 0):
            difference = np.where(exact, e, difference)
        zero = s == 0
        if mode == "rm" and _any(zero):
            # An exact zero sum of opposite signs is -0 when rounding down.
            y = np.where(zero & (np.signbit(p) | np.signbit(c)), np.float32(-0.0), y)
    y = _step(y, difference, mode)
    return flush_tiny(y, lambda: s, mode) if ftz else y


def flush_tiny(y: Array, exact: Callable[[], Array], mode: Mode) -> Array:
    """Flush float32 results: tiny is what is below 2^-126 once rounded to 24 bits with an exponent of any size.

    So 2^-126 itself is flushed when only the coarse grid of subnormals made it so large (seen on an H200).
    """
    magnitude = np.abs(y)
    small = magnitude <= _MIN_NORMAL_32
    if not _any(small):
        return y
    border = magnitude == _MIN_NORMAL_32
    tiny = small & ~border
    if _any(border):
        x = np.abs(exact())
        if mode == "rn":
            tiny |= border & (x < 2.0**-126 * (1 - 2.0**-25))
        else:
            tiny |= border & (x <= 2.0**-126 * (1 - 2.0**-24))
    flushed: Array = y * ~tiny
    return flushed


def _cut(s: Array, p: Array, c: Array) -> Array:
    """Round the exact sum of p and c to float32 toward zero with flush to zero; s is fl(p + c) in float64."""
    bits = s.view(np.uint64)
    if _any((bits << _TOP_29) == _NOTHING):
        # s may have been rounded up to a float32 that is larger in magnitude than the exact sum.
        e = _error(s, p, c)
        if _any(e != 0):
            bits = bits - _opposite(e, s)
    cut = flush((bits & _KEPT_BITS).view(np.float64))
    y = np.asarray(cut.astype(np.float32))
    overflow = np.isinf(y)
    if _any(overflow):
        y = np.where(overflow & np.isfinite(s), np.copysign(_LARGEST, y), y)
    return y


def _any(mask: Array) -> bool:
    """np.any for a boolean array, several times faster on the short arrays of a warpgroup."""
    return 1 in mask.tobytes()


def _any_subnormal(y: Array) -> bool:
    magnitude = np.abs(y)
    small = magnitude <= _MIN_NORMAL_32
    return _any(small) and _any(small & (magnitude > 0))


def _widened(ftz: bool, *values: Any) -> list[Array]:
    """float32 operands as float64, flushed when asked."""
    wide = []
    for value in values:
        x = value if isinstance(value, np.ndarray) else np.asarray(value, np.float32)
        if ftz:
            small = np.abs(x) < _MIN_NORMAL_32
            if _any(small):
                x = x * ~small
        wide.append(x.astype(np.float64))
    return wide


def _inputs(ftz: bool, *values: Any) -> list[Array]:
    arrays = [v if isinstance(v, np.ndarray) else np.asarray(v, np.float32) for v in values]
    return [flush(a) for a in arrays] if ftz else arrays


def _finish(y: Array, ftz: bool, sat: bool) -> Array:
    if ftz:
        y = flush(y)
    return saturate(y) if sat else y


def _error(s: Array, p: Array, c: Array) -> Array:
    """p + c - s exactly, for s = fl(p + c) in float64 (TwoSum); NaN where s is not finite."""
    t = s - p
    error: Array = (p - (s - t)) + (c - t)
    return error


def _opposite(e: Array, s: Array) -> Array:
    """True where e and s have opposite signs, both nonzero."""
    opposite: Array = e * np.sign(s) < _ZERO
    return opposite


def _round_to_odd(s: Array, e: Array) -> Array:
    """The exact value s + e cut toward zero to 53 bits, with the last bit set when anything was cut off."""
    bits = s.view(np.int64) - _opposite(e, s)
    odd: Array = (bits | (e < 0) | (e > 0)).view(np.float64)
    return odd


def _with_overflow(difference: Array, y: Array, finite: Array) -> Array:
    """A quotient that overflowed to infinity is too large in magnitude by any measure."""
    return np.where(np.isinf(y) & finite, -y.astype(np.float64), difference)


def _step(y: Array, difference: Array, mode: Mode) -> Array:
    """Move float32 y = rn(x) to the mode's side, in place; `difference` has the sign of x - y."""
    if mode == "rz":
        bits = y.view(np.int32)
        np.subtract(bits, 1, out=bits, where=_opposite(difference, y))
    elif mode == "rm":
        np.nextafter(y, _MINUS_INFINITY, out=y, where=difference < _ZERO)
    elif mode == "rp":
        np.nextafter(y, _PLUS_INFINITY, out=y, where=difference > _ZERO)
    else:
        raise ValueError(f"unknown rounding mode {mode!r}: rn, rz, rm or rp")
    return y
