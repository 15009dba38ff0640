# mutant: swizzle_32 XORs the bit into the bytes of a chunk
# check: functions
# finding: -
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import ComposeLayout, S, TileLayout

TILE = 64  # rows and columns of one tile
ROW_BYTES = TILE * 2  # one row of it: 64 fp16 elements, 128 bytes
THREADS = 128  # four warps


# Part A: where TMA puts the byte that row-major order would keep at `offset`. The kernel below
# calls swizzle_128 with TIRx expressions, so use operators only: // % * + >> & ^ and no `if`.
def swizzle_32(offset):
    """Rows of 32 bytes: the chunk index has 1 bit."""
    swizzled = offset
    swizzled = offset ^ (((offset >> 7) & 1) << 3)  # <- here
    return swizzled


def swizzle_64(offset):
    """Rows of 64 bytes: the chunk index has 2 bits."""
    swizzled = offset
    swizzled = offset ^ (((offset >> 7) & 3) << 4)
    return swizzled


def swizzle_128(offset):
    """Rows of 128 bytes: the chunk index has 3 bits."""
    swizzled = offset
    swizzled = offset ^ (((offset >> 7) & 7) << 4)
    return swizzled


# Part B: the transpose.
def build_kernel(M, N):
    """D = A.T for A (M, N) and D (N, M), float16; one CTA per tile of 64 rows and columns."""
    TILE_ROWS = (M + TILE - 1) // TILE
    TILE_COLS = (N + TILE - 1) // TILE
    layout = TileLayout(S[(TILE, TILE) : (TILE, 1)])  # row-major
    layout = ComposeLayout(3, 3, 3, layout)

    @T.prim_func
    def transpose(A: T.Buffer((M, N), "float16"), D: T.Buffer((N, M), "float16")):
        T.device_entry()
        tile_col, tile_row = T.cta_id([TILE_COLS, TILE_ROWS])
        thread = T.thread_id([THREADS])
        warp = T.meta_var(thread // 32)
        lane = T.meta_var(thread % 32)
        row0 = T.meta_var(tile_row * TILE)  # the tile's first row in A
        col0 = T.meta_var(tile_col * TILE)  # and its first column

        # SMEM: the tile as it comes, the tile as it goes, one mbarrier.
        pool = T.SMEMPool()
        tile_in = pool.alloc((TILE, TILE), "float16", layout=layout, align=1024)
        tile_out = pool.alloc((TILE, TILE), "float16", layout=layout, align=1024)
        loaded = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        start_in = T.meta_var(tile_in.ptr_to([0, 0]))  # the address of byte 0 of each tile
        start_out = T.meta_var(tile_out.ptr_to([0, 0]))

        if thread == 0:
            T.ptx["mbarrier.init.shared.b64"](loaded.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](loaded.ptr_to([0]), T.uint32(TILE * ROW_BYTES))
            Tx.copy_async(
                tile_in[:, :],
                A[row0 : row0 + TILE, col0 : col0 + TILE],
                dispatch="tma_auto",
                mbar=loaded.ptr_to([0]),
            )
        T.cuda.cta_sync()
        T.cuda.mbarrier_wait(loaded.ptr_to([0]), 0)

        # 64 blocks of 8 x 8 elements, four at a time: in each step a warp takes 32 rows of one
        # chunk (8 elements, 16 bytes wide), so that lane l stands for one row of the tile.
        block = T.alloc_local((4,), "uint32")
        for step in T.unroll(4):
            chunk = T.meta_var(warp * 2 + step // 2)  # 0 to 7
            first = T.meta_var(step % 2 * 32)  # the 32 rows begin here
            source = (first + lane) * ROW_BYTES + chunk * 16
            T.ptx["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"](
                block[0],
                block[1],
                block[2],
                block[3],
                T.ptr_byte_offset(start_in, swizzle_128(source), "float16"),
            )
            target = (chunk * 8 + lane % 8) * ROW_BYTES + (first // 8 + lane // 8) * 16
            T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"](
                T.ptr_byte_offset(start_out, swizzle_128(target), "float16"),
                block[0],
                block[1],
                block[2],
                block[3],
            )

        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if thread == 0:
            Tx.copy_async(D[col0 : col0 + TILE, row0 : row0 + TILE], tile_out[:, :], dispatch="tma_auto")
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group.read"](0)

    return transpose
