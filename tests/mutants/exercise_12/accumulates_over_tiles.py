# mutant: only the first tile of a cluster overwrites its accumulators
# check: correctness
# finding: -
from tvm.backend.cuda.lang import (
    ClusterPersistentScheduler2D,
    MBarrier,
    PipelineState,
    TCGen05Bar,
    TMABar,
)
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

BLK_M, BLK_N, BLK_K = (
    128,
    128,
    64,
)  # what one CTA holds: rows of A per consumer, rows of B, depth of one K tile
PAIR_M, PAIR_N = 2 * BLK_M, 2 * BLK_N  # the part of a tile of D that one consumer computes
CONSUMERS = 2  # MMA warps of a cluster; each has an accumulator, and a write-back warpgroup in both CTAs
TILE_M = CONSUMERS * PAIR_M  # rows of the tile of D of a cluster; it has PAIR_N columns
STAGES = 4  # K tiles that SMEM holds
EPI_N = 64  # columns that write-back moves at a time
GROUP = 8  # rows of tiles that are walked together
BOTH = 0b11  # mask of the two CTAs of a cluster


def build_kernel(M, N, K, dtype, SMS):
    """D = A @ B.T by SMS // 2 clusters; A (M, K), B (N, K), D (M, N); M a multiple of 512, N of 256, K of 64."""
    K_TILES = K // BLK_K
    PAIR_BYTES = 2 * (CONSUMERS * BLK_M + BLK_N) * BLK_K * 2
    SLICES = PAIR_N // EPI_N

    @T.prim_func
    def two_consumers(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        cta = T.cta_id([SMS])
        rank = T.cta_id_in_cluster([2])
        warpgroup = T.warpgroup_id([CONSUMERS + 1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, 512, cta_group=2)
        acc = tmem.alloc((BLK_M, CONSUMERS * PAIR_N), "float32")  # consumer c: columns c * PAIR_N ...
        full = TMABar(pool, STAGES)  # stage s holds a K tile, in both CTAs; the leader's is used
        empty = TCGen05Bar(pool, STAGES)  # the MMAs of both consumers have read stage s
        acc_full = TCGen05Bar(pool, CONSUMERS)  # the accumulator of consumer c is complete
        acc_empty = MBarrier(pool, CONSUMERS)  # write-back of both CTAs has read it; the leader's is used
        A_smem = pool.alloc_tcgen05_mma_AB((STAGES, CONSUMERS, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((CONSUMERS, BLK_M, EPI_N), dtype)
        pool.commit()

        full.init(1)
        empty.init(CONSUMERS)
        acc_full.init(1)
        acc_empty.init(2 * 128)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cluster_sync()

        # The tiles of this cluster: both CTAs walk through the same ones.
        tiles = ClusterPersistentScheduler2D(
            "tiles",
            num_m_tiles=M // TILE_M,
            num_n_tiles=N // PAIR_N,
            num_clusters=SMS // 2,
            l2_group_size=GROUP,
        )
        tiles.init(cta // 2)
        m0 = T.meta_var(tiles.m_idx * TILE_M + rank * BLK_M)
        n0 = T.meta_var(tiles.n_idx * PAIR_N)
        b0 = T.meta_var(tiles.n_idx * PAIR_N + rank * BLK_N)

        if warpgroup == CONSUMERS:
            if warp == 3:
                if T.cuda.elect_sync():
                    # Producer, in both CTAs.
                    load = PipelineState(STAGES, 1)
                    leader_full = full.remote_view(0)
                    while tiles.valid():
                        for k in T.serial(K_TILES):
                            k0 = T.meta_var(k * BLK_K)
                            empty.wait(load.stage, load.phase)
                            if rank == 0:
                                full.arrive(load.stage, PAIR_BYTES)
                            for c in T.unroll(CONSUMERS):
                                a0 = T.meta_var(m0 + c * PAIR_M)
                                Tx.copy_async(
                                    A_smem[load.stage, c, :, :],
                                    A[a0 : a0 + BLK_M, k0 : k0 + BLK_K],
                                    dispatch="tma_auto",
                                    cta_group=2,
                                    mbar=leader_full.ptr_to([load.stage]),
                                )
                            Tx.copy_async(
                                B_smem[load.stage, :, :],
                                B[b0 : b0 + BLK_N, k0 : k0 + BLK_K],
                                dispatch="tma_auto",
                                cta_group=2,
                                mbar=leader_full.ptr_to([load.stage]),
                            )
                            load.advance()
                        tiles.next_tile()
                    for _ in T.serial(STAGES):
                        empty.wait(load.stage, load.phase)
                        load.advance()
            elif warp < CONSUMERS:
                if rank == 0:
                    if T.cuda.elect_sync():
                        # MMA, in the leader, for both CTAs: this is consumer `warp`.
                        mma = PipelineState(STAGES, 0)
                        slot = PipelineState(1, 1)
                        while tiles.valid():
                            acc_empty.wait(warp, slot.phase)
                            T.ptx["tcgen05.fence::after_thread_sync"]()
                            for k in T.serial(K_TILES):
                                full.wait(mma.stage, mma.phase)
                                Tx.gemm_async(  # <- here
                                    acc[:, warp * PAIR_N : (warp + 1) * PAIR_N],
                                    A_smem[mma.stage, warp, :, :],
                                    B_smem[mma.stage, :, :],
                                    accum=k + 1 > slot.phase,
                                    dispatch="tcgen05",
                                    cta_group=2,
                                )
                                empty.arrive(mma.stage, cta_group=2, cta_mask=BOTH)
                                mma.advance()
                            acc_full.arrive(warp, cta_group=2, cta_mask=BOTH)
                            slot.advance()
                            tiles.next_tile()
        else:
            acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, EPI_N), "float32")
            out_regs = T.alloc_local((EPI_N,), dtype)
            # Write-back, in both CTAs: this CTA's rows of consumer `warpgroup`.
            done = PipelineState(1, 0)
            leader_acc_empty = acc_empty.remote_view(0)
            while tiles.valid():
                acc_full.wait(warpgroup, done.phase)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for i in T.unroll(SLICES):
                    column = T.meta_var(warpgroup * PAIR_N + i * EPI_N)
                    Tx.wg.copy_async(acc_regs[:, :], acc[:, column : column + EPI_N])
                    T.ptx["tcgen05.wait::ld.sync.aligned"]()
                    if i == SLICES - 1:
                        T.ptx["tcgen05.fence::before_thread_sync"]()
                        leader_acc_empty.arrive(warpgroup)
                    Tx.cast(out_regs[:], acc_regs.local(EPI_N)[:])
                    if warp == 0:
                        if T.cuda.elect_sync():
                            T.ptx["cp.async.bulk.wait_group.read"](0)
                    T.cuda.warpgroup_sync(warpgroup + 1)
                    Tx.copy(D_smem[warpgroup, warp * 32 + lane, 0:EPI_N], out_regs[:])
                    T.ptx["fence.proxy.async.shared::cta"]()
                    T.cuda.warpgroup_sync(warpgroup + 1)
                    if warp == 0:
                        if T.cuda.elect_sync():
                            d0 = T.meta_var(m0 + warpgroup * PAIR_M)
                            Tx.copy_async(
                                D[d0 : d0 + BLK_M, n0 + i * EPI_N : n0 + (i + 1) * EPI_N],
                                D_smem[warpgroup, :, :],
                                dispatch="tma_auto",
                            )
                            T.ptx["cp.async.bulk.commit_group"]()
                done.advance()
                tiles.next_tile()
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group"](0)

        T.cuda.cluster_sync()
        tmem.dealloc()

    return two_consumers
