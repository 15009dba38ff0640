"""Instruction descriptors of tcgen05.mma, encoded at run time (PTX ISA, "Instruction descriptor", tables for dense and
block-scaled kinds); ``tvm/backend/cuda/cpp/descriptors.py`` has the device functions that this replaces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.instructions.registers import unsupported
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value, is_vector
from emulator.threads import Threads

_FORMATS = {
    "float16": 0, "bfloat16": 1, "tf32": 2, "tensor_float32": 2, "float8_e4m3fn": 0, "float8_e4m3fnuz": 0, "float8_e5m2": 1,
    "float6_e2m3fn": 3, "float6_e3m2fn": 4, "float4_e2m1fn": 5, "uint8": 0, "int8": 1, "float32": 1, "int32": 2,
}  # fmt: skip
_SCALE_FORMATS = {"float8_e4m3fn": 0, "float8_e4m3fnuz": 0, "float8_e8m0fnu": 1}


def _format(name: str, mods: Mods) -> int:
    code = _FORMATS.get(name)
    if code is None:
        raise unsupported("tcgen05_encode_instr_descriptor", mods, f"operands of dtype {name}")
    return code


def _shared_bits(
    m: int, n: int, a: int, b: int, trans_a: int, trans_b: int, neg_a: int, neg_b: int, sparse: int
) -> int:
    """The fields that dense and block-scaled descriptors have in common."""
    return (
        bool(sparse) << 2 | a << 7 | b << 10 | bool(neg_a) << 13 | bool(neg_b) << 14 | bool(trans_a) << 15
        | bool(trans_b) << 16 | (n >> 3 & 0x3F) << 17 | (m >> 4 & 0x1F) << 24
    )  # fmt: skip


def matrix_descriptor(pointer: Value, ldo: Value, sdo: Value, constant: int) -> Value:
    """SMEM matrix descriptor: start address, leading and stride offsets (units of 16 bytes), and constant upper bits.

    Uniform operands give an int, operands that differ by lane (warps in lockstep have their own tiles) a uint64 vector.
    """
    if not (is_vector(pointer) or is_vector(ldo) or is_vector(sdo)):
        return (
            (int(pointer) & 0x3FFFF) >> 4 | (int(ldo) & 0x3FFF) << 16 | (int(sdo) & 0x3FFF) << 32 | constant
        )
    start, ldo, sdo = (np.asarray(x).astype(np.uint64) for x in (pointer, ldo, sdo))
    field = np.uint64(0x3FFF)
    return (
        start >> np.uint64(4) & field
        | (ldo & field) << np.uint64(16)
        | (sdo & field) << np.uint64(32)
        | np.uint64(constant)
    )


@instruction("cuda.tcgen05_encode_instr_descriptor", destination=0, factory=True)
def encode_dense(mods: Mods) -> Callable[..., int]:
    """Descriptor of a dense MMA: dtypes of D, A, B, the shape, majorness, negation and saturation."""
    d, a, b = (_format(name, mods) for name in mods.tokens[:3])

    def op(
        t: Threads,
        m: int,
        n: int,
        k: int,
        trans_a: int,
        trans_b: int,
        group: int,
        neg_a: int,
        neg_b: int,
        sat: int,
        sparse: int,
    ) -> int:
        return (
            _shared_bits(m, n, a, b, trans_a, trans_b, neg_a, neg_b, sparse) | bool(sat) << 3 | (d & 3) << 4
        )

    return op


@instruction("cuda.tcgen05_encode_instr_descriptor_block_scaled", destination=0, factory=True)
def encode_block_scaled(mods: Mods) -> Callable[..., int]:
    """Descriptor of a block-scaled MMA; the scale-factor ids are 0, ``runtime_instr_desc`` sets them."""
    _, a_name, b_name, scale, _ = mods.tokens[:5]
    if scale not in _SCALE_FORMATS:
        raise unsupported(
            "tcgen05_encode_instr_descriptor_block_scaled", mods, f"scale factors of dtype {scale}"
        )
    # mxf4 and mxf4nvf4 take e2m1 only, as format 1; mxf8f6f4 numbers its formats
    four_bits = a_name == b_name == "float4_e2m1fn"

    def op(
        t: Threads,
        sfa: Value,
        sfb: Value,
        m: int,
        n: int,
        k: int,
        trans_a: int,
        trans_b: int,
        group: int,
        neg_a: int,
        neg_b: int,
        sparse: int,
    ) -> int:
        a, b = (1, 1) if four_bits and k >= 64 else (_format(a_name, mods), _format(b_name, mods))
        bits = _shared_bits(m, n, a, b, trans_a, trans_b, neg_a, neg_b, sparse)
        return bits | _SCALE_FORMATS[scale] << 23 | (k == 96) << 31

    return op


@instruction("cuda.runtime_instr_desc")
def runtime_instr_desc(mods: Mods, t: Threads, desc: Any, sf_id: Value) -> None:
    """Set both scale-factor ids of a block-scaled descriptor in a register."""
    old = desc.read("uint32", 1)
    ids = np.asarray(sf_id).astype(np.uint32)
    desc.write(
        "uint32", old & np.uint32(~0x60000030 & 0xFFFFFFFF) | ids << np.uint32(29) | ids << np.uint32(4)
    )
