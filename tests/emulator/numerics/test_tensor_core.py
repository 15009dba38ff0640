"""The exact MMA against mmasim, bit by bit, and rational arithmetic; the fast one against the exact."""

import math
import zlib
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from emulator.numerics import formats
from emulator.numerics import tensor_core as tc

M, N = 64, 16


@pytest.fixture(autouse=True, scope="module")
def quiet():
    with np.errstate(all="ignore"):
        yield


def codes(fmt, shape, rng, spread):
    """Random values of a format: "wide" every bit pattern, "near" values around 1, "zeros" many zeros."""
    fmt = formats.lookup(fmt)
    if spread == "wide":
        raw = rng.integers(0, 1 << fmt.bits, shape, dtype=np.uint64)
    else:
        x = rng.standard_normal(shape).astype(np.float32) * np.float32(1.5)
        if spread == "zeros":
            x *= rng.integers(0, 3, shape) == 0
        if fmt.bits == 32:
            return x
        return x.astype(fmt.storage)
    unsigned = {32: np.uint32, 16: np.uint16}.get(fmt.bits, np.uint8)
    return raw.astype(unsigned).view(fmt.storage)


def finite_only(values):
    return np.where(np.isfinite(values), values, np.float32(0))


def as_torch(values, fmt):
    torch = pytest.importorskip("torch", reason="mmasim, the oracle of this test, needs torch")
    kinds = {
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "e4m3": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
    }
    if fmt in ("tf32", "f32"):
        return torch.from_numpy(np.array(values, np.float32))
    raw = np.ascontiguousarray(values).view(np.uint16 if fmt in ("f16", "bf16") else np.uint8)
    if fmt in kinds:
        return torch.from_numpy(raw.copy()).view(kinds[fmt])
    return torch.from_numpy(raw << 2 if fmt == "e2m1" else raw.copy())  # mmasim keeps fp4 in bits 2 to 5


def bits_of(x):
    return np.ascontiguousarray(x).view({2: np.uint16, 4: np.uint32}[x.dtype.itemsize])


def accumulator(rng, spread, d_format, shape=(M, N)):
    if spread == "wide":
        raw = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32)
        c = raw.view(np.float32) if d_format == "f32" else raw.astype(np.uint16).view(np.float16)
    else:
        c = (rng.standard_normal(shape) * rng.choice([1e-6, 1, 100, 0], shape)).astype(np.float32)
    return c.astype(np.float16) if d_format == "f16" else c.astype(np.float32)


CASES = [
    ("tcgen05", f"kind::{kind}", k, a, b, d)
    for kind, k, pairs, ds in (
        ("f16", 16, [("f16", "f16"), ("bf16", "bf16")], ["f32"]),
        ("f16", 16, [("f16", "f16")], ["f16"]),
        ("tf32", 8, [("tf32", "tf32")], ["f32"]),
        (
            "f8f6f4",
            32,
            [("e4m3", "e5m2"), ("e5m2", "e5m2"), ("e2m3", "e4m3"), ("e3m2", "e2m3"), ("e2m1", "e3m2")],
            ["f32", "f16"],
        ),
    )
    for a, b in pairs
    for d in ds
] + [
    ("wgmma", "", k, a, b, d)
    for k, a, b, ds in (
        (8, "tf32", "tf32", ["f32"]),
        (16, "f16", "f16", ["f32", "f16"]),
        (16, "bf16", "bf16", ["f32"]),
        (32, "e4m3", "e5m2", ["f32", "f16"]),
        (32, "e5m2", "e4m3", ["f32"]),
    )
    for d in ds
]


