"""PrimFunc -> (lowered device functions, launch plan).  With :mod:`emulator.translate` and :mod:`emulator.tvm_repairs` all that knows TVM.

The pipeline is TVM's own (``tvm.tirx.compilation_pipeline.tirx_pipeline``), so the emulator executes exactly the
program that the CUDA code generator would print: real descriptors, swizzles and addresses included.

Three small repairs keep the learner's own words in the lowered program:

* the expansion of a tile primitive (``Tx.copy_async``, ``Tx.gemm_async`` ...) gets the learner's source span;
* ``IfThenElse`` and ``For`` without a span borrow the one of their condition or first statement;
* barriers built by ``TMABar``/``TCGen05Bar``/``Pipeline`` keep the name of the variable that holds them
  (:mod:`emulator.tvm_repairs`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from emulator.checks.findings import SourceLocation
from emulator.errors import LoweringError
from emulator.tvm_import import import_tvm

tvm = import_tvm()

from emulator import tvm_repairs  # noqa: E402


@dataclass(frozen=True)
class NamedRange:
    """A shared-memory buffer as the learner declared it: ``[start, stop)`` bytes from the base of the dynamic pool."""

    name: str
    start: int
    stop: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Lowered:
    """One lowered kernel launch.

    Attributes:
        name: the learner's function name.
        host: the host function (argument checks, tensor maps, launches).
        devices: device functions by name.
        smem_names: declared shared-memory buffers (before lowering folds the offsets away).
        tmem_names: declared tensor-memory buffers: (name, first column or None when dynamic, columns).
        arch: ``sm_100a`` or ``sm_90a``.
    """

    name: str
    host: Any
    devices: dict[str, Any]
    smem_names: list[NamedRange]
    tmem_names: list[tuple[str, int | None, int]]
    arch: str
    user_files: set[str] = field(default_factory=set)


_TVM_DIR = tvm.__path__[0]


def fields_of(node: Any) -> tuple[str, ...]:
    """Names of the reflected fields of a TVM object, base classes included."""
    cls = type(node)
    cached = _FIELDS.get(cls)
    if cached is None:
        names: list[str] = []
        for base in cls.__mro__:
            info = base.__dict__.get("__tvm_ffi_type_info__")
            if info is not None:
                names += [f.name for f in info.fields]
        cached = _FIELDS[cls] = tuple(names)
    return cached


_FIELDS: dict[type, tuple[str, ...]] = {}
_SKIP = {"span", "ty", "layout", "dtype", "annotations", "attrs"}


class Tree:
    """Walks over IR that does not change meanwhile; remembers the children of each node, which TVM takes long to give."""

    def __init__(self) -> None:
        self._children: dict[int, tuple[Any, tuple[Any, ...]]] = {}  # handle -> node (kept alive), children

    def walk(self, node: Any) -> Iterator[Any]:
        """Pre-order walk over every IR node below ``node`` (types, spans and layouts excluded)."""
        known = self._children
        pending = _nodes(node)[::-1]
        while pending:
            node = pending.pop()
            yield node
            handle = node.__chandle__()
            entry = known.get(handle)
            if entry is None:
                children = [child for name in _walked(node) for child in _nodes(getattr(node, name))]
                entry = known[handle] = (node, tuple(reversed(children)))
            pending += entry[1]


def walk(node: Any) -> Iterator[Any]:
    """Pre-order walk over every IR node below ``node``, once."""
    return Tree().walk(node)


def _nodes(value: Any) -> list[Any]:
    """The IR nodes that a field holds."""
    cls = type(value)
    if cls in _SEQUENCES:
        return [node for item in value for node in _nodes(item)]
    return [value] if hasattr(cls, "__chandle__") else []


_SEQUENCES = frozenset((list, tuple, tvm.ir.Array))
_WALKED: dict[type, tuple[str, ...]] = {}


def _walked(node: Any) -> tuple[str, ...]:
    """The fields that a walk descends into."""
    names = _WALKED.get(type(node))
    if names is None:
        names = _WALKED[type(node)] = tuple(name for name in fields_of(node) if name not in _SKIP)
    return names


# ---------------------------------------------------------------------------------------------- source locations


def span_chain(span: Any) -> list[tuple[str, int]]:
    """(file, line) pairs of a Span or SequentialSpan, outermost first."""
    if span is None:
        return []
    if type(span).__name__ == "SequentialSpan":
        return [pair for inner in span.spans for pair in span_chain(inner)]
    return [(str(span.source_name.name), int(span.line))]


def learner_location(span: Any) -> SourceLocation | None:
    """The learner's line, else None.

    The chain of a statement in a ``T.inline`` helper starts at the call and ends inside TVM. Its location is the line in
    the helper when that stands in the same file as the call, so that every statement of a helper has its own line.
    """
    chain = [(file, line) for file, line in span_chain(span) if not file.startswith(_TVM_DIR) and line > 0]
    if not chain:
        return None
    file, line = [pair for pair in chain if pair[0] == chain[0][0]][-1]
    return SourceLocation(file, line)


def _set_field(node: Any, name: str, value: Any) -> None:
    """Set a reflected field of an immutable TVM node that nobody else holds yet."""
    for base in type(node).__mro__:
        info = base.__dict__.get("__tvm_ffi_type_info__")
        if info is None:
            continue
        for f in info.fields:
            if f.name == name:
                f.setter(node, value)
                return


def _stamp(func: Any, span: Any) -> None:
    """Give every statement of a tile primitive's expansion the span of the call that the learner wrote."""
    from tvm.ir import SequentialSpan

    for node in walk(func.body):
        if isinstance(node, tvm.tirx.Stmt):
            old = node.span
            if span is not None:
                chain = [span] if old is None else [span, old]
                flat: list[Any] = []
                for item in chain:
                    flat += list(item.spans) if type(item).__name__ == "SequentialSpan" else [item]
                _set_field(node, "span", SequentialSpan(flat) if len(flat) > 1 else flat[0])


