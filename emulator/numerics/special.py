"""The approximate functions of PTX: ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh and div.

float32 in and out. The hardware's tables are not public; results here are within 1 ulp of the true value,
inside the error bounds PTX gives (ex2 2 ulp, lg2 and sin 2^-22 absolute, rcp 1 ulp, rsqrt 2 ulp, tanh 2^-11
relative), and the special cases are those of the PTX tables. `ftz` flushes subnormal inputs and results to
zeros of the same sign. Callers silence NumPy's warnings, as in `rounding`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.numerics.formats import Array
from emulator.numerics.rounding import flush, flush_tiny


def ex2(x: Array, ftz: bool = False) -> Array:
    """2^x. ex2(-inf) = +0, ex2(+-0) = 1, ex2(subnormal) = 1."""
    x = np.asarray(x, np.float32)
    return flush(np.exp2(x)) if ftz else np.exp2(x)


def lg2(x: Array, ftz: bool = False) -> Array:
    """Base-2 logarithm. lg2(+-0) = -inf, of a negative number NaN; subnormals count as zero with ftz."""
    x = np.asarray(x, np.float32)
    y = np.log2(flush(x) if ftz else x)
    return flush(y) if ftz else y


def rcp(x: Array, ftz: bool = False) -> Array:
    """1 / x. rcp(+-0) = +-inf; with ftz also of subnormals, and results below 2^-126 become +-0."""
    x = np.asarray(x, np.float32)
    y = np.float32(1) / (flush(x) if ftz else x)
    return flush(y) if ftz else y


def rsqrt(x: Array, ftz: bool = False) -> Array:
    """1 / sqrt(x). rsqrt(+-0) = +-inf, of a negative number NaN, of +inf +0."""
    x = np.asarray(x, np.float32)
    if ftz:
        x = flush(x)
    # In float64, so that the root's rounding does not show in float32.
    return np.divide(1.0, np.sqrt(x.astype(np.float64))).astype(np.float32)


def sqrt(x: Array, ftz: bool = False) -> Array:
    """Square root. sqrt(-0) = -0, of a negative number NaN."""
    x = np.asarray(x, np.float32)
    return np.sqrt(flush(x) if ftz else x)


def sin(x: Array, ftz: bool = False) -> Array:
    """Sine of radians. NaN for +-inf; with ftz subnormals give +-0."""
    x = np.asarray(x, np.float32)
    y = np.sin(x)
    return flush(y) if ftz else y


def cos(x: Array, ftz: bool = False) -> Array:
    """Cosine of radians. NaN for +-inf."""
    x = np.asarray(x, np.float32)
    y = np.cos(x)
    return flush(y) if ftz else y


def tanh(x: Array) -> Array:
    """Hyperbolic tangent; subnormals are kept."""
    return np.tanh(np.asarray(x, np.float32))


def div(a: Array, b: Array, ftz: bool = False, full: bool = False) -> Array:
    """a / b of div.approx (2 ulp) or div.full (`full`).

    div.approx gives +-0 for a finite a when |b| is in (2^126, 2^128); div.full handles the whole range.
    """
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    if ftz:
        a, b = flush(a), flush(b)
    y = np.asarray(a / b)
    if not full:
        huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
        if np.count_nonzero(huge):
            tiny = np.copysign(np.float32(0), a) * np.copysign(np.float32(1), b)
            y = np.where(huge, np.where(np.isfinite(a), tiny, np.float32(np.nan)), y)
    return flush_tiny(y, lambda: a.astype(np.float64) / b, "rn") if ftz else y


def on_half(function: Callable[..., Array], *values: Array, ftz: bool | None = None) -> Array:
    """Apply a function above to float16 or bfloat16 arrays through float32 (ex2.approx.f16 and the like)."""
    wide = [v.astype(np.float32) for v in values]
    y: Array = (function(*wide) if ftz is None else function(*wide, ftz=ftz)).astype(values[0].dtype)
    return y
