"""Why a grade stopped: what the processes reported, in a learner's words, at the learner's line."""

from __future__ import annotations

import ast
import re
import signal
from dataclasses import dataclass, replace
from typing import Any

from autograder.course import Exercise, Limits
from autograder.errors import nearest
from autograder.report.model import Evidence, Fault, Location
from autograder.runner.process import Child, ChildEnded, End
from autograder.runner.tree import MAX_PROCESSES
from autograder.submission import Submission, split_lines

SNAPSHOT = "snapshot/kernel.py"  # the end of the path under which a submission runs


@dataclass(frozen=True)
class Failure:
    """Why the grade stopped early, whose fault that is, where, and what the grader's own process said."""

    fault: Fault
    message: str
    fix: str = ""
    location: Location | None = None
    log: str = ""
    unwritten: bool = False  # the builder raised NotImplementedError: the learner has not come that far

    def evidence(self) -> Evidence:
        locations = [self.location] if self.location else []
        data = {"log": self.log} if self.log else {}
        return Evidence(kind="error", message=self.message, fix=self.fix, locations=locations, data=data)


class Stopped(Exception):
    """The grade cannot go on; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True)
class Diagnosis:
    """Turns reports about one submission into failures."""

    exercise: Exercise
    submission: Submission
    limits: Limits

    def location(self, file: str, line: int) -> Location:
        """A line of the snapshot as the learner's own; a line of any other file as it is."""
        if file.endswith(SNAPSHOT):
            return self.learner_line(line)
        return Location(file=file.rsplit("/", 1)[-1], line=max(1, line))

    def learner_line(self, line: int) -> Location:
        """A line of the submission's source, with its text."""
        own = self.submission
        line = min(max(1, line), len(split_lines(own.source)))
        return Location(file=own.name, cell=own.cell, line=line, text=own.line(line))

    def _here(self, line: int | None) -> Location | None:
        return None if line is None else self.learner_line(line)

    def _definition(self, name: str) -> Location | None:
        """The line that defines a function of the submission."""
        found = re.search(
            rf"^[ \t]*(?:def|class)\s+{re.escape(name)}\b", self.submission.source, re.MULTILINE
        )
        if found is None:
            return None
        return self._here(self.submission.source.count("\n", 0, found.start()) + 1)

    def _declaration(self, name: str) -> Location | None:
        """The line that declares a parameter of the kernel, e.g. `A: T.Buffer(...)`."""
        pattern = rf"(?:^|[(,\s]){re.escape(name)}\s*:\s*T\."
        found = re.search(pattern, self.submission.source, re.MULTILINE)
        return self._here(self.submission.source.count("\n", 0, found.end()) + 1) if found else None

    def _first_line(self, pattern: str) -> Location | None:
        """The first line of the submission that matches a pattern, for messages that name no line."""
        lines = self.submission.source.split("\n")
        return next((self._here(n) for n, text in enumerate(lines, 1) if re.search(pattern, text)), None)

    def ended(self, ended: ChildEnded, function: str | None = None) -> Failure:
        """The submission's process ended while it ran the builder, or a function of the exercise."""
        name, limits = function or self.exercise.builder.name, self.limits
        place = f"{name} or the code around it"
        if ended.end is End.TIMEOUT:
            return yours(
                f"no {'table' if function else 'kernel'} after {limits.build_seconds:g} s: {place} does not come to an end",
                "look for a Python loop that never stops; the kernel itself is not run here",
            )
        if ended.end is End.OUTPUT:
            return yours(
                f"more than {limits.output_kib} KiB printed; the run was stopped",
                "remove the prints, above all in loops",
            )
        if ended.end is End.GARBAGE:
            return yours(
                "the code wrote into the grader's channel",
                "use print, and leave other file descriptors alone",
            )
        if ended.end is End.PROCESSES:
            return yours(
                f"{place} started more than {MAX_PROCESSES} threads or processes; the run was stopped",
                "a kernel is built in one process",
            )
        if ended.end is End.MEMORY:
            return yours(
                f"{place} used more than {limits.memory_mib} MiB of memory; the run was stopped",
                "look for large arrays; a builder only describes the kernel",
            )
        status = ended.status
        if status is not None and status < 0:
            number = -status
            try:
                what = signal.Signals(number).name
            except ValueError:
                what = f"signal {number}"
            if number == signal.SIGKILL and not ended.out_of_memory:
                return yours(
                    f"the code killed its own process, or ignored the end of its processor time, in {place}",
                    f"return the kernel from {name}",
                )
            if number == signal.SIGKILL:
                return machines(
                    f"the process of the submission was killed ({what}); the machine may be out of memory"
                )
            if number == signal.SIGXCPU:
                return yours(f"{place} used up its processor time", "look for a loop that never stops")
            return yours(
                f"Python crashed with {what} while running {place}",
                "look for ctypes or recursion without end",
            )
        return yours(
            f"the code ended its process (exit status {status}) before {name} returned",
            f"return the kernel from {name}",
        )

    def table_failure(self, name: str, header: dict[str, Any]) -> Failure:
        """The builder's process said why a function of the exercise has no table."""
        line, argument = header.get("line"), header.get("argument")
        here = self._here(line) if isinstance(line, int) else self._definition(name)
        call = f"{name}({argument})" if isinstance(argument, int) else name
        what, message = self._words(header.get("type", "")), self._words(header.get("message", ""))
        match header.get("kind"):
            case "function_missing":
                return yours(f"there is no function {name}", f"define {name}; its name is fixed")
            case "function_not_callable":
                found = _article(self._words(header.get("returned", "")))
                return yours(f"{name} is {found}, not a function", f"define {name}(offset)", here)
            case "no_integer":
                returned = self._words(header.get("returned", ""))
                return yours(
                    f"{call} returns {returned}, not an integer of 64 bits", "return an integer", here
                )
            case "exit":
                return yours(
                    f"{call} called sys.exit({message})", "remove it; return an integer instead", here
                )
        return yours(f"{call} fails with {what}: {message}" if message else f"{call} fails: {what}", "", here)

    def build_failure(self, header: dict[str, Any]) -> Failure:
        """The builder's process said why there is no PrimFunc."""
        spec = self.exercise.builder
        call = f"{spec.name}({', '.join(spec.params)})"
        line = header.get("line")
        line = line if isinstance(line, int) else None
        message = self._words(header.get("message", ""))
        returned = _article(self._words(header.get("returned", "")))
        match header.get("kind"):
            case "builder_missing":
                defined = [str(n) for n in header.get("defined", [])]
                close = nearest(spec.name, defined)
                found = next((self._definition(n) for n in [close] if n), None)
                return yours(
                    f"there is no function {spec.name}" + (f"; is '{close}' meant?" if close else ""),
                    f"rename {close} to {spec.name}"
                    if close
                    else f"define {call}; its name and parameters are fixed",
                    found,
                )
            case "builder_not_callable":
                return yours(
                    f"{spec.name} is {returned}, not a function",
                    f"define {call}",
                )
            case "builder_signature":
                return yours(
                    f"{spec.name}{self._words(header.get('signature'))} cannot be called {call}: {message}",
                    f"define it as {call}",
                    self._here(line),
                )
            case "not_a_prim_func":
                return yours(
                    f"{spec.name} returned {returned}, not a tvm.tirx.PrimFunc",
                    "end it with `return` and the function under @T.prim_func",
                    self._definition(spec.name),
                )
            case "not_a_layout":
                return yours(
                    f"{spec.name} returned {returned}, not a TileLayout",
                    "end it with `return TileLayout(...)`",
                    self._definition(spec.name),
                )
            case "symbolic":
                return yours(
                    f"{spec.name} returned a layout with {message} in it, which is no number",
                    "compute extents and strides from plain Python integers",
                    self._definition(spec.name),
                )
            case "not_a_kernel":
                return yours(f"{spec.name} returned something that is no kernel: {message}")
            case "exit":
                return yours(
                    f"the code called sys.exit({message}) before {spec.name} returned",
                    "remove it; return the kernel instead",
                    self._here(line),
                )
            case "rejected":
                return self._rejected(clean(header.get("message", "")), line)
            case "raised":
                what = self._words(header.get("type"))
                if what == "NotImplementedError":
                    missing = yours(
                        f"not written yet: {message or 'NotImplementedError'}", "", self._here(line)
                    )
                    return replace(missing, unwritten=True)
                if what == "SyntaxError" and "<unknown>" in message:
                    stray = self._stray_comment(line or 1)
                    if stray is not None:
                        return stray
                return yours(f"{what}: {message}" if message else what, "", self._here(line))
        return yours(
            "the code wrote into the grader's channel", "use print, and leave other file descriptors alone"
        )

    def _stray_comment(self, decorated: int) -> Failure | None:
        """A comment to the left of the kernel around it: right in Python, but TVM cuts the kernel out by its indentation.

        decorated: line of the kernel's decorator.
        """
        lines = self.submission.source.split("\n")
        depth = len(lines[decorated - 1]) - len(lines[decorated - 1].lstrip())
        for number in range(decorated + 1, len(lines) + 1):
            text = lines[number - 1]
            indent = len(text) - len(text.lstrip())
            if not text.strip() or indent >= depth:
                continue
            if not text.lstrip().startswith("#"):
                return None  # the kernel is over
            return yours(
                "TVM cannot read the kernel: this comment stands further to the left than the kernel around it",
                "indent the comment like the lines beside it",
                self._here(number),
            )
        return None

    def _rejected(self, text: str, line: int | None) -> Failure:
        """TVM's parser rejected the kernel: its own words, at the learner's line."""
        found = _DIAGNOSTIC.search(text)
        if found and found["file"].endswith(SNAPSHOT):
            message, place = one_line(found["message"]), int(found["line"])
            if not message:  # TVM's parser met an assertion of its own
                returns = self.learner_line(place).text.startswith("return")
                fix = "a kernel cannot return early: put the rest into an `if`" if returns else ""
                return yours("TVM: this statement is not possible in a kernel", fix, self._here(place))
            unknown = _UNKNOWN_NODE.search(message)
            if unknown:  # TVM blames the whole function; the statement itself is easy to find
                place = _first_node(self.submission.source, unknown[1], place) or place
            return yours(*_in_plain_words(message), self._here(place))
        return yours(*_in_plain_words(self._words(text)), self._here(line))

    def _words(self, text: Any) -> str:
        """Text of the submission's process for use in a message: one line, not too long, no private paths."""
        return one_line(self.own_name(str(text)[:5000]))[:500]

    def own_name(self, text: str) -> str:
        """The text with the snapshot's path replaced by the name that the learner knows."""
        return re.sub(rf"[^\s'\"]*/{re.escape(SNAPSHOT)}", self.submission.name, text)

    def refusal(self, header: dict[str, Any]) -> Failure:
        """The machine's process does not run the PrimFunc."""
        place, where = header.get("location"), None
        if place:
            where = self.location(place["file"], place["line"])
        text = str(header.get("message", ""))
        message = one_line(text)
        match header["kind"]:
            case "buffers":
                return self._buffer_mismatch(header["buffers"])
            case "unreadable":
                return yours(
                    f"{self.exercise.builder.name} returned something that is no kernel: {message[:300]}"
                )
            case "host":
                return yours(
                    f"the kernel's host code does more than launch ({message[:200]}); such a kernel is not run on a GPU",
                    "leave only device code and the launch in the PrimFunc",
                )
            case "lowering":
                unknown = _UNKNOWN_START.search(message)
                if unknown:
                    return self._unknown_start(unknown["start"], unknown["factor"], where)
                essence = _essence(text)
                fix, patterns = next(((fix, at) for words, fix, at in _ADVICE if words in text), ("", ()))
                where = where or next(filter(None, map(self._first_line, patterns)), None)
                return yours(essence if essence.startswith("TVM ") else f"TVM: {essence}", fix, where)
            case "memory":
                return yours(
                    f"emulating the kernel takes more than {self.limits.memory_mib} MiB of memory",
                    "look for large local arrays, or a grid that is much too large",
                )
            case "launch":
                return yours(f"the launch is refused: {message}", "", where)
            case "unfinished":
                return yours(message, "", where)
            case "unsupported":
                return graders(message, "another instruction may do the same; please report this one", where)
        fix = "please report this kernel; another way to write that line may work" if where else ""
        return graders(f"the emulator failed: {message}", fix, where)

    def _unknown_start(self, start: str, factor: str, where: Location | None) -> Failure:
        """A copy by TMA begins at a coordinate of which TVM does not know that it is a multiple of `factor`."""
        lines = self.submission.source.split("\n")
        for name in re.findall(r"[A-Za-z_]\w*", start):
            variable = re.compile(rf"\s*{name}\s*(:\s*T\.int\d+\s*)?=(?!=)(?!\s*T\.(meta_var|\w+_id)\b)")
            assigned = next((n for n, text in enumerate(lines, 1) if variable.match(text)), None)
            if assigned is not None:
                return yours(
                    f"{name} is a variable (assigned at line {assigned}), so TVM cannot see that it is a multiple of {factor},"
                    " as this copy by TMA needs it",
                    f"name it with T.let or T.meta_var: `{name}: T.let[T.int32] = ...` or `{name} = T.meta_var(...)`",
                    where,
                )
        return yours(
            f"TVM cannot see that the coordinate {start}, where this copy by TMA begins, is a multiple of {factor}",
            f"write it as a product with a multiple of {factor}",
            where,
        )

    def _buffer_mismatch(self, buffers: list[dict[str, Any]]) -> Failure:
        """Wrong number, dtype or shape of the PrimFunc's parameters."""
        wanted = self.exercise.tensor_specs()
        signature = ", ".join(f"{t['name']}: {t['dtype']} {_shape(t['shape'])}" for t in wanted)
        where = self._definition(self.exercise.builder.name)
        if len(buffers) != len(wanted):
            return yours(
                f"the kernel has {len(buffers)} parameters, not {len(wanted)}", f"it takes {signature}", where
            )
        for number, (have, want) in enumerate(zip(buffers, wanted, strict=True), 1):
            where = self._declaration(str(have["name"])) or where
            if have["shape"] is None:
                return yours(
                    f"parameter {number}, {have['name']}, is no buffer", f"it takes {signature}", where
                )
            if (have["dtype"], have["shape"]) != (want["dtype"], want["shape"]):
                return yours(
                    f"parameter {number}, {have['name']}, is {have['dtype']} {_shape(have['shape'])};"
                    f" it must be {want['dtype']} {_shape(want['shape'])}",
                    f"the kernel takes {signature}",
                    where,
                )
        return yours("the kernel's parameters do not fit", f"it takes {signature}", where)


