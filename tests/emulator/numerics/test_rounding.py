"""Directed roundings against exact rational arithmetic."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emulator.numerics import rounding as r

MODES = ["rn", "rz", "rm", "rp"]
f32 = st.integers(0, 2**32 - 1).map(lambda b: np.uint32(b).view(np.float32))
close = st.builds(  # float32 values whose exponents are near each other, where roundings interact
    lambda mantissa, exponent: np.float32(math.ldexp(mantissa, exponent)),
    st.integers(-(2**24) + 1, 2**24 - 1),
    st.integers(-30, -20),
)
tiny = st.integers(0, 0x01FFFFFF).map(lambda b: np.uint32(b).view(np.float32))
values = st.one_of(
    f32, close, tiny, st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-149, 3.4028235e38]).map(np.float32)
)


def exact_round(x, mode, mantissa=24, emin=-149, largest=Fraction(2) ** 128 - Fraction(2) ** 104):
    """Round a Fraction to a binary float: the largest grid point below, then choose."""
    if x == 0:
        return 0.0
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    quantum = Fraction(2) ** max(exponent - mantissa + 1, emin)
    below = x // quantum
    rest = x - below * quantum
    up = {
        "rz": x < 0 and rest > 0,
        "rm": False,
        "rp": rest > 0,
        "rn": rest * 2 > quantum or (rest * 2 == quantum and below % 2 == 1),
    }[mode]
    rounded = (below + up) * quantum
    if abs(rounded) > largest:
        toward_zero = mode == "rz" or (mode == "rm" and x > 0) or (mode == "rp" and x < 0)
        return math.copysign(float(largest) if toward_zero else math.inf, x)
    return math.copysign(float(rounded), x)


def same(got, want):
    return (math.isnan(got) and math.isnan(want)) or (
        got == want and math.copysign(1, got) == math.copysign(1, want)
    )


def finite(*xs):
    return all(math.isfinite(float(x)) for x in xs)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=400, deadline=None)
@given(a=values, b=values, c=values)
@example(a=np.float32(1 + 2**-12), b=np.float32(1 + 2**-12), c=np.float32(2.0**-60))
@example(a=np.float32(2.0**-75), b=np.float32(2.0**-75), c=np.float32(2.0**-149))
def test_fma(mode, a, b, c):
    with np.errstate(all="ignore"):
        got = float(r.fma(a, b, c, mode))
    if not finite(a, b, c):
        with np.errstate(all="ignore"):
            want = float(np.float64(a) * np.float64(b) + np.float64(c))
        assert same(got, want)
        return
    x = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    want = exact_round(x, mode)
    if x == 0:
        product = math.copysign(1, a) * math.copysign(1, b)
        signs = {product, math.copysign(1, c)}
        want = math.copysign(0.0, min(signs) if len(signs) == 1 or mode == "rm" else 1)
    assert same(got, want)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=300, deadline=None)
@given(a=values, b=values)
def test_add_sub_mul(mode, a, b):
    if not finite(a, b):
        return
    x, y = Fraction(float(a)), Fraction(float(b))
    with np.errstate(all="ignore"):
        for got, exact in (
            (r.add(a, b, mode), x + y),
            (r.sub(a, b, mode), x - y),
            (r.mul(a, b, mode), x * y),
        ):
            if exact != 0:
                assert same(float(got), exact_round(exact, mode))
        if x + y == 0 and x != 0:
            assert same(float(r.add(a, b, mode)), -0.0 if mode == "rm" else 0.0)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=300, deadline=None)
@given(a=values, b=values)
def test_div_and_rcp(mode, a, b):
    if not finite(a, b) or b == 0:
        return
    with np.errstate(all="ignore"):
        if a != 0:
            assert same(float(r.div(a, b, mode)), exact_round(Fraction(float(a)) / Fraction(float(b)), mode))
        assert same(float(r.rcp(b, mode)), exact_round(1 / Fraction(float(b)), mode))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=300, deadline=None)
@given(a=values)
def test_sqrt(mode, a):
    if not finite(a) or a <= 0:
        return
    got = Fraction(float(r.sqrt(a, mode)))
    x = Fraction(float(a))
    below = Fraction(float(np.nextafter(np.float32(got), np.float32(-1))))
    above = Fraction(float(np.nextafter(np.float32(got), np.float32(np.inf))))
    if mode in ("rz", "rm"):
        assert got**2 <= x < above**2
    elif mode == "rp":
        assert below**2 < x <= got**2
    else:
        assert ((below + got) / 2) ** 2 <= x <= ((got + above) / 2) ** 2


def test_special_quotients():
    with np.errstate(all="ignore"):
        for mode in MODES:
            assert float(r.div(np.float32(1), np.float32(0), mode)) == math.inf
            assert float(r.div(np.float32(-1), np.float32(np.inf), mode)) == 0
            assert math.isnan(float(r.div(np.float32(0), np.float32(0), mode)))
            assert float(r.sqrt(np.float32(np.inf), mode)) == math.inf


def test_flush_to_zero_keeps_signs_infinities_and_nan():
    x = np.array([1e-40, -1e-40, 0.0, -0.0, 2.0**-126, np.inf, -np.inf, np.nan, 1.5], np.float32)
    with np.errstate(all="ignore"):
        y = r.flush(x)
        assert np.array_equal(np.signbit(y[:8]), np.signbit(x[:8]))
        np.testing.assert_array_equal(
            y, np.array([0, -0.0, 0, -0.0, 2.0**-126, np.inf, -np.inf, np.nan, 1.5], np.float32)
        )
        small = np.float32(2.0**-100)
        assert float(r.mul(small, small / 2, ftz=True)) == 0 and float(r.mul(small, np.float32(2.0**-30))) > 0
        assert float(r.add(np.float32(2.0**-126), -np.float32(1.5 * 2.0**-126), ftz=True)) == 0
        assert float(r.fma(np.float32(1e-40), np.float32(1e30), np.float32(0), ftz=True)) == 0


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=200, deadline=None)
@given(a=values, b=values, c=values)
def test_fma_with_flush_to_zero_is_the_plain_one_between_flushes(mode, a, b, c):
    with np.errstate(all="ignore"):
        got = float(r.fma(a, b, c, mode, ftz=True))
        plain = float(r.fma(*(r.flush(np.asarray(x)) for x in (a, b, c)), mode))
    want = math.copysign(0.0, plain) if abs(plain) < 2.0**-126 else plain
    boundary = math.nextafter(2.0**-126, 0)
    assert same(got, want) or (abs(want) == 2.0**-126 and abs(got) in (0, want)) or abs(plain) == boundary


def test_saturation():
    x = np.array([-1, -0.0, 0.25, 1.5, np.inf, -np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        y = r.add(x, np.float32(0), sat=True)
    assert y.tolist() == [0, 0, 0.25, 1, 1, 0, 0] and not np.signbit(y).any()


@pytest.mark.parametrize("mode", MODES)
def test_f32x2_is_a_view(mode):
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(256).astype(np.float32) for _ in range(3))
    packed = r.fma(a.view(np.uint64).view(np.float32), b, c, mode).view(np.uint64)
    assert packed.shape == (128,)
    want = [
        exact_round(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), mode)
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert packed.view(np.float32).tolist() == want


FORMATS = {
    np.float16: (11, -24, Fraction(65504)),
    ml_dtypes.bfloat16: (8, -133, Fraction(2) ** 128 - Fraction(2) ** 120),
}


@pytest.mark.parametrize("dtype", FORMATS)
@settings(max_examples=300, deadline=None)
@given(bits=st.tuples(*[st.integers(0, 65535)] * 3))
def test_half_arithmetic(dtype, bits):
    a, b, c = np.array(bits, np.uint16).view(dtype)[:, None]
    if not finite(a[0], b[0], c[0]):
        return
    x, y, z = (Fraction(float(v[0])) for v in (a, b, c))
    with np.errstate(all="ignore"):
        cases = [(r.add_half(a, b), x + y), (r.mul_half(a, b), x * y), (r.fma_half(a, b, c), x * y + z)]
    for got, exact in cases:
        if exact != 0:
            assert got.dtype == np.dtype(dtype)
            assert same(float(got[0]), exact_round(exact, "rn", *FORMATS[dtype]))
    with np.errstate(all="ignore"):
        assert float(r.fma_half(a, b, c, relu=True)[0]) == max(float(r.fma_half(a, b, c)[0]), 0.0)


def test_unknown_mode():
    with pytest.raises(ValueError, match="rn, rz, rm or rp"):
        r.mul(np.float32(1), np.float32(1), "up")
