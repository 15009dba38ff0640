"""How alike the kernels of a class are: something for an instructor to look at, never a verdict.

Kernels are compared as texts without what a copyist changes first: comments, layout, docstrings, quotes and the names that the
learner chose. Runs of tokens are hashed, and of each window of hashes one is kept (winnowing: Schleimer, Wilkerson and Aiken,
SIGMOD 2003), so a shared passage of at least `GRAM + WINDOW - 1` tokens is always found. What everyone was given, the stub and the previous
step, is not counted. Nothing of a submission is executed.
"""

from __future__ import annotations

import ast
import hashlib
import io
import keyword
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations

from autograder.submission import split_lines

GRAM = 12  # tokens in one hashed run: about one call of a kernel
WINDOW = 8  # consecutive runs of which one is kept
FEWEST = 10  # kept runs of its own that a kernel must have before its share of common ones means anything
NAME = "name"  # stands for every name that the learner chose
_SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Token:
    """One normalised token and the line (from 1) where it stands."""

    text: str
    line: int


@dataclass(frozen=True)
class Kernel:
    """A kernel as it is compared.

    Attributes:
        name: whose it is, e.g. `alice`.
        source: its text.
        runs: kept hash -> first and last line of the first run that has it.
        problem: why it cannot be compared; empty when it can.
    """

    name: str
    source: str
    runs: dict[bytes, tuple[int, int]]
    problem: str = ""


@dataclass(frozen=True)
class Pair:
    """Two kernels and what they share.

    Attributes:
        share: common runs / runs of the one that has fewer, 0 to 1: how much of the smaller one is in the other.
        first_lines, second_lines: lines (from 1) that belong to common runs.
    """

    first: Kernel
    second: Kernel
    share: float
    first_lines: frozenset[int]
    second_lines: frozenset[int]


def tokens_of(source: str) -> list[Token]:
    """The normalised tokens of a kernel.

    Raises:
        SyntaxError: it is not Python.
    """
    try:
        tree = ast.parse(source)
        raw = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise SyntaxError(str(error)) from None
    chosen, docstrings = _chosen_names(tree), _docstring_lines(tree)
    result: list[Token] = []
    for previous, token in zip([None, *raw], raw, strict=False):
        text, line = token.string, token.start[0]
        if token.type in _SKIPPED or (token.type == tokenize.STRING and line in docstrings):
            continue
        if token.type == tokenize.NAME and text in chosen:
            attribute = previous is not None and previous.string == "."
            text = text if attribute else NAME
        elif token.type == tokenize.STRING and text[0] in "'\"":
            text = repr(ast.literal_eval(text))
        elif text in ")]}" and result and result[-1].text == ",":
            result.pop()  # a trailing comma is layout
        result.append(Token(text, line))
    return result


