"""The builder process: runs a submission, calls its builder, returns the PrimFunc as JSON.

Nothing in this process is worth stealing or changing: it holds no inputs, no reference, no tolerance and no
    grader state, and what it sends is only data for the next process. Standard input brings one frame:

    {"source": path, "functions": [{"name": ..., "domain": n}, ...], "layouts": [{"name": ..., "params": {...}}, ...],
     "builders": [{"name": ..., "params": {...}}, ...], "memory_mib": n, "cpu_seconds": s, "writable": folder,
     "outside": namespaces of the grader}

The channel carries {"stage": "ready", "isolation": what is in force} when the watchdog may start counting, then for each function one of

    {"stage": "table"} + f(0) to f(domain - 1), int64      {"stage": "no_table", "kind": ..., "message": ..., "line": ...}

which is computed once the whole submission has run, then, where layouts are asked for,

    {"stage": "layouts", "layouts": [{"shard": ..., "replica": ..., "offset": ...} or {"kind": ..., ...}, ...]}

with the numbers that each TileLayout consists of, or why there is none, and for each builder one of

    {"stage": "built"} + graph JSON                        {"stage": "failed", "kind": ..., "message": ..., "line": ...}
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autograder.runner.frames import encode, read_frame

MODULE = "kernel"


def main(channel: int) -> None:
    os.set_inheritable(channel, False)
    frame = read_frame(sys.stdin.buffer)
    if frame is None:
        return
    isolation = _confine(frame.header)
    ahead = frame.header.get("stage") == "warm"  # started ahead of the grade that will want it
    _load(use_once=ahead)
    if ahead:
        frame = read_frame(sys.stdin.buffer)
        if frame is None:
            return
    request = frame.header
    _bound(request)
    _send(channel, encode({"stage": "ready", "isolation": isolation}))
    try:
        namespace = _import(request["source"])
        for function in request["functions"]:
            _send(channel, _table(namespace, function["name"], function["domain"], request["source"]))
        if request["layouts"]:
            layouts = [_layout(namespace, request["source"], **wanted) for wanted in request["layouts"]]
            _send(channel, encode({"stage": "layouts", "layouts": layouts}))
        for builder in request["builders"]:
            _send(channel, _built(namespace, builder["name"], builder["params"], request["source"]))
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the submission included
        _send(channel, encode({"stage": "failed", **_describe(error, request["source"])}))
    os._exit(0)


class Refused(Exception):
    """The submission is not what the exercise asks for. `kind` names how."""

    def __init__(self, kind: str, **details: Any) -> None:
        super().__init__(kind)
        self.kind, self.details = kind, details


def _confine(request: dict[str, Any]) -> dict[str, bool]:
    """Confine this process. TVM starts threads, and some confinements hold for the calling thread and those that it starts,
    so this comes before TVM is imported.
    """
    from autograder.runner.confinement import confine
    from autograder.runner.sandbox import OWN_FILES, PACKAGE_ROOT

    own = [*(PACKAGE_ROOT / name for name in OWN_FILES), Path(request["source"]).parent]
    return confine(own, Path(request["writable"]), request["outside"])


def _load(use_once: bool) -> None:
    """Load what every kernel imports, before any clock starts; `use_once`: and let TVM parse a kernel of the grader's own."""
    from emulator import tvm_repairs
    from emulator.tvm_import import import_tvm

    import_tvm()
    from tvm.script import tirx  # noqa: F401

    tvm_repairs.install()
    if use_once:
        from autograder.runner import warm_up

        warm_up.build()


def _bound(request: dict[str, Any]) -> None:
    """Bound what the submission may use, from now on."""
    from autograder.runner import limits

    limits.set_resource_limits(request["memory_mib"], request["cpu_seconds"])
    sys.setrecursionlimit(10_000)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)


def _built(namespace: dict[str, Any], name: str, params: dict[str, Any], source: str) -> bytes:
    """A PrimFunc, or why there is none: the builder may still be called with other parameters."""
    try:
        return _build(namespace, name, params)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the submission included
        return encode({"stage": "failed", **_describe(error, source)})


