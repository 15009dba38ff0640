"""Attention of any length: masks, heads that share K and V, online softmax; right kernels are right, mistakes are wrong and named."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import autograder.oracles.attending
import autograder.oracles.doubling  # noqa: F401  both register their references
from autograder.compare import Comparison, allowed_interval, compare
from autograder.inputs import FAMILIES, generator
from autograder.oracles import MISTAKES, ORACLES, taken

F16, F32 = np.float16, np.float32
FAMILY = ("normal", "huge_scores", "identical_keys", "peaked_scores", "one_key")
# Q and K of (B, S, H, D), or (H, S, D), and whether the mask is causal.
Size = tuple[tuple[int, ...], tuple[int, ...], int]
LONG: Size = ((1, 64, 1, 64), (1, 1000, 1, 64), 0)
UNEVEN: Size = ((1, 96, 1, 64), (1, 500, 1, 64), 0)
GROUPED: Size = ((1, 66, 4, 64), (1, 200, 2, 64), 1)
TALL: Size = ((2, 200, 64), (2, 100, 64), 1)  # the first 100 queries see no key
SIZES = (LONG, UNEVEN, GROUPED, TALL)
SHORT: Size = ((2, 64, 64), (2, 37, 64), 0)


@cache
def problem(family: str, size: Size) -> tuple[list[Any], Any]:
    q, k, causal = size
    made = FAMILIES[family](generator(3, family), [q, k, k])
    arrays = [x.astype(F16).astype(np.float64) for x in made]
    return arrays, ORACLES["attention"](arrays, causal=causal)


def by_head(arrays: list[Any]) -> list[Any]:
    """Q, K, V as (B, H, S, D), with a head of K and V for each of Q."""
    q, k, v = (x.transpose(0, 2, 1, 3) if x.ndim == 4 else x[None] for x in arrays)
    ratio = q.shape[1] // k.shape[1]
    return [q, k.repeat(ratio, axis=1), v.repeat(ratio, axis=1)]


def kernel(
    size: Size,
    family: str,
    *,
    threshold: float = 0.0,
    block: int = 128,
    truncating: bool = False,
    sum_rounded: bool = False,
    exp2_error: float = 0.0,
    lost: tuple[str, int] = ("", 0),
    off_by: int = 0,
    unmasked_end: bool = False,
) -> Any:
    """O of a kernel with online softmax in fp32 and P in fp16. Mistakes: `lost` = ("o" or "l", number of the block ahead of
    which that one is not rescaled), a mask that is off by some keys, zeros behind the last key that count.
    """
    arrays, _ = problem(family, size)
    q, k, v = (x.astype(F32) for x in by_head(arrays))
    d, (queries, keys) = q.shape[3], (q.shape[2], k.shape[2])
    c = F32(np.log2(np.e) / np.sqrt(d))
    last = np.arange(queries)[:, None] + keys - queries if size[2] else np.full((queries, 1), keys - 1)
    padded = -keys % block if unmasked_end else 0
    k, v = (np.pad(x, ((0, 0), (0, 0), (0, padded), (0, 0))) for x in (k, v))
    sees = np.arange(keys + padded)[None, :] <= last + off_by + padded
    s = np.where(sees, q @ k.swapaxes(2, 3), F32(-np.inf))
    m, total = np.full((*s.shape[:3], 1), F32(-np.inf)), np.zeros((*s.shape[:3], 1), F32)
    o = np.zeros(q.shape, F32)

    def rounded(x: Any) -> Any:
        if not truncating:
            return x.astype(F32)
        near = x.astype(F32)
        return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, F32(0)), near)

    for number, start in enumerate(range(0, s.shape[3], block)):
        part = s[..., start : start + block].astype(np.float64)
        new = np.maximum(m, part.max(axis=3, keepdims=True).astype(F32))
        with np.errstate(invalid="ignore"):
            new = np.where((new - m) * c > threshold, new, m)  # NaN, no key yet: m
        shift = rounded(np.where(np.isfinite(new), new, 0).astype(np.float64) * c)
        a = np.exp2(rounded(m.astype(np.float64) * c - shift)) * F32(1 + exp2_error)
        p = np.exp2(rounded(part * c - shift)) * np.resize(
            [1 + exp2_error, 1 - exp2_error], part.shape[3]
        ).astype(F32)
        p16 = p.astype(F16).astype(F32)
        if lost != ("o", number):
            o = rounded(o.astype(np.float64) * a)
        if lost != ("l", number):
            total = rounded(total.astype(np.float64) * a)
        total = rounded(
            total.astype(np.float64) + (p16 if sum_rounded else p).sum(axis=3, keepdims=True, dtype=F32)
        )
        o = rounded(o.astype(np.float64) + p16 @ v[:, :, start : start + block])
        m = new
    o = (o * np.where(total > 0, 1 / np.where(total > 0, total, 1), 0)).astype(F16)
    return o.transpose(0, 2, 1, 3) if arrays[0].ndim == 4 else o[0]


def judge(
    output: Any, size: Size, family: str, *, exp2: float | None = None, named: bool = True
) -> Comparison:
    arrays, reference = problem(family, size)
    if exp2 is not None:
        reference = ORACLES["attention"](arrays, causal=size[2], exp2=exp2)
    interval = allowed_interval(reference, 1, 1.0, np.dtype(F16))
    return compare(output, *interval, mistakes=MISTAKES["attention"](arrays, causal=size[2]) if named else ())


@pytest.mark.parametrize("size", [*SIZES, SHORT])
@pytest.mark.parametrize("family", FAMILY)
def test_every_right_way_is_right(size: Size, family: str) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"threshold": 8.0, "sum_rounded": True},
        {"threshold": 8.0, "truncating": True, "block": 256},
    ]
    for ways in options:
        seen = judge(kernel(size, family, **ways), size, family)
        assert seen.mismatches == 0, (ways, seen.first)


@pytest.mark.parametrize("size", SIZES)
def test_an_exponential_of_lower_precision_needs_its_own_bound(size: Size) -> None:
    """A polynomial that is off by 1e-4 is right when the bound knows it; one that is off by half is wrong."""
    output = kernel(size, "peaked_scores", exp2_error=1e-4, threshold=8.0)
    assert judge(output, size, "peaked_scores", exp2=1e-4).mismatches == 0
    coarse = kernel(size, "peaked_scores", exp2_error=0.5, threshold=8.0)
    assert judge(coarse, size, "peaked_scores", exp2=1e-4, named=False).mismatches > 0


@pytest.mark.parametrize("size", SIZES)
def test_reference_is_pytorch_s(size: Size) -> None:
    arrays, reference = problem("normal", size)
    q, k, v = (torch.from_numpy(x) for x in arrays)
    q, k, v = (x.transpose(1, 2) if x.ndim == 4 else x[None] for x in (q, k, v))
    queries, keys = q.shape[2], k.shape[2]
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if size[2] else None
    exact = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    exact = exact.transpose(1, 2) if arrays[0].ndim == 4 else exact[0]
    np.testing.assert_allclose(reference.exact, exact.nan_to_num().numpy(), rtol=1e-12, atol=1e-13)


def test_causal_of_a_square_is_pytorch_s() -> None:
    size: Size = ((1, 200, 2, 64), (1, 200, 2, 64), 1)
    arrays, reference = problem("normal", size)
    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in arrays)
    exact = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).numpy()
    np.testing.assert_allclose(reference.exact, exact, rtol=1e-12, atol=1e-13)


def test_a_query_without_a_key_is_exactly_zero() -> None:
    """Every deviation is wrong: NaN, the mean of V, or a tiny number."""
    right = kernel(TALL, "normal")
    assert not right[:, :100].any() and right[:, 100:].all(axis=2).all()
    _, reference = problem("normal", TALL)
    assert not reference.exact[:, :100].any() and not reference.magnitude[:, :100].any()
    for value, words in ((np.nan, "rows that see no key are NaN"), (None, "the mean of V"), (1e-7, "")):
        output = right.copy()
        output[:, :100] = (
            by_head(problem("normal", TALL)[0])[2].mean(axis=2)[0][:, None] if value is None else value
        )
        seen = judge(output, TALL, "normal")
        assert seen.mismatches == 2 * 100 * 64 and words in seen.meaning and seen.where == "index 1: 0-99"


@pytest.mark.parametrize(
    ("size", "family"), [(LONG, "normal"), (LONG, "identical_keys"), (GROUPED, "normal")]
)
def test_one_column_of_the_mask_is_wrong(size: Size, family: str) -> None:
    """Many elements leave the interval, though a key of 1000 weighs 1e-3 only."""
    assert (
        judge(kernel(size, family, off_by=-1), size, family, named=False).mismatches > np.prod(size[0]) / 20
    )
    if size[2]:
        seen = judge(kernel(size, family, off_by=1), size, family)
        assert seen.mismatches > np.prod(size[0]) / 20
        assert "one key too many per query" in seen.meaning and seen.suspect == "mask"


@pytest.mark.parametrize("what", ["o", "l"])
@pytest.mark.parametrize("threshold", [0.0, 8.0])
def test_one_lost_rescale_is_wrong(what: str, threshold: float) -> None:
    """Ahead of any block but the first."""
    for size in (LONG, UNEVEN):
        for number in (1, 2, 3) if size is UNEVEN else (4, 7):
            output = kernel(size, "peaked_scores", threshold=threshold, lost=(what, number))
            assert judge(output, size, "peaked_scores", named=False).mismatches > 64, number
    output = kernel(LONG, "normal", threshold=threshold, lost=(what, 1))
    assert (judge(output, LONG, "normal", named=False).mismatches > 64) == (threshold == 0), (
        "nothing to rescale"
    )


def test_zeros_behind_the_last_key_that_count_are_named() -> None:
    for family in ("normal", "identical_keys"):
        seen = judge(kernel(LONG, family, unmasked_end=True), LONG, family)
        assert (
            seen.mismatches
            and "beyond the end of K are not masked" in seen.meaning
            and seen.suspect == "mask"
        )


MISTAKEN = [
    (LONG, "peaked_scores", "O is not rescaled"),
    (LONG, "peaked_scores", "the row sum is not rescaled"),
    (LONG, "peaked_scores", "each block has a maximum of its own"),
    (LONG, "normal", "the last block only: the MMA overwrites"),
    (LONG, "normal", "to the last block of keys alone"),
    (LONG, "normal", "to the first block of keys alone"),
    (LONG, "normal", "every block uses V of the first block"),
    (LONG, "normal", "every block uses K of the first block"),
    (LONG, "huge_scores", "one key too many: the first row beyond"),
    (LONG, "normal", "one key too few: the last one is masked"),
    (LONG, "normal", "the scale lacks log2(e)"),
    (LONG, "normal", "keys are exchanged by 64"),
    (GROUPED, "normal", "the causal mask is missing"),
    (GROUPED, "normal", "aligned at the top left"),
    (GROUPED, "normal", "one key too few per query"),
    (GROUPED, "normal", "turned round"),
    (GROUPED, "normal", "meets head h % HKV"),
    (GROUPED, "normal", "meets head h of K and V"),
    (GROUPED, "normal", "every head uses K and V of the first head"),
    (GROUPED, "normal", "K is used in the place of V"),
    (GROUPED, "normal", "without the normalisation"),
    (TALL, "normal", "rows that see no key are NaN"),
]


@pytest.mark.parametrize(("size", "family", "words"), MISTAKEN)
def test_mistakes_are_told_apart(size: Size, family: str, words: str) -> None:
    """The result of a mistake, rounded, is wrong, and what is said about it is about no other mistake."""
    arrays, _ = problem(family, size)
    every = MISTAKES["attention"](arrays, causal=size[2])
    result = next(entry[1] for entry in every if words in entry[0])
    with np.errstate(over="ignore"):
        seen = judge(result.astype(F16), size, family)
    assert seen.mismatches and words in seen.meaning


def test_options_reach_those_that_name_them() -> None:
    options = {"causal": 1, "exp2": 1e-4, "SQ": 128}
    assert taken(ORACLES["attention"], options) == {"causal": 1, "exp2": 1e-4}
    assert taken(MISTAKES["attention"], options) == {"causal": 1}
    assert taken(ORACLES["double"], options) == {}
