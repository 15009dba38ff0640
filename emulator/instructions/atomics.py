"""Atomics and reductions on memory (PTX ISA, "atom", "red"; CUDA ``atomicAdd``, ``atomicCAS``).

Lanes of one instruction that hit the same address take effect one after another, in lane order (hardware leaves the
order open).  An atomic is a strong access: it orders other threads through its location as its semantics say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from emulator import runtime
from emulator.instructions.ld_st import strong_access
from emulator.instructions.registers import FLOATS, is_vector, unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value
from emulator.machine.memory import from_lanes
from emulator.threads import Threads

ndarray = np.ndarray
Update = Callable[[Any, Any], Any]  # (old values, operands) -> new values, elementwise


def _space(mods: Mods) -> str:
    if any(tok.startswith("shared") for tok in mods.tokens):
        return "shared"
    return "global" if "global" in mods else "generic"


def _order(mods: Mods) -> str:
    return mods["sem"] or "relaxed"


# ---------------------------------------------------------------------------------------------- element types

_DTYPES: dict[str, np.dtype] = {
    "b16": np.dtype(np.uint16), "b32": np.dtype(np.uint32), "b64": np.dtype(np.uint64), "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64), "s32": np.dtype(np.int32), "s64": np.dtype(np.int64), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16x2": np.dtype(np.uint32), "bf16x2": np.dtype(np.uint32), "b128": np.dtype("V16"),
}  # fmt: skip


def memory_dtype(ptx_type: str) -> np.dtype:
    """How an element of a PTX type lies in memory."""
    return _DTYPES[ptx_type]


def _inc(old: Any, value: Any) -> Any:
    """``old >= value ? 0 : old + 1``."""
    return np.where(old >= value, np.zeros((), old.dtype), old + old.dtype.type(1))


def _dec(old: Any, value: Any) -> Any:
    """``old == 0 or old > value ? value : old - 1``."""
    return np.where((old == 0) | (old > value), value, old - old.dtype.type(1))


_UPDATES: dict[str, Update] = {
    "add": lambda old, v: old + v, "and": lambda old, v: old & v, "or": lambda old, v: old | v, "xor": lambda old, v: old ^ v,
    "min": np.minimum, "max": np.maximum, "inc": _inc, "dec": _dec, "exch": lambda old, v: v,
}  # fmt: skip
_UFUNC = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


def update_of(op: str, ptx_type: str, mods: Mods) -> tuple[np.dtype, Update]:
    """(memory dtype, elementwise update) of an atomic operation.

    Raises:
        UnsupportedInstruction: an operation that PTX does not define for the type.
    """
    dtype = _DTYPES.get(ptx_type)
    if dtype is None or op not in _UPDATES:
        raise unsupported(f"atom.{op}", mods)
    if ptx_type in ("f16x2", "bf16x2"):
        element = FLOATS[ptx_type[:-2]]
        inner = _half(op)

        def packed(old: Any, v: Any) -> Any:
            a = np.ascontiguousarray(old).reshape(-1, 1).view(element)
            b = np.ascontiguousarray(v).reshape(-1, 1).view(element)
            return np.ascontiguousarray(inner(a, b)).view(np.uint32)[:, 0]

        return dtype, packed
    if ptx_type in ("f16", "bf16"):
        return dtype, _half(op)
    if ptx_type in ("f32", "f64") and op in ("min", "max"):
        return dtype, np.fmin if op == "min" else np.fmax
    return dtype, _UPDATES[op]


def _half(op: str) -> Update:
    """16-bit floats, through float32 (exact before the one rounding)."""
    if op == "add":
        return lambda a, b: (a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype)
    pick = np.fmin if op == "min" else np.fmax
    return lambda a, b: pick(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)


def operand_array(value: Value, dtype: np.dtype, lanes: int) -> ndarray:
    """An operand in the memory dtype, one per active lane."""
    if is_vector(value):
        if dtype == FLOATS["bf16"]:
            return value.astype(np.uint16).view(dtype)
        if dtype.kind == "f" and value.dtype.kind in "iu":
            return value.astype(f"u{dtype.itemsize}").view(dtype)
        return value.astype(dtype, copy=False)
    if dtype == FLOATS["bf16"]:
        return np.full(lanes, int(value), dtype=np.uint16).view(dtype)
    return np.full(lanes, from_lanes(value, dtype), dtype=dtype)


def _register(old: ndarray, dtype: np.dtype) -> Value:
    """Old memory values as destination registers."""
    if dtype == FLOATS["bf16"]:
        return old.view(np.uint16).astype(np.int64)
    if dtype.kind == "f" or dtype == np.uint64:
        return old
    return old.astype(np.int64)


# ---------------------------------------------------------------------------------------------- the access


def _on_lanes(update: Callable[..., ndarray], operand: ndarray) -> Callable[[ndarray, Any], ndarray]:
    """What the lanes with positions ``mine`` make of the old values."""
    return lambda before, mine: update(before, operand[mine])


def perform(
    t: Threads,
    space: str,
    order: str,
    address: Value,
    dtype: np.dtype,
    apply: Callable[[ndarray, ndarray], ndarray],
) -> Value:
    """One atomic access per active lane: ``apply(old values, active lane positions) -> new values``; returns the old ones.

    Lanes with different addresses are one vector operation; lanes that share an address take turns.
    """
    if runtime._nothing_active(t):
        return np.zeros(t.count, dtype=np.int64)
    strong_access(t, space, address, order)
    view, index, _ = runtime.access(t, dtype, address, space, True, atomic=True)
    lanes = t.active_count()
    if not is_vector(index):
        index = np.full(lanes, int(index), dtype=np.int64)
    positions = np.arange(lanes)
    old = np.empty(lanes, dtype=dtype)
    unique = lanes == 1 or len(np.unique(index)) == lanes
    if unique:
        old[...] = view[index]
        view[index] = apply(old, positions)
    else:
        turn = _turns(index)
        for k in range(int(turn.max()) + 1):
            mine = positions[turn == k]
            before = view[index[mine]]
            old[mine] = before
            view[index[mine]] = apply(before, mine)
    t.cta.machine.progress += 1
    if t.lane is not None:
        value = _register(old, dtype)[0]
        return value if value.dtype.kind == "f" else value.item()
    result = _register(old, dtype)
    if t.mask is None:
        return result
    out = np.zeros(t.count, dtype=result.dtype)
    out[t.mask] = result
    return out


def _turns(index: ndarray) -> ndarray:
    """How many earlier lanes hit the same element, per lane."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    start = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    position = np.arange(len(index))
    rank = position - np.maximum.accumulate(np.where(start, position, 0))
    turn = np.empty(len(index), dtype=np.int64)
    turn[order] = rank
    return turn


