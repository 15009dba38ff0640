"""Instructions that only sm_100a has, against slow models: packed f32x2, three operands, narrow floats, 8-bit matrices."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from emulator.errors import UnsupportedInstruction

from .conftest import REGISTRY, Bench, Mods, op

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    2.0**-149,
    -(2.0**-149),
    2.0**-126,
    2.0**-127,
    3.0e38,
    -3.0e38,
    16777217.0,
    2.0**-60,
    math.inf,
    -math.inf,
    math.nan,
]


def floats(n, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(n) * np.exp2(rng.integers(-30, 30, n))).astype(np.float32)
    where = rng.random(n) < 0.4
    x[where] = np.array(SPECIAL, np.float32)[rng.integers(0, len(SPECIAL), int(where.sum()))]
    return x


def pair(lo, hi):
    return lo.view(np.uint32).astype(np.uint64) | hi.view(np.uint32).astype(np.uint64) << np.uint64(32)


def halves(r):
    return (r & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32), (r >> np.uint64(32)).astype(
        np.uint32
    ).view(np.float32)


def flush(x):
    return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x


def rounded(exact, mode, negative_zero):
    """An exact rational number in float32, by definition of the rounding mode."""
    if exact == 0:
        return -0.0 if negative_zero else 0.0
    sign, a = (-1, -exact) if exact < 0 else (1, exact)
    exponent = max(math.floor(math.log2(a)) if a < 2**1000 else 1000, -126)
    while Fraction(2) ** exponent > a and exponent > -126:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= a:
        exponent += 1
    quantum = Fraction(2) ** (exponent - 23)
    low = a // quantum
    rest = a - low * quantum
    up = {
        "rn": rest > quantum / 2 or (rest == quantum / 2 and low % 2 == 1),
        "rz": False,
        "rm": sign < 0 and rest > 0,
        "rp": sign > 0 and rest > 0,
    }[mode]
    value = (low + up) * quantum
    if value >= Fraction(2) ** 128:
        finite = mode == "rz" or (mode == "rm" and sign > 0) or (mode == "rp" and sign < 0)
        return sign * (float(np.finfo(np.float32).max) if finite else math.inf)
    return sign * float(value)


def slow(operation, mode, ftz, *operands):
    values = [flush(float(x)) if ftz else float(x) for x in operands]
    with np.errstate(all="ignore"):
        probe = {
            "add": lambda a, b: np.float64(a) + b, "sub": lambda a, b: np.float64(a) - b, "mul": lambda a, b: np.float64(a) * b,
            "fma": lambda a, b, c: np.float64(a) * b + c,
        }[operation](*values)  # fmt: skip
    if not all(math.isfinite(v) for v in values):
        return float(probe)
    exact = [Fraction(v) for v in values]
    if operation == "fma":
        total = exact[0] * exact[1] + exact[2]
        zeros = (math.copysign(1, values[0]) * math.copysign(1, values[1]), math.copysign(1, values[2]))
    elif operation == "mul":
        total = exact[0] * exact[1]
        zeros = (math.copysign(1, values[0]) * math.copysign(1, values[1]),) * 2
    else:
        sign = -1 if operation == "sub" else 1
        total = exact[0] + sign * exact[1]
        zeros = (math.copysign(1, values[0]), sign * math.copysign(1, values[1]))
    if operation != "mul":
        cancelled = exact[0] * (exact[1] if operation == "fma" else 1) != 0 or zeros[0] != zeros[1]
        negative = zeros[0] < 0 if not cancelled else mode == "rm"
    else:
        negative = zeros[0] < 0
    y = rounded(total, mode, negative)
    return flush(y) if ftz else y


@pytest.mark.parametrize("ftz", ["", "ftz"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "fma"])
def test_f32x2(operation, mode, ftz):
    n = 96
    count = 3 if operation == "fma" else 2
    lows, highs = [floats(n, k) for k in range(count)], [floats(n, 10 + k) for k in range(count)]
    fn = op(operation, mode, ftz, "", "f32x2", *([""] if operation != "mul" else []))
    got = halves(fn(*(pair(a, b) for a, b in zip(lows, highs, strict=True))))
    for side, operands in zip(got, (lows, highs), strict=True):
        want = np.array(
            [slow(operation, mode, bool(ftz), *row) for row in zip(*operands, strict=True)], np.float32
        )
        same = (side.view(np.uint32) == want.view(np.uint32)) | (np.isnan(side) & np.isnan(want))
        assert same.all(), (side[~same][:3], want[~same][:3], [o[~same][:3] for o in operands])


def test_f32x2_of_uniform_registers_is_uniform():
    fn = op("fma", "rn", "", "", "f32x2", "")
    one_and_two = int(pair(np.float32([1]), np.float32([2]))[0])
    assert fn(one_and_two, one_and_two, one_and_two) == int(pair(np.float32([2]), np.float32([6]))[0])
    lanes = pair(np.float32([0, 1, 2]), np.float32([3, 4, 5]))
    lo, hi = halves(fn(lanes, one_and_two, lanes))
    assert lo.tolist() == [0, 2, 4] and hi.tolist() == [9, 12, 15]


@pytest.mark.parametrize("name", ["max3", "min3"])
@pytest.mark.parametrize("tokens", [("", "", ""), ("ftz", "", ""), ("", "NaN", ""), ("", "", "abs")])
def test_three_operands_are_two_steps(name, tokens):
    """max3 is max of max; the two-operand form is compared with the hardware elsewhere."""
    x = [floats(200, 20 + k) for k in range(3)]
    ftz, nan, absolute = tokens
    three = op(name, ftz, nan, absolute, "f32")
    two = op(name[:3], ftz, nan, "", "", "", "f32")
    operands = [np.abs(v) for v in x] if absolute else x
    want = two(two(operands[0], operands[1]), operands[2])
    got = three(*x)
    assert ((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all()


@pytest.mark.parametrize("source", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_mixed_precision_sources(source, mode):
    """``add.f32.bf16``, ``fma.f32.f16``: the 16-bit operands are widened, the rounding is float32's."""
    rng = np.random.default_rng(3)
    dtype = np.float16 if source == "f16" else ml_dtypes.bfloat16
    a, b = (rng.standard_normal(64).astype(dtype) for _ in range(2))
    c = rng.standard_normal(64).astype(np.float32)
    registers = [x if source == "f16" else x.view(np.uint16).astype(np.int64) for x in (a, b)]
    got = op("add", mode, "", "", "f32", source)(registers[0], c)
    assert got.tolist() == [
        np.float32(slow("add", mode, False, x, y)) for x, y in zip(a.astype(float), c, strict=True)
    ]
    got = op("fma", mode, "", "", "f32", source)(*registers, c)
    want = [
        np.float32(slow("fma", mode, False, *row))
        for row in zip(a.astype(float), b.astype(float), c, strict=True)
    ]
    assert got.tolist() == want


