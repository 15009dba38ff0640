"""ldmatrix, stmatrix and wgmma against an H200, bit by bit (h200/README.md)."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from .conftest import Bench, h200, op, table_entry
from .h200.inputs import IMAGE_WORDS, ROW_ADDRESSES, SEEDS, registers, words

RECORD = h200("matrix.json")
BASE = 0  # where the image lies in the dynamic pool, which starts at a multiple of 1024 as in the measured kernels


def digest(x):
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("trans", ["", "t"])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_ldmatrix(num, trans):
    bench = Bench(1)
    bench.smem(np.uint32)[:2048] = words(2048, 11)
    load = op("ldmatrix", "sync", "aligned", "m8n8", f"x{num}", "trans" if trans else "", "shared", "b16")
    got = load(bench.t, bench.shared(ROW_ADDRESSES))
    assert digest(got.astype(np.uint32)) == RECORD["ldmatrix"][f"ld{num}{trans}"]


@pytest.mark.parametrize("trans", ["", "t"])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_stmatrix(num, trans):
    bench = Bench(1)
    bench.smem(np.uint32)[:2048] = words(2048, 11)
    store = op("stmatrix", "sync", "aligned", "m8n8", f"x{num}", "trans" if trans else "", "shared", "b16")
    store(bench.t, bench.shared(ROW_ADDRESSES), words(32 * num, 12).reshape(num, 32))
    assert digest(bench.smem(np.uint32)[:2048]) == RECORD["ldmatrix"][f"st{num}{trans}"]


def instruction_name(case):
    a = case["types"].split(".")[0]
    family = {"e4m3": "fp8", "e5m2": "fp8", "s8": "int", "u8": "int"}.get(a, a)
    return f"wgmma_{family}{'_f16acc' if case['accumulator'] == 'f16' else ''}{'_rs' if case['a_in_registers'] else '_ss'}"


def operation(case):
    a, b = case["types"].split(".")
    by_slot = {
        "action": "mma_async", "sync": "sync", "aligned": "aligned", "shape": f"m64n{case['n']}k{case['k']}",
        "dtype": case["accumulator"], "atype": a, "btype": b,
    }  # fmt: skip
    name = instruction_name(case)
    return op(name, *(by_slot.get(slot.name, "") for slot in table_entry(name).slots))


def run(case, numerics, warps=((0, 1, 2, 3),)):
    """The accumulators of a case as the kernel left them; ``warps`` are the groups that run in lockstep."""
    bench = Bench(4, numerics=numerics, smem_bytes=4 * IMAGE_WORDS)
    types = case["types"]
    bench.cta.smem[1024 : 1024 + 4 * IMAGE_WORDS] = registers(
        types.split(".")[0], IMAGE_WORDS, SEEDS[types]
    ).view(np.uint8)
    count = case["n"] // (4 if case["accumulator"] == "f16" else 2)
    d = registers(case["accumulator"], count * 128, 200 + SEEDS[types]).reshape(count, 128)
    a_registers = registers(types.split(".")[0], 512, 100 + SEEDS[types]).reshape(4, 128)
    base = bench.shared(BASE) >> 4
    multiply = operation(case)
    for group in warps:
        t = bench.threads(*group)
        lanes = slice(32 * group[0], 32 * group[-1] + 32)
        mine = d[:, lanes].copy()
        a = a_registers[:, lanes] if case["a_in_registers"] else case["a"] + base
        multiply(t, mine, a, case["b"] + base, case["scale_d"], *case["immediates"])
        assert (mine == 0xFFFFFFFF).all(), "the accumulators are unreadable while the operation is in flight"
        bench.machine.finish()
        d[:, lanes] = mine
    return d


def label(case):
    return f"{case['instruction']}-{case['layout']}-{'acc' if case['scale_d'] else 'zero'}"


@pytest.mark.parametrize("case", RECORD["wgmma"], ids=label)
def test_wgmma_equals_the_hardware(case):
    assert digest(run(case, "exact")) == case["sha256"]


@pytest.mark.parametrize("case", RECORD["wgmma"][::7], ids=label)
def test_wgmma_of_warps_that_run_apart(case):
    """A warpgroup whose warps do not run in lockstep computes the same rows."""
    assert digest(run(case, "exact", ((0,), (1,), (2,), (3,)))) == case["sha256"]


@pytest.mark.parametrize("case", RECORD["wgmma"][::5], ids=label)
def test_fast_numerics_are_close(case):
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[case["accumulator"]]
    fast, exact = (run(case, n).view(dtype).astype(float) for n in ("fast", "exact"))
    scale = max(1.0, np.nanmax(np.abs(exact)))
    assert np.nanmax(np.abs(fast - exact)) <= 2e-3 * scale
