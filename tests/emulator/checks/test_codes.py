"""The table of finding codes: what the emulator can report is in it, what is in it can be reported, the docs have the same."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from emulator import checks

ROOT = Path(__file__).resolve().parents[3]
EMULATOR = ROOT / "emulator"
CODE = re.compile(r"[a-z][a-z0-9]*(\.[a-z0-9][a-z0-9-]*)+|deadlock")
# Calls whose first argument (of _add: the second) is a code.
REPORTERS = {"DeviceFault": 0, "report": 0, "Problem": 0, "Finding": 0, "_plain": 0, "_add": 1}


def table() -> list[tuple[str, str, str]]:
    """(code, strength, meaning) of the docstring."""
    rows = re.findall(r"^([a-z]\S*) +(error|race|lint) +(\S.*)$", checks.__doc__ or "", re.M)
    assert len(rows) > 80
    return rows


def documented() -> list[tuple[str, str, str]]:
    """The same of docs/diagnosis.md."""
    text = (ROOT / "docs/diagnosis.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(\S+)` \| (error|race|lint) \| (.*?) \|$", text, re.M)


def sources() -> list[ast.AST]:
    return [
        ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(EMULATOR.rglob("*.py"))
        if path != EMULATOR / "checks" / "__init__.py"
    ]


def test_codes_are_unique_and_well_formed() -> None:
    codes = [code for code, _, _ in table()]
    assert len(set(codes)) == len(codes) and all(CODE.fullmatch(code) for code in codes)


def test_the_documentation_has_the_same_table() -> None:
    assert documented() == [
        (code, strength, meaning.replace("|", "/")) for code, strength, meaning in table()
    ]


def test_every_reported_code_is_in_the_table() -> None:
    known = {code for code, _, _ in table()}
    reported = set()
    for tree in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            position = REPORTERS.get(name)
            if position is not None and len(node.args) > position:
                argument = node.args[position]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    reported.add(argument.value)
    assert len(reported) > 60 and reported <= known, sorted(reported - known)


@cache
def spellings() -> tuple[frozenset[str], tuple[str, ...]]:
    """Every string of the emulator, and its f-strings as patterns."""
    strings, patterns = set(), set()
    for tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [
                    re.escape(str(v.value)) if isinstance(v, ast.Constant) else "[a-z-]+" for v in node.values
                ]
                patterns.add("".join(parts))
    codes = ("race", "tcgen05", "uninitialised")
    return frozenset(strings), tuple(p for p in patterns if p.startswith(codes))


@pytest.mark.parametrize("code", [code for code, _, _ in table()])
def test_every_code_of_the_table_is_reported_somewhere(code: str) -> None:
    strings, patterns = spellings()
    assert code in strings or any(re.fullmatch(p, code) for p in patterns)
