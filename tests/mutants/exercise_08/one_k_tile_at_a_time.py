# mutant: the driving thread waits for the MMA of each K tile before it loads the next one
# check: speed
# finding: -
from tvm.backend.cuda.lang import PipelineState, TCGen05Bar, TMABar
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane

BLK_M, BLK_N = 128, 128  # one tile of D: the work of one CTA
BLK_K = 64  # columns of A and B in one stage
STAGES = 4  # K tiles that fit into SMEM
AHEAD = STAGES - 1  # how many K tiles the loads are ahead of the MMA


def build_kernel(M, N, K, dtype):
    """D = A @ B.T: A (M, K), B (N, K), D (M, N) of dtype; M, N multiples of 128, K of 64."""
    M_TILES, N_TILES, K_TILES = M // BLK_M, N // BLK_N, K // BLK_K
    # TODO 1 (07, TODO 1): TILE_BYTES, what TMA delivers for one K tile.
    TILE_BYTES = (BLK_M + BLK_N) * BLK_K * 2

    @T.prim_func
    def pipelined(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        # TODO 2 (07, TODO 2): the grid, m0 and n0.
        tile_m, tile_n = T.cta_id([M_TILES, N_TILES])
        m0 = T.meta_var(tile_m * BLK_M)
        n0 = T.meta_var(tile_n * BLK_N)
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        tmem_slot = pool.alloc((1,), "uint32")
        # TODO 3 (new): a ring of STAGES stages: A_smem and B_smem get a first dimension, the stage,
        # and so do the barriers `full` (TMA has filled the stage) and `empty` (the MMA has read it).
        # One more barrier, `acc_ready`: the accumulator is complete. D_smem as before.
        full = TMABar(pool, STAGES)
        empty = TCGen05Bar(pool, STAGES)
        acc_ready = TCGen05Bar(pool, 1)
        A_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((BLK_M, BLK_N), dtype)
        pool.commit()

        # TODO 4 (07, TODO 4): initialise the barriers, all three of them; fence the inits.
        full.init(1)
        empty.init(1)
        acc_ready.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        if warp == 0:
            # TODO 5 (07, TODO 5): allocate BLK_N columns of TMEM.
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

        # TODO 6 (new): two positions in the ring, `load` and `mma`: PipelineState(STAGES, phase).
        # With which phase does each of them begin?
        load = PipelineState(STAGES, 1)  # nothing has to be emptied in the first round
        mma = PipelineState(STAGES, 0)

        @T.inline
        def issue_load(k):
            # TODO 7 (07, TODO 6): load K tile k into stage load.stage. New: wait until that stage is
            # empty, before; advance `load`, after.
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
                # TODO 8 (new): the first AHEAD loads; what if there are fewer K tiles?
                for k in T.serial(K_TILES):
                    issue_load(k)
                    # TODO 9 (07, TODO 7): wait until stage mma.stage is full; issue the MMA on it.
                    full.wait(mma.stage, mma.phase)
                    Tx.gemm_async(
                        acc[:, :],
                        A_smem[mma.stage, :, :],
                        B_smem[mma.stage, :, :],
                        accum=k > 0,
                        dispatch="tcgen05",
                        cta_group=1,
                    )

                    # TODO 10 (new): commit to `empty`, so that the stage is free when the MMA has
                    # read it, and advance `mma`. Nobody waits for this MMA here!
                    empty.arrive(mma.stage)
                    empty.wait(mma.stage, mma.phase)  # <- here
                    mma.advance()

                # TODO 12 (new): tell everybody that the accumulator is complete: commit to acc_ready.
                acc_ready.arrive(0)

        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, BLK_N), "float32")
        out_regs = T.alloc_local((BLK_N,), dtype)
        # TODO 13 (07, TODO 10): read acc back and put it into D_smem. New: all threads wait for
        # acc_ready, before.
        acc_ready.wait(0, 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(out_regs[:], acc_regs.local(BLK_N)[:])
        Tx.copy(D_smem[warp * 32 + lane, 0:BLK_N], out_regs[:])

        # TODO 14 (07, TODO 11): hand D_smem over, meet, store the tile by TMA, free TMEM.
        T.ptx["fence.proxy.async.shared::cta"]()
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        T.ptx["tcgen05.fence::after_thread_sync"]()
        if warp == 0:
            if T.cuda.elect_sync():
                Tx.copy_async(D[m0 : m0 + BLK_M, n0 : n0 + BLK_N], D_smem[:, :], dispatch="tma_auto")
                T.ptx["cp.async.bulk.commit_group"]()
                T.ptx["cp.async.bulk.wait_group.read"](0)
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem, T.uint32(BLK_N))

    return pipelined
