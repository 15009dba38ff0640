# mutant: the GEMM launches no CTA for the last rows
# check: correctness
# finding: -
from tvm.script import tirx as T

THREADS = 256  # per CTA, in both kernels
TILE_M, TILE_N = 8, 32  # one CTA of the GEMM computes 8 rows of 32 columns


def build_add(N):
    """Z = X + Y, element by element: X, Y, Z (N,), float32."""
    ctas = 1
    ctas = (N + THREADS - 1) // THREADS

    @T.prim_func
    def add(X: T.Buffer((N,), "float32"), Y: T.Buffer((N,), "float32"), Z: T.Buffer((N,), "float32")):
        T.device_entry()
        cta = T.cta_id([ctas])  # 0 to ctas - 1
        thread = T.thread_id([THREADS])  # 0 to THREADS - 1
        i = cta * THREADS + thread
        if i < N:
            Z[i] = X[i] + Y[i]

    return add


def build_gemm(M, N, K):
    """D = A @ B: A (M, K) and B (K, N), float16; D (M, N), float32. One thread per element of D."""
    ctas_m, ctas_n = 1, 1
    ctas_m = M // TILE_M
    ctas_n = (N + TILE_N - 1) // TILE_N

    @T.prim_func
    def gemm(A: T.Buffer((M, K), "float16"), B: T.Buffer((K, N), "float16"), D: T.Buffer((M, N), "float32")):
        T.device_entry()
        cta_m, cta_n = T.cta_id([ctas_m, ctas_n])  # which tile of D  # <- here
        thread = T.thread_id([THREADS])
        m = cta_m * TILE_M + thread // TILE_N
        n = cta_n * TILE_N + thread % TILE_N

        if m < M and n < N:
            acc: T.float32 = T.float32(0)
            for k in range(K):
                a = T.float32(A[m, k])
                b = T.float32(B[k, n])
                acc += a * b
            D[m, n] = acc

    return gemm
