"""TMA: bulk tensor copies, bulk copies, reductions and their groups (PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk").

Loads signal an mbarrier with the bytes they deliver (out-of-bounds elements count, too).  Stores belong to the issuing
*thread*: it commits them to a group and waits for its own groups only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator import lanes
from emulator.checks import happens_before as hbm
from emulator.errors import DeviceFault, UnsupportedInstruction
from emulator.instructions import tensormap
from emulator.instructions.mbarrier import complete_tx, issue_copy
from emulator.instructions.registry import Mods, instruction
from emulator.machine import tensor_map as tma
from emulator.machine.address import OFFSET_MASK
from emulator.threads import Threads

if TYPE_CHECKING:
    from emulator.host import BoundTensorMap
    from emulator.machine.cta import Cta
    from emulator.machine.mbarrier import Mbarrier


def _warp(t: Threads) -> int:
    return t.cta.rank * t.cta.num_warps + t.warps[0]


def _map(t: Threads, value: Any) -> BoundTensorMap:
    if hasattr(value, "segment") and hasattr(value, "map"):
        return value
    if isinstance(value, np.ndarray):
        value = value[t.active_indices()[0]]
    return tensormap.at(t, int(value), "cp.async.bulk.tensor")


def _coords(t: Threads, coords: Any, lane_index: int) -> tuple[int, ...]:
    return tuple(_signed(lanes.pick(c, lane_index)) for c in coords)


def _signed(value: Any) -> int:
    value = int(value) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _issuers(t: Threads) -> list[int]:
    """Vector positions of the threads that execute the instruction: each issues its own copy."""
    return [0] if t.lane is not None else t.active_indices()


def _check_issuers(t: Threads, dst: Any, issuers: list[int], nbytes: int) -> None:
    """Threads that load into the same place deliver the bytes once each."""
    if len(issuers) == 1:
        return
    places = {int(lanes.pick(dst, index)) for index in issuers}
    if len(places) == len(issuers):
        return
    t.cta.machine.report(
        "race.smem.many-issuers", "race",
        f"{len(issuers)} threads execute this copy, so {len(issuers)} copies of {nbytes} bytes go to {len(places)} {'place' if len(places) == 1 else 'places'} and signal their mbarrier one by one.",
        "Issue the copy and its expect_tx from one thread: put them under `if T.cuda.elect_sync():` in one warp.",
        t, names=(t.cta.name_of_shared(min(places) & OFFSET_MASK),), lanes=tuple(int(i) % 32 for i in issuers[:32]),
        data={"issuers": len(issuers)},
    )  # fmt: skip


def _one(t: Threads, index: int) -> Threads:
    return t if t.lane is not None else t.single(index)


@lru_cache(maxsize=4096)
def _smem_region(map_: Any, dst: int) -> Any:
    if map_.row_bytes == map_.pitch:
        return hbm.Span(dst, dst + map_.smem_bytes)
    return hbm.Chunks(np.sort(map_.smem_chunks(dst)), 16)


def _global_region(map_: Any, coords: tuple[int, ...]) -> Any:
    """The in-bounds bytes of a box, None when it lies outside."""
    window = map_._window(coords)
    if window.inside is None:
        return None
    unit = map_.type.global_bytes
    shape = (*reversed(window.counts[1:]), window.counts[0] * unit)
    strides = (*reversed(window.steps[1:]), 1)
    return hbm.Strided(window.offset, shape, strides)


def _targets(
    t: Threads, address: int, barrier: int, mask: int | None, group: int
) -> list[tuple[Cta, int, Mbarrier]]:
    """(receiving CTA, shared offset, barrier that is signalled) of a load."""
    cluster = t.cta.cluster
    what = "cp.async.bulk"
    if mask is None:
        cta, offset = cluster.resolve(address, what)
        bar = cluster.barrier_at(barrier, what)
        if bar.cta is not cta and group != 2:
            t.cta.machine.report(
                "cluster.other-barrier", "error",
                f"A copy into the shared memory of CTA rank {cta.rank} signals an mbarrier of CTA rank {bar.cta.rank}; without .cta_group::2 both must be in one CTA.",
                "Give the copy cta_group=2 (the two CTAs of a pair), or signal a barrier of the CTA that receives the data.",
                t, names=(bar.name,), sites=(bar.init_site,),
            )  # fmt: skip
        return [(cta, offset, bar)]
    offset, bar_offset = address & OFFSET_MASK, barrier & OFFSET_MASK
    bar_rank = (barrier & 0xFFFFFFFF) >> 24
    out = []
    for rank in range(16):
        if not mask >> rank & 1:
            continue
        if rank >= len(cluster.ctas):
            raise DeviceFault(
                "tma.bad-mask",
                f"multicast to CTA rank {rank} of a cluster of {len(cluster.ctas)}",
                "the mask has one bit per CTA of the cluster",
                site=t.site,
            )
        signal = rank if group != 2 else (rank & ~1) | (bar_rank & 1)
        out.append((cluster.ctas[rank], offset, cluster.barrier_at(signal << 24 | bar_offset, what)))
    return out


def _check_destination(t: Threads, cta: Cta, map_: Any, offset: int, what: str) -> None:
    cta.check_shared(offset, offset + map_.smem_bytes, what)
    t.cta.machine.check_tile(t, offset, offset + map_.smem_bytes, what)
    problems = map_.destination_problems(offset)
    if problems:
        raise DeviceFault(
            "tma.misaligned",
            f"{what}: {problems[0]}",
            "allocate the tile with align=1024 (128-byte swizzle) or at least 128",
            site=t.site,
        )


def _check_corner(t: Threads, map_: Any, position: tuple[int, ...], store: bool, what: str) -> None:
    problems = map_.coordinate_problems(position, store)
    if problems:
        raise DeviceFault(
            "tma.bad-coordinates", f"{what} through `{map_.name}`: {problems[0]}",
            "let boxes begin at multiples of 16 bytes; shift the tile instead of the box, or copy that edge with ordinary loads and stores",
            site=t.site,
        )  # fmt: skip


def _load_tensor(mods: Mods, t: Threads, dst: Any, tmap: Any, coords: Any, mbar: Any, mask: Any) -> None:
    machine, cluster = t.cta.machine, t.cta.cluster
    beside = cluster.beside_mma
    bound = _map(t, tmap)
    map_, segment = bound.map, bound.segment
    gather = "tile::gather4" in mods
    group = 2 if "cta_group::2" in mods else 1
    shaped = map_._four_rows if gather else map_
    issuers = _issuers(t)
    _check_issuers(t, dst, issuers, shaped.box_bytes)
    for index in issuers:
        one = _one(t, index)
        position = _coords(one, coords, index)
        if not gather and len(position) != map_.rank:
            raise DeviceFault(
                "tma.bad-rank",
                f"a load with {len(position)} coordinates through a tensor map of rank {map_.rank}",
                "give one coordinate per dimension of the tensor map, innermost first",
                site=t.site,
            )
        if not gather:
            _check_corner(one, map_, position, False, "TMA load")
        bits = int(lanes.pick(mask[0], index)) if len(mask) else None
        targets = _targets(one, int(lanes.pick(dst, index)), int(lanes.pick(mbar, index)), bits, group)
        for cta, offset, _ in targets:
            _check_destination(one, cta, shaped, offset, "TMA load: write")
        machine.count("bytes.tma.load", shaped.box_bytes * len(targets))
        if machine.tile_record is not None:
            machine.tile_record.load(one.cta, one.warps[0], segment.index, position, shaped.box_bytes)
        if cluster.hb is not None:
            reads = []
            region = None if gather else _global_region(map_, position)
            if region is not None and machine.written.get(segment.index, True):
                reads = [(segment.index, region)]
            for cta, offset, bar in targets:
                cluster.hb.tma_load(
                    _warp(one),
                    bar.hb,
                    t.rd_site,
                    writes=[(cta.rank, _smem_region(shaped, offset))],
                    reads=reads,
                    what="cp.async.bulk.tensor",
                )
        site = t.site
        for _, _, bar in targets:
            issue_copy(bar, shaped.box_bytes, site)
        if beside is not None:
            beside.load_issued()
        dry = False
        if machine.trace is not None:
            machine.trace.load(machine, site, shaped.box_bytes, shaped.lines, targets, segment, position)
            dry = machine.trace.dry

        def complete(
            targets: Any = targets, position: tuple[int, ...] = position, site: int = site, dry: bool = dry
        ) -> None:
            if beside is not None:
                beside.load_completed()
            for cta, offset, bar in targets:
                if dry:
                    pass
                elif gather:
                    map_.gather4(segment.raw, position, cta.smem, offset)
                else:
                    map_.load(segment.raw, position, cta.smem, offset)
                complete_tx(machine, bar, shaped.box_bytes, site)

        try:
            machine.issue((cluster, "tma", machine.next_id()), complete, "TMA load", t.site)
        except tma.BoxError as error:
            raise DeviceFault(
                "tma.bad-box", str(error), "check the tensor map against the tensor", site=site
            ) from None


@instruction("ptx.cp_async_bulk_tensor_g2s_cluster", counter="cp.async.bulk.tensor.load")
def load_cluster(
    mods: Mods, t: Threads, dst: Any, tmap: Any, coords: Any, mbar: Any, mask: Any = (), policy: Any = ()
) -> None:
    """TMA load into the shared memory of one or more CTAs of the cluster."""
    _load_tensor(mods, t, dst, tmap, coords, mbar, mask)


@instruction("ptx.cp_async_bulk_tensor_g2s_cta", counter="cp.async.bulk.tensor.load")
def load_cta(mods: Mods, t: Threads, dst: Any, tmap: Any, coords: Any, mbar: Any, policy: Any = ()) -> None:
    """TMA load into the own CTA's shared memory."""
    _load_tensor(mods, t, dst, tmap, coords, mbar, ())


