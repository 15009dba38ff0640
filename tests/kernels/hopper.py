"""Kernels for an H200 (sm_90a): wgmma GEMMs from serial to persistent, streams of TMA loads, and rates of single engines.

They are measured there and modelled (docs/timing_model.md), so each leans on another part of the model:

=====================  ========================================================================================
:func:`serial`         one warpgroup: load a step of K, wait, multiply, wait
:func:`pipelined`      one warpgroup, a ring of stages: loads run ahead of wgmma
:func:`specialized`    a producer warp and consumer warpgroups; one tile per CTA, or persistent with an order of tiles
:func:`stream`         TMA loads only, with a given number of bytes in flight; from DRAM, or again and again from L2
:func:`wgmma_rate`     wgmma back to back on the same operands
:func:`exponentials`   ex2 or fused multiply-adds, and nothing else
=====================  ========================================================================================

GEMMs are D = A B^T with A (M, K), B (N, K), D (M, N) in float16 and float32 accumulation. K steps are 64 elements: one row of
the 128-byte swizzle.
"""

# ruff: noqa: F821 (TVMScript declares variables by annotations)
from __future__ import annotations

from typing import Any

from tvm.backend.cuda.lang import ClusterPersistentScheduler2D, MBarrier, PipelineState, TMABar
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

BLK_K = 64
WG_M = 64  # rows of one wgmma
SBO = 64  # bytes from eight rows to the next eight, in units of 16: 1024
SWIZZLE_128B = 3
NUM_SMS = 132  # of an H200


def _require(M: int, N: int, K: int, tile_m: int, tile_n: int) -> None:
    for name, value, unit in (("M", M, tile_m), ("N", N, tile_n), ("K", K, BLK_K)):
        if value <= 0 or value % unit:
            raise ValueError(f"{name} = {value} must be a positive multiple of {unit}")


@T.inline
def _multiply(acc, a_tile, b_tile, stage, row, text, registers, first):
    """One step of K: four wgmma of 16 elements each, rows ``row`` to ``row + 63`` of A; ``first``: overwrite."""
    a_desc: T.uint64
    b_desc: T.uint64
    for k in T.unroll(BLK_K // 16):
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(a_desc), a_tile.ptr_to([stage, row, k * 16]), 1, SBO, SWIZZLE_128B
        )
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(b_desc), b_tile.ptr_to([stage, 0, k * 16]), 1, SBO, SWIZZLE_128B
        )
        T.ptx[text](
            *[acc[j] for j in range(registers)],
            a_desc, b_desc, T.ptx.pred(T.uint32(T.if_then_else(k == 0, 1 - first, 1) != 0)), 1, 1, 0, 0,
        )  # fmt: skip


def _mma(n: int) -> str:
    return f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16"


