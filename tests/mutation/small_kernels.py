"""Small kernels about synchronisation alone: copies and exchanges without a tensor core.

========================  ====================================================================================
builder                   what it is about
========================  ====================================================================================
:func:`ring_scale`        a TMA producer and generic consumers around a ring of stages; TMA stores
:func:`transpose`         TMA and hand-computed 128-byte swizzle of the same tile
:func:`named_barriers`    a double buffer between two warps, with bar.sync and bar.arrive only
:func:`cluster_exchange`  multicast TMA, remote stores and remote mbarriers between two CTAs
:func:`cp_async_ring`     cp.async groups of every thread, two tiles ahead
:func:`split_sum`         CTAs that add up parts in global memory; the last one to arrive finishes
========================  ====================================================================================
"""

from __future__ import annotations

from typing import Any

from tvm.backend.cuda.lang import MBarrier, PipelineState, TMABar
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx


def ring_scale(tiles: int = 5, stages: int = 2) -> Any:
    """OUT = 2 IN, both (64 tiles, 64) float16; one producer warp, four consumer warps, ``stages`` stages."""
    ROWS = 64
    TILE_BYTES = ROWS * 64 * 2

    @T.prim_func
    def scale(IN: T.Buffer((tiles * ROWS, 64), "float16"), OUT: T.Buffer((tiles * ROWS, 64), "float16")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([5])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        full = TMABar(pool, stages)
        empty = MBarrier(pool, stages)
        in_smem = pool.alloc_tcgen05_mma_AB((stages, ROWS, 64), "float16")
        out_smem = pool.alloc_tcgen05_mma_AB((2, ROWS, 64), "float16")
        pool.commit()

        full.init(1)
        empty.init(128)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()

        if warp == 4:
            if T.cuda.elect_sync():
                load = PipelineState(stages, 1)
                for i in T.serial(tiles):
                    empty.wait(load.stage, load.phase)
                    full.arrive(load.stage, TILE_BYTES)
                    Tx.copy_async(
                        in_smem[load.stage, :, :],
                        IN[i * ROWS : (i + 1) * ROWS, :],
                        dispatch="tma_auto",
                        mbar=full.ptr_to([load.stage]),
                    )
                    load.advance()
        else:
            use = PipelineState(stages, 0)
            values = T.alloc_local((32,), "float16")
            row = T.meta_var((warp * 32 + lane) // 2)
            half = T.meta_var((warp * 32 + lane) % 2 * 32)
            for i in T.serial(tiles):
                full.wait(use.stage, use.phase)
                Tx.copy(values[:], in_smem[use.stage, row, half : half + 32])
                empty.arrive(use.stage)
                use.advance()
                for j in T.serial(32):
                    values[j] = values[j] * T.float16(2.0)
                if warp == 0:
                    if T.cuda.elect_sync():
                        T.ptx["cp.async.bulk.wait_group.read"](
                            1
                        )  # the store before the last has left its slot
                T.ptx["bar.sync"](1, 128)
                Tx.copy(out_smem[i % 2, row, half : half + 32], values[:])
                T.ptx["fence.proxy.async.shared::cta"]()
                T.ptx["bar.sync"](1, 128)
                if warp == 0:
                    if T.cuda.elect_sync():
                        Tx.copy_async(
                            OUT[i * ROWS : (i + 1) * ROWS, :], out_smem[i % 2, :, :], dispatch="tma_auto"
                        )
                        T.ptx["cp.async.bulk.commit_group"]()
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group.read"](0)

    return scale


def transpose(tiles: int = 2) -> Any:
    """OUT = IN^T, IN (64, 64 tiles) and OUT (64 tiles, 64) float16; the tiles are swizzled in SMEM by hand."""
    SIDE = 64
    TILE_BYTES = SIDE * SIDE * 2

    @T.prim_func
    def transposed(
        IN: T.Buffer((SIDE, tiles * SIDE), "float16"), OUT: T.Buffer((tiles * SIDE, SIDE), "float16")
    ):
        T.device_entry()
        tile = T.cta_id([tiles])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        thread = T.meta_var(warp * 32 + lane)

        pool = T.SMEMPool()
        loaded = TMABar(pool, 1)
        in_flat = pool.alloc((SIDE * SIDE,), "float16", align=1024)
        out_flat = pool.alloc((SIDE * SIDE,), "float16", align=1024)
        in_tile = in_flat.view(
            SIDE, SIDE, layout=mma_shared_layout("float16", SwizzleMode.SWIZZLE_128B_ATOM, (SIDE, SIDE))
        )
        out_tile = out_flat.view(
            SIDE, SIDE, layout=mma_shared_layout("float16", SwizzleMode.SWIZZLE_128B_ATOM, (SIDE, SIDE))
        )
        pool.commit()

        loaded.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()

        if warp == 0:
            if T.cuda.elect_sync():
                loaded.arrive(0, TILE_BYTES)
                Tx.copy_async(
                    in_tile[:, :],
                    IN[:, tile * SIDE : (tile + 1) * SIDE],
                    dispatch="tma_auto",
                    mbar=loaded.ptr_to([0]),
                )
        loaded.wait(0, 0)
        for i in T.serial(SIDE * SIDE // 128):
            r = T.meta_var((i * 128 + thread) // SIDE)
            c = T.meta_var((i * 128 + thread) % SIDE)
            from_ = T.meta_var(r * SIDE + ((c // 8) ^ (r % 8)) * 8 + c % 8)
            to = T.meta_var(c * SIDE + ((r // 8) ^ (c % 8)) * 8 + r % 8)
            out_flat[to] = in_flat[from_]
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if warp == 0:
            if T.cuda.elect_sync():
                Tx.copy_async(OUT[tile * SIDE : (tile + 1) * SIDE, :], out_tile[:, :], dispatch="tma_auto")
                T.ptx["cp.async.bulk.commit_group"]()
                T.ptx["cp.async.bulk.wait_group.read"](0)

    return transposed


def named_barriers(rounds: int = 5) -> Any:
    """OUT[i, p, j] = IN[i, p, 31 - j] + i: two pairs of warps, each with a double buffer of 32 floats.

    Warp ``p`` writes for warp ``2 + p``. Barrier ``1 + 4 p + b`` says that buffer ``b`` of the pair is full,
    ``3 + 4 p + b`` that it is free.
    """

    @T.prim_func
    def reverse(IN: T.Buffer((rounds, 2, 32), "float32"), OUT: T.Buffer((rounds, 2, 32), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        pair = T.meta_var(warp % 2)

        pool = T.SMEMPool()
        buffer = pool.alloc((2, 2, 32), "float32")
        pool.commit()

        if warp < 2:
            for i in T.serial(rounds):
                if i >= 2:
                    T.ptx["bar.sync"](T.Cast("uint32", 3 + 4 * pair + i % 2), T.uint32(64))
                buffer[pair, i % 2, lane] = IN[i, pair, lane]
                T.ptx["bar.arrive"](T.Cast("uint32", 1 + 4 * pair + i % 2), T.uint32(64))
        else:
            for i in T.serial(rounds):
                T.ptx["bar.sync"](T.Cast("uint32", 1 + 4 * pair + i % 2), T.uint32(64))
                OUT[i, pair, lane] = buffer[pair, i % 2, 31 - lane] + T.Cast("float32", i)
                if i + 2 < rounds:
                    T.ptx["bar.arrive"](T.Cast("uint32", 3 + 4 * pair + i % 2), T.uint32(64))

    return reverse


def cluster_exchange() -> Any:
    """OUT[r, j] = sum over both halves of IN[:, j], for r in 0, 1; IN (64, 64) float32, a cluster of two CTAs.

    Each CTA loads half of the rows and multicasts them, adds up one half of the columns, and sends the sums to
    the other CTA, so that both know all 64.
    """
    ROWS = 32
    TILE_BYTES = 2 * ROWS * 64 * 4
    BOTH = 0b11

    @T.prim_func
    def exchange(IN: T.Buffer((2 * ROWS, 64), "float32"), OUT: T.Buffer((2, 64), "float32")):
        T.device_entry()
        T.cta_id([2])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([2])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        loaded = TMABar(pool, 1)
        sent = MBarrier(pool, 1)
        tile = pool.alloc((2 * ROWS, 64), "float32", align=1024)
        sums = pool.alloc((64,), "float32")
        pool.commit()

        loaded.init(1)
        sent.init(32)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cluster_sync()

        if warp == 0:
            if T.cuda.elect_sync():
                loaded.arrive(0, TILE_BYTES)
                Tx.copy_async(
                    tile[rank * ROWS : (rank + 1) * ROWS, :],
                    IN[rank * ROWS : (rank + 1) * ROWS, :],
                    dispatch="tma_auto",
                    mbar=loaded.ptr_to([0]),
                    cta_mask=BOTH,
                )
        total = T.alloc_local((1,), "float32")
        address = T.alloc_local((1,), "uint32")
        total[0] = T.float32(0)
        if warp == 0:
            loaded.wait(0, 0)
            for r in T.serial(2 * ROWS):
                total[0] = total[0] + tile[r, rank * 32 + lane]
            sums[rank * 32 + lane] = total[0]
            T.ptx["mapa.shared::cluster.u32"](
                address[0],
                T.cuda.cvta_generic_to_shared(sums.ptr_to([rank * 32 + lane])),
                T.Cast("uint32", 1 - rank),
            )
            T.ptx["st.shared::cluster.f32"](address[0], total[0])
            T.ptx["mapa.shared::cluster.u32"](
                address[0], T.cuda.cvta_generic_to_shared(sent.ptr_to([0])), T.Cast("uint32", 1 - rank)
            )
            T.ptx["mbarrier.arrive.release.cluster.shared::cluster.b64"](address[0])
        T.cuda.mbarrier_wait_acquire_cluster(sent.ptr_to([0]), 0)
        T.cuda.cta_sync()
        OUT[rank, warp * 32 + lane] = sums[warp * 32 + lane]
        T.cuda.cluster_sync()

    return exchange


def cp_async_ring(tiles: int = 5) -> Any:
    """OUT[i] = reversed IN[i], (tiles, 256) float32; two tiles ahead with cp.async, 64 threads of 16 bytes."""
    STAGES = 3

    @T.prim_func
    def ring(IN: T.Buffer((tiles, 256), "float32"), OUT: T.Buffer((tiles, 256), "float32")):
        T.device_entry()
        T.cta_id([1])
        thread = T.thread_id([64])

        pool = T.SMEMPool()
        stage = pool.alloc((STAGES, 256), "float32", align=16)
        pool.commit()

        for i in T.serial(2):
            T.ptx["cp.async.cg.shared.global"](stage.ptr_to([i, 4 * thread]), IN.ptr_to([i, 4 * thread]), 16)
            T.ptx["cp.async.commit_group"]()
        for i in T.serial(tiles):
            T.ptx["cp.async.wait_group"](1)
            T.cuda.cta_sync()  # tile i is there for everybody, and everybody has read tile i - 1
            if i + 2 < tiles:
                T.ptx["cp.async.cg.shared.global"](
                    stage.ptr_to([(i + 2) % STAGES, 4 * thread]), IN.ptr_to([i + 2, 4 * thread]), 16
                )
            T.ptx["cp.async.commit_group"]()
            for j in T.serial(4):
                OUT[i, j * 64 + thread] = stage[i % STAGES, 255 - (j * 64 + thread)]

    return ring


def split_sum(parts: int = 3) -> Any:
    """OUT (64,) = sum over p of IN[p] (parts, 64) float32; PARTIAL (parts, 64) and COUNT (1,) int32 = 0 are scratch."""

    @T.prim_func
    def split(
        IN: T.Buffer((parts, 64), "float32"),
        PARTIAL: T.Buffer((parts, 64), "float32"),
        COUNT: T.Buffer((1,), "int32"),
        OUT: T.Buffer((64,), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([parts])
        thread = T.thread_id([64])

        pool = T.SMEMPool()
        ticket = pool.alloc((1,), "int32")
        pool.commit()
        total = T.alloc_local((1,), "float32")
        before = T.alloc_local((1,), "int32")

        PARTIAL[cta, thread] = IN[cta, thread] * T.float32(2.0)
        T.cuda.cta_sync()
        if thread == 0:
            T.ptx["fence.acq_rel.gpu"]()
            T.ptx["atom.relaxed.gpu.global.add.s32"](before[0], COUNT.ptr_to([0]), 1)
            T.ptx["fence.acq_rel.gpu"]()
            ticket[0] = before[0]
        T.cuda.cta_sync()
        if ticket[0] == parts - 1:
            total[0] = T.float32(0)
            for p in T.serial(parts):
                total[0] = total[0] + PARTIAL[p, thread]
            OUT[thread] = total[0]

    return split
