"""CUDA builtins that TIRx exposes as ``T.cuda.*`` (``tvm/backend/cuda/cpp``): packed floats, votes, special registers, ``printf``."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any

import ml_dtypes
import numpy as np

from emulator import runtime
from emulator.errors import DeviceFault
from emulator.instructions.barrier import ALL, _sync_by_id
from emulator.instructions.compare import float_extreme
from emulator.instructions.convert import on_arrays
from emulator.instructions.registers import PACKED, elementwise, is_vector, packed, parts, unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.instructions.warp import by_warp, participants
from emulator.lanes import M32, Value, bits_float, float_bits, hi32, lo32
from emulator.numerics import convert, special
from emulator.scheduler import Wait
from emulator.threads import Threads

ndarray = np.ndarray
Op = Callable[..., Value]

# ---------------------------------------------------------------------------------------------- packed floats


@instruction("cuda.make_float2", pure=True)
def make_float2(mods: Mods) -> Op:
    """Two float32 in one 64-bit register, x in the low half."""

    def op(x: Value, y: Value) -> Value:
        if not is_vector(x, y):
            return float_bits(x, "float32") | float_bits(y, "float32") << 32
        length = len(x) if is_vector(x) else len(y)
        both = np.empty((length, 2), dtype=np.float32)
        both[:, 0] = x
        both[:, 1] = y
        return both.view(np.uint64)[:, 0]

    return op


@instruction("cuda.float2_x", pure=True)
def float2_x(mods: Mods) -> Op:
    carrier, element = PACKED["f32x2"]
    return lambda a: parts(a, carrier, element)[:, 0] if is_vector(a) else bits_float(lo32(a), "float32")


@instruction("cuda.float2_y", pure=True)
def float2_y(mods: Mods) -> Op:
    carrier, element = PACKED["f32x2"]
    return lambda a: parts(a, carrier, element)[:, 1] if is_vector(a) else bits_float(hi32(a), "float32")


@instruction("cuda.fmul2_rn", pure=True)
def fmul2_rn(mods: Mods) -> Op:
    return elementwise(lambda a, b: a * b, "f32x2")


@instruction("cuda.fadd2_rn", pure=True)
def fadd2_rn(mods: Mods) -> Op:
    return elementwise(lambda a, b: a + b, "f32x2")


def _bf16x2(lo: ndarray, hi: ndarray) -> ndarray:
    return convert.pack2(hi, lo, "bf16").astype(np.int64)


@instruction("cuda.float22bfloat162_rn", pure=True)
def float22bfloat162_rn(mods: Mods) -> Op:
    """Two float32 to a bf16x2, x in the low half."""
    return on_arrays(_bf16x2)


@instruction("cuda.float22bfloat162_rn_from_float2", pure=True)
def float22bfloat162_rn_from_float2(mods: Mods) -> Op:
    carrier, element = PACKED["f32x2"]

    def op(a: Value) -> Value:
        pair = parts(a, carrier, element).astype(ml_dtypes.bfloat16)
        return packed(pair, np.dtype(np.uint32), is_vector(a))

    return op


@instruction("cuda.bfloat1622float2", pure=True)
def bfloat1622float2(mods: Mods) -> Op:
    carrier, element = PACKED["bf16x2"]
    return lambda a: packed(parts(a, carrier, element).astype(np.float32), np.dtype(np.uint64), is_vector(a))


@instruction("cuda.hmin2", pure=True)
def hmin2(mods: Mods) -> Op:
    """``__hmin2`` on bf16x2: the number wins over NaN."""
    return elementwise(float_extreme(Mods(), "bf16x2", False), "bf16x2")


@instruction("cuda.hmax2", pure=True)
def hmax2(mods: Mods) -> Op:
    return elementwise(float_extreme(Mods(), "bf16x2", True), "bf16x2")


@instruction("cuda.fp8x4_e4m3_from_float4", pure=True)
def fp8x4_e4m3_from_float4(mods: Mods) -> Op:
    """Four float32 to e4m3, saturating, x in the low byte."""

    def change(x: ndarray, y: ndarray, z: ndarray, w: ndarray) -> ndarray:
        low = convert.pack2(y, x, "e4m3", "rn", True).astype(np.int64)
        high = convert.pack2(w, z, "e4m3", "rn", True).astype(np.int64)
        return low | high << 16

    return on_arrays(change)


@instruction("cuda.uint_as_float", pure=True)
def uint_as_float(mods: Mods) -> Op:
    return lambda a: bits_float(a, "float32")


@instruction("cuda.float_as_uint", pure=True)
def float_as_uint(mods: Mods) -> Op:
    return lambda a: float_bits(a, "float32")


@instruction("cuda.half2float", "cuda.bfloat162float", pure=True)
def half2float(mods: Mods) -> Op:
    return lambda a: a.astype(np.float32)


@instruction("cuda.fdividef", pure=True)
def fdividef(mods: Mods) -> Op:
    """``__fdividef``: ``div.approx.f32``."""
    return lambda x, y: special.div(x, y)[()]


@instruction("cuda.ffs_u32", pure=True)
def ffs_u32(mods: Mods) -> Op:
    """Position of the least significant set bit plus one, 0 for 0."""

    def op(a: Value) -> Value:
        if not is_vector(a):
            a = int(a) & M32
            return (a & -a).bit_length()
        low = a & -a
        return np.where(a == 0, 0, np.frexp(low.astype(np.float64))[1]).astype(np.int64)

    return op


@instruction("cuda.smem_addr_from_uint64", pure=True)
def smem_addr_from_uint64(mods: Mods) -> Op:
    return lambda a: (a.astype(np.int64) if isinstance(a, ndarray) else int(a)) & M32


# ---------------------------------------------------------------------------------------------- pointers to registers


def _copy_converted(source: str, target: str, count: int) -> Callable[..., None]:
    dtype = runtime._DTYPES[target]

    def fn(mods: Mods, t: Threads, dst: Any, src: Any) -> None:
        dst.write(target, src.read(source, count).astype(dtype))

    return fn


instruction("cuda.float22half2")(_copy_converted("float32", "float16", 2))


@instruction("cuda.half8tofloat8")
def half8tofloat8(mods: Mods, t: Threads, src: Any, dst: Any) -> None:
    """Eight halves to eight floats, through pointers to registers."""
    dst.write("float32", src.read("float16", 8).astype(np.float32))


@instruction("cuda.float8tohalf8")
def float8tohalf8(mods: Mods, t: Threads, src: Any, dst: Any) -> None:
    dst.write("float16", src.read("float32", 8).astype(np.float16))


# ---------------------------------------------------------------------------------------------- loads


@instruction("cuda.ldg", factory=True)
def ldg(mods: Mods) -> Callable[..., Any]:
    """``__ldg``: a read-only load from global memory, scalar or into two or four pointers."""
    dtype = mods.tokens[0]
    vec = mods.tokens[1] if len(mods.tokens) > 1 else ""
    np_type = runtime._DTYPES[dtype]
    if not vec:
        return lambda t, address: runtime.ld_global(t, dtype, address)
    count = int(vec[1:])
    wide = {8: np.dtype(np.uint64), 16: np.dtype(np.complex128)}[np_type.itemsize * count]

    def op(t: Threads, *operands: Any) -> None:
        targets, address = operands[:count], operands[count]
        t.count_op("ld.global")
        view, index, _ = runtime.access(t, wide, address, "global", False)
        runtime.count_bytes(t, "bytes.global.load", wide.itemsize)
        block = np.asarray(view[index]).reshape(-1, 1).view(np_type)
        block = runtime._spread(t, address, block)
        for k, target in enumerate(targets):
            row = block[:, k]
            target.write(dtype, row if t.lane is not None else np.broadcast_to(row, t.count).reshape(1, -1))

    return op


# ---------------------------------------------------------------------------------------------- special registers


@instruction("cuda.mov_sreg", factory=True, varies=True)
def mov_sreg(mods: Mods) -> Callable[..., Any]:
    """A special register (PTX ISA, "Special Registers")."""
    name = mods.tokens[0].lstrip("%")
    read = _SPECIAL.get(name)
    if read is None:
        raise unsupported(f"mov %{name}", Mods())
    return lambda t, bits=32: read(t)


def _axis(values: Callable[[Threads], tuple[Any, Any, Any]], axis: int) -> Callable[[Threads], Value]:
    return lambda t: values(t)[axis]


def _cluster_position(t: Threads) -> tuple[int, int, int]:
    shape = t.cta.cluster.shape
    x, y, z = t.cta.block_idx
    return x // shape[0], y // shape[1], z // shape[2]


def _clock(t: Threads) -> int:
    """A clock that only moves forward: scheduler steps stand in for cycles."""
    machine = t.cta.machine
    machine.progress += 1
    return machine.progress * 16


def _lane_mask(fn: Callable[[Any], Any]) -> Callable[[Threads], Value]:
    return lambda t: fn(np.asarray(t.tid) % 32) & M32 if t.lane is None else int(fn(int(t.tid) % 32)) & M32


_SPECIAL: dict[str, Callable[[Threads], Value]] = {
    "tid.x": lambda t: t.tid,
    "tid.y": lambda t: 0,
    "tid.z": lambda t: 0,
    "ntid.x": lambda t: t.cta.machine.num_threads,
    "ntid.y": lambda t: 1,
    "ntid.z": lambda t: 1,
    "laneid": lambda t: t.tid % 32,
    "warpid": lambda t: t.tid // 32,
    "nwarpid": lambda t: t.cta.num_warps,
    "smid": lambda t: t.cta.linear % 148,
    "nsmid": lambda t: 148,
    "cluster_ctarank": lambda t: t.cta.rank,
    "cluster_nctarank": lambda t: len(t.cta.cluster.ctas),
    "clusterid.x": _axis(_cluster_position, 0),
    "clusterid.y": _axis(_cluster_position, 1),
    "clusterid.z": _axis(_cluster_position, 2),
    "nclusterid.x": lambda t: t.cta.machine.cluster_grid[0],
    "nclusterid.y": lambda t: t.cta.machine.cluster_grid[1],
    "nclusterid.z": lambda t: t.cta.machine.cluster_grid[2],
    "dynamic_smem_size": lambda t: t.cta.machine.smem_bytes,
    "total_smem_size": lambda t: t.cta.machine.smem_bytes + t.cta.machine.static_smem,
    "clock": _clock,
    "clock64": _clock,
    "globaltimer": _clock,
    "globaltimer_lo": _clock,
    "globaltimer_hi": lambda t: 0,
    "lanemask_eq": _lane_mask(lambda k: 1 << k),
    "lanemask_lt": _lane_mask(lambda k: (1 << k) - 1),
    "lanemask_le": _lane_mask(lambda k: (2 << k) - 1),
    "lanemask_gt": _lane_mask(lambda k: ~((2 << k) - 1)),
    "lanemask_ge": _lane_mask(lambda k: ~((1 << k) - 1)),
    **{f"ctaid.{axis}": _axis(lambda t: t.cta.block_idx, k) for k, axis in enumerate("xyz")},
    **{f"nctaid.{axis}": _axis(lambda t: t.cta.machine.grid, k) for k, axis in enumerate("xyz")},
    **{f"cluster_ctaid.{axis}": _axis(lambda t: t.cta.cluster_idx, k) for k, axis in enumerate("xyz")},
    **{f"cluster_nctaid.{axis}": _axis(lambda t: t.cta.cluster.shape, k) for k, axis in enumerate("xyz")},
}


@instruction("cuda.clock64", varies=True)
def clock64(mods: Mods, t: Threads) -> int:
    return _clock(t)


@instruction("cuda.nano_sleep", blocking=True)
def nano_sleep(mods: Mods, t: Threads, time: Value) -> Generator[Wait, None, None]:
    """Let others run first."""
    yield runtime.spin(t)


# ---------------------------------------------------------------------------------------------- CTA-wide votes


def reduce_over_barrier(
    t: Threads, index: Value, count: Value, predicate: Value
) -> Generator[Wait, None, dict[int, tuple[int, int]]]:
    """bar.red: (threads whose predicate holds, threads) over everybody who meets at the barrier, per barrier id."""
    true = (by_warp(t, predicate) != 0) & participants(t)
    ids = dict(t.per_warp(index))
    votes = t.cta.votes
    tickets: dict[int, tuple[int, int]] = {}
    for k, w in enumerate(t.warps):
        if w not in ids:
            continue
        i = int(ids[w])
        key = (i, t.cta.named_barrier(i).generation)
        tickets[i] = key
        entry = votes.setdefault(key, [0, 0])
        entry[0] += int(np.count_nonzero(true[k]))
        entry[1] += 32
    yield from _sync_by_id(t, index, count)
    result = {i: tuple(votes[key]) for i, key in tickets.items()}
    for i, key in tickets.items():
        votes.pop((i, key[1] - 2), None)
    return result  # type: ignore[return-value]


def _per_warp_result(
    t: Threads, index: Value, totals: dict[int, tuple[int, int]], fn: Callable[[int, int], int]
) -> Value:
    values = [fn(*totals[int(i)]) for _, i in t.per_warp(index)]
    if len(set(values)) == 1:
        return values[0]
    out = np.zeros(t.count, dtype=np.int64)
    positions = [k for k, w in enumerate(t.warps) if w in dict(t.per_warp(index))]
    for k, v in zip(positions, values, strict=True):
        out[32 * k : 32 * k + 32] = v
    return out


_VOTES: dict[str, Callable[[int, int], int]] = {
    "popc": lambda true, n: true, "and": lambda true, n: int(true == n), "or": lambda true, n: int(true > 0),
}  # fmt: skip


def _vote(name: str) -> Callable[..., Any]:
    def fn(mods: Mods, t: Threads, predicate: Value) -> Generator[Wait, None, Value]:
        t.require_whole_warps(f"__syncthreads_{name}")
        totals = yield from reduce_over_barrier(t, 0, ALL, predicate)
        return _per_warp_result(t, 0, totals, _VOTES[name])

    return fn


instruction("cuda.syncthreads_and", blocking=True, collective=True, counter="bar.red")(_vote("and"))
instruction("cuda.syncthreads_or", blocking=True, collective=True, counter="bar.red")(_vote("or"))


@instruction(
    "ptx.bar_red_popc",
    "ptx.bar_red_pred",
    "ptx.barrier_red_popc",
    "ptx.barrier_red_pred",
    blocking=True,
    collective=True,
    counter="bar.red",
)
def bar_red(mods: Mods, t: Threads, index: Value, predicate: Value) -> Generator[Wait, None, Value]:
    """``bar.red.{popc,and,or}`` over all threads of the CTA."""
    return (yield from bar_red_count(mods, t, index, ALL, predicate))


@instruction(
    "ptx.bar_red_popc_count", "ptx.bar_red_pred_count", "ptx.barrier_red_popc_count", "ptx.barrier_red_pred_count",
    blocking=True, collective=True, counter="bar.red",
)  # fmt: skip
def bar_red_count(
    mods: Mods, t: Threads, index: Value, count: Value, predicate: Value
) -> Generator[Wait, None, Value]:
    t.require_whole_warps("bar.red")
    totals = yield from reduce_over_barrier(t, index, count, predicate)
    return _per_warp_result(t, index, totals, _VOTES[mods["op"]])


# ---------------------------------------------------------------------------------------------- grid barrier


class GridWait(Wait):
    """Warps blocked in the grid barrier."""

    __slots__ = ("generation", "machine", "site", "warps")
    kind = "grid.sync"

    def __init__(self, machine: Any, generation: int, site: int, warps: list[int]) -> None:
        self.machine = machine
        self.generation = generation
        self.site = site
        self.warps = warps

    def ready(self) -> bool:
        return self.machine.grid_generation > self.generation


@instruction("cuda.grid_sync", blocking=True, collective=True, counter="grid.sync")
def grid_sync(mods: Mods, t: Threads) -> Generator[Wait, None, None]:
    """Cooperative groups' ``this_grid().sync()``: every thread of every CTA of the grid."""
    t.require_whole_warps("grid_sync")
    machine, hb = t.cta.machine, t.cta.cluster.hb
    generation = machine.grid_generation
    warps = t.active_warps()
    first = t.cta.rank * t.cta.num_warps
    key = ("grid.sync", generation)
    if hb is not None:
        for w in warps:
            hb.sync_location(first + w, key, "release")
    machine.grid_arrived += len(warps)
    machine.progress += 1
    gx, gy, gz = machine.grid
    if machine.grid_arrived == gx * gy * gz * machine.num_warps:
        machine.grid_arrived = 0
        machine.grid_generation += 1
    while machine.grid_generation <= generation:
        yield GridWait(machine, generation, t.site, warps)
    if hb is not None:
        for w in warps:
            hb.sync_location(first + w, key, "acquire")


