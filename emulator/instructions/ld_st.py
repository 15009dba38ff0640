"""Loads and stores through pointers (PTX ISA, "Data Movement: ld, st"), scalar and vector."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator import runtime
from emulator.errors import UnsupportedInstruction
from emulator.instructions.registry import Mods, instruction
from emulator.machine.address import is_shared
from emulator.machine.memory import from_lanes, to_lanes
from emulator.threads import Threads

_PTX = {
    "b8": "uint8", "u8": "uint8", "s8": "int8", "b16": "uint16", "u16": "uint16", "s16": "int16", "b32": "uint32",
    "u32": "uint32", "s32": "int32", "b64": "uint64", "u64": "uint64", "s64": "int64", "f16": "float16", "f32": "float32",
    "f64": "float64", "b128": "uint128",
}  # fmt: skip


def _space(mods: Mods) -> str:
    if any(tok.startswith("shared") for tok in mods.tokens):
        return "shared"
    return "global" if "global" in mods else "generic"


def ptx_dtype(mods: Mods) -> str:
    """TIR dtype of the last type token of the instruction."""
    for token in reversed(mods.tokens):
        if token in _PTX:
            return _PTX[token]
    raise UnsupportedInstruction(f"ld/st{mods}", why="no type modifier")


def _order(mods: Mods) -> str | None:
    for token in ("acquire", "release", "relaxed"):
        if token in mods:
            return token
    return "relaxed" if "volatile" in mods or "mmio" in mods else None


def location_space(space: str, address: int) -> str:
    """The key space of a strong access; generic pointers resolve to the space they point to."""
    if space == "generic":
        return "shared" if is_shared(address) else "global"
    return space


def strong_access(t: Threads, space: str, address: Any, order: str) -> None:
    """Strong accesses (atomics, ld.acquire, st.release, relaxed and volatile ones) order through their location."""
    hb = t.cta.cluster.hb
    if hb is None:
        return
    first = t.cta.rank * t.cta.num_warps
    seen: set[tuple[int, int]] = set()
    for tid, addr in t.rows(t.tid, address):
        key = (int(tid) // 32, int(addr))
        if key not in seen:
            seen.add(key)
            hb.sync_location(first + key[0], (location_space(space, key[1]), key[1]), order)


@instruction("ptx.ld", "ptx.ldu", counter=None, factory=True)
def ld(mods: Mods) -> Any:
    """Scalar load."""
    dtype, space, order = ptx_dtype(mods), _space(mods), _order(mods)
    np_type, counter = runtime._DTYPES[dtype], f"ld.{_space(mods)}"

    def load(t: Threads, address: Any, *extra: Any) -> Any:
        t.count_op(counter)
        if runtime._nothing_active(t):
            return np.zeros(t.count, dtype=np.int64)
        view, index, _ = runtime.access(t, np_type, address, space, False, atomic=order is not None)
        if space == "global":
            runtime.count_bytes(t, "bytes.global.load", np_type.itemsize)
        if order is not None:
            strong_access(t, space, address, order)
        return to_lanes(runtime._spread(t, address, view[index]), dtype)

    return load


@instruction("ptx.st", counter=None, factory=True)
def st(mods: Mods) -> Any:
    """Scalar store."""
    dtype, space, order = ptx_dtype(mods), _space(mods), _order(mods)
    np_type, counter = runtime._DTYPES[dtype], f"st.{_space(mods)}"

    def store(t: Threads, address: Any, value: Any, *extra: Any) -> None:
        if isinstance(value, tuple):
            value = value[0]
        t.count_op(counter)
        if runtime._nothing_active(t):
            return
        if order is not None:
            strong_access(t, space, address, order)
        view, index, _ = runtime.access(t, np_type, address, space, True, atomic=order is not None)
        if space == "global":
            runtime.count_bytes(t, "bytes.global.store", np_type.itemsize)
        if order is None:
            runtime.put(t, view, index, value, np_type, space, address)
        else:
            value = t.compact(value) if isinstance(index, np.ndarray) else runtime.pick_last(t, value)
            view[index] = from_lanes(value, np_type)
        t.cta.machine.progress += 1

    return store


_WIDE: dict[int, np.dtype[Any]] = {
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}


@instruction("ptx.ld_vec", "ptx.ld_vec256", "ptx.ldu_vec", counter=None, factory=True)
def ld_vec(mods: Mods) -> Any:
    """Vector load of 2 to 8 registers: ``[n, L]`` of the element type."""
    n = int(next(tok for tok in mods.tokens if tok in ("v2", "v4", "v8"))[1:])
    np_type, space, counter = runtime._DTYPES[ptx_dtype(mods)], _space(mods), f"ld.{_space(mods)}"
    size = np_type.itemsize * n
    wide = _WIDE.get(size, np.dtype(f"V{size}"))

    def load(t: Threads, address: Any, *extra: Any) -> Any:
        t.count_op(counter)
        if runtime._nothing_active(t):
            return np.zeros((n, t.count), dtype=np_type)
        view, index, _ = runtime.access(t, wide, address, space, False)
        block = np.ascontiguousarray(view[index]).reshape(-1, 1).view(np_type)
        if space == "global":
            runtime.count_bytes(t, "bytes.global.load", size)
        if not (isinstance(address, np.ndarray) and address.ndim):
            return block[0] if t.lane is not None else np.repeat(block.reshape(n, 1), t.count, axis=1)
        return np.ascontiguousarray(runtime._spread(t, address, block).T)

    return load


def block_of(t: Threads, group: Any, np_type: np.dtype) -> np.ndarray:
    """A register group as ``[n, L]`` (``[n, 1]`` in single-lane code)."""
    if isinstance(group, np.ndarray):
        block = (
            group
            if group.dtype == np_type
            else group.view(np_type)
            if group.dtype.itemsize == np_type.itemsize
            else group.astype(np_type)
        )
        return block.reshape(len(block), -1)
    rows = []
    for v in group:
        if isinstance(v, np.ndarray) and v.ndim:
            rows.append(v.astype(np_type) if v.dtype != np_type else v)
        else:
            rows.append(np.full(t.count, from_lanes(v, np_type), dtype=np_type))
    return np.stack(rows)


@instruction("ptx.st_vec", "ptx.st_vec256", counter=None, factory=True)
def st_vec(mods: Mods) -> Any:
    """Vector store of 2 to 8 registers."""
    np_type, space, counter = runtime._DTYPES[ptx_dtype(mods)], _space(mods), f"st.{_space(mods)}"

    def store(t: Threads, address: Any, group: Any, *extra: Any) -> None:
        t.count_op(counter)
        if runtime._nothing_active(t):
            return
        block = block_of(t, group, np_type)
        size = np_type.itemsize * len(block)
        wide = _WIDE.get(size, np.dtype(f"V{size}"))
        view, index, _ = runtime.access(t, wide, address, space, True)
        if space == "global":
            runtime.count_bytes(t, "bytes.global.store", size)
        values = np.ascontiguousarray(block.T).view(wide)[:, 0]
        if isinstance(index, np.ndarray) and index.ndim:
            values = values if t.mask is None else values[t.mask]
            view[index] = values
        else:
            view[index] = runtime.pick_last(t, values)
        if t.lane is None and t.cta.cluster.hb is not None:
            runtime.check_lanes(t, view, index, values, space, address)
        t.cta.machine.progress += 1

    return store
