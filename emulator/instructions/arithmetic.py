"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision").

Results wrap to the width of the type; ``.sat`` clamps (``s32`` only, and the packed 16-bit types).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.instructions.registers import (
    INTEGERS,
    PACKED,
    as_s64,
    as_u64,
    elementwise,
    exact,
    inexact,
    is_vector,
    ndarray,
    unsupported,
    wrapper,
)
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import M32, Value

Op = Callable[..., Value]


def _wide(ptx_type: str) -> Callable[[Value], Value] | None:
    """How to bring a 64-bit operand into its NumPy type; None for narrower types, which are int64 already."""
    bits, signed = INTEGERS[ptx_type]
    return None if bits < 64 else as_s64 if signed else as_u64


def _clamp(ptx_type: str) -> Callable[[Value], Value]:
    bits, signed = INTEGERS[ptx_type]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)

    def clamp(x: Value) -> Value:
        return np.clip(x, low, high) if isinstance(x, ndarray) else max(low, min(high, x))

    return clamp


def _finish(mods: Mods, name: str) -> Callable[[Value], Value]:
    """Wrap, or clamp for ``.sat`` (which PTX defines for s32 and the packed 16-bit types)."""
    if "sat" not in mods:
        return wrapper(mods["type"])
    if INTEGERS[mods["type"]][0] == 64:
        raise unsupported(name, mods, ".sat on 64-bit integers")
    return _clamp(mods["type"])


def _modular(fn: Callable[[Value, Value], Value], name: str) -> Callable[[Mods], Op]:
    def build(mods: Mods) -> Op:
        ptx_type = mods["type"]
        if ptx_type in PACKED:
            if "sat" in mods:
                clamp = _clamp(ptx_type[:3])
                return elementwise(lambda a, b: clamp(fn(a.astype(np.int64), b.astype(np.int64))), ptx_type)
            return elementwise(fn, ptx_type)
        finish, wide = _finish(mods, name), _wide(ptx_type)
        if wide is None:
            return lambda a, b: finish(fn(a, b))
        return lambda a, b: finish(fn(wide(a), wide(b)))

    return build


instruction("ptx.add_int", pure=True)(_modular(lambda a, b: a + b, "add"))
instruction("ptx.sub_int", pure=True)(_modular(lambda a, b: a - b, "sub"))


def _high(ptx_type: str) -> Callable[[Value, Value], Value]:
    """The upper half of a product, before any addition."""
    bits, signed = INTEGERS[ptx_type]
    if bits < 32 or (bits == 32 and signed):
        return lambda a, b: a * b >> bits
    return lambda a, b: inexact(exact(a) * exact(b) >> bits, ptx_type)


@instruction("ptx.mul_int", pure=True)
def mul_int(mods: Mods) -> Op:
    """``mul.hi`` and ``mul.lo``."""
    ptx_type = mods["type"]
    if mods["mode"] == "hi":
        return _high(ptx_type)
    return _modular(lambda a, b: a * b, "mul.lo")(mods)


@instruction("ptx.mad_int", pure=True)
def mad_int(mods: Mods) -> Op:
    """``mad.lo`` and ``mad.hi`` (``.sat`` for hi.s32)."""
    ptx_type, finish, wide = mods["type"], _finish(mods, "mad"), _wide(mods["type"])
    if mods["mode"] == "hi":
        high = _high(ptx_type)
        if wide is not None:
            return lambda a, b, c: finish(wide(high(a, b)) + wide(c))
        return lambda a, b, c: finish(high(a, b) + c)
    if wide is None:
        return lambda a, b, c: finish(a * b + c)
    return lambda a, b, c: finish(wide(a) * wide(b) + wide(c))


def _double(ptx_type: str) -> str:
    return ptx_type[0] + str(2 * INTEGERS[ptx_type][0])


def _full_product(ptx_type: str) -> Callable[[Value, Value], Value]:
    if ptx_type == "u32":
        return lambda a, b: as_u64(a) * as_u64(b)
    return lambda a, b: a * b


@instruction("ptx.mul_wide", pure=True)
def mul_wide(mods: Mods) -> Op:
    """``mul.wide``: the destination is twice as wide as the operands."""
    product, wrap = _full_product(mods["type"]), wrapper(_double(mods["type"]))
    return lambda a, b: wrap(product(a, b))


