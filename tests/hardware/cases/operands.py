"""Operand values for the tensor core, chosen to expose truncation, alignment and order of accumulation.

Values are drawn by field (sign, exponent, mantissa), in eight manners; a manner belongs to a warp or to a row of a tile:
ordinary; every exponent; a few far-apart exponents (alignment); mantissas of all ones (truncation); equal magnitudes of
both signs (cancellation); subnormals; infinities and NaNs among ordinary values; random bits.
"""

from __future__ import annotations

import numpy as np

Rng = np.random.Generator
FIELDS = {
    "f16": (5, 10),
    "bf16": (8, 7),
    "tf32": (8, 23),
    "f32": (8, 23),
    "e4m3": (4, 3),
    "e5m2": (5, 2),
    "f64": (11, 52),
}
MANNERS = 8


def codes(rng: Rng, fmt: str, manner: np.ndarray) -> np.ndarray:
    """Codes of a float format as uint64, one per entry of ``manner`` (its shape is kept)."""
    exponent_bits, mantissa_bits = FIELDS[fmt]
    shape = manner.shape
    top = 2**exponent_bits - 1
    bias = 2 ** (exponent_bits - 1) - 1
    finite = top if fmt == "e4m3" else top - 1

    def mantissa() -> np.ndarray:
        return rng.integers(0, 2**mantissa_bits, shape, dtype=np.uint64)

    ones = np.full(shape, 2**mantissa_bits - 1, np.uint64)
    ordinary = np.clip(rng.integers(bias - 3, bias + 2, shape), 0, finite).astype(np.uint64)
    every = rng.integers(0, finite + 1, shape).astype(np.uint64)
    reach = min(14, bias - 1, finite - bias)
    few = (bias + rng.choice([-reach, -reach // 2, 0, 0, reach // 2, reach], shape)).astype(np.uint64)
    near = (bias + rng.integers(-1, 2, shape)).astype(np.uint64)
    low = rng.integers(0, 2, shape).astype(np.uint64)
    special = np.where(rng.random(shape) < 0.06, np.uint64(top), ordinary)
    e = np.choose(
        manner,
        [
            ordinary,
            every,
            few,
            near,
            np.full(shape, bias, np.uint64),
            low,
            special,
            rng.integers(0, top + 1, shape).astype(np.uint64),
        ],
    )
    m = np.choose(manner, [mantissa(), mantissa(), mantissa(), ones - rng.integers(0, 2, shape, dtype=np.uint64), mantissa() & (ones << np.uint64(max(0, mantissa_bits - 2))) & ones,
                           mantissa(), np.where(e == top, mantissa() * rng.integers(0, 2, shape, dtype=np.uint64), mantissa()), mantissa()])  # fmt: skip
    if fmt == "e4m3":  # the only NaN is all ones; keep it to the special and random manners
        nan = (e == top) & (m == 7) & (manner < 6)
        m = np.where(nan, np.uint64(6), m)
    sign = rng.integers(0, 2, shape, dtype=np.uint64)
    return (
        sign << np.uint64(exponent_bits + mantissa_bits) | e.astype(np.uint64) << np.uint64(mantissa_bits) | m
    )


def words(rng: Rng, fmt: str, manner: np.ndarray) -> np.ndarray:
    """32-bit registers full of codes of a format, one register per entry of ``manner``."""
    if fmt in ("s8", "u8", "s4", "u4", "b1", "s32"):
        return rng.integers(0, 2**32, manner.shape, dtype=np.uint32)
    width = 1 + sum(FIELDS[fmt])
    per = 32 // width
    out = np.zeros(manner.shape, np.uint64)
    for k in range(per):
        out |= codes(rng, fmt, manner) << np.uint64(k * width)
    return out.astype(np.uint32)
