"""Rules of addresses and of tensor memory, as functions: bounds, alignment, TMEM allocation, registers.

Each returns a :class:`Problem` or None. Addresses are byte offsets; vectors hold one address per active lane.
Rules: PTX ISA, "Addresses as operands", "cp.async.bulk", "cp.async.bulk.tensor", "tcgen05" and "setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from emulator.checks.findings import Problem

IntArray = npt.NDArray[np.integer]

TMEM_COLUMNS = 512
TMEM_SIZES = (32, 64, 128, 256, 512)
REGISTERS_PER_CTA = 64 * 1024

_SPACES = {"smem": "shared memory", "gmem": "global memory"}

# Alignment in bytes of the shared address of an instruction; others need the natural alignment of the access.
SHARED_ALIGNMENT: Mapping[str, int] = {
    "mbarrier": 8,
    "cp.async.bulk": 16,
    "cp.async.bulk.tensor": 128,
    "cp.reduce.async.bulk.tensor": 128,
    "clusterlaunchcontrol.try_cancel": 16,
    "ldmatrix": 16,
    "stmatrix": 16,
    "tcgen05.alloc": 4,
}


def lane_bounds(
    space: str, addr: IntArray | int, nbytes: int, size: int, what: str, name: str = ""
) -> Problem | None:
    """Every lane's ``nbytes`` bytes at ``addr`` must lie in the ``size`` bytes of an allocation."""
    addresses = np.atleast_1d(np.asarray(addr, np.int64))
    bad = (addresses < 0) | (addresses + nbytes > size)
    if not bad.any():
        return None
    where = f"{_SPACES[space]}{f' `{name}`' if name else ''}"
    first = int(addresses[bad][0])
    return Problem(
        f"{space}.out-of-bounds",
        "error",
        f"{what} of {nbytes} bytes at byte {first} of {where}, which has {size} bytes"
        + (f" ({int(bad.sum())} lanes)." if len(addresses) > 1 else "."),
        "Check the index, and guard the edge of the problem.",
        {"first_byte": first, "size": size, "count": int(bad.sum())},
    )


def view_bounds(addr: IntArray | int, nbytes: int, view: tuple[str, int, int], what: str) -> Problem | None:
    """An access through a declared SMEM view ``(name, first byte, past the last byte)`` must stay inside it.

    Leaving the view but not the allocation silently touches a neighbour, so this is an error as well.
    """
    name, start, stop = view
    addresses = np.atleast_1d(np.asarray(addr, np.int64))
    bad = (addresses < start) | (addresses + nbytes > stop)
    if not bad.any():
        return None
    first = int(addresses[bad][0])
    return Problem(
        "smem.outside-view",
        "error",
        f"{what} through `{name}` reaches byte {first - start} of it; the view has {stop - start} "
        "bytes, what "
        "lies there belongs to another buffer.",
        "Check the index against the shape of the buffer (stage index, row, column).",
        {"first_byte": first - start, "size": stop - start, "count": int(bad.sum())},
    )


def alignment(instruction: str, addr: IntArray | int, nbytes: int = 0) -> Problem | None:
    """The shared or global address of an instruction must be aligned (natural alignment unless listed)."""
    need = SHARED_ALIGNMENT.get(instruction, nbytes or 1)
    addresses = np.atleast_1d(np.asarray(addr, np.int64))
    bad = addresses % need != 0
    if not bad.any():
        return None
    return Problem(
        "smem.misaligned" if instruction in SHARED_ALIGNMENT else "memory.misaligned",
        "error",
        f"{instruction} at byte {int(addresses[bad][0])}, which is not a multiple of {need}.",
        f"Allocate with {need}-byte alignment and keep offsets multiples of {need}.",
        {"alignment": need},
    )


def bulk_size(nbytes: int) -> Problem | None:
    """cp.async.bulk copies a positive multiple of 16 bytes."""
    if nbytes > 0 and nbytes % 16 == 0:
        return None
    return Problem(
        "bulk.bad-size",
        "error",
        f"cp.async.bulk of {nbytes} bytes; the size must be a positive multiple of 16.",
        "Copy whole 16-byte units.",
    )


def tmem_columns(column: int, columns: int, held: Iterable[tuple[int, int]], what: str) -> Problem | None:
    """TMEM columns ``[column, column + columns)`` must lie in one allocation of ``held`` (base, columns)."""
    have = sorted(held)
    if any(base <= column and column + columns <= base + size for base, size in have):
        return None
    text = ", ".join(f"[{base}, {base + size})" for base, size in have) or "none"
    if column + columns > TMEM_COLUMNS:
        return Problem(
            "tmem.out-of-bounds",
            "error",
            f"{what} of TMEM columns [{column}, {column + columns}); there are {TMEM_COLUMNS}.",
            "Check the TMEM address and the shape of the instruction.",
        )
    return Problem(
        "tmem.not-allocated",
        "error",
        f"{what} of TMEM columns [{column}, {column + columns}); the CTA holds {text}.",
        "Allocate enough columns with tcgen05.alloc and use the address that it wrote to shared memory.",
        {"column": column, "columns": columns},
    )


