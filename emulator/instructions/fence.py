"""Fences (PTX ISA, "membar, fence" and "Async proxy").

Numerically they do nothing here: they matter to the race detector.
"""

from __future__ import annotations

from typing import Any

from emulator.instructions.registry import Mods, instruction
from emulator.threads import Threads


@instruction("ptx.fence_proxy", counter="fence.proxy.async")
def fence_proxy(mods: Mods, t: Threads) -> None:
    """``fence.proxy.async[.space]``: earlier generic-proxy writes of this thread become visible to the async proxy."""
    machine = t.cta.machine
    if machine.trace is not None:
        machine.trace.add(machine, "fence", t.site)
    hb = t.cta.cluster.hb
    if hb is None or "async" not in mods:
        return
    spaces = [m for m in mods.tokens if m.startswith(("shared", "global"))]
    smem = not spaces or any(m.startswith("shared") for m in spaces)
    gmem = not spaces or any(m.startswith("global") for m in spaces)
    lanes = t.hb_lanes()
    hb.fence_proxy_async(lanes.warps, smem=smem, gmem=gmem, lanes=lanes)


@instruction("ptx.fence_mbarrier_init", counter="fence.mbarrier_init")
def fence_mbarrier_init(mods: Mods, t: Threads) -> None:
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.fence_mbarrier_init(t.hb_warps())


@instruction("ptx.tcgen05_fence", counter="tcgen05.fence")
def tcgen05_fence(mods: Mods, t: Threads) -> None:
    """``tcgen05.fence::before_thread_sync`` / ``::after_thread_sync``."""
    hb = t.cta.cluster.hb
    if hb is None:
        return
    if "fence::before_thread_sync" in mods:
        hb.tcgen05_fence_before(t.hb_warps())
    else:
        hb.tcgen05_fence_after(t.hb_warps())


@instruction("ptx.fence", "ptx.membar", "ptx.fence_acq_rel", counter="fence")
def fence(mods: Mods, t: Threads, *operands: Any) -> None:
    """``fence.acq_rel/sc.{cta,cluster,gpu,sys}``."""
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.fence_acq_rel(t.hb_warps())


@instruction("cuda.thread_fence", "cuda.threadfence", counter="fence")
def thread_fence(mods: Mods, t: Threads, *operands: Any) -> None:
    fence(mods, t)
