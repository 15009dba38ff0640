"""Addresses in the shared memory of other CTAs of the cluster (PTX ISA, "mapa")."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.errors import DeviceFault
from emulator.instructions.registry import Mods, instruction
from emulator.machine.address import RANK_SHIFT
from emulator.threads import Threads

_RANK_BYTE = 0xFF << RANK_SHIFT


@instruction("ptx.mapa", "ptx.mapa_u32", "ptx.mapa_u64_raw", "ptx.mapa_u64_shared")
def mapa(mods: Mods, t: Threads, address: Any, rank: Any) -> Any:
    """The same shared variable in the CTA with ``rank``: the rank byte of a window address or pointer is replaced."""
    size = len(t.cta.cluster.ctas)
    low, high = int(np.min(rank)), int(np.max(rank))
    if low < 0 or high >= size:
        raise DeviceFault(
            "cluster.bad-rank", f"mapa with CTA rank {high if high >= size else low} in a cluster of {size}",
            f"ranks run from 0 to {size - 1}", site=t.site,
        )  # fmt: skip
    if not isinstance(address, np.ndarray) and not isinstance(rank, np.ndarray):
        return (int(address) & ~_RANK_BYTE) | (int(rank) << RANK_SHIFT)
    raw = t.as_vector(address).astype(np.int64)
    mapped = (raw & ~np.int64(_RANK_BYTE)) | (t.as_vector(rank).astype(np.int64) << RANK_SHIFT)
    return mapped.astype(np.uint64) if "u64" in mods else mapped
