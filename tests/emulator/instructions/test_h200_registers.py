"""Register instructions against an H200: every variant that sm_90a accepts, 64 lanes each (h200/README.md)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from .conftest import REGISTRY, Bench, Mods, h200, table_entry

LANES = 64
# ulp by which an approximate function may differ (float32 or the 16-bit type); PTX documents 2 for ex2, rsqrt and div
ULPS = {"ex2": 2, "rcp": 1, "sqrt": 1, "rsqrt": 2, "div_f": 2, "ex2_half": 1, "tanh_half": 1}
# absolute or relative error, where PTX gives one
ERRORS = {"lg2": (2.0**-21.9, 2.0**-22), "tanh": (0, 2.0**-10.9)}
ELSEWHERE = {"sin", "cos", "mma_f64"}  # compared in tests of their own


def excused(name, tokens, inputs):
    """Lanes where the emulator follows the text of the PTX ISA and the H200 does not, or PTX leaves the result open."""
    if name == "fns":
        return inputs[-1] == 0x80000000  # |offset| is not representable
    if name == "cvt" and "ftz" in tokens and tokens[-2:] == ("f16", "f32"):
        return (
            inputs[0] & np.uint64(0x7FFFFFFF) < 0x800000
        )  # the H200 does not flush the input of a directed rounding
    return np.zeros(LANES, bool)


def _recorded():
    data = h200("registers.npz")
    rows = json.loads(bytes(data["rows"]).decode())
    results, inputs, at = data["results"], data["inputs"], 0
    for name, tokens, imm, ins, bits in rows:
        outs = []
        for b in bits:
            size = LANES * b // 8
            outs.append(results[at : at + size].view(f"uint{b}").astype(np.uint64))
            at += size
        yield name, tuple(tokens), imm, [inputs[k] for k in ins], outs


ROWS: dict[str, list] = {}
for _row in _recorded():
    ROWS.setdefault(_row[0], []).append(_row)


def lane_value(raw, ptx):
    """A 64-bit container as the lane representation of a PTX type."""
    if ptx in ("f32", "f16"):
        bits = int(ptx[1:])
        return raw.astype(f"uint{bits}").view(f"float{bits}")
    if ptx == "f64":
        return raw.view(np.float64)
    if ptx in ("u64", "b64", "b64i", "f32x2"):
        return raw.copy()
    if ptx.startswith("s") and ptx[1:].isdigit():
        bits = max(32, int(ptx[1:])) if ptx == "s8" else int(ptx[1:])
        return raw.astype(f"uint{bits}").view(f"int{bits}").astype(np.int64)
    return raw.astype(np.int64)


def container(value, bits):
    """The inverse of :func:`lane_value`, cut to the recorded width."""
    v = np.broadcast_to(np.asarray(value), LANES)
    if v.dtype.kind == "f":
        v = np.ascontiguousarray(v).view(f"uint{8 * v.dtype.itemsize}")
    if v.dtype == bool:
        v = v.astype(np.uint64)
    return v.astype(np.uint64 if v.dtype.kind == "u" else np.int64).view(np.uint64) & np.uint64(
        (1 << bits) - 1
    )


NANS = {"f32": (0x7FFFFFFF, 0x7F800000), "tf32": (0x7FFFFFFF, 0x7F800000), "f16": (0x7FFF, 0x7C00), "bf16": (0x7FFF, 0x7F80),
        "f64": ((1 << 63) - 1, 0x7FF << 52)}  # fmt: skip


def without_payload(raw, ptx):
    """NaNs are NaNs: PTX does not define their payload."""
    if ptx in ("f16x2", "bf16x2"):
        low = without_payload(raw & np.uint64(0xFFFF), ptx[:-2])
        return low | without_payload(raw >> np.uint64(16), ptx[:-2]) << np.uint64(16)
    if ptx not in NANS:
        return raw
    mask, infinity = NANS[ptx]
    return np.where(raw & np.uint64(mask) > np.uint64(infinity), np.uint64(mask), raw)


def width(ptx):
    """Bits of a destination register: the recording holds 16-bit results in 16 bits, all others in their own."""
    if ptx == "pred":
        return 8
    if ptx in ("f16", "bf16", "u16", "s16", "b16", "e4m3x2", "e5m2x2"):
        return 16
    return 64 if ptx in ("f64", "b64", "u64", "s64", "f32x2") else 32


def ordered(raw, ptx):
    """Float patterns as integers in numerical order."""
    bits = {"f32": 32, "f16": 16, "bf16": 16}[ptx]
    v = raw.astype(np.int64)
    return np.where(v >> (bits - 1), (1 << (bits - 1)) - v, v)


def run(name, tokens, imm, inputs):
    """(results, their PTX types) of the emulator."""
    from tvm.backend.cuda.ptx.table import mods, operand_layout, operand_type

    entry, inputs, args, outs = table_entry(name), list(inputs), [], []
    modifiers = mods(entry, tokens)
    for slot, _, count in operand_layout(entry, modifiers):
        if slot.kind == "imm":
            args.append(imm)
            continue
        ptx = operand_type(slot, modifiers)
        if slot.rw == "w":
            outs += [ptx] * count
            continue
        values = [lane_value(inputs.pop(0), ptx) for _ in range(count)]
        args.append(values[0] if slot.lanes == 1 else tuple(values))
    instruction = REGISTRY[f"tirx.ptx.{name}"]
    operation = instruction.bind(Mods(tokens, dict(modifiers)))
    result = operation(*args) if instruction.pure else operation(Bench(2, numerics="exact").t, *args)
    single = len(outs) == 1 and not (isinstance(result, np.ndarray) and result.ndim == 2)
    results = [result] if single else list(result)
    if name.endswith(("_half", "_half_pq")) or name in ("max", "min"):
        outs = [modifiers.get("type", o) if o != "pred" else o for o in outs]
    return results, outs


def unsupported(name, tokens):
    """Variants that raise UnsupportedInstruction by design."""
    if name == "cvt":
        return tokens[-2] == "f64" and tokens[-1] in ("u64", "s64") and tokens[0] in ("rz", "rm", "rp")
    if "f64" in tokens and name in ("add", "sub", "mul", "div_f", "sqrt", "rcp", "rsqrt"):
        return any(t in tokens for t in ("rz", "rm", "rp", "approx"))
    if name in ("fma", "mad_f"):
        return "f64" in tokens
    if name.startswith("mma"):
        return ("m8n8k4" in tokens and "f64" not in tokens) or any(t in tokens for t in ("rz", "rm", "rp"))
    return "oob" in tokens


@pytest.mark.parametrize("name", sorted(set(ROWS) - ELSEWHERE))
def test_equals_the_hardware(name):
    from emulator.errors import UnsupportedInstruction

    compared = 0
    for _, tokens, imm, inputs, expected in ROWS[name]:
        label = f"{name}.{'.'.join(t for t in tokens if t)}"
        if unsupported(name, tokens):
            with pytest.raises(UnsupportedInstruction):
                run(name, tokens, imm, inputs)
            continue
        results, types = run(name, tokens, imm, inputs)
        for got, want, ptx in zip(results, expected, types, strict=True):
            raw = container(got, width(ptx))
            got_, want_ = without_payload(raw, ptx), without_payload(want, ptx)
            wrong = got_ != want_
            wrong &= ~excused(name, tokens, inputs)
            if name in ULPS and ptx in ("f32", "f16", "bf16", "f16x2", "bf16x2"):
                limit = 0 if any(t in ("rn", "rz", "rm", "rp") for t in tokens) else ULPS[name]
                parts = [(got_, want_, ptx)] if "x2" not in ptx else [
                    (got_ >> np.uint64(s) & np.uint64(0xFFFF), want_ >> np.uint64(s) & np.uint64(0xFFFF), ptx[:-2]) for s in (0, 16)
                ]  # fmt: skip
                wrong = np.zeros(LANES, bool)
                for g, w, p in parts:
                    wrong |= np.abs(ordered(g, p) - ordered(w, p)) > limit
            elif name in ERRORS:
                absolute, relative = ERRORS[name]
                g, w = (x.astype(np.uint32).view(np.float32).astype(float) for x in (got_, want_))
                wrong &= ~(np.abs(g - w) <= np.maximum(absolute, relative * np.abs(w)))
            if wrong.any():
                k = int(np.flatnonzero(wrong)[0])
                operands = ", ".join(hex(int(i[k])) for i in inputs[:6])
                raise AssertionError(
                    f"{label}({operands}): {int(raw[k]):#x}, the H200 gives {int(want[k]):#x} ({int(wrong.sum())} lanes)"
                )
        compared += 1
    assert compared or all(unsupported(name, row[1]) for row in ROWS[name])


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine_inside_one_period(name):
    """PTX bounds the error to 2^-20.5 in [-pi, pi] only."""
    for _, tokens, imm, inputs, expected in ROWS[name]:
        (got,), _ = run(name, tokens, imm, inputs)
        x = inputs[0].astype(np.uint32).view(np.float32)
        inside = np.abs(x) <= np.pi
        want = expected[0].astype(np.uint32).view(np.float32)
        assert inside.sum() > 10
        assert np.abs(got[inside] - want[inside]).max() <= 2.0**-20.5


def test_double_precision_mma_is_close():
    """The hardware chains fused multiply-adds; BLAS does not."""
    for name, tokens, imm, inputs, expected in ROWS["mma_f64"]:
        if unsupported(name, tokens):
            continue
        results, _ = run(name, tokens, imm, inputs)
        for got, want in zip(results, expected, strict=True):
            assert np.allclose(got, want.view(np.float64), rtol=0, atol=1e-13)


def test_the_recording_covers_the_table():
    """The recording is not empty by accident."""
    assert len(ROWS) > 90
    assert sum(len(rows) for rows in ROWS.values()) > 2000