# ---------------------------------------------------------------------------------------------- narrow floats

GRIDS = {
    "e2m1": [0, 0.5, 1, 1.5, 2, 3, 4, 6],
    "e2m3": [
        float(ml_dtypes.float6_e2m3fn(v)) for v in np.arange(32, dtype=np.uint8).view(ml_dtypes.float6_e2m3fn)
    ],
    "e3m2": [float(v) for v in np.arange(32, dtype=np.uint8).view(ml_dtypes.float6_e3m2fn)],
}


def nearest(x, grid):
    """Code of the nearest grid value, ties to the even code, the largest one beyond it."""
    if math.isnan(x):
        return len(grid) - 1
    a = min(abs(x), grid[-1])
    distance = [abs(a - g) for g in grid]
    best = min(distance)
    candidates = [k for k, d in enumerate(distance) if d == best]
    code = next((k for k in candidates if k % 2 == 0), candidates[0])
    sign = len(grid) if math.copysign(1, x) < 0 else 0
    return code | sign


@pytest.mark.parametrize("fmt", ["e2m1", "e2m3", "e3m2"])
@pytest.mark.parametrize("relu", ["", "relu"])
def test_to_fp4_and_fp6(fmt, relu):
    name = "cvt_f4x2_f32" if fmt == "e2m1" else "cvt_f6x2_f32"
    rng = np.random.default_rng(4)
    hi, lo = (
        np.concatenate(
            [rng.standard_normal(100) * 4, [0, -0.0, 0.25, 0.75, 1.25, 2.5, 5, 7, -7, math.inf, math.nan]]
        ).astype(np.float32)
        for _ in range(2)
    )
    got = op(name, "rn", "satfinite", relu, f"{fmt}x2", "f32")(hi, lo)
    shift = 4 if fmt == "e2m1" else 8
    for k in range(len(hi)):
        a, b = (float(v) if not relu or v > 0 or math.isnan(v) else 0.0 for v in (hi[k], lo[k]))
        want = nearest(a, GRIDS[fmt]) << shift | nearest(b, GRIDS[fmt])
        assert got[k] == want, (hi[k], lo[k])


