"""The conversions of PTX cvt: between float formats, packed pairs, and integers.

`narrow` converts float32 (or float64) values to any float format with any rounding; `pack2` and `unpack2` do
the x2 forms, whose operand order is d, hi, lo: the first source lands in the upper half of d. A pair of e2m1
is one byte, pairs of 8- and 6-bit formats are 16 bits (6-bit elements in the low bits of their byte), pairs
of 16-bit formats 32 bits.

Roundings: rn nearest even, rz toward zero, rm down, rp up, rna nearest with ties away from zero. `satfinite`
clamps to the largest finite value, `relu` turns negative results and -0 into +0. NaN stays NaN in canonical
form (0x7fff for f16 and bf16, 0x7fffe000 for tf32, 0x7f for e4m3 and e5m2, 0xff for ue8m0); formats without
NaN give their largest positive value. Source: PTX ISA, cvt. Callers silence NumPy's warnings, as in
`rounding`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from emulator.numerics import formats
from emulator.numerics.formats import Array, ElementFormat

Rounding = Literal["rn", "rz", "rm", "rp", "rna"]
_ROUND: dict[str, Callable[[Array], Array]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda x: np.trunc(x + np.copysign(0.5, x)),
}


@dataclass(frozen=True)
class _Range:
    largest: float  # largest finite value
    infinity: bool  # has infinities
    nan: int | None  # canonical NaN code, None if the format has no NaN


@cache
def _range(fmt: ElementFormat) -> _Range:
    if fmt.name in ("f16", "bf16", "e5m2", "tf32"):
        largest = 2.0 ** ((1 << fmt.exponent_bits) - 2 - fmt.bias) * (2 - 2.0**-fmt.mantissa_bits)
        nan = {"f16": 0x7FFF, "bf16": 0x7FFF, "e5m2": 0x7F, "tf32": 0x7FFFE000}[fmt.name]
        return _Range(largest, True, nan)
    if fmt is formats.E4M3:
        return _Range(448.0, False, 0x7F)
    table = formats.decode_table(fmt)
    return _Range(float(np.nanmax(table)), False, None)


def _code_dtype(fmt: ElementFormat) -> Any:
    return {32: np.uint32, 16: np.uint16}.get(fmt.bits, np.uint8)


def narrow(
    x: Array,
    fmt: ElementFormat | str,
    rounding: Rounding = "rn",
    satfinite: bool = False,
    relu: bool = False,
) -> Array:
    """Convert float values to a float format; the result has its storage dtype (float32 for tf32).

    Overflow without `satfinite` follows IEEE 754 (infinity, or the largest finite for a rounding that points
    back); e4m3 has no infinity and gives NaN. Raises ValueError for ue8m0 (use `to_ue8m0`) and integers.
    """
    fmt = formats.lookup(fmt)
    if fmt.is_integer or fmt in (formats.UE8M0, formats.UE4M3):
        raise ValueError(f"narrow() does not convert to {fmt.name}")
    x = np.asarray(x)
    if relu:
        x = np.where(x > 0, x, np.where(np.isnan(x), x, np.zeros((), x.dtype)))
    limits = _range(fmt)
    if satfinite or (not limits.infinity and limits.nan is None):
        largest = x.dtype.type(limits.largest)
        x = np.minimum(np.maximum(x, -largest), largest)
    if rounding == "rn" and fmt.bits != 32 and (fmt.bits > 8 or satfinite):
        codes = _nearest(x, fmt)
    elif fmt is formats.TF32 and x.dtype == np.float32 and rounding in ("rn", "rna", "rz"):
        codes = _tf32(x, rounding)
    else:
        codes = _general(x.astype(np.float64), fmt, rounding)
    nan = np.isnan(x)
    if np.count_nonzero(nan):
        replacement = limits.nan if limits.nan is not None else _code(limits.largest, fmt)
        codes = np.where(nan, codes.dtype.type(replacement), codes)
        if fmt is formats.TF32 and rounding == "rna" and x.dtype == np.float32:
            codes = np.where(nan, _tf32_rna_special(x.view(np.uint32), satfinite), codes)
    result: Array = codes.view(fmt.storage)
    return result


def _code(value: float, fmt: ElementFormat) -> int:
    code = np.array([value], np.float32).astype(fmt.storage).view(_code_dtype(fmt))
    return int(code[0])


def _nearest(x: Array, fmt: ElementFormat) -> Array:
    """Round to nearest even by the dtype's own cast, which is correct from float32."""
    if x.dtype == np.float64 and fmt is not formats.F16:
        return _general(x, fmt, "rn")
    cast: Array = np.asarray(x.astype(fmt.storage)).view(_code_dtype(fmt))
    return cast


