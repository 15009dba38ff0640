"""PyTorch references, one per kernel family. Only the oracle's process imports this package's modules."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
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


# Both take the inputs, and by keyword those options of the kernel that they name, see `taken`.
Oracle = Callable[..., Reference]
Mistakes = Callable[..., Iterator[tuple[Any, ...]]]  # see autograder.compare.Mistakes
ORACLES: dict[str, Oracle] = {}
MISTAKES: dict[str, Mistakes] = {}


def load_all() -> None:
    """Import every module of this package: each registers its references."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


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


def taken(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Those options that a reference, or what gives its mistakes, takes by keyword."""
    wanted = inspect.signature(function).parameters.values()
    return {p.name: options[p.name] for p in wanted if p.kind is p.KEYWORD_ONLY and p.name in options}
