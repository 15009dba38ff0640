# mutant: every thread loads and stores its column by itself, without TMA
# check: mechanism
# finding: -
from tvm.script import tirx as T

ROWS, COLS = 32, 128  # one tile
STAGES = 2  # tiles that fit into SMEM at a time


def build_kernel(M, N):
    """D = 2 * A for A (M, N) and D (M, N), float16; one CTA per strip of 32 rows, tile by tile."""
    STRIPS = (M + ROWS - 1) // ROWS
    TILES = (N + COLS - 1) // COLS

    @T.prim_func
    def double(A: T.Buffer((M, N), "float16"), D: T.Buffer((M, N), "float16")):
        T.device_entry()
        strip = T.cta_id([STRIPS])
        thread = T.thread_id([COLS])  # 128 threads: thread c owns column c of every tile
        row0 = T.meta_var(strip * ROWS)  # the first row of this CTA's strip

        for t in T.serial(TILES):
            col = T.meta_var(t * COLS + thread)
            for r in T.serial(ROWS):
                if row0 + r < M and col < N:
                    D[row0 + r, col] = A[row0 + r, col] * T.float16(2)  # <- here

    return double
