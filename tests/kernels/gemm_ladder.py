"""The GEMM ladder: D = A B^T in nine steps, from one tensor-core tile to a cluster with two MMA consumers.

Every builder takes ``M, N, K`` and returns a ``PrimFunc`` over ``A (M, K)``, ``B (N, K)``, ``D (M, N)``,
all of ``dtype`` (float16 or bfloat16) with float32 accumulation. Each step adds one mechanism to the step
before:

====  ===============================  =====================================================================
step  builder                          what is new
====  ===============================  =====================================================================
1     :func:`step1_single_tile`        tcgen05.mma on one 128x128 tile: TMEM, descriptors, commit, read back
2     :func:`step2_k_loop`             accumulation over K; the phase of the mbarrier flips
3     :func:`step3_tile_grid`          one CTA per output tile
4     :func:`step4_tma`                TMA loads with byte counts, TMA store
5     :func:`step5_pipelined`          a ring of SMEM stages: loads run ahead of the tensor core
6     :func:`step6_persistent`         at most one CTA per SM, tiles from a scheduler in an L2-friendly order
7     :func:`step7_warp_specialized`   producer, MMA and write-back roles; four barriers; two accumulators
8     :func:`step8_two_cta`            cta_group::2: a pair of CTAs works on one 256x256 tile
9     :func:`step9_two_consumers`      two MMA warps per pair share one staged B
====  ===============================  =====================================================================

The kernels are correct by the letter of the PTX ISA: a proxy fence between generic SMEM writes and
asynchronous reads, tcgen05 fences around every thread synchronisation that orders TMEM accesses,
``tcgen05.wait::ld`` before a loaded register is used, a cluster barrier between ``mbarrier.init`` and the
first use by another CTA, and no thread that waits for a phase it can be overtaken in: a phase parity is one
bit, so a waiter must keep up with the signaller.
"""

from __future__ import annotations

from typing import Any

from tvm.backend.cuda.lang import ClusterPersistentScheduler2D, MBarrier, PipelineState, TCGen05Bar, TMABar
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane

BLK_M = 128  # rows of an output tile: the lanes of TMEM
BLK_N = 128  # columns of an output tile
BLK_K = 64  # 128 bytes of float16: one row of the 128-byte swizzle
EPI_N = 64  # columns that write-back moves at a time: one row of the 128-byte swizzle
NUM_SMS = 148  # of a B200


def _launched(num_ctas: int | None, tiles: int, cluster: int = 1) -> int:
    """CTAs of a persistent grid: as asked for, else one per SM, but no more than there are tiles for."""
    return num_ctas if num_ctas is not None else min(NUM_SMS, tiles * cluster)


def _require_multiples(M: int, N: int, K: int, tile_m: int, tile_n: int) -> None:
    for name, value, unit in (("M", M, tile_m), ("N", N, tile_n), ("K", K, BLK_K)):
        if value <= 0 or value % unit:
            raise ValueError(f"{name} = {value} must be a positive multiple of {unit}")


def step1_single_tile(M: int = 128, N: int = 128, K: int = 64, *, dtype: str = "float16") -> Any:
    """One CTA, one tile: M = 128; N = 32, 64 or 128 (TMEM columns); K a multiple of 64 that fits SMEM."""
    _require_multiples(M, N, K, BLK_M, 32)

    @T.prim_func
    def single_tile(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        T.cta_id([1])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        tmem_slot = pool.alloc((1,), "uint32")
        mma_done = pool.alloc((1,), "uint64", align=8)
        A_smem = pool.alloc_tcgen05_mma_AB((M, K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((N, K), dtype)
        pool.commit()

        if warp == 0:
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](
                tmem_slot.ptr_to([0]), T.uint32(N)
            )
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
            if T.cuda.elect_sync():
                T.ptx["mbarrier.init.shared.b64"](mma_done.ptr_to([0]), T.uint32(1))
                T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()  # the TMEM address and the mbarrier are there
        tmem: T.let[T.uint32] = tmem_slot[0]
        acc = T.decl_buffer(
            (M, N),
            "float32",
            scope="tmem",
            allocated_addr=tmem,
            layout=TileLayout(S[(M, N) : (1 @ TLane, 1 @ TCol)]),
        )

        Tx.cta.copy(A_smem[:, :], A[:, :])
        Tx.cta.copy(B_smem[:, :], B[:, :])
        T.ptx["fence.proxy.async.shared::cta"]()  # the tensor core reads SMEM through the async proxy
        T.cuda.cta_sync()

        if warp == 0:
            if T.cuda.elect_sync():
                Tx.gemm_async(
                    acc[:, :], A_smem[:, :], B_smem[:, :], accum=False, dispatch="tcgen05", cta_group=1
                )
                T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](
                    mma_done.ptr_to([0])
                )
        T.cuda.mbarrier_wait(mma_done.ptr_to([0]), 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()

        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (M, N), "float32")
        out_regs = T.alloc_local((N,), dtype)
        Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(out_regs[:], acc_regs.local(N)[:])
        Tx.copy(D[warp * 32 + lane, 0:N], out_regs[:])

        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()  # every warp has read its part of the accumulator
        if warp == 0:
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem, T.uint32(N))

    return single_tile