def _chosen_names(tree: ast.Module) -> set[str]:
    """Names that the source itself binds, except by import: those may be changed without changing the kernel."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
    return {name for name in bound if not keyword.iskeyword(name)}


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Lines where a docstring, or another string that is nobody's value, begins."""
    return {
        node.value.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def fingerprint(source: str) -> dict[bytes, tuple[int, int]]:
    """Kept hashes of a kernel, with first and last line of each; raises SyntaxError as `tokens_of` does."""
    tokens = tokens_of(source)
    runs = [tokens[i : i + GRAM] for i in range(max(0, len(tokens) - GRAM + 1))]
    hashes = [
        hashlib.blake2b("\0".join(t.text for t in run).encode(), digest_size=8).digest() for run in runs
    ]
    kept: dict[bytes, tuple[int, int]] = {}
    for start in range(max(1, len(hashes) - WINDOW + 1)):
        window = range(start, min(start + WINDOW, len(hashes)))
        if window:
            best = min(window, key=lambda i: (hashes[i], -i))
            kept.setdefault(hashes[best], (runs[best][0].line, runs[best][-1].line))
    return kept


def read(name: str, source: str, given: Iterable[str] = ()) -> Kernel:
    """A kernel without the runs that stand in one of the texts `given` to everyone."""
    try:
        runs = fingerprint(source)
    except SyntaxError as error:
        return Kernel(name, source, {}, f"is not Python ({error.msg})")
    known = set()
    for text in given:
        # All runs, not only the kept ones: which ones are kept depends on what stands beside them.
        known |= _all_hashes(text)
    runs = {key: lines for key, lines in runs.items() if key not in known}
    if len(runs) < FEWEST:
        return Kernel(name, source, {}, "holds too little of its own")
    return Kernel(name, source, runs)


def _all_hashes(source: str) -> set[bytes]:
    try:
        texts = [t.text for t in tokens_of(source)]
    except SyntaxError:
        return set()
    return {
        hashlib.blake2b("\0".join(texts[i : i + GRAM]).encode(), digest_size=8).digest()
        for i in range(len(texts) - GRAM + 1)
    }


def pairs(kernels: Sequence[Kernel], least: float = 0.0) -> list[Pair]:
    """All pairs that share at least `least`, the most alike first."""
    found = []
    for first, second in combinations([k for k in kernels if not k.problem], 2):
        common = first.runs.keys() & second.runs.keys()
        share = len(common) / min(len(first.runs), len(second.runs))
        if share >= least:
            found.append(Pair(first, second, share, _lines(first, common), _lines(second, common)))
    return sorted(found, key=lambda p: (-p.share, p.first.name, p.second.name))


def _lines(kernel: Kernel, common: set[bytes]) -> frozenset[int]:
    spans = (kernel.runs[key] for key in common)
    return frozenset(line for first, last in spans for line in range(first, last + 1))


NOTE = (
    "Solutions of one exercise are alike, because the exercise is: a high share is a reason to read both kernels, "
    "and nothing more. What everybody was given is not counted."
)


def as_text(title: str, kernels: Sequence[Kernel], found: Sequence[Pair], least: float) -> str:
    """The report for a terminal."""
    lines = [f"{title}: {len(kernels)} kernels, pairs that share at least {least:.0%}", NOTE, ""]
    lines += [f"  {pair.share:4.0%}  {pair.first.name} and {pair.second.name}" for pair in found]
    if not found:
        lines.append("  none")
    left_out = [f"  {kernel.name} {kernel.problem}" for kernel in kernels if kernel.problem]
    if left_out:
        lines += ["", "not compared:", *left_out]
    return "\n".join(lines)


_STYLE = """
:root { color-scheme: light dark; }
body { font-family: sans-serif; margin: 2em; max-width: 110em; }
table { border-collapse: collapse; } td, th { padding: 0.2em 0.8em; text-align: left; vertical-align: top; }
pre { font-size: 0.8em; overflow-x: auto; margin: 0; } .two { display: grid; grid-template-columns: 1fr 1fr; gap: 1em; }
.both { background: light-dark(#fff3c4, #5a4a00); } .mark { user-select: none; }
"""


def as_html(title: str, kernels: Sequence[Kernel], found: Sequence[Pair], least: float) -> str:
    """The report as a page of its own: the list of pairs, then each pair side by side; common lines are coloured and marked with |."""
    rows = "".join(
        f'<tr><td>{pair.share:.0%}</td><td><a href="#p{i}">{escape(pair.first.name)} and {escape(pair.second.name)}</a></td></tr>'
        for i, pair in enumerate(found)
    )
    views = "".join(
        f'<h2 id="p{i}">{escape(pair.first.name)} and {escape(pair.second.name)}: {pair.share:.0%}</h2><div class="two">'
        f"{_listing(pair.first, pair.first_lines)}{_listing(pair.second, pair.second_lines)}</div>"
        for i, pair in enumerate(found)
    )
    left_out = "".join(f"<li>{escape(k.name)} {escape(k.problem)}</li>" for k in kernels if k.problem)
    left_out = f"<h2>Not compared</h2><ul>{left_out}</ul>" if left_out else ""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1><p>{len(kernels)} kernels; pairs that share at least {least:.0%}. {escape(NOTE)}</p>"
        f"<table><tr><th>share</th><th>kernels</th></tr>{rows}</table>{left_out}{views}</body></html>\n"
    )


def _listing(kernel: Kernel, common: frozenset[int]) -> str:
    lines = []
    for number, line in enumerate(split_lines(kernel.source), 1):
        mark = "|" if number in common else " "
        text = f'<span class="mark">{number:4} {mark} </span>{escape(line)}'
        lines.append(f'<span class="both">{text}</span>' if number in common else text)
    return f"<div><b>{escape(kernel.name)}</b><pre>" + "\n".join(lines) + "</pre></div>"
