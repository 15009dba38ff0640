# mutant: each thread turns its column with a loop over elements, without the layouts
# check: mechanism
# finding: -
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane, laneid, tid_in_wg

# Part A ---------------------------------------------------------------------------------------


def row_major(rows, cols):
    """Element (r, c) at m = cols * r + c: row after row."""
    return TileLayout(S[(rows, cols) : (cols, 1)])


def column_major(rows, cols):
    """Column after column. Part B needs it."""
    return TileLayout(S[(rows, cols) : (1, rows)])


def padded(rows, cols):
    """Row after row, with 8 unused places behind each row."""
    return TileLayout(S[(rows, cols) : (cols + 8, 1)])


def tiled_8x128(rows, cols):
    """Tiles of 8 x 128: each one row-major and contiguous, and the tiles themselves row after row."""
    return TileLayout(S[(rows // 8, 8, cols // 128, 128) : (8 * cols, 128, 8 * 128, 1)])


def mma_accumulator():
    """The 16 x 8 accumulator of mma.sync.m16n8k16: which laneid holds an element, in which of its four values m?"""
    return TileLayout(S[(2, 8, 4, 2) : (2, 4 @ laneid, 1 @ laneid, 1)])


def second_accumulator(rows, cols):
    """Row r in TMEM lane r, column c in TMEM column cols + c: columns 0 to cols - 1 belong to another accumulator."""
    return TileLayout(S[(rows, cols) : (1 @ TLane, 1 @ TCol)] + cols @ TCol)


def row_per_thread(rows, cols):
    """Registers of a warpgroup: thread tid_in_wg = r holds row r, column c in its m = c. Part B needs it."""
    return TileLayout(S[(rows, cols) : (1 @ tid_in_wg, 1)])


# Part B ---------------------------------------------------------------------------------------

ROWS, COLS = 64, 128  # one tile of A
TILE_BYTES = ROWS * COLS * 2


def build_transpose(M, N):
    """D = A.T for A (M, N) and D (N, M), float16; one CTA of one warpgroup per tile of A."""
    TILES_M = (M + ROWS - 1) // ROWS
    TILES_N = (N + COLS - 1) // COLS

    @T.prim_func
    def transpose(A: T.Buffer((M, N), "float16"), D: T.Buffer((N, M), "float16")):
        T.device_entry()
        tile_m, tile_n = T.cta_id([TILES_M, TILES_N])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        row0 = T.meta_var(tile_m * ROWS)  # the tile's first row in A, first column in D
        col0 = T.meta_var(tile_n * COLS)  # the tile's first column in A, first row in D

        # SMEM: an mbarrier, the tile as it comes from A, and the tile as it goes to D.
        pool = T.SMEMPool()
        loaded = pool.alloc((1,), "uint64", align=8)
        tile = pool.alloc((ROWS, COLS), "float16", align=128)
        turned = pool.alloc((COLS, ROWS), "float16", align=128)
        pool.commit()

        if warp == 0:
            if lane == 0:
                T.ptx["mbarrier.init.shared.b64"](loaded.ptr_to([0]), T.uint32(1))
                T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()  # now every thread may use the mbarrier

        if warp == 0:
            if lane == 0:
                T.ptx["mbarrier.arrive.expect_tx.shared.b64"](loaded.ptr_to([0]), T.uint32(TILE_BYTES))
                Tx.copy_async(
                    tile[:, :],
                    A[row0 : row0 + ROWS, col0 : col0 + COLS],
                    dispatch="tma_auto",
                    mbar=loaded.ptr_to([0]),
                )
        T.cuda.mbarrier_wait(loaded.ptr_to([0]), 0)

        for r in T.serial(ROWS):
            turned[warp * 32 + lane, r] = tile[r, warp * 32 + lane]  # <- here

        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if warp == 0:
            if lane == 0:
                Tx.copy_async(D[col0 : col0 + COLS, row0 : row0 + ROWS], turned[:, :], dispatch="tma_auto")
                T.ptx["cp.async.bulk.commit_group"]()
                T.ptx["cp.async.bulk.wait_group"](0)

    return transpose
