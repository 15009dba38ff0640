# mutant: the driving thread waits for the MMA of each K tile before it loads the next one
# check: speed
# finding: -
from tvm.backend.cuda.lang import PipelineState, TCGen05Bar, TMABar
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

BLK_M, BLK_N, BLK_K = 128, 128, 64  # a tile of D, and the depth of one K tile
STAGES = 4  # K tiles that SMEM holds
AHEAD = STAGES - 1  # loads run this many K tiles ahead of the MMA
GROUP = 8  # rows of tiles that are walked together


def build_kernel(M, N, K, dtype, SMS):
    """D = A @ B.T by at most SMS CTAs; A (M, K), B (N, K), D (M, N); M, N multiples of 128, K of 64."""
    M_TILES, N_TILES, K_TILES = M // BLK_M, N // BLK_N, K // BLK_K
    TILES = M_TILES * N_TILES
    TILE_BYTES = (BLK_M + BLK_N) * BLK_K * 2

    @T.prim_func
    def persistent(A: T.Buffer((M, K), dtype), B: T.Buffer((N, K), dtype), D: T.Buffer((M, N), dtype)):
        T.device_entry()
        # TODO 1 (new): cta, this CTA's index in a grid of SMS CTAs.
        cta = T.cta_id([SMS])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, 512)
        acc = tmem.alloc((BLK_M, BLK_N), "float32")
        # TODO 2 (08, TODO 3): the barriers full, empty (one per stage) and acc_ready; A_smem and
        # B_smem with STAGES tiles each, D_smem with one tile.
        full = TMABar(pool, STAGES)  # stage s holds a K tile
        empty = TCGen05Bar(pool, STAGES)  # the tensor core has read stage s
        acc_ready = TCGen05Bar(pool, 1)  # the accumulator is complete
        A_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_M, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((STAGES, BLK_N, BLK_K), dtype)
        D_smem = pool.alloc_tcgen05_mma_AB((BLK_M, BLK_N), dtype)
        pool.commit()

        # TODO 3 (08, TODO 4): initialise the three kinds of barriers and fence the inits.
        full.init(1)
        empty.init(1)
        acc_ready.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cta_sync()  # now every thread may use the barriers and TMEM

        acc_regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK_M, BLK_N), "float32")
        out_regs = T.alloc_local((BLK_N,), dtype)
        tile: T.int32 = 0
        # TODO 4 (08, TODO 6, and new): what outlives a tile: load and mma, where loads and MMAs are in the ring;
        # acc_phase, the parity of acc_ready. And tile: the first one of this CTA.
        load = PipelineState(STAGES, 1)  # parity 1: the first round finds every stage empty
        mma = PipelineState(STAGES, 0)
        acc_phase: T.int32 = 0
        tile = cta

        while tile < TILES:
            # TODO 5 (new): m0 and n0, the first row and column of the tile in D. Tiles are numbered
            # in groups of GROUP rows of tiles, column by column; the last group may be lower.
            top: T.let[T.int32] = tile // (GROUP * N_TILES) * GROUP  # first row of the group
            height: T.let[T.int32] = T.min(M_TILES - top, GROUP)
            place: T.let[T.int32] = tile % (GROUP * N_TILES)
            m0: T.let[T.int32] = (top + place % height) * BLK_M
            n0: T.let[T.int32] = place // height * BLK_N

            @T.inline
            def issue_load(k):
                # TODO 6 (08, TODO 7): load K tile k of this tile into stage load.stage.
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
                    # TODO 7 (08, TODO 8 to 12): the first loads; then for each K tile the MMA, the commit
                    # to empty, and the next load; at last the commit to acc_ready.
                    for k in T.serial(K_TILES):
                        issue_load(k)
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
                        empty.wait(mma.stage, mma.phase)  # <- here
                        mma.advance()
                    acc_ready.arrive(0)

            # TODO 8 (08, TODO 13): all threads wait for the accumulator. New: for which parity?
            acc_ready.wait(0, acc_phase)
            acc_phase = acc_phase ^ 1
            T.ptx["tcgen05.fence::after_thread_sync"]()

            # TODO 9 (08, TODO 13 and 14, and new): TMEM to registers; when the last store has read D_smem
            # (who knows?), registers to D_smem; hand the bytes to the async proxy and the
            # accumulator to the next tile's MMAs.
            Tx.wg.copy_async(acc_regs[:, :], acc[:, :])
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
            Tx.cast(out_regs[:], acc_regs.local(BLK_N)[:])
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx["cp.async.bulk.wait_group.read"](0)  # the thread that issued the store
            T.cuda.cta_sync()
            Tx.copy(D_smem[warp * 32 + lane, 0:BLK_N], out_regs[:])
            T.ptx["fence.proxy.async.shared::cta"]()
            T.ptx["tcgen05.fence::before_thread_sync"]()
            T.cuda.cta_sync()  # D_smem is complete, and every warp has read the accumulator
            T.ptx["tcgen05.fence::after_thread_sync"]()

            # TODO 10 (08, TODO 14): one thread stores D_smem by TMA and closes the bulk group.
            if warp == 0:
                if T.cuda.elect_sync():
                    Tx.copy_async(
                        D[m0 : m0 + BLK_M, n0 : n0 + BLK_N],
                        D_smem[:, :],
                        dispatch="tma_auto",
                    )
                    T.ptx["cp.async.bulk.commit_group"]()
            tile = tile + SMS

        # TODO 11 (08, TODO 14, the wait): SMEM must outlive the last store.
        if warp == 0:
            if T.cuda.elect_sync():
                T.ptx["cp.async.bulk.wait_group"](0)
        tmem.dealloc()

    return persistent
