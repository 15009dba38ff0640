"""Logic, shifts and byte permutation (PTX ISA, "Logic and Shift Instructions", "prmt")."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from emulator import lanes
from emulator.instructions.registers import INTEGERS, as_u64, is_vector, ndarray, unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import M32, Value

Op = Callable[..., Value]


def _identity(x: Value) -> Value:
    return x


def _operand(ptx_type: str) -> Callable[[Value], Value]:
    """An operand of a bit type; 64-bit vectors become uint64."""
    return as_u64 if ptx_type == "b64" else _identity


def _bitwise(fn: Callable[[Value, Value], Value]) -> Callable[[Mods], Op]:
    def build(mods: Mods) -> Op:
        ptx_type = mods["type"]
        if ptx_type == "pred":
            return lambda a, b: fn(a != 0, b != 0)
        if ptx_type == "b64":
            return lambda a, b: fn(as_u64(a), as_u64(b))
        return fn

    return build


instruction("ptx.and", pure=True)(_bitwise(lambda a, b: a & b))
instruction("ptx.or", pure=True)(_bitwise(lambda a, b: a | b))
instruction("ptx.xor", pure=True)(_bitwise(lambda a, b: a ^ b))


@instruction("ptx.not", pure=True)
def not_(mods: Mods) -> Op:
    ptx_type = mods["type"]
    if ptx_type == "pred":
        return lambda a: a == 0
    full = (1 << INTEGERS[ptx_type][0]) - 1
    if ptx_type == "b64":
        return lambda a: ~as_u64(a) if isinstance(a, ndarray) else int(a) ^ full
    return lambda a: a ^ full


@instruction("ptx.cnot", pure=True)
def cnot(mods: Mods) -> Op:
    """``a == 0 ? 1 : 0``."""

    def op(a: Value) -> Value:
        if isinstance(a, ndarray):
            return (a == 0).astype(np.uint64 if mods["type"] == "b64" else np.int64)
        return int(a == 0)

    return op


def _lut(a: Value, b: Value, c: Value, table: int) -> Value:
    """The three-input logic function whose truth table is ``table`` (a = 0xF0, b = 0xCC, c = 0xAA)."""
    result: Any = 0
    for index in range(8):
        if table >> index & 1:
            term = (
                (a if index & 4 else a ^ M32) & (b if index & 2 else b ^ M32) & (c if index & 1 else c ^ M32)
            )
            result = result | term
    return result


_COMMON_LUTS: dict[int, Callable[[Value, Value, Value], Value]] = {
    0x80: lambda a, b, c: a & b & c,
    0xFE: lambda a, b, c: a | b | c,
    0x96: lambda a, b, c: a ^ b ^ c,
    0xF8: lambda a, b, c: a | b & c,
    0xEA: lambda a, b, c: a & b | c,
    0xE2: lambda a, b, c: c & (b ^ M32) | a & b,
    0xCA: lambda a, b, c: a & b | (a ^ M32) & c,
    0x6A: lambda a, b, c: (a & b) ^ c,
    0x78: lambda a, b, c: a ^ (b & c),
    0xC0: lambda a, b, c: a & b,
    0xFC: lambda a, b, c: a | b,
    0x3C: lambda a, b, c: a ^ b,
}


@instruction("ptx.lop3", pure=True)
def lop3(mods: Mods) -> Op:
    def op(a: Value, b: Value, c: Value, table: Any) -> Value:
        fn = _COMMON_LUTS.get(int(table))
        return fn(a, b, c) if fn is not None else _lut(a, b, c, int(table))

    return op


def _boolop(mods: Mods) -> Callable[[Value, Value], Value]:
    if mods["boolop"] == "and":
        return lambda p, q: p & q
    return lambda p, q: p | q


@instruction("ptx.lop3_bool", pure=True)
def lop3_bool(mods: Mods) -> Op:
    """``lop3.or/and``: the result and the predicate ``(result != 0) op q``."""
    combine = _boolop(mods)

    def op(a: Value, b: Value, c: Value, table: Any, q: Value) -> Value:
        d = _lut(a, b, c, int(table))
        return d, combine(d != 0, q != 0)

    return op


@instruction("ptx.lop3_bool_sink", pure=True)
def lop3_bool_sink(mods: Mods) -> Op:
    combine = _boolop(mods)
    return lambda a, b, c, table, q: combine(_lut(a, b, c, int(table)) != 0, q != 0)


def _limit(n: Value, most: int) -> Value:
    return np.minimum(n, most) if isinstance(n, ndarray) else min(n, most)


@instruction("ptx.shl", pure=True)
def shl(mods: Mods) -> Op:
    """Shift left; amounts beyond the width give 0."""
    bits = INTEGERS[mods["type"]][0]
    if bits == 64:
        return lambda a, n: lanes.shl(as_u64(a), n, 64, False)
    full = (1 << bits) - 1
    return lambda a, n: (a << (n if type(n) is int and n <= bits else _limit(n, bits))) & full


@instruction("ptx.shr", pure=True)
def shr(mods: Mods) -> Op:
    """Shift right, arithmetic for signed types; amounts beyond the width give 0 or the sign."""
    bits, signed = INTEGERS[mods["type"]]
    if bits == 64 and not signed:
        return lambda a, n: lanes.shr(as_u64(a), n, 64, False)
    if bits == 64:
        return lambda a, n: a >> _limit(n, 63)
    return lambda a, n: a >> _limit(n, bits if not signed else bits - 1)


@instruction("ptx.shf", pure=True)
def shf(mods: Mods) -> Op:
    """Funnel shift of ``b:a`` by c bits (``.l``: the upper word of the result, ``.r``: the lower word)."""
    left, clamp = mods["dir"] == "l", mods["mode"] == "clamp"

    def op(a: Value, b: Value, c: Value) -> Value:
        n = _limit(c, 32) if clamp else c & 31
        if not is_vector(a, b, n):
            both = (b & M32) << 32 | a & M32
            return (both << n >> 32 if left else both >> n) & M32
        low, high = np.asarray(a) & M32, np.asarray(b) & M32
        if left:
            return ((high << n) | (low >> (32 - n))) & M32
        return ((low >> n) | (high << (32 - n))) & M32

    return op


@instruction("tirx.popcount", pure=True)
def popcount(mods: Mods) -> Op:
    """TIRx's ``popcount``: the number of set bits."""
    bits = int(mods.dtypes[0].lstrip("uint") or 32)
    mask = (1 << bits) - 1

    def op(a: Value) -> Value:
        if isinstance(a, ndarray):
            return np.bitwise_count(a if bits == 64 else a & mask).astype(np.int64)
        return (int(a) & mask).bit_count()

    return op