@pytest.mark.parametrize("spread", ["wide", "near", "zeros"])
@pytest.mark.parametrize("unit,kind,k,a_format,b_format,d_format", CASES)
def test_matches_mmasim(unit, kind, k, a_format, b_format, d_format, spread):
    nv_ptx = pytest.importorskip("mmasim.nv_ptx", reason="mmasim is the oracle of this test")
    rng = np.random.default_rng(zlib.crc32(repr((unit, a_format, b_format, d_format, spread)).encode()))
    types = f"{d_format}.{a_format}.{b_format}"
    if unit == "tcgen05":
        oracle = nv_ptx.TCGen05MMA("Blackwell", f"m{M}n{N}k{k}.{kind}.{types}")
    else:
        oracle = nv_ptx.WGMMA("Hopper", f"m{M}n{N}k{k}.{types}")
    for _ in range(4):
        a, b = codes(a_format, (M, k), rng, spread), codes(b_format, (N, k), rng, spread)
        c = accumulator(rng, spread, d_format)
        padded = {"e2m1": "e2m1_padded"}
        a_fmt, b_fmt = padded.get(a_format, a_format), padded.get(b_format, b_format)
        got = tc.mma_exact(
            formats.to_float32(a, a_fmt), formats.to_float32(b, b_fmt), c, a_fmt, b_fmt, d_format, unit
        )
        want = oracle(as_torch(a, a_format), as_torch(b, b_format).T, as_torch(c, d_format)).numpy()
        assert got.dtype == want.dtype
        assert np.array_equal(bits_of(got), bits_of(want))


@pytest.mark.parametrize("spread", ["wide", "near", "zeros"])
@pytest.mark.parametrize(
    "a_format,k,d_format", [("f16", 16, "f32"), ("f16", 8, "f16"), ("bf16", 16, "f32"), ("tf32", 8, "f32")]
)
def test_mma_sync_matches_mmasim(a_format, k, d_format, spread):
    nv_ptx = pytest.importorskip("mmasim.nv_ptx", reason="mmasim is the oracle of this test")
    rng = np.random.default_rng(k)
    oracle = nv_ptx.MMA("Blackwell", f"m16n8k{k}.{d_format}.{a_format}.{a_format}.{d_format}")
    a, b = codes(a_format, (16, k), rng, spread), codes(a_format, (8, k), rng, spread)
    c = accumulator(rng, spread, d_format, (16, 8))
    got = tc.mma_exact(
        formats.to_float32(a, a_format),
        formats.to_float32(b, a_format),
        c,
        a_format,
        None,
        d_format,
        "mma.sync",
    )
    want = oracle(as_torch(a, a_format), as_torch(b, a_format).T, as_torch(c, d_format)).numpy()
    assert np.array_equal(bits_of(got), bits_of(want))


