"""Mutants that are no mistakes: the kernel is still legal by the PTX ISA and computes the same.

Each was judged by hand against the ISA, not by the emulator's silence; the benchmark leaves them out and prints the
reasons. The list covers the draw of the benchmark (seed 0): another seed draws mutants that nobody has judged.
"""

from __future__ import annotations

from mutation.mutants import Mutant

_NOT_TENSOR_MEMORY = (
    "tcgen05.fence::before_thread_sync orders tcgen05 operations only; the store of D that it changes places with "
    "is none, and the registers were waited for before."
)
_FENCE_ON_THE_PATH = (
    "The proxy fence may stand anywhere on the path from the writes to the asynchronous read; here every thread, the "
    "issuing one included, executes it after the barrier (advice: proxy.fence-by-another-thread)."
)
_NO_DEPENDENCE = "The copy of an operand tile depends on nothing that the barrier before it orders."
_NON_EXITED = (
    "The barrier waits for non-exited threads only, the others return instead of waiting, and the loads of the "
    "accumulator are ordered before the deallocation without it."
)
_BOTH_WAIT = "Warp 1 learns of the arrival either way: by its own wait, or through warp 0's wait and the CTA barrier after it."

EQUIVALENT: dict[str, str] = {
    "step1: swap_lines: Tx.copy(D[warp * 32 + lane, 0:N], out_regs[:])": _NOT_TENSOR_MEMORY,
    "step2: swap_lines: Tx.copy(D[row, n0:n0 + BLK_N], out_regs[:])": _NOT_TENSOR_MEMORY,
    "step1: swap_lines: T.ptx['fence.proxy.async.shared::cta']()": _FENCE_ON_THE_PATH,
    "transpose: swap_lines: T.ptx['fence.proxy.async.shared::cta']()": _FENCE_ON_THE_PATH,
    "step1: hoist: Tx.cta.copy(A_smem[:, :], A[:, :])": _NO_DEPENDENCE,
    "exercise_05: hoist: Tx.cta.copy(B_smem[:, :], B[:, :])": _NO_DEPENDENCE,
    "step4: change_loop: for k in T.serial(K_TILES): (more)": (
        "The extra round loads boxes beyond K: TMA fills them with zeros, which add nothing."
    ),
    "step6: swap_lines: empty.wait(load.stage, load.phase)": (
        "expect_tx may be announced before the stage is free: the phase completes only with the bytes, and the copies "
        "are still issued after the wait."
    ),
    "step7: change_mask: if warpgroup == 1:": (
        "The two warpgroups exchange their roles; each still reaches all TMEM lanes, and nothing depends on their "
        "numbers."
    ),
    "step7: narrow_sync: T.cuda.cta_sync()#1 (warp)": _NON_EXITED,
    "step8: narrow_sync: T.cuda.cluster_sync()#1 (warp)": _NON_EXITED,
    "step9: narrow_sync: T.cuda.cluster_sync()#1 (warp)": _NON_EXITED,
    "step8: change_shape: acc = tmem.alloc((BLK_M, 2 * PAIR_N), 'float32') (1)": (
        "The kernel allocates all 512 columns anyway; only the declared extent of the one buffer in them is halved."
    ),
    "exercise_05: drop_fence: T.ptx['fence.mbarrier_init.release.cluster']()": (
        "The initialising thread executes fence.proxy.async before the barrier that precedes the first asynchronous "
        "use, which covers its mbarrier.init."
    ),
    "transpose: swap_lines: T.ptx['fence.mbarrier_init.release.cluster']()": (
        "The thread that initialises the barrier fences before the load is issued; the others have the CTA barrier."
    ),
    "attention: swap_lines: Tx.copy_async(V_smem[:, :], V[head, :, :], dispatch='tma_aut": (
        "The load of V and the wait for Q and K are independent of each other."
    ),
    "cluster_exchange: narrow_sync: T.cuda.mbarrier_wait_acquire_cluster(sent.ptr_to([0]), 0) (warp)": _BOTH_WAIT,
    "cluster_exchange: swap_lines: T.cuda.mbarrier_wait_acquire_cluster(sent.ptr_to([0]), 0)": _BOTH_WAIT,
}


def reason(mutant: Mutant) -> str | None:
    """Why a mutant is equivalent, or None."""
    return EQUIVALENT.get(mutant.id)