_DIAGNOSTIC = re.compile(r"\A(?:error: )?(?P<message>.*?)\n\s*--> (?P<file>.*):(?P<line>\d+):\d+", re.DOTALL)
_DISPATCH = re.compile(r"(?P<what>[^\n:]*).*dispatch failed.*exception — \w+: (?P<why>[^\n|]*)", re.DOTALL)


# Words of TVM, what to do, and the lines where to look if TVM names none, likelier ones first.
_ADVICE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "buffer with thread-axis layout",
        'a buffer that a layout spreads over threads lies in registers, scope="local", and these threads copy it'
        " together: Tx.wg.copy for a warpgroup",
        (r"\bTx\.copy\(", r"\balloc_buffer\("),
    ),
    (
        "doesn't match B_K",
        "the two operands do not agree on the dimension that is summed over: B is taken as an N x K matrix, whose rows run along"
        " K (K-major); one that is stored as K x N, such as V in P V, is MN-major and needs transB=True",
        (r"\bgemm_async\(",),
    ),
    (
        "validate_copy_op failed",
        "compare scope, shape and layout of the two buffers; a function that still returns None is no layout",
        (r"\bcopy\(",),
    ),
    (
        "> anchor rank",
        "both sides need as many dimensions: of a fragment in registers take what this thread holds of it, as in acc_regs.local(N)[:]",
        (),
    ),
    (
        "no-swizzle SMEM descriptors",
        "an operand in SMEM needs the layout that the tensor core reads: allocate it with pool.alloc_tcgen05_mma_AB(shape, dtype)",
        (r"\bpool\.alloc\(",),
    ),
)
# Words of TVM's parser, what they mean, and what to do.
_PARSER: tuple[tuple[str, str, str], ...] = (
    (
        "Cannot use and / or / not operator to Expr",
        "Python's min, max, and, or and not do not work on values of the kernel",
        "use T.min and T.max, and nested ifs",
    ),
    (
        "_ty.MatchesCode(DLDataTypeCode::kDLBool)",
        "TVM: and, or and not want conditions, and this one is an int, as elect_sync() gives it",
        "nest two ifs, or compare the int with 0",
    ),
    (
        "reduce() arg 2 must support iteration",
        "TVM: the shape of a buffer is a tuple, also with one dimension",
        'write pool.alloc((1,), "uint32") for one element',
    ),
    (
        "Bar' object is not subscriptable",
        "TVM: barriers of a ring have no [ ]: what stands here is an object of Python",
        "pass the stage to its methods, as in full.wait(stage, phase); its address is full.ptr_to([stage])",
    ),
)
_UNKNOWN_START = re.compile(
    r"start=(?P<start>[^=]+?) is not divisible by inner_product=(?P<factor>\d+) \(unknown\)"
)
_UNKNOWN_NODE = re.compile(r"AST node is not implemented: (\w+)")


