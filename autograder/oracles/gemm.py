"""References of the GEMM family."""

from __future__ import annotations

import torch

from autograder.oracles import Array, Reference, oracle


@oracle
def gemm_nt(inputs: list[Array]) -> Reference:
    """D = A B^T for A (M, K) and B (N, K), in fp64.

    A sum of 64 products of fp16 numbers in fp64 is off by less than 2^-46 of |A||B|^T: exact for this
    purpose.
    """
    a, b = (torch.from_numpy(array) for array in inputs)
    return Reference(exact=(a @ b.T).numpy(), magnitude=(a.abs() @ b.abs().T).numpy())
