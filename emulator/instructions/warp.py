"""Warp-level instructions: shuffles, votes, elections, register redistribution (PTX ISA, "shfl.sync", "vote.sync")."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.instructions.registry import Mods, instruction
from emulator.threads import Threads


def _by_warp(t: Threads, value: Any) -> np.ndarray:
    """``[warps, 32]`` of a lane value."""
    return t.as_vector(value, dtype=np.asarray(value).dtype if not isinstance(value, (int, bool)) else np.int64).reshape(-1, 32)


def shuffle(t: Threads, value: Any, mode: str, operand: Any, clamp: Any) -> Any:
    """``shfl.sync`` (PTX ISA): ``clamp`` holds the segment mask in bits 8-12 and the clamp value in bits 0-4."""
    v = _by_warp(t, value)
    lane = np.arange(32)
    b = _by_warp(t, operand) & 31
    c = _by_warp(t, clamp)
    cval, segment = c & 31, (c >> 8) & 31
    max_lane = (lane & segment) | (cval & ~segment)
    min_lane = lane & segment
    if mode == "up":
        j = lane - b
        ok = j >= max_lane
    elif mode == "down":
        j = lane + b
        ok = j <= max_lane
    elif mode == "bfly":
        j = lane ^ b
        ok = j <= max_lane
    else:
        j = min_lane | (b & ~segment)
        ok = j <= max_lane
    j = np.where(ok, j, lane)
    return np.take_along_axis(v, np.broadcast_to(j, v.shape), axis=1).reshape(-1)


@instruction("ptx.shfl_sync", collective=True, counter="shfl.sync")
def shfl_sync(mods: Mods, t: Threads, a: Any, b: Any, c: Any, membermask: Any) -> Any:
    mode = next(tok for tok in mods.tokens if tok in ("up", "down", "bfly", "idx"))
    return shuffle(t, a, mode, b, c)


def _cuda_shuffle(mode: str) -> Any:
    def fn(mods: Mods, t: Threads, mask: Any, value: Any, operand: Any, width: Any = 32) -> Any:
        w = int(np.asarray(width).flat[0])
        clamp = ((32 - w) << 8) | (0 if mode == "up" else 31)
        return shuffle(t, value, mode, operand, clamp)

    return fn


instruction("cuda.__shfl_sync", "cuda.shfl_sync", collective=True, counter="shfl.sync")(_cuda_shuffle("idx"))
instruction("cuda.__shfl_up_sync", "tvm_warp_shuffle_up", collective=True, counter="shfl.sync")(_cuda_shuffle("up"))
instruction("cuda.__shfl_down_sync", "tvm_warp_shuffle_down", collective=True, counter="shfl.sync")(_cuda_shuffle("down"))
instruction("cuda.__shfl_xor_sync", "tvm_warp_shuffle_xor", collective=True, counter="shfl.sync")(_cuda_shuffle("bfly"))


@instruction("ptx.vote_sync", collective=True, counter="vote.sync")
def vote_sync(mods: Mods, t: Threads, a: Any, membermask: Any) -> Any:
    """``vote.sync.{all,any,uni}.pred`` and ``.ballot.b32``."""
    p = _by_warp(t, a) != 0
    active = np.ones_like(p) if t.mask is None else t.mask.reshape(-1, 32)
    if "any" in mods:
        r = (p & active).any(axis=1)
    elif "all" in mods:
        r = (p | ~active).all(axis=1)
    elif "uni" in mods:
        r = (p | ~active).all(axis=1) | (~p | ~active).all(axis=1)
    else:
        r = ((p & active).astype(np.int64) << np.arange(32)).sum(axis=1)
    return np.repeat(r.astype(np.int64), 32)


@instruction("ptx.setmaxnreg", collective=True, counter="setmaxnreg")
def setmaxnreg(mods: Mods, t: Threads, count: Any) -> None:
    """Register redistribution: only its rules are checked (PTX ISA, "setmaxnreg")."""
    n = int(np.asarray(count).flat[0])
    if n % 8 or not 24 <= n <= 256:
        t.cta.machine.report("setmaxnreg.bad-count", "error", f"setmaxnreg with {n} registers; it must be a multiple of 8 from 24 to 256", "choose a legal register count", t)
