"""Seeded inputs. Each family is one function (shapes, generator) -> arrays, made for a pair A (M, K), B (N,
K); normal, distinct and extremes take any number of shapes, huge_scores, identical_keys and one_key are for Q, K
and V of attention, all (N, D), each head having 128 rows.

They are generated in the oracle's process from the seed of the run, which the submission's process never
learns. Every family makes zeros, a copy of an input, and an untouched output wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Family = Callable[[np.random.Generator, list[tuple[int, int]]], list[Array]]

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
def normal(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
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
def distinct(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """Normal fp16 numbers with a finite double; up to 59,392 elements, none appears twice in a tensor."""
    positive = (np.exp2(np.arange(-14, 15))[:, None] * (1 + np.arange(1024) / 1024)).ravel()
    codes = np.concatenate([positive, -positive])
    arrays = []
    for m, n in shapes:
        picked = random.permutation(np.resize(codes, max(codes.size, m * n)))[: m * n]
        arrays.append(picked.reshape(m, n))
    return arrays


@family
def extremes(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """Zeros of both signs, subnormals, and the largest fp16 numbers with a finite double."""
    values = np.array([0.0, 2.0**-24, 1023 * 2.0**-24, 2.0**-14, 1.0, _FP16_MAX / 2])
    return [random.choice(values, shape) * random.choice([-1.0, 1.0], shape) for shape in shapes]


HEAD = 128  # queries and keys of a head
HUGE = 300.0  # a scaled score whose exponential overflows fp32, and fp16 long before
ALONE = 64.0  # how far one scaled score stands above the others: exp(-64) is 0 in fp16


@family
def huge_scores(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """Scaled scores near +300, near -300 or near 0, one after the other query; V normal.

    Within a row they differ by little, as those of `normal` do, so the softmax is as broad as there. Without its row's
    maximum subtracted, an exponential overflows, or the whole row vanishes; the rows near 0 stay right.
    """
    (n, d), *_ = shapes
    along = random.choice([-1.0, 1.0], d) / np.sqrt(d)  # a unit vector that all keys share
    q, k = (_without(random.standard_normal((n, d)), along) for _ in range(2))
    length = np.sqrt(HUGE * np.sqrt(d))
    sign = np.resize([1.0, -1.0, 0.0], n)[:, None]
    v = random.standard_normal((n, d)) + 0.75
    return [q + sign * length * along, k + length * along, v]


@family
def identical_keys(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """All keys of a head are the same: every weight is 1/128, and a row of the output is the mean of V's rows."""
    (n, d), *_ = shapes
    q, k = random.standard_normal((n, d)), random.standard_normal((n // HEAD, d))
    return [q, np.repeat(k, HEAD, axis=0), random.standard_normal((n, d)) + 0.75]


@family
def one_key(random: np.random.Generator, shapes: list[tuple[int, int]]) -> list[Array]:
    """Each query meets one key of its head and no other, and no number appears twice in V (up to 59,392).

    Keys are unit vectors of both signs, so D is 64 or more. An output row is a copy of the row of V that it tells of.
    """
    (n, d), *_ = shapes
    unit = np.concatenate([np.eye(d), -np.eye(d)])
    k = np.concatenate([unit[random.permutation(2 * d)[:HEAD]] for _ in range(n // HEAD)])
    picks = np.concatenate([HEAD * head + random.permutation(HEAD) for head in range(n // HEAD)])
    (v,) = distinct(random, [(n, d)])
    return [k[picks] * ALONE * np.sqrt(d), k, v]


def _without(rows: Array, along: Array) -> Array:
    """The rows without their part along a unit vector."""
    left: Array = rows - np.outer(rows @ along, along)
    return left


def _with_sums_inside_fp16(a: Array, b: Array) -> Array:
    """A, rows scaled by exact powers of two until every sum of A B^T is well inside fp16."""
    over = np.abs(a @ b.T).max(axis=1) / (_FP16_MAX / 4)
    scaled: Array = a * np.exp2(-np.ceil(np.log2(np.maximum(over, 1.0))))[:, None]
    return scaled