@pytest.mark.parametrize("spread", ["wide", "near", "zeros"])
@pytest.mark.parametrize("kind,a_format,b_format,block,scale_format", [
    ("mxf8f6f4", "e4m3", "e5m2", 32, "ue8m0"), ("mxf8f6f4", "e2m3", "e2m1", 32, "ue8m0"),
    ("mxf8f6f4", "e3m2", "e4m3", 32, "ue8m0"), ("mxf4", "e2m1", "e2m1", 32, "ue8m0"),
    ("mxf4nvf4", "e2m1", "e2m1", 32, "ue8m0"), ("mxf4nvf4", "e2m1", "e2m1", 16, "ue8m0"),
    ("mxf4nvf4", "e2m1", "e2m1", 16, "ue4m3"),
])  # fmt: skip
def test_block_scaled_matches_mmasim(kind, a_format, b_format, block, scale_format, spread):
    nv_ptx = pytest.importorskip("mmasim.nv_ptx", reason="mmasim is the oracle of this test")
    torch = pytest.importorskip("torch", reason="mmasim, the oracle of this test, needs torch")
    rng = np.random.default_rng(block)
    rows, k = 128, 32 if kind == "mxf8f6f4" else 64
    oracle = nv_ptx.TCGen05MMABlockScale(
        "Blackwell", f"m{rows}n{N}k{k}.kind::{kind}.block{block}.f32.{a_format}.{b_format}.{scale_format}"
    )
    for round_ in range(4):
        a, b = codes(a_format, (rows, k), rng, spread), codes(b_format, (N, k), rng, spread)
        c = accumulator(rng, spread, "f32", (rows, N))
        low, high = {"ue8m0": (0, 256), "ue4m3": (0, 256)}[scale_format] if spread == "wide" else (
            (118, 136) if scale_format == "ue8m0" else (30, 90)
        )  # fmt: skip
        if spread == "wide" and round_ % 2:
            low, high = low, 255 if scale_format == "ue8m0" else 127  # no NaN
        sa = rng.integers(low, high, (rows, k // block)).astype(np.uint8)
        sb = rng.integers(low, high, (N, k // block)).astype(np.uint8)
        padded = {"e2m1": "e2m1_padded"} if kind == "mxf8f6f4" else {}
        a_fmt, b_fmt = padded.get(a_format, a_format), padded.get(b_format, b_format)
        got = tc.mma_exact(
            formats.to_float32(a, a_fmt), formats.to_float32(b, b_fmt), c, a_fmt, b_fmt,
            scale_a=sa, scale_b=sb, scale_format=scale_format,
        )  # fmt: skip
        scale_type = torch.float8_e8m0fnu if scale_format == "ue8m0" else torch.float8_e4m3fn
        pack = (lambda x, f: torch.from_numpy(formats.pack_e2m1(x.view(np.uint8)))) if k == 64 else as_torch
        want = oracle(
            pack(a, a_format), pack(b, b_format).T, torch.from_numpy(c),
            torch.from_numpy(sa).view(scale_type), torch.from_numpy(sb).view(scale_type).T,
        ).numpy()  # fmt: skip
        assert np.array_equal(bits_of(got), bits_of(want))


def slow_step(a, b, c, fraction):
    """One fused step for one output in rational arithmetic: a, b lists of nonzero floats, c nonzero."""
    exponent = lambda x: math.frexp(x)[1] - 1  # noqa: E731
    top = max([exponent(x) + exponent(y) for x, y in zip(a, b, strict=True)] + [exponent(c)])
    quantum = Fraction(2) ** (top - fraction)
    cut = lambda x: math.trunc(x / quantum) * quantum  # noqa: E731
    total = sum((cut(Fraction(x) * Fraction(y)) for x, y in zip(a, b, strict=True)), cut(Fraction(c)))
    if total == 0:
        return 0.0
    bits = Fraction(2) ** (math.frexp(float(abs(total)))[1] - 24)
    return float(math.trunc(total / bits) * bits)


def test_fused_step_against_rational_arithmetic():
    rng = np.random.default_rng(11)
    scale = np.exp2(rng.integers(-7, 8, (4, 16)))
    a = (
        (rng.uniform(1, 2, (4, 16)) * scale * rng.choice([-1, 1], (4, 16)))
        .astype(np.float16)
        .astype(np.float32)
    )
    b = rng.uniform(1, 2, (5, 16)).astype(np.float16).astype(np.float32)
    c = rng.uniform(1, 2, (4, 5)).astype(np.float32)
    got = tc.mma_exact(a, b, c)
    for m in range(4):
        for n in range(5):
            want = slow_step([float(x) for x in a[m]], [float(x) for x in b[n]], float(c[m, n]), 25)
            assert float(got[m, n]) == want


def test_k_runs_in_program_order_one_fused_step_at_a_time():
    rng = np.random.default_rng(12)
    a, b = (rng.standard_normal((32, 64)).astype(np.float16).astype(np.float32) for _ in range(2))
    whole = tc.mma_exact(a, b)
    steps = None
    for k in range(0, 64, 16):
        steps = tc.mma_exact(a[:, k : k + 16], b[:, k : k + 16], steps)
    assert np.array_equal(bits_of(whole), bits_of(steps))
    with pytest.raises(ValueError, match="K = 40 is not a multiple of the 16"):
        tc.mma_exact(a[:, :40], b[:, :40])


def test_extreme_significands_do_not_overflow_the_integer_sum():
    """32 products just below 4 at the largest exponent, all of one sign."""
    value = np.float32(448)  # largest e4m3: significand 1.75
    a = np.full((4, 32), value, np.float32)
    assert float(tc.mma_exact(a, a, None, "e4m3")[0, 0]) == 32 * 448.0**2
    half = np.full((4, 16), np.float32(np.float16(1.9990234375)), np.float32)
    got = tc.mma_exact(half, half, np.full((4, 4), np.float32(3.9999998)))
    assert float(got[0, 0]) == slow_step(
        [1.9990234375] * 16, [1.9990234375] * 16, float(np.float32(3.9999998)), 25
    )


@pytest.mark.parametrize("d_format,fmt", [("f32", "f16"), ("f32", "bf16"), ("f16", "f16"), ("f32", "tf32")])
def test_fast_is_close_to_exact(d_format, fmt):
    """Each fused step loses at most a few units in the last place of its largest addend, as the fast sum."""
    rng = np.random.default_rng(13)
    a, b = (formats.to_float32(codes(fmt, (64, 256), rng, "near"), fmt) for _ in range(2))
    exact = tc.mma_exact(a, b, None, fmt, d_format=d_format).astype(np.float64)
    fast = tc.mma_fast(a, b).astype(np.float64)
    reference = a.astype(np.float64) @ b.astype(np.float64).T
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T
    steps = 256 / tc.accumulation_model("tcgen05", formats.lookup(fmt), d_format).step
    unit = 2.0**-10 if d_format == "f16" else 2.0**-23
    assert (np.abs(exact - reference) <= steps * 2 * unit * magnitude).all()
    assert (np.abs(fast - exact) <= (steps * 2 * unit + 256 * 2.0**-24) * magnitude).all()
    if d_format == "f32":
        assert np.abs(exact).sum() < np.abs(reference).sum()  # truncation pulls toward zero


def test_fast_with_output_view_and_accumulator():
    rng = np.random.default_rng(14)
    a, b = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    c = rng.standard_normal((16, 16)).astype(np.float32)
    out = np.zeros((16, 64), np.float32)
    assert np.shares_memory(tc.mma_fast(a, b, None, out[:, 8:24]), out)
    np.testing.assert_allclose(out[:, 8:24], a @ b.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tc.mma_fast(a, b, c), a @ b.T + c, rtol=1e-5, atol=1e-5)


def test_scaled_operand():
    rng = np.random.default_rng(15)
    values = rng.standard_normal((8, 64)).astype(np.float32)
    scales = rng.integers(120, 134, (8, 4)).astype(np.uint8)
    got = tc.scale_operand(values, scales, "ue8m0")
    for r in range(8):
        for k in range(64):
            assert got[r, k] == values[r, k] * np.float32(2.0) ** (int(scales[r, k // 16]) - 127)
    codes4 = np.array([[0x38, 0xB8]], np.uint8)  # 1.0, and -1.0 whose sign a UE4M3 scale ignores
    assert tc.scale_operand(np.ones((1, 32), np.float32), codes4, "ue4m3").tolist() == [[1.0] * 32]


def test_int8():
    rng = np.random.default_rng(16)
    a = rng.integers(-128, 128, (16, 32)).astype(np.int8)
    b = rng.integers(0, 256, (8, 32)).astype(np.uint8)
    c = rng.integers(-(2**31), 2**31, (16, 8)).astype(np.int32)
    want = a.astype(int) @ b.astype(int).T + c.astype(int)
    assert np.array_equal(tc.mma_int8(a, b, c), ((want + 2**31) % 2**32 - 2**31).astype(np.int32))
    assert np.array_equal(tc.mma_int8(a, b, c, saturate=True), np.clip(want, -(2**31), 2**31 - 1))
    assert np.array_equal(tc.mma_int8(a, b), a.astype(int) @ b.astype(int).T)


def test_no_model_for_integers():
    with pytest.raises(ValueError, match="no floating-point accumulation model for s8"):
        tc.accumulation_model("tcgen05", formats.S8)


def test_bfloat16_products_outside_float32_use_the_wide_path():
    a = np.full((2, 16), np.float32(ml_dtypes.bfloat16(1e-25)), np.float32)
    b = np.full((2, 16), np.float32(ml_dtypes.bfloat16(1e-20)), np.float32)
    got = float(tc.mma_exact(a, b, None, "bf16")[0, 0])
    want = 16 * float(a[0, 0]) * float(b[0, 0])
    assert got == math.trunc(want * 2.0**149) * 2.0**-149 and got > 0
