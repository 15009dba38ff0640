"""The statements of a kernel's source: what sort each is, what orders what, and how they are edited.

Nothing here is general Python analysis: it knows the spellings that the kernels of this repository use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# What a statement does. "wait" and "sync" block; "access" touches memory.
KINDS = ("wait", "sync", "arrive", "commit", "fence", "init", "access", "other")

_PTX = (
    (r"mbarrier\.init", "init"),
    (r"mbarrier\.arrive|bar\.arrive", "arrive"),
    (r"tcgen05\.commit|cp\.async\.(bulk\.)?commit_group", "commit"),
    (r"cp\.async\.(bulk\.)?wait_group|tcgen05\.wait", "wait"),
    (r"bar\.sync", "sync"),
    (r"tcgen05\.fence|fence\.", "fence"),
    (r"mapa|tcgen05\.relinquish", "other"),
    (r"", "access"),
)
_METHODS = {"wait": "wait", "arrive": "arrive", "init": "init"}
_TILE = ("copy", "copy_async", "gemm_async")


@dataclass(eq=False)
class Statement:
    """One statement of the kernel function, compound ones included.

    Attributes:
        node: its syntax tree.
        kind: one of KINDS.
        barrier: the mbarrier or named barrier it works on, else None.
        path: the branches around it, outermost first: (id of the If, "body" or "orelse").
        loops: the loops around it, outermost first.
        block, index: the list of statements it stands in, and where.
        inlined: it stands in a helper.
    """

    node: ast.stmt
    kind: str
    barrier: str | None
    path: tuple[tuple[int, str], ...]
    loops: tuple[ast.stmt, ...]
    block: list[ast.stmt]
    index: int
    inlined: bool = False

    @property
    def lines(self) -> range:
        """Its lines (of a compound statement: the header only)."""
        last = self.node.end_lineno or self.node.lineno
        if isinstance(self.node, (ast.If, ast.For, ast.While)):
            last = self.node.body[0].lineno - 1
        return range(self.node.lineno, max(last, self.node.lineno) + 1)

    @property
    def simple(self) -> bool:
        return not isinstance(self.node, (ast.If, ast.For, ast.While, ast.FunctionDef, ast.With))

    @property
    def text(self) -> str:
        """One line of source without layout or comments."""
        text = ast.unparse(self.node)
        return text if self.simple else text.split("\n", 1)[0]


def call_name(node: ast.AST) -> str:
    """``full.wait``, ``T.cuda.cta_sync``, ``ptx:bar.sync`` ...; "" when it is no call."""
    if isinstance(node, ast.Expr):
        node = node.value
    if not isinstance(node, ast.Call):
        return ""
    f = node.func
    if isinstance(f, ast.Subscript) and ast.unparse(f.value) == "T.ptx" and isinstance(f.slice, ast.Constant):
        return f"ptx:{f.slice.value}"
    return ast.unparse(f)


@dataclass
class Kernel:
    """A kernel's source, parsed.

    Attributes:
        text: the module. builder: name of the function that holds the kernel.
        statements: those of the kernel function in source order.
        barriers: mbarrier name -> class name, e.g. ``full -> TMABar``; a plain uint64 is an ``mbarrier``.
        states: PipelineState name -> source text of its depth.
        accumulators: names of buffers in tensor memory.
        views: remote view of an mbarrier -> the mbarrier.
    """

    text: str
    builder: str
    statements: list[Statement] = field(default_factory=list)
    barriers: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    accumulators: set[str] = field(default_factory=set)
    views: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")
        functions = [n for n in ast.walk(ast.parse(self.text)) if isinstance(n, ast.FunctionDef)]
        builder = next(f for f in functions if f.name == self.builder)
        kernels = [n for n in ast.walk(builder) if isinstance(n, ast.FunctionDef) and n is not builder]
        kernel = next(k for k in kernels if any("prim_func" in ast.unparse(d) for d in k.decorator_list))
        for node in ast.walk(kernel):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name, value = node.targets[0].id, call_name(node.value)
                if value in ("TMABar", "TCGen05Bar", "MBarrier"):
                    self.barriers[name] = value
                elif value.endswith(".remote_view"):
                    self.barriers[name] = "MBarrier"
                    self.views[name] = value.split(".")[0]
                elif value == "pool.alloc" and "uint64" in ast.unparse(node.value):
                    self.barriers[name] = "mbarrier"
                elif value == "tmem.alloc" or "scope='tmem'" in ast.unparse(node.value):
                    self.accumulators.add(name)
                elif value == "PipelineState" and isinstance(node.value, ast.Call):
                    self.states[name] = ast.unparse(node.value.args[0])
        self._collect(kernel.body, (), ())

    def _collect(
        self,
        block: list[ast.stmt],
        path: tuple[tuple[int, str], ...],
        loops: tuple[ast.stmt, ...],
        inlined: bool = False,
    ) -> None:
        for index, node in enumerate(block):
            kind, barrier = self._kind(node), self._barrier(node)
            if kind == "arrive" and barrier is None:  # through an address that mapa has made just before
                earlier = [n for n in block[:index] if call_name(n).startswith("ptx:mapa")]
                barrier = self._barrier(earlier[-1]) if earlier else None
            self.statements.append(Statement(node, kind, barrier, path, loops, block, index, inlined))
            if isinstance(node, ast.If):
                self._collect(node.body, (*path, (id(node), "body")), loops, inlined)
                self._collect(node.orelse, (*path, (id(node), "orelse")), loops, inlined)
            elif isinstance(node, (ast.For, ast.While)):
                self._collect(node.body, path, (*loops, node), inlined)
            elif isinstance(node, ast.FunctionDef):
                self._collect(node.body, path, loops, True)

    def _kind(self, node: ast.stmt) -> str:
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            return "access" if isinstance(target, ast.Subscript) else "other"
        if not isinstance(node, ast.Expr):
            return "other"
        name = call_name(node)
        if name.startswith("ptx:"):
            return next(kind for pattern, kind in _PTX if re.match(pattern, name[4:]))
        if name.startswith("T.cuda."):
            return "sync" if name.endswith("_sync") else "wait" if "mbarrier_wait" in name else "other"
        owner, _, method = name.rpartition(".")
        if owner in self.barriers:
            if method == "arrive" and self.barriers[owner] == "TCGen05Bar":
                return "commit"
            return _METHODS.get(method, "other")
        if owner.split(".")[0] == "Tx" and method in _TILE:
            return "access"
        if owner.startswith("tmem") and method in ("commit", "dealloc"):
            return "access"
        return "other"

    def _barrier(self, node: ast.stmt) -> str | None:
        if not isinstance(node, ast.Expr):
            return None
        name = call_name(node)
        if name.startswith("ptx:bar.") and isinstance(node.value, ast.Call):
            return "bar " + ast.unparse(node.value.args[0])
        owner = name.rpartition(".")[0]
        if owner in self.barriers:
            return self.local(owner)
        text = ast.unparse(node)
        return next((b for b in self.barriers if re.search(rf"\b{b}\.ptr_to\(", text)), None)

    def local(self, barrier: str) -> str:
        """``full`` for its remote view ``leader_full``."""
        return self.views.get(barrier, barrier)

    # ---------------------------------------- what orders what

    def mentions(self, name: str) -> Iterator[Statement]:
        """Simple statements and conditions that use a name."""
        for s in self.statements:
            if re.search(rf"\b{re.escape(name)}\b", s.text):
                yield s

    def same_barrier(self, statement: Statement) -> list[Statement]:
        """Other statements on the same barrier, its init excepted."""
        if statement.barrier is None:
            return []
        return [
            s
            for s in self.statements
            if s is not statement and s.barrier == statement.barrier and s.kind != "init"
        ]

    def neighbours(self, statement: Statement) -> list[Statement]:
        """The accesses (initialisations of barriers included) that a statement stands between.

        Forwards and backwards, through the ends of loops around it, up to the next statement that blocks
        whenever this one is reached (a fence of the whole GPU orders beyond it). Branches that exclude it are
        skipped.
        """
        found: dict[int, Statement] = {}
        order = self.statements
        at = order.index(statement)
        for step in (1, -1):
            for s in self._reach(order, at, step, statement):
                found.setdefault(id(s), s)
        return list(found.values())

    def _reach(self, order: list[Statement], at: int, step: int, origin: Statement) -> Iterator[Statement]:
        stop = len(order) if step > 0 else -1
        blocked = yield from self._scan(order, range(at + step, stop, step), origin)
        if origin.loops and (blocked is None or origin.loops[-1] not in blocked.loops):
            inner = [
                i for i, s in enumerate(order) if origin.loops[-1] in s.loops
            ]  # the next, or previous, round
            yield from self._scan(order, inner[::step], origin)

    def _scan(
        self, order: list[Statement], indices: range | list[int], origin: Statement
    ) -> Iterator[Statement]:
        branches = dict(origin.path)
        for i in indices:
            s = order[i]
            if any(branches.get(owner, branch) != branch for owner, branch in s.path):
                continue
            if s is origin:
                return s
            if (
                s.kind in ("wait", "sync")
                and set(s.path) <= set(origin.path)
                and "acq_rel" not in origin.text
            ):
                return s
            if s.kind in ("access", "init"):
                yield s
        return None


# ---------------------------------------------------------------------------------------------- edits


@dataclass
class Edited:
    """A module after an edit. ``where[old line] = new line`` for every line that is still there."""

    text: str
    where: dict[int, int]
    added: frozenset[int] = frozenset()

    def lines_of(self, statement: Statement) -> set[int]:
        return {self.where[line] for line in statement.lines if line in self.where}


def _assemble(lines: list[tuple[int, str]]) -> Edited:
    """``lines``: (old line or 0, text)."""
    where = {old: new for new, (old, _) in enumerate(lines, 1) if old}
    added = frozenset(new for new, (old, _) in enumerate(lines, 1) if not old)
    return Edited("\n".join(text for _, text in lines), where, added)


def _numbered(kernel: Kernel) -> list[tuple[int, str]]:
    return list(enumerate(kernel.lines, 1))


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def replace_statement(kernel: Kernel, statement: Statement, text: str) -> Edited:
    """The statement's first line becomes ``text``, its others empty: no line moves."""
    lines = _numbered(kernel)
    first = statement.node.lineno
    lines[first - 1] = (first, _indent(kernel.lines[first - 1]) + text)
    for line in range(first + 1, (statement.node.end_lineno or first) + 1):
        lines[line - 1] = (line, "")
    return _assemble(lines)


