"""References of elementwise kernels."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from autograder.oracles import Array, Reference, mistakes_of, oracle


@oracle
def add(inputs: list[Array]) -> Reference:
    """Z = X + Y for X, Y (N,).

    fp64 has more than twice the bits of fp32 and two to spare, so rounding the fp64 sum of two fp32 numbers to
    fp32 gives what one correctly rounded fp32 addition gives.
    """
    x, y = (torch.from_numpy(array) for array in inputs)
    return Reference(exact=(x + y).numpy(), magnitude=(x.abs() + y.abs()).numpy())


@mistakes_of("add")
def _add_mistakes(inputs: list[Array]) -> Iterator[tuple[str, Array]]:
    """Operands that were mixed up or left out."""
    x, y = inputs
    yield "Z is X + X: X is used in the place of Y", x + x
    yield "Z is Y + Y: Y is used in the place of X", y + y
    yield "Z is X: Y is not added", x
    yield "Z is Y: X is not added", y
    yield "Z is X - Y", x - y