def _reduce_duplicates(
    t: Threads, space: str, order: str, address: Value, dtype: np.dtype, op: str, operand: ndarray
) -> bool:
    """``red`` of an integer operation that NumPy can scatter: all lanes at once.  False: not applicable."""
    ufunc = _UFUNC.get(op)
    if ufunc is None:
        return False
    strong_access(t, space, address, order)
    view, index, _ = runtime.access(t, dtype, address, space, True, atomic=True)
    if not is_vector(index):
        index = np.full(len(operand), int(index), dtype=np.int64)
    ufunc.at(view, index, operand)
    t.cta.machine.progress += 1
    return True


def _atomic(mods: Mods, op: str, returns: bool) -> Callable[..., Any]:
    space, order = _space(mods), _order(mods)
    dtype, update = update_of(op, mods["type"], mods)
    name = ("atom." if returns else "red.") + (space if space != "generic" else "global")
    scatters = (
        not returns and mods["type"][0] in "usb" and dtype.kind in "iu" and not mods["type"].startswith("bf")
    )

    def run(t: Threads, address: Value, value: Value, policy: Any = ()) -> Value:
        t.count_op(name)
        if runtime._nothing_active(t):
            return np.zeros(t.count, dtype=np.int64)
        operand = operand_array(t.compact(value), dtype, t.active_count())
        if scatters and _reduce_duplicates(t, space, order, address, dtype, op, operand):
            return None
        old = perform(
            t,
            space,
            order,
            address,
            dtype,
            _on_lanes(update, operand),
        )
        return old if returns else None

    return run


@instruction("ptx.atom", "ptx.atom_half", "ptx.atom_f32_noftz", factory=True)
def atom(mods: Mods) -> Callable[..., Any]:
    """``atom.{and,or,xor,add,inc,dec,min,max}``: returns the old value."""
    return _atomic(mods, mods["op"], True)


@instruction("ptx.atom_exch", factory=True)
def atom_exch(mods: Mods) -> Callable[..., Any]:
    if mods["type"] == "b128":
        raise unsupported("atom.exch", mods)
    return _atomic(mods, "exch", True)


@instruction(
    "ptx.red", "ptx.red_half", "ptx.red_f32_noftz", "ptx.atom_bitbucket", "ptx.atom_half_bitbucket", "ptx.atom_f32_noftz_bitbucket",
    factory=True,
)  # fmt: skip
def red(mods: Mods) -> Callable[..., Any]:
    """``red`` and atomics whose result is discarded."""
    return _atomic(mods, mods["op"], False)


@instruction("ptx.atom_exch_bitbucket", factory=True)
def atom_exch_bitbucket(mods: Mods) -> Callable[..., Any]:
    if mods["type"] == "b128":
        raise unsupported("atom.exch", mods)
    return _atomic(mods, "exch", False)


