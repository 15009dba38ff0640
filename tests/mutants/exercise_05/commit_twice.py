# mutant: two commits flip the phase twice, so a waiting thread can miss it
# check: synchronization
# finding: mbarrier.phase-overrun
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane


def build_kernel(M, N, K):
    """One tile of D = A @ B.T: A (M, K), B (N, K), D (M, N), float16; M = N = 128, K = 64."""

    @T.prim_func
    def mma_tile(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((N, K), "float16"),
        D: T.Buffer((M, N), "float16"),
    ):
        T.device_entry()
        T.cta_id([1])  # one CTA ...
        T.warpgroup_id([1])  # ... of one warpgroup: 128 threads
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        # SMEM: the pool hands out aligned pieces; commit() fixes the size of the whole.
        pool = T.SMEMPool()
        tmem_slot = pool.alloc((1,), "uint32")  # tcgen05.alloc leaves the TMEM address here
        mma_done = pool.alloc((1,), "uint64", align=8)  # the mbarrier
        A_smem = pool.alloc_tcgen05_mma_AB((M, K), "float16")
        B_smem = pool.alloc_tcgen05_mma_AB((N, K), "float16")
        pool.commit()

        if warp == 0:
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](
                tmem_slot.ptr_to([0]), T.uint32(N)
            )
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
            if T.cuda.elect_sync():
                T.ptx["mbarrier.init.shared.b64"](mma_done.ptr_to([0]), T.uint32(1))
                T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()  # now every thread may use the TMEM address and the mbarrier

        # TMEM: row m of the accumulator is lane m, column n the n-th column after the address.
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
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()

        if warp == 0:
            if T.cuda.elect_sync():
                Tx.gemm_async(
                    acc[:, :],
                    A_smem[:, :],
                    B_smem[:, :],
                    accum=False,
                    dispatch="tcgen05",
                    cta_group=1,
                )
                T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](
                    mma_done.ptr_to([0])
                )
                T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](  # <- here
                    mma_done.ptr_to([0])
                )

        T.cuda.mbarrier_wait(mma_done.ptr_to([0]), 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()

        # Registers: each thread holds one row of the tile.
        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (M, N), "float32")
        out_regs = T.alloc_local((N,), "float16")
        Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(out_regs[:], acc_regs.local(N)[:])
        Tx.copy(D[warp * 32 + lane, 0:N], out_regs[:])

        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        T.ptx["tcgen05.fence::after_thread_sync"]()
        if warp == 0:
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem, T.uint32(N))

    return mma_tile