@instruction(
    "ptx.cp_async_bulk_tensor_prefetch", "ptx.cp_async_bulk_prefetch", counter="cp.async.bulk.prefetch"
)
def prefetch(mods: Mods, t: Threads, *operands: Any) -> None:
    """L2 prefetch: nothing to do."""


# ---------------------------------------------------------------------------------------------- stores


class BulkOp:
    """A bulk store: ``read`` takes the bytes out of shared memory, ``write`` puts them into global memory."""

    __slots__ = ("source", "sink", "data", "written", "is_read")

    def __init__(self, source: Callable[[], Any], sink: Callable[[Any], None]) -> None:
        self.source = source
        self.sink = sink
        self.data: Any = None
        self.is_read = False
        self.written = False

    def read(self) -> None:
        if not self.is_read:
            self.data = self.source()
            self.is_read = True

    def write(self) -> None:
        if not self.written:
            self.read()
            self.sink(self.data)
            self.data = None
            self.written = True


class BulkThread:
    """Bulk groups of one thread: the open one and the committed ones, oldest first."""

    __slots__ = ("open", "groups")

    def __init__(self) -> None:
        self.open: list[BulkOp] = []
        self.groups: list[list[BulkOp]] = []

    def commit(self) -> None:
        """Close the open group."""
        self.groups.append(self.open)
        self.open = []


