"""Conversions against a search through every value of the target format, and packing against PTX's order."""

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.numerics import convert as cv
from emulator.numerics import formats

SMALL = ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"]
ALL = ["f16", "bf16", *SMALL]
LARGEST = {
    "f16": 65504,
    "bf16": 3.3895313892515355e38,
    "e4m3": 448,
    "e5m2": 57344,
    "e2m3": 7.5,
    "e3m2": 28,
    "e2m1": 6,
}
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 7}
f32 = st.one_of(
    st.integers(0, 2**32 - 1).map(lambda b: np.uint32(b).view(np.float32)),
    st.floats(-512, 512, width=32).map(np.float32),
    st.floats(-0.0078125, 0.0078125, width=32).map(np.float32),
)


@pytest.fixture(autouse=True, scope="module")
def quiet():
    with np.errstate(all="ignore"):
        yield


def grid(name):
    """Sorted finite non-negative values of a format, as Fractions, with their codes."""
    fmt = formats.lookup(name)
    codes = np.arange(1 << (fmt.bits - 1), dtype=np.uint16 if fmt.bits == 16 else np.uint8)
    values = codes.view(fmt.storage).astype(np.float32)
    return [(Fraction(float(v)), int(c)) for v, c in zip(values, codes, strict=True) if math.isfinite(v)]


GRIDS = {name: grid(name) for name in ALL}


def expected_code(x, name, rounding, satfinite):
    """The code cvt gives for a finite float, by looking at the two neighbours in the format."""
    table = GRIDS[name]
    sign = 1 << (formats.lookup(name).bits - 1) if math.copysign(1, x) < 0 else 0
    magnitude, negative = Fraction(abs(x if isinstance(x, int) else float(x))), x < 0
    largest = table[-1][0]
    low, high = 0, len(table)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if table[middle][0] <= magnitude else (low, middle)
    below = table[low][0]
    above = table[low + 1][0] if low + 1 < len(table) else 2 * largest - table[-2][0]
    if magnitude == below:
        up = False
    else:
        middle = (below + above) / 2
        up = {
            "rn": magnitude > middle or (magnitude == middle and low % 2 == 1),
            "rna": magnitude >= middle,
            "rz": False,
            "rm": negative,
            "rp": not negative,
        }[rounding]
    if (low + 1 == len(table) and up) or magnitude >= above:
        has_infinity = name in ("f16", "bf16", "e5m2")
        toward_zero = rounding == "rz" or rounding == ("rp" if negative else "rm")
        if satfinite or toward_zero or name in ("e2m3", "e3m2", "e2m1"):
            return table[-1][1] | sign
        return (table[-1][1] + 1) | sign if has_infinity else NAN[name]
    return table[low + up][1] | sign


def code_of(values):
    return int(np.atleast_1d(values).view(np.uint16 if values.dtype.itemsize == 2 else np.uint8)[0])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp", "rna"])
@pytest.mark.parametrize("satfinite", [False, True])
@settings(max_examples=150, deadline=None)
@given(x=f32)
def test_narrow(name, rounding, satfinite, x):
    if not math.isfinite(x):
        return
    got = code_of(cv.narrow(np.array([x]), name, rounding, satfinite))
    assert got == expected_code(x, name, rounding, satfinite)


