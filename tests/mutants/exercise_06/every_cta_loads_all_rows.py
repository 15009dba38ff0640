# mutant: each CTA copies the tiles of all CTAs in its column of B
# check: mechanism
# finding: -
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane

BLK_M, BLK_N = 128, 128  # one tile of D: the work of one CTA
BLK_K = 64  # columns of A and B that are in SMEM at a time


def build_kernel(M, N, K, dtype):
    """D = A @ B.T: A (M, K), B (N, K), D (M, N) of dtype; M, N multiples of 128, K of 64."""
    M_TILES, N_TILES, K_TILES = M // BLK_M, N // BLK_N, K // BLK_K

    @T.prim_func
    def k_loop(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        tile_m, tile_n = T.cta_id([M_TILES, N_TILES])
        m0 = T.meta_var(tile_m * BLK_M)
        n0 = T.meta_var(tile_n * BLK_N)
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

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
            k0 = T.meta_var(k * BLK_K)  # the first column of K tile k

            Tx.cta.copy(A_smem[:, :], A[m0 : m0 + BLK_M, k0 : k0 + BLK_K])
            for other in T.serial(N_TILES):
                if other != tile_n:
                    Tx.cta.copy(  # <- here
                        B_smem[:, :], B[other * BLK_N : (other + 1) * BLK_N, k0 : k0 + BLK_K]
                    )
            T.cuda.cta_sync()
            Tx.cta.copy(B_smem[:, :], B[n0 : n0 + BLK_N, k0 : k0 + BLK_K])
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.cta_sync()

            if warp == 0:
                if T.cuda.elect_sync():
                    Tx.gemm_async(
                        acc[:, :],
                        A_smem[:, :],
                        B_smem[:, :],
                        accum=k > 0,
                        dispatch="tcgen05",
                        cta_group=1,
                    )
                    T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](
                        mma_done.ptr_to([0])
                    )

            T.cuda.mbarrier_wait(mma_done.ptr_to([0]), phase)
            phase = phase ^ 1

        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, BLK_N), "float32")
        out_regs = T.alloc_local((BLK_N,), dtype)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(out_regs[:], acc_regs.local(BLK_N)[:])
        row = T.meta_var(m0 + warp * 32 + lane)
        Tx.copy(D[row, n0 : n0 + BLK_N], out_regs[:])

        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        T.ptx["tcgen05.fence::after_thread_sync"]()
        if warp == 0:
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem, T.uint32(BLK_N))

    return k_loop
