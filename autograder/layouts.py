"""TileLayouts as integer tables: what a layout of course.yaml wants, and what a learner's layout does.

The submission's process sends only the numbers that a TileLayout consists of: (extent, stride, axis) of its
shard and replica iters, and an offset per axis. They are evaluated here, by the rule of TIRx: the domain is
numbered in row-major order, that number is split by the extents of the shard, the last one fastest, and each
part times its stride is added on its axis.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import Any

MAX_ELEMENTS = 1 << 16
MAX_ITERS = 32
MAX_NUMBER = 1 << 40

Table = dict[str, list[int]]  # axis -> its coordinate for each element of the domain, in row-major order
Iter = tuple[int, int, str]  # extent, stride, axis


@dataclass(frozen=True)
class Shards:
    """The numbers of one TileLayout. `offset` has one entry per axis."""

    shard: tuple[Iter, ...]
    replica: tuple[Iter, ...] = ()
    offset: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        """How many elements the domain has."""
        return prod(extent for extent, _, _ in self.shard)

    @property
    def copies(self) -> int:
        """In how many places each element lies."""
        return prod(extent for extent, _, _ in self.replica)

    def spelled(self) -> str:
        """As TIRx spells it: `S[(8, 16) : (16, 1)]`."""
        text = "S" + _spell(self.shard)
        if self.replica:
            text += " + R" + _spell(self.replica)
        for axis, value in self.offset:
            text += f" + {value}" if axis == "m" else f" + {value} @ {axis}"
        return text


def _spell(iters: Iterable[Iter]) -> str:
    extents = [str(extent) for extent, _, _ in iters]
    strides = [spell_stride(one) for one in iters]
    if len(extents) == 1:
        return f"[{extents[0]} : {strides[0]}]"
    return f"[({', '.join(extents)}) : ({', '.join(strides)})]"


def spell_stride(one: Iter) -> str:
    """`16`, or `4 @ laneid`."""
    _, stride, axis = one
    return str(stride) if axis == "m" else f"{stride} @ {axis}"


def read_shards(data: Any) -> Shards:
    """The numbers of a layout as a submission's process sent them.

    Raises:
        ValueError: they are not what a layout consists of.
    """
    if not isinstance(data, dict) or set(data) != {"shard", "replica", "offset"}:
        raise ValueError("no layout")
    offset = tuple((_axis(axis), _number(value)) for axis, value in data["offset"])
    if len(offset) > MAX_ITERS:
        raise ValueError("too many offsets")
    return Shards(_iters(data["shard"]), _iters(data["replica"]), offset)


def _iters(data: Any) -> tuple[Iter, ...]:
    if not isinstance(data, list) or len(data) > MAX_ITERS:
        raise ValueError("no list of iters")
    iters = tuple((_number(extent), _number(stride), _axis(axis)) for extent, stride, axis in data)
    if any(extent < 1 for extent, _, _ in iters):
        raise ValueError("an extent below 1")
    return iters


def _number(value: Any) -> int:
    if type(value) is not int or abs(value) > MAX_NUMBER:
        raise ValueError("no number of a layout")
    return value


def _axis(value: Any) -> str:
    if not isinstance(value, str) or not value.isidentifier() or len(value) > 32:
        raise ValueError("no axis of a layout")
    return value


def evaluate(shards: Shards) -> Table:
    """Where every element of the domain lies, replicas aside.

    Raises:
        ValueError: the domain has more than MAX_ELEMENTS elements.
    """
    if shards.size > MAX_ELEMENTS:
        raise ValueError(f"a layout of more than {MAX_ELEMENTS} elements")
    moving = [part for part in shards.shard if part[0] > 1]  # an extent of 1 moves nothing
    axes = dict.fromkeys([axis for _, _, axis in moving] + [axis for axis, _ in shards.offset])
    table: Table = {axis: [0] for axis in axes or ("m",)}
    for extent, stride, axis in moving:
        for name, values in table.items():
            step = stride if name == axis else 0
            table[name] = [value + step * i for value in values for i in range(extent)]
    for axis, start in shards.offset:
        table[axis] = [value + start for value in table[axis]]
    return table


def differences(one: Table, other: Table) -> list[int]:
    """Numbers of the elements that lie elsewhere; on an axis that a table lacks, every coordinate is 0.

    Both tables have at least one axis and the same number of elements.
    """
    zeros = [0] * len(next(iter(one.values())))
    columns = [(one.get(axis, zeros), other.get(axis, zeros)) for axis in {**one, **other}]
    return [n for n in range(len(zeros)) if any(have[n] != want[n] for have, want in columns)]


# Formulas ---------------------------------------------------------------------------------------

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def check_formula(text: str, names: Sequence[str]) -> None:
    """A formula is arithmetic (+ - * // %) on integers and on these names.

    Raises:
        ValueError: it is something else; one line that says what.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"'{text}' is no formula: write arithmetic such as 16 * r + c") from None
    for node in ast.walk(tree.body):
        if isinstance(node, ast.Name) and node.id not in names:
            raise ValueError(f"'{text}' uses '{node.id}'; known here are {', '.join(names)}")
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            raise ValueError(f"'{text}': {node.value!r} is no integer")
        if isinstance(node, ast.BinOp) and not isinstance(node.op, _OPERATORS):
            raise ValueError(f"'{text}': only + - * // % are known")
        if not isinstance(node, ast.Name | ast.Constant | ast.BinOp | ast.Load | ast.operator):
            raise ValueError(f"'{text}': only integers, names and + - * // % are known")


@cache
def _compiled(text: str) -> Any:
    return compile(ast.parse(text, mode="eval"), "formula", "eval")


def compute(text: str, values: Mapping[str, int]) -> int:
    """The value of a checked formula.

    Raises:
        ValueError: it divides by zero.
    """
    try:
        return int(eval(_compiled(text), {"__builtins__": {}}, dict(values)))
    except ZeroDivisionError:
        raise ValueError(f"'{text}' divides by zero for {dict(values)}") from None


def formula_table(wanted: Mapping[str, str], shape: Mapping[str, int], params: Mapping[str, int]) -> Table:
    """The table of one checked formula per axis; `shape` has the extent of each index.

    Raises:
        ValueError: a formula divides by zero.
    """
    places = list(product(*(range(extent) for extent in shape.values())))
    values = [{**params, **dict(zip(shape, place, strict=True))} for place in places]
    return {axis: [compute(text, value) for value in values] for axis, text in wanted.items()}
