"""Seeded inputs. Each family is one function (shapes, generator) -> arrays, made for a pair A (M, K), B (N,
K); normal, distinct and extremes take any number of shapes. huge_scores, identical_keys, the peaked ones and one_key are
for Q, K and V of attention: (N, D) with 128 rows per head, (H, S, D) or (B, S, H, D), where K and V may have another S and
fewer heads.

They are generated in the oracle's process from the seed of the run, which the submission's process never
learns. Every family makes zeros, a copy of an input, and an untouched output wrong.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Shape = tuple[int, ...]
Family = Callable[[np.random.Generator, list[Any]], list[Array]]

FAMILIES: dict[str, Family] = {}
_FP16_MAX = 65504.0


def family(make: Family) -> Family:
    """Register an input family under its function's name."""
    FAMILIES[make.__name__] = make
    return make


def generator(seed: int, case: str) -> np.random.Generator:
    """The random stream of one case: the same seed and case give the same numbers on every machine."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(case.encode())]))


@family
def normal(random: np.random.Generator, shapes: list[Shape]) -> list[Array]:
    """Standard normal values with a different mean per tensor, so that sums are far from zero."""
    return [random.standard_normal(shape) + 0.25 * (index + 1) for index, shape in enumerate(shapes)]


@family
def large(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """Magnitudes from 8 to 512 per factor: partial sums overflow fp16, final sums stay inside it.

    Terms come in pairs along K that nearly cancel, so a narrow accumulator loses the result.
    """
    (m, k), (n, _) = shapes
    half = k // 2
    a = np.exp2(random.uniform(3.0, 9.0, (m, k))) * random.choice([-1.0, 1.0], (m, k))
    b = np.exp2(random.uniform(3.0, 7.0, (n, k))) * random.choice([-1.0, 1.0], (n, k))
    a[:, half : 2 * half] = -a[:, :half] * (1 + random.choice([-1, 1], (m, half)) / 256)
    b[:, half : 2 * half] = b[:, :half]
    return [_with_sums_inside_fp16(a, b), b]


@family
def wide(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """Both signs and magnitudes from 2^-20 to 2^20, so that most sums need rounding in fp32."""
    return [random.choice([-1.0, 1.0], shape) * np.exp2(random.uniform(-20, 20, shape)) for shape in shapes]


@family
def large_nn(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """`large` for A (M, K) and B (K, N)."""
    (m, k), (_, n) = shapes
    a, b = large(random, [(m, k), (n, k)])
    return [a, b.T]


@family
def one_hot_nn(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """`one_hot` for A (M, K) and B (K, N)."""
    (m, k), (_, n) = shapes
    a, b = one_hot(random, [(m, k), (n, k)])
    return [a, b.T]


@family
def signed_zeros(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """Half of all elements are +0 or -0, the rest are small signed integers times powers of two."""
    arrays = []
    for shape in shapes:
        values = (
            random.choice([-1.0, 1.0], shape)
            * random.integers(1, 8, shape)
            * np.exp2(random.integers(-3, 4, shape))
        )
        zeros = np.where(random.random(shape) < 0.5, 0.0, -0.0)
        arrays.append(np.where(random.random(shape) < 0.5, values, zeros))
    a, b = arrays
    return [_with_sums_inside_fp16(a, b), b]


@family
def one_hot(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """Each row of A picks one column of B, and no number appears twice in B or in D.

    So every element of D is an exact copy that tells where it came from, and a wrong index becomes visible as
    such. B's values have even exponents; the picks of different rows with the same k differ by odd powers of
    two.
    """
    (m, k), (n, _) = shapes
    exponents = np.arange(-8, 8, 2)
    mantissas = 1 + np.arange(1024) / 1024
    codes = (np.exp2(exponents)[:, None] * mantissas).ravel()
    b = random.permutation(np.resize(codes, max(codes.size, n * k)))[: n * k].reshape(n, k)
    a = np.zeros((m, k))
    for start in range(0, m, k):
        rows = np.arange(start, min(start + k, m))
        a[rows, random.permutation(k)[: rows.size]] = 2.0 ** (start // k)
    return [a, b]


@family
def distinct(random: np.random.Generator, shapes: list[Shape]) -> list[Array]:
    """Normal fp16 numbers with a finite double; up to 59,392 elements, none appears twice in a tensor."""
    positive = (np.exp2(np.arange(-14, 15))[:, None] * (1 + np.arange(1024) / 1024)).ravel()
    codes = np.concatenate([positive, -positive])
    arrays = []
    for shape in shapes:
        count = math.prod(shape)
        picked = random.permutation(np.resize(codes, max(codes.size, count)))[:count]
        arrays.append(picked.reshape(shape))
    return arrays


@family
def extremes(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """Zeros of both signs, subnormals, and the largest fp16 numbers with a finite double."""
    values = np.array([0.0, 2.0**-24, 1023 * 2.0**-24, 2.0**-14, 1.0, _FP16_MAX / 2])
    return [random.choice(values, shape) * random.choice([-1.0, 1.0], shape) for shape in shapes]


HEAD = (
    128  # queries and keys of a head of two-dimensional tensors; as many keys does peaked_scores treat alike
)
HUGE = 300.0  # a scaled score whose exponential overflows fp32, and fp16 long before
ALONE = 64.0  # how far one scaled score stands above the others: exp(-64) is 0 in fp16
STEEPNESS = 2.0  # how far a scaled score is below the peak at a distance of 128 keys


@family
def huge_scores(random: np.random.Generator, shapes: list[Shape]) -> list[Array]:
    """Scaled scores near +300, near -300 or near 0, one after the other query; V normal.

    Within a row they differ by little, as those of `normal` do, so the softmax is as broad as there. Without its row's
    maximum subtracted, an exponential overflows, or the whole row vanishes; the rows near 0 stay right.
    """
    d = shapes[0][-1]
    along = _shared_direction(random, d)
    q, k = (_without(random.standard_normal(shape), along) for shape in shapes[:2])
    length = np.sqrt(HUGE * np.sqrt(d))
    sign = _by_position(shapes[0], np.array([1.0, -1.0, 0.0]))
    v = random.standard_normal(shapes[2]) + 0.75
    return [q + sign * length * along, k + length * along, v]


@family
def identical_keys(random: np.random.Generator, shapes: list[Shape]) -> list[Array]:
    """All keys of a head are the same: its weights are equal, and a row of the output is the mean of V's rows."""
    q, k, v = (_by_head(shape) for shape in shapes)
    queries = random.standard_normal(q)
    keys = np.broadcast_to(random.standard_normal((*k[:2], 1, k[3])), k)
    made = (queries, keys, random.standard_normal(v) + 0.75)
    return [_as_given(x, shape) for x, shape in zip(made, shapes, strict=True)]