_PRMT_MODES = {
    "f4e": ((3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)),
    "b4e": ((5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)),
    "rc16": ((1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)),
}  # bytes of {b, a}, most significant destination byte first (PTX ISA, "prmt")


@lru_cache(maxsize=1024)
def _runs(selectors: tuple[int, ...]) -> list[tuple[int, int, int, int, bool]]:
    """(destination byte, source word, first source byte, bytes, sign) of each run of neighbouring bytes."""
    runs: list[tuple[int, int, int, int, bool]] = []
    for k, selector in enumerate(selectors):
        word, byte, sign = selector >> 2 & 1, selector & 3, bool(selector & 8)
        if runs and not sign:
            k0, word0, byte0, n, sign0 = runs[-1]
            if not sign0 and word0 == word and byte0 + n == byte:
                runs[-1] = (k0, word, byte0, n + 1, False)
                continue
        runs.append((k, word, byte, 1, sign))
    return runs


def _permute(a: Value, b: Value, selectors: tuple[int, ...]) -> Value:
    """Bytes of ``{b, a}`` by constant selectors, least significant first; bit 3 of a selector replicates the sign."""
    result: Any = None
    for k, word, byte, n, sign in _runs(selectors):
        part = b if word else a
        if byte:
            part = part >> 8 * byte
        if byte + n < 4:
            part = part & (1 << 8 * n) - 1
        if sign:
            part = (part >> 7) * 0xFF
        if k:
            part = part << 8 * k
        result = part if result is None else result | part
    return result


def _permute_by_lane(a: Value, b: Value, c: ndarray) -> ndarray:
    both = np.stack([np.broadcast_to(np.asarray(x) & M32, c.shape) for x in (a, b)], axis=1).astype(np.uint32)
    pool = np.ascontiguousarray(both).view(np.uint8)  # [L, 8]
    selectors = (c[:, None] >> np.arange(0, 16, 4)) & 0xF
    chosen = np.take_along_axis(pool, selectors & 7, axis=1)
    signs = np.where(chosen & 0x80, 0xFF, 0).astype(np.uint8)
    out = np.where(selectors & 8, signs, chosen)
    return np.ascontiguousarray(out).view(np.uint32)[:, 0].astype(np.int64)


@instruction("ptx.prmt", pure=True)
def prmt(mods: Mods) -> Op:
    """Byte permutation of ``{b, a}``."""
    mode = mods["mode"]
    if mode:
        rows = _PRMT_MODES.get(mode)
        if rows is None:
            raise unsupported("prmt", mods)

        def by_mode(a: Value, b: Value, c: Value) -> Value:
            if is_vector(c):
                nibbles = np.array([sum(s << 4 * (3 - k) for k, s in enumerate(row)) for row in rows])
                return _permute_by_lane(a, b, nibbles[c & 3])
            return _permute(a, b, tuple(reversed(rows[int(c) & 3])))

        return by_mode

    def op(a: Value, b: Value, c: Value) -> Value:
        if is_vector(c):
            return _permute_by_lane(a, b, np.asarray(c))
        c = int(c)
        return _permute(a, b, (c & 0xF, c >> 4 & 0xF, c >> 8 & 0xF, c >> 12 & 0xF))

    return op
