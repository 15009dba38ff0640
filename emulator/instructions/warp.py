"""Warp-level instructions: shuffles, votes, matches, reductions, elections, register redistribution (PTX ISA,
"shfl.sync", "vote.sync", "match.sync", "redux.sync", "activemask", "elect.sync", "setmaxnreg")."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from emulator import runtime
from emulator.checks import memory_safety
from emulator.checks.findings import Problem
from emulator.errors import DeviceFault
from emulator.instructions.compare import float_extreme
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import M32, Value
from emulator.scheduler import Wait
from emulator.threads import Threads

_LANE = np.arange(32)


def by_warp(t: Threads, value: Value) -> np.ndarray:
    """``[warps, 32]`` of a lane value; a uniform value is a broadcast view."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value.reshape(-1, 32)
    dtype = (
        value.dtype
        if isinstance(value, np.generic)
        else np.uint64
        if isinstance(value, int) and value >> 63 > 0
        else np.int64
    )
    return np.broadcast_to(np.asarray(value, dtype=dtype), (len(t.warps), 32))


def participants(t: Threads) -> np.ndarray:
    """``bool[warps, 32]``: the active lanes."""
    if t.mask is None:
        return np.broadcast_to(np.True_, (len(t.warps), 32))
    return t.mask.reshape(-1, 32)


def check_members(t: Threads, membermask: Value, what: str) -> None:
    """An executing lane must be named in its own member mask (PTX ISA: otherwise undefined)."""
    if isinstance(membermask, int) and membermask & M32 == M32:
        return
    named = by_warp(t, membermask) >> _LANE & 1
    if bool((participants(t) & (named == 0)).any()):
        raise DeviceFault(
            "warp.not-a-member",
            f"a thread executes {what} with a member mask that does not contain it",
            "use 0xffffffff when the whole warp takes part, else a mask with one bit per participating lane",
            site=t.site,
        )


# ---------------------------------------------------------------------------------------------- shuffles