def step2_k_loop(M: int = 128, N: int = 128, K: int = 256, *, dtype: str = "float16") -> Any:
    """One CTA, one tile, any K that is a multiple of 64: one K tile in SMEM at a time."""
    return _k_loop(M, N, K, (1, 1), dtype)


def step3_tile_grid(M: int, N: int, K: int, *, dtype: str = "float16") -> Any:
    """One CTA per 128x128 output tile: M and N multiples of 128, K of 64."""
    return _k_loop(M, N, K, (M // BLK_M, N // BLK_N), dtype)


def _k_loop(M: int, N: int, K: int, grid: tuple[int, int], dtype: str) -> Any:
    _require_multiples(M, N, K, BLK_M, BLK_N)
    M_TILES, N_TILES = grid
    K_TILES = K // BLK_K

    @T.prim_func
    def k_loop(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        tile_m, tile_n = T.cta_id([M_TILES, N_TILES])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        m0 = T.meta_var(tile_m * BLK_M)
        n0 = T.meta_var(tile_n * BLK_N)

        pool = T.SMEMPool()
        tmem_slot = pool.alloc((1,), "uint32")
        mma_done = pool.alloc((1,), "uint64", align=8)
        A_smem = pool.alloc_tcgen05_mma_AB((BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((BLK_N, BLK_K), dtype)
        pool.commit()

        if warp == 0:
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](
                tmem_slot.ptr_to([0]), T.uint32(BLK_N)
            )
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
            if T.cuda.elect_sync():
                T.ptx["mbarrier.init.shared.b64"](mma_done.ptr_to([0]), T.uint32(1))
                T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        tmem: T.let[T.uint32] = tmem_slot[0]
        acc = T.decl_buffer(
            (BLK_M, BLK_N),
            "float32",
            scope="tmem",
            allocated_addr=tmem,
            layout=TileLayout(S[(BLK_M, BLK_N) : (1 @ TLane, 1 @ TCol)]),
        )

        phase: T.int32 = 0
        for k in T.serial(K_TILES):
            k0 = T.meta_var(k * BLK_K)
            Tx.cta.copy(A_smem[:, :], A[m0 : m0 + BLK_M, k0 : k0 + BLK_K])
            Tx.cta.copy(B_smem[:, :], B[n0 : n0 + BLK_N, k0 : k0 + BLK_K])
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.cta_sync()
            if warp == 0:
                if T.cuda.elect_sync():
                    Tx.gemm_async(
                        acc[:, :], A_smem[:, :], B_smem[:, :], accum=k > 0, dispatch="tcgen05", cta_group=1
                    )
                    T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](
                        mma_done.ptr_to([0])
                    )
            # Every thread waits: the MMA must have read SMEM before anyone overwrites it.  No thread can fall
            # two phases behind: the next MMA is issued only after a cta_sync that this thread takes part in.
            T.cuda.mbarrier_wait(mma_done.ptr_to([0]), phase)
            phase = phase ^ 1
        T.ptx["tcgen05.fence::after_thread_sync"]()

        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, BLK_N), "float32")
        out_regs = T.alloc_local((BLK_N,), dtype)
        Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(out_regs[:], acc_regs.local(BLK_N)[:])
        row = T.meta_var(m0 + warp * 32 + lane)
        Tx.copy(D[row, n0 : n0 + BLK_N], out_regs[:])

        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem, T.uint32(BLK_N))

    return k_loop


