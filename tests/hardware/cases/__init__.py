"""The cases, one module per instruction family.  Each module has ``cases() -> Iterator[Case]``."""

from __future__ import annotations

import importlib
from functools import lru_cache

from hardware.harness import Case

MODULES = ("registers", "memory", "tma", "bulk", "barriers", "cluster", "atomics", "matrix", "wgmma", "tir")


@lru_cache(maxsize=1)
def all_cases() -> dict[str, Case]:
    """Every case by its id, in a fixed order."""
    found: dict[str, Case] = {}
    for name in MODULES:
        for case in importlib.import_module(f"hardware.cases.{name}").cases():
            if case.id in found:
                raise ValueError(f"two cases are called {case.id}")
            found[case.id] = case
    return found
