"""Attention on one tile per head: two chained MMAs with a softmax in registers between them.

``S = Q K^T`` goes to TMEM; every thread loads its row of S, turns it into probabilities and stores them back
to TMEM as float16, where they are the A operand of ``O = P V``.  V is used as it lies in memory: head
dimension contiguous, which makes it an MN-major B operand.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.backend.cuda.lang import TCGen05Bar, TMABar
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

ROWS = 128  # queries and keys of a tile


def attention_tile(heads: int = 1, dim: int = 64, *, causal: bool = False, dtype: str = "float16") -> Any:
    """Out[h] = softmax(Q[h] K[h]^T / sqrt(dim)) V[h], each (heads, 128, dim); one CTA per head.

    Args:
        dim: head dimension, 64 or 128.
        causal: query i sees keys 0 to i only.
    """
    if dim not in (64, 128):
        raise ValueError(f"dim = {dim} must be 64 or 128")
    TILE_BYTES = ROWS * dim * 2
    SCALE_LOG2 = math.log2(math.e) / math.sqrt(dim)  # exp(x / sqrt(dim)) = exp2(x * SCALE_LOG2)
    SHAPE = (heads, ROWS, dim)

    @T.prim_func
    def attention(
        Q: T.Buffer(SHAPE, dtype),
        K: T.Buffer(SHAPE, dtype),
        V: T.Buffer(SHAPE, dtype),
        Out: T.Buffer(SHAPE, dtype),
    ):
        T.device_entry()
        head = T.cta_id([heads])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        row = T.meta_var(warp * 32 + lane)

        pool = T.SMEMPool()
        qk_loaded = TMABar(pool, 1)
        v_loaded = TMABar(pool, 1)
        s_ready = TCGen05Bar(pool, 1)
        o_ready = TCGen05Bar(pool, 1)
        tmem = T.TMEMPool(pool, 512)
        S_tmem = tmem.alloc((ROWS, ROWS), "float32")
        O_tmem = tmem.alloc((ROWS, dim), "float32")
        tmem.move_base_to(0)  # P takes the place of S: a thread has read its row before it stores it
        P_tmem = tmem.alloc_tcgen05_mma_A((ROWS, ROWS), dtype, M=ROWS, cta_group=1)
        Q_smem = pool.alloc_tcgen05_mma_AB((ROWS, dim), dtype)
        K_smem = pool.alloc_tcgen05_mma_AB((ROWS, dim), dtype)
        V_smem = pool.alloc_tcgen05_mma_AB((ROWS, dim), dtype)
        pool.commit()

        qk_loaded.init(1)
        v_loaded.init(1)
        s_ready.init(1)
        o_ready.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cta_sync()

        if warp == 0:
            if T.cuda.elect_sync():
                qk_loaded.arrive(0, 2 * TILE_BYTES)
                Tx.copy_async(Q_smem[:, :], Q[head, :, :], dispatch="tma_auto", mbar=qk_loaded.ptr_to([0]))
                Tx.copy_async(K_smem[:, :], K[head, :, :], dispatch="tma_auto", mbar=qk_loaded.ptr_to([0]))
                v_loaded.arrive(0, TILE_BYTES)
                Tx.copy_async(V_smem[:, :], V[head, :, :], dispatch="tma_auto", mbar=v_loaded.ptr_to([0]))
                qk_loaded.wait(0, 0)
                Tx.gemm_async(
                    S_tmem[:, :], Q_smem[:, :], K_smem[:, :], accum=False, dispatch="tcgen05", cta_group=1
                )
                s_ready.arrive(0)

        # Softmax: one row per thread.
        s_frag = T.alloc_tcgen05_ldst_frag("32x32b", (ROWS, ROWS), "float32")
        p_frag = T.alloc_tcgen05_ldst_frag("32x32b", (ROWS, ROWS), dtype)
        row_max = T.alloc_local((1,), "float32")
        row_sum = T.alloc_local((1,), "float32")
        s = s_frag.local(ROWS)
        s_ready.wait(0, 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        Tx.wg.copy_async(s_frag[:, :], S_tmem[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        if causal:
            for j in T.serial(ROWS):
                if j > row:
                    s[j] = T.float32(float("-inf"))
        Tx.max(row_max[:], s[:])
        Tx.fma(s[:], s[:], T.float32(SCALE_LOG2), T.float32(-SCALE_LOG2) * row_max[0])
        Tx.exp2(s[:], s[:])
        Tx.sum(row_sum[:], s[:])
        Tx.cast(p_frag.local(ROWS)[:], s[:])
        Tx.wg.copy_async(P_tmem[:, :], p_frag[:, :])
        T.ptx["tcgen05.wait::st.sync.aligned"]()
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()  # all rows of P are in TMEM

        if warp == 0:
            if T.cuda.elect_sync():
                T.ptx["tcgen05.fence::after_thread_sync"]()
                v_loaded.wait(0, 0)
                Tx.gemm_async(
                    O_tmem[:, :],
                    P_tmem[:, :],
                    V_smem[:, :],
                    transB=True,  # V is (keys, dim): K x N
                    accum=False,
                    dispatch="tcgen05",
                    cta_group=1,
                )
                o_ready.arrive(0)

        o_frag = T.alloc_tcgen05_ldst_frag("32x32b", (ROWS, dim), "float32")
        out = T.alloc_local((dim,), dtype)
        o_ready.wait(0, 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        Tx.wg.copy_async(o_frag[:, :], O_tmem[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        o = o_frag.local(dim)
        Tx.mul(o[:], o[:], T.float32(1.0) / row_sum[0])
        Tx.cast(out[:], o[:])
        Tx.copy(Out[head, row, 0:dim], out[:])

        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        tmem.dealloc()

    return attention
