"""Conversions (PTX ISA, "cvt", "cvt.pack")."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from emulator.instructions.compare import flush_any
from emulator.instructions.registers import FLOATS, INTEGERS, is_vector, ndarray, unsupported, wrapper
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value
from emulator.numerics import convert
from emulator.numerics.rounding import canonical_nan, saturate

Op = Callable[..., Value]
_INT_DTYPE = {
    name: np.dtype(("int" if signed else "uint") + str(bits)) for name, (bits, signed) in INTEGERS.items()
}


def on_arrays(fn: Callable[..., ndarray]) -> Op:
    """Lift ``fn`` over lane arrays to lane values: uniform operands are arrays of one element on the way."""

    def op(*operands: Value) -> Value:
        if is_vector(*operands):
            length = max(len(x) for x in operands if isinstance(x, ndarray) and x.ndim)
            return fn(*(x if isinstance(x, ndarray) and x.ndim else np.full(length, x) for x in operands))
        y = fn(*(np.array([x]) for x in operands))[0]
        return y if y.dtype.kind == "f" else y.item()

    return op


# ---------------------------------------------------------------------------------------------- registers and arrays


def _loader(atype: str, ftz: bool) -> Callable[[ndarray], ndarray]:
    """A source register array as values: floats (bf16 widened to float32), or integers of the source type."""
    if atype == "bf16":
        return lambda x: (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if atype in FLOATS:
        dtype = FLOATS[atype]
        if ftz and atype == "f32":
            return lambda x: flush_any(x.astype(dtype, copy=False))
        return lambda x: x.astype(dtype, copy=False)
    dtype = _INT_DTYPE[atype]
    return lambda x: x.astype(dtype)


def _storer(dtype: str) -> Callable[[ndarray], ndarray]:
    """Converted values as a destination register array."""
    if dtype == "bf16":
        return lambda y: y.view(np.uint16).astype(np.int64)
    if dtype in FLOATS:
        return lambda y: y
    if dtype == "u64":
        return lambda y: y.astype(np.uint64)
    return lambda y: y.astype(np.int64)


def _float_to_float(mods: Mods) -> Callable[[ndarray], ndarray]:
    dtype, atype, rnd = mods["dtype"], mods["atype"], mods["rnd"]
    target = FLOATS[dtype]
    if rnd.endswith("i"):
        return lambda x: convert.round_to_integral(x, rnd).astype(target)  # type: ignore[arg-type]
    satfinite, relu, ftz = "satfinite" in mods, "relu" in mods, "ftz" in mods
    wider = FLOATS[dtype].itemsize > FLOATS[atype].itemsize or dtype == atype
    if wider:
        if ftz and dtype == "f32":
            return lambda x: flush_any(x.astype(target))
        return lambda x: x.astype(target)
    if dtype == "f32":
        if rnd not in ("", "rn"):
            from emulator.numerics.rounding import round_float32

            return lambda x: round_float32(_flush_wide(x, rnd) if ftz else x, rnd)  # type: ignore[arg-type]
        return lambda x: (_flush_wide(x) if ftz else x).astype(np.float32)
    if dtype == "f16" and rnd in ("", "rn") and not satfinite and not relu:
        return lambda x: x.astype(np.float16)
    return partial(_narrow, fmt=dtype, rnd=rnd or "rn", satfinite=satfinite, relu=relu)


def _flush_wide(x: ndarray, rnd: str = "rn") -> ndarray:
    """float64 values below float32's normal range as zeros.

    Tiny is what stays below 2^-126 when it is rounded to 24 bits with an exponent of any size (IEEE 754, after rounding).
    """
    tiny = np.abs(x) < (2.0**-126 * (1 - 2.0**-25) if rnd in ("", "rn") else 2.0**-126)
    return np.where(tiny, np.copysign(0.0, x), x)


def _nan_of(
    dtype: str, atype: str, ftz: bool, rounds: bool, change: Callable[[ndarray], ndarray]
) -> Callable[[ndarray], ndarray]:
    """What a NaN becomes (H200): canonical, but f64 and the plain widening of bf16 and f32 keep sign and payload."""
    same = (dtype, atype) in (("f32", "f32"), ("f64", "f64")) and not ftz and not rounds
    if same or (dtype, atype) == ("f32", "f64"):
        return change
    if dtype == "f64":
        if atype == "f16" or ftz:

            def widened(x: ndarray) -> ndarray:
                y = change(canonical_nan(x) if ftz else x)
                return np.where(y != y, y + y, y)  # quiet

            return widened
        return change
    if atype == "f64" and dtype in ("f16", "bf16"):
        shift, exponent, quiet = (42, 0x7C00, 0x200) if dtype == "f16" else (45, 0x7F80, 0x40)
        storage = FLOATS[dtype]

        def narrowed(x: ndarray) -> ndarray:
            y, nan = change(x), x != x
            if not np.count_nonzero(nan):
                return y
            bits = x.view(np.uint64)
            kept = (bits >> np.uint64(shift)).astype(np.uint16) & np.uint16(quiet - 1)
            code = (
                (bits >> np.uint64(48)).astype(np.uint16) & np.uint16(0x8000)
                | np.uint16(exponent | quiet)
                | kept
            )
            return np.where(nan, code.view(storage), y)

        return narrowed
    return lambda x: canonical_nan(change(x))


def _narrow(x: ndarray, fmt: str, rnd: str, satfinite: bool, relu: bool) -> ndarray:
    return convert.narrow(x, fmt, rnd, satfinite, relu)  # type: ignore[arg-type]


def _to_int(mods: Mods) -> Callable[[ndarray], ndarray]:
    """Float to integer: the integer rounding, then a clamp to the destination's range.

    NaN gives 0; between f64 or a 64-bit integer and anything it gives the top bit alone (PTX ISA, "cvt").
    """
    dtype = _INT_DTYPE[mods["dtype"]]
    rnd = mods["rnd"] or "rzi"
    if dtype.itemsize < 8 and mods["atype"] != "f64":
        return lambda x: convert.float_to_int(x, dtype.type, rnd)  # type: ignore[arg-type]
    top = np.array(1 << (8 * dtype.itemsize - 1), dtype=f"u{dtype.itemsize}").view(dtype)

    def change(x: ndarray) -> ndarray:
        y = convert.float_to_int(x, dtype.type, rnd)  # type: ignore[arg-type]
        nan = np.isnan(x)
        return np.where(nan, top, y) if np.count_nonzero(nan) else y

    return change


def _from_int(mods: Mods) -> Callable[[ndarray], ndarray]:
    dtype, rnd = mods["dtype"], mods["rnd"] or "rn"
    if dtype == "f64":
        if rnd != "rn" and mods["atype"] in ("u64", "s64"):
            raise unsupported("cvt", mods, "directed rounding of 64-bit integers to f64")
        return lambda x: x.astype(np.float64)
    return lambda x: convert.int_to_float(x, dtype, rnd)  # type: ignore[arg-type]


def _int_to_int(mods: Mods) -> Callable[[ndarray], ndarray]:
    dtype = _INT_DTYPE[mods["dtype"]]
    if "sat" in mods:
        return lambda x: convert.int_to_int(x, dtype, True)
    return lambda x: x.astype(dtype)


def _unit_interval(y: ndarray) -> ndarray:
    """``.sat`` on floats: clamp to [0, 1], NaN gives +0."""
    if y.dtype == np.float32:
        return saturate(y)
    if y.dtype == np.float64:
        return np.where(y > 0, np.minimum(y, 1.0), 0.0)
    wide = saturate(y.astype(np.float32))
    return wide.astype(y.dtype)


def _simple(dtype: str, atype: str) -> Op | None:
    """The exact and frequent conversions, without any array detour."""
    if dtype == "f32" and atype == "f16":
        return lambda a: canonical_nan(a.astype(np.float32))
    if dtype == "f32" and atype == "bf16":
        return lambda a: (
            (a.astype(np.uint32) << np.uint32(16)).view(np.float32)
            if isinstance(a, ndarray)
            else np.uint32((int(a) & 0xFFFF) << 16).view(np.float32)
        )
    if dtype in INTEGERS and atype in INTEGERS:
        narrow, widen = wrapper(dtype), wrapper(atype)
        return lambda a: narrow(widen(a))
    if dtype == "f32" and atype in ("s32", "u32", "s16", "u16", "s8", "u8"):
        load = wrapper(atype)
        return lambda a: load(a).astype(np.float32) if isinstance(a, ndarray) else np.float32(load(int(a)))
    return None


@instruction("ptx.cvt", pure=True)
def cvt(mods: Mods) -> Op:
    """Scalar conversions between integers, f16, bf16, f32 and f64."""
    dtype, atype = mods["dtype"], mods["atype"]
    plain = not any(m in mods for m in ("ftz", "sat", "satfinite", "relu")) and mods["rnd"] in ("", "rn")
    if plain:
        simple = _simple(dtype, atype)
        if simple is not None:
            return simple
    # An H200 does not flush the source of a directed rounding to f16.
    ftz = "ftz" in mods and not (dtype == "f16" and mods["rnd"] in ("rm", "rp"))
    load, store = _loader(atype, ftz), _storer(dtype)
    if dtype in FLOATS:
        change = (
            _nan_of(dtype, atype, "ftz" in mods, mods["rnd"].endswith("i"), _float_to_float(mods))
            if atype in FLOATS
            else _from_int(mods)
        )
        if "sat" in mods:
            inner = change
            return on_arrays(lambda a: store(_unit_interval(inner(load(a)))))
    else:
        change = _to_int(mods) if atype in FLOATS else _int_to_int(mods)
    return on_arrays(lambda a: store(change(load(a))))


# ---------------------------------------------------------------------------------------------- packed pairs


def _f32_pair(mods: Mods, fmt: str) -> Op:
    rnd, satfinite, relu = mods["rnd"] or "rn", "satfinite" in mods, "relu" in mods
    if fmt == "f16" and rnd == "rn" and not satfinite and not relu:

        def half2(hi: ndarray, lo: ndarray) -> ndarray:
            both = np.empty((len(hi), 2), dtype=np.float16)
            both[:, 0] = lo
            both[:, 1] = hi
            both = canonical_nan(both)
            return both.view(np.uint32)[:, 0].astype(np.int64)

        return on_arrays(half2)

    def pair(hi: ndarray, lo: ndarray) -> ndarray:
        return convert.pack2(hi, lo, fmt, rnd, satfinite, relu).astype(np.int64)  # type: ignore[arg-type]

    return on_arrays(pair)


@instruction(
    "ptx.cvt_f16x2_f32", "ptx.cvt_bf16x2_f32", "ptx.cvt_f8x2_f32", "ptx.cvt_f6x2_f32", "ptx.cvt_f4x2_f32", "ptx.cvt_ue8m0x2_f32",
    pure=True,
)  # fmt: skip
def cvt_pair_f32(mods: Mods) -> Op:
    """``cvt.<type>x2.f32 d, hi, lo``: the first source goes to the upper half."""
    return _f32_pair(mods, mods["dtype"].removesuffix("x2"))


@instruction(
    "ptx.cvt_f8x2_fp16x2", "ptx.cvt_f6x2_fp16x2", "ptx.cvt_f4x2_fp16x2", "ptx.cvt_ue8m0x2_bf16x2", pure=True
)
def cvt_pair_narrow(mods: Mods) -> Op:
    """Pairs of 16-bit floats to pairs of a narrower format."""
    source, target = mods["atype"].removesuffix("x2"), mods["dtype"].removesuffix("x2")
    rnd, satfinite, relu = mods["rnd"] or "rn", "satfinite" in mods, "relu" in mods

    def pair(a: ndarray) -> ndarray:
        return convert.repack2(a, source, target, rnd, satfinite, relu).astype(np.int64)  # type: ignore[arg-type]

    return on_arrays(pair)


@instruction(
    "ptx.cvt_f16x2_f8x2", "ptx.cvt_bf16x2_f8x2", "ptx.cvt_f16x2_f6x2", "ptx.cvt_bf16x2_f6x2", "ptx.cvt_f16x2_f4x2",
    "ptx.cvt_bf16x2_f4x2", "ptx.cvt_bf16x2_ue8m0x2", pure=True,
)  # fmt: skip
def cvt_pair_widen(mods: Mods) -> Op:
    """Pairs of narrow floats to f16x2 or bf16x2 (exact)."""
    source, target, relu = mods["atype"].removesuffix("x2"), mods["dtype"].removesuffix("x2"), "relu" in mods
    satfinite = "satfinite" in mods

    def pair(a: ndarray) -> ndarray:
        return convert.repack2(a, source, target, "rn", satfinite, relu).astype(np.int64)

    def scaled_pair(a: ndarray, scale: ndarray) -> ndarray:
        hi, lo = convert.unpack2(a, source)
        scale_hi, scale_lo = convert.unpack2(scale, "ue8m0")
        return convert.pack2(hi * scale_hi, lo * scale_lo, target, "rn", satfinite, relu).astype(np.int64)

    plain, scaled = on_arrays(pair), on_arrays(scaled_pair)
    if mods["scaled"]:
        return lambda a, scale: scaled(a, scale[0])
    return lambda a, scale=(): plain(a)


@instruction("ptx.cvt_tf32_f32", pure=True)
def cvt_tf32_f32(mods: Mods) -> Op:
    rnd, satfinite, relu = mods["rnd"], "satfinite" in mods, "relu" in mods

    def change(a: ndarray) -> ndarray:
        y = convert.narrow(a.astype(np.float32, copy=False), "tf32", rnd, satfinite, relu)  # type: ignore[arg-type]
        return y.view(np.uint32).astype(np.int64)

    return on_arrays(change)


# ---------------------------------------------------------------------------------------------- integer packing


@instruction("ptx.cvt_pack", "ptx.cvt_pack_c", pure=True)
def cvt_pack(mods: Mods) -> Op:
    """``cvt.pack.sat``: two clamped integers in the low bits of d (b lowest), c shifted up above them."""
    kind, bits = mods["convert"][0], int(mods["convert"][1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind == "s" else (0, (1 << bits) - 1)
    mask = (1 << bits) - 1

    def op(a: Value, b: Value, c: Value = 0) -> Value:
        if is_vector(a, b):
            a, b = np.clip(a, low, high), np.clip(b, low, high)
        else:
            a, b = max(low, min(high, a)), max(low, min(high, b))
        return (c << 2 * bits | (a & mask) << bits | b & mask) & 0xFFFFFFFF

    return op
