"""PrimFunc -> JSON text -> PrimFunc.

The JSON is TVM's own graph format, read by TVM's own loader. It is written here because TVM 0.27's writer
crashes on every object whose span is unset. Together with emulator/lowering.py this is all that knows TVM's
inside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

# Kinds that TVM stores as their name instead of their fields.
_BY_NAME = ("ir.SourceName", "ir.Op", "tirx.Axis")
# Kinds that a kernel can consist of. Anything else in a submission's JSON is refused before TVM sees it.
_PLAIN = ("None", "bool", "int", "float", "DataType", "ffi.String", "ffi.Array", "ffi.Map")
_PREFIXES = ("ir.", "prim.", "tirx.", "s_tir.", "relax.")
_KIND_INT, _KIND_BOOL, _KIND_FLOAT, _KIND_DTYPE = 1, 2, 3, 5  # tvm_ffi static type indices


class NotAKernel(ValueError):
    """The JSON is not that of a kernel."""


def dump(prim_func: Any) -> str:
    """The graph JSON of a PrimFunc; shared nodes stay shared, spans are kept.

    Raises:
        NotAKernel: it holds something that a kernel cannot consist of, e.g. a loaded module.
    """
    import tvm
    import tvm_ffi

    nodes: list[dict[str, Any]] = []
    index: dict[Any, int] = {}
    alive: list[Any] = []  # keeps wrappers alive, so that a handle stands for one object

    def add(key: Any, node: dict[str, Any]) -> int:
        nodes.append(node)
        index[key] = len(nodes) - 1
        return index[key]

    def field(value: Any, kind: int) -> Any:
        """A field of a plain C++ type stands inline, everything else as a node number."""
        if kind == _KIND_DTYPE:
            return str(value)
        if kind in (_KIND_INT, _KIND_BOOL, _KIND_FLOAT) and isinstance(value, bool | int | float):
            return value
        return visit(value)

    def visit(value: Any) -> int:
        plain = _plain_node(value, tvm_ffi.dtype)
        if plain is None and not isinstance(value, tvm_ffi.Object):
            raise NotAKernel(f"the kernel holds a {type(value).__name__}")
        # repr, because 0.0 and -0.0 are equal as numbers
        key = (plain["type"], repr(plain.get("data"))) if plain else value.__chandle__()
        if key in index:
            return index[key]
        if plain:
            return add(key, plain)
        alive.append(value)
        if isinstance(value, tvm_ffi.Array):
            return add(key, {"type": "ffi.Array", "data": [visit(entry) for entry in value]})
        if isinstance(value, tvm_ffi.Map):
            return add(key, {"type": "ffi.Map", "data": [visit(x) for pair in value.items() for x in pair]})
        type_key, fields = _fields(type(value))
        if not type_key.startswith(_PREFIXES):
            raise NotAKernel(f"the kernel holds a {type_key}")
        if type_key in _BY_NAME:
            return add(key, {"type": type_key, "data": str(value.name)})
        return add(key, {"type": type_key, "data": {n: field(get(value), kind) for n, get, kind in fields}})

    root = visit(prim_func)
    return json.dumps({"root_index": root, "nodes": nodes, "metadata": {"tvm_version": tvm.__version__}})


def load(text: str) -> Any:
    """The object that `dump` wrote.

    Raises:
        NotAKernel: the text is no such JSON, or names kinds that a kernel cannot consist of.
    """
    import tvm

    try:
        graph = json.loads(text)
        kinds = {node["type"] for node in graph["nodes"]}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotAKernel(f"no graph of nodes ({error})") from None
    if max(map(len, _names(graph["nodes"])), default=0) > LONGEST_NAME:
        raise NotAKernel(f"a name of more than {LONGEST_NAME} characters")
    strange = sorted(str(k) for k in kinds if k not in _PLAIN and not str(k).startswith(_PREFIXES))
    if strange:
        raise NotAKernel(f"nodes of kind {', '.join(strange[:3])}")
    try:
        return tvm.ir.load_json(text)
    except Exception as error:  # TVM raises whatever its C++ side names
        raise NotAKernel(" ".join(str(error).split())[-300:]) from None


LONGEST_NAME = 1000  # reports repeat names, and an answer has to fit in one frame


def _names(nodes: list[Any]) -> Iterator[str]:
    """What variables, buffers, functions and source files are called."""
    for node in nodes:
        data = node.get("data")
        if node["type"] in _BY_NAME:
            yield str(data)
        elif isinstance(data, dict):
            for field in ("name", "name_hint"):
                value = data.get(field)
                if isinstance(value, int) and 0 <= value < len(nodes):
                    value = nodes[value].get("data")
                if isinstance(value, str):
                    yield value


def _plain_node(value: Any, dtype: Any) -> dict[str, Any] | None:
    if value is None:
        return {"type": "None"}
    if isinstance(value, bool):
        return {"type": "bool", "data": bool(value)}
    if isinstance(value, int):
        return {"type": "int", "data": int(value)}
    if isinstance(value, float):
        return {"type": "float", "data": float(value)}
    if isinstance(value, dtype):
        return {"type": "DataType", "data": str(value)}
    if isinstance(value, str):
        return {"type": "ffi.String", "data": str(value)}
    return None


_cache: dict[type, tuple[str, list[tuple[str, Any, int]]]] = {}


def _fields(kind: type) -> tuple[str, list[tuple[str, Any, int]]]:
    """(type key, [(name, getter, static type index)]) of a TVM class, base classes first."""
    if kind not in _cache:
        info: Any = getattr(kind, "__tvm_ffi_type_info__", None)
        if info is None:
            raise NotAKernel(f"the kernel holds a {kind.__name__}")
        type_key: str = info.type_key
        fields: list[tuple[str, Any, int]] = []
        while info is not None:
            fields = [(f.name, f.getter, f.field_static_type_index) for f in info.fields or ()] + fields
            info = info.parent_type_info
        _cache[kind] = (type_key, fields)
    return _cache[kind]
