# mutant: every thread computes its row of D with ordinary multiplications; the tensor core is never asked
# check: mechanism
# finding: -
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx


def build_kernel(M, N, K):
    """One tile of D = A @ B.T: A (M, K), B (N, K), D (M, N), float16; M = N = 128, K = 64."""

    @T.prim_func
    def mma_tile(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((N, K), "float16"),
        D: T.Buffer((M, N), "float16"),
    ):
        T.device_entry()
        T.cta_id([1])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        row = T.meta_var(warp * 32 + lane)

        a_regs = T.alloc_local((K,), "float16")
        Tx.copy(a_regs[:], A[row, 0:K])
        sum_reg = T.alloc_local((1,), "float32")
        for n in range(N):
            sum_reg[0] = 0.0
            for k in range(K):
                sum_reg[0] = sum_reg[0] + T.Cast("float32", a_regs[k]) * T.Cast("float32", B[n, k])
            D[row, n] = T.Cast("float16", sum_reg[0])  # <- here

    return mma_tile