def _tf32(x: Array, rounding: Rounding) -> Array:
    bits = x.view(np.uint32)
    if rounding == "rna":
        rounded = bits + np.uint32(0x1000)
    elif rounding == "rn":
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    else:
        rounded = bits
    rounded = rounded & np.uint32(0xFFFFE000)
    return np.where(np.isinf(x), bits, rounded)


def _tf32_rna_special(bits: Array, satfinite: bool) -> Array:
    """cvt.rna.tf32 of a NaN on an H200: its low bits are cut off, and .satfinite steps one tf32 back."""
    cut = bits & np.uint32(0xFFFFE000)
    return cut - np.uint32(0x2000) if satfinite else cut


def _general(x: Array, fmt: ElementFormat, rounding: Rounding) -> Array:
    """Round float64 on the format's grid: divide by the quantum, round to an integer, multiply."""
    if rounding not in _ROUND:
        raise ValueError(f"unknown rounding {rounding!r}: {', '.join(_ROUND)}")
    limits = _range(fmt)
    finite = np.where(np.isfinite(x), x, 0.0)
    exponent = np.maximum(np.frexp(finite)[1] - 1, 1 - fmt.bias) - fmt.mantissa_bits
    y = np.ldexp(_ROUND[rounding](np.ldexp(finite, -exponent)), exponent)
    y = np.where(np.isfinite(x), y, x)
    too_big = np.abs(y) > limits.largest
    if np.count_nonzero(too_big):
        back = np.isfinite(x) & (
            (rounding == "rz") | ((x > 0) & (rounding == "rm")) | ((x < 0) & (rounding == "rp"))
        )
        beyond = np.copysign(np.inf if limits.infinity else np.nan, x)
        y = np.where(too_big, np.where(back, np.copysign(limits.largest, x), beyond), y)
    y = np.copysign(y, x)
    exact: Array = np.asarray(y.astype(np.float32).astype(fmt.storage)).view(_code_dtype(fmt))
    if not limits.infinity and limits.nan is not None:
        exact = np.where(np.isnan(y), exact.dtype.type(limits.nan), exact)
    return exact


def to_ue8m0(x: Array, rounding: Literal["rz", "rp"] = "rz", satfinite: bool = True) -> Array:
    """Convert the magnitude of float32 values to ue8m0 codes (uint8): powers of two 2^-127 to 2^127.

    rz takes the power of two at or below, rp at or above; the smallest is 2^-127, also for zero. Values above
    2^127 and infinity clamp to it with `satfinite` and become NaN (0xff) without.
    """
    bits = np.asarray(x, np.float32).view(np.uint32) & np.uint32(0x7FFFFFFF)
    exponent = (bits >> np.uint32(23)).astype(np.int32)
    mantissa = bits & np.uint32(0x7FFFFF)
    # 2^-127 is the float32 subnormal with mantissa 0x400000.
    up = np.where(exponent == 0, mantissa > np.uint32(0x400000), mantissa != 0) if rounding == "rp" else False
    code = exponent + up
    code = np.where(code > 254, 254 if satfinite else 255, code)
    return np.where(np.isnan(x), 255, code).astype(np.uint8)


def from_ue8m0(codes: Array) -> Array:
    """float32 values of ue8m0 codes; 0xff is NaN."""
    return formats.decode_table(formats.UE8M0).take(codes)


# ---------------------------------------------------------------------------------------------------------
# Packed pairs
# ---------------------------------------------------------------------------------------------------------


def pack2(
    hi: Array,
    lo: Array,
    fmt: ElementFormat | str,
    rounding: Rounding = "rn",
    satfinite: bool = False,
    relu: bool = False,
) -> Array:
    """cvt.<fmt>x2 d, hi, lo: two float arrays to one array of pairs.

    uint32 for 16-bit formats, uint16 for 8- and 6-bit ones, uint8 for e2m1. ue8m0 takes rz or rp.
    """
    fmt = formats.lookup(fmt)
    hi, lo = np.asarray(hi), np.asarray(lo)
    pair = np.empty((*hi.shape, 2), np.float32)
    pair[..., 0], pair[..., 1] = lo, hi
    if fmt is formats.UE8M0:
        codes = to_ue8m0(pair, rounding, satfinite)  # type: ignore[arg-type]
    else:
        codes = narrow(pair, fmt, rounding, satfinite, relu).view(_code_dtype(fmt))
    if fmt.bits == 4:
        return codes[..., 1] << np.uint8(4) | codes[..., 0]
    return codes.view(np.uint32 if fmt.bits == 16 else np.uint16)[..., 0]