def tmem_lanes(warp: int, lane: int) -> Problem | None:
    """tcgen05.ld and st: warp ``warp`` of the CTA may only touch its quarter of the 128 TMEM lanes.

    ``lane``: the lane field of the address, either absolute or 0 to 31 relative to the quarter.
    """
    quarter = warp % 4
    if 0 <= lane < 32 or 32 * quarter <= lane < 32 * quarter + 32:
        return None
    return Problem(
        "tmem.wrong-lanes",
        "error",
        f"Warp {warp} accesses TMEM lane {lane}; it reaches lanes {32 * quarter} to {32 * quarter + 31} "
        "only.",
        "Let warp w of a warpgroup handle rows 32 (w % 4) to 32 (w % 4) + 31.",
        {"quarter": quarter, "lane": lane},
    )


def tmem_alloc(columns: int, relinquished: bool) -> Problem | None:
    """tcgen05.alloc of ``columns``."""
    if columns not in TMEM_SIZES:
        return Problem(
            "tmem.bad-size",
            "error",
            f"tcgen05.alloc of {columns} columns; the number is a power of two from 32 to 512.",
            "Round up to 32, 64, 128, 256 or 512 columns.",
        )
    if relinquished:
        return Problem(
            "tmem.alloc-after-relinquish",
            "error",
            "tcgen05.alloc after this CTA gave up its permit to allocate.",
            "Allocate before tcgen05.relinquish_alloc_permit.",
        )
    return None


def tmem_dealloc(
    column: int, columns: int, cta_group: int, held: Mapping[int, tuple[int, int]]
) -> Problem | None:
    """tcgen05.dealloc; ``held``: base -> (columns, cta_group) of the allocations."""
    allocation = held.get(column)
    if allocation is None or allocation[0] != columns:
        have = ", ".join(f"{n} columns from {base}" for base, (n, _) in sorted(held.items())) or "nothing"
        return Problem(
            "tmem.bad-dealloc",
            "error",
            f"tcgen05.dealloc of {columns} columns from column {column}, but the CTA holds {have}.",
            "Free exactly what tcgen05.alloc returned, once, with the same number of columns.",
        )
    if allocation[1] != cta_group:
        return Problem(
            "tmem.mixed-cta-group",
            "error",
            f"tcgen05.dealloc.cta_group::{cta_group} of columns allocated with cta_group::{allocation[1]}.",
            "All tcgen05 instructions of a kernel use the same cta_group.",
        )
    return None


def tmem_leak(held: Mapping[int, tuple[int, int]]) -> Problem | None:
    """A CTA exits; ``held`` as in :func:`tmem_dealloc`."""
    if not held:
        return None
    have = ", ".join(f"{n} columns from {base}" for base, (n, _) in sorted(held.items()))
    return Problem(
        "tmem.leak",
        "error",
        f"The CTA exits while it holds TMEM: {have}. The next CTA on this SM may wait for ever.",
        "Execute tcgen05.dealloc in one warp after the last use, before the CTA exits.",
    )


def launch_registers(threads: int) -> int:
    """Registers per thread that a CTA of ``threads`` may start with: its share of the SM's, in steps of 8.

    A kernel that uses setmaxnreg is compiled for this number (one CTA per SM); more it never gets.
    """
    return min(256, REGISTERS_PER_CTA // max(threads, 1) // 8 * 8)


def setmaxnreg(
    count: int, direction: str, per_warpgroup: Iterable[float], pool: int = REGISTERS_PER_CTA
) -> Problem | None:
    """setmaxnreg.``direction`` to ``count``.

    Args:
        per_warpgroup: registers per thread of each warpgroup after it.
        pool: registers that the CTA was launched with.
    """
    if count % 8 or not 24 <= count <= 256:
        return Problem(
            "setmaxnreg.bad-count",
            "error",
            f"setmaxnreg.{direction} {count}; the count is a multiple of 8 from 24 to 256.",
            "Choose a multiple of 8 from 24 to 256.",
        )
    total = int(128 * sum(per_warpgroup))
    if direction == "inc" and total > pool:
        return Problem(
            "setmaxnreg.pool-exceeded",
            "error",
            f"setmaxnreg.inc {count} brings the CTA to {total} registers; it was launched with {pool}: the "
            "warpgroup waits for ever.",
            "Let other warpgroups give up registers first (setmaxnreg.dec), so that the sum fits.",
            {"registers": total, "pool": pool},
        )
    return None