def _thread(t: Threads) -> tuple[Any, BulkThread]:
    tid = int(t.tid)
    state = t.cta.bulk.get(tid)
    if state is None:
        state = t.cta.bulk[tid] = BulkThread()
    return (t.cta.cluster, "bulk", t.cta.rank, tid), state


def _issue_store(t: Threads, op: BulkOp, what: str) -> None:
    chain, state = _thread(t)
    state.open.append(op)
    t.cta.machine.issue(chain, op.write, what, t.site)


def _store_tensor(mods: Mods, t: Threads, tmap: Any, coords: Any, src: Any, op: str) -> None:
    bound = _map(t, tmap)
    map_, segment = bound.map, bound.segment
    machine = t.cta.machine
    scatter = "tile::scatter4" in mods
    shaped = map_._four_rows if scatter else map_
    for index in _issuers(t):
        one = _one(t, index)
        position = _coords(one, coords, index)
        if not scatter and len(position) != map_.rank:
            raise DeviceFault(
                "tma.bad-rank",
                f"a store with {len(position)} coordinates through a tensor map of rank {map_.rank}",
                "give one coordinate per dimension of the tensor map, innermost first",
                site=t.site,
            )
        if not scatter:
            _check_corner(one, map_, position, True, "TMA store")
        cta, offset = t.cta.cluster.resolve(int(lanes.pick(src, index)), "TMA store")
        _check_destination(one, cta, shaped, offset, "TMA store: read")
        machine.count("bytes.tma.store", shaped.box_bytes)
        hb = t.cta.cluster.hb
        if hb is not None:
            region = None if scatter else _global_region(map_, position)
            writes = [(segment.index, region)] if region is not None else []
            hb.tma_store(
                _warp(one),
                int(one.tid) % 32,
                t.rd_site,
                reads=[(cta.rank, _smem_region(shaped, offset))],
                writes=writes,
                what="cp.reduce.async.bulk.tensor" if op else "cp.async.bulk.tensor",
                atomic=bool(op),
            )

        dry = False
        if machine.trace is not None:
            machine.trace.store(machine, t.site, shaped.box_bytes, shaped.lines)
            dry = machine.trace.dry

        def source(cta: Cta = cta, offset: int = offset, dry: bool = dry) -> Any:
            return None if dry else shaped.read_box(cta.smem, offset)

        def sink(box: Any, position: tuple[int, ...] = position, dry: bool = dry) -> None:
            if dry:
                return
            if scatter:
                for i, row in enumerate(map_._four(position)):
                    map_._row_map.store_box(box[i : i + 1], segment.raw, (position[0], row))
            elif op:
                map_.reduce_box(box, segment.raw, position, op)
            else:
                map_.store_box(box, segment.raw, position)

        _issue_store(one, BulkOp(source, sink), "TMA store")


