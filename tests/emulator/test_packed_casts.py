"""Loops of pairwise conversions, fused into one: the same numbers as one by one, and only where that is safe."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

import emulator

CAST = "tvm_builtin_cast_float32x2_float16x2"
SOURCE = "void c(void* dst, void* src) { ((half2*)dst)[0] = __float22half2_rn(((float2*)src)[0]); }"
KERNEL = """
from tvm.script import tirx as T
@T.prim_func
def kernel(X: T.Buffer((64, 16), "float32"), D: T.Buffer((64, 16), "float16")):
    T.device_entry()
    T.cta_id([1])
    tx = T.thread_id([64])
    wide = T.alloc_local((16,), "float32")
    narrow = T.alloc_local((16,), "float16")
    for j in range(16):
        wide[j] = X[tx, j]
        narrow[j] = T.float16(0)
{body}
    for j in range(16):
        D[tx, j] = narrow[j]
"""
CALL = "T.cuda.func_call({cast!r}, T.address_of(narrow[{to}]), T.address_of({of}), source_code={source!r})"


def run(loop: str, to: str, of: str = "wide[f * 2]", guard: str = "") -> tuple[np.ndarray, np.ndarray, str]:
    """(input, output, generated program) of a kernel whose middle is ``loop`` around one conversion."""
    lines = ([guard] if guard else []) + [loop, CALL.format(cast=CAST, to=to, of=of, source=SOURCE)]
    body = "\n".join("    " * (i + 1) + line for i, line in enumerate(lines))
    text, name = KERNEL.format(body=body), f"<packed cast {hash((loop, to, of, guard))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    kernel = emulator.compile(scope["kernel"])
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((64, 16)) * 10.0 ** rng.integers(-8, 7, (64, 16))).astype(np.float32)
    d = np.full((64, 16), np.nan, np.float16)
    assert kernel.run(x, d).ok
    return x, d, next(iter(kernel.programs.values())).source


def calls(program: str) -> list[str]:
    return [line for line in program.splitlines() if "LocalPointer(" in line]


@pytest.mark.parametrize("rounds", [1, 3, 8])
@pytest.mark.parametrize("guard", ["", "if tx < 32:", "if tx == 33:", "if tx % 3 == 0:"])
def test_a_fused_loop_converts_what_the_loop_does(rounds: int, guard: str) -> None:
    x, d, program = run(f"for f in range({rounds}):", "f * 2", guard=guard)
    tx = np.arange(64)[:, None]
    active = {"": tx >= 0, "if tx < 32:": tx < 32, "if tx == 33:": tx == 33, "if tx % 3 == 0:": tx % 3 == 0}[
        guard
    ]
    with np.errstate(over="ignore"):
        want = np.where(active & (np.arange(16) < 2 * rounds), x, 0).astype(np.float16)
    np.testing.assert_array_equal(d, want)
    assert rounds == 1 or (len(calls(program)) == 1 and f", {2 * rounds})" in calls(program)[0])


@pytest.mark.parametrize(
    ("loop", "to", "of", "pairs"),
    [
        ("for f in range(4):", "f * 2 + 8", "wide[f * 2]", [(8 + 2 * f, 2 * f) for f in range(4)]),
        ("for f in range(4):", "14 - f * 2", "wide[f * 2]", [(14 - 2 * f, 2 * f) for f in range(4)]),
        ("for f in range(4):", "f * 4", "wide[f * 2]", [(4 * f, 2 * f) for f in range(4)]),
        ("for f in range(4):", "f * 2", "wide[0]", [(2 * f, 0) for f in range(4)]),
    ],
    ids=["offset", "backwards", "strided", "one source"],
)
def test_other_orders_are_kept(loop: str, to: str, of: str, pairs: list[tuple[int, int]]) -> None:
    x, d, _ = run(loop, to, of)
    want = np.zeros((64, 16), np.float16)
    with np.errstate(over="ignore"):
        for target, source in pairs:
            want[:, target : target + 2] = x[:, source : source + 2]
    np.testing.assert_array_equal(d, want)
