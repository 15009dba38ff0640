"""Lowered TIR -> executable warp programs: one generated Python generator function over lanes.

A strand (some warps of a CTA in lockstep) runs one instance of the generated function.  Code comes in three modes:

*vector*   every lane of the strand is active;
*masked*   the body of a branch that only some lanes take: a mask variable (None when all take it) guards assignments;
*scalar*   the body of a branch that picks lanes one by one (``elect_sync``, ``lane == 0``): plain Python scalars.

Each body is emitted once.  Statements that block (barriers) are ``yield from`` calls into the scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from emulator import lanes, packed_casts
from emulator.checks.findings import SourceLocation
from emulator.errors import EmulatorError, LoweringError, UnsupportedInstruction
from emulator.instructions import REGISTRY, Instruction, Mods
from emulator.lowering import Lowered, Tree, fields_of, learner_location, tvm
from emulator.machine.address import POOL_BASE

U, W, V = 0, 1, 2  # the same in the CTA / the same in each warp / may differ by lane


@dataclass
class Val:
    """A compiled expression: Python code, TIR dtype, how it may vary, whether it names a lane, whether it is a copy."""

    code: str
    dtype: str
    kind: int = U
    lane: bool = False
    fresh: bool = True
    ref: LocalRefCode | None = None
    elem: str = ""  # element dtype of a pointer
    span: tuple[int, int] | None = None  # of an index: least and greatest value, where known


@dataclass
class LocalRefCode:
    """``&local[index]`` at translation time."""

    array: LocalArray
    dtype: str
    index: str


@dataclass
class Scalar:
    """A TIR variable or one-element local that lives in a Python variable."""

    name: str
    dtype: str
    kind: int
    lane: bool = False
    depth: int = 0
    region: int = 0
    elem: str = ""
    once: bool = False  # assigned exactly once, next to its declaration: as good as a Bind
    unwritten: int = -1  # nothing has assigned it so far: the number of loops around its declaration


@dataclass
class LocalArray:
    """A per-thread array: storage ``uint8[words, L, word]`` plus one view per dtype, ``dtype[words, L, word/size]``."""

    name: str
    words: int
    word: int
    nbytes: int
    label: str  # as the learner wrote it
    dtypes: set[str] = field(default_factory=set)

    def view(self, dtype: str) -> str:
        self.dtypes.add(dtype)
        return f"{self.name}_{dtype}"


@dataclass
class LocalView:
    array: LocalArray
    dtype: str


@dataclass
class Shared:
    """A buffer in shared memory: ``base`` is code for its window address (own CTA) or for a generic pointer."""

    dtype: str
    base: str
    generic: bool
    kind: int = U


@dataclass
class Global:
    dtype: str
    pointer: str
    kind: int = U


@dataclass
class Loop:
    """A loop around the current statement.

    Attributes:
        mask: the mask its body starts with ("" when every lane is active).
        live: variable with the lanes that have not left the loop, "" as long as all lanes leave it together.
        go: variable with the lanes that are still in this round.
        left: places in its body so far where only some lanes leave the round.
    """

    mask: str
    live: str
    go: str
    left: int = 0


class LanesPart(Exception):
    """Only some lanes leave a loop that was translated for lanes that stay together."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self.loop = loop


@dataclass
class MapBytes:
    """A view of the bytes of a tensor map that is a kernel parameter."""

    dtype: str
    code: str


@dataclass
class Tmem:
    name: str


@dataclass(frozen=True)
class Operation:
    """A place of the program that touches memory or synchronises: the learner's line, the instruction, its buffers."""

    location: SourceLocation
    instruction: str
    names: tuple[str, ...]


@dataclass
class Program:
    """The translated kernel.

    Attributes:
        source: generated Python (for the curious and for debugging).
        main: the generator function ``main(t, args)``.
        sites: per site index the learner's location (None when TVM kept none) and a short text of the statement.
        role_key: ``(tid, block_idx, cluster_idx, args) -> [int array]``: warps with different rows do not run in lockstep.
        role_depends: which of ``block_idx`` and ``cluster_idx`` the rows depend on.
        smem_access: smallest generic shared-memory access in bytes.
        static_smem: bytes of statically allocated shared memory.
    """

    source: str
    main: Callable[..., Any]
    sites: list[tuple[SourceLocation | None, str]]
    line_sites: dict[int, int]
    role_key: Callable[..., Any] | None
    role_depends: tuple[bool, bool]
    params: list[tuple[str, str]]
    smem_access: int
    static_smem: int
    uses: set[str]
    stored_maps: set[str]
    written: set[str]
    grid_lanes: bool
    operations: tuple[Operation, ...]


def itemsize(dtype: str) -> int:
    """Bytes of one element of a TIR dtype (pointers 8)."""
    if dtype == "handle":
        return 8
    dt = tvm.DataType(dtype)
    return max(1, dt.bits * dt.lanes // 8)


def is_float(dtype: str) -> bool:
    return dtype in lanes.FLOATS


def int_info(dtype: str) -> tuple[int, bool]:
    """(bits, signed) of an integer dtype."""
    if dtype == "bool":
        return 1, False
    if dtype == "handle":
        return 64, True
    dt = tvm.DataType(dtype)
    return dt.bits, dtype.startswith("int")


_MATH = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "log10": "log10", "sqrt": "sqrt", "sin": "sin",
    "cos": "cos", "tan": "tan", "tanh": "tanh", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fabs": "abs",
    "abs": "abs", "nearbyint": "rint", "round": "rint", "sigmoid": None, "rsqrt": None, "erf": None, "atan": "arctan",
    "sinh": "sinh", "cosh": "cosh", "log1p": "log1p",
}  # fmt: skip

_PTX_OF_TVM = {
    "float16": "f16", "float32": "f32", "float64": "f64", "int8": "s8", "int16": "s16", "int32": "s32", "int64": "s64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "uint128": "b128", "bool": "pred",
}  # fmt: skip
# loads that a loop may repeat until they return another value (mbarrier.try_wait waits by itself)
_POLLS = ("tirx.ptx.ld", "tirx.ptx.atom", "tirx.ptx.mbarrier_test", "tirx.cuda.atomic", "tirx.cuda.ld")


def same_expression(a: Any, b: Any) -> bool:
    import tvm_ffi

    return bool(tvm_ffi.structural_equal(a, b))


def split_constant(e: Any) -> tuple[Any, int]:
    """(expression or None, constant) of an integer index ``expression + constant``."""
    kind = type(e).__name__
    if kind == "IntImm":
        return None, int(e.value)
    if kind == "Add" and type(e.b).__name__ == "IntImm":
        return e.a, int(e.b.value)
    return e, 0


def _role(code: str) -> str:
    """Generated code as it stands in the role function, which has no threads but ``tid``."""
    return re.sub(r"\bdivisor\(t(_\d+)?, ", "divisor(None, ", code.replace("t.tid", "tid"))


_DIVISIONS = ("Div", "Mod", "FloorDiv", "FloorMod")
_BINARY = {"Add": "+", "Sub": "-", "Mul": "*"}
_COMPARE = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


_READ_ONLY = (
    ".ld",
    "cp_async_ca",
    "cp_async_cg",
    "_g2s_",
    "prefetch",
    "mbarrier",
    "fence",
    "tcgen05",
    "wgmma",
    "ldmatrix",
    "bar_",
    "barrier",
)


def _may_write_global(name: str, tokens: tuple[str, ...]) -> bool:
    """Whether a PTX instruction can write global memory."""
    base = name.removeprefix("tirx.ptx.")
    if not base.startswith(("st", "atom", "red", "cp_", "multimem")):
        return False
    return not (base.startswith(("st", "atom", "red")) and any(tok.startswith("shared") for tok in tokens))


_MEMORY_OPS = re.compile(r"tirx\.ptx\.(ld|ldu|st|atom|red|cp_async_c[ag])(_|$)")


def _shared_access(name: str, tokens: tuple[str, ...]) -> int:
    """Bytes of one thread's access of a PTX load, store or atomic that may be to shared memory; 16 for anything else."""
    if not _MEMORY_OPS.match(name) or "global" in tokens and "shared" not in "".join(tokens):
        return 16
    sizes = [
        int(m.group(1)) // 8
        for tok in tokens
        if (m := re.fullmatch(r"[busf](8|16|32|64|128)|bf16|f16x2|bf16x2", tok)) and m.group(1)
    ]
    vector = next((int(tok[1:]) for tok in tokens if tok in ("v2", "v4", "v8")), 1)
    return max(
        1, min(16, min(sizes, default=4) * (vector if "atom" not in name and "red" not in name else 1))
    )