@instruction("ptx.cp_async_bulk_tensor_s2g", counter="cp.async.bulk.tensor.store")
def store_tensor(mods: Mods, t: Threads, tmap: Any, coords: Any, src: Any, policy: Any = ()) -> None:
    """TMA store; completion through the issuing thread's bulk groups."""
    _store_tensor(mods, t, tmap, coords, src, "")


@instruction("ptx.cp_reduce_async_bulk_tensor", counter="cp.reduce.async.bulk.tensor")
def reduce_tensor(mods: Mods, t: Threads, tmap: Any, coords: Any, src: Any, policy: Any = ()) -> None:
    """TMA reduction into global memory."""
    _store_tensor(mods, t, tmap, coords, src, mods["redop"])


@instruction("ptx.cp_async_bulk_commit_group", counter="cp.async.bulk.commit_group")
def commit_group(mods: Mods, t: Threads) -> None:
    """Close the bulk stores that each active thread has issued into a group."""
    machine = t.cta.machine
    if machine.trace is not None:
        machine.trace.add(machine, "commit_group", t.site)
    hb = t.cta.cluster.hb
    if t.lane is not None:
        _, state = _thread(t)
        state.commit()
        if hb is not None:
            hb.bulk_commit_group(_warp(t), int(t.tid) % 32)
        return
    _per_thread(t, BulkThread.commit)
    if hb is not None:
        for w, in_warp in _active_lanes(t):
            hb.bulk_commit_group(w, in_warp)


def _active_lanes(t: Threads) -> list[tuple[int, list[int]]]:
    """(cluster-wide warp, active lanes) per warp of the strand."""
    first = t.cta.rank * t.cta.num_warps
    out = []
    for k, w in enumerate(t.warps):
        active = list(range(32)) if t.mask is None else np.flatnonzero(t.mask[32 * k : 32 * k + 32]).tolist()
        if active:
            out.append((first + w, active))
    return out


def _per_thread(t: Threads, act: Callable[[BulkThread], Any]) -> None:
    """Apply ``act`` to the bulk state of every active thread that ever issued a bulk store.

    Threads that issued none would only collect empty groups, which no wait can notice.
    """
    if not t.cta.bulk:
        return
    tids = t.tid if t.mask is None else t.tid[t.mask]
    active = set(np.asarray(tids).tolist())
    for tid, state in t.cta.bulk.items():
        if tid in active:
            act(state)


@instruction("ptx.cp_async_bulk_wait_group", counter=None)
def wait_group(mods: Mods, t: Threads, count: Any) -> None:
    """Wait until at most ``count`` of the thread's youngest groups are pending (``.read``: have not been read)."""
    n = int(lanes.pick(count, 0))
    read = "read" in mods
    t.count_op("cp.async.bulk.wait_group.read" if read else "cp.async.bulk.wait_group")
    machine = t.cta.machine
    if machine.trace is not None:
        machine.trace.add(machine, "wait_group", t.site, n, read)

    def wait(state: BulkThread) -> None:
        done = state.groups[: len(state.groups) - n] if n else state.groups
        if read:
            for group in done:
                for op in group:
                    op.read()
            return
        for group in done:
            for op in group:
                op.write()
        machine.progress += 1
        state.groups = state.groups[len(done) :]

    if t.lane is not None:
        wait(_thread(t)[1])
    else:
        _per_thread(t, wait)
    hb = t.cta.cluster.hb
    if hb is not None:
        if t.lane is not None:
            hb.bulk_wait_group(_warp(t), int(t.tid) % 32, n, read, t.rd_site)
        else:
            for w, active in _active_lanes(t):
                hb.bulk_wait_group(w, active, n, read, t.rd_site)


