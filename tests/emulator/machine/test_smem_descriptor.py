"""SMEM descriptors: fields, operand addresses against a byte-wise model and TVM's layouts, and diagnosis."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.machine import smem_descriptor as sd
from emulator.machine.smem_descriptor import SmemDescriptor
from emulator.machine.swizzle import SwizzleMode
from emulator.numerics import formats

MODES = [SwizzleMode.NONE, SwizzleMode.B32, SwizzleMode.B64, SwizzleMode.B128]
SMEM = np.random.default_rng(3).integers(0, 256, 232448, dtype=np.uint8)


def slow_address(desc, row, k, element_bits, major):
    """One element's byte address, straight from the canonical layouts of the PTX ISA (in 16-byte units)."""
    unit = 128 // element_bits  # elements per 16-byte unit
    lbo, sbo = desc.lbo // 16, desc.sbo // 16
    swizzled = desc.swizzle != SwizzleMode.NONE
    units = desc.swizzle.row_bytes // 16
    if major == "K":
        column, inside = divmod(k, unit)
        position = (row % 8) * units + (row // 8) * sbo
        position += column if swizzled else column * lbo
    else:
        column, inside = divmod(row, unit)
        depth = 4 if desc.swizzle == SwizzleMode.B128_ATOM_32B else 8
        if swizzled:
            position = column % units + (column // units) * lbo + (k % depth) * units + (k // depth) * sbo
        else:
            position = column * sbo + k % 8 + (k // 8) * lbo
    linear = desc.start + position * 16 + inside * element_bits // 8
    line = linear // 128 - desc.base_offset
    flips = {
        SwizzleMode.NONE: 0,
        SwizzleMode.B32: (line % 2) * 16,
        SwizzleMode.B64: (line % 4) * 16,
        SwizzleMode.B128: (line % 8) * 16,
        SwizzleMode.B128_ATOM_32B: (line % 4) * 32,
    }
    return linear ^ flips[desc.swizzle]


@given(st.integers(0, 2**64 - 1))
def test_encode_is_the_inverse_of_decode_on_the_defined_bits(value):
    defined = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 46 | 7 << 49 | 1 << 52 | 0xFF << 53 | 7 << 61
    assert SmemDescriptor.decode(value).encode() == value & defined
    wgmma = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62
    assert SmemDescriptor.decode_wgmma(value).encode() == value & wgmma


def test_fields_of_a_known_descriptor():
    # start 0x400, ldo 1, sdo 64 (16-byte units), 128B swizzle: what TIRx builds for a (128, 64) fp16 tile
    desc = SmemDescriptor.decode((0x400 >> 4) | 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61)
    assert (desc.start, desc.lbo, desc.sbo, desc.swizzle) == (0x400, 16, 1024, SwizzleMode.B128)
    assert (desc.version, desc.base_offset, desc.lbo_mode, desc.layout) == (1, 0, 0, 2)
    assert SmemDescriptor.decode(3 << 61).swizzle is None
    assert SmemDescriptor.decode_wgmma(1 << 62).swizzle == SwizzleMode.B128


def test_values_match_tvm_encoder():
    descriptors = pytest.importorskip(
        "tvm.backend.cuda.cpp.descriptors", reason="TVM is the oracle of this test"
    )
    for number, mode in enumerate([*MODES, SwizzleMode.B128_ATOM_32B]):
        theirs = descriptors.encode_smem_descriptor_base_uint64(512, 64, number)
        assert SmemDescriptor.make(0x1230, 8192, 1024, mode).encode() == theirs | 0x123


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_addresses_match_the_slow_model(data):
    major = data.draw(st.sampled_from(["K", "MN"]))
    modes = MODES if major == "K" else [*MODES, SwizzleMode.B128_ATOM_32B]
    desc = SmemDescriptor.make(
        data.draw(st.integers(0, 2047)) * 16,
        data.draw(st.integers(0, 512)) * 16,
        data.draw(st.integers(0, 512)) * 16,
        data.draw(st.sampled_from(modes)),
    )
    if data.draw(st.booleans()):
        desc = SmemDescriptor.decode(desc.encode() | data.draw(st.integers(0, 7)) << 49)
    bits = data.draw(st.sampled_from([8, 16, 32] if major == "MN" else [4, 8, 16, 32]))
    rows = data.draw(st.sampled_from([8, 16, 24, 64, 128]))
    k = 256 // bits
    offsets = sd.byte_offsets(desc, rows, k, bits, major)
    assert offsets.dtype == np.int32 and offsets.shape == (rows, k)
    expected = [[slow_address(desc, r, c, bits, major) for c in range(k)] for r in range(rows)]
    assert np.array_equal(offsets, expected)
    chunks = set(sd.chunk_addresses(desc, rows, k, bits, major).tolist())
    assert chunks >= {a - a % 16 for a in np.unique(expected).tolist()}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_gather_reads_exactly_those_addresses(data):
    major = data.draw(st.sampled_from(["K", "MN"]))
    name = data.draw(st.sampled_from(["f16", "bf16", "tf32", "e4m3", "e5m2", "s8"]))
    fmt = formats.lookup(name)
    mode = data.draw(st.sampled_from(MODES))
    desc = SmemDescriptor.make(
        data.draw(st.integers(0, 300)) * 16, data.draw(st.integers(0, 200)) * 16, 1024, mode
    )
    rows, k = data.draw(st.sampled_from([8, 64, 128])), 256 // fmt.bits
    got = sd.gather_operand(SMEM, desc, rows, k, fmt, major)
    offsets = sd.byte_offsets(desc, rows, k, fmt.bits, major)
    size = fmt.bits // 8
    raw = np.stack([SMEM[offsets + i] for i in range(size)], axis=-1).view(fmt.storage)[..., 0]
    assert got.dtype == fmt.storage and got.shape == (rows, k)
    assert got.tobytes() == raw.tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_packed_e2m1(mode):
    desc = SmemDescriptor.make(4096, 2048, 1024, mode)
    got = sd.gather_operand(SMEM, desc, 128, 64, "e2m1")
    offsets = sd.byte_offsets(desc, 128, 64, 4)
    nibble = (SMEM[offsets] >> (4 * (np.arange(64) % 2))) & 15
    assert np.array_equal(got.view(np.uint8), nibble)
    value = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    signed = np.where(nibble & 8, -value[nibble & 7], value[nibble & 7])
    assert np.array_equal(sd.gather_float32(SMEM, desc, 128, 64, "e2m1"), signed)


@pytest.mark.parametrize("name,bits", [("e2m1_padded", 4), ("e2m3", 6), ("e3m2", 6)])
def test_padded_sub_byte_elements(name, bits):
    """Sixteen elements to a 16-byte chunk, packed from its first bit upward, the rest is padding."""
    desc = SmemDescriptor.make(0, 0, 1024, SwizzleMode.B128)
    got = sd.gather_operand(SMEM, desc, 16, 32, name).view(np.uint8)
    for row in range(16):
        for k in (0, 1, 5, 15, 16, 30, 31):
            chunk = slow_address(desc, row, k // 16 * 16, 8, "K")
            word = int.from_bytes(SMEM[chunk : chunk + 16].tobytes(), "little")
            assert got[row, k] == (word >> (k % 16 * bits)) & ((1 << bits) - 1)


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1_padded", "s8", "u8"])
@pytest.mark.parametrize("major", ["K", "MN"])
def test_float32_gather_decodes_the_operand(name, major):
    fmt = formats.lookup(name)
    if major == "MN" and fmt.bits < 8:
        pytest.skip("sub-byte operands are K-major")
    desc = SmemDescriptor.make(1024, 8192, 1024, SwizzleMode.B128)
    k = 256 // fmt.smem_bits
    codes = sd.gather_operand(SMEM, desc, 64, k, fmt, major)
    decoded = sd.gather_float32(SMEM, desc, 64, k, fmt, major)
    assert decoded.dtype == np.float32 and decoded.shape == (64, k)
    np.testing.assert_array_equal(decoded, codes.astype(np.float32))


def test_tf32_drops_the_low_13_bits():
    desc = SmemDescriptor.make(1024, 0, 1024, SwizzleMode.B128)
    raw = sd.gather_operand(SMEM, desc, 64, 8, "tf32").view(np.uint32)
    got = sd.gather_float32(SMEM, desc, 64, 8, "tf32").view(np.uint32)
    assert np.array_equal(got, raw >> 13 << 13)


@pytest.mark.parametrize("dtype,bits", [("float16", 16), ("float32", 32), ("float8_e4m3fn", 8)])
@pytest.mark.parametrize("mode", MODES)
def test_k_major_tile_matches_tvm_layout(dtype, bits, mode):
    """The strides that TIRx emits for an MMA tile make the descriptor walk TVM's own shared-memory layout."""
    pytest.importorskip("tvm", reason="TVM is the oracle of this test")
    from tvm.backend.cuda.tile_primitive.tma_utils import mma_shared_layout

    rows = 64
    width = 128 if mode == SwizzleMode.NONE else mode.row_bytes
    columns = width * 8 // bits
    layout = mma_shared_layout(dtype, int(mode), [rows, columns])
    lbo, sbo = (rows * 16, 128) if mode == SwizzleMode.NONE else (0, 8 * width)
    step = 256 // bits
    for k0 in range(0, columns, step):
        start = k0 * bits // 128 * (rows * 16) if mode == SwizzleMode.NONE else k0 * bits // 8
        offsets = sd.byte_offsets(SmemDescriptor.make(start, lbo, sbo, mode), rows, step, bits)
        for row in range(0, rows, 5):
            for k in range(step):
                assert (
                    offsets[row, k] == int(layout.apply(row, k0 + k, shape=[rows, columns])["m"]) * bits // 8
                )


@pytest.mark.parametrize("mode", [SwizzleMode.B32, SwizzleMode.B64, SwizzleMode.B128])
def test_mn_major_tile_matches_tvm_layout(mode):
    """A (K, M) fp16 tile stored K rows deep, read as an MN-major operand with the strides TIRx emits."""
    pytest.importorskip("tvm", reason="TVM is the oracle of this test")
    from tvm.backend.cuda.tile_primitive.tma_utils import mma_shared_layout

    depth, rows, width = 64, 128, mode.row_bytes
    layout = mma_shared_layout("float16", int(mode), [depth, rows])
    desc = SmemDescriptor.make(0, depth * width, 8 * width, mode)
    offsets = sd.byte_offsets(desc, rows, depth, 16, "MN")
    for row in range(0, rows, 3):
        for k in range(0, depth, 5):
            assert offsets[row, k] == int(layout.apply(k, row, shape=[depth, rows])["m"]) * 2


def problems(desc, rows=128, k=16, fmt="f16", major="K", **kw):
    return sd.problems(desc, rows, k, fmt, major, **kw)


def test_a_good_descriptor_has_no_problems():
    assert problems(SmemDescriptor.make(1024, 16, 1024, SwizzleMode.B128)) == []
    assert problems(SmemDescriptor.make(1024 + 96, 16, 1024, SwizzleMode.B128)) == []
    assert problems(SmemDescriptor.make(0, 2048, 128, SwizzleMode.NONE)) == []
    assert problems(SmemDescriptor.make(0, 8192, 1024, SwizzleMode.B128), major="MN") == []
    assert problems(SmemDescriptor.make(0, 4096, 512, SwizzleMode.B128_ATOM_32B), 64, 8, "tf32", "MN") == []


GOOD = SmemDescriptor.make(1024, 16, 1024, SwizzleMode.B128).encode()


@pytest.mark.parametrize(
    "value,kwargs,word",
    [
        (GOOD & ~(7 << 46), {}, "46-48"),
        (GOOD | 1 << 52, {}, "sm_103a"),
        (GOOD | 1 << 55, {}, "53-60"),
        (GOOD & ~(7 << 61) | 3 << 61, {}, "reserved"),
        (GOOD, {"smem_bytes": 16384}, "reaches byte 17408"),
        (SmemDescriptor.make(1024, 1024, 16, SwizzleMode.B128).encode(), {}, "SBO is 16 bytes"),
        (SmemDescriptor.make(0, 0, 128, SwizzleMode.NONE).encode(), {}, "LBO is 0 bytes"),
        (
            SmemDescriptor.make(112, 0, 1024, SwizzleMode.B128).encode(),
            {},
            "past the end of the swizzled row",
        ),
        (SmemDescriptor.make(0, 64, 1024, SwizzleMode.B128).encode(), {"major": "MN"}, "LBO is 64 bytes"),
        (GOOD, {"fmt": "e2m3", "major": "MN", "k": 32}, "must be K-major"),
        (GOOD, {"fmt": "tf32", "major": "MN", "k": 8}, "32B atoms"),
        (SmemDescriptor.make(0, 0, 1024, SwizzleMode.B128_ATOM_32B).encode(), {}, "MN-major operands"),
    ],
)
def test_problems_are_named(value, kwargs, word):
    found = problems(SmemDescriptor.decode(value), **kwargs)
    assert any(word in sentence for sentence in found), found


def test_wgmma_transposes_16_bit_operands_only():
    desc = SmemDescriptor.make(0, 8192, 1024, SwizzleMode.B128, wgmma=True)
    assert problems(desc, 64, 16, "bf16", "MN") == []
    assert "wgmma takes e4m3 operands K-major only" in problems(desc, 64, 32, "e4m3", "MN")[0]
    assert "wgmma takes tf32 operands K-major only" in problems(desc, 64, 8, "tf32", "MN")[0]


def test_suspicious_alignment():
    assert sd.suspicions(SmemDescriptor.make(1024, 0, 1024, SwizzleMode.B128)) == []
    assert sd.suspicions(SmemDescriptor.make(1024 + 64, 0, 1024, SwizzleMode.B128)) == []
    assert "row 1" in sd.suspicions(SmemDescriptor.make(1024 + 128, 0, 1024, SwizzleMode.B128))[0]
    shifted = SmemDescriptor.decode(
        SmemDescriptor.make(1024 + 128, 0, 1024, SwizzleMode.B128).encode() | 1 << 49
    )
    assert sd.suspicions(shifted) == []


def test_operand_outside_shared_memory_is_one_clear_line():
    desc = SmemDescriptor.make(232448 - 1024, 0, 1024, SwizzleMode.B128)
    with pytest.raises(ValueError, match=r"reaches byte .*, shared memory has 232448 bytes"):
        sd.gather_operand(SMEM, desc, 128, 16, "f16")


def test_storage_dtypes():
    desc = SmemDescriptor.make(0, 0, 1024, SwizzleMode.B128)
    assert sd.gather_operand(SMEM, desc, 8, 16, "bfloat16").dtype == ml_dtypes.bfloat16
    assert sd.gather_operand(SMEM, desc, 8, 32, "float8_e4m3fn").dtype == ml_dtypes.float8_e4m3fn
    with pytest.raises(ValueError, match="unknown element format"):
        sd.gather_operand(SMEM, desc, 8, 16, "float17")
