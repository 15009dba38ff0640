"""Non-bulk asynchronous copies, global to shared memory (PTX ISA, "cp.async").

Every active thread issues its own copy.  The copies of a warp form one queue: ``commit_group`` closes the open group,
``wait_group N`` waits until all but the youngest N groups have arrived.  ``mbarrier.arrive`` enters the same queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emulator import runtime
from emulator.errors import DeviceFault
from emulator.instructions.mbarrier import _grouped, update
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value
from emulator.threads import Threads

if TYPE_CHECKING:
    from emulator.machine.cta import Cta

_SIZES: dict[int, np.dtype[Any]] = {
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}


class WarpCopies:
    """The cp.async groups of one warp: operations in the open group, and in each committed group, oldest first."""

    __slots__ = ("groups", "open")

    def __init__(self) -> None:
        self.open = 0
        self.groups: list[int] = []


def _state(cta: Cta, warp: int) -> WarpCopies:
    state = cta.cp_async.get(warp)
    if state is None:
        state = cta.cp_async[warp] = WarpCopies()
    return state


def _chain(t: Threads, warp: int) -> tuple[Any, ...]:
    return (t.cta.cluster, "cp.async", t.cta.rank, warp)


def _by_warp(t: Threads, values: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(warp, entries) of per-active-lane values."""
    if t.lane is not None or len(t.warps) == 1:
        return [(t.warps[0], values)]
    owner = t.warp_of_lane if t.mask is None else t.warp_of_lane[t.mask]
    return [(w, values[owner == w]) for w in t.active_warps()]


