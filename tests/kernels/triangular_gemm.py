"""D = A B^T for a lower triangular A: every row of tiles has its own number of steps of K, the longest first.

The grid's CTAs all do different amounts of work, as in causal attention, but are quick to emulate.
"""

from __future__ import annotations

from typing import Any

from tvm.backend.cuda.lang import PipelineState, TCGen05Bar, TMABar
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

BLK = 128
BLK_K = 64


def triangular_gemm(N: int, *, stages: int = 3, dtype: str = "float16") -> Any:
    """A, B, D: (N, N); A[i, j] counts only where j < 128 * (i // 128 + 1), so whole tiles above the diagonal are skipped."""
    if N <= 0 or N % BLK:
        raise ValueError(f"N = {N} must be a positive multiple of {BLK}")
    TILES = N // BLK
    TILE_BYTES = 2 * BLK * BLK_K * 2

    @T.prim_func
    def triangular(A: T.Buffer((N, N), dtype), B: T.Buffer((N, N), dtype), D: T.Buffer((N, N), dtype)):
        T.device_entry()
        column, row_back = T.cta_id([TILES, TILES])
        warpgroup = T.warpgroup_id([2])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])

        pool = T.SMEMPool()
        full = TMABar(pool, stages)
        empty = TCGen05Bar(pool, stages)
        done = TCGen05Bar(pool, 1)
        tmem = T.TMEMPool(pool, 512)
        acc = tmem.alloc((BLK, BLK), "float32")
        A_smem = pool.alloc_tcgen05_mma_AB((stages, BLK, BLK_K), dtype)
        B_smem = pool.alloc_tcgen05_mma_AB((stages, BLK, BLK_K), dtype)
        pool.commit()
        full.init(1)
        empty.init(1)
        done.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        tmem.commit()
        T.cuda.cta_sync()

        row = T.meta_var(TILES - 1 - row_back)
        m0 = T.meta_var(row * BLK)
        n0 = T.meta_var(column * BLK)
        steps = T.meta_var((row + 1) * (BLK // BLK_K))

        if warpgroup == 1:
            if warp == 0:
                if T.cuda.elect_sync():
                    load = PipelineState(stages, 1)
                    for k in T.serial(steps):
                        k0 = T.meta_var(k * BLK_K)
                        empty.wait(load.stage, load.phase)
                        full.arrive(load.stage, TILE_BYTES)
                        Tx.copy_async(
                            A_smem[load.stage, :, :],
                            A[m0 : m0 + BLK, k0 : k0 + BLK_K],
                            dispatch="tma_auto",
                            mbar=full.ptr_to([load.stage]),
                        )
                        Tx.copy_async(
                            B_smem[load.stage, :, :],
                            B[n0 : n0 + BLK, k0 : k0 + BLK_K],
                            dispatch="tma_auto",
                            mbar=full.ptr_to([load.stage]),
                        )
                        load.advance()
            elif warp == 1:
                if T.cuda.elect_sync():
                    mma = PipelineState(stages, 0)
                    for k in T.serial(steps):
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
                        mma.advance()
                    done.arrive(0)
        else:
            regs = T.alloc_tcgen05_ldst_frag("32x32b", (BLK, BLK), "float32")
            out = T.alloc_local((BLK,), dtype)
            done.wait(0, 0)
            T.ptx["tcgen05.fence::after_thread_sync"]()
            Tx.wg.copy_async(regs[:, :], acc[:, :])
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
            Tx.cast(out[:], regs.local(BLK)[:])
            Tx.copy(D[m0 + warp * 32 + lane, n0 : n0 + BLK], out[:])
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        tmem.dealloc()

    return triangular