@instruction("ptx.mad_wide", pure=True)
def mad_wide(mods: Mods) -> Op:
    """``mad.wide``: a product twice as wide, plus an addend of that width."""
    product, double = _full_product(mods["type"]), _double(mods["type"])
    wrap, wide = wrapper(double), _wide(double)
    if wide is None:
        return lambda a, b, c: wrap(product(a, b) + c)
    return lambda a, b, c: wrap(wide(product(a, b)) + wide(c))


def _sign24(x: Value) -> Value:
    return ((x + 0x800000) & 0xFFFFFF) - 0x800000


def _product24(mods: Mods) -> Callable[[Value, Value], Value]:
    """48-bit product of the low 24 bits; hi takes bits 16-47, lo bits 0-31."""
    take: Callable[[Value], Value] = _sign24 if mods["type"] == "s32" else lambda x: x & 0xFFFFFF
    shift = 16 if mods["mode"] == "hi" else 0
    wrap = wrapper(mods["type"])
    return lambda a, b: wrap(take(a) * take(b) >> shift)


@instruction("ptx.mul24", pure=True)
def mul24(mods: Mods) -> Op:
    return _product24(mods)


@instruction("ptx.mad24", pure=True)
def mad24(mods: Mods) -> Op:
    product, finish = _product24(mods), _finish(mods, "mad24")
    return lambda a, b, c: finish(product(a, b) + c)


@instruction("ptx.sad", pure=True)
def sad(mods: Mods) -> Op:
    """``c + |a - b|``."""
    wrap = wrapper(mods["type"])
    if _wide(mods["type"]) is None:
        return lambda a, b, c: wrap(c + abs(a - b))
    return lambda a, b, c: inexact(exact(c) + abs(exact(a) - exact(b)), mods["type"])


def _division(mods: Mods, remainder: bool) -> Op:
    """C division, toward zero.  PTX leaves division by zero open: here it gives all ones, as an H200 does."""
    ptx_type = mods["type"]
    wrap, wide = wrapper(ptx_type), _wide(ptx_type) or (lambda x: x)

    def scalar(a: int, b: int) -> int:
        if b == 0:
            return wrap(-1)
        q = abs(a) // abs(b)
        q = -q if (a < 0) != (b < 0) else q
        return wrap(a - q * b if remainder else q)

    def op(a: Value, b: Value) -> Value:
        if not is_vector(a, b):
            return scalar(int(a), int(b))
        a, b = wide(a), wide(b)
        zero = np.asarray(b == 0)
        safe = np.where(zero, np.asarray(b).dtype.type(1), b)
        r = np.fmod(a, safe)
        y = r if remainder else (a - r) // safe
        if np.count_nonzero(zero):
            y = np.where(zero, np.asarray(-1).astype(y.dtype), y)
        return wrap(y)

    return op


@instruction("ptx.div", pure=True)
def div(mods: Mods) -> Op:
    return _division(mods, False)


@instruction("ptx.rem", pure=True)
def rem(mods: Mods) -> Op:
    return _division(mods, True)


@instruction("ptx.abs", pure=True)
def abs_int(mods: Mods) -> Op:
    wrap = wrapper(mods["type"])
    return lambda a: wrap(abs(a))


@instruction("ptx.neg_int", pure=True)
def neg_int(mods: Mods) -> Op:
    wrap = wrapper(mods["type"])
    return lambda a: wrap(-a)


def _dot(mods: Mods, element: str, count: int, first: int = 0) -> Op:
    """Sum of products of sub-word elements, plus c (``dp4a``, ``dp2a``)."""
    a_signed, b_signed = mods["atype"] == "s32", mods["btype"] == "s32"
    wrap = wrapper("u32" if not (a_signed or b_signed) else "s32")
    byte = wrapper("s8"), wrapper("u8")
    half = wrapper("s16"), wrapper("u16")

    def op(a: Value, b: Value, c: Value) -> Value:
        total = c
        for k in range(count):
            x = byte[not a_signed](a >> 8 * k) if element == "byte" else half[not a_signed](a >> 16 * k)
            total = total + x * byte[not b_signed](b >> 8 * (first + k))
        return wrap(total)

    return op


@instruction("ptx.dp4a", pure=True)
def dp4a(mods: Mods) -> Op:
    """Four-way byte dot product with accumulation."""
    return _dot(mods, "byte", 4)


@instruction("ptx.dp2a", pure=True)
def dp2a(mods: Mods) -> Op:
    """Two-way dot product of the 16-bit halves of a and the low or high two bytes of b."""
    return _dot(mods, "half", 2, 2 if mods["mode"] == "hi" else 0)