def _in_plain_words(message: str) -> tuple[str, str]:
    """(message, fix) for what TVM's parser said."""
    return next(((plain, fix) for words, plain, fix in _PARSER if words in message), (f"TVM: {message}", ""))


def _first_node(source: str, kind: str, line: int) -> int | None:
    """The line of the first syntax node of a kind at or after a line."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = [node.lineno for node in nodes if type(node).__name__ == kind and hasattr(node, "lineno")]
    return min((number for number in lines if number >= line), default=None)


def _essence(text: str) -> str:
    """TVM's words without its tables and Python tracebacks: those speak of TVM's own files."""
    found = _DISPATCH.search(text)
    if found:
        return f"{one_line(found['what'])}: {one_line(found['why'])}"
    return one_line(text.split("Traceback (most recent call last)")[0] or text)[:600]


def yours(message: str, fix: str = "", where: Location | None = None) -> Failure:
    return Failure(Fault.YOUR_CODE, message, fix, where)


def graders(message: str, fix: str = "", where: Location | None = None, log: str = "") -> Failure:
    return Failure(Fault.GRADER, message, fix, where, log)


def machines(message: str, log: str = "") -> Failure:
    return Failure(Fault.MACHINE, message, "`autograde doctor` looks at the machine", log=log)


def with_last_line(message: str, child: Child) -> str:
    """The message and the last line that the grader's own process printed."""
    last = one_line((child.tail.strip().splitlines() or [""])[-1])
    return f"{message}: {last[:300]}" if last else message


