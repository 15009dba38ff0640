"""Tensor maps in memory (PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy", "fence.proxy.tensormap").

The 128 bytes of a tensor map are opaque on hardware, too.  Here they are a mark and the number of a map in the launch's
table; ``tensormap.replace`` makes a changed map and writes its number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.errors import DeviceFault
from emulator.instructions.registers import unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value
from emulator.machine.address import is_shared
from emulator.machine.swizzle import SwizzleMode
from emulator.threads import Threads

if TYPE_CHECKING:
    from emulator.host import BoundTensorMap

BYTES = 128
_MARK = 0x50414D524F534E54  # "TNSORMAP"


def number(memory: Any, bound: BoundTensorMap) -> int:
    """The table entry of a map, entered on first use."""
    table: list[BoundTensorMap] = memory.tensor_maps
    for k, known in enumerate(table):
        if known is bound:
            return k
    table.append(bound)
    return len(table) - 1


def payload(index: int) -> np.ndarray:
    """The 128 bytes of entry ``index`` of the launch's table of maps, as ``uint64[16]``."""
    words = np.zeros(BYTES // 8, dtype=np.uint64)
    words[0], words[1] = _MARK, index
    return words


def word(t: Threads, bound: BoundTensorMap, index: Value, dtype: np.dtype) -> Value:
    """An element of the bytes of a map that is a kernel parameter."""
    elements = payload(number(t.cta.machine.memory, bound)).view(dtype)
    if isinstance(index, np.ndarray) and index.ndim:
        out = elements[index]
        return out if dtype == np.uint64 else out.astype(np.int64)
    return int(elements[int(index)])


def _bytes_at(t: Threads, pointer: int, what: str) -> np.ndarray:
    """The 128 bytes of a map in shared or global memory, as ``uint64[16]`` (a view)."""
    if is_shared(pointer):
        cta, offset = t.cta.cluster.resolve(pointer, what)
        cta.check_shared(offset, offset + BYTES, what)
        raw = cta.smem
    else:
        segment, offset = t.cta.machine.memory.locate(pointer, 1, what)
        if offset + BYTES > segment.nbytes:
            raise DeviceFault(
                "gmem.out-of-bounds",
                f"{what}: the tensor map does not fit into `{segment.name}`",
                "reserve 128 bytes per tensor map",
                site=t.site,
            )
        raw = segment.raw
    if offset % BYTES:
        raise DeviceFault(
            "tensormap.misaligned",
            f"{what} at an address that is not a multiple of 128",
            "align tensor maps to 128 bytes",
            site=t.site,
        )
    view: np.ndarray = raw[offset : offset + BYTES].view(np.uint64)
    return view


def at(t: Threads, pointer: int, what: str = "tensor map") -> BoundTensorMap:
    """The map whose bytes lie at a pointer.

    Raises:
        DeviceFault: the bytes are no tensor map.
    """
    words = _bytes_at(t, pointer, what)
    table = t.cta.machine.memory.tensor_maps
    if int(words[0]) != _MARK or int(words[1]) >= len(table):
        raise DeviceFault(
            "tensormap.invalid",
            f"{what}: the 128 bytes at this address are not a tensor map",
            "copy all 128 bytes of a tensor map there, and fence before using it",
            site=t.site,
        )
    return table[int(words[1])]


def _rewrite(
    t: Threads, address: Value, change: Callable[[BoundTensorMap, int], BoundTensorMap], *operands: Value
) -> None:
    for row in t.rows(t.tid, address, *operands):
        pointer = int(row[1])
        bound = change(at(t, pointer, "tensormap.replace"), *(int(v) for v in row[2:]))
        words = _bytes_at(t, pointer, "tensormap.replace")
        words[1] = number(t.cta.machine.memory, bound)
    t.cta.machine.progress += 1


def _with_map(bound: BoundTensorMap, **fields: Any) -> BoundTensorMap:
    return replace(bound, map=replace(bound.map, **fields))


def _at_index(values: tuple[int, ...], index: int, new: int) -> tuple[int, ...]:
    """``values`` with another value for one dimension; what is set for dimensions beyond the rank has no effect."""
    return tuple(new if k == index else v for k, v in enumerate(values))


@instruction("ptx.tensormap_replace_address", counter="tensormap.replace")
def replace_address(mods: Mods, t: Threads, address: Value, pointer: Value) -> None:
    def change(bound: BoundTensorMap, new: int) -> BoundTensorMap:
        segment, offset = t.cta.machine.memory.locate(new, 1, "tensormap.replace.global_address")
        return replace(bound, map=replace(bound.map, base=int(offset)), segment=segment)

    _rewrite(t, address, change, pointer)


@instruction("ptx.tensormap_replace_dim", counter="tensormap.replace", factory=True)
def replace_dim(mods: Mods) -> Callable[..., None]:
    """``global_dim``, ``box_dim`` or ``element_stride`` of one dimension."""
    name = {"global_dim": "dims", "box_dim": "box", "element_stride": "element_strides"}[mods["field"]]

    def op(t: Threads, address: Value, ordinal: Value, value: Value) -> None:
        index = int(ordinal)
        _rewrite(
            t,
            address,
            lambda bound, new: _with_map(bound, **{name: _at_index(getattr(bound.map, name), index, new)}),
            value,
        )

    return op


@instruction("ptx.tensormap_replace_stride", counter="tensormap.replace")
def replace_stride(mods: Mods, t: Threads, address: Value, ordinal: Value, value: Value) -> None:
    """``global_stride`` of dimension ``ordinal + 1``, in bytes (the instruction takes bytes / 16 on no architecture here)."""
    index = int(ordinal)
    _rewrite(
        t,
        address,
        lambda bound, new: _with_map(bound, strides=_at_index(bound.map.strides, index, new)),
        value,
    )


_SWIZZLE = {0: SwizzleMode.NONE, 1: SwizzleMode.B32, 2: SwizzleMode.B64, 3: SwizzleMode.B128}


@instruction("ptx.tensormap_replace_swizzle_mode", counter="tensormap.replace")
def replace_swizzle_mode(mods: Mods, t: Threads, address: Value, value: Value) -> None:
    mode = _SWIZZLE.get(int(value))
    if mode is None:
        raise unsupported("tensormap.replace", mods, f"swizzle mode {int(value)}")
    _rewrite(t, address, lambda bound: _with_map(bound, swizzle=mode))  # type: ignore[arg-type, misc]


@instruction("ptx.tensormap_replace_fill_mode", counter="tensormap.replace")
def replace_fill_mode(mods: Mods, t: Threads, address: Value, value: Value) -> None:
    _rewrite(t, address, lambda bound: _with_map(bound, oob_fill=int(value)))  # type: ignore[arg-type, misc]


@instruction("ptx.tensormap_cp_fenceproxy", collective=True, counter="tensormap.cp_fenceproxy")
def cp_fenceproxy(mods: Mods, t: Threads, dst: Value, src: Value, size: Value) -> None:
    """Copy a map from shared to global memory, released to the tensormap proxy (the whole warp, once)."""
    for (_, to), (_, source) in zip(t.per_warp(dst), t.per_warp(src), strict=True):
        _bytes_at(t, int(to), "tensormap.cp_fenceproxy")[...] = _bytes_at(
            t, int(source), "tensormap.cp_fenceproxy"
        )
    if t.cta.cluster.hb is not None:
        t.cta.cluster.hb.fence_acq_rel(t.hb_warps())
    t.cta.machine.progress += 1


@instruction(
    "ptx.fence_proxy_tensormap_release", "ptx.fence_proxy_tensormap_acquire", counter="fence.proxy.tensormap"
)
def fence_proxy_tensormap(mods: Mods, t: Threads, *operands: Any) -> None:
    """Orders changes of a tensor map in memory against its use by TMA."""
    if t.cta.cluster.hb is not None:
        t.cta.cluster.hb.fence_acq_rel(t.hb_warps())