# ---------------------------------------------------------------------------------------------- bits


def _popcount(x: Value) -> Value:
    if isinstance(x, ndarray) and x.ndim:
        return np.bitwise_count(x).astype(np.int64)
    return int(x).bit_count()


@instruction("ptx.popc", pure=True)
def popc(mods: Mods) -> Op:
    wide = _wide(mods["type"])
    return _popcount if wide is None else lambda a: _popcount(wide(a))


def _bit_length(x: Value) -> Value:
    """Position of the highest set bit plus one, 0 for 0; operands are not negative."""
    if not (isinstance(x, ndarray) and x.ndim):
        return int(x).bit_length()
    high = (x >> (np.uint64(32) if x.dtype == np.uint64 else 32)).astype(np.int64)
    low = (x & (np.uint64(M32) if x.dtype == np.uint64 else M32)).astype(np.int64)
    n_low = np.frexp(low.astype(np.float64))[1]
    n_high = np.frexp(high.astype(np.float64))[1]
    return np.where(high != 0, n_high + 32, n_low).astype(np.int64)


@instruction("ptx.clz", pure=True)
def clz(mods: Mods) -> Op:
    bits = INTEGERS[mods["type"]][0]
    wide = _wide(mods["type"]) or (lambda x: x)
    return lambda a: bits - _bit_length(wide(a))


@instruction("ptx.bfind", pure=True)
def bfind(mods: Mods) -> Op:
    """Bit position of the highest significant bit, 0xffffffff when there is none; ``.shiftamt``: as a left shift."""
    bits, signed = INTEGERS[mods["type"]]
    shift = "shiftamt" in mods
    unsigned = wrapper(f"u{bits}")
    wide = as_u64 if bits == 64 else unsigned

    def op(a: Value) -> Value:
        if signed:
            a = unsigned(np.where(a < 0, ~a, a) if isinstance(a, ndarray) else ~a if a < 0 else a)
        n = _bit_length(wide(a))
        found = bits - n if shift else n - 1
        return np.where(n == 0, M32, found) if isinstance(n, ndarray) else M32 if n == 0 else found

    return op


def _reverse(x: Value, bits: int) -> Value:
    if not (isinstance(x, ndarray) and x.ndim):
        return int(f"{int(x):0{bits}b}"[::-1], 2)
    carrier = np.dtype(np.uint32 if bits == 32 else np.uint64)
    data = np.ascontiguousarray(x.astype(carrier)).reshape(-1, 1).view(np.uint8)
    flipped = np.packbits(np.unpackbits(data, axis=1, bitorder="little")[:, ::-1], axis=1, bitorder="little")
    y = np.ascontiguousarray(flipped).view(carrier)[:, 0]
    return y if bits == 64 else y.astype(np.int64)


@instruction("ptx.brev", pure=True)
def brev(mods: Mods) -> Op:
    bits = INTEGERS[mods["type"]][0]
    return lambda a: _reverse(a, bits)


def _least(a: Value, b: Value) -> Value:
    return np.minimum(a, b) if is_vector(a, b) else min(a, b)


@instruction("ptx.bfe", pure=True)
def bfe(mods: Mods) -> Op:
    """Bit field extract: c bits of a from bit b; beyond the top it repeats the sign (PTX ISA, "bfe").

    PTX defines b and c from 0 to 255 only; the 32-bit forms take them modulo 256, the 64-bit forms as they are.
    """
    ptx_type = mods["type"]
    bits, signed = INTEGERS[ptx_type]
    limit = 0xFF if bits == 32 else M32

    def scalar(a: int, b: int, c: int) -> int:
        position, length = min(b & limit, 255), min(c & limit, 255)
        if not signed:
            return (a & ((1 << bits) - 1)) >> position & ((1 << length) - 1) if length else 0
        if length == 0:
            return 0
        top = min(position + length - 1, bits - 1)
        a &= (1 << bits) - 1
        sign = a >> top & 1
        field = (a >> position) & ((1 << max(0, top - position + 1)) - 1)
        return inexact(field | (-1 << max(0, top - position + 1)) if sign else field, ptx_type)

    def op(a: Value, b: Value, c: Value) -> Value:
        if not is_vector(a, b, c):
            return scalar(int(a), int(b), int(c))
        if bits == 64:
            return _per_lane(scalar, ptx_type, a, b, c)
        position, length = b & 0xFF, c & 0xFF
        if not signed:
            return a >> _least(position, 63) & ((np.int64(1) << _least(length, 62)) - 1)
        # the field's top bit goes to bit 63, and an arithmetic shift brings the field back
        up = 63 - np.maximum(np.minimum(position + length - 1, 31), 0)
        field = np.asarray(a, dtype=np.int64) << up >> np.minimum(up + position, 63)
        return np.where(np.asarray(length) == 0, 0, field)

    return op