def _build(namespace: dict[str, Any], name: str, params: dict[str, Any]) -> bytes:
    """Call a builder of the submission, encode its PrimFunc."""
    result = _find_builder(namespace, name, params)(**params)

    import tvm

    if type(result) is not tvm.tirx.PrimFunc:
        raise Refused("not_a_prim_func", returned=_type_name(result))
    from autograder.runner.ir_json import NotAKernel, dump

    try:
        return encode({"stage": "built"}, dump(result).encode())
    except NotAKernel as error:
        raise Refused("not_a_kernel", message=str(error)) from None


def _table(namespace: dict[str, Any], name: str, domain: int, source: str) -> bytes:
    """A function of the submission at 0 to domain - 1. What goes wrong here does not stop the builders."""
    import operator
    from array import array

    argument = None
    try:
        function = namespace.get(name)
        if function is None:
            raise Refused("function_missing")
        if not callable(function):
            raise Refused("function_not_callable", returned=_type_name(function))
        values = array("q")
        for argument in range(domain):
            value = function(argument)
            try:
                values.append(operator.index(value))
            except (TypeError, OverflowError):
                raise Refused("no_integer", returned=repr(value)[:80]) from None
    except (Exception, SystemExit) as error:
        return encode({"stage": "no_table", "argument": argument, **_describe(error, source)})
    return encode({"stage": "table"}, values.tobytes())


def _layout(namespace: dict[str, Any], source: str, name: str, params: dict[str, int]) -> dict[str, Any]:
    """The numbers of the TileLayout that a function of the submission returns, or why there are none."""
    try:
        return _numbers(_find_builder(namespace, name, params)(**params))
    except BaseException as error:  # the other layouts and the kernel are still looked at
        return _describe(error, source)


def _numbers(layout: Any) -> dict[str, Any]:
    from tvm.tirx.layout import TileLayout

    if layout is None:
        raise Refused("empty")
    if type(layout) is not TileLayout:
        raise Refused("not_a_layout", returned=_type_name(layout))
    shard, replica = (
        [[_integer(part.extent), _integer(part.stride), str(part.axis.name)] for part in iters]
        for iters in (layout.shard, layout.replica)
    )
    offset = [[str(axis.name), _integer(value)] for axis, value in layout.offset.items()]
    return {"shard": shard, "replica": replica, "offset": offset}


def _integer(value: Any) -> int:
    import tvm

    if not isinstance(value, int | tvm.tirx.IntImm):
        raise Refused("symbolic", message=str(value)[:200])
    return int(value)


def _import(source: str) -> dict[str, Any]:
    """Run the snapshot as a module with a file of its own, so that TVM's parser finds the source lines."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(MODULE, source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return vars(module)


def _find_builder(namespace: dict[str, Any], name: str, params: dict[str, Any]) -> Callable[..., Any]:
    import inspect

    builder = namespace.get(name)
    if builder is None:
        own = [n for n, v in namespace.items() if callable(v) and getattr(v, "__module__", None) == MODULE]
        raise Refused("builder_missing", defined=own[:50])
    if not callable(builder):
        raise Refused("builder_not_callable", returned=_type_name(builder))
    try:
        inspect.signature(builder).bind(**params)
    except TypeError as error:
        line = getattr(getattr(builder, "__code__", None), "co_firstlineno", None)
        signature = str(inspect.signature(builder))
        raise Refused("builder_signature", signature=signature, message=str(error), line=line) from None
    except ValueError:
        pass  # no signature to look at; the call will tell
    found: Callable[..., Any] = builder
    return found


def _describe(error: BaseException, source: str) -> dict[str, Any]:
    """What happened and at which line of the submission, as plain data."""
    if isinstance(error, Refused):
        return {"kind": error.kind, **error.details}
    if isinstance(error, SystemExit):
        return {"kind": "exit", "message": str(error.code)[:200], "line": _line(error, source)}
    message = _text(error)
    if type(error).__name__ == "DiagnosticError":
        return {"kind": "rejected", "message": message, "line": _line(error, source)}
    return {"kind": "raised", "type": type(error).__name__, "message": message, "line": _line(error, source)}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:20_000]
    except BaseException:
        return ""


def _line(error: BaseException, source: str) -> int | None:
    """The innermost line of the submission in the traceback."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == source:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _send(channel: int, data: bytes) -> None:
    view = memoryview(data)
    with contextlib.suppress(BrokenPipeError):
        while view:
            view = view[os.write(channel, view) :]