def clean(text: Any) -> str:
    """Text of the submission without control characters and lone surrogates, cut to a sensible length."""
    text = str(text)[:20_000].encode("utf-8", "replace").decode()
    return re.sub(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f-\x9f]", " ", text)


def printed_by_submission(text: str) -> str:
    """What the submission itself printed: no trace of a crashed interpreter or of the grader's own frames."""
    lines, kept, skipping = text.splitlines(), [], ""
    for line in lines:
        if "Segfault encountered" in line or line.startswith("Fatal Python error"):
            skipping = "crash"
        elif line.startswith("Traceback (most recent call last):"):
            skipping = "trace"
            block: list[str] = [line]
            continue
        if (
            skipping == "crash"
            and line.strip()
            and (line.startswith((" ", "!", "Fatal", "Current", "Thread", "Extension")) or "File " in line)
        ):
            continue
        if skipping == "trace":
            block.append(line)
            if line.startswith(" "):
                continue
            if not any("autograder" in part and "runner" in part for part in block):
                kept += block
            skipping = ""
            continue
        skipping = ""
        if line.startswith(
            ("During handling of the above exception", "The above exception was the direct cause")
        ):
            continue
        kept.append(line)
    if skipping == "trace" and not any("autograder" in part and "runner" in part for part in block):
        kept += block
    return "\n".join(kept)


def one_line(text: str) -> str:
    return " ".join(clean(text).split())


def _shape(shape: list[Any]) -> str:
    return str(tuple(shape)).replace("'", "")


def _article(noun: str) -> str:
    return noun if noun == "NoneType" else f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
