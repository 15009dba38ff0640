"""What one tensor core instruction computes: D = A B + C, fast or bit by bit.

`mma_fast` uses float32 BLAS. `mma_exact` follows the published model of the hardware (arXiv 2511.10909):
an instruction is a chain of fused steps of 32 bytes of K. In each step all products are exact; the products
and C are aligned to the largest exponent among them, each is cut toward zero at a fixed number of fractional
bits, the cut values are added exactly, and the sum is cut to float32, or rounded to nearest even if D is f16.

    unit                                   fractional bits   D
    tcgen05, wgmma, mma.sync  f16 bf16 tf32      25          f32 toward zero, f16 to nearest even
    tcgen05                   f8f6f4             25
    wgmma                     e4m3 e5m2          13          f32 cut to 13 mantissa bits
    tcgen05                   mxf8f6f4           25          scales multiply the products
    tcgen05                   mxf4, mxf4nvf4     35          groups of 16 products are added exactly first

The exponent of a product is the sum of its operands' exponents (its significand is in [1, 4), or smaller when
an operand is subnormal), a zero product or C takes part with a fixed small exponent. A NaN comes out as
0x7fffffff (f16: 0x7fff), a zero as +0. cta_group::2 and .ws are taken to compute each row the same way.

Shapes: A (M, K), B (N, K), C and D (M, N); so D = A B^T + C, as the PTX operands lie in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from emulator.numerics import formats
from emulator.numerics.formats import Array, ElementFormat

Unit = Literal["tcgen05", "wgmma", "mma.sync"]
_FLOAT_BITS = 23


@dataclass(frozen=True)
class AccumulationModel:
    """How a unit adds up: `step` is K per fused step, `fraction` the fractional bits kept of each addend."""

    step: int
    fraction: int
    zero_exponent: int
    result_bits: int = _FLOAT_BITS  # mantissa bits of an f32 result


@lru_cache(maxsize=256)
def accumulation_model(
    unit: Unit, a_format: ElementFormat, d_format: str = "f32", block_scaled: bool = False
) -> AccumulationModel:
    """The model for a unit, the format of A, and D. Raises ValueError for formats without one."""
    if a_format.is_integer or a_format is formats.F32:
        raise ValueError(f"no floating-point accumulation model for {a_format.name} operands")
    if block_scaled and a_format is formats.E2M1:
        return AccumulationModel(step=64, fraction=35, zero_exponent=-139)
    zero = -21 if d_format == "f16" else -133
    step = 256 // max(a_format.smem_bits, 8)
    if unit == "wgmma" and a_format.bits == 8:
        return AccumulationModel(step, 13, zero, result_bits=13)
    return AccumulationModel(step, 25, zero)


# ---------------------------------------------------------------------------------------------------------
# Fast
# ---------------------------------------------------------------------------------------------------------


def mma_fast(a: Array, b: Array, c: Array | None = None, out: Array | None = None) -> Array:
    """D = A B^T + C in float32 BLAS: a (M, K), b (N, K), c (M, N) or None; `out` may be a strided view."""
    product = np.matmul(a, b.T, out=out)
    if c is not None:
        product += c
    return product


def scale_operand(values: Array, scales: Array, scale_format: ElementFormat | str) -> Array:
    """Multiply decoded operand values (rows, K) float32 by block scale codes (rows, blocks), float32 out."""
    decoded = formats.decode_table(formats.lookup(scale_format)).take(scales)
    rows, k = values.shape
    blocks = scales.shape[1]
    scaled: Array = (values.reshape(rows, blocks, k // blocks) * decoded[:, :, None]).reshape(rows, k)
    return scaled


# ---------------------------------------------------------------------------------------------------------
# Integer
# ---------------------------------------------------------------------------------------------------------


def mma_int8(a: Array, b: Array, c: Array | None = None, saturate: bool = False) -> Array:
    """D = A B^T + C for int8/uint8 operands, int32 result: wrapping, or clamped with `saturate`."""
    total = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.int64)  # exact: below 2^53
    if c is not None:
        total = total + c
    if saturate:
        total = np.clip(total, -(2**31), 2**31 - 1)
    result: Array = total.astype(np.int32)
    return result


# ---------------------------------------------------------------------------------------------------------
# Exact
# ---------------------------------------------------------------------------------------------------------


def mma_exact(
    a: Array,
    b: Array,
    c: Array | None = None,
    a_format: ElementFormat | str = "f16",
    b_format: ElementFormat | str | None = None,
    d_format: str = "f32",
    unit: Unit = "tcgen05",
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    scale_format: ElementFormat | str = "ue8m0",
) -> Array:
    """D = A B^T + C as the hardware rounds it. K may span several instructions, in program order.

    a (M, K) and b (N, K) hold decoded float32 values of `a_format` and `b_format` (`formats.to_float32`, tf32
    already cut), c (M, N) is float32 or float16, None for 0. For block-scaled kinds scale_a (M, blocks) and
    scale_b (N, blocks) hold uint8 codes of `scale_format`, blocks of K / blocks elements.
    Returns float32, or float16 when `d_format` is "f16". Raises ValueError if K is no multiple of the step.
    """
    a_format = formats.lookup(a_format)
    b_format = a_format if b_format is None else formats.lookup(b_format)
    model = accumulation_model(unit, a_format, d_format, scale_a is not None)
    k = a.shape[1]
    step = min(model.step, k)
    if k % step:
        raise ValueError(f"K = {k} is not a multiple of the {step} elements of one fused step")
    total = np.zeros((a.shape[0], b.shape[0]), np.float32) if c is None else c.astype(np.float32)
    scaled = None
    if scale_a is not None and scale_b is not None:
        scaled = _Scales(scale_a, scale_b, formats.lookup(scale_format), k)
    for start in range(0, k, step):
        part = slice(start, start + step)
        a_part, b_part = a[:, part], b[:, part]
        if scaled is not None and a_format is formats.E2M1:
            total = _grouped_step(a_part, b_part, total, scaled.select(part, 16), model)
            continue
        e_a, e_b = _exponents(a_part, a_format), _exponents(b_part, b_format)
        if scaled is not None:
            alpha, beta, e_alpha, e_beta = scaled.select(part, 1)
            a_part, b_part = a_part * alpha, b_part * beta
            e_a, e_b = e_a + e_alpha, e_b + e_beta
        total = _fused_step(a_part, b_part, total, e_a, e_b, model, d_format)
    return total.astype(np.float16) if d_format == "f16" else total


class _Scales:
    """Block scale factors of both operands, decoded to float64 (products of ue8m0 leave float32's range)."""

    def __init__(self, a: Array, b: Array, fmt: ElementFormat, k: int) -> None:
        if fmt is formats.UE8M0:
            table = np.where(np.arange(256) == 255, np.nan, np.exp2(np.arange(256.0) - 127))
            smallest = -127
        else:
            table = formats.decode_table(fmt).astype(np.float64)
            smallest = 1 - fmt.bias
        exponents = np.maximum(np.frexp(table)[1] - 1, smallest)
        exponents[~np.isfinite(table)] = 0
        exponents = exponents.astype(np.int32)
        self.a, self.b = table[a], table[b]
        self.e_a, self.e_b = exponents[a], exponents[b]
        self.block = k // a.shape[1]

    def select(self, part: slice, stride: int) -> tuple[Array, Array, Array, Array]:
        """Values of A and of B, exponents of A and of B, for every `stride`-th element of `part`."""
        blocks = np.arange(part.start, part.stop, stride) // self.block
        return self.a[:, blocks], self.b[:, blocks], self.e_a[:, blocks], self.e_b[:, blocks]


def _exponents(values: Array, fmt: ElementFormat) -> Array:
    """Exponent of every value in its format, int32: floor(log2 |x|), not below the smallest normal's."""
    exponents: Array = (values.view(np.int32) >> 23) & 0xFF
    exponents -= 127
    # A subnormal float32 has exponent field 0, which the clamp to at least -126 puts right.
    return np.maximum(exponents, 1 - fmt.bias, out=exponents)


def _accumulator_exponents(c: Array, d_format: str, zero_exponent: int) -> Array:
    """Exponent of every element of C in its own format, int32; zeros have the unit's zero exponent."""
    exponents = _exponents(c, formats.F16 if d_format == "f16" else formats.F32)
    np.copyto(exponents, zero_exponent, where=c == 0)
    return exponents


def _fused_step(
    a: Array, b: Array, c: Array, e_a: Array, e_b: Array, model: AccumulationModel, d_format: str
) -> Array:
    """One fused step over all K of `a` (M, K) and `b` (N, K); c and the result are float32 (M, N)."""
    special = _special(a, b, c)
    if special is not None:
        a, b, c = _finite(a), _finite(b), _finite(c)
    top = _largest_exponent(a, b, e_a, e_b, _accumulator_exponents(c, d_format, model.zero_exponent), model)
    scale = _power_of_two(model.fraction - top)
    total = np.trunc(c * scale)
    if _fits_float32(a, b, top):
        total += _sum_float32(a.astype(np.float32), b.astype(np.float32), scale.astype(np.float32))
    else:
        total += _sum_float64(a.astype(np.float64), b.astype(np.float64), scale)
    return _result(total / scale, special, model, d_format)


def _fits_float32(a: Array, b: Array, top: Array) -> bool:
    """True if all products and scales are exact in float32: operands within 2^+-60, exponents +-90."""
    if top.min() < -90 or top.max() > 90:
        return False
    for x in (a, b):
        magnitude = np.abs(x)
        if magnitude.max(initial=0) > 2.0**60 or magnitude.min(where=magnitude > 0, initial=1) < 2.0**-60:
            return False
    return True


def _sum_float32(a: Array, b: Array, scale: Array) -> Array:
    """Sum over K of trunc(a b scale), float64 (M, N): float32 products, cut by the conversion to int32.

    A cut product is below 2^27 in magnitude, so eight of them stay inside int32.
    """
    product = np.empty(scale.shape, np.float32)
    cut = np.empty(scale.shape, np.int32)
    columns_a, rows_b = np.ascontiguousarray(a.T)[:, :, None], np.ascontiguousarray(b.T)[:, None, :]
    total = np.zeros(scale.shape)
    for start in range(0, a.shape[1], 8):
        partial = np.zeros(scale.shape, np.int32)
        for k in range(start, min(start + 8, a.shape[1])):
            np.multiply(columns_a[k], rows_b[k], out=product)
            np.multiply(product, scale, out=product)
            np.copyto(cut, product, casting="unsafe")
            np.add(partial, cut, out=partial)
        total += partial
    return total


def _sum_float64(a: Array, b: Array, scale: Array) -> Array:
    """Sum over K of trunc(a b scale), float64 (M, N), for any operands."""
    total = np.zeros(scale.shape)
    product = np.empty_like(total)
    for k in range(a.shape[1]):
        np.multiply(a[:, k, None], b[None, :, k], out=product)
        np.multiply(product, scale, out=product)
        np.trunc(product, out=product)
        np.add(total, product, out=total)
    return total


def _largest_exponent(
    a: Array, b: Array, e_a: Array, e_b: Array, e_c: Array, model: AccumulationModel
) -> Array:
    """Largest exponent among the products of a step and C, int32 (M, N)."""
    nonzero_a, nonzero_b = a != 0, b != 0
    digit = (a.shape[1] - 1).bit_length() + 1
    limit = 1000 // digit // 2
    if max(-e_a.min(), e_a.max(), -e_b.min(), e_b.max()) <= limit:
        # In a base above K, the leading digit of sum_k base^(e_a + e_b) gives the largest exponent.
        power_a = np.where(nonzero_a, np.exp2(e_a * float(digit)), 0.0)
        power_b = np.where(nonzero_b, np.exp2(e_b * float(digit)), 0.0)
        total = power_a @ power_b.T
        leading = (total.view(np.int64) >> 52).astype(np.int32) - 1023
        top = np.maximum(e_c, leading // digit)
    else:
        never = np.int32(-(1 << 13))
        wide_a, wide_b = np.where(nonzero_a, e_a, never), np.where(nonzero_b, e_b, never)
        top = e_c
        for k in range(a.shape[1]):
            top = np.maximum(top, wide_a[:, k, None] + wide_b[None, :, k])
    if not (nonzero_a.all() and nonzero_b.all()):
        any_zero = ~nonzero_a.all(axis=1)[:, None] | ~nonzero_b.all(axis=1)[None, :]
        top = np.where(any_zero, np.maximum(top, model.zero_exponent), top)
    return np.asarray(top)


def _grouped_step(
    a: Array, b: Array, c: Array, scales: tuple[Array, Array, Array, Array], model: AccumulationModel
) -> Array:
    """One step of the fp4 kinds: groups of 16 products are summed exactly, scaled, aligned, cut and added."""
    scale_a, scale_b, e_a, e_b = scales
    special = None
    if not (np.isfinite(scale_a).all() and np.isfinite(scale_b).all() and np.isfinite(c).all()):
        special = _special(np.repeat(scale_a, 16, axis=1) * a, np.repeat(scale_b, 16, axis=1) * b, c)
        scale_a, scale_b, c = _finite(scale_a), _finite(scale_b), _finite(c)
    top = _accumulator_exponents(c, "f32", model.zero_exponent)
    addends = []
    for g in range(a.shape[1] // 16):
        a_g, b_g = a[:, 16 * g : 16 * g + 16], b[:, 16 * g : 16 * g + 16]
        scale = scale_a[:, g, None] * scale_b[None, :, g]
        exponent = e_a[:, g, None] + e_b[None, :, g]
        # The sum is exact in float32 (multiples of 1/4 below 2^10), its scaled value in float64.
        value = scale * (a_g @ b_g.T)
        if np.count_nonzero(value) < value.size:
            empty = (np.abs(a_g) @ np.abs(b_g).T == 0) | (scale == 0)
            exponent = np.where(empty, np.int32(model.zero_exponent), exponent)
        np.maximum(top, exponent, out=top)
        addends.append(value)
    scale = _power_of_two(model.fraction - top)
    result = np.trunc(c * scale)
    for value in addends:
        value *= scale
        result += np.trunc(value, out=value)
    return _result(result / scale, special, model, "f32")


def _power_of_two(exponent: Array) -> Array:
    """2^exponent as float64 for integers in float64's normal range."""
    return ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)


def _special(a: Array, b: Array, c: Array) -> Array | None:
    """inf, -inf or NaN where an operand makes the result so, 0 elsewhere (M, N); None if all are finite."""
    if np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(c).all():
        return None
    total = c.astype(np.float64)
    for k in range(a.shape[1]):
        total += a[:, k, None].astype(np.float64) * b[None, :, k]
    return np.where(np.isfinite(total), 0.0, total)


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, np.zeros((), x.dtype))


def _result(x: Array, special: Array | None, model: AccumulationModel, d_format: str) -> Array:
    """Round the exact sums (float64) to D's format and put in infinities and NaN; float32, zeros are +0."""
    half = d_format == "f16"
    y = x.astype(np.float16).astype(np.float32) if half else cut_float32(x, model.result_bits)
    y = y + np.float32(0)  # -0 becomes +0
    if special is not None:
        y = np.where(special != 0, special, y).astype(np.float32)
        y = np.where(np.isnan(y), np.uint32(0x7FFFFFFF), y.view(np.uint32)).view(np.float32)
    return y


def cut_float32(x: Array, mantissa_bits: int = _FLOAT_BITS) -> Array:
    """Cut float64 toward zero to `mantissa_bits` in float32's exponent range; infinity from 2^128 on."""
    keep = np.uint64(~((1 << (52 - mantissa_bits)) - 1) & ((1 << 64) - 1))
    y = np.asarray((x.view(np.uint64) & keep).view(np.float64))
    small = np.abs(x) < 2.0**-126
    if np.count_nonzero(small):
        quantum = 2.0 ** -(126 + mantissa_bits)
        y = np.where(small, np.trunc(x / quantum) * quantum, y)
    result: Array = y.astype(np.float32)
    return result
