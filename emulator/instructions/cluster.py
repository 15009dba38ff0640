"""The shared memory of other CTAs of the cluster (PTX ISA, "mapa", "getctarank", "st.async", "red.async")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.checks import happens_before as hbm
from emulator.errors import DeviceFault
from emulator.instructions.atomics import memory_dtype, operand_array, update_of
from emulator.instructions.ld_st import block_of
from emulator.instructions.mbarrier import complete_tx
from emulator.instructions.registers import split128
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import M32
from emulator.machine.address import RANK_SHIFT
from emulator.threads import Threads

_RANK_BYTE = 0xFF << RANK_SHIFT


@instruction("ptx.mapa", "ptx.mapa_u32", "ptx.mapa_u64_raw", "ptx.mapa_u64_shared")
def mapa(mods: Mods, t: Threads, address: Any, rank: Any) -> Any:
    """The same shared variable in the CTA with ``rank``: the rank byte of a window address or pointer is replaced."""
    size = len(t.cta.cluster.ctas)
    low, high = int(np.min(rank)), int(np.max(rank))
    if low < 0 or high >= size:
        raise DeviceFault(
            "cluster.bad-rank", f"mapa with CTA rank {high if high >= size else low} in a cluster of {size}",
            f"ranks run from 0 to {size - 1}", site=t.site,
        )  # fmt: skip
    if not isinstance(address, np.ndarray) and not isinstance(rank, np.ndarray):
        return (int(address) & ~_RANK_BYTE) | (int(rank) << RANK_SHIFT)
    raw = t.as_vector(address).astype(np.int64)
    mapped = (raw & ~np.int64(_RANK_BYTE)) | (t.as_vector(rank).astype(np.int64) << RANK_SHIFT)
    return mapped.astype(np.uint64) if "u64" in mods else mapped


@instruction("ptx.getctarank", "ptx.getctarank_generic")
def getctarank(mods: Mods, t: Threads, address: Any) -> Any:
    """The rank of the CTA that a shared address belongs to."""
    if isinstance(address, np.ndarray):
        return (address.astype(np.int64) & M32) >> RANK_SHIFT
    return (int(address) & M32) >> RANK_SHIFT


# ---------------------------------------------------------------------------------------------- st.async, red.async


def _remote_write(
    t: Threads,
    address: Any,
    values: list[np.ndarray],
    mbar: Any,
    what: str,
    update: Callable[[Any, Any], Any] | None,
) -> None:
    """One asynchronous write per active thread; it signals its bytes at an mbarrier of the CTA that it writes to.

    ``values`` has one array per element, one entry per active lane.
    """
    machine, cluster, site = t.cta.machine, t.cta.cluster, t.site
    dtype = values[0].dtype
    size = dtype.itemsize * len(values)
    rows = t.rows(t.tid, address, mbar)
    for k, (tid, addr, bar_addr) in enumerate(rows):
        cta, offset = cluster.resolve(int(addr), what)
        cta.check_shared(offset, offset + size, what)
        if offset % size:
            raise DeviceFault(
                "smem.misaligned",
                f"{what} of {size} bytes at a shared address that is not a multiple of {size}",
                f"align the destination to {size} bytes",
                site=site,
            )
        bar = cluster.barrier_at(int(bar_addr), what)
        if bar.cta is not cta:
            raise DeviceFault(
                "cluster.other-barrier",
                f"{what} writes to CTA rank {cta.rank} but signals an mbarrier of CTA rank {bar.cta.rank}",
                "data and mbarrier must be in the same CTA: map both addresses with the same rank",
                site=site,
            )
        if cluster.hb is not None:
            warp = t.cta.rank * t.cta.num_warps + int(tid) // 32
            cluster.hb.tma_load(
                warp,
                bar.hb,
                t.rd_site,
                writes=[(cta.rank, hbm.Span(offset, offset + size))],
                reads=[],
                what=what,
            )
        data = np.array([v[k] for v in values], dtype=dtype)

        def complete(cta: Any = cta, offset: int = offset, data: np.ndarray = data, bar: Any = bar) -> None:
            first = offset // dtype.itemsize
            target = cta.view(dtype)[first : first + len(data)]
            target[...] = data if update is None else update(target, data)
            complete_tx(machine, bar, size, site)

        machine.issue((cluster, what, machine.next_id()), complete, what, site)


def _lanes(t: Threads, value: Any, dtype: np.dtype) -> np.ndarray:
    return np.atleast_1d(operand_array(t.compact(value), dtype, t.active_count()))


@instruction("ptx.st_async", counter="st.async")
def st_async(mods: Mods, t: Threads, address: Any, value: Any, mbar: Any) -> None:
    """``st.async``: store to another CTA's shared memory and complete its bytes at an mbarrier there."""
    dtype = memory_dtype(mods["type"])
    if dtype.kind == "V":
        halves = [
            np.broadcast_to(np.asarray(half, dtype=np.uint64), t.active_count())
            for half in split128(t.compact(value))
        ]
        _remote_write(t, address, halves, mbar, "st.async", None)
        return
    _remote_write(t, address, [_lanes(t, value, dtype)], mbar, "st.async", None)


@instruction("ptx.st_async_vec", counter="st.async")
def st_async_vec(mods: Mods, t: Threads, address: Any, group: Any, mbar: Any) -> None:
    dtype = memory_dtype(mods["type"])
    block = block_of(t, group, dtype)
    if block.shape[1] != t.count:
        block = np.broadcast_to(block, (len(block), t.count))
    _remote_write(t, address, [t.compact(row) for row in block], mbar, "st.async", None)


@instruction("ptx.red_async", counter="red.async", factory=True)
def red_async(mods: Mods) -> Callable[..., None]:
    """``red.async``: an atomic update of another CTA's shared memory that signals an mbarrier there."""
    dtype, update = update_of(mods["op"], mods["type"], mods)

    def op(t: Threads, address: Any, value: Any, mbar: Any) -> None:
        _remote_write(t, address, [_lanes(t, value, dtype)], mbar, "red.async", update)

    return op