@pytest.mark.parametrize("name", ALL)
def test_every_midpoint_and_neighbour(name):
    table = GRIDS[name]
    points = []
    for (a, _), (b, _) in list(itertools.pairwise(table))[:: max(1, len(table) // 400)]:
        middle = np.float32(float((a + b) / 2))
        points += [
            middle,
            np.nextafter(middle, np.float32(0)),
            np.nextafter(middle, np.float32(np.inf)),
            -middle,
        ]
    codes = cv.narrow(np.array(points), name, satfinite=True).view(
        np.uint16 if formats.lookup(name).bits == 16 else np.uint8
    )
    assert codes.tolist() == [expected_code(p, name, "rn", True) for p in points]


@pytest.mark.parametrize("name", ALL)
def test_infinity_and_nan(name):
    special = np.array([np.inf, -np.inf, np.nan, -np.nan], np.float32)
    largest, sign = GRIDS[name][-1][1], 1 << (formats.lookup(name).bits - 1)
    view = np.uint16 if formats.lookup(name).bits == 16 else np.uint8
    saturated = cv.narrow(special, name, satfinite=True).view(view).tolist()
    assert saturated == [largest, largest | sign, NAN[name], NAN[name]]
    plain = cv.narrow(special, name).view(view).tolist()
    if name in ("f16", "bf16", "e5m2"):
        assert plain == [largest + 1, (largest + 1) | sign, NAN[name], NAN[name]]
    elif name == "e4m3":
        assert plain == [0x7F] * 4
    else:
        assert plain == saturated


@pytest.mark.parametrize("name", ALL)
def test_relu_and_signed_zero(name):
    x = np.array([-1.0, -0.0, 1.0, np.nan, -np.inf], np.float32)
    view = np.uint16 if formats.lookup(name).bits == 16 else np.uint8
    codes = cv.narrow(x, name, satfinite=True, relu=True).view(view).tolist()
    one = int(np.array([1.0], np.float32).astype(formats.lookup(name).storage).view(view)[0])
    assert codes == [0, 0, one, NAN[name], 0]
    minus_zero = cv.narrow(np.array([-0.0], np.float32), name).view(view)
    assert int(minus_zero[0]) == 1 << (formats.lookup(name).bits - 1)


@given(x=f32)
def test_tf32(x):
    if not math.isfinite(x):
        return
    bits = int(np.float32(x).view(np.uint32))
    low, kept = bits & 0x1FFF, bits & ~0x1FFF
    want = {
        "rz": kept,
        "rna": kept + (0x2000 if low >= 0x1000 else 0),
        "rn": kept + (0x2000 if low > 0x1000 or (low == 0x1000 and kept & 0x2000) else 0),
    }
    for rounding, expected in want.items():
        got = int(cv.narrow(np.array([x]), "tf32", rounding).view(np.uint32)[0])
        assert got == expected
    down = cv.narrow(np.array([x]), "tf32", "rm").astype(np.float64)[0]
    up = cv.narrow(np.array([x]), "tf32", "rp").astype(np.float64)[0]
    assert down <= float(x) <= up


def test_tf32_special():
    x = np.array([np.inf, -np.inf, np.nan, 3.4e38], np.float32)
    got = cv.narrow(x, "tf32", "rna").view(np.uint32).tolist()
    assert got[:3] == [0x7F800000, 0xFF800000, 0x7FC00000]  # an H200 cuts the NaN's low bits off
    assert float(cv.narrow(x, "tf32", "rna", satfinite=True)[0]) == float(
        np.uint32(0x7F7FE000).view(np.float32)
    )


@pytest.mark.parametrize("name,dtype,shift", [
    ("f16", np.uint32, 16), ("bf16", np.uint32, 16), ("e4m3", np.uint16, 8), ("e5m2", np.uint16, 8),
    ("e2m3", np.uint16, 8), ("e3m2", np.uint16, 8), ("e2m1", np.uint8, 4),
])  # fmt: skip
def test_first_source_lands_in_the_upper_half(name, dtype, shift):
    rng = np.random.default_rng(0)
    hi, lo = (rng.standard_normal(64).astype(np.float32) * 3 for _ in range(2))
    packed = cv.pack2(hi, lo, name, satfinite=True)
    assert packed.dtype == dtype
    for i in range(64):
        want = expected_code(hi[i], name, "rn", True) << shift | expected_code(lo[i], name, "rn", True)
        assert int(packed[i]) == want
    high, low = cv.unpack2(packed, name)
    again = cv.pack2(high, low, name, satfinite=True)
    assert np.array_equal(again, packed)
    assert np.array_equal(high, cv.narrow(hi, name, satfinite=True).astype(np.float32))


def test_repack():
    codes = np.arange(65536, dtype=np.uint16)
    halves = cv.repack2(codes, "e4m3", "f16")
    want = codes.view(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float16)
    got = halves.view(np.float16)
    np.testing.assert_array_equal(got, want)
    assert np.array_equal(cv.repack2(halves, "f16", "e4m3", satfinite=True) & 0x7F7F, codes & 0x7F7F)
    relu_hi, relu_lo = cv.unpack2(np.array([0xBC003C00], np.uint32), "f16", relu=True)
    assert (float(relu_hi[0]), float(relu_lo[0])) == (0.0, 1.0)


def test_ue8m0():
    values = np.array(
        [1, 1.5, 2, 0.75, 0, 2.0**-127, 2.0**-128, 1.5 * 2.0**-127, 3e38, np.inf, np.nan, -3], np.float32
    )
    assert cv.to_ue8m0(values, "rz").tolist() == [127, 127, 128, 126, 0, 0, 0, 0, 254, 254, 255, 128]
    assert cv.to_ue8m0(values, "rp").tolist() == [127, 128, 128, 127, 0, 0, 0, 1, 254, 254, 255, 129]
    assert cv.to_ue8m0(values, "rp", satfinite=False).tolist()[8:11] == [255, 255, 255]
    codes = np.arange(256, dtype=np.uint8)
    decoded = cv.from_ue8m0(codes)
    assert np.isnan(decoded[255]) and decoded[:255].tolist() == [2.0 ** (c - 127) for c in range(255)]
    assert cv.to_ue8m0(decoded[1:255], "rz").tolist() == list(range(1, 255))
    packed = cv.pack2(np.array([4.0], np.float32), np.array([1.0], np.float32), "ue8m0", "rz", True)
    assert packed.tolist() == [129 << 8 | 127]


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        f32,
        st.floats(-(2.0**65), 2.0**65).map(np.float32),
        st.integers(-300, 300).map(lambda i: np.float32(i / 2)),
    )
)
def test_float_to_int(x):
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        info = np.iinfo(dtype)
        for rounding, function in (
            ("rni", round),
            ("rzi", math.trunc),
            ("rmi", math.floor),
            ("rpi", math.ceil),
        ):
            if math.isnan(x):
                want = 0
            elif math.isinf(x):
                want = info.max if x > 0 else info.min
            else:
                want = min(max(function(Fraction(float(x))), info.min), info.max)
            got = cv.float_to_int(np.array([x]), dtype, rounding)
            assert got.dtype == dtype and int(got[0]) == want


