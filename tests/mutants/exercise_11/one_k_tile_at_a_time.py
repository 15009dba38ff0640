# mutant: the producer waits for the MMA of each K tile before it loads the next one
# check: speed
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

BLK_M, BLK_N, BLK_K = 128, 128, 64  # what one CTA holds: rows of A, rows of B, depth of one K tile
PAIR_M, PAIR_N = 2 * BLK_M, 2 * BLK_N  # the tile of D of a cluster
STAGES = 6  # K tiles that SMEM holds
ACCS = 2  # accumulators that TMEM holds
EPI_N = 64  # columns that write-back moves at a time
GROUP = 8  # rows of tiles that are walked together
BOTH = 0b11  # mask of the two CTAs of a cluster


def build_kernel(M, N, K, dtype, SMS):
    """D = A @ B.T by SMS // 2 clusters; A (M, K), B (N, K), D (M, N); M, N multiples of 256, K of 64."""
    K_TILES = K // BLK_K
    PAIR_BYTES = 2 * (BLK_M + BLK_N) * BLK_K * 2
    SLICES = PAIR_N // EPI_N

    @T.prim_func
    def pair(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        cta = T.cta_id([SMS])
        rank = T.cta_id_in_cluster([2])
        warpgroup = T.warpgroup_id([2])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, 512, cta_group=2)
        acc = tmem.alloc((BLK_M, ACCS * PAIR_N), "float32")  # accumulator a: columns a * PAIR_N ...
        # TODO 1 (10, TODO 1): the four kinds of barriers; A_smem and B_smem with STAGES tiles each, what
        # this CTA holds of them; D_smem with two slices of EPI_N columns.
        full = TMABar(pool, STAGES)  # stage s holds a K tile, in both CTAs; the leader's is used
        empty = TCGen05Bar(pool, STAGES)  # the tensor cores have read stage s
        acc_full = TCGen05Bar(pool, ACCS)  # accumulator a is complete
        acc_empty = MBarrier(pool, ACCS)  # write-back of both CTAs has read it; the leader's is used
        A_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((2, BLK_M, EPI_N), dtype)
        pool.commit()

        # TODO 2 (10, TODO 2, and new): initialise the barriers, and fence the inits. How many threads of
        # the cluster arrive at acc_empty?
        full.init(1)
        empty.init(1)
        acc_full.init(1)
        acc_empty.init(2 * 128)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        # TODO 3 (new): before anybody signals a barrier, here or in the other CTA ...
        T.cuda.cluster_sync()

        # The tiles of this cluster: both CTAs walk through the same ones.
        tiles = ClusterPersistentScheduler2D(
            "tiles",
            num_m_tiles=M // PAIR_M,
            num_n_tiles=N // PAIR_N,
            num_clusters=SMS // 2,
            l2_group_size=GROUP,
        )
        tiles.init(cta // 2)
        # TODO 4 (new): m0, the first row of A and of D that is this CTA's; n0, the first column of the
        # tile in D; b0, the first row of B that this CTA loads.
        m0 = T.meta_var(tiles.m_idx * PAIR_M + rank * BLK_M)
        n0 = T.meta_var(tiles.n_idx * PAIR_N)
        b0 = T.meta_var(tiles.n_idx * PAIR_N + rank * BLK_N)

        if warpgroup == 1:
            if warp == 0:
                if T.cuda.elect_sync():
                    # Producer, in both CTAs.
                    # TODO 5 (10, TODO 3, and new): load; and leader_full, the leader's full.
                    load = PipelineState(STAGES, 1)
                    leader_full = full.remote_view(0)
                    while tiles.valid():
                        for k in T.serial(K_TILES):
                            # TODO 6 (10, TODO 4, and new): load this CTA's part of K tile k, when its stage is
                            # empty. Who announces how many bytes? Whose barrier do the loads signal?
                            k0 = T.meta_var(k * BLK_K)
                            empty.wait(load.stage, load.phase)
                            if rank == 0:
                                full.arrive(load.stage, PAIR_BYTES)
                            Tx.copy_async(
                                A_smem[load.stage, :, :],
                                A[m0 : m0 + BLK_M, k0 : k0 + BLK_K],
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
                            empty.wait(load.stage, load.phase ^ 1)  # <- here
                            load.advance()
                        tiles.next_tile()
                    # TODO 7 (new): stay until the last commits have arrived at this CTA's empty.
                    for _ in T.serial(STAGES):
                        empty.wait(load.stage, load.phase)
                        load.advance()
            elif warp == 1:
                if rank == 0:
                    if T.cuda.elect_sync():
                        # MMA, in the leader, for both CTAs.
                        # TODO 8 (10, TODO 5): mma and slot.
                        mma = PipelineState(STAGES, 0)
                        slot = PipelineState(ACCS, 1)
                        while tiles.valid():
                            # TODO 9 (10, TODO 6): wait until the accumulator is empty.
                            acc_empty.wait(slot.stage, slot.phase)
                            T.ptx["tcgen05.fence::after_thread_sync"]()
                            for k in T.serial(K_TILES):
                                # TODO 10 (10, TODO 7, and new): the MMA of K tile k by both CTAs; the stage is
                                # empty in both when it is complete.
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
                            # TODO 11 (10, TODO 8, and new): the accumulator is full, in both CTAs.
                            acc_full.arrive(slot.stage, cta_group=2, cta_mask=BOTH)
                            slot.advance()
                            tiles.next_tile()
        else:
            acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, EPI_N), "float32")
            out_regs = T.alloc_local((EPI_N,), dtype)
            # Write-back, in both CTAs: this CTA's rows.
            # TODO 12 (10, TODO 9, and new): done; and leader_acc_empty, the leader's acc_empty.
            done = PipelineState(ACCS, 0)
            leader_acc_empty = acc_empty.remote_view(0)
            while tiles.valid():
                # TODO 13 (10, TODO 10): wait until the accumulator is full.
                acc_full.wait(done.stage, done.phase)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for i in T.unroll(SLICES):
                    # TODO 14 (10, TODO 11, and new): slice i to registers and to D_smem[i % 2]; the
                    # accumulator goes back to the MMA role, which is in the leader.
                    column = T.meta_var(done.stage * PAIR_N + i * EPI_N)
                    Tx.wg.copy_async(acc_regs[:, :], acc[:, column : column + EPI_N])
                    T.ptx["tcgen05.wait::ld.sync.aligned"]()
                    if i == SLICES - 1:
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
                    # TODO 15 (10, TODO 12): one thread stores the slice by TMA and closes the bulk group.
                    if warp == 0:
                        if T.cuda.elect_sync():
                            Tx.copy_async(
                                D[m0 : m0 + BLK_M, n0 + i * EPI_N : n0 + (i + 1) * EPI_N],
                                D_smem[i % 2, :, :],
                                dispatch="tma_auto",
                            )
                            T.ptx["cp.async.bulk.commit_group"]()
                # TODO 16 (10, TODO 13): on to the next accumulator.
                done.advance()
                tiles.next_tile()
            # TODO 17 (10, TODO 14): SMEM must outlive the last stores.
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group"](0)

        # TODO 18 (new): before a CTA of the cluster frees its TMEM and ends ...
        T.cuda.cluster_sync()
        tmem.dealloc()

    return pair
