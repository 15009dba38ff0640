"""Counts a kernel's arithmetic while it is recorded: special functions and float32 operations, per warp.

The translated program calls a function for every PTX instruction and for every math function of TIR. In a recorded launch these
calls are counted. What TIR writes as an operator (``a + b``) is not.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emulator.translate import Program

SPECIAL = frozenset(("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"))
FLOAT = frozenset(("fma", "mul", "add", "sub"))
COMPARE = frozenset(("max", "min", "max3", "min3"))
_MATH = frozenset(
    f"math_{name}" for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh")
)
_CALLED = re.compile(r"K\d+_(\w+)$")
_PACKED = re.compile(r"wrap_int\((K\d+_\w+)\(.*?\), 64, False\)")


def counted(program: Program, count: Callable[[str, int], None]) -> Program:
    """The program, which calls ``count(pipe, operations per lane)`` before each instruction: pipe is "special", "fma" or "alu"."""
    names = program.main.__globals__
    packed = set(_PACKED.findall(program.source))
    replaced: dict[str, Any] = {}
    for name, function in names.items():
        found = _CALLED.match(name)
        base = found.group(1) if found else ""
        if base in SPECIAL or name in _MATH:
            replaced[name] = _counting(function, count, "special", 1)
        elif base in FLOAT:
            replaced[name] = _counting(function, count, "fma", 2 if name in packed else 1)
        elif base in COMPARE or name == "fmax":
            replaced[name] = _counting(function, count, "alu", 1)
    if not replaced:
        return program
    main = types.FunctionType(program.main.__code__, {**names, **replaced}, program.main.__name__)
    return replace(program, main=main)


def _counting(function: Any, count: Callable[[str, int], None], pipe: str, operations: int) -> Any:
    def call(*arguments: Any, **more: Any) -> Any:
        count(pipe, operations)
        return function(*arguments, **more)

    return call


__all__ = ["counted"]