# ---------------------------------------------------------------------------------------------- debugging


@instruction("cuda.trap_when_assert_failed")
def trap_when_assert_failed(mods: Mods, t: Threads, condition: Value) -> None:
    """``trap`` in the threads whose condition is false."""
    if isinstance(condition, ndarray):
        failed = (condition == 0) if t.mask is None else (condition == 0) & t.mask
        lanes = np.flatnonzero(failed)
        if not len(lanes):
            return
        tid = int(np.asarray(t.tid)[lanes[0]])
    else:
        if condition or runtime._nothing_active(t):
            return
        tid = int(np.asarray(t.tid).flat[t.active_indices()[0] if t.lane is None else 0])
    raise DeviceFault(
        "assert.failed",
        f"an assertion of the kernel failed in thread {tid} of CTA {t.cta.linear}",
        "the kernel itself checks this condition: see the line",
        site=t.site,
    )


_SPEC = re.compile(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j|t|L)?[diouxXeEfFgGcsp])")


def format_c(fmt: str, args: list[Any]) -> str:
    """C's ``printf`` on Python values."""
    values = iter(args)

    def one(match: re.Match[str]) -> str:
        spec = match.group(0)
        if spec == "%%":
            return "%"
        value = next(values)
        plain = re.sub(r"(hh|h|ll|l|z|j|t|L)(?=[a-zA-Z]$)", "", spec)
        if plain[-1] in "iu":
            plain = plain[:-1] + "d"
        if plain[-1] == "p":
            return hex(int(value))
        if plain[-1] == "c":
            return chr(int(value))
        return plain % (
            float(value) if plain[-1] in "eEfFgG" else int(value) if plain[-1] in "dxXo" else value
        )

    return _SPEC.sub(one, fmt)


@instruction("cuda.printf", factory=True)
def printf(mods: Mods) -> Callable[..., None]:
    """One line per active thread, appended to ``machine.printed``."""
    fmt = mods.tokens[0]

    def op(t: Threads, *args: Value) -> None:
        for row in t.rows(t.tid, *args):
            t.cta.machine.print(format_c(fmt, list(row[1:])))

    return op
