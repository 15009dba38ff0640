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

BLK_M, BLK_N, BLK_K = 128, 256, 64  # a tile of D, and the depth of one K tile
STAGES = 4  # K tiles that SMEM holds
ACCS = 2  # accumulators that TMEM holds
EPI_N = 64  # columns that write-back moves at a time
GROUP = 8  # rows of tiles that are walked together


def build_kernel(M, N, K, dtype, SMS):
    """D = A @ B.T by SMS CTAs; A (M, K), B (N, K), D (M, N); M a multiple of 128, N of 256, K of 64."""
    K_TILES = K // BLK_K
    TILE_BYTES = (BLK_M + BLK_N) * BLK_K * 2
    SLICES = BLK_N // EPI_N

    @T.prim_func
    def specialized(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        cta = T.cta_id([SMS])
        warpgroup = T.warpgroup_id([2])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, 512)
        acc = tmem.alloc((BLK_M, ACCS * BLK_N), "float32")  # accumulator a: columns a * BLK_N ...
        # TODO 1 (09, TODO 2, and new): the barriers full, empty (one per stage), acc_full, acc_empty (one per
        # accumulator); A_smem and B_smem with STAGES tiles each; D_smem with two slices of EPI_N columns.
        full = TMABar(pool, STAGES)  # stage s holds a K tile
        empty = TCGen05Bar(pool, STAGES)  # the tensor core has read stage s
        acc_full = TCGen05Bar(pool, ACCS)  # accumulator a is complete
        acc_empty = MBarrier(pool, ACCS)  # write-back has read accumulator a
        A_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((2, BLK_M, EPI_N), dtype)
        pool.commit()

        # TODO 2 (09, TODO 3, and new): initialise the four kinds of barriers, and fence the inits.
        full.init(1)
        empty.init(1)
        acc_full.init(1)
        acc_empty.init(128)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cta_sync()  # now every thread may use the barriers and TMEM

        # The tiles of this CTA, in the order of exercise 09. Every role walks through all of them.
        tiles = ClusterPersistentScheduler2D(
            "tiles",
            num_m_tiles=M // BLK_M,
            num_n_tiles=N // BLK_N,
            num_clusters=SMS,
            l2_group_size=GROUP,
        )
        m0 = T.meta_var(tiles.m_idx * BLK_M)
        n0 = T.meta_var(tiles.n_idx * BLK_N)
        tiles.init(cta)

        if warpgroup == 1:
            if warp == 0:
                if T.cuda.elect_sync():
                    # Producer: keep the ring of stages full.
                    # TODO 3 (09, TODO 4): load, where it is in the ring of stages.
                    load = PipelineState(STAGES, 1)
                    while tiles.valid():
                        for k in T.serial(K_TILES):
                            # TODO 4 (09, TODO 6): load K tile k of this tile, when its stage is empty.
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
                                B[n0 : n0 + BLK_N, k0 : k0 + BLK_K],
                                dispatch="tma_auto",
                                mbar=full.ptr_to([load.stage]),
                            )
                            empty.wait(load.stage, load.phase ^ 1)  # <- here
                            load.advance()
                        tiles.next_tile()
            elif warp == 1:
                if T.cuda.elect_sync():
                    # MMA: empty the ring of stages, fill the ring of accumulators.
                    # TODO 5 (09, TODO 4, and new): mma, where it is in the ring of stages, and slot, where it is
                    # in the ring of accumulators.
                    mma = PipelineState(STAGES, 0)
                    slot = PipelineState(ACCS, 1)  # parity 1: the first round finds them empty
                    while tiles.valid():
                        # TODO 6 (new): wait until the accumulator is empty; the MMAs come after that.
                        acc_empty.wait(slot.stage, slot.phase)
                        T.ptx["tcgen05.fence::after_thread_sync"]()
                        for k in T.serial(K_TILES):
                            # TODO 7 (09, TODO 7): the MMA of K tile k, into this accumulator, when its stage is
                            # full; the stage is empty when the MMA is complete.
                            full.wait(mma.stage, mma.phase)
                            Tx.gemm_async(
                                acc[:, slot.stage * BLK_N : (slot.stage + 1) * BLK_N],
                                A_smem[mma.stage, :, :],
                                B_smem[mma.stage, :, :],
                                accum=k > 0,
                                dispatch="tcgen05",
                                cta_group=1,
                            )
                            empty.arrive(mma.stage)
                            mma.advance()
                        # TODO 8 (09, TODO 7, and new): the accumulator is full when these MMAs are complete.
                        acc_full.arrive(slot.stage)
                        slot.advance()
                        tiles.next_tile()
        else:
            acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, EPI_N), "float32")
            out_regs = T.alloc_local((EPI_N,), dtype)
            # Write-back: empty the ring of accumulators.
            # TODO 9 (new): done, where it is in the ring of accumulators.
            done = PipelineState(ACCS, 0)
            while tiles.valid():
                # TODO 10 (09, TODO 8): wait until the accumulator is full; the loads come after that.
                acc_full.wait(done.stage, done.phase)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for i in T.unroll(SLICES):
                    # TODO 11 (09, TODO 9, and new): slice i of the accumulator to registers; hand the accumulator
                    # back when the last slice is there; registers to D_smem[i % 2], when the store before
                    # the last one has read it; hand it to the async proxy. The warpgroup meets twice.
                    column = T.meta_var(done.stage * BLK_N + i * EPI_N)
                    Tx.wg.copy_async(acc_regs[:, :], acc[:, column : column + EPI_N])
                    T.ptx["tcgen05.wait::ld.sync.aligned"]()
                    if i == SLICES - 1:
                        T.ptx["tcgen05.fence::before_thread_sync"]()
                        acc_empty.arrive(done.stage)
                    Tx.cast(out_regs[:], acc_regs.local(EPI_N)[:])
                    if warp == 0:
                        if T.cuda.elect_sync():
                            T.ptx["cp.async.bulk.wait_group.read"](1)  # all but the last store
                    T.cuda.warpgroup_sync(1)
                    Tx.copy(D_smem[i % 2, warp * 32 + lane, 0:EPI_N], out_regs[:])
                    T.ptx["fence.proxy.async.shared::cta"]()
                    T.cuda.warpgroup_sync(1)
                    # TODO 12 (09, TODO 10): one thread stores the slice by TMA and closes the bulk group.
                    if warp == 0:
                        if T.cuda.elect_sync():
                            Tx.copy_async(
                                D[m0 : m0 + BLK_M, n0 + i * EPI_N : n0 + (i + 1) * EPI_N],
                                D_smem[i % 2, :, :],
                                dispatch="tma_auto",
                            )
                            T.ptx["cp.async.bulk.commit_group"]()
                # TODO 13 (new): on to the next accumulator.
                done.advance()
                tiles.next_tile()
            # TODO 14 (09, TODO 11): SMEM must outlive the last stores.
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group"](0)

        T.cuda.cta_sync()  # nobody uses TMEM any more
        tmem.dealloc()

    return specialized
