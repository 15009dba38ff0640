"""Warpgroup matrix multiply-accumulate of sm_90a (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: wgmma").

D is 64 x N in the registers of a warpgroup: with ``g = lane / 4`` and ``q = lane % 4``, warp w of the group holds rows
``16 w + g`` and ``16 w + g + 8``; register ``4 b + 2 r + j`` is row ``g + 8 r``, column ``8 b + 2 q + j`` (f16 accumulators
pack j in one register).  A comes from shared memory or from four registers per lane, B from shared memory.

The multiplication is asynchronous: while it is in flight the accumulator registers hold poison, its shared-memory
operands are read when it completes, and ``wgmma.wait_group`` makes the result appear.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from emulator.checks import happens_before as hbm
from emulator.errors import DeviceFault
from emulator.instructions.descriptors import matrix_descriptor
from emulator.instructions.ld_st import block_of
from emulator.instructions.matrix import operand_a
from emulator.instructions.registers import unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value, pick
from emulator.machine import smem_descriptor as sd
from emulator.machine.smem_descriptor import Major, SmemDescriptor
from emulator.numerics import formats, tensor_core
from emulator.threads import Threads

_POISON = np.uint32(0xFFFFFFFF)
_U32 = np.dtype(np.uint32)
_CARRIER: dict[int, np.dtype[Any]] = {32: np.dtype(np.uint32), 16: np.dtype(np.uint16), 8: np.dtype(np.uint8)}


class Flight:
    """Accumulators that wgmma operations in flight are writing."""

    __slots__ = ("half", "pending", "target", "value")

    def __init__(self, value: np.ndarray, target: np.ndarray, half: bool) -> None:
        self.value = value
        self.target = target
        self.pending = 0
        self.half = half


class Unit:
    """The wgmma queue of a warpgroup (of one warp where warps run apart)."""

    __slots__ = ("fenced", "flights", "groups", "open")

    def __init__(self) -> None:
        self.open = 0
        self.groups: list[int] = []
        self.flights: dict[tuple[int, int], Flight] = {}
        self.fenced = False


def _units(t: Threads) -> list[tuple[int, list[int], list[int]]]:
    """(key, warps, strand positions) of the warpgroups, or of the single warps where a warpgroup is not in lockstep."""
    if t.mask is None:
        positions = list(range(len(t.warps)))
    else:
        positions = np.flatnonzero(t.mask.reshape(-1, 32).any(axis=1)).tolist()
    groups: dict[int, list[int]] = {}
    for k in positions:
        groups.setdefault(t.warps[k] // 4, []).append(k)
    out: list[tuple[int, list[int], list[int]]] = []
    for group, members in groups.items():
        if len(members) == 4:
            out.append((1000 + group, [t.warps[k] for k in members], members))
        else:
            out += [(t.warps[k], [t.warps[k]], [k]) for k in members]
    return out


def _unit(t: Threads, key: int) -> Unit:
    unit = t.cta.wgmma.get(key)
    if unit is None:
        unit = t.cta.wgmma[key] = Unit()
    return unit


def _chain(t: Threads, key: int) -> tuple[Any, ...]:
    return (t.cta.cluster, "wgmma", t.cta.rank, key)


# ---------------------------------------------------------------------------------------------- register layout


def _lanes(positions: list[int]) -> slice | np.ndarray:
    if positions == list(range(positions[0], positions[0] + len(positions))):
        return slice(32 * positions[0], 32 * (positions[-1] + 1))
    return np.concatenate([np.arange(32 * k, 32 * k + 32) for k in positions])


def gather_d(registers: np.ndarray, half: bool, dtype: np.dtype) -> np.ndarray:
    """D of some warps, ``uint32[registers, 32 * warps]``, as ``dtype[16 * warps, N]``."""
    n, lanes = registers.shape
    warps = lanes // 32
    if half:
        x = np.ascontiguousarray(registers).view(np.float16).reshape(n // 2, 2, warps, 8, 4, 2)
        x = x.transpose(2, 1, 3, 0, 4, 5)
    else:
        x = np.ascontiguousarray(registers).view(dtype).reshape(n // 4, 2, 2, warps, 8, 4)
        x = x.transpose(3, 1, 4, 0, 5, 2)
    return np.ascontiguousarray(x).reshape(16 * warps, -1)


def scatter_d(d: np.ndarray, half: bool) -> np.ndarray:
    """The inverse of :func:`gather_d`."""
    rows, n = d.shape
    warps = rows // 16
    x = d.reshape(warps, 2, 8, n // 8, 4, 2)
    if half:
        x = np.ascontiguousarray(x.transpose(3, 1, 0, 2, 4, 5).astype(np.float16, copy=False))
        return x.view(_U32).reshape(n // 4, 32 * warps)
    return np.ascontiguousarray(x.transpose(3, 1, 5, 0, 2, 4)).view(_U32).reshape(n // 2, 32 * warps)


# ---------------------------------------------------------------------------------------------- the operation


@lru_cache(maxsize=4096)
def _chunks(value: int, rows: int, k: int, bits: int, major: Major) -> Any:
    d = SmemDescriptor.decode_wgmma(value)
    return hbm.Chunks(np.sort(np.unique(sd.chunk_addresses(d, rows, k, bits, major))), 16)


def _check(t: Threads, value: int, rows: int, k: int, fmt: Any, major: Major, name: str) -> SmemDescriptor:
    d = SmemDescriptor.decode_wgmma(value)
    problems = sd.problems(d, rows, k, fmt, major, len(t.cta.smem))
    if problems:
        raise DeviceFault(
            "wgmma.bad-descriptor",
            f"wgmma: the descriptor of {name} is wrong: {problems[0]}",
            "compare its address, offsets and swizzle with the layout of the tile",
            site=t.site,
        )
    return d


def _shape(mods: Mods) -> tuple[int, int]:
    n, k = mods["shape"].removeprefix("m64n").split("k")
    return int(n), int(k)


def _multiply(
    t: Threads, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, fa: Any, fb: Any, half: bool
) -> np.ndarray:
    if t.cta.machine.numerics == "exact":
        return tensor_core.mma_exact(a, b, c, fa, fb, "f16" if half else "f32", "wgmma").astype(np.float32)
    d = tensor_core.mma_fast(a, b, c)
    return d.astype(np.float16).astype(np.float32) if half else d


def _build(mods: Mods, from_registers: bool) -> Callable[..., None]:
    n, k = _shape(mods)
    if mods["atype"] == "b1":
        raise unsupported("wgmma", mods, "single-bit operands")
    fa, fb = formats.lookup(mods["atype"]), formats.lookup(mods["btype"])
    half, integer = mods["dtype"] == "f16", mods["dtype"] == "s32"
    saturate = "satfinite" in mods
    flops = 2 * 64 * n * k

    def op(t: Threads, d: Any, a: Any, b_desc: Value, scale_d: Value, *imm: Value) -> None:
        machine, cta = t.cta.machine, t.cta
        scale_a, scale_b = (int(imm[0]), int(imm[1])) if len(imm) >= 2 else (1, 1)
        major_b: Major = "MN" if len(imm) > 2 and int(imm[-1]) else "K"
        major_a: Major = "MN" if len(imm) > 3 and int(imm[2]) else "K"
        for key, warps, positions in _units(t):
            unit = _unit(t, key)
            lane0 = 32 * positions[0]
            where = _lanes(positions)
            _require_fence(t, unit)
            b_value = int(pick(b_desc, lane0)) & 0xFFFFFFFFFFFFFFFF
            smem_b = _check(t, b_value, n, k, fb, major_b, "B")
            reads = [(cta.rank, _chunks(b_value, n, k, fb.smem_bits, major_b))]
            a_registers, smem_a = None, None
            if from_registers:
                block = block_of(t, a, _U32)[:, where]
                a_registers = operand_a(block.reshape(4, -1, 32).transpose(1, 0, 2), _CARRIER[fa.bits], 16)
            else:
                a_value = int(pick(a, lane0)) & 0xFFFFFFFFFFFFFFFF
                smem_a = _check(t, a_value, 64, k, fa, major_a, "A")
                reads.append((cta.rank, _chunks(a_value, 64, k, fa.smem_bits, major_a)))
            accumulate = bool(pick(scale_d, lane0))
            if machine.trace is not None:
                machine.trace.add(machine, "wgmma", t.site, n, k, from_registers, len(warps))
                if machine.trace.dry:
                    continue
            flight = _take_off(unit, d, where, half, integer)
            machine.count("flops.wgmma", flops * len(warps) // 4)
            if cta.cluster.hb is not None:
                first = cta.rank * cta.num_warps
                cta.cluster.hb.wgmma(tuple(first + w for w in warps), t.rd_site, smem_reads=reads)
            rows = slice(None) if len(warps) == 4 else slice(16 * (warps[0] % 4), 16 * (warps[0] % 4) + 16)

            def complete(
                unit: Unit = unit, flight: Flight = flight, where: Any = where, rows: slice = rows, smem_a: Any = smem_a,
                smem_b: Any = smem_b, a_registers: Any = a_registers, accumulate: bool = accumulate,
            ) -> None:  # fmt: skip
                c = flight.value if accumulate else None
                if integer:
                    left = (
                        a_registers.reshape(-1, k).view(np.int8 if fa is formats.S8 else np.uint8)
                        if a_registers is not None
                        else sd.gather_operand(cta.smem, smem_a, 64, k, fa, major_a)[rows]
                    )
                    right = sd.gather_operand(cta.smem, smem_b, n, k, fb, major_b)
                    flight.value = tensor_core.mma_int8(left, right, c, saturate)
                else:
                    left = (
                        _float_operand(a_registers, fa).reshape(-1, k)
                        if a_registers is not None
                        else sd.gather_float32(cta.smem, smem_a, 64, k, fa, major_a)[rows]
                    )
                    right = sd.gather_float32(cta.smem, smem_b, n, k, fb, major_b)
                    if scale_a * scale_b < 0:
                        left = -left
                    flight.value = _multiply(t, left, right, c, fa, fb, half)
                flight.pending -= 1
                if flight.pending == 0:
                    _land(unit, flight, where)

            unit.open += 1
            machine.issue(_chain(t, key), complete, "wgmma.mma_async", t.site)

    return op


def _float_operand(x: np.ndarray, fmt: Any) -> np.ndarray:
    if fmt is formats.TF32:
        return (x & np.uint32(0xFFFFE000)).view(np.float32)
    if fmt is formats.F16:
        return x.view(np.float16).astype(np.float32)
    if fmt is formats.BF16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return formats.decode_table(fmt)[x]


def _address(d: np.ndarray) -> int:
    return int(d.__array_interface__["data"][0])


def _take_off(unit: Unit, d: np.ndarray, where: Any, half: bool, integer: bool) -> Flight:
    """The accumulators of an operation that is issued now; their registers turn to poison."""
    target = d[:, where] if isinstance(where, slice) else d
    key = _address(target), len(d)
    flight = unit.flights.get(key)
    if flight is None:
        value = gather_d(d[:, where], half, np.dtype(np.int32 if integer else np.float32))
        flight = unit.flights[key] = Flight(value.astype(np.float32) if half else value, d, half)
        d[:, where] = _POISON
    flight.pending += 1
    return flight


def _land(unit: Unit, flight: Flight, where: Any) -> None:
    flight.target[:, where] = scatter_d(flight.value, flight.half)
    for key, other in list(unit.flights.items()):
        if other is flight:
            del unit.flights[key]


def _require_fence(t: Threads, unit: Unit) -> None:
    if unit.fenced:
        return
    unit.fenced = True
    t.cta.machine.report(
        "wgmma.no-fence", "race",
        "wgmma.mma_async without a wgmma.fence before it: the accumulator registers may not be written yet",
        "execute wgmma.fence.sync.aligned before the first wgmma and after every access to its registers", t,
    )  # fmt: skip


_NAMES = ("f16", "f16_f16acc", "bf16", "tf32", "fp8", "fp8_f16acc", "int", "b1")


@instruction(
    *(f"ptx.wgmma_{name}_ss" for name in _NAMES),
    collective=True,
    counter="wgmma.mma_async",
    factory=True,
    in_place=True,
)
def wgmma_ss(mods: Mods) -> Callable[..., None]:
    """A and B from shared memory."""
    return _build(mods, False)


@instruction(
    *(f"ptx.wgmma_{name}_rs" for name in _NAMES),
    collective=True,
    counter="wgmma.mma_async",
    factory=True,
    in_place=True,
)
def wgmma_rs(mods: Mods) -> Callable[..., None]:
    """A from registers, B from shared memory."""
    return _build(mods, True)


@instruction("ptx.wgmma_fence", collective=True, counter="wgmma.fence")
def wgmma_fence(mods: Mods, t: Threads) -> None:
    """Orders register accesses before the wgmma operations that follow."""
    for key, _, _ in _units(t):
        _unit(t, key).fenced = True


@instruction("ptx.wgmma_commit_group", collective=True, counter="wgmma.commit_group")
def wgmma_commit_group(mods: Mods, t: Threads) -> None:
    for key, _, _ in _units(t):
        unit = _unit(t, key)
        unit.groups.append(unit.open)
        unit.open = 0
    trace = t.cta.machine.trace
    if trace is not None:
        trace.add(t.cta.machine, "wgmma_commit", t.site)
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.wgmma_commit_group(t.hb_warps())


@instruction("ptx.wgmma_wait_group", collective=True, counter="wgmma.wait_group")
def wgmma_wait_group(mods: Mods, t: Threads, count: Value) -> None:
    """Wait until at most ``count`` of the youngest groups are in flight; the registers of the others hold their results."""
    n = int(count)
    trace = t.cta.machine.trace
    if trace is not None:
        trace.add(t.cta.machine, "wgmma_wait", t.site, n)
    for key, _, _ in _units(t):
        unit = _unit(t, key)
        keep = unit.groups[len(unit.groups) - n :] if n else []
        t.cta.machine.complete_chain(_chain(t, key), sum(keep) + unit.open)
        unit.groups = list(keep)
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.wgmma_wait_group(t.hb_warps(), n)


@instruction("cuda.wgmma_encode_matrix_descriptor", destination=0)
def encode_matrix_descriptor(mods: Mods, t: Threads, pointer: Any, ldo: Any, sdo: Any, swizzle: Any) -> Any:
    """SMEM matrix descriptor of sm_90a; ``ldo`` and ``sdo`` are in units of 16 bytes, ``swizzle`` is TIRx's mode number."""
    code = {0: 0, 1: 3, 2: 2, 3: 1}.get(int(pick(swizzle, 0)))
    if code is None:
        raise DeviceFault(
            "wgmma.bad-descriptor",
            f"swizzle mode {swizzle} does not exist for wgmma",
            "use 0 (none), 1 (32B), 2 (64B) or 3 (128B)",
            site=t.site,
        )
    return matrix_descriptor(pointer, ldo, sdo, code << 62)


@instruction("cuda.wgmma_noop_barrier")
def noop_barrier(mods: Mods, t: Threads, register: Any) -> None:
    """A compiler barrier on one register: nothing to do."""