@pytest.mark.parametrize(
    ("name", "fmt"), [("cvt_f16x2_f4x2", "e2m1"), ("cvt_f16x2_f6x2", "e2m3"), ("cvt_f16x2_f6x2", "e3m2")]
)
def test_from_fp4_and_fp6(name, fmt):
    grid, shift = GRIDS[fmt], 4 if fmt == "e2m1" else 8
    codes = np.arange(2 * len(grid))
    value = [-grid[c - len(grid)] if c >= len(grid) else grid[c] for c in codes]
    packed = (codes[::-1] << shift | codes).astype(np.int64)
    got = op(name, "rn", "", "f16x2", f"{fmt}x2")(packed)
    words = got.astype(np.uint32).view(np.float16).reshape(-1, 2)
    assert words[:, 0].tolist() == value and words[:, 1].tolist() == value[::-1]


@pytest.mark.parametrize(("rnd", "direction"), [("rz", 0), ("rp", 1)])
def test_to_scale_factors(rnd, direction):
    """ue8m0: the power of two at or below (rz), at or above (rp)."""
    x = np.array([1, 1.5, 2, 3, 0.75, 2.0**-127, 2.0**-126, 1e30, 2.0**127], np.float32)
    got = op("cvt_ue8m0x2_f32", rnd, "satfinite", "ue8m0x2", "f32")(x, x)
    for v, code in zip(x.tolist(), got.tolist(), strict=True):
        exponent = math.floor(math.log2(v))
        want = exponent + (direction and 2.0**exponent != v) + 127
        assert code == want << 8 | want


def test_scaled_conversion_multiplies_by_powers_of_two():
    fn = op("cvt_bf16x2_f8x2", "rn", "", "", "scaled::n2::ue8m0", "bf16x2", "e4m3x2")
    one, two = (int(np.array(v, ml_dtypes.float8_e4m3fn).view(np.uint8)) for v in (1.0, 2.0))
    got = fn(two << 8 | one, ((127 + 3) << 8 | (127 - 1),))
    lo, hi = np.array([got], np.uint32).view(ml_dtypes.bfloat16).astype(float)
    assert (lo, hi) == (0.5, 16.0)


# ---------------------------------------------------------------------------------------------- float reductions, 8-bit matrices


@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize("nan", ["", "NaN"])
@pytest.mark.parametrize("absolute", ["", "abs"])
def test_redux_of_floats(operation, nan, absolute):
    x = floats(64, 7)
    x[5:8] = [np.nan, 3, -4]
    fn = op("redux_sync_f32", operation, absolute, nan, "f32")
    got = fn(Bench(2).t, x, 0xFFFFFFFF)
    for w in range(2):
        values = [abs(float(v)) if absolute else float(v) for v in x[32 * w : 32 * w + 32]]
        numbers = [v for v in values if not math.isnan(v)]
        want = math.nan if nan and len(numbers) < 32 else (min if operation == "min" else max)(numbers)
        lane = float(got[32 * w])
        assert lane == want or (math.isnan(lane) and math.isnan(want))


def rows_of(bench, count, seed):
    """Row addresses in no order and the bytes at them."""
    rng = np.random.default_rng(seed)
    offsets = rng.permutation(256)[:32] * 16
    data = rng.integers(0, 256, 4096, dtype=np.uint8)
    bench.smem(np.uint8)[:4096] = data
    return bench.shared(offsets.astype(np.int64)), [data[o : o + 16] for o in offsets[:count]]


@pytest.mark.parametrize("num", [1, 2])
def test_ldmatrix_m16n16_transposes_bytes(num):
    """Lane 4 g + q: bytes of rows 4 q ... 4 q + 3 in column g, then in column g + 8."""
    bench = Bench(1)
    address, rows = rows_of(bench, 16 * num, 8)
    got = op("ldmatrix_m16n16_b8", "sync", "aligned", "m16n16", f"x{num}", "trans", "shared", "b8")(
        bench.t, address
    )
    for matrix in range(num):
        for lane in range(32):
            g, q = divmod(lane, 4)
            for half in range(2):
                want = [int(rows[16 * matrix + 4 * q + k][g + 8 * half]) for k in range(4)]
                assert int(got[2 * matrix + half][lane]) == int.from_bytes(bytes(want), "little")


