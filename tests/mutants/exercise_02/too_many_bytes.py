# mutant: expect_tx announces float32 elements: more bytes than arrive
# check: synchronization
# finding: deadlock
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

ROWS, COLS = 32, 128  # one tile
STAGES = 2  # tiles that fit into SMEM at a time
SPAN = 16  # tiles in a strip, at most


def build_kernel(M, N):
    """D = 2 * A for A (M, N) and D (M, N), float16; one CTA per strip of up to 16 tiles, tile by tile."""
    STRIPS_M = (M + ROWS - 1) // ROWS  # strips one below the other
    TILES = (N + COLS - 1) // COLS
    STRIPS_N = (TILES + SPAN - 1) // SPAN  # strips side by side, in a wide matrix
    TILE_BYTES = ROWS * COLS * 4

    @T.prim_func
    def double(A: T.Buffer((M, N), "float16"), D: T.Buffer((M, N), "float16")):
        T.device_entry()
        strip_m, strip_n = T.cta_id([STRIPS_M, STRIPS_N])
        thread = T.thread_id([COLS])  # 128 threads: thread c owns column c of every tile
        row0 = T.meta_var(strip_m * ROWS)  # the first row of this CTA's strip
        first = T.meta_var(strip_n * SPAN * COLS)  # its first column
        count = T.meta_var(T.min(SPAN, TILES - strip_n * SPAN))  # its tiles

        # SMEM: one mbarrier and one tile per stage.
        pool = T.SMEMPool()
        loaded = pool.alloc((STAGES,), "uint64", align=8)
        tile = pool.alloc((STAGES, ROWS, COLS), "float16", align=128)
        pool.commit()

        if thread == 0:
            for s in T.unroll(STAGES):
                T.ptx["mbarrier.init.shared.b64"](loaded.ptr_to([s]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()  # now every thread may use the mbarriers

        if thread == 0:
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](loaded.ptr_to([0]), T.uint32(TILE_BYTES))
            Tx.copy_async(
                tile[0, :, :],
                A[row0 : row0 + ROWS, first : first + COLS],
                dispatch="tma_auto",
                mbar=loaded.ptr_to([0]),
            )

        for t in T.serial(count):
            stage = T.meta_var(t % STAGES)  # where tile t is
            ahead = T.meta_var((t + 1) % STAGES)  # where tile t + 1 goes
            col0 = T.meta_var(first + t * COLS)  # the first column of tile t

            if thread == 0:
                if t + 1 < count:
                    T.ptx["cp.async.bulk.wait_group.read"](0)
                    T.ptx["mbarrier.arrive.expect_tx.shared.b64"](
                        loaded.ptr_to([ahead]), T.uint32(TILE_BYTES)
                    )
                    Tx.copy_async(
                        tile[ahead, :, :],
                        A[row0 : row0 + ROWS, col0 + COLS : col0 + 2 * COLS],
                        dispatch="tma_auto",
                        mbar=loaded.ptr_to([ahead]),
                    )

            T.cuda.mbarrier_wait(loaded.ptr_to([stage]), (t // STAGES) % 2)  # <- here
            for r in T.serial(ROWS):
                tile[stage, r, thread] = tile[stage, r, thread] * T.float16(2)

            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.cta_sync()
            if thread == 0:
                Tx.copy_async(
                    D[row0 : row0 + ROWS, col0 : col0 + COLS], tile[stage, :, :], dispatch="tma_auto"
                )
                T.ptx["cp.async.bulk.commit_group"]()

        if thread == 0:
            T.ptx["cp.async.bulk.wait_group"](0)

    return double
