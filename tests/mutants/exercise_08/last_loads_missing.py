# mutant: the loop stops loading one K tile early
# check: synchronization
# finding: deadlock
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
    TILE_BYTES = (BLK_M + BLK_N) * BLK_K * 2

    @T.prim_func
    def pipelined(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        tile_m, tile_n = T.cta_id([M_TILES, N_TILES])
        m0 = T.meta_var(tile_m * BLK_M)
        n0 = T.meta_var(tile_n * BLK_N)
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        tmem_slot = pool.alloc((1,), "uint32")
        full = TMABar(pool, STAGES)
        empty = TCGen05Bar(pool, STAGES)
        acc_ready = TCGen05Bar(pool, 1)
        A_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_N, BLK_K), dtype)
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

        load = PipelineState(STAGES, 1)  # nothing has to be emptied in the first round
        mma = PipelineState(STAGES, 0)

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
                    full.wait(mma.stage, mma.phase)  # <- here
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

                    if k + AHEAD < K_TILES - 1:
                        issue_load(k + AHEAD)

                acc_ready.arrive(0)

        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, BLK_N), "float32")
        out_regs = T.alloc_local((BLK_N,), dtype)
        acc_ready.wait(0, 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(out_regs[:], acc_regs.local(BLK_N)[:])
        Tx.copy(D_smem[warp * 32 + lane, 0:BLK_N], out_regs[:])

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
