"""Numbers of course.yaml that depend on the problem size: `M * N * K // 262144`.

A whole number, or text with whole numbers, names of builder parameters, + - * // %, min(), max() and parentheses.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}


def evaluate(amount: int | str, params: Mapping[str, int | str]) -> int:
    """The value for one problem size.

    Raises:
        ValueError: the text is no such expression, names what is no whole number, or is below 0.
    """
    if isinstance(amount, int):
        return amount
    try:
        value = _value(ast.parse(amount, mode="eval").body, params)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"'{amount}' is no expression") from None
    except ZeroDivisionError:
        raise ValueError(f"'{amount}' divides by 0") from None
    if value < 0:
        raise ValueError(f"'{amount}' is {value}, below 0")
    return value


def _value(node: ast.expr, params: Mapping[str, int | str]) -> int:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.Name(id=name):
            given = params.get(name)
            if not isinstance(given, int):
                numbers = ", ".join(key for key, entry in params.items() if isinstance(entry, int))
                raise ValueError(f"'{name}' is no number of builder.params ({numbers})")
            return given
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left, params), _value(right, params))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*[_value(argument, params) for argument in arguments], *_twice(arguments))
    raise ValueError(
        f"'{ast.unparse(node)}' is not possible here: use whole numbers, parameters, + - * // %, min, max"
    )


def _twice(arguments: list[ast.expr]) -> list[int]:
    """min and max of one number want a second one."""
    if len(arguments) == 1:
        raise ValueError("min and max compare at least two numbers")
    return []