def specialized(
    M: int, N: int, K: int, *, consumers: int = 2, blk_n: int = 128, stages: int = 4, lag: bool = True,
    num_ctas: int | None = None, group: int = 8,
) -> Any:  # fmt: skip
    """A producer warp and ``consumers`` warpgroups with 64 rows each; ``lag``: one wgmma group stays in flight.

    Args:
        num_ctas: CTAs of a persistent grid; None: one CTA per tile.
        group: rows of tiles that the order of tiles keeps together.
    """
    blk_m = WG_M * consumers
    _require(M, N, K, blk_m, blk_n)
    ctas = num_ctas if num_ctas is not None else (M // blk_m) * (N // blk_n)
    K_TILES = K // BLK_K
    TILE_BYTES = (blk_m + blk_n) * BLK_K * 2
    registers = blk_n // 2
    text = _mma(blk_n)
    chunks = blk_n // 64
    late = int(lag)

    @T.prim_func
    def hopper_specialized(
        A: T.Buffer((M, K), "float16"), B: T.Buffer((N, K), "float16"), D: T.Buffer((M, N), "float16")
    ):
        T.device_entry()
        cta = T.cta_id([ctas])
        warpgroup = T.warpgroup_id([consumers + 1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        full = TMABar(pool, stages)
        empty = MBarrier(pool, stages)
        A_smem = pool.alloc_tcgen05_mma_AB((stages, blk_m, BLK_K), "float16")
        B_smem = pool.alloc_tcgen05_mma_AB((stages, blk_n, BLK_K), "float16")
        D_smem = pool.alloc_tcgen05_mma_AB((max(2, consumers), WG_M, 64), "float16")
        pool.commit()
        full.init(1)
        empty.init(4 * consumers)  # every warp has read its part
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()

        tiles = ClusterPersistentScheduler2D(
            "tiles", num_m_tiles=M // blk_m, num_n_tiles=N // blk_n, num_clusters=ctas, l2_group_size=group
        )
        m0 = T.meta_var(tiles.m_idx * blk_m)
        n0 = T.meta_var(tiles.n_idx * blk_n)
        tiles.init(cta)

        if warpgroup == consumers:
            if warp == 0:
                if T.cuda.elect_sync():
                    load = PipelineState(stages, 1)
                    while tiles.valid():
                        for k in T.serial(K_TILES):
                            k0 = T.meta_var(k * BLK_K)
                            empty.wait(load.stage, load.phase)
                            full.arrive(load.stage, TILE_BYTES)
                            Tx.copy_async(
                                A_smem[load.stage, :, :],
                                A[m0 : m0 + blk_m, k0 : k0 + BLK_K],
                                dispatch="tma_auto",
                                mbar=full.ptr_to([load.stage]),
                            )
                            Tx.copy_async(
                                B_smem[load.stage, :, :],
                                B[n0 : n0 + blk_n, k0 : k0 + BLK_K],
                                dispatch="tma_auto",
                                mbar=full.ptr_to([load.stage]),
                            )
                            load.advance()
                        tiles.next_tile()
        else:
            acc = T.alloc_local((registers,), "float32")
            use = PipelineState(stages, 0)
            free = PipelineState(stages, 0)  # the stage that is released next
            while tiles.valid():
                for k in T.serial(K_TILES):
                    full.wait(use.stage, use.phase)
                    T.ptx["wgmma.fence.sync.aligned"]()
                    _multiply(
                        acc, A_smem, B_smem, use.stage, warpgroup * WG_M, text, registers,
                        T.if_then_else(k == 0, 1, 0),
                    )  # fmt: skip
                    T.ptx["wgmma.commit_group.sync.aligned"]()
                    use.advance()
                    T.ptx["wgmma.wait_group.sync.aligned"](late)
                    if k >= late:
                        if T.cuda.elect_sync():
                            empty.arrive(free.stage)
                        free.advance()
                T.ptx["wgmma.wait_group.sync.aligned"](0)
                for _ in T.unroll(late):
                    if T.cuda.elect_sync():
                        empty.arrive(free.stage)
                    free.advance()
                _write_back(acc, D, D_smem, warpgroup, warp, lane, m0 + warpgroup * WG_M, n0, chunks)
                tiles.next_tile()
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group.read"](0)

    return hopper_specialized


@T.inline
def _write_back(acc, D, D_smem, buffer, warp, lane, m0, n0, chunks):
    """The fragments of 64 rows to SMEM and on by TMA, 64 columns at a time. Barrier ``1 + buffer``: one warpgroup."""
    for c in T.unroll(chunks):
        if warp == 0:
            if T.cuda.elect_sync():
                T.ptx["cp.async.bulk.wait_group.read"](0)
        T.cuda.warpgroup_sync(1 + buffer)
        for j in T.unroll(32):
            D_smem[buffer, warp * 16 + lane // 4 + j % 4 // 2 * 8, j // 4 * 8 + lane % 4 * 2 + j % 2] = (
                T.Cast("float16", acc[c * 32 + j])
            )
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.warpgroup_sync(1 + buffer)
        if warp == 0:
            if T.cuda.elect_sync():
                Tx.copy_async(
                    D[m0 : m0 + WG_M, n0 + c * 64 : n0 + (c + 1) * 64],
                    D_smem[buffer, :, :],
                    dispatch="tma_auto",
                )
                T.ptx["cp.async.bulk.commit_group"]()


def pipelined(M: int, N: int, K: int, *, blk_n: int = 128, stages: int = 4) -> Any:
    """One warpgroup per 64 x ``blk_n`` tile; one thread keeps ``stages - 1`` loads ahead of the multiplications."""
    _require(M, N, K, WG_M, blk_n)
    K_TILES = K // BLK_K
    ahead = stages - 1
    TILE_BYTES = (WG_M + blk_n) * BLK_K * 2
    registers = blk_n // 2
    text = _mma(blk_n)

    @T.prim_func
    def hopper_pipelined(
        A: T.Buffer((M, K), "float16"), B: T.Buffer((N, K), "float16"), D: T.Buffer((M, N), "float16")
    ):
        T.device_entry()
        tile_n, tile_m = T.cta_id([N // blk_n, M // WG_M])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        m0 = T.meta_var(tile_m * WG_M)
        n0 = T.meta_var(tile_n * blk_n)

        pool = T.SMEMPool()
        full = TMABar(pool, stages)
        A_smem = pool.alloc_tcgen05_mma_AB((max(2, stages), WG_M, BLK_K), "float16")
        B_smem = pool.alloc_tcgen05_mma_AB((max(2, stages), blk_n, BLK_K), "float16")
        D_smem = pool.alloc_tcgen05_mma_AB((2, WG_M, 64), "float16")
        pool.commit()
        full.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()

        load = PipelineState(stages, 0)
        use = PipelineState(stages, 0)
        acc = T.alloc_local((registers,), "float32")
        for k in T.serial(K_TILES + ahead):
            if k < K_TILES:
                if warp == 0:
                    if T.cuda.elect_sync():
                        full.arrive(load.stage, TILE_BYTES)
                        Tx.copy_async(
                            A_smem[load.stage, :, :],
                            A[m0 : m0 + WG_M, k * BLK_K : (k + 1) * BLK_K],
                            dispatch="tma_auto",
                            mbar=full.ptr_to([load.stage]),
                        )
                        Tx.copy_async(
                            B_smem[load.stage, :, :],
                            B[n0 : n0 + blk_n, k * BLK_K : (k + 1) * BLK_K],
                            dispatch="tma_auto",
                            mbar=full.ptr_to([load.stage]),
                        )
                load.advance()
            if k >= ahead:
                full.wait(use.stage, use.phase)
                T.ptx["wgmma.fence.sync.aligned"]()
                _multiply(
                    acc, A_smem, B_smem, use.stage, 0, text, registers, T.if_then_else(k == ahead, 1, 0)
                )
                T.ptx["wgmma.commit_group.sync.aligned"]()
                T.ptx["wgmma.wait_group.sync.aligned"](0)
                T.cuda.cta_sync()  # all four warps have read the stage that is loaded next
                use.advance()
        _write_back(acc, D, D_smem, 0, warp, lane, m0, n0, blk_n // 64)
        if warp == 0:
            if T.cuda.elect_sync():
                T.ptx["cp.async.bulk.wait_group.read"](0)

    return hopper_pipelined


def serial(M: int, N: int, K: int, *, blk_n: int = 128) -> Any:
    """One warpgroup per 64 x ``blk_n`` tile: load a step of K, wait, multiply, wait."""
    return pipelined(M, N, K, blk_n=blk_n, stages=1)


def stream(
    rows: int, *, total_rows: int, box: int = 64, stages: int = 4, ctas: int = NUM_SMS, times: int = 1
) -> Any:
    """Every CTA loads its share of ``rows`` x 64 float16, box after box, ``times`` times; nothing is done with the data.

    Args:
        rows: that are loaded; with ``times`` > 1 again and again, from L2 when they fit.
        total_rows: of the tensor. box: rows of one TMA load (128 bytes each). stages: boxes in flight.
    """
    boxes = rows // box // ctas
    loads = boxes * times
    if boxes < 1 or loads < stages or rows > total_rows or box > 256:
        raise ValueError(
            f"{rows} rows in boxes of {box} are too few for {ctas} CTAs, or more than the tensor has"
        )

    @T.prim_func
    def tma_stream(A: T.Buffer((total_rows, 64), "float16"), D: T.Buffer((ctas, 32), "float16")):
        T.device_entry()
        cta = T.cta_id([ctas])
        thread = T.thread_id([32])
        pool = T.SMEMPool()
        full = TMABar(pool, stages)
        ring = pool.alloc_tcgen05_mma_AB((max(2, stages), box, 64), "float16")
        pool.commit()
        full.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        if T.cuda.elect_sync():
            load = PipelineState(stages, 0)
            use = PipelineState(stages, 0)
            for k in T.serial(loads + stages):
                if k >= stages:
                    full.wait(use.stage, use.phase)
                    use.advance()
                if k < loads:
                    row = T.meta_var((k % boxes * ctas + cta) * box)
                    full.arrive(load.stage, box * 128)
                    Tx.copy_async(
                        ring[load.stage, :, :],
                        A[row : row + box, 0:64],
                        dispatch="tma_auto",
                        mbar=full.ptr_to([load.stage]),
                    )
                    load.advance()
        T.cuda.cta_sync()
        D[cta, thread] = ring[0, 0, thread]

    return tma_stream


def wgmma_rate(
    n: int, *, groups: int = 512, warpgroups: int = 1, in_flight: int = 1, ctas: int = NUM_SMS
) -> Any:
    """``groups`` times four wgmma of 64 x ``n`` x 16 per warpgroup; ``in_flight``: groups that may be pending."""
    registers = n // 2
    text = _mma(n)

    @T.prim_func
    def wgmma_rate(D: T.Buffer((ctas, 128 * warpgroups), "float32")):
        T.device_entry()
        cta = T.cta_id([ctas])
        warpgroup = T.warpgroup_id([warpgroups])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        A_smem = pool.alloc_tcgen05_mma_AB((max(2, warpgroups), WG_M, BLK_K), "float16")
        B_smem = pool.alloc_tcgen05_mma_AB((max(2, warpgroups), n, BLK_K), "float16")
        pool.commit()
        thread = T.meta_var(warp * 32 + lane)
        for r in T.serial(WG_M * BLK_K // 128):
            A_smem[warpgroup, (r * 128 + thread) // BLK_K, (r * 128 + thread) % BLK_K] = T.float16(0)
        for r in T.serial(n * BLK_K // 128):
            B_smem[warpgroup, (r * 128 + thread) // BLK_K, (r * 128 + thread) % BLK_K] = T.float16(0)
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        acc = T.alloc_local((registers,), "float32")
        for g in T.serial(groups):
            T.ptx["wgmma.fence.sync.aligned"]()
            _multiply(acc, A_smem, B_smem, warpgroup, 0, text, registers, T.if_then_else(g == 0, 1, 0))
            T.ptx["wgmma.commit_group.sync.aligned"]()
            T.ptx["wgmma.wait_group.sync.aligned"](in_flight)
        T.ptx["wgmma.wait_group.sync.aligned"](0)
        D[cta, warpgroup * 128 + thread] = acc[0] + acc[registers - 1]

    return wgmma_rate


def exponentials(n: int, *, rounds: int = 64, fma: int = 0, ex2: int = 1) -> Any:
    """Each thread takes one float32 and applies ``ex2`` exponentials and ``fma`` multiply-adds per round to four chains."""
    threads = 256
    if n % threads:
        raise ValueError(f"n = {n} must be a multiple of {threads}")

    @T.prim_func
    def exponentials(A: T.Buffer((n,), "float32"), D: T.Buffer((n,), "float32")):
        T.device_entry()
        cta = T.cta_id([n // threads])
        thread = T.thread_id([threads])
        x = T.alloc_local((4,), "float32")
        for c in T.unroll(4):
            x[c] = A[cta * threads + thread] - T.float32(c)
        for _ in T.serial(rounds):
            for c in T.unroll(4):
                for _e in T.unroll(ex2):
                    T.ptx["ex2.approx.ftz.f32"](x[c], x[c])
                for _f in T.unroll(fma):
                    T.ptx["fma.rn.f32"](x[c], x[c], T.float32(0.999), T.float32(-0.001))
        D[cta * threads + thread] = x[0] + x[1] + x[2] + x[3]

    return exponentials


__all__ = ["exponentials", "pipelined", "serial", "specialized", "stream", "wgmma_rate"]
