"""The 64-bit SMEM matrix descriptor of tcgen05 and wgmma, and the operand it points at.

Bit fields (PTX ISA, "tcgen05 Shared memory descriptor"; byte quantities are stored divided by 16):

    [0,14) start address   [16,30) LBO   [32,46) SBO   [46,49) fixed 0b001   [49,52) base offset
    [52] LBO mode   [53,61) fixed 0   [61,64) layout: 0 none, 1 128B/32B atoms, 2 128B, 4 64B, 6 32B

wgmma's descriptor (sm_90a) has the same address fields, no fixed bits, and its layout in [62,64):
0 none, 1 128B, 2 64B, 3 32B.

With W the swizzle width in bytes (16 for none) and e the element size in bytes:

    K-major,  swizzled : start + (row/8) SBO + (row%8) W + k e
    K-major,  none     : start + (row/8) SBO + (row%8) 16 + (k e / 16) LBO + (k e) % 16
    MN-major, swizzled : start + (row%(W/e)) e + (row/(W/e)) LBO + (k%8) W + (k/8) SBO
    MN-major, none     : start + (row%(16/e)) e + (row/(16/e)) SBO + (k%8) 16 + (k/8) LBO
    MN-major, 128B/32B : start + (row%(128/e)) e + (row/(128/e)) LBO + (k%4) 128 + (k/4) SBO

and the swizzle is applied to the resulting absolute address. In both majornesses 16-byte chunks stay
contiguous, so operands are gathered in 16-byte units through cached index arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from emulator.machine import swizzle
from emulator.machine.address import POOL_BASE, SMEM_LIMIT
from emulator.machine.swizzle import SwizzleMode
from emulator.numerics import formats
from emulator.numerics.formats import Array, ElementFormat

Major = Literal["K", "MN"]
SMEM_BYTES = POOL_BASE + SMEM_LIMIT  # end of the largest dynamic shared memory of a CTA, as an address

_LAYOUTS = {
    0: SwizzleMode.NONE,
    1: SwizzleMode.B128_ATOM_32B,
    2: SwizzleMode.B128,
    4: SwizzleMode.B64,
    6: SwizzleMode.B32,
}
_LAYOUT_CODES = {mode: code for code, mode in _LAYOUTS.items()}
_WGMMA_LAYOUTS = (SwizzleMode.NONE, SwizzleMode.B128, SwizzleMode.B64, SwizzleMode.B32)
# Relative index arrays are cached for start addresses modulo this many bytes: a multiple of every repeat.
_PERIOD = 1024


@dataclass(frozen=True)
class SmemDescriptor:
    """A decoded SMEM matrix descriptor. `start`, `lbo` and `sbo` are in bytes, `start` is CTA-relative.

    `swizzle` is None when the layout code is reserved (3, 5 or 7).
    """

    start: int
    lbo: int
    sbo: int
    swizzle: SwizzleMode | None = SwizzleMode.NONE
    version: int = 1
    base_offset: int = 0
    lbo_mode: int = 0
    layout: int = 0
    fixed: int = 0  # bits [53,61), must be 0
    wgmma: bool = False

    @staticmethod
    def decode(value: int) -> SmemDescriptor:
        """Decode a tcgen05 descriptor (sm_100)."""
        return _decode(int(value))

    @staticmethod
    def decode_wgmma(value: int) -> SmemDescriptor:
        """Decode a wgmma descriptor (sm_90a); its `version` is reported as 1 because it has no such field."""
        return _decode_wgmma(int(value))

    @staticmethod
    def make(
        start: int, lbo: int, sbo: int, mode: SwizzleMode = SwizzleMode.NONE, *, wgmma: bool = False
    ) -> SmemDescriptor:
        """A descriptor from byte quantities and a swizzle mode, with the fixed fields filled in."""
        layout = _WGMMA_LAYOUTS.index(mode) if wgmma else _LAYOUT_CODES[mode]
        return SmemDescriptor(start, lbo, sbo, mode, layout=layout, wgmma=wgmma)

    def encode(self) -> int:
        """The 64-bit value. Byte quantities lose their low 4 bits and bits from 2^18 up."""
        value = _field(self.start) | _field(self.lbo) << 16 | _field(self.sbo) << 32
        value |= (self.base_offset & 7) << 49
        if self.wgmma:
            return value | (self.layout & 3) << 62
        value |= (self.version & 7) << 46 | (self.lbo_mode & 1) << 52
        return value | (self.fixed & 0xFF) << 53 | (self.layout & 7) << 61


def _field(byte_count: int) -> int:
    return (byte_count & 0x3FFFF) >> 4


@lru_cache(maxsize=65536)
def _decode(value: int) -> SmemDescriptor:
    layout = (value >> 61) & 7
    return SmemDescriptor(
        start=(value & 0x3FFF) << 4,
        lbo=((value >> 16) & 0x3FFF) << 4,
        sbo=((value >> 32) & 0x3FFF) << 4,
        swizzle=_LAYOUTS.get(layout),
        version=(value >> 46) & 7,
        base_offset=(value >> 49) & 7,
        lbo_mode=(value >> 52) & 1,
        layout=layout,
        fixed=(value >> 53) & 0xFF,
    )


@lru_cache(maxsize=65536)
def _decode_wgmma(value: int) -> SmemDescriptor:
    layout = (value >> 62) & 3
    return SmemDescriptor(
        start=(value & 0x3FFF) << 4,
        lbo=((value >> 16) & 0x3FFF) << 4,
        sbo=((value >> 32) & 0x3FFF) << 4,
        swizzle=_WGMMA_LAYOUTS[layout],
        base_offset=(value >> 49) & 7,
        layout=layout,
        wgmma=True,
    )


def _mode(desc: SmemDescriptor) -> SwizzleMode:
    if desc.swizzle is None:
        raise ValueError(f"SMEM descriptor: layout code {desc.layout} is reserved")
    return desc.swizzle


@lru_cache(maxsize=1024)
def _chunk_offsets(
    start: int, lbo: int, sbo: int, mode: SwizzleMode, phase: int, rows: int, k: int, bits: int, major: Major
) -> Array:
    """Swizzled byte addresses of the operand's 16-byte chunks for a start address below `_PERIOD`.

    Shape (rows, chunks along K) for K-major, (k, chunks along MN) for MN-major.
    """
    width = mode.row_bytes
    if major == "K":
        row = np.arange(rows)[:, None]
        column = np.arange(-(-k * bits // 128))[None, :] * 16
        linear = start + (row // 8) * sbo + (row % 8) * width
        linear = linear + (column // 16 * lbo if mode == SwizzleMode.NONE else column)
    else:
        row = np.arange(-(-rows * bits // 128))[None, :] * 16
        column = np.arange(k)[:, None]
        along_mn, along_k = (sbo, lbo) if mode == SwizzleMode.NONE else (lbo, sbo)
        rows_per_atom = 4 if mode == SwizzleMode.B128_ATOM_32B else 8
        linear = start + row % width + (row // width) * along_mn
        linear = linear + (column % rows_per_atom) * width + (column // rows_per_atom) * along_k
    addresses = swizzle.apply(mode, linear, phase)
    addresses.flags.writeable = False
    return addresses


@lru_cache(maxsize=1024)
def _chunk_index(
    start: int, lbo: int, sbo: int, mode: SwizzleMode, phase: int, rows: int, k: int, bits: int, major: Major
) -> Array:
    index = (_chunk_offsets(start, lbo, sbo, mode, phase, rows, k, bits, major) >> 4).astype(np.intp)
    index.flags.writeable = False
    return index


def chunk_addresses(desc: SmemDescriptor, rows: int, k: int, bits: int, major: Major = "K") -> Array:
    """Byte addresses of every 16-byte chunk the operand occupies, in no particular order (1-D).

    `bits` is the SMEM footprint of one element (`ElementFormat.smem_bits`).
    """
    base = desc.start - desc.start % _PERIOD
    key = (desc.start - base, desc.lbo, desc.sbo, _mode(desc), desc.base_offset, rows, k, bits, major)
    return (_chunk_offsets(*key) + base).reshape(-1)


def byte_offsets(desc: SmemDescriptor, rows: int, k_elems: int, elem_bits: int, major: Major = "K") -> Array:
    """Byte address in SMEM of every operand element, shape (rows, k_elems), int32.

    For 4-bit elements two neighbours along K share a byte, the even one in its low nibble.
    """
    base = desc.start - desc.start % _PERIOD
    key = (desc.start - base, desc.lbo, desc.sbo, _mode(desc), desc.base_offset)
    return _byte_offsets(*key, rows, k_elems, elem_bits, major) + np.int32(base)


@lru_cache(maxsize=256)
def _byte_offsets(
    start: int, lbo: int, sbo: int, mode: SwizzleMode, phase: int, rows: int, k: int, bits: int, major: Major
) -> Array:
    chunks = _chunk_offsets(start, lbo, sbo, mode, phase, rows, k, bits, major).astype(np.int32)
    per_chunk = 128 // bits
    inside = (np.arange(per_chunk) * bits // 8).astype(np.int32)
    elements = (chunks[:, :, None] + inside).reshape(chunks.shape[0], -1)
    out = elements[:, :k] if major == "K" else elements[:, :rows].T
    out.flags.writeable = False
    return out


def gather_chunks(
    smem: Array, desc: SmemDescriptor, rows: int, k: int, bits: int, major: Major = "K"
) -> Array:
    """The operand as 16-byte units (dtype complex128 is only a 16-byte container), a fresh array.

    Shape (rows, ceil(k bits/128)) for K-major, (k, ceil(rows bits/128)) for MN-major.
    `smem` is 1-D, contiguous, its length a multiple of 16. Raises ValueError if the operand leaves it.
    """
    start = desc.start
    low = start % _PERIOD
    key = (low, desc.lbo, desc.sbo, _mode(desc), desc.base_offset, rows, k, bits, major)
    try:
        return smem.view(np.complex128)[(start - low) >> 4 :].take(_chunk_index(*key))
    except IndexError:
        last = int(chunk_addresses(desc, rows, k, bits, major).max()) + 16
        raise ValueError(
            f"SMEM descriptor: the operand reaches byte {last}, shared memory has {smem.size} bytes"
        ) from None


def gather_operand(
    smem: Array,
    desc: SmemDescriptor,
    rows: int,
    k: int,
    fmt: ElementFormat | str,
    major: Major = "K",
) -> Array:
    """The operand A (rows = M) or B (rows = N) that a descriptor points at, shape (rows, k), a fresh array.

    Its dtype is the format's storage dtype: float16, bfloat16, float32 (tf32, not yet truncated), and one
    ml_dtypes element per byte for 8-, 6- and 4-bit formats. MN-major operands come back Fortran-ordered.
    """
    fmt = formats.lookup(fmt)
    chunks = gather_chunks(smem, desc, rows, k, fmt.smem_bits, major)
    if fmt.bits >= 8:
        elements = chunks.view(fmt.storage)
    elif fmt.smem_bits == 4:
        elements = formats.unpack_e2m1(chunks.view(np.uint8)).view(fmt.storage)
    else:
        elements = formats.unpack_chunks(chunks.view(np.uint8), fmt.bits).view(fmt.storage)
    return _trim(elements, rows, k, major)


def gather_float32(
    smem: Array,
    desc: SmemDescriptor,
    rows: int,
    k: int,
    fmt: ElementFormat | str,
    major: Major = "K",
) -> Array:
    """`gather_operand` decoded to float32: what the fast MMA multiplies. Shape (rows, k)."""
    fmt = formats.lookup(fmt)
    if fmt.smem_bits != 4:
        return formats.to_float32(gather_operand(smem, desc, rows, k, fmt, major), fmt)
    packed = gather_chunks(smem, desc, rows, k, 4, major).view(np.uint8)
    return _trim(formats.e2m1_to_float32(packed), rows, k, major)


def _trim(elements: Array, rows: int, k: int, major: Major) -> Array:
    if major == "K":
        return elements if elements.shape[1] == k else elements[:, :k]
    return elements.T if elements.shape[1] == rows else elements[:, :rows].T


def problems(
    desc: SmemDescriptor,
    rows: int,
    k: int,
    fmt: ElementFormat | str,
    major: Major = "K",
    smem_bytes: int = SMEM_BYTES,
) -> list[str]:
    """Everything that makes this descriptor illegal for a (rows, k) operand, one sentence each."""
    fmt = formats.lookup(fmt)
    return list(_problems(desc, rows, k, fmt, major, smem_bytes))


@lru_cache(maxsize=4096)
def _problems(
    desc: SmemDescriptor, rows: int, k: int, fmt: ElementFormat, major: Major, smem_bytes: int
) -> tuple[str, ...]:
    found: list[str] = []
    if desc.version != 1:
        found.append(
            f"bits 46-48 of the SMEM descriptor are {desc.version}, sm_100 needs the constant 1 "
            "(is this a Hopper descriptor, or one that was never encoded?)"
        )
    if desc.lbo_mode:
        found.append("bit 52 (absolute leading-dimension address) of the SMEM descriptor needs sm_103a")
    if desc.fixed:
        found.append(f"bits 53-60 of the SMEM descriptor must be 0, they are {desc.fixed:#x}")
    if desc.swizzle is None:
        found.append(
            f"layout code {desc.layout} of the SMEM descriptor is reserved "
            "(0 none, 1 128B with 32B atoms, 2 128B, 4 64B, 6 32B)"
        )
        return tuple(found)
    mode = desc.swizzle
    found += _major_problems(desc, mode, fmt, major)
    found += _stride_problems(desc, mode, rows, k, fmt.smem_bits, major)
    end = int(chunk_addresses(desc, rows, k, fmt.smem_bits, major).max()) + 16
    if end > smem_bytes:
        found.append(
            f"the operand of {rows} x {k} {fmt} at {desc.start:#x} reaches byte {end} of shared memory, "
            f"which has {smem_bytes} bytes"
        )
    return tuple(found)


def _major_problems(desc: SmemDescriptor, mode: SwizzleMode, fmt: ElementFormat, major: Major) -> list[str]:
    if major == "K":
        if mode == SwizzleMode.B128_ATOM_32B:
            return ["the 128B swizzle with 32B atoms is for MN-major operands, this one is K-major"]
        return []
    if desc.wgmma:
        return [] if fmt.bits == 16 else [f"wgmma takes {fmt} operands K-major only, this one is MN-major"]
    if fmt.bits < 8:
        return [f"{fmt} operands must be K-major: sub-byte elements cannot be transposed"]
    if fmt.bits == 32 and mode != SwizzleMode.B128_ATOM_32B:
        return [f"an MN-major tf32 operand needs the 128B swizzle with 32B atoms, not {mode}"]
    return []


def _stride_problems(
    desc: SmemDescriptor, mode: SwizzleMode, rows: int, k: int, bits: int, major: Major
) -> list[str]:
    """Strides that make parts of the operand overlap: almost always a swapped or forgotten LBO/SBO."""
    width = mode.row_bytes
    k_bytes = k * bits // 8
    found = []
    if major == "K":
        if rows > 8 and desc.sbo < 8 * width:
            found.append(_overlap("SBO", desc.sbo, "8 rows", f"K-major, {mode}", 8 * width))
        if mode == SwizzleMode.NONE and k_bytes > 16 and desc.lbo < 16:
            found.append(_overlap("LBO", desc.lbo, "16 bytes of K", f"K-major, {mode}", 16))
        elif mode != SwizzleMode.NONE and desc.start % width + k_bytes > width:
            found.append(
                f"the operand starts at byte {desc.start % width} of a {width}-byte row and reads {k_bytes} "
                "bytes along K, past the end of the swizzled row"
            )
        return found
    depth = 4 if mode == SwizzleMode.B128_ATOM_32B else 8
    mn_name, mn_stride, k_name, k_stride = "LBO", desc.lbo, "SBO", desc.sbo
    if mode == SwizzleMode.NONE:
        mn_name, mn_stride, k_name, k_stride = "SBO", desc.sbo, "LBO", desc.lbo
    if rows * bits // 8 > width and mn_stride < width:
        found.append(_overlap(mn_name, mn_stride, f"{width} bytes of MN", f"MN-major, {mode}", width))
    if k > depth and k_stride < width:
        found.append(_overlap(k_name, k_stride, f"{depth} steps of K", f"MN-major, {mode}", depth * width))
    return found


def _overlap(name: str, value: int, what: str, layout: str, needed: int) -> str:
    return (
        f"{name} is {value} bytes, but {what} of a {layout} operand are {needed} bytes apart or more: "
        "parts of the operand overlap"
    )


def suspicions(desc: SmemDescriptor) -> list[str]:
    """Legal but unusual: a start address off the repeat boundary of the swizzle pattern (lint)."""
    mode = desc.swizzle
    if mode is None or mode == SwizzleMode.NONE:
        return []
    row = desc.start % mode.repeat_bytes // mode.row_bytes
    expected = (desc.start >> 7) & 7 & (mode.repeat_bytes // 128 - 1)
    if row == 0 or desc.base_offset == expected != 0:
        return []
    note = (
        f"the operand starts at {desc.start:#x}, in row {row} of the pattern of the {mode}, which repeats "
        f"every {mode.repeat_bytes} bytes; the base offset field is {desc.base_offset}: align the tile to "
        f"{mode.repeat_bytes} bytes"
    )
    return [note]
