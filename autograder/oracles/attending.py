"""The reference of the attention exercises, and how far a right kernel may be from it.

A kernel computes, per head and query i, over the keys j that the query sees, with c = 1 / sqrt(D):

    s_ij = q_i . k_j             D products of fp16 numbers, summed in fp32
    p_ij = 2^((s_ij - m) c log2(e))          in fp32, each exponential off by at most the relative `exp2`
    l_i  = sum_j p_ij            in fp32
    o_i  = sum_j fp16(p_ij) v_j / l_i        products summed in fp32, then one rounding to fp16

It may take the keys in blocks of 128. m is then a maximum of the blocks so far, and when it grows from m to m', what O and l hold
is rescaled by a = 2^((m - m') c log2(e)). It may leave m as it is while no score is more than 2^8 above it (conditional rescale):
p_ij is up to 2^8, and since its relative rounding stays the same, nothing else changes.

With w_ij = exp(c s_ij) / sum_j exp(c s_ij), the exact weights, M_i = max_j |s_ij|, n = the number of keys that query i sees, and
R = ceil(n / 128) - 1 rescales, its deviation is to first order at most the sum of these:

 1. Errors of p_ij that go into the sum l_i, too. If p_ij is off by the relative e_ij, then o_i is off by
    sum_j w_ij e_ij (v_j - o_i); what all p_ij of a row have in common, such as the rounding of the last m, cancels. e_ij is
    the sum of
     - the error of s_ij: D 2^-23 |q_i|.|k_j| c (an MMA that truncates is off by 2^-23 per term);
     - that of the argument of exp2. Each operation may truncate: 2^-23 for s and for m times the constant, 2^-23 for the difference,
       2^-24 for the constant itself. |m| is at most |s_ij| + |s_ij - m|, and c |s_ij - m| at most c |s_ij - max| + 8 ln(2),
       so it is 2^-23 (2 c |s_ij| + 2.5 (c |s_ij - max| + 8 ln(2)));
     - `exp2`: 2^-22 for ex2.approx (PTX ISA, ex2), more for a polynomial;
     - R times the error of a rescale's exponential: R (exp2 + 2^-23 c 2 M_i), and for all their differences together, which add up
       to less than 2 M_i, 2^-23 c 3 M_i.
 2. The rounding of p_ij to fp16, r_ij: 2^-11 of p_ij, or below 2^-14 at most 2^-25 and never more than p_ij. A kernel sums up either
    what it had before this rounding (then v_j counts in full) or what is behind it (v_j - o_i counts): the larger sum of the two.
 3. The sum over keys and the R products with a: (n + R) 2^-23 sum_j w_ij |v_j|.
 4. The sum l_i, its R products with a and the division: ((n + R) 2^-23 + 2^-22) |o_i|.

Sums of the form sum_j x_ij |v_j - o_i| are bounded by Cauchy and Schwarz, sqrt(sum_j x_ij) sqrt(sum_j x_ij (v_j - o_i)^2), so that they
are matrix products; for normal numbers that is a quarter more. One hundredth on top covers the terms of second order. The last
rounding is monotone, so that the output lies between the rounded ends of this interval.

A query that sees no key has no softmax; its row of O is 0, exactly.

Part 2 dominates: 2^-11 of sum_j w_ij |v_j|, about 5e-4, where one key of 128 that is left out, or one column that the mask takes away, makes
1/128, and one of 1024 still 1e-3. A rescale that is left out changes the weights of whole blocks by a.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from autograder.oracles import Array, Reference, mistakes_of, oracle

HEAD = 128  # queries and keys of a head in two-dimensional tensors
BLOCK = 128  # keys between two rescales
THRESHOLD = 8  # binary orders that a score may be above the reference maximum
FP32_SUM, FP32, EXP2 = 2.0**-23, 2.0**-24, 2.0**-22
FP16, FP16_SUBNORMAL = 2.0**-11, 2.0**-25  # largest relative error, largest error below 2^-14
SECOND_ORDER = 1.01
VANISHING = 104.0  # exp(-104) is 0 in fp32


@oracle
def attention(inputs: list[Array], *, causal: int = 0, exp2: float = EXP2) -> Reference:
    """O = softmax(Q K^T / sqrt(D)) V, fp64.

    Args:
        inputs: Q, K and V, each (B, S, H, D), (H, S, D), or (N, D) with 128 rows per head. K and V may have another S than Q, and
            fewer heads: H of Q is a multiple of H of K, and query head h meets head h // ratio (grouped query attention).
        causal: 1: query i of SQ sees keys 0 to i + SKV - SQ, so that the last query sees all (bottom right alignment). 0: all keys.
        exp2: the largest relative error of the kernel's exponential.
    """
    q, k, v = (torch.from_numpy(_by_head(x)) for x in inputs)
    sees = torch.from_numpy(visible(q.shape[2], k.shape[2], causal))
    exact = scaled_dot_product_attention(q, k, v, attn_mask=sees, scale=q.shape[3] ** -0.5, enable_gqa=True)
    exact = torch.where(sees.any(dim=1)[:, None], exact, 0.0)
    bound = torch.empty_like(exact)
    ratio = q.shape[1] // k.shape[1]
    for b, h in np.ndindex(*q.shape[:2]):
        bound[b, h] = _bound(q[b, h], k[b, h // ratio], v[b, h // ratio], exact[b, h], sees, exp2)
    shape = inputs[0].shape
    return Reference(exact=_as_given(exact.numpy(), shape), magnitude=_as_given(bound.numpy(), shape))


def visible(queries: int, keys: int, causal: int) -> Any:
    """Which keys a query sees, bool (queries, keys)."""
    last = np.arange(queries)[:, None] + (keys - queries if causal else keys)
    return np.arange(keys)[None, :] <= last


def _by_head(x: Array) -> Array:
    """A tensor of any of the three forms as (B, H, S, D)."""
    if x.ndim == 2:
        return np.ascontiguousarray(x.reshape(-1, 1, HEAD, x.shape[1]))
    if x.ndim == 3:
        return np.ascontiguousarray(x[None])
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3))


def _as_given(x: Array, shape: tuple[int, ...]) -> Array:
    """(B, H, S, D) as the form that _by_head had."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3) if len(shape) == 4 else x.reshape(shape))