def unpack2(packed: Array, fmt: ElementFormat | str, relu: bool = False) -> tuple[Array, Array]:
    """(hi, lo) float32 values of an array of pairs; the reverse of `pack2`, exact."""
    fmt = formats.lookup(fmt)
    if fmt.bits == 4:
        nibbles = np.asarray(packed).astype(np.uint8)
        codes = np.stack([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=-1)
    else:
        words = np.array(packed, np.uint32 if fmt.bits == 16 else np.uint16)[..., None]
        codes = words.view(_code_dtype(fmt))
    values = formats.to_float32(codes.view(fmt.storage), fmt)
    hi, lo = values[..., 1], values[..., 0]
    if relu:
        hi, lo = (np.where((v > 0) | np.isnan(v), v, np.float32(0)) for v in (hi, lo))
    return hi, lo


def repack2(
    packed: Array,
    source: ElementFormat | str,
    target: ElementFormat | str,
    rounding: Rounding = "rn",
    satfinite: bool = False,
    relu: bool = False,
) -> Array:
    """cvt from one pair format to another, such as f16x2.e4m3x2 or e2m1x2.bf16x2."""
    hi, lo = unpack2(packed, source)
    return pack2(hi, lo, target, rounding, satfinite, relu)


# ---------------------------------------------------------------------------------------------------------
# Integers
# ---------------------------------------------------------------------------------------------------------

IntRounding = Literal["rni", "rzi", "rmi", "rpi"]
_TO_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def round_to_integral(x: Array, rounding: IntRounding) -> Array:
    """cvt.rni/rzi/rmi/rpi between floats of one type: an integral value of the same dtype."""
    wide: Array = _TO_INTEGRAL[rounding](x).astype(x.dtype)
    return wide


def float_to_int(x: Array, dtype: Any, rounding: IntRounding = "rzi") -> Array:
    """cvt to an integer dtype: round, clamp to its range, NaN to 0."""
    info = np.iinfo(dtype)
    y = _TO_INTEGRAL[rounding](np.asarray(x).astype(np.float64))
    nan = np.isnan(y)
    if np.count_nonzero(nan):
        y = np.where(nan, 0.0, y)
    if info.bits <= 32:
        clamped: Array = np.minimum(np.maximum(y, float(info.min)), float(info.max)).astype(dtype)
        return clamped
    # The bounds of 64-bit types are not float64 values: clamp around the cast.
    above, below = y >= float(info.max), y <= float(info.min)
    inside = np.where(above | below, 0.0, y).astype(dtype)
    return np.where(above, dtype(info.max), np.where(below, dtype(info.min), inside))


def int_to_float(x: Array, fmt: ElementFormat | str, rounding: Rounding = "rn") -> Array:
    """cvt from an integer array to f32, f16 or bf16 with one rounding."""
    fmt = formats.lookup(fmt)
    x = np.asarray(x)
    if fmt is formats.F32:
        y: Array = np.asarray(x.astype(np.float32))
        return y if rounding == "rn" else _directed(x, y, rounding)
    # float64 holds integers below 2^53; of larger ones the low bits only matter as a sticky bit.
    if x.dtype.itemsize == 8:
        magnitude = np.where(x < 0, np.zeros((), x.dtype) - x, x).astype(np.uint64)
        sticky = (magnitude & np.uint64(0x7FF)) != 0
        cut = magnitude & ~np.uint64(0x7FF) | (sticky.astype(np.uint64) << np.uint64(11))
        large = magnitude >= np.uint64(1 << 53)
        wide = np.where(large, cut, magnitude).astype(np.float64)
        wide = np.where(x < 0, -wide, wide)
    else:
        wide = x.astype(np.float64)
    return narrow(wide, fmt, rounding)


def _directed(x: Array, y: Array, rounding: Rounding) -> Array:
    """Move float32 y = rn(x) to the rounding's side of the integer x."""
    # |y| is at most 2^64, which Python integers compare exactly.
    sign = np.array([(int(a) > int(b)) - (int(a) < int(b)) for a, b in zip(x.flat, y.flat, strict=True)])
    difference = sign.reshape(y.shape)
    toward = {"rz": -np.sign(y), "rm": np.full(y.shape, -1.0), "rp": np.full(y.shape, 1.0)}.get(rounding)
    if toward is None:
        raise ValueError(f"unknown rounding {rounding!r} for an integer source: rn, rz, rm or rp")
    target = np.where(toward < 0, np.float32(-np.inf), np.float32(np.inf))
    wrong_side = ((toward < 0) & (difference < 0)) | ((toward > 0) & (difference > 0))
    return np.where(wrong_side, np.nextafter(y, target), y)


def int_to_int(x: Array, dtype: Any, saturate: bool = False) -> Array:
    """cvt between integers: keep the low bits, or clamp to the range of `dtype` with `saturate`."""
    if not saturate:
        low: Array = np.asarray(x).astype(dtype)
        return low
    info = np.iinfo(dtype)
    source = np.iinfo(x.dtype)
    clamped: Array = np.clip(x, max(info.min, source.min), min(info.max, source.max)).astype(dtype)
    return clamped