class Translator:
    """Translates one lowered device function; see :func:`translate`."""

    def __init__(self, lowered: Lowered, func: Any) -> None:
        self.lowered = lowered
        self.func = func
        self.walk = Tree().walk
        self.lines: list[tuple[int, str, int]] = []  # indent, text, site
        self.indent = 1
        self.env: dict[Any, Any] = {}
        self.names: dict[str, int] = {}
        self.consts: dict[str, Any] = {}
        self.sites: list[tuple[SourceLocation | None, str]] = []
        self.site = -1
        self.location: SourceLocation | None = None
        self.t = "t"
        self.mask: str | None = None
        self.depth = 0
        self.scalar: ScalarRegion | None = None
        self.regions = 0
        self.local_roots: dict[Any, Any] = {}
        self.local_word: dict[Any, int] = {}
        self.addressed: set[Any] = set()
        self.pointed: set[Any] = set()  # local buffers that something may write through a pointer
        self.ranges: dict[Any, tuple[int, int]] = {}  # of variables whose least and greatest value is known
        self.stores: dict[Any, int] = {}
        self.sibling_stores: set[Any] = set()
        self.aliases: dict[Any, list[Any]] = {}
        self.roles: list[str] = []
        self.role_lines: list[tuple[str, str]] = []  # name, code
        self.role_path: list[str] = []  # conditions of the enclosing branches
        self.role_names: set[str] = set()
        self.smem_access = 16
        self.static_smem = 0
        self.uses: set[str] = set()
        self.loops: list[Loop] = []
        self.loop_step = ""  # what ends a round of the innermost loop
        self.returned = 0  # returns so far that only some lanes take
        self.tail = True  # nothing of the function follows the current statement
        self.maps_as_memory = (
            False  # the address of a tensor map is one of the bytes that are loaded or counted from
        )
        self.operand_kind = U  # how the operands of the current instruction may vary
        self.stored_maps: set[str] = set()
        self.written: set[str] = set()
        self.grid_lanes = False
        self.operations: dict[tuple[SourceLocation, str], dict[str, None]] = {}
        self.touched: dict[str, None] = {}
        self.pointer_of: dict[str, str] = {}
        self.derived: dict[
            str, dict[str, None]
        ] = {}  # pointer or descriptor variable -> buffers it points into

    # ------------------------------------------------------------------------------------------ small helpers

    def emit(self, text: str) -> None:
        self.lines.append((self.indent, text, self.site))

    def fresh_name(self, base: str) -> str:
        base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in base)[:40]
        base = base if base and not base[0].isdigit() else f"v{base}"
        n = self.names.get(base, 0)
        self.names[base] = n + 1
        return f"{base}_{n}"

    def const(self, base: str, value: Any) -> str:
        name = f"K{len(self.consts)}_{base}"
        self.consts[name] = value
        return name

    def note(self, op: str | None) -> None:
        """Remember that the current statement executes ``op`` on the buffers it named."""
        if op is not None and self.location is not None:
            self.operations.setdefault((self.location, op), {}).update(self.touched)

    def unsupported(self, what: str, why: str = "") -> UnsupportedInstruction:
        return UnsupportedInstruction(what, self.location, why)

    @contextmanager
    def block(self) -> Any:
        self.indent += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.emit("pass")
        self.indent -= 1

    def set_site(self, span: Any, text: str) -> None:
        location = learner_location(span) or self.location
        self.location = location
        if self.sites and self.sites[-1] == (location, text):
            self.site = len(self.sites) - 1
            return
        self.sites.append((location, text))
        self.site = len(self.sites) - 1

    # ------------------------------------------------------------------------------------------ prepass

    def prepass(self) -> None:
        """Local arrays: root of every view, the widest element among the views, and whose address is taken."""
        for node in self.walk(self.func.body):
            kind = type(node).__name__
            if kind == "AllocBuffer" and str(node.buffer.ty.storage_scope) == "local":
                self.local_roots[node.buffer] = node.buffer
                self.local_word[node.buffer] = itemsize(str(node.buffer.ty.dtype))
                self.aliases[node.buffer] = []
            elif kind == "DeclBuffer" and str(node.buffer.ty.storage_scope) == "local":
                root = self._root_of(node.data)
                if root is not None:
                    self.local_roots[node.buffer] = root
                    self.aliases[root].append(node.buffer)
                    self.local_word[root] = max(self.local_word[root], itemsize(str(node.buffer.ty.dtype)))
            elif kind == "SeqStmt":
                self._note_single_assignments(node)
            elif kind == "Call":
                self._note_addresses(node)
            if kind == "BufferStore":
                self.stores[node.buffer] = self.stores.get(node.buffer, 0) + 1
            elif kind == "Call":
                self._note_pointers(node)
                for load in self._destinations(node):
                    self.stores[load.source] = self.stores.get(load.source, 0) + 1

    def independent_threads(self) -> bool:
        """Whether no thread depends on another one: only arithmetic, global loads and stores, no warp or CTA operation.

        Such a kernel may run many CTAs in one strand.
        """
        for node in self.walk(self.func.body):
            kind = type(node).__name__
            if kind == "AttrStmt" and "luster" in str(getattr(node.node, "thread_tag", "")):
                return False
            if kind in ("AllocBuffer", "DeclBuffer") and str(node.buffer.ty.storage_scope) not in (
                "local",
                "global",
                "",
            ):
                return False
            if kind != "Call":
                continue
            name = str(getattr(node.op, "name", ""))
            entry = REGISTRY.get(name)
            if name.startswith("tirx.ptx."):
                tokens = [str(a.value) for a in node.args if type(a).__name__ == "StringImm"]
                plain = name.rsplit(".", 1)[-1] in ("ld", "st", "ld_vec", "st_vec") and "global" in tokens
                if not (plain and not {"acquire", "release", "relaxed", "volatile"} & set(tokens)) and not (
                    entry is not None and entry.pure
                ):
                    return False
            elif name in ("tirx.cuda.func_call", "tirx.cuda.elect_sync", "tirx.cuda.thread_rank") or (
                (not entry.pure) if entry is not None else name.startswith("tirx.cuda.")
            ):
                return False
        return True

    def _destinations(self, call: Any) -> list[Any]:
        """Lvalues that a call assigns."""
        name = str(getattr(call.op, "name", ""))
        entry = REGISTRY.get(name)
        if entry is not None and entry.destination is not None:
            target = call.args[entry.destination]
            load = target.args[0] if type(target).__name__ == "Call" else target
            return [load] if type(load).__name__ == "TensorLoad" else []
        if name.startswith("tirx.ptx."):
            # a PTX instruction may write any register operand that is an lvalue; over-counting only costs speed
            return [a for a in call.args if type(a).__name__ == "TensorLoad"]
        return []

    def _note_single_assignments(self, seq: Any) -> None:
        """One-element locals that are declared and assigned in the same statement list."""
        declared = {s.buffer for s in seq.seq if type(s).__name__ == "AllocBuffer"}
        for s in seq.seq:
            if type(s).__name__ == "BufferStore" and s.buffer in declared:
                self.sibling_stores.add(s.buffer)
            elif type(s).__name__ == "Evaluate" and type(s.value).__name__ == "Call":
                self.sibling_stores.update(
                    load.source for load in self._destinations(s.value) if load.source in declared
                )

    def _note_pointers(self, call: Any) -> None:
        """Buffers that a call may write, or makes a pointer to."""
        name = str(getattr(call.op, "name", ""))
        if name in ("tirx.address_of", "tirx.buffer_data") or name.startswith(("tirx.ptx.", "tirx.cuda.")):
            self.pointed.update(getattr(a, "source", a) for a in call.args)

    def never_written(self, buffer: Any) -> bool:
        """Whether nothing in the whole kernel writes a local buffer."""
        return (
            self.local_roots.get(buffer) is not None
            and not self.stores.get(buffer)
            and buffer not in self.pointed
            and not self.aliases.get(buffer, True)
        )

    def _note_addresses(self, call: Any) -> None:
        name = str(getattr(call.op, "name", ""))
        entry = REGISTRY.get(name)
        for i, arg in enumerate(call.args):
            if entry is not None and entry.destination == i:
                continue
            if type(arg).__name__ == "Call" and str(getattr(arg.op, "name", "")) == "tirx.address_of":
                load = arg.args[0]
                if type(load).__name__ == "TensorLoad" and load.source in self.local_roots:
                    self.addressed.add(self.local_roots[load.source])
            if type(arg).__name__ == "Call" and str(getattr(arg.op, "name", "")) == "tirx.buffer_data":
                if arg.args[0] in self.local_roots:
                    self.addressed.add(self.local_roots[arg.args[0]])

    def _root_of(self, data: Any) -> Any:
        if type(data).__name__ == "Call":
            name = str(getattr(data.op, "name", ""))
            if name in ("tirx.buffer_data", "tirx.reinterpret", "tirx.address_of"):
                inner = data.args[0]
                if type(inner).__name__ == "TensorLoad":
                    inner = inner.source
                if type(inner).__name__ == "Call":
                    return self._root_of(inner)
                return self.local_roots.get(inner)
        return self.local_roots.get(data)

    # ------------------------------------------------------------------------------------------ variables

    def lookup(self, var: Any) -> Any:
        info = self.env.get(var)
        if info is None:
            raise self.unsupported(f"variable {var.name}", "it has no definition in the lowered kernel")
        return info

    def read(self, info: Scalar) -> Val:
        """Read a Python-variable-backed value in the current mode."""
        name, kind = info.name, info.kind
        if name in self.derived:
            self.touched.update(self.derived[name])
        if self.scalar is not None and info.region != self.scalar.id:
            name = self.scalar.capture(info)
            return Val(name, info.dtype, U, False, True, None, info.elem)
        if self.scalar is not None:
            return Val(name, info.dtype, U, False, True, None, info.elem)
        return Val(name, info.dtype, kind, info.lane, True, None, info.elem)

    def assign(self, info: Scalar, value: Val) -> None:
        """Assign to a mutable local in the current mode."""
        info.unwritten = -1
        code = value.code if value.fresh else f"copy({value.code})"
        if self.scalar is not None:
            if info.region != self.scalar.id:
                name = self.scalar.capture(info)
                self.scalar.written[info.name] = info
                self.emit(f"{name} = {code}")
            else:
                self.emit(f"{info.name} = {code}")
            return
        if info.once:
            info.kind, info.lane = value.kind, value.lane
        if self.mask is not None and info.depth < self.depth:
            self.emit(f"{info.name} = merge({self.mask}, {code}, {info.name})")
        else:
            self.emit(f"{info.name} = {code}")

    # ------------------------------------------------------------------------------------------ expressions

    def expr(self, e: Any) -> Val:
        method = getattr(self, "x_" + type(e).__name__, None)
        if method is None:
            raise self.unsupported(f"expression {type(e).__name__}")
        return method(e)

    def dtype_of(self, e: Any) -> str:
        text = str(e.ty)
        if "handle" in text or type(e.ty).__name__ == "PointerType":
            return "handle"
        return text if text else "void"

    def x_Var(self, e: Any) -> Val:
        info = self.lookup(e)
        if isinstance(info, Scalar):
            return self.read(info)
        if isinstance(info, Shared):
            return Val(
                info.base if info.generic else f"({self.t}.cta.shared_tag + {info.base})",
                "handle",
                info.kind,
                elem=info.dtype,
            )
        if isinstance(info, Global):
            return Val(info.pointer, "handle", info.kind, elem=info.dtype)
        if isinstance(info, LocalView):
            return Val("None", "handle", V, ref=LocalRefCode(info.array, info.dtype, "0"), elem=info.dtype)
        raise self.unsupported(f"variable {e.name}")

    def x_IntImm(self, e: Any) -> Val:
        dtype = self.dtype_of(e)
        value = int(e.value)
        if dtype == "bool":
            return Val(str(bool(value)), dtype)
        bits, signed = int_info(dtype)
        if not signed:
            value &= (1 << bits) - 1
        return Val(str(value) if value >= 0 else f"({value})", dtype)

    def x_FloatImm(self, e: Any) -> Val:
        dtype = self.dtype_of(e)
        if dtype not in lanes.FLOATS:
            raise self.unsupported(f"constant of dtype {dtype}")
        with np.errstate(over="ignore"):
            return Val(self.const("f", np.asarray(float(e.value)).astype(lanes.np_dtype(dtype))[()]), dtype)

    def x_StringImm(self, e: Any) -> Val:
        return Val(repr(str(e.value)), "string")

    def binary(self, e: Any, op: str) -> Val:
        saved, self.maps_as_memory = self.maps_as_memory, True
        a, b, dtype = self.expr(e.a), self.expr(e.b), self.dtype_of(e)
        self.maps_as_memory = saved
        kind, lane = max(a.kind, b.kind), a.lane or b.lane
        code = f"({a.code} {op} {b.code})"
        if dtype.startswith("uint"):
            bits, _ = int_info(dtype)
            if bits == 64:
                code = f"u64_op({a.code}, {b.code}, {op!r})"
            elif op != "+" or a.code != "0":
                code = f"({code} & {(1 << bits) - 1})"
        return Val(code, dtype, kind, lane)

    def x_Add(self, e: Any) -> Val:
        return self.binary(e, "+")

    def x_Sub(self, e: Any) -> Val:
        return self.binary(e, "-")

    def x_Mul(self, e: Any) -> Val:
        return self.binary(e, "*")

    def x_Div(self, e: Any) -> Val:
        a, b, dtype = self.expr(e.a), self.expr(e.b), self.dtype_of(e)
        op = f"fdiv({a.code}, {b.code})" if is_float(dtype) else f"truncdiv({a.code}, {self.divisor(e, b)})"
        return Val(op, dtype, max(a.kind, b.kind), a.lane or b.lane)

    def x_Mod(self, e: Any) -> Val:
        a, b, dtype = self.expr(e.a), self.expr(e.b), self.dtype_of(e)
        return Val(f"truncmod({a.code}, {self.divisor(e, b)})", dtype, max(a.kind, b.kind), a.lane or b.lane)

    def x_FloorDiv(self, e: Any) -> Val:
        a, b, dtype = self.expr(e.a), self.expr(e.b), self.dtype_of(e)
        # threadIdx.x // 32 no longer names a lane: it is the same in many
        return Val(f"({a.code} // {self.divisor(e, b)})", dtype, max(a.kind, b.kind))

    def divisor(self, e: Any, b: Val) -> str:
        """Code of the divisor of an integer division, checked at run time unless it cannot be zero."""
        return b.code if is_float(b.dtype) or not self.may_be_zero(e.b) else f"divisor({self.t}, {b.code})"

    def may_be_zero(self, e: Any) -> bool:
        span = self.bounds(e)
        return span is None or span[0] <= 0 <= span[1]

    def bounds(self, e: Any) -> tuple[int, int] | None:
        """Least and greatest value of an integer expression, where they are known at translation time."""
        kind = type(e).__name__
        if kind == "IntImm":
            return int(e.value), int(e.value)
        if kind == "Var":
            return self.ranges.get(e)
        if kind == "Cast" and str(e.ty) in ("int32", "int64", "uint32"):
            span = self.bounds(e.value)
            return span if span is not None and 0 <= span[0] and span[1] < 1 << 31 else None
        if kind not in ("Add", "Sub", "Mul", "Min", "Max", *_DIVISIONS):
            return None
        b = self.bounds(e.b)
        if kind == "FloorMod" and b is not None and b[0] == b[1] > 0:
            a = self.bounds(e.a)
            return a if a is not None and 0 <= a[0] and a[1] < b[0] else (0, b[0] - 1)
        a = self.bounds(e.a)
        if a is None or b is None:
            return None
        if kind in _DIVISIONS:
            if a[0] < 0 or b[0] != b[1] or b[0] <= 0:
                return None
            return (a[0] // b[0], a[1] // b[0]) if kind in ("Div", "FloorDiv") else (0, b[0] - 1)
        if kind == "Add":
            return a[0] + b[0], a[1] + b[1]
        if kind == "Sub":
            return a[0] - b[1], a[1] - b[0]
        if kind == "Mul":
            products = [x * y for x in a for y in b]
            return min(products), max(products)
        pick = min if kind == "Min" else max
        return pick(a[0], b[0]), pick(a[1], b[1])

    def x_FloorMod(self, e: Any) -> Val:
        a, b, dtype = self.expr(e.a), self.expr(e.b), self.dtype_of(e)
        lane = a.lane and (
            type(e.b).__name__ != "IntImm" or int(e.b.value) >= 16
        )  # threadIdx.x % 4: the same in many
        return Val(f"({a.code} % {self.divisor(e, b)})", dtype, max(a.kind, b.kind), lane)

    def minmax(self, e: Any, name: str) -> Val:
        a, b, dtype = self.expr(e.a), self.expr(e.b), self.dtype_of(e)
        fn = f"f{name}" if is_float(dtype) else f"v{name}"
        return Val(f"{fn}({a.code}, {b.code})", dtype, max(a.kind, b.kind), a.lane or b.lane)

    def x_Min(self, e: Any) -> Val:
        return self.minmax(e, "min")

    def x_Max(self, e: Any) -> Val:
        return self.minmax(e, "max")

    def compare(self, e: Any) -> Val:
        a, b = self.expr(e.a), self.expr(e.b)
        op = _COMPARE[type(e).__name__]
        return Val(f"({a.code} {op} {b.code})", "bool", max(a.kind, b.kind), a.lane or b.lane)

    x_EQ = x_NE = x_LT = x_LE = x_GT = x_GE = compare

    def logical(self, e: Any) -> Val:
        a = self.expr(e.a)
        word = "and" if type(e).__name__ == "And" else "or"
        if a.kind != U and self.may_fault(e.b):
            cond = self.fresh_name("c")
            self.emit(f"{cond} = {a.code}")
            a = Val(cond, a.dtype, a.kind, a.lane)
            b = self.guarded(cond if word == "and" else f"lnot({cond})", e.b)
        else:
            b = self.expr(e.b)
        kind = max(a.kind, b.kind)
        code = f"({a.code} {word} {b.code})" if kind == U else f"l{word}({a.code}, {b.code})"
        return Val(code, "bool", kind, a.lane or b.lane)

    x_And = x_Or = logical

    def x_Not(self, e: Any) -> Val:
        a = self.expr(e.a)
        return Val(f"(not {a.code})" if a.kind == U else f"lnot({a.code})", "bool", a.kind, a.lane)

    def may_fault(self, e: Any) -> bool:
        """Whether evaluating an expression in a lane that does not need it could be reported."""
        for n in self.walk(e):
            kind = type(n).__name__
            if kind in _DIVISIONS and self.may_be_zero(n.b) and not is_float(self.dtype_of(n)):
                return True
            if kind == "TensorLoad" and isinstance(self.env.get(n.source), (Scalar, LocalView)):
                return True
        return False

    def x_Select(self, e: Any) -> Val:
        if self.scalar is None and (self.may_fault(e.true_value) or self.may_fault(e.false_value)):
            return self.if_then_else(e, e.condition, e.true_value, e.false_value)
        c, a, b = self.expr(e.condition), self.expr(e.true_value), self.expr(e.false_value)
        kind = max(c.kind, a.kind, b.kind)
        code = (
            f"({a.code} if {c.code} else {b.code})"
            if c.kind == U
            else f"select({c.code}, {a.code}, {b.code})"
        )
        return Val(code, self.dtype_of(e), kind, c.lane or a.lane or b.lane)

    def bitwise(self, e: Any, op: str) -> Val:
        a, b, dtype = self.expr(e.a), self.expr(e.b), self.dtype_of(e)
        kind = max(a.kind, b.kind)
        code = f"({a.code} {op} {b.code})"
        if int_info(dtype) == (64, False) and kind != U:
            code = f"u64_op({a.code}, {b.code}, {op!r})"
        return Val(code, dtype, kind, a.lane or b.lane)

    def x_BitwiseAnd(self, e: Any) -> Val:
        return self.bitwise(e, "&")

    def x_BitwiseOr(self, e: Any) -> Val:
        return self.bitwise(e, "|")

    def x_BitwiseXor(self, e: Any) -> Val:
        return self.bitwise(e, "^")

    def x_BitwiseNot(self, e: Any) -> Val:
        a, dtype = self.expr(e.a), self.dtype_of(e)
        bits, signed = int_info(dtype)
        code = f"(~{a.code})" if signed else f"({a.code} ^ {(1 << bits) - 1})"
        return Val(code, dtype, a.kind, a.lane)

    def shift(self, e: Any, fn: str) -> Val:
        a, b, dtype = self.expr(e.a), self.expr(e.b), self.dtype_of(e)
        bits, signed = int_info(dtype)
        kind = max(a.kind, b.kind)
        if b.code.isdigit() and (bits < 64 or kind == U):
            if fn == "shr":
                code = f"({a.code} >> {b.code})"
            elif signed:
                code = f"s32({a.code} << {b.code})" if bits == 32 else f"({a.code} << {b.code})"
            else:
                code = f"(({a.code} << {b.code}) & {(1 << bits) - 1})"
        else:
            code = f"{fn}({a.code}, {b.code}, {bits}, {signed})"
        return Val(code, dtype, kind, (a.lane or b.lane) and fn == "shl")

    def x_LShift(self, e: Any) -> Val:
        return self.shift(e, "shl")

    def x_RShift(self, e: Any) -> Val:
        return self.shift(e, "shr")

    def x_Cast(self, e: Any) -> Val:
        a = self.expr(e.value)
        dtype = self.dtype_of(e)
        if is_float(a.dtype) and is_float(dtype) and a.dtype != dtype:
            self.note("cvt")
        return self.cast(a, dtype)

    def cast(self, a: Val, dtype: str) -> Val:
        """C-style conversion."""
        if a.dtype == dtype:
            return a
        if dtype.startswith("float") and not is_float(dtype):
            raise self.unsupported(f"conversion to {dtype}")
        out = Val(a.code, dtype, a.kind, a.lane, True)
        if dtype == "bool":
            out.code = f"({a.code} != 0)"
        elif dtype == "float32":
            out.code = f"to_f32({a.code})"
        elif dtype == "float16":
            out.code = f"to_f16({a.code})"
        elif dtype == "float64":
            out.code = f"to_f64({a.code})"
        elif dtype in lanes.SMALL_FLOATS:
            out.code = f"to_small({a.code}, {dtype!r})"
        elif is_float(a.dtype):
            bits, signed = int_info(dtype)
            out.code = f"to_int({a.code}, {bits}, {signed})"
        elif a.dtype == "bool":
            out.code = f"bool_int({a.code})"
        elif dtype == "handle":
            out.code = a.code
        else:
            src_bits, src_signed = int_info(a.dtype)
            bits, signed = int_info(dtype)
            widens = bits > src_bits and (signed or not src_signed)
            if widens and not (bits == 64 and not signed and a.kind != U):
                out.code = a.code
                out.fresh = a.fresh
            else:
                out.code = f"wrap_int({a.code}, {bits}, {signed})"
        return out

    def x_Let(self, e: Any) -> Val:
        value = self.index(e.value)
        if value.span is not None:
            self.ranges[e.var] = value.span
        name = self.fresh_name(str(e.var.name))
        self.emit(f"{name} = {value.code if value.fresh else f'copy({value.code})'}")
        region = self.scalar.id if self.scalar is not None else 0
        self.env[e.var] = Scalar(
            name,
            self.dtype_of(e.var),
            U if self.scalar else value.kind,
            value.lane,
            self.depth,
            region,
            value.elem,
        )
        return self.expr(e.body)

    def x_Shuffle(self, e: Any) -> Val:
        """Only the pack and unpack of 64-bit pairs that TIRx emits."""
        indices = [int(i.value) for i in e.indices]
        if len(e.vectors) == 1 and len(indices) == 1:
            v = self.expr(e.vectors[0])
            if v.dtype == "pair64":
                fn = "lo32" if indices[0] == 0 else "hi32"
                return Val(f"{fn}({v.code})", "uint32", v.kind, v.lane)
            if v.dtype.startswith("vec:"):
                _, base, _n = v.dtype.split(":")
                return Val(f"{v.code}[{indices[0]}]", base, v.kind, v.lane)
        if len(e.vectors) == 2 and indices == [0, 1]:
            lo, hi = self.expr(e.vectors[0]), self.expr(e.vectors[1])
            if itemsize(lo.dtype) == 4:
                lo_c = lo.code if not is_float(lo.dtype) else f"float_bits({lo.code}, {lo.dtype!r})"
                hi_c = hi.code if not is_float(hi.dtype) else f"float_bits({hi.code}, {hi.dtype!r})"
                return Val(f"pack64({lo_c}, {hi_c})", "pair64", max(lo.kind, hi.kind), lo.lane or hi.lane)
        if len(e.vectors) > 1 and indices == list(range(len(e.vectors))):
            parts = [self.expr(v) for v in e.vectors]
            if len({p.dtype for p in parts}) == 1 and itemsize(parts[0].dtype) * len(parts) <= 4:
                code = "".join(f"{p.code}, " for p in parts)
                return Val(f"({code})", f"vec:{parts[0].dtype}:{len(parts)}", max(p.kind for p in parts))
        raise self.unsupported(f"shuffle {e}")

    # ------------------------------------------------------------------------------------------ memory

    def touch(self, var: Any, info: Any) -> None:
        if isinstance(info, (Shared, Global)) and str(var.name):
            self.touched[str(var.name)] = None
        if isinstance(info, Global):
            self.pointer_of[str(var.name)] = info.pointer

    @property
    def touched_globals(self) -> set[str]:
        """Python names of the pointers of the global buffers that the current statement named."""
        return {self.pointer_of[name] for name in self.touched if name in self.pointer_of}

    def x_TensorLoad(self, e: Any) -> Val:
        info = self.lookup(e.source)
        self.touch(e.source, info)
        if isinstance(info, Scalar):
            return self.checked_scalar(info, e)
        if len(e.indices) != 1:
            raise self.unsupported(f"load from {e.source.name}", "index is not flat")
        if type(e.indices[0]).__name__ == "Ramp":
            return self.vector_load(e, info)
        index = self.index(e.indices[0])
        return self.checked_read(self.load(info, index), e.source)

    def index(self, e: Any) -> Val:
        """An index, with what is known of its values."""
        value = self.expr(e)
        value.span = self.bounds(e)
        return value

    def checked_scalar(self, info: Scalar, e: Any) -> Val:
        """A read of a one-element local."""
        early = info.unwritten == len(self.loops)
        value = self.checked_read(self.read(info), e.source, early)
        if outside := self.scalar_index(e.source, e.indices):
            value.code = f"({outside}, {value.code})[1]"
        return value

    def checked_read(self, value: Val, source: Any, early: bool = False) -> Val:
        """A read of a local; of an integer that nothing can have written it is reported."""
        if not is_float(value.dtype) and (early or self.never_written(source)):  # floats start as NaN
            value.code = f"unwritten({self.t}, {value.code}, {str(source.name)!r})"
        return value

    def scalar_index(self, buffer: Any, indices: Any) -> str:
        """Code that checks the index into a one-element local; "" where it is known to be 0."""
        if len(indices) != 1 or buffer not in self.local_roots or self.bounds(indices[0]) == (0, 0):
            return ""
        return f"local_index({self.t}, {self.expr(indices[0]).code}, 1, {str(buffer.name)!r})"

    def in_array(self, array: LocalArray, dtype: str, index: Val) -> Val:
        """An index into a local array, checked at run time unless it is known to be inside."""
        count = array.nbytes // itemsize(dtype)
        if index.span is not None and 0 <= index.span[0] and index.span[1] < count:
            return index
        code = f"local_index({self.t}, {index.code}, {count}, {array.label!r})"
        return Val(code, index.dtype, index.kind, index.lane)

    def load(self, info: Any, index: Val) -> Val:
        if isinstance(info, LocalView):
            return self.local_load(info, index)
        if isinstance(info, MapBytes):
            return Val(
                f"map_word({self.t}, {info.code}, {index.code}, {info.dtype!r})", info.dtype, index.kind
            )
        self.emit(f"{self.t}.site = {self.site}")
        if isinstance(info, Shared):
            self.smem_access = min(self.smem_access, itemsize(info.dtype))
            self.uses.add("shared")
            address = f"({info.base} + {index.code} * {itemsize(info.dtype)})"
            fn = "ld_generic" if info.generic else "ld_shared"
            self.note("ld.shared")
            return Val(
                f"{fn}({self.t}, {info.dtype!r}, {address})",
                info.dtype,
                max(index.kind, info.kind),
                index.lane,
            )
        if isinstance(info, Global):
            self.note("ld.global")
            kind = max(index.kind, info.kind)
            if info.kind == U:
                return Val(
                    f"ld_tensor({self.t}, {info.dtype!r}, {info.pointer}, {index.code})",
                    info.dtype,
                    kind,
                    index.lane,
                )
            address = f"({info.pointer} + {index.code} * {itemsize(info.dtype)})"
            return Val(f"ld_global({self.t}, {info.dtype!r}, {address})", info.dtype, kind, index.lane)
        raise self.unsupported("load", f"from {type(info).__name__}")

    def local_load(self, info: LocalView, index: Val) -> Val:
        dtype = info.dtype
        index = self.in_array(info.array, dtype, index)
        if self.by_lane(index):
            code = f"local_get({info.array.view(dtype)}, {info.array.word // itemsize(dtype)}, {index.code})"
        else:
            code = self.local_element(info.array, dtype, index)
        if self.scalar is not None:
            return Val(code if is_float(dtype) or dtype == "uint128" else f"{code}.item()", dtype, U)
        if is_float(dtype):
            return Val(code, dtype, V, fresh=False)
        if dtype == "bool":
            return Val(code, dtype, V, fresh=False)
        if dtype in ("uint64", "uint128"):
            return Val(code, dtype, V, fresh=False)
        return Val(f"{code}.astype(i64)", dtype, V)

    def local_element(self, array: LocalArray, dtype: str, index: Val) -> str:
        """Code of one element of a local array in every lane (vector code) or in the current lane (scalar code)."""
        view = array.view(dtype)
        per = array.word // itemsize(dtype)
        lane = self.scalar.lane if self.scalar is not None else ":"
        if per == 1:
            return f"{view}[{index.code}, {lane}, 0]"
        if index.code.isdigit():
            return f"{view}[{int(index.code) // per}, {lane}, {int(index.code) % per}]"
        return f"{view}[{index.code} // {per}, {lane}, {index.code} % {per}]"

    def by_lane(self, index: Val) -> bool:
        """Whether the element of a local array may differ between lanes (decided again at run time)."""
        return self.scalar is None and index.kind != U

    def vector_load(self, e: Any, info: Any) -> Val:
        ramp = e.indices[0]
        base, stride, n = (
            self.expr(ramp.base),
            self.expr(ramp.stride),
            int(ramp.lanes.value if hasattr(ramp.lanes, "value") else ramp.lanes),
        )
        parts = []
        kind = U
        for k in range(n):
            index = Val(f"({base.code} + {k} * {stride.code})", "int32", base.kind, base.lane)
            index.span = self.ramp_span(ramp, k)
            v = self.load(info, index)
            parts.append(v.code if v.fresh else f"copy({v.code})")
            kind = max(kind, v.kind)
        element = str(info.dtype)
        return Val(f"({', '.join(parts)},)", f"vec:{element}:{n}", kind)

    def ramp_span(self, ramp: Any, k: int) -> tuple[int, int] | None:
        """Least and greatest value of element ``k`` of a ramp."""
        base, stride = self.bounds(ramp.base), self.bounds(ramp.stride)
        if base is None or stride is None or stride[0] != stride[1]:
            return None
        return base[0] + k * stride[0], base[1] + k * stride[0]

    def x_Broadcast(self, e: Any) -> Val:
        v = self.expr(e.value)
        n = int(e.lanes.value if hasattr(e.lanes, "value") else e.lanes)
        return Val(f"(({v.code},) * {n})", f"vec:{v.dtype}:{n}", v.kind)

    def store(self, info: Any, index: Val, value: Val) -> None:
        if isinstance(info, LocalView):
            self.local_store(info, index, value)
            return
        if isinstance(info, Shared):
            self.smem_access = min(self.smem_access, itemsize(info.dtype))
            address = f"({info.base} + {index.code} * {itemsize(info.dtype)})"
            fn = "st_generic" if info.generic else "st_shared"
        elif isinstance(info, Global):
            self.written.add(info.pointer)
            address = f"({info.pointer} + {index.code} * {itemsize(info.dtype)})"
            fn = "st_global"
            if info.kind == U:
                address, fn = f"{info.pointer}, {index.code}", "st_tensor"
        else:
            raise self.unsupported("store", f"to {type(info).__name__}")
        code = value.code
        self.note("st.global" if isinstance(info, Global) else "st.shared")
        self.emit(f"{self.t}.site = {self.site}")
        self.emit(f"{fn}({self.t}, {info.dtype!r}, {address}, {code})")

    def local_store(self, info: LocalView, index: Val, value: Val) -> None:
        code = value.code
        if not is_float(info.dtype) and info.dtype != "bool":
            code = f"storable({code}, {info.dtype!r})"
        index = self.in_array(info.array, info.dtype, index)
        if self.by_lane(index):
            per = info.array.word // itemsize(info.dtype)
            self.emit(f"local_set({info.array.view(info.dtype)}, {per}, {index.code}, {code}, {self.mask})")
            return
        target = self.local_element(info.array, info.dtype, index)
        if self.scalar is None and self.mask is not None:
            code = f"merge({self.mask}, {code}, {target})"
        self.emit(f"{target} = {code}")

    # ------------------------------------------------------------------------------------------ calls in expressions

    def x_Call(self, e: Any) -> Val:
        name = str(getattr(e.op, "name", e.op))
        short = name.split(".", 1)[1] if "." in name else name
        method = getattr(self, "c_" + short.replace(".", "_"), None)
        if method is not None:
            return method(e)
        if short in _MATH:
            return self.math(e, short)
        entry = REGISTRY.get(name)
        if entry is not None:
            return self.call_instruction(e, entry)
        raise self.unsupported(name.removeprefix("tirx."))

    def math(self, e: Any, name: str) -> Val:
        a, dtype = self.expr(e.args[0]), self.dtype_of(e)
        if name == "exp2":
            self.note("ex2")
            self.emit(f"{self.t}.count_op('ex2')")
        return Val(f"math_{name}({a.code})", dtype, a.kind, a.lane)

    def c_pow(self, e: Any) -> Val:
        a, b, dtype = self.expr(e.args[0]), self.expr(e.args[1]), self.dtype_of(e)
        return Val(f"math_pow({a.code}, {b.code})", dtype, max(a.kind, b.kind))

    def c_fma(self, e: Any) -> Val:
        a, b, c = (self.expr(x) for x in e.args)
        return Val(f"math_fma({a.code}, {b.code}, {c.code})", self.dtype_of(e), max(a.kind, b.kind, c.kind))

    def c_if_then_else(self, e: Any) -> Val:
        return self.if_then_else(e, *e.args)

    def if_then_else(self, e: Any, condition: Any, first: Any, second: Any) -> Val:
        c = self.expr(condition)
        if c.kind == U:
            a, b = self.expr(first), self.expr(second)
            kind = max(a.kind, b.kind)
            return Val(f"({a.code} if {c.code} else {b.code})", self.dtype_of(e), kind, a.lane or b.lane)
        cond = self.fresh_name("c")
        self.emit(f"{cond} = {c.code}")
        a = self.guarded(cond, first)
        b = self.guarded(f"lnot({cond})", second)
        return Val(f"select({cond}, {a.code}, {b.code})", self.dtype_of(e), V, c.lane)

    def guarded(self, cond: str, e: Any) -> Val:
        """An operand of ``if_then_else``: its loads and divisions run only in the lanes that take it."""
        kinds = ("TensorLoad", *_DIVISIONS)
        if self.scalar is not None or not any(type(n).__name__ in kinds for n in self.walk(e)):
            return self.expr(e)
        saved_t, saved_mask = self.t, self.mask
        name = self.fresh_name("tq")
        self.emit(f"{name} = {self.t}.guard({cond})")
        self.t = name
        try:
            return self.expr(e)
        finally:
            self.t, self.mask = saved_t, saved_mask

    def c_address_of(self, e: Any) -> Val:
        load = e.args[0]
        if type(load).__name__ == "Var":
            v = self.x_Var(load)
            if self.maps_as_memory and "TensorMap" in v.elem:
                v.code = f"map_pointer({self.t}, {v.code})"
            return v
        info = self.lookup(load.source)
        self.touch(load.source, info)
        if isinstance(info, Scalar):
            if info.dtype in ("tensormap", "handle"):
                return self.read(info)
            raise self.unsupported("address_of", f"address of the scalar {load.source.name}")
        index = self.expr(load.indices[0]) if len(load.indices) else Val("0", "int32")
        if isinstance(info, LocalView):
            return Val(
                "None", "handle", V, ref=LocalRefCode(info.array, info.dtype, index.code), elem=info.dtype
            )
        bits = tvm.DataType(info.dtype).bits if info.dtype != "handle" else 64
        size: Any = itemsize(info.dtype) if bits >= 8 else f"{bits} // 8"  # two 4-bit elements share a byte
        if isinstance(info, Shared):
            tag = "" if info.generic else f"{self.t}.cta.shared_tag + "
            code = f"({tag}{info.base} + {index.code} * {size})"
            return Val(code, "handle", max(index.kind, info.kind), index.lane, elem=info.dtype)
        if isinstance(info, Global):
            return Val(
                f"({info.pointer} + {index.code} * {size})",
                "handle",
                max(index.kind, info.kind),
                index.lane,
                elem=info.dtype,
            )
        raise self.unsupported("address_of", f"of {type(info).__name__}")

    def c_buffer_data(self, e: Any) -> Val:
        return self.x_Var(e.args[0])

    def c_reinterpret(self, e: Any) -> Val:
        a = self.expr(e.args[-1])
        dtype = self.dtype_of(e)
        if dtype == "handle" or a.dtype == "handle":
            return Val(
                a.code,
                "handle" if dtype == "handle" else dtype,
                a.kind,
                a.lane,
                a.fresh,
                a.ref,
                self.pointee(e) or a.elem,
            )
        if dtype in ("uint32x2", "int32x2", "float32x2"):
            return Val(a.code, "pair64", a.kind, a.lane)
        if a.dtype == "pair64":
            return self.from_bits(Val(a.code, "uint64", a.kind, a.lane), dtype)
        if a.dtype.startswith("vec:"):
            a = self.packed(a)
        if tvm.DataType(dtype).lanes > 1 and itemsize(dtype) == itemsize(a.dtype) <= 4:
            return self.elements(a, tvm.DataType(dtype))
        return self.from_bits(self.to_bits(a), dtype)

    def packed(self, a: Val) -> Val:
        """The integer of at most 32 bits that holds the elements."""
        _, element, n = a.dtype.split(":")
        bits = 8 * itemsize(element)
        if bits * int(n) not in (8, 16, 32):
            raise self.unsupported(f"reinterpret of {n} {element}")
        word = self.fresh_name("vec")
        self.emit(f"{word} = {a.code}")
        parts = [self.to_bits(Val(f"{word}[{k}]", element, a.kind)).code for k in range(int(n))]
        code = " | ".join(f"({part} << {k * bits})" if k else part for k, part in enumerate(parts))
        return Val(f"({code})", f"uint{bits * int(n)}", a.kind)

    def elements(self, a: Val, dtype: Any) -> Val:
        """The elements that are packed in an integer of at most 32 bits."""
        element = str(dtype).rsplit("x", 1)[0]
        word = self.fresh_name("word")
        self.emit(f"{word} = {self.to_bits(a).code}")
        parts = [
            self.from_bits(
                Val(f"(({word} >> {k * dtype.bits}) & {(1 << dtype.bits) - 1})", f"uint{dtype.bits}", a.kind),
                element,
            ).code
            for k in range(dtype.lanes)
        ]
        return Val(f"({', '.join(parts)},)", f"vec:{element}:{dtype.lanes}", a.kind)

    def pointee(self, e: Any) -> str:
        ty = e.ty
        if type(ty).__name__ == "PointerType":
            return str(ty.element_type)
        return ""

    def to_bits(self, a: Val) -> Val:
        """The bit pattern as an unsigned integer of the same width."""
        if is_float(a.dtype):
            return Val(f"float_bits({a.code}, {a.dtype!r})", f"uint{itemsize(a.dtype) * 8}", a.kind, a.lane)
        bits, signed = int_info(a.dtype)
        if signed:
            return Val(f"wrap_int({a.code}, {bits}, False)", f"uint{bits}", a.kind, a.lane)
        return a

    def from_bits(self, a: Val, dtype: str) -> Val:
        """Interpret an unsigned bit pattern as ``dtype``."""
        if is_float(dtype):
            return Val(f"bits_float({a.code}, {dtype!r})", dtype, a.kind, a.lane)
        if dtype in ("handle", "bool"):
            return Val(a.code, dtype, a.kind, a.lane)
        bits, signed = int_info(dtype)
        if signed:
            return Val(f"wrap_int({a.code}, {bits}, True)", dtype, a.kind, a.lane)
        return Val(a.code, dtype, a.kind, a.lane, a.fresh)

    def c_ptr_byte_offset(self, e: Any) -> Val:
        p, n = self.expr(e.args[0]), self.expr(e.args[1])
        if p.ref is not None:
            raise self.unsupported("ptr_byte_offset", "on a pointer to a local array")
        return Val(
            f"({p.code} + {n.code})",
            "handle",
            max(p.kind, n.kind),
            p.lane or n.lane,
            elem=self.pointee(e) or p.elem,
        )

    c_handle_add_byte_offset = c_ptr_byte_offset

    def c_tvm_warp_shuffle(self, e: Any) -> Val:
        value, src, width = (self.expr(a) for a in e.args[1:4])
        if self.scalar is not None:
            raise self.unsupported("tvm_warp_shuffle", "inside a branch taken by single lanes")
        if value.kind == U and width.code == "32":
            return value
        if src.kind != U or width.code != "32":
            return self.call_instruction(e, REGISTRY["tirx.cuda.__shfl_sync"])
        return Val(f"warp_broadcast({value.code}, {src.code})", value.dtype, W)

    def c_likely(self, e: Any) -> Val:
        return self.expr(e.args[0])

    def c_isnan(self, e: Any) -> Val:
        a = self.expr(e.args[0])
        return Val(f"np.isnan({a.code})", "bool", a.kind)

    def c_cuda_elect_sync(self, e: Any) -> Val:
        if self.scalar is not None:
            return Val("1", "uint32")
        return Val(f"elect({self.t})", "uint32", V, True)

    def c_cuda_thread_rank(self, e: Any) -> Val:
        return Val(f"{self.t}.tid", "int32", U if self.scalar is not None else V, self.scalar is None)

    def c_cuda_cvta_generic_to_shared(self, e: Any) -> Val:
        p = self.expr(e.args[0])
        if p.ref is not None:
            raise self.unsupported("cvta", "of a local array")
        return Val(f"({p.code} & {lanes.M32})", "uint32", p.kind, p.lane)

    def c_ptx_addr(self, e: Any) -> Val:
        """``[base + immediate]`` of a PTX address operand."""
        p, n = self.expr(e.args[0]), self.expr(e.args[1])
        if p.ref is not None:
            raise self.unsupported("ptx.addr", "on a pointer to a local array")
        return Val(f"({p.code} + {n.code})", p.dtype, max(p.kind, n.kind), p.lane or n.lane, elem=p.elem)

    def c_isnullptr(self, e: Any) -> Val:
        p = self.expr(e.args[0])
        return Val(f"({p.code} == 0)", "bool", p.kind, p.lane)

    def c_cuda_wait_until(self, e: Any) -> Val:
        """Load the word at ``ptr`` into ``dst`` until the predicate holds; the load that ends the wait acquires."""
        dst, pointer, condition = e.args[0], self.expr(e.args[1]), e.args[2]
        scope, space, ptx_type = (str(a.value) for a in e.args[3:6])
        if not ptx_type:
            ptx_type = _PTX_OF_TVM.get(pointer.elem, "")
        if ptx_type not in ("b32", "s32", "u32", "b64", "s64", "u64"):
            raise self.unsupported("cuda.wait_until", f"on a word of type {pointer.elem or 'unknown'}")
        mods = Mods(
            ("acquire", scope, space, ptx_type),
            {"sem": "acquire", "scope": scope, "space": space, "type": ptx_type},
        )
        fn = self.const("wait_until", self.bind(REGISTRY["tirx.ptx.ld"], mods))
        address = self.fresh_name("address")
        self.emit(f"{address} = {pointer.code}")
        if self.scalar is not None:
            self.emit("while True:")
            with self.block():
                self.emit(f"{self.t}.site = {self.site}")
                self.assign_load(
                    dst, self.from_register(f"{fn}({self.t}, {address})", ptx_type, self.dtype_of(dst))
                )
                self.emit(f"if {self.expr(condition).code}:")
                with self.block():
                    self.emit("break")
                self.emit(f"yield spin({self.t})")
            return Val("None", "void")
        saved = self.t, self.mask, self.depth
        t, m = self.fresh_name("t"), self.fresh_name("m")
        self.emit(f"{t}, {m} = {self.t}, {self.mask}")
        self.emit("while True:")
        with self.block():
            self.t, self.mask, self.depth = t, m, self.depth + 1
            self.emit(f"{t}.site = {self.site}")
            self.assign_load(dst, self.from_register(f"{fn}({t}, {address})", ptx_type, self.dtype_of(dst)))
            self.emit(f"{m} = {t}.branch(lnot({self.expr(condition).code}))")
            self.emit(f"if {m} is False:")
            with self.block():
                self.emit("break")
            self.emit(f"if {m} is not {t}.mask:")
            with self.block():
                self.emit(f"{t} = {t}.masked({m})")
            self.emit(f"yield spin({t})")
        self.t, self.mask, self.depth = saved
        return Val("None", "void")

    def c_cuda_func_call(self, e: Any) -> Val:
        name = str(e.args[0].value)
        args = [self.expr(a) for a in e.args[1:-1]]
        if name == "tvm_builtin_pointer_offset":
            p, n = args
            if p.ref is not None:
                raise self.unsupported(name, "on a pointer to a local array")
            return Val(
                f"({p.code} + {n.code} * {itemsize(p.elem)})",
                "handle",
                max(p.kind, n.kind),
                p.lane or n.lane,
                elem=p.elem,
            )
        entry = REGISTRY.get(f"device:{name}")
        if entry is None:
            raise self.unsupported(f"device function {name}")
        codes = [self.ref_code(a) if a.ref is not None else a.code for a in args]
        if "cast" in name:
            self.note("cvt")
        fn = self.const(name, self.bind(entry, Mods()))
        self.emit(f"{self.t}.site = {self.site}")
        if entry.pure:
            return Val(f"{fn}({', '.join(codes)})", self.dtype_of(e), max([a.kind for a in args], default=U))
        return Val(f"{fn}({', '.join([self.t, *codes])})", self.dtype_of(e), V)

    def ref_code(self, a: Val) -> str:
        """A runtime pointer to a local array element."""
        assert a.ref is not None
        array = a.ref.array
        array.dtypes.add("raw")
        lane = self.scalar.lane if self.scalar is not None else "None"
        mask = self.mask if self.scalar is None else None
        return f"LocalPointer({array.name}_raw, ({a.ref.index}) * {itemsize(a.ref.dtype)}, {lane}, {mask}, {array.nbytes}, {array.label!r})"

    # ------------------------------------------------------------------------------------------ instructions

    def call_instruction(self, e: Any, entry: Instruction) -> Val:
        """A registered operation used as a value or a statement."""
        if entry.collective and self.scalar is not None:
            raise self.unsupported(
                entry.name.removeprefix("tirx.ptx.").removeprefix("tirx.cuda."),
                "a whole-warp instruction inside a branch that only single lanes take",
            )
        if entry.name.startswith("tirx.ptx."):
            return self.call_ptx(e, entry)
        args = list(e.args)
        target = None
        if entry.destination is not None:
            target = args.pop(entry.destination)
        strings = tuple(str(a.value) for a in args if type(a).__name__ == "StringImm")
        vals = [self.expr(a) for a in args if not (entry.factory and type(a).__name__ == "StringImm")]
        codes = [self.ref_code(v) if v.ref is not None else v.code for v in vals]
        mods = Mods(strings, dtypes=(*(v.dtype for v in vals), self.dtype_of(e) if str(e.ty) else "void"))
        fn = self.const(entry.name.rsplit(".", 1)[-1], self.bind(entry, mods))
        self.uses.add(entry.name)
        kind = max([v.kind for v in vals], default=U)
        if entry.pure:
            return Val(f"{fn}({', '.join(codes)})", self.dtype_of(e), kind)
        call = f"{fn}({', '.join([self.t, *codes])})"
        if entry.blocking:
            call = f"(yield from {call})"
            self.waits_apart(kind != U)
        self.emit(f"{self.t}.site = {self.site}")
        self.note(entry.counter)
        if entry.counter:
            self.emit(f"{self.t}.count_op({entry.counter!r})")
        if (entry.collective or entry.varies) and self.scalar is None:
            kind = V
        if target is not None:
            load = target.args[0] if type(target).__name__ == "Call" else target
            self.assign_load(
                load,
                Val(
                    call,
                    self.lookup(load).dtype if type(load).__name__ == "Var" else self.dtype_of(load),
                    kind,
                ),
            )
            return Val("None", "void")
        return Val(call, self.dtype_of(e) if str(e.ty) else "void", kind)

    def call_ptx(self, e: Any, entry: Instruction) -> Val:
        from tvm.backend.cuda.ptx.table import TABLE, operand_layout
        from tvm.backend.cuda.ptx.table import mods as table_mods

        table = TABLE[entry.name.removeprefix("tirx.ptx.")]
        args = list(e.args)
        strings = [a for a in args if type(a).__name__ == "StringImm"]
        tokens = tuple(str(s.value) for s in strings[:-1])
        marker = str(strings[-1].value).split(",") if str(strings[-1].value) else []
        operands = [a for a in args if type(a).__name__ != "StringImm"]
        mod_map = table_mods(table, tokens)
        self.smem_access = min(self.smem_access, _shared_access(entry.name, tokens))
        predicate = operands.pop() if "pred" in marker else None
        for i in sorted(int(m[1:]) for m in marker if m[0] == "s" and m[1:].isdigit()):
            operands.insert(i, None)  # written "_": no register
        if predicate is not None:
            self.predicated(e, entry, predicate, operands, tokens, mod_map, operand_layout(table, mod_map))
            return Val("None", "void")
        self.emit_ptx(entry, operands, tokens, mod_map, operand_layout(table, mod_map))
        return Val("None", "void")

    def predicated(self, e: Any, entry: Instruction, predicate: Any, *rest: Any) -> None:
        """``@p instruction``: the body of a branch on p."""
        p = self.expr(predicate)
        if p.kind == U:
            self.emit(f"if {p.code}:")
            with self.block():
                self.emit_ptx(entry, *rest)
            return
        if not entry.collective and p.lane:
            self.scalar_region(p, lambda: self.emit_ptx(entry, *rest))
            return
        self.masked_region(p.code, lambda: self.emit_ptx(entry, *rest))

    def emit_ptx(
        self,
        entry: Instruction,
        operands: list[Any],
        tokens: tuple[str, ...],
        mod_map: dict[str, str],
        layout: Any,
    ) -> None:
        sources: list[str] = []
        dests: list[tuple[Any, list[Any], str]] = []
        dtypes: list[str] = []
        self.operand_kind = U
        self.maps_as_memory = entry.name.startswith("tirx.ptx.ld")
        for slot, first, count in layout:
            group = operands[first : first + count]
            ptx_type = self.ptx_type(slot, mod_map)
            if entry.in_place and slot.rw == "rw":
                sources.append(self.group_in_place(entry, group))
                continue
            if slot.rw in ("w", "rw"):
                dests.append((slot, group, ptx_type))
            if slot.rw != "w":
                is_group = slot.lanes != 1
                if is_group and slot.rw == "r" and slot.kind == "reg":
                    sources.append(self.group_source(group, ptx_type))
                elif is_group:
                    sources.append("(" + "".join(f"{self.operand(g, ptx_type, slot)}, " for g in group) + ")")
                else:
                    sources.append(self.operand(group[0], ptx_type, slot) if group else "None")
                dtypes.append(ptx_type)
        self.maps_as_memory = False
        if "_s2g" in entry.name or "cp_reduce_async_bulk_tensor" in entry.name:
            self.stored_maps.update(
                sources[k] for k, (slot, _, _) in enumerate(layout) if slot.name == "tmap"
            )
        kind = self.operand_kind
        mods = Mods(tokens, dict(mod_map), tuple(dtypes))
        fn = self.const(entry.name.rsplit(".", 1)[-1], self.bind(entry, mods))
        self.uses.add(entry.name)
        if entry.pure:
            if entry.counter:
                self.note(entry.counter)
                self.emit(f"{self.t}.count_op({entry.counter!r})")
            self.store_results(
                f"{fn}({', '.join(sources)})", dests, kind=U if self.scalar is not None else kind
            )
            return
        self.emit(f"{self.t}.site = {self.site}")
        if (
            "aligned" in tokens
            and self.scalar is None
            and self.mask is not None
            and not entry.name.startswith("tirx.ptx.bar")
        ):
            self.emit(
                f"{self.t}.require_whole_warps({entry.counter or entry.name.removeprefix('tirx.ptx.')!r})"
            )
        self.note(entry.counter or self.memory_op(entry.name, tokens))
        if not entry.pure and not any(part in entry.name for part in _READ_ONLY):
            self.written.update(
                self.touched_globals or {"*"} if _may_write_global(entry.name, tokens) else ()
            )
        if entry.counter:
            self.emit(f"{self.t}.count_op({entry.counter!r})")
        call = f"{fn}({', '.join([self.t, *sources])})"
        if entry.blocking:
            call = f"(yield from {call})"
            self.waits_apart(kind != U and entry.name != "tirx.ptx.tcgen05_alloc")
        self.store_results(call, dests)

    def bind(self, entry: Instruction, mods: Mods) -> Callable[..., Any]:
        """The operation with its modifiers; an unsupported modifier is reported at the learner's line."""
        try:
            return entry.bind(mods)
        except UnsupportedInstruction as error:
            raise UnsupportedInstruction(error.op, error.location or self.location, error.why) from None

    @staticmethod
    def memory_op(name: str, tokens: tuple[str, ...]) -> str | None:
        """``ld.shared`` and the like for PTX loads and stores, ``tcgen05.wait::ld`` for waits, None for arithmetic."""
        base = name.removeprefix("tirx.ptx.")
        if base.startswith("cvt"):
            return "cvt"
        if base == "tcgen05_wait":
            return f"tcgen05.{tokens[0]}"
        if base.split("_")[0] not in ("ld", "st"):
            return None
        space = next(
            (tok.split("::")[0] for tok in tokens if tok.startswith(("shared", "global"))), "generic"
        )
        return f"{base.split('_')[0]}.{space}"

    def ptx_type(self, slot: Any, mod_map: dict[str, str]) -> str:
        """PTX type of an operand's register ("" when it has none, such as an address)."""
        if slot.dtype is not None:
            if callable(slot.dtype):
                return str(slot.dtype(mod_map))
            return mod_map.get(slot.dtype, slot.dtype) or mod_map.get("type", "")
        if slot.dtypes is not None:
            accepted = slot.dtypes(mod_map) if callable(slot.dtypes) else slot.dtypes
            return _PTX_OF_TVM.get(str(accepted[0]), "")
        if slot.kind != "reg":
            return ""
        return mod_map.get("type") or mod_map.get("dtype") or ""

    def operand(self, e: Any, ptx_type: str, slot: Any) -> str:
        if e is None:
            return "0"
        v = self.expr(e)
        self.operand_kind = max(self.operand_kind, v.kind)
        if v.ref is not None:
            return self.ref_code(v)
        if slot.kind in ("addr", "imm", "ptr") or v.dtype == "handle":
            return v.code
        return self.to_register(v, ptx_type).code

    def to_register(self, v: Val, ptx_type: str) -> Val:
        """A value in the representation of the PTX type of its register."""
        if ptx_type in ("pred", "") or v.dtype in ("bool", "string"):
            return v
        if ptx_type in ("f32", "f16", "f64"):
            want = "float" + ptx_type[1:]
            return v if v.dtype == want else self.from_bits(self.to_bits(v), want)
        if is_float(v.dtype):
            return self.to_bits(v)
        if ptx_type.startswith("s") and ptx_type[1:].isdigit():
            return self.cast(v, "int" + ptx_type[1:])
        return (
            self.cast(v, "uint" + str(int_info(v.dtype)[0]))
            if int_info(v.dtype)[1] and v.dtype != "handle"
            else v
        )

    def from_register(self, code: str, ptx_type: str, dtype: str, kind: int | None = None) -> Val:
        """A destination value in the representation of the variable that receives it."""
        kind = U if self.scalar is not None else V if kind is None else kind
        if dtype == "bool":
            return Val(f"({code} != 0)", dtype, kind)
        if ptx_type in ("f32", "f16", "f64"):
            have = "float" + ptx_type[1:]
            return (
                Val(code, dtype, kind)
                if dtype == have
                else self.from_bits(Val(f"float_bits({code}, {have!r})", "uint32", kind), dtype)
            )
        if is_float(dtype):
            return Val(f"bits_float({code}, {dtype!r})", dtype, kind)
        if dtype in ("handle", "uint128"):
            return Val(code, dtype, kind)
        bits, signed = int_info(dtype)
        if ptx_type.startswith("u") or ptx_type.startswith("b") or ptx_type == "":
            return Val(f"wrap_int({code}, {bits}, {signed})" if signed else code, dtype, kind)
        return Val(f"wrap_int({code}, {bits}, {signed})", dtype, kind)

    def contiguous(self, group: list[Any]) -> tuple[LocalView, str] | None:
        """The local array and the slice when ``group`` is ``x[e + k], x[e + k + 1], ...`` of a 4-byte view.

        ``e`` is any expression that is the same in all lanes.
        """
        if len(group) < 2 or any(type(g).__name__ != "TensorLoad" for g in group):
            return None
        info = self.env.get(group[0].source)
        if not isinstance(info, LocalView) or itemsize(info.dtype) != 4 or info.array.word != 4:
            return None
        base, offset = split_constant(group[0].indices[0])
        for k, g in enumerate(group):
            if g.source is not group[0].source and not g.source.same_as(group[0].source):
                return None
            other, constant = split_constant(g.indices[0])
            if constant != offset + k or (base is None) != (other is None):
                return None
            if base is not None and not same_expression(base, other):
                return None
        count = info.array.nbytes // 4
        if base is None:
            inside = 0 <= offset <= count - len(group)
            return (info, f"{offset}:{offset + len(group)}") if inside else None
        first = self.index(base)
        if first.kind != U and self.scalar is None:
            return None
        span = first.span
        if span is not None and 0 <= span[0] + offset and span[1] + offset + len(group) <= count:
            return info, f"{first.code} + {offset}:{first.code} + {offset + len(group)}"
        start = self.fresh_name("first")
        label = info.array.label
        self.emit(f"{start} = {first.code} + {offset}")
        self.emit(f"local_index({self.t}, {start}, {count}, {label!r})")
        self.emit(f"local_index({self.t}, {start} + {len(group) - 1}, {count}, {label!r})")
        return info, f"{start}:{start} + {len(group)}"

    def group_in_place(self, entry: Instruction, group: list[Any]) -> str:
        """The storage of a register group that an instruction changes when it completes."""
        run = self.contiguous(group)
        if run is None:
            raise self.unsupported(
                entry.name.removeprefix("tirx.ptx."),
                "its accumulators must be consecutive 4-byte elements of one local array",
            )
        info, part = run
        return f"{info.array.view('uint32')}[{part}, :, 0]"

    def group_source(self, group: list[Any], ptx_type: str) -> str:
        run = self.contiguous(group)
        if run is not None:
            self.operand_kind = V
            info, part = run
            view = info.array.view("uint32")
            lane = f", {self.scalar.lane}, 0" if self.scalar is not None else ", :, 0"
            return f"{view}[{part}{lane}]"
        vals = [Val("0", "uint32") if g is None else self.to_register(self.expr(g), ptx_type) for g in group]
        self.operand_kind = max([self.operand_kind, *(v.kind for v in vals)])
        return "(" + "".join(f"{v.code}, " for v in vals) + ")"

    def store_results(
        self, call: str, dests: list[tuple[Any, list[Any], str]], kind: int | None = None
    ) -> None:
        if not dests:
            self.emit(call)
            return
        if len(dests) == 1 and dests[0][0].lanes == 1:
            _, group, ptx_type = dests[0]
            self.assign_load(group[0], self.from_register(call, ptx_type, self.dtype_of(group[0]), kind))
            return
        result = self.fresh_name("r")
        self.emit(f"{result} = {call}")
        for k, (slot, group, ptx_type) in enumerate(dests):
            part = result if len(dests) == 1 else f"{result}[{k}]"
            if slot.lanes == 1:
                self.assign_load(group[0], self.from_register(part, ptx_type, self.dtype_of(group[0]), kind))
                continue
            run = self.contiguous(group)
            if run is not None:
                info, span = run
                view = info.array.view("uint32")
                lane = f"{self.scalar.lane}, 0" if self.scalar is not None else ":, 0"
                target = f"{view}[{span}, {lane}]"
                value = f"register_rows({part})" if self.scalar is None else f"register_bits({part})"
                if self.scalar is None and self.mask is not None:
                    value = f"merge({self.mask}, {value}, {target})"
                self.emit(f"{target} = {value}")
                continue
            for j, g in enumerate(group):
                if g is None:
                    continue
                code = f"register_value({part}[{j}], {ptx_type!r})"
                self.assign_load(g, self.from_register(code, ptx_type, self.dtype_of(g), kind))

    def assign_load(self, load: Any, value: Val) -> None:
        """Assign through an lvalue ``TensorLoad``."""
        info = self.lookup(load if type(load).__name__ == "Var" else load.source)
        if isinstance(info, Scalar):
            if self.touched and info.dtype in ("handle", "uint64"):
                self.derived[info.name] = dict(self.touched)
            if type(load).__name__ != "Var" and (outside := self.scalar_index(load.source, load.indices)):
                self.emit(outside)
            self.assign(info, value)
            return
        index = self.index(load.indices[0]) if type(load).__name__ != "Var" else Val("0", "int32")
        if isinstance(info, LocalView):
            self.local_store(info, index, value)
            return
        name = self.fresh_name("r")
        self.emit(f"{name} = {value.code}")
        self.store(info, index, Val(name, value.dtype, value.kind))

    # ------------------------------------------------------------------------------------------ statements

    def stmt(self, s: Any) -> None:
        method = getattr(self, "s_" + type(s).__name__, None)
        if method is None:
            raise self.unsupported(f"statement {type(s).__name__}")
        saved = self.location
        if not isinstance(s, tvm.tirx.SeqStmt):
            self.touched = {}
            self.set_site(getattr(s, "span", None), "")
        method(s)
        self.location = saved

    def s_SeqStmt(self, s: Any) -> None:
        last, tail = len(s.seq) - 1, self.tail and not self.loops
        for i, child in enumerate(s.seq):
            if tail and i < last and self.returns_early(child):
                # what follows is for the threads that did not return
                self.stmt(
                    tvm.tirx.IfThenElse(child.condition, child.then_case, self.rest_of(s, i), child.span)
                )
                return
            saved, self.tail, parted = self.tail, tail and i == last, self.parted()
            self.stmt(child)
            self.tail = saved
            if i < last and self.parted() != parted:
                rest, live = self.rest_of(s, i), self.loops[-1].go if self.loops else "alive"
                self.masked_region(live, partial(self.stmt, rest))
                return

    def rest_of(self, s: Any, i: int) -> Any:
        return tvm.tirx.SeqStmt(list(s.seq[i + 1 :])) if i + 2 < len(s.seq) else s.seq[i + 1]

    def parted(self) -> int:
        """Changes when some lanes left what the current statement is in."""
        return self.loops[-1].left if self.loops else self.returned

    def returns_early(self, s: Any) -> bool:
        """``if condition: ...; return`` without an else branch."""
        if type(s).__name__ != "IfThenElse" or s.else_case is not None:
            return False
        body = s.then_case
        while type(body).__name__ == "SeqStmt":
            body = body.seq[-1]
        if type(body).__name__ == "Return":
            return True
        call: Any = body.value if type(body).__name__ == "Evaluate" else None
        return type(call).__name__ == "Call" and str(getattr(call.op, "name", "")) == "tirx.thread_return"

    def s_AttrStmt(self, s: Any) -> None:
        if str(s.attr_key) == "thread_extent":
            self.launch_variable(s.node)
            extent = getattr(s.value, "value", 32)
            if str(s.node.thread_tag) == "threadIdx.x":
                self.ranges[s.node.var] = (0, (int(extent) + 31) // 32 * 32 - 1)  # missing threads, too
            if str(s.node.thread_tag) == "threadIdx.x" and int(extent) % 32:
                # the last warp is not full: its missing threads take no part in anything
                self.masked_region(
                    f"(t.tid % {(int(extent) + 31) // 32 * 32} < {int(extent)})", lambda: self.stmt(s.body)
                )
                return
        self.stmt(s.body)

    def launch_variable(self, node: Any) -> None:
        tag = str(node.thread_tag)
        var = node.var
        name = self.fresh_name(str(var.name))
        axis = {"x": 0, "y": 1, "z": 2}.get(tag[-1], 0)
        if tag.startswith("threadIdx"):
            if axis == 0:
                self.emit(f"{name} = t.tid")
                self.env[var] = Scalar(name, "int32", V, True)
                self.role_names.add(name)
                self.role_lines.append((name, "tid"))
                return
            raise self.unsupported(f"{tag}", "threads are one-dimensional in TIRx")
        if tag.startswith("blockIdx"):
            self.emit(f"{name} = t.cta.block_idx[{axis}]")
            if self.grid_lanes:
                self.env[var] = Scalar(name, "int32", V)
                return
            self.role_lines.append((name, f"block_idx[{axis}]"))
        elif tag.startswith(("clusterCtaIdx", "preferredClusterCtaIdx")):
            self.emit(f"{name} = t.cta.cluster_idx[{axis}]")
            self.role_lines.append((name, f"cluster_idx[{axis}]"))
        else:
            raise self.unsupported(f"launch variable {tag}")
        self.role_names.add(name)
        self.env[var] = Scalar(name, "int32", U)

    def s_Bind(self, s: Any) -> None:
        value = self.index(s.value)
        if value.span is not None:
            self.ranges[s.var] = value.span
        name = self.fresh_name(str(s.var.name))
        if value.ref is not None:
            self.env[s.var] = LocalView(value.ref.array, value.ref.dtype)
            return
        code = value.code if value.fresh else f"copy({value.code})"
        self.emit(f"{name} = {code}")
        region = self.scalar.id if self.scalar is not None else 0
        dtype = self.dtype_of(s.var)
        elem = value.elem
        if self.touched and dtype in ("handle", "uint64", "uint32"):
            self.derived[name] = dict(self.touched)
        if type(s.var.ty).__name__ == "PointerType":
            dtype, elem = "handle", str(s.var.ty.element_type)
        self.env[s.var] = Scalar(
            name, dtype, U if self.scalar else value.kind, value.lane, self.depth, region, elem
        )
        if self.scalar is None and self.pure_role(code):
            self.role_names.add(name)
            self.role_lines.append((name, code))

    def pure_role(self, code: str) -> bool:
        """Whether generated code only uses thread and block indices (and earlier such variables)."""
        import ast

        try:
            tree = ast.parse(_role(code), mode="eval")
        except SyntaxError:
            return False
        allowed = {
            "warp_broadcast",
            "select",
            "land",
            "lor",
            "lnot",
            "vmin",
            "vmax",
            "wrap_int",
            "s32",
            "tid",
            "truncdiv",
            "truncmod",
            "divisor",
            "shl",
            "shr",
        }
        for node in ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.Subscript, ast.Yield, ast.YieldFrom)):
                return False
            if isinstance(node, ast.Name) and node.id not in self.role_names and node.id not in allowed:
                return False
        return True

    def s_AllocBuffer(self, s: Any) -> None:
        buffer, ty = s.buffer, s.buffer.ty
        scope, dtype = str(ty.storage_scope), str(ty.dtype)
        if scope == "shared.dyn":
            self.env[buffer] = Shared(dtype, str(POOL_BASE), False)
            return
        count = 1
        for extent in ty.shape:
            if type(extent).__name__ != "IntImm" or int(extent.value) < 0:
                raise LoweringError(
                    f"`{buffer.name}` has the extent {extent}: no constant of at least 0", self.location
                )
            count *= int(extent.value)
        if scope == "shared":
            align = max(16, itemsize(dtype))
            self.static_smem = (self.static_smem + align - 1) // align * align
            self.env[buffer] = Shared(dtype, f"(STATIC_BASE + {self.static_smem})", False)
            self.static_smem += count * itemsize(dtype)
            return
        if scope != "local":
            raise self.unsupported(f"alloc_buffer in scope {scope}")
        name = self.fresh_name(str(buffer.name) or "local")
        region = self.scalar.id if self.scalar is not None else 0
        if count == 1 and buffer not in self.addressed and not self.aliases[buffer] and dtype != "uint128":
            poison = (
                "POISON_FLOAT[" + repr(dtype) + "]"
                if is_float(dtype)
                else ("False" if dtype == "bool" else str(0xBADBAD & ((1 << (int_info(dtype)[0] - 1)) - 1)))
            )
            self.emit(f"{name} = {poison}")
            once = self.stores.get(buffer, 0) == 1 and buffer in self.sibling_stores
            self.env[buffer] = Scalar(
                name,
                dtype,
                U if self.scalar else V,
                False,
                self.depth,
                region,
                once=once,
                unwritten=len(self.loops),
            )
            return
        if dtype not in lanes.STORED:
            raise self.unsupported(f"local array of {dtype}")
        word = self.local_word[buffer]
        words = (count * itemsize(dtype) + word - 1) // word
        array = LocalArray(name, words, word, count * itemsize(dtype), str(buffer.name))
        self.emit(f"@local {name}")
        self.env[buffer] = LocalView(array, dtype)
        self.lines[-1] = (self.indent, f"@local {name}", self.site)
        self.consts.setdefault("__locals__", {})[name] = array

    def s_DeclBuffer(self, s: Any) -> None:
        buffer, ty = s.buffer, s.buffer.ty
        scope, dtype = str(ty.storage_scope), str(ty.dtype)
        if scope == "tmem":
            self.env[buffer] = Tmem(str(buffer.name))
            return
        if scope == "local":
            data = self.expr(s.data)
            if data.ref is None:
                raise self.unsupported(
                    f"decl_buffer {buffer.name}", "a local view of something that is not local"
                )
            if data.ref.index != "0":
                raise self.unsupported(f"decl_buffer {buffer.name}", "a local view with an offset")
            self.env[buffer] = LocalView(data.ref.array, dtype)
            return
        data = self.expr(s.data)
        if (
            type(s.data).__name__ == "Var"
            and isinstance(self.env.get(s.data), Shared)
            or (
                type(s.data).__name__ == "Call"
                and str(s.data.op.name) == "tirx.buffer_data"
                and isinstance(self.env.get(s.data.args[0]), Shared)
            )
        ):
            inner = self.env[s.data if type(s.data).__name__ == "Var" else s.data.args[0]]
            self.env[buffer] = Shared(dtype, inner.base, inner.generic, inner.kind)
            return
        name = data.code
        if not name.isidentifier():
            name = self.fresh_name(str(buffer.name) or "ptr")
            self.emit(f"{name} = {data.code}")
        if scope.startswith("shared"):
            self.env[buffer] = Shared(dtype, name, True, data.kind)
        elif scope in ("global", ""):
            self.env[buffer] = Global(dtype, name, data.kind)
        elif scope == "param":
            self.env[buffer] = MapBytes(dtype, name)
        else:
            raise self.unsupported(f"decl_buffer {buffer.name} in scope {scope}")

    def s_BufferStore(self, s: Any) -> None:
        info = self.lookup(s.buffer)
        value = self.expr(s.value)
        self.touched = {}
        self.touch(s.buffer, info)
        if isinstance(info, Scalar):
            if outside := self.scalar_index(s.buffer, s.indices):
                self.emit(outside)
            self.assign(info, value)
            return
        if type(s.indices[0]).__name__ == "Ramp":
            ramp = s.indices[0]
            base, stride = self.expr(ramp.base), self.expr(ramp.stride)
            n = int(ramp.lanes.value if hasattr(ramp.lanes, "value") else ramp.lanes)
            vec = self.fresh_name("vec")
            self.emit(f"{vec} = {value.code}")
            element = value.dtype.split(":")[1] if value.dtype.startswith("vec:") else value.dtype
            for k in range(n):
                index = Val(f"({base.code} + {k} * {stride.code})", "int32", base.kind, base.lane)
                index.span = self.ramp_span(ramp, k)
                self.store(info, index, Val(f"{vec}[{k}]", element, value.kind))
            return
        self.store(info, self.index(s.indices[0]), value)

    def s_Evaluate(self, s: Any) -> None:
        value = s.value
        if type(value).__name__ in ("IntImm", "StringImm"):
            return
        if type(value).__name__ == "Call":
            name = str(getattr(value.op, "name", ""))
            if name in ("tirx.break_loop", "tirx.continue_loop", "tirx.thread_return"):
                self.jump(name.rsplit(".", 1)[-1])
                return
            if name == "tirx.tvm_storage_sync":
                value_name = "tirx.cuda.cta_sync"
                self.emit_simple(REGISTRY[value_name])
                return
        self.location = learner_location(value.span) or self.location
        self.sites[self.site] = (
            self.location,
            str(getattr(value.op, "name", "")).removeprefix("tirx.") if hasattr(value, "op") else "",
        )
        result = self.expr(value)
        if result.code != "None":
            self.emit(result.code)

    def emit_simple(self, entry: Instruction) -> None:
        fn = self.const(entry.name.rsplit(".", 1)[-1], partial(entry.fn, Mods()))
        self.emit(f"{self.t}.site = {self.site}")
        call = f"{fn}({self.t})"
        self.emit(f"yield from {call}" if entry.blocking else call)

    def s_Break(self, s: Any) -> None:
        self.jump("break_loop")

    def s_Continue(self, s: Any) -> None:
        self.jump("continue_loop")

    def s_Return(self, s: Any) -> None:
        """``return`` in the kernel's body."""
        self.jump("thread_return")

    def jump(self, name: str) -> None:
        """``break``, ``continue`` or ``return``; of all lanes that are in the loop (or kernel), or of some."""
        statement = {"break_loop": "break", "continue_loop": "continue", "thread_return": "return"}[name]
        divergent = self.scalar is not None or self.mask is not None
        if statement == "return" and self.tail and not self.loops:
            self.emit("pass" if divergent else "return")  # nothing follows for the threads of the branch
            return
        if statement != "return" and not self.loops:
            raise self.unsupported(name, "outside of a loop")
        if self.scalar is not None and statement == "return":
            raise self.unsupported(name, "in code of a single lane")
        if self.scalar is not None or (
            not divergent if statement == "return" else self.loops[-1].mask == (self.mask or "")
        ):
            if statement == "continue" and self.loop_step:
                self.emit(self.loop_step)
            self.emit(statement)
            return
        loops = self.loops if statement == "return" else self.loops[-1:]
        for loop in loops:
            if not loop.live:
                raise LanesPart(loop)
        for loop in loops:
            loop.left += 1
            self.emit(f"{loop.go} = leave({loop.go}, {self.t})")
            if statement != "continue":
                self.emit(f"{loop.live} = leave({loop.live}, {self.t})")
        if statement == "return":
            self.returned += 1
            self.emit(f"alive = leave(alive, {self.t})")

    def leaves_around(self, s: Any) -> bool:
        """Whether a branch leaves what is around it: a loop, or the kernel other than at its very end."""
        kind = type(s).__name__
        if kind in ("For", "While"):
            return self.returns(s)
        if kind == "Break" or kind == "Continue" or (kind == "Return" and not self.tail):
            return True
        if kind == "Evaluate":
            name = str(getattr(getattr(s.value, "op", None), "name", ""))
            return name in ("tirx.break_loop", "tirx.continue_loop") or (
                name == "tirx.thread_return" and not self.tail
            )
        if kind == "SeqStmt":
            return any(self.leaves_around(child) for child in s.seq)
        if kind == "IfThenElse":
            return self.leaves_around(s.then_case) or (
                s.else_case is not None and self.leaves_around(s.else_case)
            )
        return kind == "AttrStmt" and self.leaves_around(s.body)

    def returns(self, s: Any) -> bool:
        return any(
            type(n).__name__ == "Return"
            or str(getattr(getattr(n, "op", None), "name", "")) == "tirx.thread_return"
            for n in self.walk(s)
        )

    def s_For(self, s: Any) -> None:
        if int(s.kind) not in (0, 3, 2, 1):
            raise self.unsupported("thread-bound loop")
        lo, extent = self.expr(s.min), self.expr(s.extent)
        if lo.code == "0" and s.step is None and self.packed_cast(s):
            return
        name = self.fresh_name(str(s.loop_var.name))
        region = self.scalar.id if self.scalar is not None else 0
        dtype = self.dtype_of(s.loop_var)
        least, rounds = self.bounds(s.min), self.bounds(s.extent)
        if least is not None and rounds is not None and s.step is None:
            self.ranges[s.loop_var] = (least[0], max(least[0], least[1] + rounds[1] - 1))
        step = "1" if s.step is None else self.expr(s.step).code
        if self.scalar is not None or max(lo.kind, extent.kind) == U:
            if lo.code == "0" and step == "1":
                self.emit(f"for {name} in range({extent.code}):")
            else:
                self.emit(f"for {name} in range({lo.code}, {lo.code} + {extent.code}, {step}):")
            self.env[s.loop_var] = Scalar(name, dtype, U, False, self.depth, region)
            self.uniform_loop(s.body)
            return
        end = self.fresh_name("end")
        self.emit(f"{name} = {lo.code}")
        self.emit(f"{end} = {lo.code} + {extent.code}")
        self.env[s.loop_var] = Scalar(
            name, dtype, max(lo.kind, extent.kind), lo.lane or extent.lane, self.depth, region
        )
        self.masked_loop(
            lambda: Val(f"({name} < {end})", "bool", V), s.body, after=f"{name} = {name} + {step}"
        )

    def packed_cast(self, s: Any) -> bool:
        """Translate a loop of pairwise conversions between two local arrays as one conversion; False if it is none."""
        cast = packed_casts.find(s, s.extent)
        if cast is None:
            return False
        for inner in s.body.seq:
            if type(inner).__name__ == "DeclBuffer":
                self.stmt(inner)
        destination, source = self.env.get(cast.destination), self.env.get(cast.source)
        if not isinstance(destination, LocalView) or not isinstance(source, LocalView):
            return False
        if destination.array is source.array:  # a later pair may read what an earlier one has written
            return False
        self.set_site(s.body.seq[len(s.body.seq) - 1].span or s.span, "cuda.func_call")
        self.location = learner_location(cast.call.span) or self.location
        self.sites[self.site] = (self.location, "cuda.func_call")
        name = str(cast.call.args[0].value)
        entry = REGISTRY.get(f"device:{name}")
        if entry is None:
            raise self.unsupported(f"device function {name}")
        self.note("cvt")
        fn = self.const(name, self.bind(entry, Mods()))
        to = self.ref_code(
            Val(
                "None",
                "handle",
                V,
                ref=LocalRefCode(destination.array, destination.dtype, str(cast.first_destination)),
            )
        )
        of = self.ref_code(
            Val("None", "handle", V, ref=LocalRefCode(source.array, source.dtype, str(cast.first_source)))
        )
        self.emit(f"{self.t}.site = {self.site}")
        self.emit(f"{fn}({self.t}, {to}, {of}, {cast.count})")
        return True

    def s_While(self, s: Any) -> None:
        spins = self.polls(s)
        if self.scalar is not None:
            again = self.fresh_name("again")
            if spins:
                self.emit(f"{again} = False")
            self.emit("while True:")
            with self.block(), self.inside(Loop("", "", ""), ""):
                c = self.expr(s.condition)
                self.emit(f"if not {c.code}:")
                with self.block():
                    self.emit("break")
                if spins:
                    self.spin_from_second_round(self.t, again)
                self.stmt(s.body)
            return
        self.masked_loop(lambda: self.expr(s.condition), s.body, spin=spins)

    @contextmanager
    def inside(self, loop: Loop, step: str) -> Any:
        """The body of a loop, whose rounds end with ``step``."""
        outer, self.loop_step = self.loop_step, step
        self.loops.append(loop)
        yield
        self.loops.pop()
        self.loop_step = outer

    def uniform_loop(self, body: Any) -> None:
        """The body of a loop that all lanes do equally often, unless some break out of it; its head is the last line."""
        loop = Loop(self.mask or "", "", "")
        state = (
            self.t, self.mask, self.depth, self.indent, self.tail, self.location, self.site, self.static_smem, self.scalar, self.loop_step,
            list(self.loops), list(self.role_path),
        )  # fmt: skip
        at = len(self.lines)
        try:
            with self.block(), self.inside(loop, ""):
                self.stmt(body)
            return
        except LanesPart as e:
            if e.loop is not loop:
                raise
        (
            self.t,
            self.mask,
            self.depth,
            self.indent,
            self.tail,
            self.location,
            self.site,
            self.static_smem,
            self.scalar,
            self.loop_step,
        ) = state[:10]
        self.loops, self.role_path = state[10:]
        del self.lines[at:]
        t, m = self.fresh_name("t"), self.fresh_name("m")
        loop = Loop(m, self.fresh_name("live"), self.fresh_name("go"))
        head = self.lines.pop()
        self.emit(f"{t} = {self.t}")
        self.emit(f"{loop.live} = True")
        self.lines.append(head)
        with self.block():
            self.emit_lines(self.still_in(loop, t, m))
            self.t, self.mask, self.depth = t, m, self.depth + 1
            with self.inside(loop, ""):
                self.stmt(body)
        self.t, self.mask, self.depth = state[:3]

    def still_in(self, loop: Loop, t: str, m: str) -> list[tuple[int, str]]:
        """The start of a round of a loop that lanes leave one by one."""
        return [
            (0, f"{m} = {t}.branch({loop.live})"), (0, f"if {m} is False:"), (1, "break"), (0, f"if {m} is not {t}.mask:"), (1, f"{t} = {t}.masked({m})"),
            (0, f"{loop.go} = True"),
        ]  # fmt: skip

    def emit_lines(self, lines: list[tuple[int, str]], at: int | None = None) -> None:
        new = [(self.indent + deeper, text, self.site) for deeper, text in lines]
        at = len(self.lines) if at is None else at
        self.lines[at:at] = new

    def polls(self, loop: Any) -> bool:
        """Whether a loop repeats until a value in memory changes: its condition depends on what its body loads."""
        if any(
            type(n).__name__ == "TensorLoad" and self.is_memory(n.source) for n in self.walk(loop.condition)
        ):
            return True
        loaded: set[Any] = set()
        conditions = [loop.condition]
        assignments: list[tuple[Any, Any]] = []
        for n in self.walk(loop):
            kind = type(n).__name__
            if kind == "Call":
                name = str(getattr(n.op, "name", ""))
                if name.startswith(_POLLS):
                    loaded.update(a.source for a in n.args if type(a).__name__ == "TensorLoad")
                elif name.startswith("tirx.ptx."):
                    sources = [a for a in n.args if type(a).__name__ != "StringImm"]
                    assignments += [(a.source, sources) for a in n.args if type(a).__name__ == "TensorLoad"]
            elif kind == "BufferStore":
                assignments.append((n.buffer, n.value))
            elif kind == "Bind":
                assignments.append((n.var, n.value))
            elif kind == "IfThenElse" and self.leaves(n):
                conditions.append(n.condition)
        for target, value in assignments * 2:
            if target not in loaded and self.reads(value, loaded):
                loaded.add(target)
        return any(self.reads(c, loaded) for c in conditions)

    def reads(self, e: Any, names: set[Any]) -> bool:
        """Whether an expression reads one of the variables, or polls memory itself."""
        for n in self.walk(e):
            kind = type(n).__name__
            if kind == "TensorLoad" and (n.source in names or self.is_memory(n.source)):
                return True
            if kind == "Var" and n in names:
                return True
            if kind == "Call" and str(getattr(n.op, "name", "")).startswith(_POLLS):
                return True
        return False

    def leaves(self, s: Any) -> bool:
        """Whether a branch can leave the loop around it."""
        return any(
            type(n).__name__ in ("Break", "Return")
            or (
                type(n).__name__ == "Call"
                and str(getattr(n.op, "name", "")) in ("tirx.break_loop", "tirx.thread_return")
            )
            for n in self.walk(s)
        )

    def is_memory(self, source: Any) -> bool:
        return isinstance(self.env.get(source), (Shared, Global))

    def spin_from_second_round(self, t: str, again: str) -> None:
        """A polling loop lets others run between two looks."""
        self.emit(f"if {again}:")
        with self.block():
            self.emit(f"{t}.site = {self.site}")
            self.emit(f"yield spin({t})")
        self.emit(f"{again} = True")

    def masked_loop(
        self, condition: Callable[[], Val], body: Any, after: str = "", spin: bool = False
    ) -> None:
        """A loop whose lanes may leave at different iterations."""
        t, m, again = self.fresh_name("t"), self.fresh_name("m"), self.fresh_name("again")
        self.emit(f"{t} = {self.t}")
        if spin:
            self.emit(f"{again} = False")
        saved = self.t, self.mask, self.depth
        loop = Loop(m, self.fresh_name("live"), self.fresh_name("go"))
        head = len(self.lines)
        self.emit("while True:")
        with self.block():
            self.t = t
            c = condition()
            self.emit(f"{m} = {t}.branch({c.code})")
            self.emit(f"if {m} is False:")
            with self.block():
                self.emit("break")
            self.emit(f"if {m} is not {t}.mask:")
            with self.block():
                self.emit(f"{t} = {t}.masked({m})")
            self.mask, self.depth = m, self.depth + 1
            if spin:
                self.spin_from_second_round(t, again)
            with self.inside(loop, after):
                self.stmt(body)
            if after:
                self.emit(after)
            if loop.left:
                self.emit_lines(self.still_in(loop, t, m), head + 1)
        if loop.left:
            self.emit_lines([(0, f"{loop.live} = True")], head)
        self.t, self.mask, self.depth = saved

    def s_IfThenElse(self, s: Any) -> None:
        if s.span is None:
            location = learner_location(s.condition.span)
            if location is not None:
                self.location = location
                self.sites[self.site] = (location, "")
        c = self.expr(s.condition)
        if self.scalar is not None or c.kind == U:
            self.emit(f"if {c.code}:")
            with self.block():
                self.stmt(s.then_case)
            if s.else_case is not None:
                self.emit("else:")
                with self.block():
                    self.stmt(s.else_case)
            return
        role = self.note_role(c, s)
        if s.else_case is not None:
            cond = self.fresh_name("c")
            self.emit(f"{cond} = {c.code}")
            c = Val(cond, "bool", c.kind, c.lane)
        with self.on_path(role):
            if (
                c.lane
                and self.picks_lanes(s.condition)
                and not self.has_collective(s.then_case)
                and not self.leaves_around(s.then_case)
            ):
                if self.blocks_in_loop(s.then_case):
                    self.add_role("tid // 32")  # the lanes of a scalar region run one after another
                self.scalar_region(c, lambda: self.stmt(s.then_case))
            else:
                self.masked_region(c.code, lambda: self.stmt(s.then_case))
        if s.else_case is not None:
            with self.on_path(role and f"lnot({role})"):
                self.masked_region(f"lnot({c.code})", lambda: self.stmt(s.else_case))

    def note_role(self, c: Val, s: Any) -> str:
        """Remember a condition that may send warps to different barriers; its code when it is a pure one, else ""."""
        code = _role(c.code)
        if "elect(" in code or not self.pure_role(code):
            return ""
        if self.blocks(s) or self.leaves(s):
            self.add_role(f"as_bool({code}, tid)")
        return code

    def add_role(self, code: str) -> None:
        """Warps that reach this place and differ in ``code`` do not run in lockstep."""
        for condition in reversed(self.role_path):
            code = f"select(as_bool({condition}, tid), {code}, -1)"
        self.roles.append(code)

    @contextmanager
    def on_path(self, condition: str) -> Any:
        if condition:
            self.role_path.append(condition)
        yield
        if condition:
            self.role_path.pop()

    def blocks(self, s: Any) -> bool:
        """Whether warps may wait in ``s`` (a wait for TMEM columns does not count: it ends without their help)."""
        for node in self.walk(s):
            if type(node).__name__ == "Call":
                entry = REGISTRY.get(str(getattr(node.op, "name", "")))
                if entry is not None and entry.blocking and entry.name != "tirx.ptx.tcgen05_alloc":
                    return True
                if str(getattr(node.op, "name", "")) == "tirx.cuda.wait_until":
                    return True
            elif type(node).__name__ == "While" and self.polls(node):
                return True
        return False

    def blocks_in_loop(self, s: Any) -> bool:
        return any(
            type(node).__name__ in ("For", "While") and self.blocks(node.body) for node in self.walk(s)
        )

    def waits_apart(self, varies: bool) -> None:
        """A blocking instruction whose barrier may differ between warps: warpgroups run apart, so that none waits for
        another's barrier."""
        if varies and self.scalar is None:
            self.add_role("tid // 128")

    def has_collective(self, s: Any) -> bool:
        for node in self.walk(s):
            if type(node).__name__ == "Call":
                name = str(getattr(node.op, "name", ""))
                entry = REGISTRY.get(name)
                if name == "tirx.tvm_warp_shuffle" or (entry is not None and entry.collective):
                    return True
        return False

    def picks_lanes(self, condition: Any) -> bool:
        """Whether the condition is built to be true in few lanes: elect, or equality with a lane number."""
        for node in self.walk(condition):
            kind = type(node).__name__
            if kind == "Call" and str(getattr(node.op, "name", "")) == "tirx.cuda.elect_sync":
                return True
            if kind == "EQ" and (type(node.b).__name__ == "IntImm" or type(node.a).__name__ == "IntImm"):
                side = node.a if type(node.b).__name__ == "IntImm" else node.b
                if str(side.ty) != "bool" and self.is_lane_number(side):
                    return True
        return False

    def is_lane_number(self, e: Any) -> bool:
        """Equality with it selects at most a few lanes of a warp: threadIdx.x, lane id, or a variable bound to one."""
        kind = type(e).__name__
        if kind == "Var":
            info = self.env.get(e)
            return isinstance(info, Scalar) and info.lane
        if kind == "FloorMod" and type(e.b).__name__ == "IntImm":
            return int(e.b.value) >= 16 and self.is_lane_number(e.a)
        return kind == "Call" and str(getattr(e.op, "name", "")) == "tirx.cuda.thread_rank"

    def masked_region(self, cond: str, body: Callable[[], None]) -> None:
        m, t = self.fresh_name("m"), self.fresh_name("t")
        self.emit(f"{m} = {self.t}.branch({cond})")
        self.emit(f"if {m} is not False:")
        saved = self.t, self.mask, self.depth
        with self.block():
            self.emit(f"{t} = {self.t} if {m} is {self.t}.mask else {self.t}.masked({m})")
            self.t, self.mask, self.depth = t, m, self.depth + 1
            body()
        self.t, self.mask, self.depth = saved

    def select(self, condition: str) -> str:
        """The lanes for which a condition holds; elections and single threads without a vector of conditions."""
        t = self.t
        if condition in (f"elect({t})", f"(elect({t}) != 0)"):
            return f"{t}.elected()"
        single = re.fullmatch(r"\((t(?:_\d+)?)\.tid == (\d+)\)", condition)
        if single is not None and single[1] == t and not self.grid_lanes:
            return f"{t}.select_thread({single[2]})"
        return f"{t}.select_lanes({condition})"

    def scalar_region(self, cond: Val, body: Callable[[], None]) -> None:
        self.regions += 1
        lane, t = self.fresh_name("ln"), self.fresh_name("t")
        region = ScalarRegion(self.regions, lane, self)
        self.emit(f"for {lane} in {self.select(cond.code)}:")
        outer_t, outer_mask = self.t, self.mask
        with self.block():
            self.emit(f"{t} = {self.t}.single({lane})")
            mark = len(self.lines)
            self.scalar, self.t, self.mask = region, t, None
            body()
            self.scalar, self.t, self.mask = None, outer_t, outer_mask
            captures = [
                (self.indent, f"{name} = pick({info.name}, {lane})", self.site)
                for name, info in region.captured.values()
            ]
            self.lines[mark:mark] = captures
            for info in region.written.values():
                name = region.captured[info.name][0]
                self.emit(f"{info.name} = put({info.name}, {lane}, {name}, {outer_t}.count)")

    # ------------------------------------------------------------------------------------------ the whole function

    def translate(self) -> Program:
        from emulator import runtime

        self.prepass()
        self.grid_lanes = self.independent_threads()
        params: list[tuple[str, str]] = []
        for p in self.func.params:
            name = self.fresh_name(str(p.name))
            elem = str(p.ty.element_type) if type(p.ty).__name__ == "PointerType" else ""
            dtype = "handle" if elem or "handle" in str(p.ty) or "ensor" in str(p.ty) else str(p.ty)
            params.append((name, dtype))
            self.env[p] = Scalar(name, dtype, U, elem=elem)
            self.role_names.add(name)
        self.emit(f"{''.join(name + ', ' for name, _ in params)}= args" if params else "pass")
        if self.returns(self.func.body):
            self.emit("alive = True")
        self.stmt(self.func.body)
        local_arrays: dict[str, LocalArray] = self.consts.pop("__locals__", {})
        text = ["def main(t, args):"]
        line_sites: dict[int, int] = {}
        for indent, code, site in self.lines:
            pad = "    " * indent
            if code.startswith("@local "):
                array = local_arrays[code[7:]]
                text.append(f"{pad}{array.name}_raw = new_local(t.count, {array.words}, {array.word})")
                line_sites[len(text)] = site
                for dtype in sorted(array.dtypes - {"raw"}):
                    text.append(f"{pad}{array.name}_{dtype} = {array.name}_raw.view({dtype!r})")
                    line_sites[len(text)] = site
                continue
            text.append(pad + code)
            line_sites[len(text)] = site
        text.append("    return")
        text.append("    yield")
        source = "\n".join(text) + "\n"
        namespace: dict[str, Any] = dict(runtime.NAMESPACE)
        namespace.update(self.consts)
        from emulator.machine.address import static_base

        namespace["STATIC_BASE"] = static_base()
        exec(compile(source, f"<{self.lowered.name}: warp program>", "exec"), namespace)
        role_key, role_depends = self.build_role_key(namespace, [name for name, _ in params])
        return Program(
            source,
            namespace["main"],
            self.sites,
            line_sites,
            role_key,
            role_depends,
            params,
            self.smem_access,
            self.static_smem,
            self.uses,
            self.stored_maps,
            self.written,
            self.grid_lanes,
            tuple(Operation(loc, op, tuple(names)) for (loc, op), names in self.operations.items()),
        )

    def build_role_key(
        self, namespace: dict[str, Any], params: list[str]
    ) -> tuple[Callable[..., Any] | None, tuple[bool, bool]]:
        """``role_key`` and ``role_depends`` of the program."""
        if not self.roles:
            return None, (False, False)
        keys = ", ".join(f"as_row({code}, tid)" for code in dict.fromkeys(self.roles))
        body: list[str] = []
        text = keys
        for name, code in reversed(self.role_lines):
            if re.search(rf"\b{name}\b", text):
                body.insert(0, f"    {name} = {_role(code)}")
                text += " " + code
        lines = ["def role_key(tid, block_idx, cluster_idx, args):"]
        if params:
            lines.append(f"    {', '.join(params)}, = args")
        lines += [*body, f"    return [{keys}]"]
        exec(compile("\n".join(lines) + "\n", f"<{self.lowered.name}: roles>", "exec"), namespace)
        return namespace["role_key"], ("block_idx" in text, "cluster_idx" in text)


class ScalarRegion:
    """Bookkeeping of one single-lane region: which outer variables it reads (captures) and writes."""

    def __init__(self, ident: int, lane: str, translator: Translator) -> None:
        self.id = ident
        self.lane = lane
        self.translator = translator
        self.captured: dict[str, tuple[str, Scalar]] = {}
        self.written: dict[str, Scalar] = {}

    def capture(self, info: Scalar) -> str:
        if info.kind == U and info.name not in self.written and info.name not in self.captured:
            # immutable uniform values need no copy; mutable locals are never U outside scalar code
            return info.name
        if info.name not in self.captured:
            self.captured[info.name] = (self.translator.fresh_name(info.name + "_s"), info)
        return self.captured[info.name][0]


def translate(lowered: Lowered, name: str) -> Program:
    """Translate device function ``name`` of ``lowered``.

    Raises:
        UnsupportedInstruction: with the op's name and the learner's line.
        EmulatorError: the translator itself is wrong there.
    """
    translator = Translator(lowered, lowered.devices[name])
    try:
        return translator.translate()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        text = f"{type(error).__name__} in the emulator's translation: {error}"
        raise EmulatorError(text, translator.location) from error


__all__ = ["Program", "fields_of", "translate"]