def nearest_float32(value, rounding):
    y = float(np.float32(value)) if abs(value) < 2**24 else None
    if y is None:
        shift = abs(value).bit_length() - 24
        low = (abs(value) >> shift) << shift
        rest, unit = abs(value) - low, 1 << shift
        up = {
            "rn": rest * 2 > unit or (rest * 2 == unit and (low >> shift) & 1),
            "rz": False,
            "rm": value < 0 and rest > 0,
            "rp": value > 0 and rest > 0,
        }[rounding]
        y = float(math.copysign(low + unit * bool(up), value))
    return y


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 63))
def test_int_to_float(value, shift):
    value >>= shift
    dtype = np.int64 if value < 2**63 else np.uint64
    x = np.array([value], dtype)
    for rounding in ("rn", "rz", "rm", "rp"):
        assert float(cv.int_to_float(x, "f32", rounding)[0]) == nearest_float32(value, rounding)
        for name in ("f16", "bf16"):
            got = code_of(cv.int_to_float(x, name, rounding))
            assert got == expected_code(value, name, rounding, False)


def test_int_to_int():
    x = np.array([-129, -1, 127, 128, 300], np.int32)
    assert cv.int_to_int(x, np.int8).tolist() == [127, -1, 127, -128, 44]
    assert cv.int_to_int(x, np.int8, saturate=True).tolist() == [-128, -1, 127, 127, 127]
    assert cv.int_to_int(x, np.uint8, saturate=True).tolist() == [0, 0, 127, 128, 255]
    assert cv.int_to_int(x, np.int64).tolist() == x.tolist()


def test_round_to_integral():
    x = np.array([2.5, -2.5, 1.2, -1.2], np.float32)
    assert cv.round_to_integral(x, "rni").tolist() == [2, -2, 1, -1]
    assert cv.round_to_integral(x, "rzi").tolist() == [2, -2, 1, -1]
    assert cv.round_to_integral(x, "rmi").tolist() == [2, -3, 1, -2]
    assert cv.round_to_integral(x, "rpi").tolist() == [3, -2, 2, -1]


def test_errors():
    with pytest.raises(ValueError, match="does not convert to ue8m0"):
        cv.narrow(np.zeros(1, np.float32), "ue8m0")
    with pytest.raises(ValueError, match="unknown rounding 'up'"):
        cv.narrow(np.zeros(1, np.float32), "f16", "up")
    with pytest.raises(ValueError, match="rn, rz, rm or rp"):
        cv.int_to_float(np.zeros(1, np.int32), "f32", "rna")