def _per_lane(scalar: Callable[..., int], ptx_type: str, *operands: Value) -> ndarray:
    """A scalar function of Python integers in every lane: for rare 64-bit forms."""
    bits, signed = INTEGERS[ptx_type]
    columns = np.broadcast_arrays(*(np.asarray(x, dtype=object) for x in operands))
    rows = [scalar(*(int(v) for v in row)) for row in zip(*columns, strict=True)]
    return np.array(rows, dtype=np.uint64 if bits == 64 and not signed else np.int64)


@instruction("ptx.bfi", pure=True)
def bfi(mods: Mods) -> Op:
    """Bit field insert: the low d bits of a into b at bit c (see :func:`bfe` for large d and c)."""
    bits = INTEGERS[mods["type"]][0]
    full = (1 << bits) - 1
    limit = 0xFF if bits == 32 else M32

    def scalar(a: int, b: int, c: int, d: int) -> int:
        position, length = min(c & limit, 255), min(d & limit, 255)
        field = ((1 << length) - 1) << position & full
        return (b & ~field | a << position & field) & full

    def op(a: Value, b: Value, c: Value, d: Value) -> Value:
        if not is_vector(a, b, c, d):
            return scalar(int(a), int(b), int(c), int(d))
        if is_vector(c, d) or bits == 64:
            return _per_lane(scalar, mods["type"], a, b, c, d)
        position, length = int(c) & 0xFF, int(d) & 0xFF
        field = ((1 << length) - 1) << position & full
        if position >= bits:
            return b + 0 * a if is_vector(a) else b
        return b & (full & ~field) | a << position & field

    return op


@instruction("ptx.szext", pure=True)
def szext(mods: Mods) -> Op:
    """Sign- or zero-extend the low b bits of a (``.clamp``: b at most 32; ``.wrap``: b modulo 32)."""
    signed, clamp = mods["type"] == "s32", mods["mode"] == "clamp"

    def op(a: Value, b: Value) -> Value:
        n = _least(b, 32) if clamp else b & 31
        a = a & M32
        if is_vector(a, n):
            field = np.asarray(a) & ((np.int64(1) << n) - 1)
            if not signed:
                return field
            top = np.int64(1) << np.maximum(np.asarray(n) - 1, 0)
            return np.where(np.asarray(n) == 0, 0, (field ^ top) - top)
        field = a & ((1 << n) - 1)
        if not signed or n == 0:
            return field
        return (field ^ 1 << n - 1) - (1 << n - 1)

    return op


@instruction("ptx.bmsk", pure=True)
def bmsk(mods: Mods) -> Op:
    """A mask of b ones from bit a (``.clamp``: a and b at most 32; ``.wrap``: modulo 32)."""
    clamp = mods["mode"] == "clamp"

    def op(a: Value, b: Value) -> Value:
        first, width = (_least(a, 32), _least(b, 32)) if clamp else (a & 31, b & 31)
        one: Any = np.int64(1) if is_vector(first, width) else 1
        return ((one << width) - 1) << first & M32

    return op


@instruction("ptx.fns", pure=True)
def fns(mods: Mods) -> Op:
    """Find the n-th set bit (PTX ISA, "fns"): from ``base`` upward (offset > 0) or downward, 0xffffffff if there is none."""

    def scalar(mask: int, base: int, offset: int) -> int:
        mask, base = mask & M32, base & M32
        if offset == -(1 << 31):
            return 0  # |offset| does not exist in 32 bits; an H200 answers 0
        if offset == 0:
            return base if base < 32 and mask >> base & 1 else M32
        count, step, position = abs(offset), 1 if offset > 0 else -1, base
        while 0 <= position < 32:
            if mask >> position & 1:
                count -= 1
                if count == 0:
                    return position
            position += step
        return M32

    def op(mask: Value, base: Value, offset: Value) -> Value:
        if is_vector(mask, base, offset):
            return _per_lane(scalar, "u32", mask, base, offset)
        return scalar(int(mask), int(base), int(offset))

    return op
