"""Number formats of the tensor core and fast decoding of their bit patterns to float32.

Names follow PTX: f16, bf16, tf32, e4m3, e5m2, e2m3, e3m2, e2m1, ue8m0, ue4m3, s8, u8. `lookup` also takes the
spellings of TVM and ml_dtypes. Every format here is a subset of float32, so decoding is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)  # compared by identity: one object per format, a fast cache key
class ElementFormat:
    """One element format.

    `smem_bits` is the footprint of an element in SMEM and TMEM operands: sub-byte elements of kinds f8f6f4
    and mxf8f6f4 sit 16 to a 16-byte chunk (4-bit ones in its first 8 bytes, 6-bit ones in its first 12), so
    they take 8 bits each; the e2m1 elements of kinds mxf4 and mxf4nvf4 are packed densely, 4 bits each.
    """

    name: str
    bits: int
    exponent_bits: int  # 0 for integers
    mantissa_bits: int
    bias: int
    storage: np.dtype  # dtype of one decoded code, as gather functions return it
    smem_bits: int

    @property
    def is_integer(self) -> bool:
        return self.exponent_bits == 0

    def __str__(self) -> str:
        return self.name


def _format(
    name: str, bits: int, exponent: int, mantissa: int, bias: int, storage: object, smem_bits: int
) -> ElementFormat:
    return ElementFormat(name, bits, exponent, mantissa, bias, np.dtype(storage), smem_bits)  # type: ignore[call-overload]


F16 = _format("f16", 16, 5, 10, 15, np.float16, 16)
BF16 = _format("bf16", 16, 8, 7, 127, ml_dtypes.bfloat16, 16)
TF32 = _format("tf32", 32, 8, 10, 127, np.float32, 32)
F32 = _format("f32", 32, 8, 23, 127, np.float32, 32)
E4M3 = _format("e4m3", 8, 4, 3, 7, ml_dtypes.float8_e4m3fn, 8)
E5M2 = _format("e5m2", 8, 5, 2, 15, ml_dtypes.float8_e5m2, 8)
E2M3 = _format("e2m3", 6, 2, 3, 1, ml_dtypes.float6_e2m3fn, 8)
E3M2 = _format("e3m2", 6, 3, 2, 3, ml_dtypes.float6_e3m2fn, 8)
E2M1 = _format("e2m1", 4, 2, 1, 1, ml_dtypes.float4_e2m1fn, 4)
E2M1_PADDED = _format("e2m1_padded", 4, 2, 1, 1, ml_dtypes.float4_e2m1fn, 8)
UE8M0 = _format("ue8m0", 8, 8, 0, 127, ml_dtypes.float8_e8m0fnu, 8)
UE4M3 = _format("ue4m3", 8, 4, 3, 7, ml_dtypes.float8_e4m3fn, 8)
S8 = _format("s8", 8, 0, 7, 0, np.int8, 8)
U8 = _format("u8", 8, 0, 8, 0, np.uint8, 8)

FORMATS = {
    f.name: f for f in (F16, BF16, TF32, F32, E4M3, E5M2, E2M3, E3M2, E2M1, E2M1_PADDED, UE8M0, UE4M3, S8, U8)
}
_ALIASES = {
    "float16": F16,
    "bfloat16": BF16,
    "tfloat32": TF32,
    "float32": F32,
    "float8_e4m3fn": E4M3,
    "float8_e5m2": E5M2,
    "float6_e2m3fn": E2M3,
    "float6_e3m2fn": E3M2,
    "float4_e2m1fn": E2M1,
    "float8_e8m0fnu": UE8M0,
    "int8": S8,
    "uint8": U8,
}


def lookup(fmt: ElementFormat | str) -> ElementFormat:
    """The format of a PTX, TVM or ml_dtypes name. Raises ValueError for an unknown one."""
    if isinstance(fmt, ElementFormat):
        return fmt
    found = FORMATS.get(fmt) or _ALIASES.get(fmt)
    if found is None:
        raise ValueError(f"unknown element format {fmt!r}; known: {', '.join(FORMATS)}")
    return found


@cache
def decode_table(fmt: ElementFormat) -> Array:
    """float32 value of every bit pattern of a format of at most 16 bits (index = the code)."""
    if fmt.bits > 16:
        raise ValueError(f"{fmt} has no decode table: {fmt.bits} bits")
    unsigned = np.uint16 if fmt.bits == 16 else np.uint8
    codes: Array = np.arange(1 << fmt.bits, dtype=unsigned)
    if fmt is UE4M3:
        codes = codes & np.uint8(0x7F)  # the hardware ignores the sign bit of a UE4M3 scale
    table: Array = codes.view(fmt.storage).astype(np.float32)
    table.flags.writeable = False
    return table


@cache
def _pair_table(fmt: ElementFormat) -> Array:
    """Two float32 values for every pair of 8-bit codes; complex64 only serves as an 8-byte unit."""
    table = decode_table(fmt)
    mask = len(table) - 1
    pairs = np.arange(65536)
    out = np.stack([table[pairs & 0xFF & mask], table[(pairs >> 8) & mask]], axis=-1)
    return np.ascontiguousarray(out).view(np.complex64).reshape(-1)


@cache
def _nibble_table() -> Array:
    """Four float32 values for every 16-bit group of packed e2m1; complex128 serves as a 16-byte unit."""
    table = decode_table(E2M1)
    groups = np.arange(65536)
    out = np.stack([table[(groups >> shift) & 15] for shift in (0, 4, 8, 12)], axis=-1)
    return np.ascontiguousarray(out).view(np.complex128).reshape(-1)


def to_float32(values: Array, fmt: ElementFormat | str | None = None) -> Array:
    """Decode an array of one format to float32, exactly and as fast as NumPy allows.

    `values` has the format's storage dtype (or the unsigned integer dtype of the same size); `fmt` may be
    omitted when the dtype says it. tf32 drops the 13 low mantissa bits, as the tensor core does.
    Same shape back; the memory order of the input is kept.
    """
    fmt = _ALIASES[values.dtype.name] if fmt is None else lookup(fmt)
    if fmt is F32:
        return values.view(np.float32)
    if fmt is TF32:
        return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if fmt is BF16:
        widened: Array = values.view(ml_dtypes.bfloat16).astype(np.float32)
        return widened
    if fmt.is_integer:
        return values.view(fmt.storage).astype(np.float32)
    if not values.flags.c_contiguous and values.flags.f_contiguous:
        return to_float32(values.T, fmt).T
    if fmt is F16:
        return decode_table(F16).take(values.view(np.uint16))
    if values.shape and values.shape[-1] % 2 == 0 and values.flags.c_contiguous:
        return _pair_table(fmt).take(values.view(np.uint16)).view(np.float32)
    table = decode_table(fmt)
    return table.take(values.view(np.uint8) & np.uint8(len(table) - 1))


def unpack_e2m1(packed: Array) -> Array:
    """Split bytes into 4-bit codes, low nibble first: shape (..., n) -> (..., 2n)."""
    out = np.empty((*packed.shape, 2), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0])
    np.right_shift(packed, 4, out=out[..., 1])
    return out.reshape(*packed.shape[:-1], -1)


def pack_e2m1(codes: Array) -> Array:
    """Inverse of `unpack_e2m1`: shape (..., 2n) of 4-bit codes -> (..., n) bytes."""
    return (codes[..., 0::2] & 15) | (codes[..., 1::2] << 4)


def e2m1_to_float32(packed: Array) -> Array:
    """Decode densely packed e2m1 bytes (contiguous, even last dimension): (..., n) -> float32 (..., 2n)."""
    return _nibble_table().take(packed.view(np.uint16)).view(np.float32)


def unpack_chunks(chunks: Array, bits: int) -> Array:
    """Codes of the padded sub-byte formats: (..., 16 n) bytes of n 16-byte chunks -> (..., 16 n) codes.

    A chunk holds 16 elements of 4 bits in its first 8 bytes, or of 6 bits in its first 12 bytes; element i
    starts at bit i * bits. Source: PTX ISA, tensor map types .b4x16_p64 and .b6x16_p32.
    """
    grouped = chunks.reshape(*chunks.shape[:-1], -1, 16)
    if bits == 4:
        codes = unpack_e2m1(grouped[..., :8])
    elif bits == 6:
        triple = grouped[..., :12].reshape(*grouped.shape[:-1], 4, 3).astype(np.uint32)
        word = triple[..., 0] | (triple[..., 1] << 8) | (triple[..., 2] << 16)
        codes = np.stack([(word >> shift) & 63 for shift in (0, 6, 12, 18)], axis=-1).astype(np.uint8)
    else:
        raise ValueError(f"padded chunks hold 4- or 6-bit elements, not {bits}-bit ones")
    return codes.reshape(chunks.shape)


def pack_chunks(codes: Array, bits: int) -> Array:
    """Inverse of `unpack_chunks`; the padding bytes are zero."""
    grouped = codes.reshape(*codes.shape[:-1], -1, 16)
    out = np.zeros(grouped.shape, np.uint8)
    if bits == 4:
        out[..., :8] = pack_e2m1(grouped)
    elif bits == 6:
        quads = (grouped & 63).reshape(*grouped.shape[:-1], 4, 4).astype(np.uint32)
        word = quads[..., 0] | (quads[..., 1] << 6) | (quads[..., 2] << 12) | (quads[..., 3] << 18)
        triple = np.stack([(word >> shift) & 255 for shift in (0, 8, 16)], axis=-1).astype(np.uint8)
        out[..., :12] = triple.reshape(*grouped.shape[:-1], 12)
    else:
        raise ValueError(f"padded chunks hold 4- or 6-bit elements, not {bits}-bit ones")
    return out.reshape(codes.shape)
