"""mbarrier: tests and waits that return a predicate, phase tokens, arrive_drop (PTX ISA, "mbarrier.test_wait", "try_wait", ...).

``test_wait`` looks once.  ``try_wait`` suspends the thread until the phase completes or a time limit passes; here the limit
passes only when nothing else in the whole grid can make progress.

A phase token (``.b64`` state) is ``generation | pending << 32``: the phase that was current before the arrival, and the
arrivals that it still missed then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from emulator.instructions.mbarrier import MbarrierWait, _check_parity, _grouped, arrive
from emulator.instructions.registers import unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value
from emulator.machine.mbarrier import Mbarrier
from emulator.scheduler import Wait
from emulator.threads import Threads

ndarray = np.ndarray


class TryWait(MbarrierWait):
    """Threads suspended in mbarrier.try_wait."""

    __slots__ = ("round",)
    polls = True

    def __init__(self, barrier: Mbarrier, parity: int, site: int, warps: list[int]) -> None:
        super().__init__(barrier, parity, site, warps)
        self.round = barrier.cta.machine.idle_rounds

    def ready(self) -> bool:
        return self.barrier.test(self.parity) or self.barrier.cta.machine.idle_rounds != self.round


def _require_primary(mods: Mods) -> None:
    if "phase_type::conditional" in mods:
        raise unsupported("mbarrier", mods, "conditional phases")


def _done(t: Threads, bar: Mbarrier, parity: int, warps: list[int], acquire: bool) -> bool:
    """Test a phase; a success orders the waiting threads after the arrivals."""
    if not bar.test(parity):
        return False
    bar.returned.update(dict.fromkeys(warps, (t.site, parity)))
    hb = t.cta.cluster.hb
    if hb is not None and acquire:
        first = t.cta.rank * t.cta.num_warps
        hb.mbarrier_wait(tuple(first + w for w in warps), bar.hb, parity, t.rd_site)
    return True


def _merge(t: Threads, results: list[tuple[Any, ...]], columns: list[Value]) -> Value:
    """One predicate for all, or one per lane."""
    if len(results) == 1:
        return int(results[0][1])
    out = np.zeros(t.count, dtype=np.int64)
    for values, ok in results:
        same = np.ones(t.count, dtype=bool)
        for column, value in zip(columns, values, strict=True):
            same &= t.as_vector(column) == value
        out[same] = int(ok)
    return out if t.mask is None else np.where(t.mask, out, 0)


@instruction("ptx.mbarrier_test_wait_parity", counter="mbarrier.test_wait", factory=True)
def test_wait_parity(mods: Mods) -> Callable[..., Value]:
    """Has the phase with this parity completed?"""
    _require_primary(mods)
    acquire = "relaxed" not in mods

    def op(t: Threads, address: Value, parity: Value) -> Value:
        results = []
        for bar, (p,), _threads, warps in _grouped(t, address, parity):
            _check_parity(t, bar, int(p))
            key = (_window(bar, address), p)
            results.append((key, _done(t, bar, int(p), warps, acquire)))
        return _merge(t, results, [_window_of(address), parity])

    return op


def _window(bar: Mbarrier, address: Value) -> int:
    return bar.cta.rank << 24 | bar.offset


def _window_of(address: Value) -> Value:
    return address & 0xFFFFFFFF


@instruction(
    "ptx.mbarrier_try_wait_parity",
    "ptx.mbarrier_try_wait_parity_no_hint",
    blocking=True,
    counter="mbarrier.try_wait",
    factory=True,
)
def try_wait_parity(mods: Mods) -> Callable[..., Generator[Wait, None, Value]]:
    """Suspend until the phase with this parity completes (true) or the time limit passes (false)."""
    _require_primary(mods)
    acquire = "relaxed" not in mods

    def op(t: Threads, address: Value, parity: Value, hint: Value = 0) -> Generator[Wait, None, Value]:
        results = []
        for bar, (p,), _threads, warps in _grouped(t, address, parity):
            _check_parity(t, bar, int(p))
            machine = t.cta.machine
            if machine.trace is not None:
                machine.trace.add(machine, "wait", t.site, machine.trace.barrier(machine, bar), int(p))
            if not bar.test(int(p)):
                yield TryWait(bar, int(p), t.site, warps)
            results.append(((_window(bar, address), p), _done(t, bar, int(p), warps, acquire)))
        return _merge(t, results, [_window_of(address), parity])

    return op


# ---------------------------------------------------------------------------------------------- phase tokens


def token(bar: Mbarrier) -> int:
    """The state that an arrival returns: the current phase and its pending count."""
    return bar.generation & 0xFFFFFFFF | bar.pending << 32


def _token_parity(state: int) -> int:
    return state & 1


@instruction("ptx.mbarrier_test_wait", counter="mbarrier.test_wait", factory=True)
def test_wait(mods: Mods) -> Callable[..., Value]:
    """Has the phase of a token completed?"""
    acquire = "relaxed" not in mods

    def op(t: Threads, address: Value, state: Value) -> Value:
        results = []
        for bar, (s,), _threads, warps in _grouped(t, address, state):
            results.append(((_window(bar, address), s), _done(t, bar, _token_parity(int(s)), warps, acquire)))
        return _merge(t, results, [_window_of(address), state])

    return op


@instruction(
    "ptx.mbarrier_try_wait",
    "ptx.mbarrier_try_wait_hint",
    blocking=True,
    counter="mbarrier.try_wait",
    factory=True,
)
def try_wait(mods: Mods) -> Callable[..., Generator[Wait, None, Value]]:
    acquire = "relaxed" not in mods

    def op(t: Threads, address: Value, state: Value, hint: Value = 0) -> Generator[Wait, None, Value]:
        results = []
        for bar, (s,), _threads, warps in _grouped(t, address, state):
            parity = _token_parity(int(s))
            if not bar.test(parity):
                yield TryWait(bar, parity, t.site, warps)
            results.append(((_window(bar, address), s), _done(t, bar, parity, warps, acquire)))
        return _merge(t, results, [_window_of(address), state])

    return op


def _arrive_with_token(
    t: Threads, address: Value, count: Value, tx: Value, release: bool, drop: bool
) -> Value:
    """Arrive and return the token of the phase before the arrival, per lane."""
    tokens: list[tuple[int, int]] = []
    for bar, (n, bytes_), threads, warps in _grouped(t, address, count, tx):
        tokens.append((_window(bar, address), token(bar)))
        if drop:
            bar.expected -= int(n) * threads
        arrive(t, bar, int(n) * threads, int(bytes_) * threads, warps, release=release)
    if len(tokens) == 1:
        return tokens[0][1]
    out = np.zeros(t.count, dtype=np.uint64)
    window = t.as_vector(_window_of(address))
    for where, value in tokens:
        out[window == where] = value
    return out


def _arrival(
    drop: bool, expect_tx: bool, counted: bool, returns: bool
) -> Callable[[Mods], Callable[..., Any]]:
    def build(mods: Mods) -> Callable[..., Any]:
        release = "relaxed" not in mods

        def op(t: Threads, address: Value, operand: Value = 1) -> Any:
            count, tx = (1, operand) if expect_tx else (operand if counted else 1, 0)
            result = _arrive_with_token(t, address, count, tx, release, drop)
            return result if returns else None

        return op

    return build


for _drop, _verb in ((False, "arrive"), (True, "arrive_drop")):
    _name = f"mbarrier.{_verb}"
    instruction(f"ptx.mbarrier_{_verb}_state", counter=_name, factory=True)(
        _arrival(_drop, False, False, True)
    )
    instruction(f"ptx.mbarrier_{_verb}_count_state", counter=_name, factory=True)(
        _arrival(_drop, False, True, True)
    )
    instruction(f"ptx.mbarrier_{_verb}_expect_tx_state", counter=f"{_name}.expect_tx", factory=True)(
        _arrival(_drop, True, False, True)
    )
instruction("ptx.mbarrier_arrive_drop_nocount", counter="mbarrier.arrive_drop", factory=True)(
    _arrival(True, False, False, False)
)
instruction("ptx.mbarrier_arrive_drop", counter="mbarrier.arrive_drop", factory=True)(
    _arrival(True, False, True, False)
)
instruction("ptx.mbarrier_arrive_drop_expect_tx", counter="mbarrier.arrive_drop.expect_tx", factory=True)(
    _arrival(True, True, False, False)
)


@instruction("ptx.mbarrier_pending_count", pure=True)
def pending_count(mods: Mods) -> Callable[[Value], Value]:
    """The pending arrivals that a token recorded."""
    return lambda state: (
        (state >> np.uint64(32)).astype(np.int64)
        if isinstance(state, ndarray)
        else int(state) >> 32 & 0xFFFFF
    )