# ---------------------------------------------------------------------------------------------- bulk copies without a map


def _check_size(t: Threads, size: int, *addresses: int) -> None:
    if size % 16 or any(a % 16 for a in addresses) or size <= 0:
        raise DeviceFault(
            "tma.misaligned",
            f"a bulk copy of {size} bytes; size and addresses must be multiples of 16",
            "bulk copies move multiples of 16 bytes between 16-byte aligned addresses",
            site=t.site,
        )


def _bulk_load(t: Threads, dst: Any, src: Any, size: Any, mbar: Any, mask: Any) -> None:
    machine, cluster = t.cta.machine, t.cta.cluster
    for index in _issuers(t):
        one = _one(t, index)
        n, pointer = int(lanes.pick(size, index)), int(lanes.pick(src, index))
        bits = int(lanes.pick(mask[0], index)) if len(mask) else None
        targets = _targets(one, int(lanes.pick(dst, index)), int(lanes.pick(mbar, index)), bits, 1)
        _check_size(one, n, pointer, *(o for _, o, _ in targets))
        segment, start = machine.memory.locate(pointer, 1, "bulk copy")
        machine.memory.locate(pointer + n - 1, 1, "bulk copy")
        for cta, offset, bar in targets:
            cta.check_shared(offset, offset + n, "bulk copy: write")
            if cluster.hb is not None:
                reads = (
                    [(segment.index, hbm.Span(start, start + n))]
                    if machine.written.get(segment.index, True)
                    else []
                )
                cluster.hb.tma_load(
                    _warp(one),
                    bar.hb,
                    t.rd_site,
                    writes=[(cta.rank, hbm.Span(offset, offset + n))],
                    reads=reads,
                    what="cp.async.bulk",
                )
        machine.count("bytes.bulk.load", n * len(targets))
        site = t.site
        for _, _, bar in targets:
            issue_copy(bar, n, site)
        if machine.trace is not None:
            machine.trace.load(machine, site, n, -(-n // 128), targets, segment, (start, n))

        def complete(
            targets: Any = targets, segment: Any = segment, start: int = start, n: int = n, site: int = site
        ) -> None:
            for cta, offset, bar in targets:
                cta.smem[offset : offset + n] = segment.raw[start : start + n]
                complete_tx(machine, bar, n, site)

        machine.issue((cluster, "tma", machine.next_id()), complete, "bulk copy", t.site)


@instruction("ptx.cp_async_bulk_g2s_cluster", counter="cp.async.bulk.load")
def bulk_load_cluster(
    mods: Mods, t: Threads, dst: Any, src: Any, size: Any, mbar: Any, mask: Any = (), policy: Any = ()
) -> None:
    _bulk_load(t, dst, src, size, mbar, mask)


@instruction("ptx.cp_async_bulk_g2s_cta", counter="cp.async.bulk.load")
def bulk_load_cta(
    mods: Mods, t: Threads, dst: Any, src: Any, size: Any, left: Any, right: Any, mbar: Any, policy: Any = ()
) -> None:
    if len(left) or len(right):
        raise UnsupportedInstruction("cp.async.bulk", t.cta.machine.location(t.site), "with ignore_oob")
    _bulk_load(t, dst, src, size, mbar, ())


def _combine(op: str, dtype: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    from emulator.machine.tensor_map import _reduce

    name = {
        "f16": "float16",
        "bf16": "bfloat16",
        "f32": "float32",
        "f64": "float64",
        "b32": "uint32",
        "b64": "uint64",
    }.get(dtype) or dtype.replace("u", "uint").replace("s", "int")
    np_type = tma.TMA_TYPES[name].numpy
    assert np_type is not None
    return np.ascontiguousarray(_reduce(op, old.view(np_type), new.view(np_type), name)).view(np.uint8)


def _bulk_s2c(mods: Mods, t: Threads, dst: Any, src: Any, size: Any, mbar: Any, op: str) -> None:
    machine, cluster = t.cta.machine, t.cta.cluster
    for index in _issuers(t):
        one = _one(t, index)
        n = int(lanes.pick(size, index))
        to, to_offset = cluster.resolve(int(lanes.pick(dst, index)), "bulk copy")
        source, offset = cluster.resolve(int(lanes.pick(src, index)), "bulk copy")
        bar = cluster.barrier_at(int(lanes.pick(mbar, index)), "bulk copy")
        _check_size(one, n, to_offset, offset)
        to.check_shared(to_offset, to_offset + n, "bulk copy: write")
        source.check_shared(offset, offset + n, "bulk copy: read")
        if cluster.hb is not None:
            cluster.hb.tma_load(
                _warp(one),
                bar.hb,
                t.rd_site,
                writes=[(to.rank, hbm.Span(to_offset, to_offset + n))],
                reads=[],
                smem_reads=[(source.rank, hbm.Span(offset, offset + n))],
                what="cp.async.bulk",
            )
        machine.count("bytes.bulk.dsmem", n)
        site = t.site

        def complete(
            to: Cta = to,
            to_offset: int = to_offset,
            source: Cta = source,
            offset: int = offset,
            n: int = n,
            bar: Any = bar,
            site: int = site,
        ) -> None:
            data = source.smem[offset : offset + n]
            target = to.smem[to_offset : to_offset + n]
            target[...] = _combine(op, mods["type"], target.copy(), data) if op else data
            complete_tx(machine, bar, n, site)

        machine.issue((cluster, "tma", machine.next_id()), complete, "bulk copy", t.site)


@instruction("ptx.cp_async_bulk_s2c", counter="cp.async.bulk.dsmem")
def bulk_s2c(mods: Mods, t: Threads, dst: Any, src: Any, size: Any, mbar: Any) -> None:
    """Own shared memory to another CTA's shared memory."""
    _bulk_s2c(mods, t, dst, src, size, mbar, "")


@instruction("ptx.cp_reduce_async_bulk_s2c", counter="cp.reduce.async.bulk.dsmem")
def bulk_reduce_s2c(mods: Mods, t: Threads, dst: Any, src: Any, size: Any, mbar: Any) -> None:
    _bulk_s2c(mods, t, dst, src, size, mbar, mods["redop"])


def _bulk_s2g(mods: Mods, t: Threads, dst: Any, src: Any, size: Any, op: str) -> None:
    machine = t.cta.machine
    for index in _issuers(t):
        one = _one(t, index)
        n, pointer = int(lanes.pick(size, index)), int(lanes.pick(dst, index))
        cta, offset = t.cta.cluster.resolve(int(lanes.pick(src, index)), "bulk copy")
        _check_size(one, n, pointer, offset)
        segment, start = machine.memory.locate(pointer, 1, "bulk copy")
        machine.memory.locate(pointer + n - 1, 1, "bulk copy")
        cta.check_shared(offset, offset + n, "bulk copy: read")
        hb = t.cta.cluster.hb
        if hb is not None:
            hb.tma_store(
                _warp(one),
                int(one.tid) % 32,
                t.rd_site,
                reads=[(cta.rank, hbm.Span(offset, offset + n))],
                writes=[(segment.index, hbm.Span(start, start + n))],
                what="cp.async.bulk",
                atomic=bool(op),
            )
        machine.count("bytes.bulk.store", n)
        if machine.trace is not None:
            machine.trace.store(machine, t.site, n, -(-n // 128))

        def source(cta: Cta = cta, offset: int = offset, n: int = n) -> Any:
            return cta.smem[offset : offset + n].copy()

        def sink(data: Any, segment: Any = segment, start: int = start, n: int = n) -> None:
            target = segment.raw[start : start + n]
            target[...] = _combine(op, mods["type"], target.copy(), data) if op else data

        _issue_store(one, BulkOp(source, sink), "bulk copy")


@instruction("ptx.cp_async_bulk_s2g", counter="cp.async.bulk.store")
def bulk_s2g(mods: Mods, t: Threads, dst: Any, src: Any, size: Any, policy: Any = (), mask: Any = ()) -> None:
    if len(mask):
        raise UnsupportedInstruction("cp.async.bulk", t.cta.machine.location(t.site), "with cp_mask")
    _bulk_s2g(mods, t, dst, src, size, "")


@instruction(
    "ptx.cp_reduce_async_bulk_s2g",
    "ptx.cp_reduce_async_bulk_s2g_f32_noftz",
    counter="cp.reduce.async.bulk.store",
)
def bulk_reduce_s2g(mods: Mods, t: Threads, dst: Any, src: Any, size: Any, policy: Any = ()) -> None:
    _bulk_s2g(mods, t, dst, src, size, mods["redop"])
