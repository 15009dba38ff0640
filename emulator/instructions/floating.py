"""Floating-point arithmetic (PTX ISA, "Floating Point Instructions", "Half Precision", "Mixed Precision").

``f32`` and the packed ``f32x2`` know all four roundings, flush-to-zero and saturation; halves round to nearest even.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.instructions.compare import flush_any
from emulator.instructions.registers import elementwise, float_op, forbid, unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value, ndarray
from emulator.numerics import rounding, special

Op = Callable[..., Value]


def _unboxed(fn: Callable[..., Any]) -> Op:
    """0-dimensional results as NumPy scalars."""

    def op(*operands: Value) -> Value:
        y = rounding.canonical_nan(fn(*operands))
        return y if not isinstance(y, ndarray) or y.ndim else y[()]

    return op


def _f32(fn: Callable[..., Any], plain: Op, mods: Mods) -> Op:
    """A float32 operation with its rounding, on f32 or f32x2 registers."""
    mode, ftz, sat = mods["rnd"] or "rn", "ftz" in mods, "sat" in mods
    if mode == "rn" and not ftz and not sat:
        exact = plain
    else:

        def exact(*operands: Any) -> Any:
            return fn(*operands, mode, ftz, sat)

    if mods["type"] == "f32x2":
        return elementwise(exact, "f32x2")
    return _unboxed(exact)


def _f64(plain: Op, mods: Mods, name: str) -> Op:
    if mods["rnd"] not in ("", "rn"):
        raise unsupported(name, mods, "directed rounding of f64")
    forbid(name, mods, "ftz", "sat")

    def op(a: Any, b: Any) -> Any:
        y = plain(a, b)
        both = (a != a) & (b != b)
        return np.where(both, b + b, y)[()] if np.count_nonzero(both) else y  # the second NaN wins (H200)

    return op


def _mixed(op: Op, mods: Mods, count: int) -> Op:
    """``add.f32.bf16`` and its kin: the first ``count`` operands are 16-bit floats, widened exactly."""
    source = mods["srctype"]
    if not source:
        return op
    if source == "f16":
        return lambda *xs: op(*(_to_f32(x) for x in xs[:count]), *xs[count:])
    return lambda *xs: op(*(_bf16_to_f32(x) for x in xs[:count]), *xs[count:])


def _to_f32(x: Value) -> Value:
    return x.astype(np.float32) if isinstance(x, ndarray) else np.float32(x)


def _bf16_to_f32(x: Value) -> Value:
    """A bf16 register (its bits) as float32."""
    if isinstance(x, ndarray):
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.uint32((int(x) & 0xFFFF) << 16).view(np.float32)


def _binary(fn: Callable[..., Any], plain: Op, name: str, mixed: int) -> Callable[[Mods], Op]:
    def build(mods: Mods) -> Op:
        if mods["type"] == "f64":
            return _f64(plain, mods, name)
        return _mixed(_f32(fn, plain, mods), mods, mixed)

    return build


instruction("ptx.add", pure=True)(_binary(rounding.add, lambda a, b: a + b, "add", 1))
instruction("ptx.sub", pure=True)(_binary(rounding.sub, lambda a, b: a - b, "sub", 1))
instruction("ptx.mul", pure=True)(_binary(rounding.mul, lambda a, b: a * b, "mul", 0))


@instruction("ptx.fma", pure=True)
def fma(mods: Mods) -> Op:
    """``a * b + c`` with one rounding."""
    if mods["type"] == "f64":
        raise unsupported("fma", mods, "fused multiply-add in f64")
    return _mixed(_f32(rounding.fma, rounding.fma, mods), mods, 2)


@instruction("ptx.mad_f", pure=True)
def mad_f(mods: Mods) -> Op:
    """``mad`` is ``fma`` on every architecture since sm_20."""
    return fma(mods)


def _rounded(
    exact: Callable[..., Any], approx: Callable[..., Any], double: Callable[..., Any], name: str
) -> Callable[[Mods], Op]:
    """div, rcp and sqrt: correctly rounded, or one of the approximate forms."""

    def build(mods: Mods) -> Op:
        mode, ftz = mods["mode"], "ftz" in mods
        if mods["type"] == "f64":
            if mode != "rn" or ftz:
                raise unsupported(name, mods)
            return double
        if mode == "full":
            return _unboxed(lambda a, b: approx(a, b, ftz, True))
        if mode == "approx":
            return _unboxed(lambda *operands: approx(*operands, ftz))
        return _unboxed(lambda *operands: exact(*operands, mode, ftz))

    return build


instruction("ptx.div_f", pure=True)(_rounded(rounding.div, special.div, lambda a, b: a / b, "div"))
instruction("ptx.rcp", pure=True)(_rounded(rounding.rcp, special.rcp, lambda a: 1 / a, "rcp"))
instruction("ptx.sqrt", pure=True)(_rounded(rounding.sqrt, special.sqrt, np.sqrt, "sqrt"))


def _approximate(fn: Callable[..., Any], name: str, halves: bool = False) -> Callable[[Mods], Op]:
    """A function with an ``.approx`` form only, on f32 or (``halves``) on 16-bit floats."""

    def build(mods: Mods) -> Op:
        ptx_type, ftz = mods["type"], "ftz" in mods
        if halves:
            return float_op(
                lambda x: special.on_half(fn, np.asarray(x), ftz=ftz if fn is not special.tanh else None),
                ptx_type,
            )
        if ptx_type != "f32":
            raise unsupported(name, mods)
        if fn is special.tanh:
            return _unboxed(fn)
        return _unboxed(lambda x: fn(x, ftz))

    return build


instruction("ptx.rsqrt", pure=True)(_approximate(special.rsqrt, "rsqrt"))
instruction("ptx.ex2", pure=True, counter="ex2")(_approximate(special.ex2, "ex2"))
instruction("ptx.lg2", pure=True)(_approximate(special.lg2, "lg2"))
instruction("ptx.sin", pure=True)(_approximate(special.sin, "sin"))
instruction("ptx.cos", pure=True)(_approximate(special.cos, "cos"))
instruction("ptx.tanh", pure=True)(_approximate(special.tanh, "tanh"))
instruction("ptx.tanh_half", pure=True)(_approximate(special.tanh, "tanh", halves=True))
instruction("ptx.ex2_half", pure=True, counter="ex2")(_approximate(special.ex2, "ex2", halves=True))


def _sign(fn: Callable[[Any], Any]) -> Callable[[Mods], Op]:
    def build(mods: Mods) -> Op:
        if mods["type"] == "f64":
            return lambda a: np.where(a != a, a + a, fn(a))[()]  # a NaN becomes quiet and keeps its sign
        if "ftz" in mods:
            return float_op(lambda a: fn(flush_any(a)), mods["type"])
        return float_op(fn, mods["type"])

    return build


instruction("ptx.abs_f", "ptx.abs_half", pure=True)(_sign(np.abs))
instruction("ptx.neg", "ptx.neg_half", pure=True)(_sign(lambda a: -a))


@instruction("ptx.copysign", pure=True)
def copysign(mods: Mods) -> Op:
    """b with the sign of a."""
    return lambda a, b: np.copysign(b, a)


# ---------------------------------------------------------------------------------------------- halves


_MIN_NORMAL_F16 = np.array(2.0**-14, np.float16)


def _tiny_products(y: ndarray, a: Any, b: Any, c: Any = 0) -> ndarray:
    """Products that only the coarse grid of subnormals rounded up to 2^-14: tiny, so .ftz flushes them."""
    exact = np.abs(np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64))
    return np.where(exact < 2.0**-14 * (1 - 2.0**-12), np.copysign(np.zeros((), y.dtype), y), y)


def _half(fn: Callable[..., Any], name: str) -> Callable[[Mods], Op]:
    def build(mods: Mods) -> Op:
        forbid(name, mods, "oob")
        ftz, sat, relu = "ftz" in mods, "sat" in mods, "relu" in mods
        product = fn in (rounding.mul_half, rounding.fma_half)

        def op(*operands: Any) -> Any:
            if ftz:
                operands = tuple(flush_any(np.asarray(x)) for x in operands)
            y = np.asarray(fn(*(np.asarray(x) for x in operands)))
            if ftz:
                y = flush_any(y)
                if product and np.count_nonzero(np.abs(y) == _MIN_NORMAL_F16):
                    y = _tiny_products(y, *operands)
            if sat:
                y = np.where(y > 0, np.where(y < 1, y, np.ones((), y.dtype)), np.zeros((), y.dtype))
            if relu:
                y = np.where((y > 0) | (y != y), y, np.zeros((), y.dtype))
            return y

        return float_op(op, mods["type"])

    return build


instruction("ptx.add_half", pure=True)(_half(rounding.add_half, "add"))
instruction("ptx.sub_half", pure=True)(_half(lambda a, b: rounding.add_half(a, -b), "sub"))
instruction("ptx.mul_half", pure=True)(_half(rounding.mul_half, "mul"))
instruction("ptx.fma_half", pure=True)(_half(rounding.fma_half, "fma"))
