"""Moves, packing and selection (PTX ISA, "mov", "selp", "slct", "cvta", "isspacep")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator import lanes
from emulator.instructions.registers import as_u64, is_vector, join128, ndarray, split128, unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import M32, Value
from emulator.machine.address import SHARED_TAG

Op = Callable[..., Value]


@instruction("ptx.mov", pure=True)
def mov(mods: Mods) -> Op:
    """A copy: a lane vector is copied, since registers are updated in place."""
    return lambda a: a.copy() if isinstance(a, ndarray) else a


@instruction("ptx.mov_pack_b16x2", pure=True)
def mov_pack_b16x2(mods: Mods) -> Op:
    """``mov.b32 d, {lo, hi}``."""
    return lambda group: group[0] & 0xFFFF | (group[1] & 0xFFFF) << 16


@instruction("ptx.mov_unpack_b16x2", pure=True)
def mov_unpack_b16x2(mods: Mods) -> Op:
    """``mov.b32 {lo, hi}, a``."""
    return lambda a: (a & 0xFFFF, a >> 16 & 0xFFFF)


def _pack64(group: Any) -> Value:
    lo, hi = group
    if isinstance(lo, np.integer):  # single-lane code: a row of a local array
        lo, hi = int(lo), int(hi)
    return lanes.pack64(lo, hi)


@instruction("ptx.mov_pack_b32x2", pure=True)
def mov_pack_b32x2(mods: Mods) -> Op:
    """``mov.b64 d, {lo, hi}``."""
    return _pack64


@instruction("ptx.mov_unpack_b32x2", pure=True)
def mov_unpack_b32x2(mods: Mods) -> Op:
    """``mov.b64 {lo, hi}, a``."""
    return lambda a: (lanes.lo32(a), lanes.hi32(a))


@instruction("ptx.mov_pack_b16x4", pure=True)
def mov_pack_b16x4(mods: Mods) -> Op:
    """``mov.b64 d, {a, b, c, d}``."""
    return lambda g: lanes.pack64(
        g[0] & 0xFFFF | (g[1] & 0xFFFF) << 16, g[2] & 0xFFFF | (g[3] & 0xFFFF) << 16
    )


@instruction("ptx.mov_unpack_b16x4", pure=True)
def mov_unpack_b16x4(mods: Mods) -> Op:
    def op(a: Value) -> Value:
        lo, hi = lanes.lo32(a), lanes.hi32(a)
        return lo & 0xFFFF, lo >> 16 & 0xFFFF, hi & 0xFFFF, hi >> 16 & 0xFFFF

    return op


@instruction("ptx.mov_pack_b64x2", pure=True)
def mov_pack_b64x2(mods: Mods) -> Op:
    """``mov.b128 d, {lo, hi}``."""
    return lambda g: join128(g[0], g[1])


@instruction("ptx.mov_pack_b32x4", pure=True)
def mov_pack_b32x4(mods: Mods) -> Op:
    return lambda g: join128(_pack64(g[:2]), _pack64(g[2:]))


@instruction("ptx.mov_unpack_b64x2", pure=True)
def mov_unpack_b64x2(mods: Mods) -> Op:
    """``mov.b128 {lo, hi}, a``."""
    return split128


@instruction("ptx.mov_unpack_b32x4", pure=True)
def mov_unpack_b32x4(mods: Mods) -> Op:
    def op(a: Value) -> Value:
        low, high = split128(a)
        return lanes.lo32(low), lanes.hi32(low), lanes.lo32(high), lanes.hi32(high)

    return op


_SMALLEST_NORMAL = np.float32(2.0**-126)


def _choose(c: Value, a: Value, b: Value) -> Value:
    if is_vector(c):
        return np.where(c, a, b)
    return a if c else b


def _uint64_sides(ptx_type: str, op: Op) -> Op:
    """64-bit unsigned operands share one dtype, or a selection would turn them into floats."""
    if ptx_type in ("b64", "u64"):
        return lambda a, b, c: op(as_u64(a), as_u64(b), c)
    return op


@instruction("ptx.selp", pure=True)
def selp(mods: Mods) -> Op:
    """``c ? a : b``."""
    return _uint64_sides(mods["type"], lambda a, b, c: _choose(c != 0, a, b))


@instruction("ptx.slct", pure=True)
def slct(mods: Mods) -> Op:
    """``c >= 0 ? a : b``; for f32, -0 counts as 0 and NaN selects b."""
    if "ftz" in mods:  # a negative subnormal counts as -0
        return _uint64_sides(mods["dtype"], lambda a, b, c: _choose(c > -_SMALLEST_NORMAL, a, b))
    return _uint64_sides(mods["dtype"], lambda a, b, c: _choose(c >= 0, a, b))


# ---------------------------------------------------------------------------------------------- addresses


@instruction("ptx.cvta", pure=True)
def cvta_to(mods: Mods) -> Op:
    """``cvta.to.space``: generic pointer to an address of the space."""
    space = mods["space"]
    if space.startswith("shared"):
        return lambda p: as_u64(p & M32)
    if space == "global":
        return as_u64
    raise unsupported("cvta", mods)


@instruction("ptx.cvta_generic", pure=True)
def cvta_generic(mods: Mods) -> Op:
    """``cvta.space``: an address of the space to a generic pointer."""
    space = mods["space"]
    if space.startswith("shared"):
        return lambda a: as_u64(a) | np.uint64(SHARED_TAG) if is_vector(a) else int(a) & M32 | SHARED_TAG
    if space == "global":
        return as_u64
    raise unsupported("cvta", mods)


@instruction("ptx.isspacep", factory=True)
def isspacep(mods: Mods) -> Op:
    """Whether a generic pointer lies in a state space."""
    space = mods["space"]

    def op(t: Any, p: Value) -> Value:
        p = p.astype(np.int64) if isinstance(p, ndarray) else int(p)
        shared = (p & SHARED_TAG) != 0
        if space == "global":
            return np.logical_not(shared) if is_vector(p) else not shared
        if space == "shared::cluster":
            return shared
        own = shared & ((p & M32) >> 24 == t.cta.rank)
        return own

    if space not in ("global", "shared", "shared::cta", "shared::cluster"):
        raise unsupported("isspacep", mods)
    return op
