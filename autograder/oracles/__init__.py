"""PyTorch references, one per kernel family. Only the oracle's process imports this package's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """The exact result and what bounds a right kernel's error, both fp64.

    `magnitude` is the sum of magnitudes |A||B|^T, or (tolerance `analysed`) the bound itself.
    """

    exact: Array
    magnitude: Array


Oracle = Callable[[list[Array]], Reference]
Mistakes = Callable[[list[Array]], Iterator[tuple[Any, ...]]]  # see autograder.compare.Mistakes
ORACLES: dict[str, Oracle] = {}
MISTAKES: dict[str, Mistakes] = {}


def oracle(compute: Oracle) -> Oracle:
    """Register a reference under its function's name."""
    ORACLES[compute.__name__] = compute
    return compute


def mistakes_of(name: str) -> Callable[[Mistakes], Mistakes]:
    """Register what classic mistakes would give, most telling first: (what was done, its result), and as a third
    where to look if that is not in the operands. A result that is NaN everywhere stands for whatever is NaN or infinite
    in most of the wrong elements.
    """

    def register(make: Mistakes) -> Mistakes:
        MISTAKES[name] = make
        return make

    return register
