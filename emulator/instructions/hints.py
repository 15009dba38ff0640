"""Instructions without a result that the emulator could show: prefetches, cache policies, launch dependencies, sleeping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator import runtime
from emulator.errors import DeviceFault
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value
from emulator.threads import Threads


@instruction(
    "ptx.prefetch", "ptx.prefetchu", "ptx.prefetch_valid_addr", "ptx.applypriority", "ptx.cp_async_bulk_prefetch_evict_last",
    "ptx.cp_async_bulk_tensor_prefetch_evict_last", counter="prefetch",
)  # fmt: skip
def prefetch(mods: Mods, t: Threads, *operands: Any) -> None:
    """A hint to the caches."""


@instruction("ptx.discard", counter="discard")
def discard(mods: Mods, t: Threads, address: Value, size: Value) -> None:
    """The 128 bytes at each address may be lost: they are, as poison, so that a later read shows."""
    if runtime._nothing_active(t):
        return
    active = runtime._active(t, address)
    for pointer in np.unique(np.atleast_1d(np.asarray(active))).tolist():
        segment, offset = t.cta.machine.memory.locate(int(pointer), 128, "discard")
        segment.raw[offset : offset + 128] = 0xFF


@instruction(
    "ptx.createpolicy_fractional",
    "ptx.createpolicy_fraction",
    "ptx.createpolicy_range",
    "ptx.createpolicy_cvt",
    pure=True,
)
def createpolicy(mods: Mods) -> Callable[..., Value]:
    """An L2 cache policy: opaque, without effect here."""
    return lambda *operands: 0x10F0000000000000


@instruction("ptx.griddepcontrol", counter="griddepcontrol")
def griddepcontrol(mods: Mods, t: Threads) -> None:
    """Programmatic dependent launch: grids run one after another here, so the dependency always holds."""


@instruction("ptx.st_bulk", factory=True)
def st_bulk(mods: Mods) -> Callable[..., None]:
    """``st.bulk``: fill shared memory with zeros; size and address are multiples of 8."""

    def op(t: Threads, address: Value, size: Value) -> None:
        t.count_op("st.shared")
        hb = t.cta.cluster.hb
        for tid, addr, n in t.rows(t.tid, address, size):
            cta, offset = t.cta.cluster.resolve(int(addr), "st.bulk")
            n = int(n)
            if n % 8 or offset % 8:
                raise DeviceFault(
                    "smem.misaligned",
                    "st.bulk with an address or size that is not a multiple of 8",
                    "align the buffer to 8 bytes and fill whole 8-byte words",
                    site=t.site,
                )
            cta.check_shared(offset, offset + n, "st.bulk")
            if hb is not None:
                lane = hb.lane(t.cta.rank * t.cta.num_warps + int(tid) // 32, int(tid) % 32)
                hb.smem_write(lane, cta.rank, offset, n, t.rd_site, what="st.bulk")
            cta.smem[offset : offset + n] = 0
        t.cta.machine.progress += 1

    return op