def replace_expression(kernel: Kernel, node: ast.expr, text: str) -> Edited:
    """An expression becomes ``text`` where it stands. Columns are those of ASCII source."""
    lines = _numbered(kernel)
    first, last = node.lineno, node.end_lineno or node.lineno
    head = kernel.lines[first - 1][: node.col_offset]
    tail = kernel.lines[last - 1][node.end_col_offset :]
    lines[first - 1] = (first, head + text + tail)
    for line in range(first + 1, last + 1):
        lines[line - 1] = (line, "")
    return _assemble(lines)


def move_before(kernel: Kernel, statement: Statement, target: Statement) -> Edited:
    """The statement moves in front of ``target``, at the target's indentation."""
    lines = _numbered(kernel)
    first, last = statement.node.lineno, statement.node.end_lineno or statement.node.lineno
    moved = lines[first - 1 : last]
    shift = target.node.col_offset - statement.node.col_offset
    moved = [(old, " " * (len(_indent(text)) + shift) + text.lstrip()) for old, text in moved]
    rest = lines[: first - 1] + lines[last:]
    if len(statement.block) == 1:
        rest.insert(first - 1, (0, " " * statement.node.col_offset + "pass"))
    at = next(i for i, (old, _) in enumerate(rest) if old == target.node.lineno)
    return _assemble(rest[:at] + moved + rest[at:])


def repeat(kernel: Kernel, statement: Statement) -> Edited:
    """The statement stands there twice."""
    lines = _numbered(kernel)
    first, last = statement.node.lineno, statement.node.end_lineno or statement.node.lineno
    again = [(0, text) for _, text in lines[first - 1 : last]]
    return _assemble(lines[:last] + again + lines[last:])


def sub_expressions(statement: Statement, wanted: Callable[[ast.expr], bool]) -> list[ast.expr]:
    """Expressions in a statement (of a compound one: in its header) that ``wanted`` accepts, in source order."""
    node = statement.node
    if isinstance(node, (ast.If, ast.While)):
        roots: list[ast.AST] = [node.test]
    elif isinstance(node, ast.For):
        roots = [node.iter]
    elif isinstance(node, ast.FunctionDef):
        roots = []
    else:
        roots = [node]
    found = [n for root in roots for n in ast.walk(root) if isinstance(n, ast.expr) and wanted(n)]
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))
