"""Attention: every right way to compute it stays inside of the bound, wrong ones do not and are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autograder.oracles.attending  # noqa: F401  registers the reference
from autograder.compare import Comparison, allowed_interval, compare
from autograder.inputs import FAMILIES, generator
from autograder.oracles import MISTAKES, ORACLES

F16, F32 = np.float16, np.float32
FAMILY = ("normal", "huge_scores", "identical_keys", "one_key")
SIZES = [(256, 128), (128, 64), (384, 64)]
LOG2_E = F32(np.log2(np.e))
ROWS = 128


def inputs(family: str, size: tuple[int, int] = (256, 128), seed: int = 3) -> list[Any]:
    made = FAMILIES[family](generator(seed, family), [size] * 3)
    return [x.astype(F16).astype(np.float64) for x in made]


def kernel(
    arrays: list[Any],
    *,
    shifted: bool = True,
    scale: float | None = None,
    form: str = "fma",
    sum_rounded: bool = False,
    order: Any = None,
    keys: slice = slice(None),
    summed: slice = slice(None),
    truncating: bool = False,
    normalised: bool = True,
) -> Any:
    """O of a kernel that keeps sums in fp32 and P in fp16, with the choices that a kernel has, and some mistakes."""
    q, k, v = (x.astype(F32).reshape(-1, ROWS, x.shape[1]) for x in arrays)
    d = q.shape[2]
    c = F32(LOG2_E / F32(np.sqrt(d)) if scale is None else scale)
    s = np.zeros((len(q), ROWS, ROWS), F32)
    for i in range(d) if order is None else order(d):
        s = _add(s, q[:, :, i, None] * k[:, None, :, i], truncating)
    s, v = s[:, :, keys], v[:, keys]
    m = s.max(axis=2, keepdims=True) if shifted else F32(0)
    with np.errstate(all="ignore"):
        if form == "fma":
            x = (s.astype(np.float64) * c + (-c * m).astype(np.float64)).astype(F32)
        elif form == "scaled":
            x = s * c - m * c
        else:
            x = (s - m) * c
        p = np.exp2(x)
        p = (p * (1 + F32(2.0**-23))).astype(F32) if form == "scaled" else p
        rounded = p.astype(F16).astype(F32)
        total = (rounded if sum_rounded else p)[:, :, summed].sum(axis=2, keepdims=True, dtype=F32)
        o = np.zeros((*s.shape[:2], d), F32)
        for j in range(v.shape[1]) if order is None else order(v.shape[1]):
            o = _add(o, rounded[:, :, j, None] * v[:, j, None, :], truncating)
        return (o * (F32(1) / total) if normalised else o).astype(F16).reshape(arrays[0].shape)


def _add(total: Any, term: Any, truncating: bool) -> Any:
    """fp32 addition, to nearest or toward zero."""
    exact = total.astype(np.float64) + term.astype(np.float64)
    rounded = exact.astype(F32)
    if truncating:
        beyond = np.abs(rounded.astype(np.float64)) > np.abs(exact)
        rounded = np.where(beyond, np.nextafter(rounded, F32(0)), rounded)
    return rounded


def judge(output: Any, arrays: list[Any]) -> Comparison:
    reference = ORACLES["attention"](arrays)
    return compare(
        output,
        *allowed_interval(reference, 1, 1.0, np.dtype(F16)),
        mistakes=MISTAKES["attention"](arrays),
    )


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("size", SIZES)
def test_every_right_way_is_right(family: str, size: tuple[int, int]) -> None:
    arrays = inputs(family, size)
    shuffled = np.random.default_rng(1).permutation
    for options in (
        {},
        {"form": "scaled", "order": lambda n: reversed(range(n))},
        {"form": "difference", "sum_rounded": True, "order": shuffled},
        {"truncating": True},
    ):
        seen = judge(kernel(arrays, **options), arrays)  # type: ignore[arg-type]
        assert seen.mismatches == 0, (options, seen.first)


def test_reference_is_attention() -> None:
    q, k, v = inputs("normal", (128, 64))
    s = q @ k.T / 8
    p = np.exp(s - s.max(axis=1, keepdims=True))
    exact = ORACLES["attention"]([q, k, v]).exact
    np.testing.assert_allclose(exact, p / p.sum(axis=1, keepdims=True) @ v, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("family", ["normal", "huge_scores", "identical_keys"])
@pytest.mark.parametrize("key", [0, 64, 127])
def test_one_missing_key_is_wrong(family: str, key: int) -> None:
    """Most elements leave their interval: a key weighs about 2^-7, the bound is about 2^-11."""
    arrays = inputs(family)
    kept = [np.delete(x.reshape(-1, ROWS, x.shape[1]), key, axis=1) for x in arrays[1:]]
    s = arrays[0].reshape(-1, ROWS, 128) @ kept[0].swapaxes(1, 2) / np.sqrt(128)
    p = np.exp(s - s.max(axis=2, keepdims=True))
    output = (p / p.sum(axis=2, keepdims=True) @ kept[1]).astype(F16).reshape(arrays[0].shape)
    assert judge(output, arrays).mismatches > output.size / 4


def test_a_key_that_only_the_sum_lacks_is_wrong() -> None:
    arrays = inputs("normal")
    assert judge(kernel(arrays, summed=slice(0, 127)), arrays).mismatches > 1000


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (np.log(2), "the scale lacks log2(e)"),
        (np.log(2) ** 2, "ln(2) in the place of log2(e)"),
        (np.log2(np.e), "log2(e) twice"),
        (np.sqrt(128), "not scaled by 1 / sqrt(D)"),
        (1 / np.sqrt(128), "scaled by 1 / D"),
    ],
)
def test_a_wrong_scale_is_named(factor: float, words: str) -> None:
    arrays = inputs("normal")
    right = np.log2(np.e) / np.sqrt(128)
    seen = judge(kernel(arrays, scale=right * factor), arrays)
    assert seen.mismatches and words in seen.meaning and seen.suspect == "scale"


def test_a_scale_that_is_off_by_one_percent_is_wrong() -> None:
    arrays = inputs("normal")
    right = np.log2(np.e) / np.sqrt(128)
    assert judge(kernel(arrays, scale=right * 1.01), arrays).mismatches > 1000


def test_a_maximum_that_is_not_subtracted_is_named() -> None:
    """It is right where scores are small, and lost where they are huge."""
    arrays = inputs("huge_scores")
    seen = judge(kernel(arrays, shifted=False), arrays)
    assert "maximum is not subtracted" in seen.meaning and seen.suspect == "softmax"
    assert seen.nonfinite == seen.mismatches > 256 * 128 / 2
    nothing = judge(np.full((256, 128), np.nan, F16), arrays)
    assert "never written" in nothing.meaning
    arrays = inputs("normal")
    assert judge(kernel(arrays, shifted=False), arrays).mismatches == 0


def test_normalisation_and_sums_are_named() -> None:
    arrays = inputs("normal")
    q, k, v = (x.reshape(-1, ROWS, 128) for x in arrays)
    s = q @ k.swapaxes(1, 2) / np.sqrt(128)
    p = np.exp(s - s.max(axis=2, keepdims=True))
    w = p / p.sum(axis=2, keepdims=True)

    def flat(x: Any) -> Any:
        return x.astype(F16).reshape(256, 128)

    for output, words in (
        (kernel(arrays, normalised=False), "without the normalisation"),
        (kernel(arrays, summed=slice(0, 64)), "over keys 0 to 63 only"),
        (kernel(arrays, summed=slice(64, 128)), "over keys 64 to 127 only"),
        (flat(p @ v / p.sum(axis=1)[:, :, None]), "column sums of P"),
        (flat(p @ v / (p @ v).sum(axis=2, keepdims=True)), "sum of its own row"),
        (flat(w @ v.swapaxes(1, 2)), "V was taken as K-major"),
        (flat(w @ k), "K is used in the place of V"),
        (flat(w @ v[[0, 0]]), "every head uses V of the first head"),
    ):
        seen = judge(output, arrays)
        assert seen.mismatches and words in seen.meaning, words


def test_one_key_tells_where_values_belong() -> None:
    arrays = inputs("one_key", (384, 64))
    exact = ORACLES["attention"](arrays).exact
    assert np.unique(exact.astype(F16)).size == exact.size
    rows = {tuple(row) for row in arrays[2]}
    assert all(tuple(row) in rows for row in exact.astype(F16).astype(np.float64))
    swapped = exact.astype(F16)
    swapped[:128] = swapped[np.arange(128) ^ 1]
    assert "row 0 holds row 1" in judge(swapped, arrays).meaning


def test_degenerate_outputs_are_wrong() -> None:
    for family in FAMILY:
        arrays = inputs(family, (128, 64))
        for output in (np.zeros((128, 64)), arrays[2][::-1], np.full((128, 64), arrays[2].mean())):
            assert judge(output.astype(F16), arrays).mismatches > 128 * 64 / 2
