"""Approximate functions: error bounds of the PTX tables against float64, and special values."""

import math

import ml_dtypes
import numpy as np
import pytest

from emulator.numerics import special as sp

INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True, scope="module")
def quiet():
    with np.errstate(all="ignore"):
        yield


def ulps(got, want):
    """Error in units in the last place of the float32 result."""
    _, exponent = np.frexp(np.abs(want))
    return np.abs(got.astype(np.float64) - want) / np.ldexp(1.0, np.maximum(exponent - 24, -149))


@pytest.mark.parametrize("name,reference,low,high,bound", [
    ("ex2", np.exp2, -120, 120, 2), ("rcp", lambda x: 1 / x, 1e-30, 1e30, 1), ("sqrt", np.sqrt, 0, 1e30, 1),
    ("rsqrt", lambda x: 1 / np.sqrt(x), 1e-30, 1e30, 2),
])  # fmt: skip
def test_relative_error(name, reference, low, high, bound):
    rng = np.random.default_rng(0)
    x = rng.uniform(low, high, 20000).astype(np.float32)
    got = getattr(sp, name)(x)
    assert got.dtype == np.float32
    assert ulps(got, reference(x.astype(np.float64))).max() <= bound


@pytest.mark.parametrize("name,reference,low,high,bound", [
    ("lg2", np.log2, 0.5, 2, 2.0**-22), ("sin", np.sin, -math.pi, math.pi, 2.0**-20.5),
    ("cos", np.cos, -math.pi, math.pi, 2.0**-20.5), ("tanh", np.tanh, -5, 5, 2.0**-11),
])  # fmt: skip
def test_absolute_error(name, reference, low, high, bound):
    x = np.random.default_rng(1).uniform(low, high, 20000).astype(np.float32)
    got = getattr(sp, name)(x).astype(np.float64)
    assert np.abs(got - reference(x.astype(np.float64))).max() <= bound


SUB = np.float32(2.0**-130)


@pytest.mark.parametrize("name,x,want,want_ftz", [
    ("ex2", -INF, 0.0, 0.0), ("ex2", INF, INF, INF), ("ex2", SUB, 1.0, 1.0), ("ex2", -0.0, 1.0, 1.0),
    ("ex2", -130.0, 2.0**-130, 0.0), ("ex2", NAN, NAN, NAN), ("ex2", 128.0, INF, INF),
    ("lg2", 0.0, -INF, -INF), ("lg2", -0.0, -INF, -INF), ("lg2", -1.0, NAN, NAN), ("lg2", INF, INF, INF),
    ("lg2", SUB, -130.0, -INF), ("lg2", 1.0, 0.0, 0.0),
    ("rcp", 0.0, INF, INF), ("rcp", -0.0, -INF, -INF), ("rcp", INF, 0.0, 0.0), ("rcp", -INF, -0.0, -0.0),
    ("rcp", 2.0**127, 2.0**-127, 0.0), ("rcp", SUB, INF, INF), ("rcp", -SUB, -INF, -INF),
    ("rsqrt", 0.0, INF, INF), ("rsqrt", -0.0, -INF, -INF), ("rsqrt", -1.0, NAN, NAN),
    ("rsqrt", INF, 0.0, 0.0),
    ("rsqrt", 2.0**-130, 2.0**65, INF),
    ("sqrt", -0.0, -0.0, -0.0), ("sqrt", -1.0, NAN, NAN), ("sqrt", INF, INF, INF),
    ("sqrt", SUB, 2.0**-65, 0.0),
    ("sin", INF, NAN, NAN), ("sin", -0.0, -0.0, -0.0), ("sin", SUB, 2.0**-130, 0.0), ("cos", INF, NAN, NAN),
    ("cos", 0.0, 1.0, 1.0),
])  # fmt: skip
def test_special_values(name, x, want, want_ftz):
    for ftz, expected in ((False, want), (True, want_ftz)):
        got = float(getattr(sp, name)(np.array([x], np.float32), ftz)[0])
        if math.isnan(expected):
            assert math.isnan(got)
        else:
            assert got == expected and math.copysign(1, got) == math.copysign(1, expected)


def test_division():
    a = np.array([1, -3, 1, INF, 1, 0, 2.0**-100], np.float32)
    b = np.array([2, 0, 2.0**127, 2.0**127, INF, 0, 2.0**40], np.float32)
    assert np.array_equal(
        sp.div(a, b), np.array([0.5, -INF, 0, NAN, 0, NAN, 2.0**-140], np.float32), equal_nan=True
    )
    assert sp.div(a, b, full=True)[2] == np.float32(2.0**-127)
    assert sp.div(a, b, ftz=True)[6] == 0
    assert math.copysign(1, float(sp.div(np.float32(-1), np.float32(2.0**127)))) == -1


def test_half_precision_goes_through_float32():
    x = np.array([1.5, -2.25], np.float16)
    got = sp.on_half(sp.ex2, x, ftz=True)
    assert got.dtype == np.float16
    assert np.array_equal(got, np.exp2(x.astype(np.float64)).astype(np.float16))
    y = x.astype(ml_dtypes.bfloat16)
    assert sp.on_half(sp.tanh, y).dtype == ml_dtypes.bfloat16
