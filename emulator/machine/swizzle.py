"""Shared-memory swizzle: the address permutation that TMA and the tensor core agree on.

A swizzle is a function of the *absolute* shared-memory byte address: some address bits of the 128-byte
row number are XORed into the bits that select a chunk inside the row. A tile that does not start at the
repeat boundary is therefore still well defined, as long as every engine uses the same base.
Source: PTX ISA, "Shared memory layout and swizzling" (tensor maps) and "tcgen05 Shared memory descriptor".
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Address = TypeVar("Address", int, npt.NDArray[np.integer])


class SwizzleMode(IntEnum):
    """Swizzle modes. The value of the first five is the mode number TIRx passes to its encoders."""

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3
    B128_ATOM_32B = 4
    B128_ATOM_32B_FLIP_8B = 5
    B128_ATOM_64B = 6

    @property
    def row_bytes(self) -> int:
        """Width of one swizzled row in bytes (16 for NONE: the packed 16-byte unit)."""
        return _ROW_BYTES[self]

    @property
    def atom_bytes(self) -> int:
        """Bytes that stay contiguous and in order under the permutation (16 for NONE)."""
        return _ATOM_BYTES[self]

    @property
    def repeat_bytes(self) -> int:
        """Address period of the permutation in bytes."""
        return _REPEAT_BYTES[self]

    def __str__(self) -> str:
        return _NAMES[self]


_ROW_BYTES = (16, 32, 64, 128, 128, 128, 128)
_ATOM_BYTES = (16, 16, 16, 16, 32, 8, 64)
_REPEAT_BYTES = (16, 256, 512, 1024, 512, 512, 256)
_NAMES = (
    "no swizzle",
    "32-byte swizzle",
    "64-byte swizzle",
    "128-byte swizzle",
    "128-byte swizzle with 32-byte atoms",
    "128-byte swizzle with 32-byte atoms and 8-byte flip",
    "128-byte swizzle with 64-byte atoms",
)
# mode -> (mask of the source bits after `>> 7`, position that the bits are XORed into)
_XOR = {
    SwizzleMode.B32: (1, 4),
    SwizzleMode.B64: (3, 4),
    SwizzleMode.B128: (7, 4),
    SwizzleMode.B128_ATOM_32B: (3, 5),
    SwizzleMode.B128_ATOM_32B_FLIP_8B: (3, 5),
    SwizzleMode.B128_ATOM_64B: (1, 6),
}


def apply(mode: SwizzleMode | int, byte_addr: Address, phase: int = 0) -> Address:
    """Permute a byte address, or an integer array of them (same shape and dtype back).

    `phase` is subtracted from the 128-byte row number before the XOR: the "matrix base offset" field of an
    SMEM descriptor, 0 for a pattern that starts on its repeat boundary. The permutation is its own inverse.
    """
    if mode == SwizzleMode.NONE:
        return byte_addr
    mask, shift = _XOR[SwizzleMode(mode)]
    row = (byte_addr >> 7) - phase
    swizzled = byte_addr ^ ((row & mask) << shift)
    if mode == SwizzleMode.B128_ATOM_32B_FLIP_8B:
        # Within each 16 bytes the two 8-byte halves trade places on odd 128-byte rows.
        swizzled = swizzled ^ ((row & 1) << 3)
    return swizzled