@family
def peaked_scores(random: np.random.Generator, shapes: list[Shape]) -> list[Array]:
    """Scaled scores that fall with the square of the distance from a position among the keys or behind them, another one for each query;
    V normal.

    So the maximum of an online softmax grows until the block of the peak, in the last steps by 2 and by 6, which is 2.9 and 8.7
    binary orders, and no longer; and for each block there are queries in whose result the blocks ahead of it count.
    """
    return _peaked(random, shapes, np.ones(1))


@family
def peaks_in_one_warp(random: np.random.Generator, shapes: list[Shape]) -> list[Array]:
    """`peaked_scores` for queries 32 to 63 of every 128; the scores of the others are those of normal numbers."""
    return _peaked(random, shapes, np.repeat([0.0, 1.0, 0.0, 0.0], 32))


def _peaked(random: np.random.Generator, shapes: list[Shape], peaked: Array) -> list[Array]:
    """Q, K and V of `peaked_scores`; `peaked` is 0 for queries that have no peak, again and again."""
    d, keys = shapes[0][-1], _by_head(shapes[1])[2]
    along = _shared_direction(random, d)
    across = along * np.resize([1.0, -1.0], d)
    q, k = (_without(_without(random.standard_normal(shape), along), across) for shape in shapes[:2])
    peak = _by_position(shapes[0], np.arange(-1.0, keys / HEAD + 3, 0.5) - keys / HEAD / 2)
    position = _by_position(shapes[1], (np.arange(keys) - keys / 2) / HEAD)
    v = random.standard_normal(shapes[2]) + 0.75
    return [
        q + _by_position(shapes[0], peaked) * STEEPNESS * np.sqrt(d) * (2 * peak * along - across),
        k + position * along + position**2 * across,
        v,
    ]


@family
def one_key(random: np.random.Generator, shapes: list[Shape]) -> list[Array]:
    """Each query meets one key of its head and no other, and no number appears twice in V (up to 59,392).

    Keys are unit vectors of both signs, so D is 64 or more; where a head has more than 2 D keys, they are sums of two of those.
    An output row is a copy of the row of V that it tells of.
    """
    q, k, v = (_by_head(shape) for shape in shapes)
    d = q[3]
    unit = np.concatenate([np.eye(d), -np.eye(d)])
    pairs = (unit[:, None] + unit)[np.triu_indices(2 * d, 1)]
    codes = unit if k[2] <= 2 * d else pairs[np.abs(pairs).sum(axis=1) == 2]
    every = [codes[random.permutation(len(codes))[: k[2]]] for _ in range(k[0] * k[1])]
    keys = np.stack(every).reshape(k)
    queries = np.empty(q)
    for b, h in np.ndindex(*q[:2]):
        picks = np.resize(random.permutation(k[2]), q[2])
        queries[b, h] = keys[b, h * k[1] // q[1]][picks] * (ALONE * np.sqrt(d))
    (values,) = distinct(random, [v])
    return [_as_given(x, shape) for x, shape in zip((queries, keys, values), shapes, strict=True)]


def _by_head(shape: Shape) -> Shape:
    """(B, H, S, D) of a tensor of attention."""
    if len(shape) == 2:
        return (shape[0] // HEAD, 1, HEAD, shape[1])
    return (1, *shape) if len(shape) == 3 else (shape[0], shape[2], shape[1], shape[3])


def _as_given(x: Array, shape: Shape) -> Array:
    """(B, H, S, D) as the tensor of this shape."""
    turned = x.transpose(0, 2, 1, 3) if len(shape) == 4 else x
    return np.ascontiguousarray(turned).reshape(shape)


def _by_position(shape: Shape, values: Array) -> Array:
    """The values, again and again, along the queries or keys of a tensor of attention."""
    if len(shape) == 2:
        return np.resize(values, shape[0])[:, None]
    along = np.resize(values, shape[1])
    return along[None, :, None] if len(shape) == 3 else along[None, :, None, None]


def _shared_direction(random: np.random.Generator, d: int) -> Array:
    """A unit vector that all keys share."""
    along: Array = random.choice([-1.0, 1.0], d) / np.sqrt(d)
    return along


def _without(rows: Array, along: Array) -> Array:
    """The rows without their part along a unit vector."""
    left: Array = rows - (rows @ along)[..., None] * along
    return left


def _with_sums_inside_fp16(a: Array, b: Array) -> Array:
    """A, rows scaled by exact powers of two until every sum of A B^T is well inside fp16."""
    over = np.abs(a @ b.T).max(axis=1) / (_FP16_MAX / 4)
    scaled: Array = a * np.exp2(-np.ceil(np.log2(np.maximum(over, 1.0))))[:, None]
    return scaled
