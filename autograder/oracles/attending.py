"""The reference of the attention exercises, and how far a right kernel may be from it.

A kernel computes, per head of 128 queries and keys, with c = 1 / sqrt(D) and m the maximum of the row:

    s_ij = q_i . k_j             D products of fp16 numbers, summed in fp32
    p_ij = 2^((s_ij - m_i) c log2(e))        in fp32 with ex2.approx
    l_i  = sum_j p_ij            in fp32
    o_i  = sum_j fp16(p_ij) v_j / l_i        128 products, summed in fp32, then one rounding to fp16

With w_ij = exp(c s_ij) / sum_j exp(c s_ij), the exact weights, its deviation is to first order at most the sum of these:

 1. Errors of p_ij that go into the sum l_i, too. If p_ij is off by the relative e_ij, then o_i is off by
    sum_j w_ij e_ij (v_j - o_i); what all p_ij of a row have in common, such as the rounding of m_i, cancels. e_ij has three parts:
    the sum s_ij, D 2^-23 |q_i|.|k_j| c (an MMA that truncates is off by 2^-23 per term); the argument of exp2, which is one or two
    fp32 operations on c s_ij and c (s_ij - m_i), 2^-23 c (|s_ij| + |s_ij - m_i|), the constant's own rounding included; and
    ex2.approx itself, 2^-22 (PTX ISA, ex2).
 2. The rounding of p_ij to fp16, 2^-11 of p_ij, or below 2^-14 at most 2^-25 and never more than p_ij. A kernel may sum up what it had
    before this rounding (v_j counts in full) or behind it (v_j - o_i counts): the larger one of both.
 3. The sum over keys, 128 2^-23 sum_j w_ij |v_j|.
 4. The sum l_i and the division by it: (128 2^-24 + 2^-22) |o_i|.

One hundredth on top covers the terms of second order. The last rounding is monotone, so that the output lies between the rounded
ends of this interval. Part 2 dominates: 2^-11, where one key of 128 that is left out makes about 2^-7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from autograder.oracles import Array, Reference, mistakes_of, oracle

HEAD = 128  # queries and keys of a head: rows of Q, K and V
FP32_SUM, FP32, EXP2 = 2.0**-23, 2.0**-24, 2.0**-22
FP16, FP16_SUBNORMAL = 2.0**-11, 2.0**-25  # largest relative error, largest error below 2^-14
SECOND_ORDER = 1.01


@oracle
def attention(inputs: list[Array]) -> Reference:
    """O = softmax(Q K^T / sqrt(D)) V for Q, K, V (N, D), each head 128 rows of all three; fp64."""
    heads = [torch.from_numpy(np.ascontiguousarray(x)).view(-1, HEAD, x.shape[1]) for x in inputs]
    q, k, v = heads
    exact = scaled_dot_product_attention(q, k, v, scale=q.shape[2] ** -0.5)
    bound = torch.stack([_bound(*head) for head in zip(q, k, v, exact, strict=True)])
    shape = inputs[0].shape
    return Reference(exact=exact.reshape(shape).numpy(), magnitude=bound.reshape(shape).numpy())


def _bound(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """The largest error of a right kernel in one head, (128, D), without the rounding of the output."""
    d = q.shape[1]
    c = d**-0.5
    s = q @ k.T
    below = s - s.max(dim=1, keepdim=True).values
    p = (c * below).exp()
    total = p.sum(dim=1, keepdim=True)
    w = p / total

    argument = c * (d * FP32_SUM * (q.abs() @ k.abs().T) + FP32_SUM * (s.abs() + below.abs()))
    common = w * (argument + EXP2)
    rounding = torch.maximum(FP16 * p, torch.minimum(p, torch.tensor(FP16_SUBNORMAL))) / total
    error = HEAD * FP32_SUM * (w @ v.abs()) + (HEAD * FP32 + EXP2) * o.abs()
    for j in range(HEAD):
        apart = (v[j] - o).abs()
        error += common[:, j, None] * apart + rounding[:, j, None] * torch.maximum(apart, v[j].abs())
    return SECOND_ORDER * error


@mistakes_of("attention")
def _attention_mistakes(inputs: list[Array]) -> Iterator[tuple[Any, ...]]:
    """A softmax with a wrong scale, sum or maximum, and operands that were mixed up."""
    q, k, v = (x.reshape(-1, HEAD, x.shape[1]) for x in inputs)
    shape, c = inputs[0].shape, q.shape[2] ** -0.5
    s = q @ k.swapaxes(1, 2)

    def softmax(scores: Array, values: Array = v) -> Array:
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        return (p / p.sum(axis=2, keepdims=True) @ values).reshape(shape)

    p = np.exp(c * (s - s.max(axis=2, keepdims=True)))
    total, product = p.sum(axis=2, keepdims=True), p @ v
    yield (
        "the rows of O are P V without the normalisation: nothing divides them by the row sum of P",
        product.reshape(shape),
    )
    yield (
        "the softmax has base 2 and not e: the scale lacks log2(e), because exp(x) = exp2(x log2(e))",
        softmax(c * np.log(2) * s),
        "scale",
    )
    yield "the scores are not scaled by 1 / sqrt(D)", softmax(s), "scale"
    yield "the scores are scaled by 1 / D; 1 / sqrt(D) is right", softmax(s * c * c), "scale"
    yield "the scale has ln(2) in the place of log2(e)", softmax(c * np.log(2) ** 2 * s), "scale"
    yield "the scale has log2(e) twice", softmax(c * s / np.log(2)), "scale"
    with np.errstate(all="ignore"):
        bare, unscaled = np.exp(c * s), np.exp2(c * np.log2(np.e) * s - s.max(axis=2, keepdims=True))
        lost, vanished = (
            (
                x.astype(np.float16).astype(np.float64) @ v / x.astype(np.float32).sum(axis=2, keepdims=True)
            ).reshape(shape)
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
    yield (
        "O is P V divided by the sum of its own row, over the head dimension: the sum belongs to P, over the keys",
        _divided(product, product.sum(axis=2, keepdims=True)).reshape(shape),
        "softmax",
    )
    yield (
        "O is P V divided by the column sums of P: the sum goes over the keys of one query, a row of P",
        (product / p.sum(axis=1)[:, :, None]).reshape(shape),
        "softmax",
    )
    for start in (0, HEAD // 2):
        half = p[:, :, start : start + HEAD // 2].sum(axis=2, keepdims=True)
        yield (
            f"the row sum goes over keys {start} to {start + HEAD // 2 - 1} only",
            (product / half).reshape(shape),
            "softmax",
        )
    shifted = c * np.log2(np.e) * (s - s.max(axis=2, keepdims=True))
    yield (
        "the row sum is taken ahead of exp2: it sums up scores, and not P",
        _divided(product, shifted.sum(axis=2, keepdims=True)).reshape(shape),
        "softmax",
    )
    yield "O is multiplied by the row sum of P, and not divided", (product * total).reshape(shape), "softmax"
    late = p[:, :, HEAD // 2 :].sum(axis=2, keepdims=True) + HEAD // 2 * np.exp(
        -c * s.max(axis=2, keepdims=True)
    )
    yield (
        "the row sum is that of scores which were loaded behind the store of P: P lies on the columns of keys 0 to 63 of S",
        (product / late).reshape(shape),
        "tmem",
    )
    yield "O is softmax(Q Q^T) V: Q is used in the place of K", softmax(c * (q @ q.swapaxes(1, 2)))
    if k.shape[1] == k.shape[2]:
        yield (
            "S is Q K, and not Q K^T: K was taken as MN-major, but its rows are those of N",
            softmax(c * (q @ k)),
        )
    yield "O is softmax(K Q^T) V: Q and K are exchanged", softmax(c * s.swapaxes(1, 2))
    if v.shape[1] == v.shape[2]:
        yield (
            "O is P V^T: V was taken as K-major, but its rows are the keys, so it is an MN-major B operand (transB=True)",
            softmax(c * s, v.swapaxes(1, 2)),
        )
    yield "O is softmax(Q K^T) K: K is used in the place of V", softmax(c * s, k)
    yield "O is softmax(Q V^T) V: V is used in the place of K", softmax(c * (q @ v.swapaxes(1, 2)))
    yield (
        "keys are exchanged by 64: P and V do not agree on which key is which",
        softmax(c * s, np.roll(v, 64, axis=1)),
    )
    if len(q) > 1:
        yield "every head uses K of the first head", softmax(c * (q @ k[:1].swapaxes(1, 2)))
        yield "every head uses V of the first head", softmax(c * s, np.broadcast_to(v[:1], v.shape))
        yield "every head uses Q of the first head", softmax(c * (q[:1] @ k.swapaxes(1, 2)))
    for j in (0, HEAD - 1):
        rest = [i for i in range(HEAD) if i != j]
        yield f"O is the attention without key {j}", softmax(c * s[:, :, rest], v[:, rest])
    yield (
        "NaN or infinite nearly everywhere: as if it came from memory that was never written, or as if the second MMA took"
        " something else for P, such as fp32 scores for fp16 numbers. Who shares TMEM columns with P, and is P stored where"
        " A is read?",
        np.full(shape, np.nan),
        "tmem",
    )


def _divided(numerator: Array, denominator: Array) -> Array:
    """The quotient; infinite or NaN where the denominator is 0."""
    with np.errstate(all="ignore"):
        quotient: Array = numerator / denominator
    return quotient