def step4_tma(M: int, N: int, K: int, *, dtype: str = "float16") -> Any:
    """One CTA per tile; one thread drives TMA loads and MMAs in turn; the tile leaves by TMA store."""
    _require_multiples(M, N, K, BLK_M, BLK_N)
    K_TILES = K // BLK_K
    TILE_BYTES = (BLK_M + BLK_N) * BLK_K * 2

    @T.prim_func
    def tma(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        tile_m, tile_n = T.cta_id([M // BLK_M, N // BLK_N])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        m0 = T.meta_var(tile_m * BLK_M)
        n0 = T.meta_var(tile_n * BLK_N)

        pool = T.SMEMPool()
        tmem_slot = pool.alloc((1,), "uint32")
        loaded = TMABar(pool, 1)  # one arrival and TILE_BYTES bytes: the K tile is in SMEM
        mma_done = TCGen05Bar(pool, 1)  # one arrival by tcgen05.commit: the MMA has read SMEM
        A_smem = pool.alloc_tcgen05_mma_AB((BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((BLK_M, BLK_N), dtype)
        pool.commit()

        loaded.init(1)
        mma_done.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        if warp == 0:
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](
                tmem_slot.ptr_to([0]), T.uint32(BLK_N)
            )
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
        T.cuda.cta_sync()
        tmem: T.let[T.uint32] = tmem_slot[0]
        acc = T.decl_buffer(
            (BLK_M, BLK_N),
            "float32",
            scope="tmem",
            allocated_addr=tmem,
            layout=TileLayout(S[(BLK_M, BLK_N) : (1 @ TLane, 1 @ TCol)]),
        )

        if warp == 0:
            if T.cuda.elect_sync():
                phase: T.int32 = 0
                for k in T.serial(K_TILES):
                    k0 = T.meta_var(k * BLK_K)
                    loaded.arrive(0, TILE_BYTES)
                    Tx.copy_async(
                        A_smem[:, :],
                        A[m0 : m0 + BLK_M, k0 : k0 + BLK_K],
                        dispatch="tma_auto",
                        mbar=loaded.ptr_to([0]),
                    )
                    Tx.copy_async(
                        B_smem[:, :],
                        B[n0 : n0 + BLK_N, k0 : k0 + BLK_K],
                        dispatch="tma_auto",
                        mbar=loaded.ptr_to([0]),
                    )
                    loaded.wait(0, phase)
                    Tx.gemm_async(
                        acc[:, :], A_smem[:, :], B_smem[:, :], accum=k > 0, dispatch="tcgen05", cta_group=1
                    )
                    mma_done.arrive(0)
                    mma_done.wait(0, phase)
                    phase = phase ^ 1
                T.ptx["tcgen05.fence::before_thread_sync"]()
        # Only the driving thread follows the phases; everybody else meets it here, after its last wait.
        T.cuda.cta_sync()
        T.ptx["tcgen05.fence::after_thread_sync"]()

        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, BLK_N), "float32")
        out_regs = T.alloc_local((BLK_N,), dtype)
        Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(out_regs[:], acc_regs.local(BLK_N)[:])
        Tx.copy(D_smem[warp * 32 + lane, 0:BLK_N], out_regs[:])
        T.ptx["fence.proxy.async.shared::cta"]()  # the TMA store reads SMEM through the async proxy
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        if warp == 0:
            if T.cuda.elect_sync():
                Tx.copy_async(D[m0 : m0 + BLK_M, n0 : n0 + BLK_N], D_smem[:, :], dispatch="tma_auto")
                T.ptx["cp.async.bulk.commit_group"]()
                T.ptx["cp.async.bulk.wait_group.read"](0)  # SMEM must outlive the store's reads
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem, T.uint32(BLK_N))

    return tma


def step5_pipelined(M: int, N: int, K: int, *, stages: int = 4, dtype: str = "float16") -> Any:
    """One CTA per tile; loads run ``stages - 1`` K tiles ahead of the MMA that is being issued."""
    _require_multiples(M, N, K, BLK_M, BLK_N)
    K_TILES = K // BLK_K
    TILE_BYTES = (BLK_M + BLK_N) * BLK_K * 2
    AHEAD = stages - 1

    @T.prim_func
    def pipelined(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        tile_m, tile_n = T.cta_id([M // BLK_M, N // BLK_N])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        m0 = T.meta_var(tile_m * BLK_M)
        n0 = T.meta_var(tile_n * BLK_N)

        pool = T.SMEMPool()
        tmem_slot = pool.alloc((1,), "uint32")
        full = TMABar(pool, stages)  # stage s holds a K tile
        empty = TCGen05Bar(pool, stages)  # the MMA has read stage s
        acc_ready = TCGen05Bar(
            pool, 1
        )  # the accumulator is complete: the only barrier that all threads wait for
        A_smem = pool.alloc_tcgen05_mma_AB((stages, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((stages, BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((BLK_M, BLK_N), dtype)
        pool.commit()

        full.init(1)
        empty.init(1)
        acc_ready.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        if warp == 0:
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](
                tmem_slot.ptr_to([0]), T.uint32(BLK_N)
            )
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
        T.cuda.cta_sync()
        tmem: T.let[T.uint32] = tmem_slot[0]
        acc = T.decl_buffer(
            (BLK_M, BLK_N),
            "float32",
            scope="tmem",
            allocated_addr=tmem,
            layout=TileLayout(S[(BLK_M, BLK_N) : (1 @ TLane, 1 @ TCol)]),
        )

        load = PipelineState(stages, 1)  # phase 1: a fresh `empty` barrier lets the first round through
        mma = PipelineState(stages, 0)

        @T.inline
        def issue_load(k):
            empty.wait(load.stage, load.phase)
            full.arrive(load.stage, TILE_BYTES)
            Tx.copy_async(
                A_smem[load.stage, :, :],
                A[m0 : m0 + BLK_M, k * BLK_K : (k + 1) * BLK_K],
                dispatch="tma_auto",
                mbar=full.ptr_to([load.stage]),
            )
            Tx.copy_async(
                B_smem[load.stage, :, :],
                B[n0 : n0 + BLK_N, k * BLK_K : (k + 1) * BLK_K],
                dispatch="tma_auto",
                mbar=full.ptr_to([load.stage]),
            )
            load.advance()

        if warp == 0:
            if T.cuda.elect_sync():
                for k in T.serial(min(AHEAD, K_TILES)):
                    issue_load(k)
                for k in T.serial(K_TILES):
                    full.wait(mma.stage, mma.phase)
                    Tx.gemm_async(
                        acc[:, :],
                        A_smem[mma.stage, :, :],
                        B_smem[mma.stage, :, :],
                        accum=k > 0,
                        dispatch="tcgen05",
                        cta_group=1,
                    )
                    empty.arrive(mma.stage)
                    mma.advance()
                    # While this MMA runs, refill the stage that the MMA before it has read.
                    if k + AHEAD < K_TILES:
                        issue_load(k + AHEAD)
                acc_ready.arrive(0)
        acc_ready.wait(0, 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()

        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, BLK_N), "float32")
        out_regs = T.alloc_local((BLK_N,), dtype)
        Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(out_regs[:], acc_regs.local(BLK_N)[:])
        Tx.copy(D_smem[warp * 32 + lane, 0:BLK_N], out_regs[:])
        T.ptx["fence.proxy.async.shared::cta"]()
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        if warp == 0:
            if T.cuda.elect_sync():
                Tx.copy_async(D[m0 : m0 + BLK_M, n0 : n0 + BLK_N], D_smem[:, :], dispatch="tma_auto")
                T.ptx["cp.async.bulk.commit_group"]()
                T.ptx["cp.async.bulk.wait_group.read"](0)
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem, T.uint32(BLK_N))

    return pipelined


def step6_persistent(
    M: int,
    N: int,
    K: int,
    *,
    num_ctas: int | None = None,
    stages: int = 4,
    group: int = 8,
    dtype: str = "float16",
) -> Any:
    """One CTA per SM (or ``num_ctas``) walks all tiles, ``group`` tile rows at a time; barriers and stages outlive a tile."""
    _require_multiples(M, N, K, BLK_M, BLK_N)
    num_ctas = _launched(num_ctas, (M // BLK_M) * (N // BLK_N))
    K_TILES = K // BLK_K
    TILE_BYTES = (BLK_M + BLK_N) * BLK_K * 2
    AHEAD = stages - 1

    @T.prim_func
    def persistent(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        cta = T.cta_id([num_ctas])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        full = TMABar(pool, stages)
        empty = TCGen05Bar(pool, stages)
        acc_ready = TCGen05Bar(pool, 1)
        tmem = T.TMEMPool(pool, 512)  # one CTA per SM: it may take all 512 columns
        acc = tmem.alloc((BLK_M, BLK_N), "float32")
        A_smem = pool.alloc_tcgen05_mma_AB((stages, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((stages, BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((BLK_M, BLK_N), dtype)
        pool.commit()

        full.init(1)
        empty.init(1)
        acc_ready.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cta_sync()

        tiles = ClusterPersistentScheduler2D(
            "tiles",
            num_m_tiles=M // BLK_M,
            num_n_tiles=N // BLK_N,
            num_clusters=num_ctas,
            l2_group_size=group,
        )
        m0 = T.meta_var(tiles.m_idx * BLK_M)
        n0 = T.meta_var(tiles.n_idx * BLK_N)
        load = PipelineState(stages, 1)
        mma = PipelineState(stages, 0)
        acc_phase: T.int32 = 0
        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, BLK_N), "float32")
        out_regs = T.alloc_local((BLK_N,), dtype)

        @T.inline
        def issue_load(k):
            empty.wait(load.stage, load.phase)
            full.arrive(load.stage, TILE_BYTES)
            Tx.copy_async(
                A_smem[load.stage, :, :],
                A[m0 : m0 + BLK_M, k * BLK_K : (k + 1) * BLK_K],
                dispatch="tma_auto",
                mbar=full.ptr_to([load.stage]),
            )
            Tx.copy_async(
                B_smem[load.stage, :, :],
                B[n0 : n0 + BLK_N, k * BLK_K : (k + 1) * BLK_K],
                dispatch="tma_auto",
                mbar=full.ptr_to([load.stage]),
            )
            load.advance()

        tiles.init(cta)
        while tiles.valid():
            if warp == 0:
                if T.cuda.elect_sync():
                    for k in T.serial(min(AHEAD, K_TILES)):
                        issue_load(k)
                    for k in T.serial(K_TILES):
                        full.wait(mma.stage, mma.phase)
                        Tx.gemm_async(
                            acc[:, :],
                            A_smem[mma.stage, :, :],
                            B_smem[mma.stage, :, :],
                            accum=k > 0,
                            dispatch="tcgen05",
                            cta_group=1,
                        )
                        empty.arrive(mma.stage)
                        mma.advance()
                        if k + AHEAD < K_TILES:
                            issue_load(k + AHEAD)
                    acc_ready.arrive(0)
            acc_ready.wait(0, acc_phase)
            acc_phase = acc_phase ^ 1
            T.ptx["tcgen05.fence::after_thread_sync"]()
            Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
            Tx.cast(out_regs[:], acc_regs.local(BLK_N)[:])

            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group.read"](0)  # the last tile's store has read D_smem
            T.cuda.cta_sync()
            Tx.copy(D_smem[warp * 32 + lane, 0:BLK_N], out_regs[:])
            T.ptx["fence.proxy.async.shared::cta"]()
            T.ptx["tcgen05.fence::before_thread_sync"]()
            T.cuda.cta_sync()  # D_smem is complete, and the accumulator is free for the next tile
            T.ptx["tcgen05.fence::after_thread_sync"]()
            if warp == 0:
                if T.cuda.elect_sync():
                    Tx.copy_async(D[m0 : m0 + BLK_M, n0 : n0 + BLK_N], D_smem[:, :], dispatch="tma_auto")
                    T.ptx["cp.async.bulk.commit_group"]()
            tiles.next_tile()

        if warp == 0:
            if T.cuda.elect_sync():
                T.ptx["cp.async.bulk.wait_group.read"](0)
        tmem.dealloc()

    return persistent


def step7_warp_specialized(
    M: int,
    N: int,
    K: int,
    *,
    num_ctas: int | None = None,
    blk_n: int = 256,
    stages: int = 4,
    group: int = 8,
    dtype: str = "float16",
) -> Any:
    """Three roles that meet only at mbarriers; two accumulators let write-back overlap the next tile's MMAs.

    ============== ============================= ==================== ==================================
    barrier        completed by                  waited for by        meaning of a completed phase
    ============== ============================= ==================== ==================================
    ``full[s]``    the producer and TMA's bytes  the MMA warp         stage s holds a K tile
    ``empty[s]``   tcgen05.commit                the producer         the tensor core has read stage s
    ``acc_full``   tcgen05.commit                write-back           the accumulator is complete
    ``acc_empty``  128 write-back threads        the MMA warp         the accumulator has been read
    ============== ============================= ==================== ==================================
    """
    _require_multiples(M, N, K, BLK_M, blk_n)
    num_ctas = _launched(num_ctas, (M // BLK_M) * (N // blk_n))
    K_TILES = K // BLK_K
    TILE_BYTES = (BLK_M + blk_n) * BLK_K * 2
    STORES = blk_n // EPI_N

    @T.prim_func
    def warp_specialized(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        cta = T.cta_id([num_ctas])
        warpgroup = T.warpgroup_id([2])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        full = TMABar(pool, stages)
        empty = TCGen05Bar(pool, stages)
        acc_full = TCGen05Bar(pool, 2)
        acc_empty = MBarrier(pool, 2)
        tmem = T.TMEMPool(pool, 512)
        acc = tmem.alloc((BLK_M, 2 * blk_n), "float32")
        A_smem = pool.alloc_tcgen05_mma_AB((stages, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((stages, blk_n, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((2, BLK_M, EPI_N), dtype)
        pool.commit()

        full.init(1)
        empty.init(1)
        acc_full.init(1)
        acc_empty.init(128)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cta_sync()

        # Every role walks the same tiles in the same order.
        tiles = ClusterPersistentScheduler2D(
            "tiles",
            num_m_tiles=M // BLK_M,
            num_n_tiles=N // blk_n,
            num_clusters=num_ctas,
            l2_group_size=group,
        )
        m0 = T.meta_var(tiles.m_idx * BLK_M)
        n0 = T.meta_var(tiles.n_idx * blk_n)
        tiles.init(cta)

        if warpgroup == 1:
            if warp == 0:
                if T.cuda.elect_sync():
                    # Producer: keep the ring full, across tiles.
                    load = PipelineState(stages, 1)
                    while tiles.valid():
                        for k in T.serial(K_TILES):
                            k0 = T.meta_var(k * BLK_K)
                            empty.wait(load.stage, load.phase)
                            full.arrive(load.stage, TILE_BYTES)
                            Tx.copy_async(
                                A_smem[load.stage, :, :],
                                A[m0 : m0 + BLK_M, k0 : k0 + BLK_K],
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
            elif warp == 1:
                if T.cuda.elect_sync():
                    # MMA: accumulate a tile, hand the accumulator over, go on with the other one.
                    mma = PipelineState(stages, 0)
                    slot = PipelineState(2, 1)
                    while tiles.valid():
                        acc_empty.wait(slot.stage, slot.phase)
                        T.ptx["tcgen05.fence::after_thread_sync"]()
                        for k in T.serial(K_TILES):
                            full.wait(mma.stage, mma.phase)
                            Tx.gemm_async(
                                acc[:, slot.stage * blk_n : (slot.stage + 1) * blk_n],
                                A_smem[mma.stage, :, :],
                                B_smem[mma.stage, :, :],
                                accum=k > 0,
                                dispatch="tcgen05",
                                cta_group=1,
                            )
                            empty.arrive(mma.stage)
                            mma.advance()
                        acc_full.arrive(slot.stage)
                        slot.advance()
                        tiles.next_tile()
        else:
            # Write-back: TMEM -> registers -> SMEM -> global memory, EPI_N columns at a time.
            done = PipelineState(2, 0)
            acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, EPI_N), "float32")
            out_regs = T.alloc_local((EPI_N,), dtype)
            while tiles.valid():
                acc_full.wait(done.stage, done.phase)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for i in T.unroll(STORES):
                    column = T.meta_var(done.stage * blk_n + i * EPI_N)
                    Tx.wg.copy_async(acc_regs[:, :], acc[:, column : column + EPI_N])
                    T.ptx["tcgen05.wait::ld.sync.aligned"]()
                    if i == STORES - 1:
                        T.ptx["tcgen05.fence::before_thread_sync"]()
                        acc_empty.arrive(done.stage)
                    Tx.cast(out_regs[:], acc_regs.local(EPI_N)[:])
                    if warp == 0:
                        if T.cuda.elect_sync():
                            T.ptx["cp.async.bulk.wait_group.read"](
                                1
                            )  # the store before the last has read its half
                    T.cuda.warpgroup_sync(1)
                    Tx.copy(D_smem[i % 2, warp * 32 + lane, 0:EPI_N], out_regs[:])
                    T.ptx["fence.proxy.async.shared::cta"]()
                    T.cuda.warpgroup_sync(1)
                    if warp == 0:
                        if T.cuda.elect_sync():
                            Tx.copy_async(
                                D[m0 : m0 + BLK_M, n0 + i * EPI_N : n0 + (i + 1) * EPI_N],
                                D_smem[i % 2, :, :],
                                dispatch="tma_auto",
                            )
                            T.ptx["cp.async.bulk.commit_group"]()
                done.advance()
                tiles.next_tile()
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group.read"](0)

        T.cuda.cta_sync()  # nobody uses TMEM any more
        tmem.dealloc()

    return warp_specialized


def step8_two_cta(
    M: int,
    N: int,
    K: int,
    *,
    num_ctas: int | None = None,
    stages: int = 6,
    group: int = 8,
    dtype: str = "float16",
) -> Any:
    """A cluster of two CTAs computes a 256x256 tile with one stream of ``cta_group::2`` MMAs.

    CTA ``rank`` loads rows ``rank * 128 ...`` of the A tile and of the B tile and keeps rows ``rank * 128
    ...`` of the accumulator, all 256 columns. Each operand slice is loaded once per cluster. The leader
    (rank 0) issues the MMAs: ``full`` and ``acc_empty`` live in its SMEM and hear from both CTAs;
    ``empty`` and ``acc_full`` live in both CTAs and are signalled together by a multicast commit.
    """
    PAIR_M = 2 * BLK_M
    PAIR_N = 2 * BLK_N
    _require_multiples(M, N, K, PAIR_M, PAIR_N)
    num_ctas = _launched(num_ctas, (M // PAIR_M) * (N // PAIR_N), cluster=2)
    K_TILES = K // BLK_K
    PAIR_BYTES = 2 * (BLK_M + BLK_N) * BLK_K * 2
    STORES = PAIR_N // EPI_N
    BOTH = 0b11  # CTA mask of the pair

    @T.prim_func
    def two_cta(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        cta = T.cta_id([num_ctas])
        rank = T.cta_id_in_cluster([2])
        warpgroup = T.warpgroup_id([2])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        full = TMABar(pool, stages)
        empty = TCGen05Bar(pool, stages)
        acc_full = TCGen05Bar(pool, 2)
        acc_empty = MBarrier(pool, 2)
        tmem = T.TMEMPool(pool, 512, cta_group=2)
        acc = tmem.alloc((BLK_M, 2 * PAIR_N), "float32")
        A_smem = pool.alloc_tcgen05_mma_AB((stages, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((stages, BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((2, BLK_M, EPI_N), dtype)
        pool.commit()

        full.init(1)
        empty.init(1)
        acc_full.init(1)
        acc_empty.init(2 * 128)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cluster_sync()  # a CTA signals the other's barriers: both must have initialised them

        tiles = ClusterPersistentScheduler2D(
            "tiles",
            num_m_tiles=M // PAIR_M,
            num_n_tiles=N // PAIR_N,
            num_clusters=num_ctas // 2,
            l2_group_size=group,
        )
        m0 = T.meta_var(tiles.m_idx * PAIR_M + rank * BLK_M)  # this CTA's rows of A and D
        n0 = T.meta_var(tiles.n_idx * PAIR_N)
        tiles.init(cta // 2)

        if warpgroup == 1:
            if warp == 0:
                if T.cuda.elect_sync():
                    # Producer, in both CTAs: own halves into own SMEM, bytes to the leader's barrier.
                    leader_full = full.remote_view(0)
                    load = PipelineState(stages, 1)
                    while tiles.valid():
                        for k in T.serial(K_TILES):
                            k0 = T.meta_var(k * BLK_K)
                            n_half = T.meta_var(n0 + rank * BLK_N)
                            empty.wait(load.stage, load.phase)
                            if rank == 0:
                                full.arrive(load.stage, PAIR_BYTES)  # the bytes of both CTAs
                            Tx.copy_async(
                                A_smem[load.stage, :, :],
                                A[m0 : m0 + BLK_M, k0 : k0 + BLK_K],
                                dispatch="tma_auto",
                                cta_group=2,
                                mbar=leader_full.ptr_to([load.stage]),
                            )
                            Tx.copy_async(
                                B_smem[load.stage, :, :],
                                B[n_half : n_half + BLK_N, k0 : k0 + BLK_K],
                                dispatch="tma_auto",
                                cta_group=2,
                                mbar=leader_full.ptr_to([load.stage]),
                            )
                            load.advance()
                        tiles.next_tile()
                    # Stay until the last commits have signalled this CTA's barriers.
                    for _ in T.serial(stages):
                        empty.wait(load.stage, load.phase)
                        load.advance()
            elif warp == 1:
                if rank == 0:
                    if T.cuda.elect_sync():
                        # MMA, in the leader: reads SMEM and writes TMEM of both CTAs.
                        mma = PipelineState(stages, 0)
                        slot = PipelineState(2, 1)
                        while tiles.valid():
                            acc_empty.wait(slot.stage, slot.phase)
                            T.ptx["tcgen05.fence::after_thread_sync"]()
                            for k in T.serial(K_TILES):
                                full.wait(mma.stage, mma.phase)
                                Tx.gemm_async(
                                    acc[:, slot.stage * PAIR_N : (slot.stage + 1) * PAIR_N],
                                    A_smem[mma.stage, :, :],
                                    B_smem[mma.stage, :, :],
                                    accum=k > 0,
                                    dispatch="tcgen05",
                                    cta_group=2,
                                )
                                empty.arrive(mma.stage, cta_group=2, cta_mask=BOTH)
                                mma.advance()
                            acc_full.arrive(slot.stage, cta_group=2, cta_mask=BOTH)
                            slot.advance()
                            tiles.next_tile()
        else:
            # Write-back, in both CTAs: this CTA's 128 rows.
            leader_acc_empty = acc_empty.remote_view(0)
            done = PipelineState(2, 0)
            acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, EPI_N), "float32")
            out_regs = T.alloc_local((EPI_N,), dtype)
            while tiles.valid():
                acc_full.wait(done.stage, done.phase)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for i in T.unroll(STORES):
                    column = T.meta_var(done.stage * PAIR_N + i * EPI_N)
                    Tx.wg.copy_async(acc_regs[:, :], acc[:, column : column + EPI_N])
                    T.ptx["tcgen05.wait::ld.sync.aligned"]()
                    if i == STORES - 1:
                        T.ptx["tcgen05.fence::before_thread_sync"]()
                        leader_acc_empty.arrive(done.stage)
                    Tx.cast(out_regs[:], acc_regs.local(EPI_N)[:])
                    if warp == 0:
                        if T.cuda.elect_sync():
                            T.ptx["cp.async.bulk.wait_group.read"](1)
                    T.cuda.warpgroup_sync(1)
                    Tx.copy(D_smem[i % 2, warp * 32 + lane, 0:EPI_N], out_regs[:])
                    T.ptx["fence.proxy.async.shared::cta"]()
                    T.cuda.warpgroup_sync(1)
                    if warp == 0:
                        if T.cuda.elect_sync():
                            Tx.copy_async(
                                D[m0 : m0 + BLK_M, n0 + i * EPI_N : n0 + (i + 1) * EPI_N],
                                D_smem[i % 2, :, :],
                                dispatch="tma_auto",
                            )
                            T.ptx["cp.async.bulk.commit_group"]()
                done.advance()
                tiles.next_tile()
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group.read"](0)

        T.cuda.cluster_sync()  # neither CTA reads TMEM or signals the other any more
        tmem.dealloc()

    return two_cta


def step9_two_consumers(
    M: int,
    N: int,
    K: int,
    *,
    num_ctas: int | None = None,
    stages: int = 4,
    group: int = 8,
    dtype: str = "float16",
) -> Any:
    """Two MMA warps per cluster, each with its own A and accumulator, share each staged B: 512x256 tiles.

    Rows ``c * 256 ...`` of the cluster's tile belong to consumer ``c``: its MMA warp in the leader, its
    write-back warpgroup in both CTAs. A stage is free when both consumers have read it: ``empty`` counts
    two commits.
    """
    CONSUMERS = 2
    PAIR_M = 2 * BLK_M
    PAIR_N = 2 * BLK_N
    _require_multiples(M, N, K, CONSUMERS * PAIR_M, PAIR_N)
    num_ctas = _launched(num_ctas, (M // (CONSUMERS * PAIR_M)) * (N // PAIR_N), cluster=2)
    K_TILES = K // BLK_K
    PAIR_BYTES = 2 * (CONSUMERS * BLK_M + BLK_N) * BLK_K * 2
    EPI = 32  # 64 bytes: two write-back warpgroups must share what the stages leave of SMEM
    STORES = PAIR_N // EPI
    BOTH = 0b11

    @T.prim_func
    def two_consumers(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        cta = T.cta_id([num_ctas])
        rank = T.cta_id_in_cluster([2])
        warpgroup = T.warpgroup_id([3])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        full = TMABar(pool, stages)
        empty = TCGen05Bar(pool, stages)
        acc_full = TCGen05Bar(pool, CONSUMERS)
        acc_empty = MBarrier(pool, CONSUMERS)
        tmem = T.TMEMPool(pool, 512, cta_group=2)
        acc = tmem.alloc((BLK_M, CONSUMERS * PAIR_N), "float32")  # one accumulator per consumer: all of TMEM
        A_smem = pool.alloc_tcgen05_mma_AB((stages, CONSUMERS, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((stages, BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB(
            (CONSUMERS, 2, BLK_M, EPI), dtype, swizzle_mode=SwizzleMode.SWIZZLE_64B_ATOM
        )
        pool.commit()

        full.init(1)
        empty.init(CONSUMERS)
        acc_full.init(1)
        acc_empty.init(2 * 128)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cluster_sync()

        tiles = ClusterPersistentScheduler2D(
            "tiles",
            num_m_tiles=M // (CONSUMERS * PAIR_M),
            num_n_tiles=N // PAIR_N,
            num_clusters=num_ctas // 2,
            l2_group_size=group,
        )
        m0 = T.meta_var(tiles.m_idx * CONSUMERS * PAIR_M + rank * BLK_M)  # consumer 0's rows in this CTA
        n0 = T.meta_var(tiles.n_idx * PAIR_N)
        tiles.init(cta // 2)

        if warpgroup == 2:
            if warp == 3:
                if T.cuda.elect_sync():
                    # Producer, in both CTAs: two A tiles and half of B per stage.
                    leader_full = full.remote_view(0)
                    load = PipelineState(stages, 1)
                    while tiles.valid():
                        for k in T.serial(K_TILES):
                            k0 = T.meta_var(k * BLK_K)
                            n_half = T.meta_var(n0 + rank * BLK_N)
                            empty.wait(load.stage, load.phase)
                            if rank == 0:
                                full.arrive(load.stage, PAIR_BYTES)
                            for c in T.unroll(CONSUMERS):
                                m_half = T.meta_var(m0 + c * PAIR_M)
                                Tx.copy_async(
                                    A_smem[load.stage, c, :, :],
                                    A[m_half : m_half + BLK_M, k0 : k0 + BLK_K],
                                    dispatch="tma_auto",
                                    cta_group=2,
                                    mbar=leader_full.ptr_to([load.stage]),
                                )
                            Tx.copy_async(
                                B_smem[load.stage, :, :],
                                B[n_half : n_half + BLK_N, k0 : k0 + BLK_K],
                                dispatch="tma_auto",
                                cta_group=2,
                                mbar=leader_full.ptr_to([load.stage]),
                            )
                            load.advance()
                        tiles.next_tile()
                    for _ in T.serial(stages):
                        empty.wait(load.stage, load.phase)
                        load.advance()
            elif warp < CONSUMERS:
                if rank == 0:
                    if T.cuda.elect_sync():
                        # MMA warp `warp`, in the leader: consumer `warp`.
                        mma = PipelineState(stages, 0)
                        acc_phase: T.int32 = 1
                        while tiles.valid():
                            acc_empty.wait(warp, acc_phase)
                            acc_phase = acc_phase ^ 1
                            T.ptx["tcgen05.fence::after_thread_sync"]()
                            for k in T.serial(K_TILES):
                                full.wait(mma.stage, mma.phase)
                                Tx.gemm_async(
                                    acc[:, warp * PAIR_N : (warp + 1) * PAIR_N],
                                    A_smem[mma.stage, warp, :, :],
                                    B_smem[mma.stage, :, :],
                                    accum=k > 0,
                                    dispatch="tcgen05",
                                    cta_group=2,
                                )
                                empty.arrive(mma.stage, cta_group=2, cta_mask=BOTH)
                                mma.advance()
                            acc_full.arrive(warp, cta_group=2, cta_mask=BOTH)
                            tiles.next_tile()
        else:
            # Write-back warpgroup `warpgroup`, in both CTAs: 128 rows of that consumer.
            leader_acc_empty = acc_empty.remote_view(0)
            done_phase: T.int32 = 0
            acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, EPI), "float32")
            out_regs = T.alloc_local((EPI,), dtype)
            while tiles.valid():
                acc_full.wait(warpgroup, done_phase)
                done_phase = done_phase ^ 1
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for i in T.unroll(STORES):
                    column = T.meta_var(warpgroup * PAIR_N + i * EPI)
                    Tx.wg.copy_async(acc_regs[:, :], acc[:, column : column + EPI])
                    T.ptx["tcgen05.wait::ld.sync.aligned"]()
                    if i == STORES - 1:
                        T.ptx["tcgen05.fence::before_thread_sync"]()
                        leader_acc_empty.arrive(warpgroup)
                    Tx.cast(out_regs[:], acc_regs.local(EPI)[:])
                    if warp == 0:
                        if T.cuda.elect_sync():
                            T.ptx["cp.async.bulk.wait_group.read"](1)
                    T.cuda.warpgroup_sync(warpgroup + 1)  # one named barrier per warpgroup; 0 is cta_sync's
                    Tx.copy(D_smem[warpgroup, i % 2, warp * 32 + lane, 0:EPI], out_regs[:])
                    T.ptx["fence.proxy.async.shared::cta"]()
                    T.cuda.warpgroup_sync(warpgroup + 1)
                    if warp == 0:
                        if T.cuda.elect_sync():
                            m_half = T.meta_var(m0 + warpgroup * PAIR_M)
                            Tx.copy_async(
                                D[m_half : m_half + BLK_M, n0 + i * EPI : n0 + (i + 1) * EPI],
                                D_smem[warpgroup, i % 2, :, :],
                                dispatch="tma_auto",
                            )
                            T.ptx["cp.async.bulk.commit_group"]()
                tiles.next_tile()
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group.read"](0)

        T.cuda.cluster_sync()
        tmem.dealloc()

    return two_consumers
