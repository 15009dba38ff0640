"""Rules of declared buffers and of registers, as functions; those of one instruction stand with the instruction.

Each returns a :class:`Problem` or None. Addresses are byte offsets; vectors hold one address per active lane.
Rules: PTX ISA, "setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from emulator.checks.findings import Problem

IntArray = npt.NDArray[np.integer]

REGISTERS_PER_CTA = 64 * 1024


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