def _bound(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, sees: torch.Tensor, exp2: float
) -> torch.Tensor:
    """The largest error of a right kernel in one head, (SQ, D), without the rounding of the output."""
    d = q.shape[1]
    c = d**-0.5
    s = torch.where(sees, q @ k.T, 0.0)
    largest = torch.where(sees, s, -math.inf).max(dim=1, keepdim=True).values.nan_to_num(neginf=0.0)
    below = torch.where(sees, s - largest, 0.0)
    p = torch.where(sees, (c * below).exp(), 0.0)
    total = p.sum(dim=1, keepdim=True).clamp(min=1.0)  # the maximum's own exponential is 1
    w = p / total
    keys = sees.sum(dim=1, keepdim=True)
    rescales = torch.ceil(keys / BLOCK).sub(1).clamp(min=0)
    farthest = s.abs().max(dim=1, keepdim=True).values

    argument = FP32_SUM * (
        c * d * (q.abs() @ k.abs().T) + 2 * c * s.abs() + 2.5 * (c * below.abs() + THRESHOLD * math.log(2))
    )
    rescaling = rescales * (exp2 + FP32_SUM * c * 2 * farthest) + (rescales > 0) * FP32_SUM * c * 3 * farthest
    common = w * (argument + exp2 + rescaling)
    rounding = torch.maximum(FP16 * p, torch.minimum(p, torch.tensor(FP16_SUBNORMAL))) / total
    steps = keys + rescales
    return SECOND_ORDER * (
        _apart(common, v, o)
        + torch.maximum(rounding @ v.abs(), _apart(rounding, v, o))
        + FP32_SUM * steps * (w @ v.abs())
        + (FP32_SUM * steps + EXP2) * o.abs()
    )


