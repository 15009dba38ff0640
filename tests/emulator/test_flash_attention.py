"""Flash Attention 4: right numbers and no finding, whatever completes when, for lengths and groups of all kinds."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

import emulator
import emulator.lowering  # before the kernel: barriers keep their names
from kernels.flash_attention import build_attention


class Shape(NamedTuple):
    """What `build_attention` takes."""

    B: int
    SQ: int
    SKV: int
    HQ: int
    HKV: int
    causal: bool
    SMS: int


SHAPES = {
    "one_block": Shape(1, 128, 128, 1, 1, False, 2),
    "blocks": Shape(1, 512, 384, 1, 1, False, 1),
    "ragged": Shape(2, 200, 333, 2, 1, False, 2),
    "causal": Shape(1, 512, 512, 1, 1, True, 1),
    "more_keys": Shape(1, 96, 515, 4, 1, True, 1),
    "fewer_keys": Shape(1, 300, 100, 1, 1, True, 2),
    "groups_of_8": Shape(2, 40, 140, 16, 2, True, 2),
}


@cache
def compiled(name: str) -> emulator.Kernel:
    return emulator.compile(build_attention(*SHAPES[name]))


def problem(shape: Shape, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q, K and V; scores have the standard deviation `scale`."""
    rng = np.random.default_rng(7)
    q = rng.standard_normal((shape.B, shape.SQ, shape.HQ, 128)) * scale
    k, v = (rng.standard_normal((shape.B, shape.SKV, shape.HKV, 128)) for _ in range(2))
    return q.astype(np.float16), k.astype(np.float16), v.astype(np.float16)


def attend(shape: Shape, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(Q K^T / sqrt(128)) V in float64; 0 where a query sees no key."""
    k, v = (np.repeat(x.astype(np.float64), shape.HQ // shape.HKV, axis=2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k) / np.sqrt(128)
    if shape.causal:
        query, key = np.arange(shape.SQ)[:, None], np.arange(shape.SKV)[None, :]
        scores = np.where(key <= query + shape.SKV - shape.SQ, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isinf(highest), 0, highest))
    return np.einsum("bhqk,bkhd->bqhd", p / np.maximum(p.sum(-1, keepdims=True), 1e-300), v)


@pytest.mark.parametrize("schedule, seed, scale", [("late", 0, 1.0), ("eager", 0, 10.0), ("random", 0, 10.0)])
@pytest.mark.parametrize("name", SHAPES)
def test_right_and_clean(name: str, schedule: str, seed: int, scale: float) -> None:
    """Large scores make rescales frequent, small ones make them rare."""
    shape = SHAPES[name]
    inputs = problem(shape, scale)
    o = np.full(inputs[0].shape, np.nan, np.float16)
    run = compiled(name).run(*inputs, o, schedule=schedule, seed=seed)
    assert [finding.to_json() for finding in run.findings] == []
    np.testing.assert_allclose(o.astype(np.float64), attend(shape, *inputs), atol=4e-3)


def test_what_it_executes() -> None:
    """Causal blocks are skipped; the heads of a group share K and V; 1 of 4 exponentials is left to FMAs."""
    shape = SHAPES["causal"]
    inputs = problem(shape, 1.0)
    counters = compiled("causal").run(*inputs, np.zeros_like(inputs[0]), check=False).counters
    blocks = 2 + 4  # of 128 keys, for the two tiles of 256 queries
    assert counters["tcgen05.mma"] == blocks * 2 * (8 + 8)
    assert counters["bytes.tma.load"] == (2 * blocks + 4) * 128 * 128 * 2
    assert counters["bytes.tmem.store"] >= blocks * 2 * 128 * 128 * 2

    shape = SHAPES["groups_of_8"]
    inputs = problem(shape, 1.0)
    counters = compiled("groups_of_8").run(*inputs, np.zeros_like(inputs[0]), check=False).counters
    assert counters["bytes.tma.load"] < shape.HQ * shape.SKV * 128 * 2 * 2 * shape.B


@pytest.mark.parametrize("heads, shared", [(4, 3), (6, 2)])
def test_other_groups_are_refused(heads: int, shared: int) -> None:
    with pytest.raises(ValueError, match="must be a divisor of 128"):
        build_attention(1, 128, 128, heads, shared, False, 1)
