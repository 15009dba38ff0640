# mutant: the reference maximum follows every score, and alpha only those above the threshold
# check: threshold
# finding: -
import math

from tvm.backend.cuda.lang import MBarrier, PipelineState, TCGen05Bar, TMABar
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

TILE = 128  # queries of a CTA, and keys of a block
STAGES = 3  # blocks of K and V that SMEM holds
SLOTS = 2  # blocks of scores that TMEM holds
O_N = 64  # columns of O that a thread has in registers at a time


def build_attention(H, SQ, SKV, D, causal, threshold):
    """O = softmax(Q K^T / sqrt(D)) V, head by head: Q, O (H, SQ, D), K, V (H, SKV, D), float16; D = 64 or 128.

    causal: 1, query i sees keys 0 to i + SKV - SQ only; 0, it sees all. threshold: O is rescaled when a scaled
    score is more than `threshold` binary orders above the reference maximum of its row; 0, whenever one is above.
    """
    Q_TILES = (SQ + TILE - 1) // TILE
    BLOCKS = (SKV + TILE - 1) // TILE
    TILE_BYTES = TILE * D * 2
    OFFSET = SKV - SQ if causal else SKV  # query i sees keys 0 to i + OFFSET, as far as there are any
    SCALE_LOG2 = math.log2(math.e) / math.sqrt(D)

    @T.prim_func
    def online_softmax(
        Q: T.Buffer((H, SQ, D), "float16"),
        K: T.Buffer((H, SKV, D), "float16"),
        V: T.Buffer((H, SKV, D), "float16"),
        O: T.Buffer((H, SQ, D), "float16"),  # noqa: E741
    ):
        T.device_entry()
        cta = T.cta_id([H * Q_TILES])
        warpgroup = T.warpgroup_id([2])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        head = T.meta_var(cta // Q_TILES)
        q0 = T.meta_var(cta % Q_TILES * TILE)  # the first query of this CTA

        pool = T.SMEMPool()
        q_full = TMABar(pool, 1)  # Q is in SMEM
        k_full = TMABar(pool, STAGES)  # stage s holds a block of K
        v_full = TMABar(pool, STAGES)  # stage s holds a block of V
        kv_empty = TCGen05Bar(pool, STAGES)  # the tensor core has read both
        s_full = TCGen05Bar(pool, SLOTS)  # slot b holds scores
        p_full = MBarrier(pool, SLOTS)  # slot b holds P, and O is rescaled for it
        o_full = TCGen05Bar(pool, 1)  # P V of a block is in O
        Q_smem = pool.alloc_tcgen05_mma_AB((TILE, D), "float16")
        K_smem = pool.alloc_tcgen05_mma_AB((STAGES, TILE, D), "float16")
        V_smem = pool.alloc_tcgen05_mma_AB((STAGES, TILE, D), "float16")
        tmem = T.TMEMPool(pool, 512)
        S_tmem = tmem.alloc((TILE, SLOTS * TILE), "float32")  # slot b: columns b * TILE ...
        O_tmem = tmem.alloc((TILE, D), "float32")
        tmem.move_base_to(0)
        P_tmem = tmem.alloc_tcgen05_mma_A((TILE, 2 * SLOTS * TILE), "float16", M=TILE, cta_group=1)
        pool.commit()

        q_full.init(1)
        k_full.init(1)
        v_full.init(1)
        kv_empty.init(1)
        s_full.init(1)
        p_full.init(128)
        o_full.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cta_sync()

        if warpgroup == 1:
            if warp == 0:
                if T.cuda.elect_sync():
                    # Producer: Q once, then K and V block by block.
                    load = PipelineState(STAGES, 1)
                    q_full.arrive(0, TILE_BYTES)
                    Tx.copy_async(
                        Q_smem[:, :], Q[head, q0 : q0 + TILE, :], dispatch="tma_auto", mbar=q_full.ptr_to([0])
                    )
                    for j in T.serial(BLOCKS):
                        k0 = T.meta_var(j * TILE)
                        kv_empty.wait(load.stage, load.phase)
                        k_full.arrive(load.stage, TILE_BYTES)
                        Tx.copy_async(
                            K_smem[load.stage, :, :],
                            K[head, k0 : k0 + TILE, :],
                            dispatch="tma_auto",
                            mbar=k_full.ptr_to([load.stage]),
                        )
                        v_full.arrive(load.stage, TILE_BYTES)
                        Tx.copy_async(
                            V_smem[load.stage, :, :],
                            V[head, k0 : k0 + TILE, :],
                            dispatch="tma_auto",
                            mbar=v_full.ptr_to([load.stage]),
                        )
                        load.advance()
            elif warp == 1:
                if T.cuda.elect_sync():
                    # MMA: the scores of block j, then P V of block j - 1, so that there are always scores ahead.
                    ahead = PipelineState(STAGES, 0)
                    behind = PipelineState(STAGES, 0)
                    q_full.wait(0, 0)
                    for j in T.serial(BLOCKS + 1):
                        if j < BLOCKS:
                            slot = T.meta_var(j % SLOTS)
                            k_full.wait(ahead.stage, ahead.phase)
                            Tx.gemm_async(
                                S_tmem[:, slot * TILE : (slot + 1) * TILE],
                                Q_smem[:, :],
                                K_smem[ahead.stage, :, :],
                                accum=False,
                                dispatch="tcgen05",
                                cta_group=1,
                            )
                            s_full.arrive(slot)
                            ahead.advance()
                        if j > 0:
                            block = T.meta_var(j - 1)
                            old = T.meta_var(block % SLOTS)
                            first = T.meta_var(old * 2 * TILE)
                            v_full.wait(behind.stage, behind.phase)
                            p_full.wait(old, block // SLOTS % 2)
                            T.ptx["tcgen05.fence::after_thread_sync"]()
                            Tx.gemm_async(
                                O_tmem[:, :],
                                P_tmem[:, first : first + TILE],
                                V_smem[behind.stage, :, :],
                                transB=True,
                                accum=block > 0,
                                dispatch="tcgen05",
                                cta_group=1,
                            )
                            kv_empty.arrive(behind.stage)
                            o_full.arrive(0)
                            behind.advance()
        else:
            # Softmax: each thread has one query.
            query = T.meta_var(q0 + warp * 32 + lane)
            s_frag = T.alloc_tcgen05_ldst_frag("32x32b", (TILE, TILE), "float32")
            p_frag = T.alloc_tcgen05_ldst_frag("32x32b", (TILE, TILE), "float16")
            o_frag = T.alloc_tcgen05_ldst_frag("32x32b", (TILE, O_N), "float32")
            s = s_frag.local(TILE)  # scores of a block, then their exponentials
            p = p_frag.local(TILE)
            o = o_frag.local(O_N)
            out = T.alloc_local((O_N,), "float16")
            row_max = T.alloc_local((1,), "float32")  # the reference maximum: what is taken off the scores
            row_sum = T.alloc_local((1,), "float32")
            block_max = T.alloc_local((1,), "float32")
            block_sum = T.alloc_local((1,), "float32")
            alpha = T.alloc_local((1,), "float32")  # what O and the sum are multiplied by ahead of a block
            shift = T.alloc_local((1,), "float32")
            sees = T.alloc_local((1,), "int32")
            row_max[0] = T.float32(-math.inf)
            row_sum[0] = T.float32(0)
            sees[0] = T.min(SKV, query + 1 + OFFSET)
            for j in T.serial(BLOCKS):
                slot = T.meta_var(j % SLOTS)
                s_full.wait(slot, j // SLOTS % 2)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                Tx.wg.copy_async(s_frag[:, :], S_tmem[:, slot * TILE : (slot + 1) * TILE])
                T.ptx["tcgen05.wait::ld.sync.aligned"]()

                if (j + 1) * TILE > T.min(SKV, q0 + 1 + OFFSET):
                    for n in T.unroll(TILE):
                        s[n] = T.if_then_else(j * TILE + n < sees[0], s[n], T.float32(-math.inf))

                Tx.max(block_max[:], s[:])
                block_max[0] = T.max(block_max[0], row_max[0])
                alpha[0] = T.float32(1)
                if (block_max[0] - row_max[0]) * T.float32(SCALE_LOG2) > T.float32(threshold):
                    alpha[0] = T.exp2((row_max[0] - block_max[0]) * T.float32(SCALE_LOG2))
                row_max[0] = block_max[0]  # <- here

                shift[0] = T.if_then_else(
                    row_max[0] == T.float32(-math.inf), T.float32(0), row_max[0] * T.float32(-SCALE_LOG2)
                )
                Tx.fma(s[:], s[:], T.float32(SCALE_LOG2), shift[0])
                Tx.exp2(s[:], s[:])
                Tx.sum(block_sum[:], s[:])
                row_sum[0] = row_sum[0] * alpha[0] + block_sum[0]

                Tx.cast(p[:], s[:])
                Tx.wg.copy_async(P_tmem[:, slot * 2 * TILE : slot * 2 * TILE + TILE], p_frag[:, :])

                if j > 0:
                    o_full.wait(0, (j - 1) % 2)
                    T.ptx["tcgen05.fence::after_thread_sync"]()
                    if T.cuda.any_sync(0xFFFFFFFF, T.cast(alpha[0] < T.float32(1), "int32")) != 0:
                        for i in T.unroll(D // O_N):
                            Tx.wg.copy_async(o_frag[:, :], O_tmem[:, i * O_N : (i + 1) * O_N])
                            T.ptx["tcgen05.wait::ld.sync.aligned"]()
                            Tx.mul(o[:], o[:], alpha[0])
                            Tx.wg.copy_async(O_tmem[:, i * O_N : (i + 1) * O_N], o_frag[:, :])

                T.ptx["tcgen05.wait::st.sync.aligned"]()
                T.ptx["tcgen05.fence::before_thread_sync"]()
                p_full.arrive(slot)

            o_full.wait(0, (BLOCKS - 1) % 2)
            T.ptx["tcgen05.fence::after_thread_sync"]()
            shift[0] = T.if_then_else(row_sum[0] > T.float32(0), T.float32(1) / row_sum[0], T.float32(0))
            for i in T.unroll(D // O_N):
                Tx.wg.copy_async(o_frag[:, :], O_tmem[:, i * O_N : (i + 1) * O_N])
                T.ptx["tcgen05.wait::ld.sync.aligned"]()
                Tx.mul(o[:], o[:], shift[0])
                Tx.cast(out[:], o[:])
                if query < SQ:
                    Tx.copy(O[head, query, i * O_N : (i + 1) * O_N], out[:])

        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        tmem.dealloc()

    return online_softmax