def _cas(mods: Mods, returns: bool) -> Callable[..., Any]:
    space, order = _space(mods), _order(mods)
    if mods["type"] == "b128":
        raise unsupported("atom.cas", mods)
    dtype = _DTYPES[mods["type"]]
    name = "atom." + (space if space != "generic" else "global")

    def run(t: Threads, address: Value, compare: Value, value: Value) -> Value:
        t.count_op(name)
        if runtime._nothing_active(t):
            return np.zeros(t.count, dtype=np.int64)
        lanes = t.active_count()
        expected, new = (
            operand_array(t.compact(compare), dtype, lanes),
            operand_array(t.compact(value), dtype, lanes),
        )
        old = perform(
            t,
            space,
            order,
            address,
            dtype,
            lambda before, mine: np.where(before == expected[mine], new[mine], before),
        )
        return old if returns else None

    return run


@instruction("ptx.atom_cas", factory=True)
def atom_cas(mods: Mods) -> Callable[..., Any]:
    """``old == compare ? value : old``; returns the old value."""
    return _cas(mods, True)


@instruction("ptx.atom_cas_bitbucket", factory=True)
def atom_cas_bitbucket(mods: Mods) -> Callable[..., Any]:
    return _cas(mods, False)


def _vector(mods: Mods, returns: bool) -> Callable[..., Any]:
    """Vector atomics: atomic per element."""
    space, order = _space(mods), _order(mods)
    dtype, update = update_of(mods["op"], mods["type"], mods)
    count = int(mods["vec"][1:])
    name = ("atom." if returns else "red.") + (space if space != "generic" else "global")

    def run(t: Threads, address: Value, group: Any, policy: Any = ()) -> Any:
        t.count_op(name)
        if runtime._nothing_active(t):
            return [np.zeros(t.count, dtype=dtype)] * count
        old = []
        for k in range(count):
            operand = operand_array(t.compact(_element(group[k], dtype)), dtype, t.active_count())
            old.append(
                perform(
                    t,
                    space,
                    order,
                    address + k * dtype.itemsize,
                    dtype,
                    _on_lanes(update, operand),
                )
            )
        return old if returns else None

    return run


def _element(x: Any, dtype: np.dtype) -> Any:
    """A row of a register block: bits of a 4-byte float are a float."""
    if getattr(x, "dtype", None) == np.uint32 and dtype == np.float32:
        return x.view(np.float32)
    return x


@instruction("ptx.atom_vec_f32", "ptx.atom_vec_half", "ptx.atom_vec_f32_noftz", factory=True)
def atom_vec(mods: Mods) -> Callable[..., Any]:
    return _vector(mods, True)


@instruction(
    "ptx.red_vec_f32", "ptx.red_vec_half", "ptx.red_vec_f32_noftz", "ptx.atom_vec_half_bitbucket", "ptx.atom_vec_f32_bitbucket",
    "ptx.atom_vec_f32_noftz_bitbucket", factory=True,
)  # fmt: skip
def red_vec(mods: Mods) -> Callable[..., Any]:
    return _vector(mods, False)


# ---------------------------------------------------------------------------------------------- CUDA builtins

_PTX_OF = {
    "int32": "s32", "uint32": "u32", "int64": "s64", "uint64": "u64", "float32": "f32", "float64": "f64", "float16": "f16",
    "bfloat16": "bf16",
}  # fmt: skip


def _cuda_mods(mods: Mods, name: str) -> Mods:
    """``atomicAdd`` and ``atomicCAS`` are relaxed at GPU scope; the value's dtype gives the type."""
    dtype = mods.dtypes[1]
    ptx_type = _PTX_OF.get(dtype)
    if ptx_type is None:
        raise unsupported(name, mods, f"on {dtype}")
    return Mods(("relaxed", "gpu", ptx_type), {"sem": "relaxed", "type": ptx_type})


@instruction("cuda.atomic_add", factory=True, varies=True)
def cuda_atomic_add(mods: Mods) -> Callable[..., Any]:
    return _atomic(_cuda_mods(mods, "atomic_add"), "add", True)


@instruction("cuda.atomic_cas", factory=True, varies=True)
def cuda_atomic_cas(mods: Mods) -> Callable[..., Any]:
    chosen = _cuda_mods(mods, "atomic_cas")
    bits = {"s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64"}.get(chosen["type"])
    if bits is None:
        raise unsupported("atomic_cas", mods)
    run = _cas(Mods(("relaxed",), {"sem": "relaxed", "type": bits}), True)
    if chosen["type"].startswith("u"):
        return run
    from emulator.instructions.registers import wrapper

    signed = wrapper(chosen["type"])
    return lambda *operands: signed(run(*operands))
