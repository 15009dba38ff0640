"""The reference of the TMA exercise: every element times two."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from autograder.oracles import Array, Reference, mistakes_of, oracle


@oracle
def double(inputs: list[Array]) -> Reference:
    """D = 2 A for A (M, N). Doubling a floating-point number is exact: a right kernel has no error at all."""
    (a,) = (torch.from_numpy(array) for array in inputs)
    return Reference(exact=(a * 2).numpy(), magnitude=torch.zeros_like(a).numpy())


@mistakes_of("double")
def _double_mistakes(inputs: list[Array]) -> Iterator[tuple[str, Array]]:
    """Elements that were doubled never or twice."""
    (a,) = inputs
    yield "D is A: nothing was doubled", a
    yield "D is 4 A: every element was doubled twice", 4 * a
