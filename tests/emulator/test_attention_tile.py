"""The attention tile: tcgen05.st, A from tensor memory and an MN-major B, against NumPy."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

import emulator
import emulator.lowering  # before the kernel: barriers keep their names
from kernels.attention_tile import ROWS, attention_tile

HEADS = 2
CASES = {
    "dim64": (64, False, "float16"),
    "dim128": (128, False, "float16"),
    "causal": (64, True, "float16"),
    "bfloat16": (128, True, "bfloat16"),
}
NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2}  # P and O are rounded to 11 or 8 bits


@cache
def compiled(case: str) -> emulator.Kernel:
    dim, causal, dtype = CASES[case]
    return emulator.compile(attention_tile(HEADS, dim, causal=causal, dtype=dtype))


@cache
def problem(case: str) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """(Q, K, V) and the float32 reference."""
    dim, causal, dtype = CASES[case]
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((HEADS, ROWS, dim)).astype(NUMPY[dtype]) for _ in range(3))
    scores = q.astype(np.float32) @ k.astype(np.float32).transpose(0, 2, 1) / np.sqrt(dim)
    if causal:
        scores = np.where(np.tril(np.ones((ROWS, ROWS), dtype=bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (q, k, v), p / p.sum(axis=-1, keepdims=True) @ v.astype(np.float32)


@pytest.mark.parametrize(
    "schedule, seed", [("late", 0), ("eager", 0), ("random", 0), ("random", 1), ("random", 2)]
)
@pytest.mark.parametrize("case", CASES)
def test_right_and_clean(case: str, schedule: str, seed: int) -> None:
    inputs, reference = problem(case)
    out = np.full(reference.shape, np.nan, dtype=inputs[0].dtype)
    run = compiled(case).run(*inputs, out, schedule=schedule, seed=seed)
    assert [f.to_json() for f in run.findings] == []
    np.testing.assert_allclose(out.astype(np.float32), reference, atol=TOLERANCE[CASES[case][2]])


def test_exact_numerics_agree() -> None:
    """The tensor core's truncating accumulation changes the result by less than the output's rounding."""
    inputs, reference = problem("dim64")
    out = np.full(reference.shape, np.nan, dtype=inputs[0].dtype)
    run = compiled("dim64").run(*inputs, out, numerics="exact")
    assert run.findings == ()
    np.testing.assert_allclose(out.astype(np.float32), reference, atol=TOLERANCE["float16"])


@pytest.mark.parametrize("case", CASES)
def test_what_it_executes(case: str) -> None:
    """Per head and warp: one load of S, one store of P; QK^T has dim / 16 MMAs, PV has 128 / 16."""
    dim, _, _ = CASES[case]
    inputs, reference = problem(case)
    out = np.zeros(reference.shape, dtype=inputs[0].dtype)
    counters = compiled(case).run(*inputs, out, check=False).counters
    assert counters["tcgen05.mma"] == HEADS * (dim // 16 + ROWS // 16)
    assert counters["flops.tcgen05.mma"] == HEADS * 4 * ROWS * ROWS * dim
    assert counters["tcgen05.commit"] == HEADS * 2
    assert counters["bytes.tmem.store"] == HEADS * ROWS * ROWS * 2
    assert counters["bytes.tmem.load"] == HEADS * ROWS * (ROWS + dim) * 4
    assert counters["bytes.tma.load"] == HEADS * 3 * ROWS * dim * 2
    assert counters["tcgen05.wait::st"] == HEADS * 4


def test_other_head_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="dim = 96 must be 64 or 128"):
        attention_tile(1, 96)