def _sources(mode: str, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(source lane, in range) per lane (PTX ISA, "shfl.sync"): c holds the clamp in bits 0-4, the segment mask in 8-12."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    last = (_LANE & segment) | (clamp & ~segment)
    first = _LANE & segment
    if mode == "up":
        j = _LANE - b
        ok = j >= last
    elif mode == "down":
        j = _LANE + b
        ok = j <= last
    elif mode == "bfly":
        j = _LANE ^ b
        ok = j <= last
    else:
        j = first | (b & ~segment)
        ok = j <= last
    return np.where(ok, j, _LANE), ok


_PLANS: dict[tuple[str, int, int], tuple[np.ndarray, np.ndarray]] = {}


def shuffle(t: Threads, value: Value, mode: str, operand: Value, control: Value) -> tuple[Value, np.ndarray]:
    """(what each lane receives, whether its source was in range)."""
    v = by_warp(t, value)
    if isinstance(operand, int) and isinstance(control, int):
        key = (mode, operand, control)
        plan = _PLANS.get(key)
        if plan is None:
            plan = _PLANS[key] = _sources(mode, np.int64(operand), np.int64(control))  # type: ignore[arg-type]
        j, ok = plan
        return v[:, j].reshape(-1), ok
    j, ok = _sources(mode, by_warp(t, operand), by_warp(t, control))
    j = np.broadcast_to(j, v.shape)
    return np.take_along_axis(v, j, axis=1).reshape(-1), ok


def _mode(mods: Mods) -> str:
    return mods["mode"]


@instruction("ptx.shfl_sync", collective=True, counter="shfl.sync", factory=True)
def shfl_sync(mods: Mods) -> Callable[..., Any]:
    mode = _mode(mods)

    def op(t: Threads, a: Value, b: Value, c: Value, membermask: Value) -> Value:
        check_members(t, membermask, "shfl.sync")
        return shuffle(t, a, mode, b, c)[0]

    return op


@instruction("ptx.shfl_sync_p", collective=True, counter="shfl.sync", factory=True)
def shfl_sync_p(mods: Mods) -> Callable[..., Any]:
    """``shfl.sync d|p``: p tells whether the source lane was in range."""
    mode = _mode(mods)

    def op(t: Threads, a: Value, b: Value, c: Value, membermask: Value) -> Any:
        check_members(t, membermask, "shfl.sync")
        d, ok = shuffle(t, a, mode, b, c)
        return d, np.broadcast_to(ok, (len(t.warps), 32)).reshape(-1).astype(np.int64)

    return op


def _cuda_shuffle(mode: str) -> Callable[..., Any]:
    """``__shfl_*_sync(mask, value, lane or delta, width)``."""

    def fn(
        mods: Mods,
        t: Threads,
        mask: Value,
        value: Value,
        operand: Value,
        width: Value = 32,
        warp_size: Value = 32,
    ) -> Value:
        segment = int(np.asarray(width).flat[0])
        if segment not in (1, 2, 4, 8, 16, 32):
            raise DeviceFault(
                "warp.bad-width",
                f"a shuffle with width {segment}",
                "the width is a power of two from 1 to 32",
                site=t.site,
            )
        control = (32 - segment) << 8 | (0 if mode == "up" else 31)
        return shuffle(t, value, mode, operand, control)[0]

    return fn


instruction("cuda.__shfl_sync", "cuda.shfl_sync", collective=True, counter="shfl.sync")(_cuda_shuffle("idx"))
instruction("cuda.__shfl_up_sync", "tvm_warp_shuffle_up", collective=True, counter="shfl.sync")(
    _cuda_shuffle("up")
)
instruction("cuda.__shfl_down_sync", "tvm_warp_shuffle_down", collective=True, counter="shfl.sync")(
    _cuda_shuffle("down")
)
instruction("cuda.__shfl_xor_sync", "tvm_warp_shuffle_xor", collective=True, counter="shfl.sync")(
    _cuda_shuffle("bfly")
)


# ---------------------------------------------------------------------------------------------- votes


def _spread(r: np.ndarray) -> Value:
    """One value per warp as a lane value."""
    if len(r) == 1:
        return int(r[0])
    return np.repeat(r.astype(np.int64), 32)


def ballot(t: Threads, predicate: Value) -> np.ndarray:
    """One bit per active lane whose predicate holds, ``int64[warps]``."""
    p = (by_warp(t, predicate) != 0) & participants(t)
    bits = np.packbits(p, axis=1, bitorder="little").view(np.uint32)[:, 0]
    return bits.astype(np.int64)


@instruction("ptx.vote_sync", collective=True, counter="vote.sync", factory=True)
def vote_sync(mods: Mods) -> Callable[..., Any]:
    """``vote.sync.{all,any,uni}.pred``."""
    mode = _mode(mods)

    def op(t: Threads, a: Value, membermask: Value) -> Value:
        check_members(t, membermask, "vote.sync")
        p = by_warp(t, a) != 0
        if t.mask is None and mode != "uni":
            return _spread(p.any(axis=1) if mode == "any" else p.all(axis=1))
        active = participants(t)
        if mode == "any":
            return _spread((p & active).any(axis=1))
        everyone = (p | ~active).all(axis=1)
        return _spread(everyone if mode == "all" else everyone | ~(p & active).any(axis=1))

    return op


@instruction("ptx.vote_sync_ballot", collective=True, counter="vote.sync")
def vote_sync_ballot(mods: Mods, t: Threads, a: Value, membermask: Value) -> Value:
    check_members(t, membermask, "vote.sync.ballot")
    return _spread(ballot(t, a))


@instruction("cuda.ballot_sync", collective=True, counter="vote.sync")
def ballot_sync(mods: Mods, t: Threads, mask: Value, predicate: Value) -> Value:
    return _spread(ballot(t, predicate))


@instruction("cuda.any_sync", collective=True, counter="vote.sync")
def any_sync(mods: Mods, t: Threads, mask: Value, predicate: Value) -> Value:
    return _spread(ballot(t, predicate) != 0)


@instruction("ptx.activemask", "tvm_warp_activemask", collective=True, counter="activemask")
def activemask(mods: Mods, t: Threads) -> Value:
    """The lanes that execute this instruction together."""
    return _spread(ballot(t, True))


def _matches(t: Threads, value: Value) -> np.ndarray:
    """``int64[warps, 32]``: per lane the active lanes that hold the same value."""
    v, active = by_warp(t, value), participants(t)
    same = (v[:, :, None] == v[:, None, :]) & active[:, None, :]
    return np.packbits(same, axis=2, bitorder="little").view(np.uint32)[:, :, 0].astype(np.int64)


@instruction("ptx.match_any_sync", collective=True, counter="match.sync")
def match_any_sync(mods: Mods, t: Threads, a: Value, membermask: Value) -> Value:
    """Lanes with the same value as this one."""
    check_members(t, membermask, "match.any.sync")
    return _matches(t, a).reshape(-1)


def _match_all(t: Threads, a: Value) -> tuple[np.ndarray, np.ndarray]:
    masks, active = _matches(t, a), participants(t)
    everyone = ballot(t, True)
    ok = ((masks == everyone[:, None]) | ~active).all(axis=1)
    return np.where(ok, everyone, 0), ok


@instruction("ptx.match_all_sync", collective=True, counter="match.sync")
def match_all_sync(mods: Mods, t: Threads, a: Value, membermask: Value) -> Value:
    """The member mask when all lanes hold the same value, else 0."""
    check_members(t, membermask, "match.all.sync")
    return _spread(_match_all(t, a)[0])


@instruction("ptx.match_all_sync_p", collective=True, counter="match.sync")
def match_all_sync_p(mods: Mods, t: Threads, a: Value, membermask: Value) -> Any:
    check_members(t, membermask, "match.all.sync")
    d, p = _match_all(t, a)
    return _spread(d), _spread(p)


# ---------------------------------------------------------------------------------------------- reductions

_REDUCE: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _reduce(t: Threads, value: Value, op: str) -> Value:
    """An integer reduction over the active lanes of each warp."""
    v = by_warp(t, value)
    ufunc = _REDUCE[op]
    if t.mask is None:
        return _spread(ufunc.reduce(v, axis=1) & M32 if op == "add" else ufunc.reduce(v, axis=1))
    out = np.zeros(len(v), dtype=np.int64)
    for k, (row, active) in enumerate(zip(v, participants(t), strict=True)):
        if active.any():
            out[k] = ufunc.reduce(row[active])
    return _spread(out & M32 if op == "add" else out)


@instruction("ptx.redux_sync", "ptx.redux_sync_bitwise", collective=True, counter="redux.sync", factory=True)
def redux_sync(mods: Mods) -> Callable[..., Any]:
    """``redux.sync.{add,min,max,and,or,xor}``: every lane gets the result; add wraps to 32 bits."""
    name = mods["op"]

    def op(t: Threads, a: Value, membermask: Value) -> Value:
        check_members(t, membermask, "redux.sync")
        return _reduce(t, a, name)

    return op


@instruction("ptx.redux_sync_f32", collective=True, counter="redux.sync", factory=True)
def redux_sync_f32(mods: Mods) -> Callable[..., Any]:
    """``redux.sync.{min,max}[.abs][.NaN].f32``."""
    extreme = float_extreme(mods, "f32", mods["op"] == "max")

    def op(t: Threads, a: Value, membermask: Value) -> Value:
        check_members(t, membermask, "redux.sync")
        v = np.array(by_warp(t, a), dtype=np.float32)
        if t.mask is not None:  # inactive lanes repeat an active one
            active = participants(t)
            v = np.where(active, v, np.take_along_axis(v, active.argmax(axis=1)[:, None], axis=1))
        while v.shape[1] > 1:
            half = v.shape[1] // 2
            v = extreme(v[:, :half], v[:, half:])
        if "abs" in mods:
            v = np.abs(v)
        return v[0, 0] if len(v) == 1 else np.repeat(v[:, 0], 32)

    return op


@instruction("cuda.reduce_add_sync_u32", collective=True, counter="redux.sync")
def reduce_add_sync_u32(mods: Mods, t: Threads, mask: Value, value: Value) -> Value:
    return _reduce(t, value, "add")


@instruction("cuda.reduce_min_sync_u32", collective=True, counter="redux.sync")
def reduce_min_sync_u32(mods: Mods, t: Threads, mask: Value, value: Value) -> Value:
    return _reduce(t, value, "min")


# ---------------------------------------------------------------------------------------------- election, registers


@instruction("ptx.elect_sync", collective=True, counter="elect.sync")
def elect_sync(mods: Mods, t: Threads, membermask: Value) -> Any:
    """``elect.sync d|p``: the leader's lane in every lane, p in the leader only (the lowest active lane)."""
    check_members(t, membermask, "elect.sync")
    leader = participants(t).argmax(axis=1)
    return _spread(leader), runtime.elect(t)


class RegisterWait(Wait):
    """Warps that wait in setmaxnreg.inc until the registers of their CTA suffice."""

    __slots__ = ("count", "cta", "warps")
    kind = "setmaxnreg"

    def __init__(self, t: Threads, count: int) -> None:
        self.cta = t.cta
        self.count = count
        self.warps = list(t.active_warps())
        self.site = t.site

    def problem(self) -> Problem | None:
        """What stands against it: the registers per thread of every warpgroup, once these warps have theirs."""
        held = {**self.cta.registers, **dict.fromkeys(self.warps, self.count)}
        warps = self.cta.num_warps
        start = memory_safety.launch_registers(32 * warps)
        groups = [[held.get(w, start) for w in range(g, min(g + 4, warps))] for g in range(0, warps, 4)]
        return memory_safety.setmaxnreg(
            self.count, "inc", [sum(g) / 4 for g in groups], 128 * start * warps // 4
        )

    def ready(self) -> bool:
        return self.problem() is None


@instruction("ptx.setmaxnreg", blocking=True, collective=True, counter="setmaxnreg")
def setmaxnreg(mods: Mods, t: Threads, count: Value) -> Generator[Wait, None, None]:
    """Registers move between the warps of a CTA: ``inc`` waits until ``dec`` of others has freed enough.

    Values live in Python, so only the rules matter here (PTX ISA, "setmaxnreg").
    """
    n = int(np.asarray(count).flat[0])
    problem = memory_safety.setmaxnreg(n, "dec", ())
    if problem is not None:
        t.cta.machine.report(problem.code, problem.strength, problem.message, problem.fix, t)
        return
    if "inc" in mods:
        wait = RegisterWait(t, n)
        while not wait.ready():
            yield wait
    t.cta.registers.update(dict.fromkeys(t.active_warps(), n))
    t.cta.machine.progress += 1