@contextlib.contextmanager
def _tile_primitive_spans() -> Iterator[None]:
    """While lowering, wrap TVM's tile-primitive dispatcher so that expansions keep the learner's line."""
    from tvm.tirx.operator.tile_primitive import dispatcher

    original = dispatcher.run_dispatch

    def dispatch(op_call: Any, sctx: Any) -> Any:
        try:
            result = original(op_call, sctx)
        except Exception as error:
            _LAST_DISPATCH.append((learner_location(op_call.span), str(op_call.op.name), error))
            raise
        if result is not None:
            _stamp(result, op_call.span)
        return result

    dispatcher.run_dispatch = dispatch
    try:
        yield
    finally:
        dispatcher.run_dispatch = original


_LAST_DISPATCH: list[tuple[SourceLocation | None, str, BaseException]] = []


tvm_repairs.install()


# ---------------------------------------------------------------------------------------------- lowering


def _const(expr: Any) -> int | None:
    return int(expr.value) if type(expr).__name__ == "IntImm" else None


def _itemsize_bits(dtype: Any) -> int:
    return tvm.DataType(str(dtype)).bits * tvm.DataType(str(dtype)).lanes


def _declared_buffers(func: Any) -> tuple[list[NamedRange], list[tuple[str, int | None, int]]]:
    """Names and extents of SMEM and TMEM buffers, read before lowering folds them into indices."""
    smem: list[NamedRange] = []
    tmem: list[tuple[str, int | None, int]] = []
    for node in walk(func.body):
        if type(node).__name__ != "DeclBuffer":
            continue
        ty = node.buffer.ty
        scope = str(ty.storage_scope)
        shape = tuple(_const(s) or 0 for s in ty.shape)
        bits = _itemsize_bits(ty.dtype)
        count = 1
        for s in shape:
            count *= s
        if scope.startswith("shared"):
            first = _const(ty.elem_offset)
            if first is not None and type(node.data).__name__ == "Call":
                start = first * bits // 8
                smem.append(
                    NamedRange(
                        str(node.buffer.name), start, start + max(1, count * bits // 8), str(ty.dtype), shape
                    )
                )
        elif scope == "tmem":
            addr = _const(ty.allocated_addr[0]) if len(ty.allocated_addr) else None
            columns = max(1, (count * bits // 32) // 128) if len(shape) else 1
            tmem.append((str(node.buffer.name), addr, columns))
    return smem, tmem


def _dispatch_reasons(text: str) -> str:
    """TVM's dispatch error is a table with a traceback per variant; keep each variant's reason."""
    reasons: dict[str, str] = {}
    variant = ""
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) != 2 or cells[0] == "Variant" or set(cells[1]) <= {"-", "+"}:
            continue
        if cells[0]:
            variant = cells[0].split(" ")[0]
            reasons[variant] = re.sub(r"^\w+ [\u2014-] (\w+(Error|Exception|Fail\w*): )?", "", cells[1])
    if not reasons:
        return text.strip().splitlines()[0] if text.strip() else "no reason given"
    variants: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        variants.setdefault(re.sub(r"^rejected: (\w+ \u2014 )?", "", reason), []).append(name)
    # A variant that has to be asked for by name is no reason why the others do not fit.
    telling = {
        reason: names for reason, names in variants.items() if "requires explicit dispatch" not in reason
    }
    return "; ".join(
        reason if len(telling or variants) == 1 else f"{', '.join(names)}: {reason}"
        for reason, names in (telling or variants).items()
    )


def _diagnose(error: BaseException) -> tuple[str, SourceLocation | None]:
    """Message and learner's line of an error raised inside TVM's pipeline."""
    location: SourceLocation | None = None
    text = str(error).strip()
    if _LAST_DISPATCH:
        location, op, inner = _LAST_DISPATCH[-1]
        return f"TVM cannot lower `{op.rsplit('.', 1)[-1]}` here: {_dispatch_reasons(str(inner))}", location
    reason = text.split("Error in pass:")[0]  # what follows prints the program
    lines = [ln for ln in reason.splitlines() if ln.strip()] or [type(error).__name__]
    message = next((ln for ln in reversed(lines) if "Error" in ln or "Check failed" in ln), lines[-1])
    message = re.sub(r"^.*?Check failed: .*? is false: ", "", message.strip())
    return f"TVM rejected the kernel: {re.sub(r'^[A-Z][A-Za-z]*Error: ', '', message)}", location


def lower(func: Any, arch: str = "sm_100a") -> Lowered:
    """Lower ``func`` through TVM's TIRx pipeline for a CUDA target of ``arch``.

    Args:
        func: a ``tvm.tirx.PrimFunc`` (or an object with a ``.func`` attribute that is one).
        arch: ``"sm_100a"`` (B200) or ``"sm_90a"`` (H200).

    Raises:
        LoweringError: not a PrimFunc, or TVM rejects it; the message is TVM's own, at the learner's line.
    """
    func = getattr(func, "func", func)
    if not isinstance(func, tvm.tirx.PrimFunc):
        raise LoweringError(f"expected a tvm.tirx.PrimFunc, got {type(func).__name__}")
    smem, tmem = _declared_buffers(func)
    target = tvm.target.Target({"kind": "cuda", "arch": arch}).with_host("llvm")
    _LAST_DISPATCH.clear()
    try:
        with target, _tile_primitive_spans():
            module = tvm.tirx.transform.BindTarget(target)(tvm.IRModule({"main": func}))
            module = tvm.tirx.compilation_pipeline.tirx_pipeline()[0](module)
    except Exception as error:
        message, location = _diagnose(error)
        raise LoweringError(message, location) from error
    host, devices = None, {}
    for fn in module.functions.values():
        if int(fn.attrs["calling_conv"]) == 2:
            devices[str(fn.attrs["global_symbol"])] = fn
        else:
            host = fn
    if host is None or not devices:
        raise LoweringError("the function contains no kernel: write T.device_entry() as its first statement")
    name = str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else "kernel"
    return Lowered(name, host, devices, smem, tmem, arch)