@pytest.mark.parametrize("bits", [4, 6])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_ldmatrix_expands_packed_rows(bits, num):
    bench = Bench(1)
    address, rows = rows_of(bench, 8 * num, 9)
    fmt = "b4x16_p64" if bits == 4 else "b6x16_p32"
    got = op("ldmatrix_b8fmt", "sync", "aligned", "m8n16", f"x{num}", "", "shared", "b8x16", fmt)(
        bench.t, address
    )
    for matrix in range(num):
        for lane in range(32):
            g, q = divmod(lane, 4)
            word = int.from_bytes(bytes(rows[8 * matrix + g]), "little")
            want = [word >> bits * (4 * q + k) & (1 << bits) - 1 for k in range(4)]
            assert int(got[matrix][lane]) == int.from_bytes(bytes(want), "little")


@pytest.mark.parametrize("num", [1, 2, 4])
def test_stmatrix_m16n8_writes_columns(num):
    bench = Bench(1)
    address, _ = rows_of(bench, 32, 10)
    registers = np.random.default_rng(11).integers(0, 1 << 32, (num, 32), dtype=np.uint64).astype(np.uint32)
    op("stmatrix_m16n8_b8", "sync", "aligned", "m16n8", f"x{num}", "trans", "shared", "b8")(
        bench.t, address, registers
    )
    for matrix in range(num):
        for column in range(8):
            stored = bench.cta.smem[int(address[8 * matrix + column]) :][:16]
            for row in range(16):
                lane = 4 * (row % 8) + column // 2
                byte = 2 * (row // 8) + column % 2
                assert int(stored[row]) == int(registers[matrix][lane]) >> 8 * byte & 0xFF


def test_stmatrix_b8_of_an_mma_accumulator():
    """The fragment of stmatrix m16n8 is the accumulator of mma m16n8: row g and g + 8, columns 2 q and 2 q + 1."""
    from emulator.instructions.matrix import from_accumulator

    matrix = np.arange(128, dtype=np.uint8).reshape(1, 16, 8)
    fragment = from_accumulator(matrix)[0]  # [4, 32]: (row half, column parity)
    registers = sum(fragment[k].astype(np.uint32) << np.uint32(8 * k) for k in range(4)).reshape(1, 32)
    bench = Bench(1)
    op("stmatrix_m16n8_b8", "sync", "aligned", "m16n8", "x1", "trans", "shared", "b8")(
        bench.t, bench.shared(np.arange(32) * 16), registers
    )
    assert (bench.smem(np.uint8)[:128].reshape(8, 16) == matrix[0].T).all()


# ---------------------------------------------------------------------------------------------- what is not supported says so


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("fma", ("rn", "", "", "f64", "")), ("fma_half", ("rn", "", "", "oob", "", "f16")), ("mma_f64", None),
        ("wgmma_b1_ss", None), ("atom_exch", ("", "", "global", "exch", "", "b128")),
    ],
)  # fmt: skip
def test_unsupported_modifiers_name_the_instruction(name, tokens):
    if name == "mma_f64":
        tokens = ("sync", "aligned", "m8n8k4", "row", "col", "f64", "f64", "f64", "f64", "rz")
    if name == "wgmma_b1_ss":
        tokens = ("mma_async", "sync", "aligned", "m64n8k256", "s32", "b1", "b1", "and", "popc")
    with pytest.raises(UnsupportedInstruction) as caught:
        op(name, *tokens)
    assert name.split("_")[0] in caught.value.op


def test_every_pure_variant_of_the_table_builds_or_says_why():
    """No variant of an implemented entry fails with anything but UnsupportedInstruction."""
    from tvm.backend.cuda.ptx.table import TABLE, mods, variants

    built = refused = 0
    for name, entry in TABLE.items():
        known = REGISTRY.get(f"tirx.ptx.{name}")
        if known is None or not known.factory:
            continue
        chosen = variants(entry)
        for tokens in chosen[:: max(1, len(chosen) // 64)]:
            try:
                known.bind(Mods(tokens, dict(mods(entry, tokens))))
                built += 1
            except UnsupportedInstruction:
                refused += 1
    assert built > 1500 and refused < built // 10


def test_registered_names_exist_in_the_table():
    from tvm.backend.cuda.ptx.table import TABLE

    unknown = {n.removeprefix("tirx.ptx.") for n in REGISTRY if n.startswith("tirx.ptx.")} - set(TABLE)
    assert unknown <= {"membar", "fence_acq_rel"}
