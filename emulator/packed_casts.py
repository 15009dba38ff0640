"""Loops that convert registers two by two, as TVM's tile primitives write them: one conversion of all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_PREFIX = "tvm_builtin_cast_"


@dataclass(frozen=True)
class PackedCast:
    """``for f in range(count / 2): cast2(&destination[2 f + a], &source[2 f + b])``.

    Attributes:
        call: the ``T.cuda.func_call`` in the loop.
        destination, source: the variables of the two local arrays.
        first_destination, first_source: index of the first element, ``a`` and ``b``.
        count: number of elements.
    """

    call: Any
    destination: Any
    first_destination: int
    source: Any
    first_source: int
    count: int


def find(loop: Any, extent: Any) -> PackedCast | None:
    """What a TIR ``For`` from 0 to ``extent`` does, if it does nothing but convert neighbouring pairs."""
    if type(extent).__name__ != "IntImm" or type(loop.body).__name__ != "SeqStmt":
        return None
    rounds = int(extent.value)
    calls: list[Any] = []
    bound: dict[Any, Any] = {}
    scratch: set[Any] = set()
    for s in loop.body.seq:
        kind = type(s).__name__
        if kind == "AllocBuffer":
            scratch.add(s.buffer)
        elif kind == "Bind":
            bound[s.var] = s.value
        elif kind == "BufferStore" and s.buffer in scratch:
            if (
                _index(s.value, loop.loop_var, 0, bound) is None
            ):  # also: the stored value has no effect of its own
                return None
        elif kind != "DeclBuffer":
            calls.append(s)
    if len(calls) != 1 or type(calls[0]).__name__ != "Evaluate":
        return None
    call = calls[0].value
    if str(getattr(getattr(call, "op", None), "name", "")) != "tirx.cuda.func_call":
        return None
    name, *pointers = call.args[:-1]
    if not str(name.value).startswith(_PREFIX) or not str(name.value).endswith("x2") or len(pointers) != 2:
        return None
    places = []
    for pointer in pointers:
        load: Any = pointer.args[0] if str(getattr(pointer.op, "name", "")) == "tirx.address_of" else None
        if type(load).__name__ != "TensorLoad" or load.source in scratch or len(load.indices) != 1:
            return None
        at = [_index(load.indices[0], loop.loop_var, f, bound) for f in range(rounds)]
        first = at[0] if at else None
        if first is None or at != [first + 2 * f for f in range(rounds)]:
            return None
        places.append((load.source, first))
    (destination, a), (source, b) = places
    return PackedCast(call, destination, a, source, b, 2 * rounds)


def _index(e: Any, loop_var: Any, value: int, bound: dict[Any, Any]) -> int | None:
    """An index expression of constants and the loop variable, for one value of that; None when it has more in it."""
    kind = type(e).__name__
    if kind == "IntImm":
        return int(e.value)
    if kind == "Var":
        if e.same_as(loop_var):
            return value
        return _index(bound[e], loop_var, value, bound) if e in bound else None
    if kind in ("Add", "Sub", "Mul"):
        a, b = _index(e.a, loop_var, value, bound), _index(e.b, loop_var, value, bound)
        if a is None or b is None:
            return None
        return a + b if kind == "Add" else a - b if kind == "Sub" else a * b
    return None
