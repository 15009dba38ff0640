# mutant: every thread loads and stores its column by itself, without TMA
# check: mechanism
# finding: -
from tvm.script import tirx as T

ROWS, COLS = 32, 128  # one tile
STAGES = 2  # tiles that fit into SMEM at a time
SPAN = 16  # tiles in a strip, at most


def build_kernel(M, N):
    """D = 2 * A for A (M, N) and D (M, N), float16; one CTA per strip of up to 16 tiles, tile by tile."""
    STRIPS_M = (M + ROWS - 1) // ROWS  # strips one below the other
    TILES = (N + COLS - 1) // COLS
    STRIPS_N = (TILES + SPAN - 1) // SPAN  # strips side by side, in a wide matrix

    @T.prim_func
    def double(A: T.Buffer((M, N), "float16"), D: T.Buffer((M, N), "float16")):
        T.device_entry()
        strip_m, strip_n = T.cta_id([STRIPS_M, STRIPS_N])
        thread = T.thread_id([COLS])  # 128 threads: thread c owns column c of every tile
        row0 = T.meta_var(strip_m * ROWS)  # the first row of this CTA's strip
        first = T.meta_var(strip_n * SPAN * COLS)  # its first column
        count = T.meta_var(T.min(SPAN, TILES - strip_n * SPAN))  # its tiles

        for t in T.serial(count):
            col = T.meta_var(first + t * COLS + thread)
            for r in T.serial(ROWS):
                if row0 + r < M and col < N:
                    D[row0 + r, col] = A[row0 + r, col] * T.float16(2)  # <- here

    return double
