"""Element formats: decode tables against the definition of each format, and packing."""

import ml_dtypes
import numpy as np
import pytest

from emulator.numerics import formats


def value(fmt, code):
    """A code's value by the textbook: sign, exponent, mantissa."""
    sign = -1.0 if code >> (fmt.exponent_bits + fmt.mantissa_bits) & 1 else 1.0
    exponent = code >> fmt.mantissa_bits & ((1 << fmt.exponent_bits) - 1)
    mantissa = code & ((1 << fmt.mantissa_bits) - 1)
    fraction = mantissa / (1 << fmt.mantissa_bits)
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - fmt.bias)
    return sign * (1 + fraction) * 2.0 ** (exponent - fmt.bias)


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "e2m1_padded"])
def test_decode_table(name):
    fmt = formats.lookup(name)
    table = formats.decode_table(fmt)
    assert len(table) == 1 << fmt.bits
    top = (1 << fmt.exponent_bits) - 1
    for code in range(0, len(table), 1 if fmt.bits < 16 else 37):
        exponent, mantissa = code >> fmt.mantissa_bits & top, code & ((1 << fmt.mantissa_bits) - 1)
        if name in ("f16", "bf16", "e5m2") and exponent == top:
            assert np.isinf(table[code]) if mantissa == 0 else np.isnan(table[code])
        elif name == "e4m3" and code & 0x7F == 0x7F:
            assert np.isnan(table[code])
        else:
            want = value(fmt, code)
            assert table[code] == want and np.signbit(table[code]) == np.signbit(want)


def test_scale_formats():
    ue8m0, ue4m3 = formats.decode_table(formats.UE8M0), formats.decode_table(formats.UE4M3)
    assert ue8m0[:255].tolist() == [2.0 ** (c - 127) for c in range(255)] and np.isnan(ue8m0[255])
    assert np.array_equal(ue4m3[:128], ue4m3[128:], equal_nan=True) and ue4m3[0x38] == 1


@pytest.mark.parametrize("name", ["f16", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1_padded"])
@pytest.mark.parametrize("shape", [(3, 8), (3, 7), (5,), ()])
def test_to_float32_uses_the_table_for_any_shape_and_order(name, shape):
    fmt = formats.lookup(name)
    dtype = np.uint16 if fmt.bits == 16 else np.uint8
    codes = np.random.default_rng(0).integers(0, 1 << fmt.bits, shape).astype(dtype).reshape(shape)
    want = formats.decode_table(fmt)[codes]
    assert np.array_equal(formats.to_float32(codes.view(fmt.storage), fmt), want, equal_nan=True)
    if codes.ndim == 2:
        turned = formats.to_float32(codes.T.view(fmt.storage) if fmt.bits == 8 else codes.T, fmt)
        assert np.array_equal(turned, want.T, equal_nan=True)


def test_to_float32_by_dtype():
    x = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    assert formats.to_float32(x).tolist() == [1.5, -2.0]
    assert formats.to_float32(np.array([1, -2], np.int8)).tolist() == [1.0, -2.0]
    assert formats.to_float32(np.array([1.0 + 2.0**-12], np.float32), "tf32").tolist() == [1.0]
    assert formats.to_float32(np.array([1.0 + 2.0**-12], np.float32), "f32").tolist() == [1.0 + 2.0**-12]


def test_e2m1_packing():
    codes = np.random.default_rng(1).integers(0, 16, (4, 32), dtype=np.uint8)
    packed = formats.pack_e2m1(codes)
    assert packed.shape == (4, 16)
    assert int(packed[0, 0]) == int(codes[0, 0]) | int(codes[0, 1]) << 4
    assert np.array_equal(formats.unpack_e2m1(packed), codes)
    assert np.array_equal(formats.e2m1_to_float32(packed), formats.decode_table(formats.E2M1)[codes])


@pytest.mark.parametrize("bits", [4, 6])
def test_padded_chunks(bits):
    codes = np.random.default_rng(2).integers(0, 1 << bits, (3, 32), dtype=np.uint8)
    chunks = formats.pack_chunks(codes, bits)
    assert chunks.shape == codes.shape
    for row in range(3):
        for chunk in range(2):
            word = int.from_bytes(chunks[row, 16 * chunk : 16 * chunk + 16].tobytes(), "little")
            for i in range(16):
                assert word >> (i * bits) & ((1 << bits) - 1) == codes[row, 16 * chunk + i]
            assert word >> (16 * bits) == 0
    assert np.array_equal(formats.unpack_chunks(chunks, bits), codes)
    with pytest.raises(ValueError, match="4- or 6-bit"):
        formats.unpack_chunks(chunks, 5)
    with pytest.raises(ValueError, match="4- or 6-bit"):
        formats.pack_chunks(codes, 5)


def test_lookup():
    assert formats.lookup("float8_e4m3fn") is formats.E4M3 and formats.lookup(formats.F16) is formats.F16
    with pytest.raises(ValueError, match="unknown element format 'f17'"):
        formats.lookup("f17")
    with pytest.raises(ValueError, match="no decode table"):
        formats.decode_table(formats.F32)
