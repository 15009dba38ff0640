"""The mistakes: each operator yields every place of a kernel where it can make one.

A mutant knows which lines a report may name:

* ``changed``: the lines of the statement that is different now, where it still stands;
* ``partners``: for what is gone or no longer holds, the lines whose ordering (or meaning) it was. These are

  - for a wait, a barrier, a fence, an arrival or a commit: the accesses it stood between (see
    :meth:`mutation.source.Kernel.neighbours`), and the other statements on the same barrier (who waits for ever
    when nobody arrives);
  - for commit_group and wait_group: the copies, and the accesses to their SMEM buffer;
  - for a declaration, an initial phase or a flip of a phase: the statements that use the variable;
  - for a condition or a loop: the statements inside, those of a helper that is called there included;
  - for a copy, an MMA or a store: the other statements on the same buffer, and on the barrier that it signals;
  - for an allocation of TMEM the deallocation, and the other way round, and the accesses to TMEM.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mutation.source import (
    Edited,
    Kernel,
    Statement,
    call_name,
    move_before,
    repeat,
    replace_expression,
    replace_statement,
    sub_expressions,
)


@dataclass(frozen=True)
class Draft:
    """A mistake in one kernel.

    Attributes:
        operator: its name in OPERATORS.
        statement: the statement that it changes.
        variant: tells apart mistakes of one operator in one statement.
        what: in words.
        edited: the module with the mistake.
        partners: see the module's text.
    """

    operator: str
    statement: Statement
    variant: str
    what: str
    edited: Edited
    partners: tuple[Statement, ...]


Operator = Callable[[Kernel], Iterator[Draft]]
OPERATORS: dict[str, Operator] = {}


def operator(function: Operator) -> Operator:
    OPERATORS[function.__name__] = function
    return function


def _ordering(kernel: Kernel, s: Statement) -> tuple[Statement, ...]:
    if "_group" in s.text and "cp.async" in s.text:
        return _groups(kernel, s)
    return (*kernel.neighbours(s), *kernel.same_barrier(s))


def _groups(kernel: Kernel, s: Statement) -> tuple[Statement, ...]:
    """For commit_group and wait_group: the copies, and the other accesses to their SMEM buffer."""
    copies, buffers = [], set()
    for t in kernel.statements:
        if "bulk" in s.text and call_name(t.node) == "Tx.copy_async" and "mbar=" not in t.text:
            assert isinstance(t.node, ast.Expr) and isinstance(t.node.value, ast.Call)
            source = t.node.value.args[1]
        elif "bulk" not in s.text and "cp.async.cg" in t.text:
            assert isinstance(t.node, ast.Expr) and isinstance(t.node.value, ast.Call)
            source = t.node.value.args[0]
        else:
            continue
        copies.append(t)
        buffers.add(next(n.id for n in ast.walk(source) if isinstance(n, ast.Name)))
    return (*copies, *(t for b in sorted(buffers) for t in _users(kernel, b, s) if t.kind == "access"))


def _users(kernel: Kernel, name: str, but: Statement) -> tuple[Statement, ...]:
    return tuple(s for s in kernel.mentions(name) if s is not but)


def _inside(kernel: Kernel, s: Statement) -> tuple[Statement, ...]:
    nodes = list(ast.walk(s.node))
    called = {call_name(n) for n in nodes if isinstance(n, ast.Expr)}
    for t in kernel.statements:
        if isinstance(t.node, ast.FunctionDef) and t.node.name in called:
            nodes += ast.walk(t.node)
    inside = set(map(id, nodes))
    return tuple(t for t in kernel.statements if id(t.node) in inside and t is not s)


def _buffers(kernel: Kernel, s: Statement) -> tuple[Statement, ...]:
    """Statements on the buffers (SMEM, TMEM, tensors) and on the barrier that an access names."""
    names = set()
    for n in ast.walk(s.node):
        if (
            isinstance(n, ast.Subscript)
            and isinstance(n.value, ast.Name)
            or isinstance(n, ast.Attribute)
            and n.attr == "ptr_to"
            and isinstance(n.value, ast.Name)
        ):
            names.add(n.value.id)
    found = [t for name in sorted(names - {"T"} - set(kernel.barriers)) for t in _users(kernel, name, s)]
    if re.search(r"alloc|tmem\.commit", s.text):
        found += [t for t in kernel.statements if re.search(r"alloc\.cta|tmem\.(commit|dealloc)", t.text)]
        found += [
            t for name in sorted(kernel.accumulators) for t in _users(kernel, name, s) if t.kind == "access"
        ]
        found = [t for t in found if t is not s]
    return (*found, *kernel.same_barrier(s))


def _meaning(kernel: Kernel, s: Statement) -> tuple[Statement, ...]:
    return _buffers(kernel, s) if s.kind == "access" else _ordering(kernel, s)


def _drop(kernel: Kernel, operator: str, kinds: Iterable[str]) -> Iterator[Draft]:
    for s in kernel.statements:
        if s.kind in kinds:
            partners = _ordering(kernel, s)
            if s.kind == "init" and s.barrier:
                partners = _users(kernel, s.barrier, s)
            if s.kind == "access":
                partners = _buffers(kernel, s)
            yield Draft(operator, s, "", f"without {s.text}", replace_statement(kernel, s, "pass"), partners)


@operator
def drop_wait(kernel: Kernel) -> Iterator[Draft]:
    yield from _drop(kernel, "drop_wait", ("wait",))


@operator
def drop_sync(kernel: Kernel) -> Iterator[Draft]:
    yield from _drop(kernel, "drop_sync", ("sync",))


@operator
def drop_fence(kernel: Kernel) -> Iterator[Draft]:
    yield from _drop(kernel, "drop_fence", ("fence",))


@operator
def drop_arrive(kernel: Kernel) -> Iterator[Draft]:
    yield from _drop(kernel, "drop_arrive", ("arrive",))


@operator
def drop_commit(kernel: Kernel) -> Iterator[Draft]:
    yield from _drop(kernel, "drop_commit", ("commit",))


@operator
def drop_access(kernel: Kernel) -> Iterator[Draft]:
    """A copy, an MMA, a store, an allocation or a deallocation is missing; so is the init of a barrier."""
    yield from _drop(kernel, "drop_access", ("access", "init"))


@operator
def drop_advance(kernel: Kernel) -> Iterator[Draft]:
    """A stage or phase that never moves on."""
    for s in kernel.statements:
        name = None
        if isinstance(s.node, ast.Expr) and call_name(s.node).endswith(".advance"):
            name = call_name(s.node).split(".")[0]
        elif isinstance(s.node, ast.Assign) and "phase" in ast.unparse(s.node.targets[0]):
            name = ast.unparse(s.node.targets[0])
        if name is not None:
            yield Draft(
                "drop_advance",
                s,
                "",
                f"without {s.text}",
                replace_statement(kernel, s, "pass"),
                _users(kernel, name, s),
            )


@operator
def flip_phase(kernel: Kernel) -> Iterator[Draft]:
    """Waits for the other parity, or starts with it."""
    for s in kernel.statements:
        node = s.node
        if s.kind == "wait" and isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if s.barrier is None:
                continue
            phase = node.value.args[-1]
            text = f"{ast.unparse(phase)} ^ 1"
            if isinstance(phase, ast.Constant):
                text = str(1 - phase.value)
            edited = replace_expression(kernel, phase, text)
            yield Draft("flip_phase", s, "", f"parity {text} in {s.text}", edited, _ordering(kernel, s))
        elif isinstance(node, ast.AnnAssign) and "phase" in ast.unparse(node.target):
            if isinstance(node.value, ast.Constant):
                edited = replace_expression(kernel, node.value, str(1 - node.value.value))
                users = _users(kernel, ast.unparse(node.target), s)
                yield Draft("flip_phase", s, "", f"starts with the other phase: {s.text}", edited, users)
        elif isinstance(node, ast.Assign) and call_name(node.value) == "PipelineState":
            assert isinstance(node.value, ast.Call) and isinstance(node.value.args[1], ast.Constant)
            phase = node.value.args[1]
            edited = replace_expression(kernel, phase, str(1 - phase.value))
            users = _users(kernel, ast.unparse(node.targets[0]), s)
            yield Draft("flip_phase", s, "", f"starts with the other phase: {s.text}", edited, users)


def _number(node: ast.expr) -> ast.expr:
    """The number inside ``T.uint32(n)``, or the expression itself."""
    return node.args[0] if isinstance(node, ast.Call) and call_name(node).startswith("T.uint") else node


@operator
def change_count(kernel: Kernel) -> Iterator[Draft]:
    """An arrival count, the thread count of a named barrier, or the N of wait_group."""
    for s in kernel.statements:
        if (
            not isinstance(s.node, ast.Expr)
            or not isinstance(s.node.value, ast.Call)
            or not s.node.value.args
        ):
            continue
        name, count = call_name(s.node), _number(s.node.value.args[-1])
        text = ast.unparse(count)
        if s.kind == "init":
            one_less = str(count.value - 1) if isinstance(count, ast.Constant) else f"{text} - 1"
            variants = [(f"{text} + 1", "one more")]
            if one_less != "0":
                variants += [(one_less, "one less"), ("1", "one")]
            partners = _users(kernel, s.barrier, s) if s.barrier else ()
        elif name.startswith("ptx:bar."):
            variants, partners = [(f"{text} + 32", "a warp more")], _ordering(kernel, s)
            if text != "32":
                variants.append((f"{text} - 32", "a warp less"))
        elif "wait_group" in name:
            variants, partners = [(f"{text} + 1", "one more")], _ordering(kernel, s)
        else:
            continue
        for new, variant in variants:
            edited = replace_expression(kernel, count, new)
            yield Draft("change_count", s, variant, f"{new} instead of {text} in {s.text}", edited, partners)


@operator
def change_bytes(kernel: Kernel) -> Iterator[Draft]:
    """expect_tx with other than the bytes of the copies."""
    for s in kernel.statements:
        if s.kind != "arrive" or s.barrier is None or kernel.barriers.get(s.barrier) != "TMABar":
            continue
        assert isinstance(s.node, ast.Expr) and isinstance(s.node.value, ast.Call)
        count = s.node.value.args[-1]
        text = ast.unparse(count)
        for new, variant in ((f"{text} // 2", "half"), (f"{text} * 2", "twice"), (f"{text} - 16", "16 less")):
            edited = replace_expression(kernel, count, new)
            yield Draft("change_bytes", s, variant, f"{new} in {s.text}", edited, _ordering(kernel, s))


def _is_stage(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "stage"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return ast.unparse(node) in ("i % 2", "i % STAGES", "(i + 2) % STAGES")
    return False


@operator
def change_stage(kernel: Kernel) -> Iterator[Draft]:
    """The next stage or slot instead of this one, in a wait, an arrival, a copy or an MMA."""
    for s in kernel.statements:
        if not s.simple or s.kind == "other":
            continue
        stages = sub_expressions(s, _is_stage)
        for number, stage in enumerate(stages):
            text = ast.unparse(stage)
            depth = kernel.states.get(text.split(".")[0]) if isinstance(stage, ast.Attribute) else None
            new = f"({text} + 1) % {depth}" if depth else f"({text.replace('i', 'i + 1', 1)})"
            if not depth:
                new = (
                    text.replace("(i + 2)", "(i + 1)")
                    if "(i + 2)" in text
                    else text.replace("i %", "(i + 1) %")
                )
            edited = replace_expression(kernel, stage, new)
            variant = "" if len(stages) == 1 else str(number)
            yield Draft(
                "change_stage",
                s,
                variant,
                f"{new} instead of {text} in {s.text}",
                edited,
                _meaning(kernel, s),
            )


@operator
def change_coordinate(kernel: Kernel) -> Iterator[Draft]:
    """A slice of a tensor or a tile, or an index, that starts elsewhere."""
    for s in kernel.statements:
        if s.kind != "access" or not s.simple:
            continue
        number = 0
        for sub in sub_expressions(s, lambda n: isinstance(n, ast.Subscript)):
            assert isinstance(sub, ast.Subscript)
            if not isinstance(sub.value, ast.Name) or not isinstance(sub.slice, ast.Tuple):
                continue
            for axis, index in enumerate(sub.slice.elts):
                if isinstance(index, ast.Slice) and index.lower is not None and index.upper is not None:
                    low, high = ast.unparse(index.lower), ast.unparse(index.upper)
                    text = f"{low} + 64 : {high} + 64"
                    first, last = index.lower, index.upper
                elif isinstance(index, ast.BinOp) and not _is_stage(index) and isinstance(index.op, ast.Add):
                    text, first, last = f"({ast.unparse(index)} + 1) % 128", index, index
                else:
                    continue
                span = ast.Constant(0)
                span.lineno, span.col_offset = first.lineno, first.col_offset
                span.end_lineno, span.end_col_offset = last.end_lineno, last.end_col_offset
                if first.lineno != last.end_lineno:
                    continue
                edited = replace_expression(kernel, span, text)
                variant = f"{sub.value.id}.{axis}"
                number += 1
                yield Draft(
                    "change_coordinate",
                    s,
                    variant,
                    f"{sub.value.id}[... {text} ...] in {s.text}",
                    edited,
                    _buffers(kernel, s),
                )


@operator
def change_shape(kernel: Kernel) -> Iterator[Draft]:
    """Half of a copy, half of a buffer, half of the columns."""
    for s in kernel.statements:
        if not s.simple:
            continue
        if s.kind == "access":
            for sub in sub_expressions(s, lambda n: isinstance(n, ast.Subscript)):
                assert isinstance(sub, ast.Subscript)
                if (
                    isinstance(sub.value, ast.Name)
                    and ast.unparse(sub).endswith(":]")
                    and "regs" in sub.value.id
                ):
                    edited = replace_expression(kernel, sub, ast.unparse(sub)[:-2] + "0:32]")
                    yield Draft(
                        "change_shape",
                        s,
                        sub.value.id,
                        f"32 registers in {s.text}",
                        edited,
                        _buffers(kernel, s),
                    )
            if "tcgen05.alloc" in s.text or "tcgen05.dealloc" in s.text:
                assert isinstance(s.node, ast.Expr) and isinstance(s.node.value, ast.Call)
                count = _number(s.node.value.args[-1])
                edited = replace_expression(kernel, count, f"{ast.unparse(count)} // 2")
                yield Draft(
                    "change_shape",
                    s,
                    "",
                    f"half of the columns in {s.text}",
                    edited,
                    _users(kernel, "acc", s),
                )
        elif isinstance(s.node, ast.Assign) and isinstance(s.node.value, ast.Call):
            name = call_name(s.node.value)
            shape = s.node.value.args[0] if s.node.value.args else None
            target = ast.unparse(s.node.targets[0])
            if name in ("pool.alloc", "pool.alloc_tcgen05_mma_AB", "tmem.alloc") and isinstance(
                shape, ast.Tuple
            ):
                if "uint" in s.text:
                    continue
                for axis, extent in enumerate(shape.elts):
                    edited = replace_expression(kernel, extent, f"{ast.unparse(extent)} // 2")
                    what = f"half of axis {axis} of {target}"
                    yield Draft("change_shape", s, str(axis), what, edited, _users(kernel, target, s))


@operator
def change_swizzle(kernel: Kernel) -> Iterator[Draft]:
    """Another swizzle where two sides must agree on one."""
    for s in kernel.statements:
        for n in sub_expressions(
            s, lambda n: isinstance(n, ast.Attribute) and n.attr.startswith("SWIZZLE_128B")
        ):
            target = ast.unparse(s.node.targets[0]) if isinstance(s.node, ast.Assign) else ""
            edited = replace_expression(kernel, n, "SwizzleMode.SWIZZLE_64B_ATOM")
            yield Draft(
                "change_swizzle", s, "64B", f"64-byte swizzle for {target}", edited, _users(kernel, target, s)
            )
        for n in sub_expressions(
            s, lambda n: isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitXor) and "8" in ast.unparse(n)
        ):
            assert isinstance(n, ast.BinOp)
            target = ast.unparse(s.node.targets[0]) if isinstance(s.node, ast.Assign) else ""
            for new, variant in (
                (ast.unparse(n.left), "none"),
                (ast.unparse(n).replace("% 8", "% 4"), "half"),
            ):
                edited = replace_expression(kernel, n, new)
                what = f"{new} instead of {ast.unparse(n)}"
                yield Draft("change_swizzle", s, variant, what, edited, _users(kernel, target, s))


@operator
def change_layout(kernel: Kernel) -> Iterator[Draft]:
    """Rows and columns of the accumulator exchanged, columns apart, an operand transposed."""
    for s in kernel.statements:
        if not s.simple:
            continue
        for n in sub_expressions(s, lambda n: isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult)):
            assert isinstance(n, ast.BinOp)
            target = ast.unparse(s.node.targets[0]) if isinstance(s.node, ast.Assign) else ""
            if ast.unparse(n) == "1 @ TCol":
                edited = replace_expression(kernel, n, "2 @ TCol")
                yield Draft(
                    "change_layout", s, "stride", "every second column", edited, _users(kernel, target, s)
                )
            else:
                edited = replace_expression(kernel, n, "1 @ TCol")
                yield Draft(
                    "change_layout", s, "axis", "rows along the columns", edited, _users(kernel, target, s)
                )
        if "gemm_async" in call_name(s.node) and isinstance(s.node, ast.Expr):
            assert isinstance(s.node.value, ast.Call)
            a, b = s.node.value.args[1:3]
            edited = replace_expression(kernel, b, ast.unparse(a))
            yield Draft("change_layout", s, "operand", f"A twice in {s.text}", edited, _buffers(kernel, s))


@operator
def change_accumulate(kernel: Kernel) -> Iterator[Draft]:
    """The first MMA adds to what TMEM holds, or a later one overwrites."""
    for s in kernel.statements:
        if "gemm_async" not in call_name(s.node) or not isinstance(s.node, ast.Expr):
            continue
        assert isinstance(s.node.value, ast.Call)
        flag = next(k.value for k in s.node.value.keywords if k.arg == "accum")
        text = ast.unparse(flag)
        for new in ("True",) if text == "False" else ("True", "False", text.replace("> 0", "> 1")):
            edited = replace_expression(kernel, flag, new)
            yield Draft("change_accumulate", s, new, f"accum={new} in {s.text}", edited, _buffers(kernel, s))


@operator
def change_mask(kernel: Kernel) -> Iterator[Draft]:
    """A multicast mask with one CTA; a condition that selects another warp or CTA."""
    for s in kernel.statements:
        for n in sub_expressions(s, lambda n: isinstance(n, ast.keyword) or ast.unparse(n) == "BOTH"):
            if isinstance(n, ast.Name):
                for new in ("0b01", "0b10"):
                    edited = replace_expression(kernel, n, new)
                    yield Draft("change_mask", s, new, f"mask {new} in {s.text}", edited, _meaning(kernel, s))
        if isinstance(s.node, ast.If) and re.fullmatch(
            r"(warp|rank|warpgroup|thread) == \d", ast.unparse(s.node.test)
        ):
            name, _, value = ast.unparse(s.node.test).split()
            new = f"{name} == {int(value) ^ 1}"
            if name in ("warp", "thread") and not s.node.orelse:
                if all(t.kind == "wait" or not t.simple for t in _inside(kernel, s)):
                    continue
                new = f"{name} < {int(value) + 2}"  # another warp would do as well
            edited = replace_expression(kernel, s.node.test, new)
            yield Draft(
                "change_mask",
                s,
                "",
                f"{new} instead of {ast.unparse(s.node.test)}",
                edited,
                _inside(kernel, s),
            )


@operator
def wrong_rank(kernel: Kernel) -> Iterator[Draft]:
    """The other CTA of a cluster, or cta_group::1 in a kernel of pairs."""
    for s in kernel.statements:
        if not s.simple:
            continue
        for n in sub_expressions(s, lambda n: isinstance(n, ast.Call)):
            assert isinstance(n, ast.Call)
            if call_name(n).endswith("remote_view"):
                edited = replace_expression(kernel, n.args[0], "1")
                target = ast.unparse(s.node.targets[0]) if isinstance(s.node, ast.Assign) else ""
                yield Draft("wrong_rank", s, "view", f"rank 1 in {s.text}", edited, _users(kernel, target, s))
        for number, n in enumerate(sub_expressions(s, lambda n: ast.unparse(n) == "1 - rank")):
            edited = replace_expression(kernel, n, "rank")
            yield Draft(
                "wrong_rank",
                s,
                f"own{number}",
                f"rank instead of 1 - rank in {s.text}",
                edited,
                _ordering(kernel, s),
            )
        if isinstance(s.node, (ast.Expr, ast.Assign)) and isinstance(s.node.value, ast.Call):
            for keyword in s.node.value.keywords:
                if keyword.arg == "cta_group" and ast.unparse(keyword.value) == "2":
                    edited = replace_expression(kernel, keyword.value, "1")
                    yield Draft(
                        "wrong_rank", s, "cta_group", f"cta_group=1 in {s.text}", edited, _meaning(kernel, s)
                    )


@operator
def wrong_barrier(kernel: Kernel) -> Iterator[Draft]:
    """A wait, an arrival or a copy names another barrier of the kernel."""
    names = [b for b, kind in kernel.barriers.items() if kind != "mbarrier"]
    for s in kernel.statements:
        if not s.simple or s.kind not in ("wait", "arrive", "commit", "access") or s.barrier is None:
            continue
        others = [b for b in names if b not in kernel.views and b != kernel.local(s.barrier)]
        owners = sub_expressions(s, lambda n: isinstance(n, ast.Name) and n.id in names)
        if not others or not owners:
            continue
        owner = owners[0]
        new = others[(names.index(s.barrier) if s.barrier in names else 0) % len(others)]
        edited = replace_expression(kernel, owner, new)
        partners = (*_meaning(kernel, s), *kernel.same_barrier(s))
        yield Draft(
            "wrong_barrier", s, new, f"{new} instead of {ast.unparse(owner)} in {s.text}", edited, partners
        )


@operator
def out_of_elect(kernel: Kernel) -> Iterator[Draft]:
    """All lanes do what one elected lane should do; or another lane does what belongs to the elected one."""
    if not any(s.text.startswith("lane = ") for s in kernel.statements):
        return
    for s in kernel.statements:
        if isinstance(s.node, ast.If) and ast.unparse(s.node.test) == "T.cuda.elect_sync()":
            inside = _inside(kernel, s)
            edited = replace_expression(kernel, s.node.test, "lane < 32")
            inside = (
                *inside,
                *(t for i in inside if i.kind in ("wait", "commit") for t in _ordering(kernel, i)),
            )
            if any(t.kind != "wait" for t in _inside(kernel, s)):
                yield Draft("out_of_elect", s, "all", "all lanes instead of one", edited, inside)
            if all(t.kind in ("wait", "commit") for t in _inside(kernel, s)):
                edited = replace_expression(kernel, s.node.test, "lane == 5")
                yield Draft("out_of_elect", s, "other", "another lane than the elected one", edited, inside)


@operator
def narrow_sync(kernel: Kernel) -> Iterator[Draft]:
    """A barrier, a wait or a fence that only some of the threads execute."""
    if not any(re.match(r"warp = ", s.text) for s in kernel.statements):
        return
    for s in kernel.statements:
        if s.kind not in ("sync", "wait", "fence") or not isinstance(s.node, ast.Expr) or s.inlined:
            continue
        if "mbarrier_init" in s.text:
            continue  # thread 0 has initialised the barriers
        if any(
            "warp" in ast.unparse(t.node.test)
            for t in kernel.statements
            if isinstance(t.node, ast.If) and any(id(t.node) == o for o, _ in s.path)
        ):
            continue
        edited = replace_statement(kernel, s, f"if warp == 0: {s.text}")
        yield Draft("narrow_sync", s, "warp", f"warp 0 alone: {s.text}", edited, _ordering(kernel, s))
        if "fence.proxy" in s.text and any(t.text.startswith("lane = ") for t in kernel.statements):
            edited = replace_statement(kernel, s, f"if lane == 0: {s.text}")
            yield Draft(
                "narrow_sync",
                s,
                "lane",
                f"lane 0 of every warp alone: {s.text}",
                edited,
                _ordering(kernel, s),
            )


def _ordered(s: Statement) -> bool:
    return s.simple and s.kind != "other"


@operator
def swap_lines(kernel: Kernel) -> Iterator[Draft]:
    """Two neighbouring statements, one of which orders the other, in the wrong order."""
    by_node = {id(s.node): s for s in kernel.statements}
    for s in kernel.statements:
        if s.index + 1 >= len(s.block) or not _ordered(s):
            continue
        after = by_node[id(s.block[s.index + 1])]
        if not _ordered(after):
            continue
        kinds = {s.kind, after.kind}
        if (
            len(kinds) == 1
            or kinds == {"init", "fence"}
            or kinds == {"arrive", "access"}
            and s.kind == "arrive"
        ):
            continue
        edited = move_before(kernel, after, s)
        partners = (s, after, *_ordering(kernel, s), *_ordering(kernel, after))
        yield Draft("swap_lines", s, "", f"{after.text} before {s.text}", edited, partners)


@operator
def hoist(kernel: Kernel) -> Iterator[Draft]:
    """A copy, an MMA, a store or an arrival moves up across the nearest thing in its block that holds it back."""
    by_node = {id(s.node): s for s in kernel.statements}
    for s in kernel.statements:
        if s.kind not in ("access", "arrive", "commit") or not s.simple:
            continue
        earlier = [by_node[id(n)] for n in s.block[: s.index]]
        target = next((t for t in reversed(earlier) if t.kind in ("wait", "sync") and t.simple), None)
        if target is None or earlier[-1] is target:
            continue
        edited = move_before(kernel, s, target)
        partners = (target, *_meaning(kernel, s), *_ordering(kernel, target))
        yield Draft("hoist", s, "", f"{s.text} before {target.text}", edited, partners)


@operator
def repeat_statement(kernel: Kernel) -> Iterator[Draft]:
    """An arrival, a commit, a copy or an MMA twice."""
    for s in kernel.statements:
        if not s.simple or s.kind not in ("arrive", "commit", "access"):
            continue  # a barrier twice is slower, not wrong
        if s.kind == "access" and not ("mbar=" in s.text or "gemm_async" in s.text or "alloc" in s.text):
            continue  # the same store twice
        if "accum=False" in s.text or "commit_group" in s.text:
            continue  # the same product twice; an empty group
        edited = repeat(kernel, s)
        yield Draft(
            "repeat_statement",
            s,
            "",
            f"twice {s.text}",
            edited,
            (s, *_meaning(kernel, s), *kernel.same_barrier(s)),
        )


@operator
def change_loop(kernel: Kernel) -> Iterator[Draft]:
    """A loop that runs once more or once less."""
    for s in kernel.statements:
        if not isinstance(s.node, ast.For) or not isinstance(s.node.iter, ast.Call):
            continue
        bound = s.node.iter.args[-1]
        text = ast.unparse(bound)
        variants = [(f"{text} - 1", "less")]
        if any(t.kind in ("wait", "arrive", "sync") or "copy_async" in t.text for t in _inside(kernel, s)):
            variants.append((f"{text} + 1", "more"))
        for new, variant in variants:
            edited = replace_expression(kernel, bound, new)
            yield Draft(
                "change_loop", s, variant, f"{new} rounds instead of {text}", edited, _inside(kernel, s)
            )
