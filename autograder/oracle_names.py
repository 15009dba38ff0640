"""Which references `autograder/oracles` has: known without importing them, because they import PyTorch."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from autograder.errors import did_you_mean

FOLDER = Path(__file__).resolve().parent / "oracles"


def oracle_names() -> tuple[str, ...]:
    """The functions with the decorator `oracle` in any module of that folder, sorted."""
    return tuple(sorted(oracle_files()))


@cache
def oracle_files() -> dict[str, Path]:
    """Oracle -> the module that defines it."""
    found = {}
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(mark, ast.Name) and mark.id == "oracle" for mark in node.decorator_list
            ):
                found[node.name] = path
    return found


def known_oracle(name: str) -> str:
    """The name itself.

    Raises:
        ValueError: no module of autograder/oracles has such a function.
    """
    names = oracle_names()
    if name not in names:
        raise ValueError(f"{name!r} is not one of {', '.join(names)}{did_you_mean(name, list(names))}")
    return name