def _active(t: Threads, value: Value) -> np.ndarray:
    """A value of every active lane."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value if t.mask is None else value[t.mask]
    return np.full(t.active_count(), value, dtype=np.int64)


def _copy(t: Threads, dst: Value, src: Value, cp_size: Value, src_size: Value | None) -> None:
    """Issue one copy of ``cp_size`` bytes per active thread; bytes from ``src_size`` on are zero."""
    size = int(cp_size)
    if size not in _SIZES:
        raise DeviceFault(
            "cp.async.bad-size",
            f"cp.async of {size} bytes; the size must be 4, 8 or 16",
            "copy 4, 8 or 16 bytes per thread",
            site=t.site,
        )
    if runtime._nothing_active(t):
        return
    machine, cta = t.cta.machine, t.cta
    to = _active(t, dst)
    target, offsets = runtime.remote(t, to)
    if target is not cta:
        raise DeviceFault(
            "cp.async.remote",
            "cp.async into the shared memory of another CTA",
            "cp.async writes the own CTA's shared memory; use cp.async.bulk across the cluster",
            site=t.site,
        )
    runtime.shared_offsets(t, offsets, size, "cp.async: write")
    reads = np.full(len(to), size) if src_size is None else np.clip(_active(t, src_size), 0, size)
    if src_size is not None and bool((_active(t, src_size) > size).any()):
        raise DeviceFault(
            "cp.async.bad-size",
            f"cp.async with a source size above the {size} bytes of the copy",
            "src-size is at most cp-size",
            site=t.site,
        )
    pointers = _active(t, src)
    some = reads > 0
    segment, sources = None, pointers
    if bool(some.any()):
        segment, sources = _locate(t, pointers, reads, some, size)
    hb = cta.cluster.hb
    if hb is not None:
        lanes = t.hb_lanes()
        tracked = segment is not None and machine.written.get(segment.index, True)
        full = tracked and bool((reads == size).all())
        source = segment.index if full and segment is not None else None
        hb.cp_async(lanes, cta.rank, offsets, size, t.rd_site, buf=source, gaddr=sources if full else None)
        if tracked and not full and segment is not None:
            hb.gmem_read(
                lanes.select(np.flatnonzero(some)),
                segment.index,
                sources[some],
                int(reads[some].min()),
                t.rd_site,
                what="cp.async",
            )
    runtime.count_bytes(t, "bytes.cp.async", size)
    view, index = cta.view(_SIZES[size]), offsets // size
    whole = src_size is None or bool((reads == size).all())
    rows = np.arange(len(to))
    for warp, mine in _by_warp(t, rows):

        def complete(mine: np.ndarray = mine) -> None:
            if segment is not None and whole:
                view[index[mine]] = segment.view(_SIZES[size])[sources[mine] // size]
                return
            data = np.zeros((len(mine), size), dtype=np.uint8)
            if segment is not None:
                for k, lane in enumerate(mine.tolist()):
                    n = int(reads[lane])
                    data[k, :n] = segment.raw[int(sources[lane]) : int(sources[lane]) + n]
            view[index[mine]] = data.view(_SIZES[size])[:, 0]

        _state(cta, warp).open += 1
        machine.issue(_chain(t, warp), complete, "cp.async", t.site)


def _locate(
    t: Threads, pointers: np.ndarray, reads: np.ndarray, some: np.ndarray, size: int
) -> tuple[Any, np.ndarray]:
    """(segment, byte offsets) of the sources; lanes that read nothing may hold any address."""
    memory = t.cta.machine.memory
    live = pointers[some]
    segment, offsets = memory.locate(live, 1, "cp.async: read")
    ends = offsets + reads[some]
    if int(ends.max()) > segment.nbytes:
        raise DeviceFault(
            "gmem.out-of-bounds",
            f"cp.async reads up to byte {int(ends.max()) - 1} of `{segment.name}`, which has {segment.nbytes} bytes",
            "give a smaller src-size (the rest is filled with zeros), or mask the threads outside the tensor",
            site=t.site,
        )  # fmt: skip
    if bool((offsets % size).any()):
        raise DeviceFault(
            "gmem.misaligned",
            f"cp.async of {size} bytes from an address of `{segment.name}` that is not a multiple of {size}",
            f"cp.async of {size} bytes needs {size}-byte aligned addresses",
            site=t.site,
        )
    out = np.zeros(len(pointers), dtype=np.int64)
    out[some] = offsets
    return segment, out


@instruction("ptx.cp_async_ca", "ptx.cp_async_cg", counter="cp.async")
def cp_async(mods: Mods, t: Threads, dst: Value, src: Value, cp_size: Value, policy: Any = ()) -> None:
    _copy(t, dst, src, cp_size, None)


@instruction("ptx.cp_async_ca_src_size", "ptx.cp_async_cg_src_size", counter="cp.async")
def cp_async_src_size(
    mods: Mods, t: Threads, dst: Value, src: Value, cp_size: Value, src_size: Value, policy: Any = ()
) -> None:
    """Copy ``src_size`` bytes and fill the rest of ``cp_size`` with zeros."""
    _copy(t, dst, src, cp_size, src_size)


@instruction("ptx.cp_async_ca_ignore_src", "ptx.cp_async_cg_ignore_src", counter="cp.async")
def cp_async_ignore_src(
    mods: Mods, t: Threads, dst: Value, src: Value, cp_size: Value, ignore: Value, policy: Any = ()
) -> None:
    """Zeros where ``ignore`` holds."""
    size = int(cp_size)
    _copy(
        t,
        dst,
        src,
        cp_size,
        np.where(np.asarray(ignore) != 0, 0, size)
        if isinstance(ignore, np.ndarray)
        else 0
        if ignore
        else size,
    )


def commit(t: Threads) -> None:
    for warp in t.active_warps():
        state = _state(t.cta, warp)
        state.groups.append(state.open)
        state.open = 0
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.cp_async_commit_group(t.hb_warps())


@instruction("ptx.cp_async_commit_group", counter="cp.async.commit_group")
def cp_async_commit_group(mods: Mods, t: Threads) -> None:
    commit(t)


def wait(t: Threads, n: int) -> None:
    """Complete all but the youngest ``n`` committed groups of each active warp."""
    machine = t.cta.machine
    for warp in t.active_warps():
        state = _state(t.cta, warp)
        keep = state.groups[len(state.groups) - n :] if n else []
        machine.complete_chain(_chain(t, warp), sum(keep) + state.open)
        state.groups = list(keep)
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.cp_async_wait_group(t.hb_warps(), n)


@instruction("ptx.cp_async_wait_group", counter="cp.async.wait_group")
def cp_async_wait_group(mods: Mods, t: Threads, count: Value) -> None:
    wait(t, int(count))


@instruction("ptx.cp_async_wait_all", counter="cp.async.wait_all")
def cp_async_wait_all(mods: Mods, t: Threads) -> None:
    """Commit and wait for everything."""
    commit(t)
    wait(t, 0)


@instruction("ptx.cp_async_mbarrier_arrive", counter="cp.async.mbarrier.arrive")
def cp_async_mbarrier_arrive(mods: Mods, t: Threads, address: Value) -> None:
    """Arrive at an mbarrier when the thread's earlier copies have arrived.

    Without ``.noinc`` the pending count grows by one at issue, so that the arrival does not count against it.
    """
    machine, site = t.cta.machine, t.site
    noinc = "noinc" in mods
    hb = t.cta.cluster.hb
    first = t.cta.rank * t.cta.num_warps
    for warp in t.active_warps():
        one = _only_warp(t, warp)
        for bar, _, threads, _warps in _grouped(one, address):
            if not noinc:
                bar.pending += threads
            if hb is not None:
                hb.cp_async_mbarrier_arrive((first + warp,), bar.hb, t.rd_site)

            def complete(bar: Any = bar, threads: int = threads, warp: int = warp) -> None:
                update(machine, bar, threads, 0, site, warp)

            _state(t.cta, warp).open += 1
            machine.issue(_chain(t, warp), complete, "cp.async.mbarrier.arrive", site)


def _only_warp(t: Threads, warp: int) -> Threads:
    """The active lanes of one warp."""
    if len(t.warps) == 1:
        return t
    mine = t.warp_of_lane == warp
    return t.masked(mine if t.mask is None else mine & t.mask)
