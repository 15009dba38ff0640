"""References of the GEMM family."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from autograder.oracles import Array, Reference, mistakes_of, oracle

K_TILE = 64  # columns of A and B that the kernels of the course hold in SMEM at a time


@oracle
def gemm_nt(inputs: list[Array]) -> Reference:
    """D = A B^T for A (M, K) and B (N, K), in fp64.

    A sum of K products of 16-bit numbers in fp64 is off by at most K 2^-53 of |A||B|^T: exact for this purpose.
    """
    a, b = (torch.from_numpy(array) for array in inputs)
    return Reference(exact=(a @ b.T).numpy(), magnitude=(a.abs() @ b.abs().T).numpy())


@oracle
def gemm_nn(inputs: list[Array]) -> Reference:
    """D = A B for A (M, K) and B (K, N), in fp64."""
    a, b = inputs
    return gemm_nt([a, np.ascontiguousarray(b.T)])


@mistakes_of("gemm_nn")
def _gemm_nn_mistakes(inputs: list[Array]) -> Iterator[tuple[str, Array]]:
    """Indices that were mixed up, and ends of K that were left out."""
    a, b = inputs
    (m, k), n = a.shape, b.shape[1]
    yield f"D is the sum without k = {k - 1}: the loop ends too early", a[:, :-1] @ b[:-1]
    yield "D is the sum without k = 0: the loop starts too late", a[:, 1:] @ b[1:]
    yield (
        f"D is the last product alone, that of k = {k - 1}: the sum starts anew each time",
        a[:, -1:] @ b[-1:],
    )
    yield "D is A B with B read as an (N, K) matrix", a @ b.reshape(n, k).T
    if m <= n:
        rows = np.repeat(a[:, :1], k, axis=1)
        yield "D uses the same element of A for every k", rows @ b


@mistakes_of("gemm_nt")
def _gemm_nt_mistakes(inputs: list[Array]) -> Iterator[tuple[str, Array]]:
    """Operands that were not used as they are stored, and parts of K that were left out."""
    a, b = inputs
    k = a.shape[1]
    if b.shape[0] * b.shape[1] == k * b.shape[0]:
        yield "D is A times B read as a (K, N) matrix: B is not used as it is stored", a @ b.reshape(k, -1)
    if a.shape == b.shape:
        yield "D is A A^T: A is used in the place of B", a @ a.T
        yield "D is B B^T: B is used in the place of A", b @ b.T
    if k > K_TILE:
        last, first = k - K_TILE, K_TILE
        yield (
            f"D is the product of k = {last} to {k - 1} alone: the sum starts anew with each K tile",
            a[:, last:] @ b[:, last:].T,
        )
        yield (
            f"D is the sum without k = 0 to {first - 1}: the first K tile is lost",
            a[:, first:] @ b[:, first:].T,
        )
        yield (
            f"D is the sum without k = {last} to {k - 1}: the last K tile is left out",
            a[:, :last] @ b[:, :last].T,
        )
    for start in range(0, k, 16):
        rest = [i for i in range(k) if not start <= i < start + 16]
        span = f"k = {start} to {min(start + 16, k) - 1}"
        yield f"D is the sum without {span}", a[:, rest] @ b[:, rest].T
        yield f"D is the sum over {span} only", a[:, start : start + 16] @ b[:, start : start + 16].T