def _apart(x: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """An upper bound of sum_j x_ij |v_j - o_i|, (SQ, D), for x (SQ, SKV) >= 0."""
    mass = x.sum(dim=1, keepdim=True)
    squares = x @ v.square() - 2 * o * (x @ v) + mass * o.square()
    return (mass * squares.clamp(min=0)).sqrt()


class _Problem:
    """Q, K, V (B, H, S, D) with a K and V head for each query head, the scores, and which of them count."""

    def __init__(self, inputs: list[Array], causal: int) -> None:
        self.q, self.few_k, self.few_v = (_by_head(x) for x in inputs)
        self.shape, self.causal = inputs[0].shape, causal
        self.heads, self.groups = self.q.shape[1], self.few_k.shape[1]
        of = np.arange(self.heads) // (self.heads // self.groups)
        self.k, self.v = self.few_k[:, of], self.few_v[:, of]
        self.c = self.q.shape[3] ** -0.5
        self.queries, self.keys = self.q.shape[2], self.k.shape[2]
        self.sees = visible(self.queries, self.keys, causal)
        self.s = self.q @ _turned(self.k)
        self.starts = range(0, self.keys, BLOCK)

    def given(self, o: Array) -> Array:
        return _as_given(o, self.shape)

    def divided(self, product: Array, sums: Array, sees: Any = None) -> Array:
        """O from P V and sums; infinite or NaN where a sum is 0, but 0 for queries that see no key."""
        sees = self.sees if sees is None else sees
        with np.errstate(all="ignore"):
            return self.given(np.where(sees.any(axis=1)[:, None], product / sums, 0.0))

    def exponentials(self, scores: Array, sees: Any = None) -> Array:
        """exp(score - maximum of the row); 0 where a key does not count."""
        masked = np.where(self.sees if sees is None else sees, scores, -np.inf)
        return np.exp(masked - _finite(masked.max(axis=-1, keepdims=True)))

    def softmax(self, scores: Array, values: Array | None = None, sees: Any = None) -> Array:
        """The attention with these scores, values and mask."""
        p = self.exponentials(scores, sees)
        product = p @ (self.v if values is None else values)
        return self.divided(product, np.maximum(p.sum(axis=-1, keepdims=True), 1e-300), sees)

    def online(
        self,
        *,
        threshold: float = 0.0,
        o_too: bool = True,
        l_too: bool = True,
        running: bool = True,
        follows: bool = False,
        factor: float = 1.0,
    ) -> Array:
        """Block by block, with rescales of O and of the sum, or without.

        running: the maximum is that of all blocks so far; follows: it takes the place of the reference maximum also where it is not
        above the threshold and nothing is rescaled; factor: what the exponent of a rescale is multiplied by.
        """
        scores = np.where(self.sees, self.c * self.s, -np.inf)
        rows = (*scores.shape[:-1], 1)
        m, total, o = np.full(rows, -np.inf), np.zeros(rows), np.zeros(self.q.shape)
        for start in self.starts:
            block = scores[..., start : start + BLOCK]
            largest = block.max(axis=-1, keepdims=True)
            largest = np.maximum(m, largest) if running else largest
            grows = _finite(largest) - m > threshold * math.log(2)
            a = np.where(grows, np.exp(factor * (m - _finite(largest))), 1.0)
            m = np.where(grows | follows, largest, m)
            p = np.exp(block - _finite(m))
            total = (total * a if l_too else total) + p.sum(axis=-1, keepdims=True)
            o = (o * a if o_too else o) + p @ self.v[:, :, start : start + BLOCK]
        return self.divided(o, total)


@mistakes_of("attention")
def _attention_mistakes(inputs: list[Array], *, causal: int = 0) -> Iterator[tuple[Any, ...]]:
    """A softmax with a wrong scale, sum, maximum or mask, blocks that were put together wrongly, operands that were mixed up."""
    this = _Problem(inputs, causal)
    yield from _scales_and_maxima(this)
    yield from _sums(this)
    if this.keys > BLOCK:
        yield from _blocks(this)
    yield from _masks(this)
    yield from _operands(this)
    yield from _heads(this)
    if not causal:
        for j in (0, this.keys - 1):
            others = np.arange(this.keys)[None, :] != j
            yield (
                f"O is the attention without key {j}",
                this.softmax(this.c * this.s, sees=this.sees & others),
            )
    yield (
        "NaN or infinite nearly everywhere: as if it came from memory that was never written, or as if the second MMA took"
        " something else for P, such as fp32 scores for fp16 numbers. Who shares TMEM columns with P, and is P stored where"
        " A is read?",
        np.full(this.shape, np.nan),
        "tmem",
    )


def _scales_and_maxima(this: _Problem) -> Iterator[tuple[Any, ...]]:
    c, s = this.c, this.s
    p = this.exponentials(c * s)
    yield (
        "the rows of O are P V without the normalisation: nothing divides them by the row sum of P",
        this.given(p @ this.v),
    )
    yield (
        "the softmax has base 2 and not e: the scale lacks log2(e), because exp(x) = exp2(x log2(e))",
        this.softmax(c * np.log(2) * s),
        "scale",
    )
    yield "the scores are not scaled by 1 / sqrt(D)", this.softmax(s), "scale"
    yield "the scores are scaled by 1 / D; 1 / sqrt(D) is right", this.softmax(s * c * c), "scale"
    yield "the scale has ln(2) in the place of log2(e)", this.softmax(c * np.log(2) ** 2 * s), "scale"
    yield "the scale has log2(e) twice", this.softmax(c * s / np.log(2)), "scale"
    with np.errstate(all="ignore"):
        largest = np.where(this.sees, s, -np.inf).max(axis=-1, keepdims=True)
        bare, unscaled = (
            np.exp(c * s) * this.sees,
            np.exp2(c * np.log2(np.e) * s - _finite(largest)) * this.sees,
        )
        lost, vanished = (
            this.divided(
                x.astype(np.float16).astype(np.float64) @ this.v,
                x.astype(np.float32).sum(axis=-1, keepdims=True),
            )
            for x in (bare, unscaled)
        )
    yield (
        "rows with large scores are lost, all others are right: the row's maximum is not subtracted ahead of exp2, so it"
        " overflows, or a whole row becomes 0",
        lost,
        "softmax",
    )
    if not np.isfinite(vanished).all():  # zeros alone would explain too much
        yield (
            "rows with large scores are lost, the others are 0: the row's maximum is subtracted without the scale that the"
            " scores have, so it is no longer the largest of them",
            vanished,
            "softmax",
        )


def _sums(this: _Problem) -> Iterator[tuple[Any, ...]]:
    c, s = this.c, this.s
    p = this.exponentials(c * s)
    total, product = p.sum(axis=-1, keepdims=True), p @ this.v
    yield (
        "O is P V divided by the sum of its own row, over the head dimension: the sum belongs to P, over the keys",
        this.divided(product, product.sum(axis=-1, keepdims=True)),
        "softmax",
    )
    if this.queries == this.keys:
        yield (
            "O is P V divided by the column sums of P: the sum goes over the keys of one query, a row of P",
            this.divided(product, p.sum(axis=-2)[..., None]),
            "softmax",
        )
    for start in (0, this.keys // 2):
        half = p[..., start : start + this.keys // 2].sum(axis=-1, keepdims=True)
        yield (
            f"the row sum goes over keys {start} to {start + this.keys // 2 - 1} only",
            this.divided(product, half),
            "softmax",
        )
    largest = _finite(np.where(this.sees, s, -np.inf).max(axis=-1, keepdims=True))
    shifted = np.where(this.sees, c * np.log2(np.e) * (s - largest), 0.0)
    yield (
        "the row sum is taken ahead of exp2: it sums up scores, and not P",
        this.divided(product, shifted.sum(axis=-1, keepdims=True)),
        "softmax",
    )
    yield "O is multiplied by the row sum of P, and not divided", this.given(product * total), "softmax"
    if this.keys == BLOCK:
        late = p[..., BLOCK // 2 :].sum(axis=-1, keepdims=True) + BLOCK // 2 * np.exp(-c * largest)
        yield (
            "the row sum is that of scores which were loaded behind the store of P: P lies on the columns of keys 0 to 63 of S",
            this.divided(product, late),
            "tmem",
        )


def _blocks(this: _Problem) -> Iterator[tuple[Any, ...]]:
    """More than one block of keys."""
    for threshold in (0.0, float(THRESHOLD)):
        yield (
            "O is not rescaled when the maximum grows: what earlier blocks left in it belongs to the old maximum",
            this.online(threshold=threshold, o_too=False),
            "softmax",
        )
        yield (
            "the row sum is not rescaled when the maximum grows: what earlier blocks left in it belongs to the old maximum",
            this.online(threshold=threshold, l_too=False),
            "softmax",
        )
        yield (
            "neither O nor the row sum is rescaled when the maximum grows",
            this.online(threshold=threshold, o_too=False, l_too=False),
            "softmax",
        )
    yield (
        "each block has a maximum of its own, and nothing brings them to a common one: the maximum does not run over the blocks",
        this.online(o_too=False, l_too=False, running=False, follows=True),
        "softmax",
    )
    yield (
        "the reference maximum becomes that of the block also when it is smaller, and nothing is rescaled then",
        this.online(running=False, follows=True),
        "softmax",
    )
    yield (
        "the reference maximum follows every score, but O and the sum are rescaled only where one is above the threshold: both change"
        " together, or not at all",
        this.online(threshold=float(THRESHOLD), follows=True),
        "softmax",
    )
    yield (
        "the factor of the rescale lacks the scale: it is exp2 of a difference of unscaled scores",
        this.online(factor=math.log(2) / this.c),
        "softmax",
    )
    p = this.exponentials(this.c * this.s)
    total, last = p.sum(axis=-1, keepdims=True), this.starts[-1]
    tail = p[..., last:] @ this.v[:, :, last:]
    yield (
        "O holds P V of the last block only: the MMA overwrites it for every block",
        this.divided(tail, total),
    )
    yield (
        "O is the attention to the last block of keys alone",
        this.divided(tail, p[..., last:].sum(axis=-1, keepdims=True)),
    )
    yield (
        "O is the attention to the first block of keys alone",
        this.softmax(this.c * this.s, sees=this.sees & (np.arange(this.keys) < BLOCK)),
    )
    yield (
        "the row sum is that of the last block only",
        this.divided(p @ this.v, p[..., last:].sum(axis=-1, keepdims=True)),
        "softmax",
    )
    again = np.arange(this.keys) % BLOCK
    yield "every block uses V of the first block", this.softmax(this.c * this.s, this.v[:, :, again])
    yield "every block uses K of the first block", this.softmax(this.c * this.s[..., again])


def _masks(this: _Problem) -> Iterator[tuple[Any, ...]]:
    c, s, (n, keys) = this.c, this.s, (this.queries, this.keys)
    padded = -keys % BLOCK
    if padded and not this.causal:
        p = this.exponentials(c * s)
        largest = (c * s).max(axis=-1, keepdims=True)
        with np.errstate(over="ignore"):
            zeros = np.exp(-largest)
            total = p.sum(axis=-1, keepdims=True)
            for count, words in (
                (
                    padded,
                    "keys beyond the end of K are not masked: TMA fills their rows with zeros, and a score of 0 counts in the row sum",
                ),
                (
                    1,
                    "one key too many: the first row beyond the end of K, which TMA fills with zeros, counts in the row sum",
                ),
            ):
                yield words, this.divided(p @ this.v, total + count * zeros), "mask"
        exact = p @ this.v / total
        for fill, what in ((0.0, "0"), (np.nan, "NaN")):
            yield (
                f"rows with low scores are {what}, all others are right: zeros behind the end of K, or masked scores, count in the"
                " maximum, so that all exponentials vanish. Mask ahead of the maximum",
                this.given(np.where(largest < -VANISHING, fill, exact)),
                "mask",
            )
        short = np.arange(keys) < keys - 1
        yield "one key too few: the last one is masked", this.softmax(c * s, sees=this.sees & short), "mask"
    if this.causal:
        row, key = np.arange(n)[:, None], np.arange(keys)[None, :]
        offset = keys - n
        yield (
            "the causal mask is missing: every query sees all keys",
            this.softmax(c * s, sees=key >= 0),
            "mask",
        )
        if offset:
            yield (
                "the causal mask is aligned at the top left: query i sees keys 0 to i, without the offset of SKV - SQ",
                this.softmax(c * s, sees=key <= row),
                "mask",
            )
        for by, words in ((1, "one key too many"), (-1, "one key too few")):
            yield (
                f"the causal mask leaves {words} per query: query i sees keys 0 to i + SKV - SQ, both included",
                this.softmax(c * s, sees=key <= row + offset + by),
                "mask",
            )
        yield (
            "the causal mask is turned round: each query sees the keys behind its own",
            this.softmax(c * s, sees=key >= row + offset),
            "mask",
        )
    if not this.sees.any(axis=1).all():
        o = np.where(this.sees.any(axis=1)[:, None], _by_head(this.softmax(c * s)), np.nan)
        yield (
            "rows that see no key are NaN; their O is 0: what is exp2 of minus infinity minus minus infinity, and what is 0 / 0?",
            this.given(o),
            "mask",
        )
        mean = np.where(np.isnan(o), this.v.mean(axis=2, keepdims=True), o)
        yield (
            "rows that see no key are the mean of V; their O is 0: exp2(0) is 1, so every masked key counts alike",
            this.given(mean),
            "mask",
        )


def _operands(this: _Problem) -> Iterator[tuple[Any, ...]]:
    c, s, k, v = this.c, this.s, this.k, this.v
    square = this.queries == this.keys
    if square:
        yield (
            "O is softmax(Q Q^T) V: Q is used in the place of K",
            this.softmax(c * (this.q @ _turned(this.q))),
        )
    if k.shape[2] == k.shape[3]:
        yield (
            "S is Q K, and not Q K^T: K was taken as MN-major, but its rows are those of N",
            this.softmax(c * (this.q @ k)),
        )
    if square:
        yield "O is softmax(K Q^T) V: Q and K are exchanged", this.softmax(c * _turned(s))
    if v.shape[2] % v.shape[3] == 0 and v.shape[3] == BLOCK:
        blocks = v.reshape(*v.shape[:2], -1, BLOCK, BLOCK)
        yield (
            "O is P V^T: V was taken as K-major, but its rows are the keys, so it is an MN-major B operand (transB=True)",
            this.softmax(c * s, _turned(blocks).reshape(v.shape)),
        )
    yield "O is softmax(Q K^T) K: K is used in the place of V", this.softmax(c * s, k)
    yield "O is softmax(Q V^T) V: V is used in the place of K", this.softmax(c * (this.q @ _turned(v)))
    if this.keys > BLOCK // 2:
        yield (
            "keys are exchanged by 64: P and V do not agree on which key is which",
            this.softmax(c * s, np.roll(v, 64, axis=2)),
        )


def _heads(this: _Problem) -> Iterator[tuple[Any, ...]]:
    """Heads that meet the wrong K, V or Q."""
    c, q, k, v = this.c, this.q, this.k, this.v
    if this.groups < this.heads:
        of = np.arange(this.heads) % this.groups
        yield (
            "query head h meets head h % HKV of K and V; it is h // (HQ // HKV)",
            this.softmax(c * (q @ _turned(this.few_k[:, of])), this.few_v[:, of]),
            "heads",
        )
        of = np.minimum(np.arange(this.heads), this.groups - 1)
        yield (
            "query head h meets head h of K and V, or what lies there; it is h // (HQ // HKV)",
            this.softmax(c * (q @ _turned(this.few_k[:, of])), this.few_v[:, of]),
            "heads",
        )
    if this.heads * q.shape[0] > 1:
        yield "every head uses K of the first head", this.softmax(c * (q @ _turned(k[:1, :1])))
        yield (
            "every head uses V of the first head",
            this.softmax(c * this.s, np.broadcast_to(v[:1, :1], v.shape)),
        )
        yield "every head uses Q of the first head", this.softmax(c * (q[:1, :1] @ _turned(k)))
        yield (
            "every head uses K and V of the first head",
            this.softmax(c * (q @ _turned(k[:1, :1])), np.broadcast_to(v[:1, :1], v.shape)),
        )


def _turned(x: Array) -> Array:
    """The last two dimensions exchanged."""
    return x.swapaxes(-1, -2)


def _finite(maximum: Array) -> Array:
    """Maxima of rows, 0 where a row has nothing."""
    return np.where(np.isfinite(maximum), maximum, 0.0)
