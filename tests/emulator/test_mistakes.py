"""Mistakes of every day end as findings at their line; a fault of the emulator itself names the line, too."""

from __future__ import annotations

import linecache

import numpy as np
import pytest
from tvm.script import tirx as T

import emulator
from emulator import runtime

N = 128


def line_of(finding):
    """The source text of a finding's first line."""
    return line_of_location(finding.locations[0])


# ---------------------------------------------------------------------------------------------- the last net


def doubled():
    @T.prim_func
    def kernel(A: T.Buffer((N,), "float32"), D: T.Buffer((N,), "float32")):
        T.device_entry()
        T.cta_id([1])
        thread = T.thread_id([N])
        D[thread] = A[thread] * T.float32(2)

    return kernel


FAULTS = [IndexError, KeyError, ZeroDivisionError, ValueError, TypeError, AttributeError]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_the_emulator_names_the_line(kind, monkeypatch):
    def broken(*_):
        raise kind("some reason")

    monkeypatch.setitem(runtime.NAMESPACE, "ld_tensor", broken)
    kernel = emulator.compile(doubled())
    with pytest.raises(
        emulator.EmulatorError, match=f"{kind.__name__} in the emulator: '?some reason"
    ) as caught:
        kernel.run(np.zeros(N, np.float32), np.zeros(N, np.float32))
    assert "D[thread] = A[thread]" in line_of_location(caught.value.location)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_the_translation_names_the_line(kind, monkeypatch):
    from emulator.translate import Translator

    def broken(*_):
        raise kind("some reason")

    monkeypatch.setattr(Translator, "x_Mul", broken)
    with pytest.raises(
        emulator.EmulatorError, match=f"{kind.__name__} in the emulator's translation"
    ) as caught:
        emulator.compile(doubled())
    assert "D[thread] = A[thread]" in line_of_location(caught.value.location)


def line_of_location(place):
    return linecache.getline(place.file, place.line).strip()


# ---------------------------------------------------------------------------------------------- local arrays

OUTSIDE = "local.out-of-bounds"
ZERO = "arithmetic.division-by-zero"
UNWRITTEN = "uninitialised.local"

# (statements after `x = T.alloc_local((4,), "int32")`, code of the finding, a part of its message)
MISTAKES = {
    "constant": ("x[4] = 1  # here", OUTSIDE, "index 4 of `x`; it has 4 elements, 0 to 3"),
    "constant read": ("D[thread] = x[7]  # here", OUTSIDE, "index 7 of `x`"),
    "negative constant": ("x[-1] = 1  # here", OUTSIDE, "index -1 of `x`"),
    "negative by lane": ("x[thread - 100] = 1  # here", OUTSIDE, "index -100 of `x` in thread 0"),
    "wraps by lane": ("x[thread % 4 - 4] = 1  # here", OUTSIDE, "index -4 of `x` in thread 0"),
    "wraps by lane, read": ("x[0] = 1; D[thread] = x[thread % 4 - 3]  # here", OUTSIDE, "index -3 of `x`"),
    "too far by lane": ("x[thread // 8] = 1  # here", OUTSIDE, "index 4 of `x` in thread 32"),
    "loop": ("for i in T.serial(5):\n    x[i] = 1  # here", OUTSIDE, "index 4 of `x`"),
    "loop, negative": ("for i in T.serial(4):\n    x[i - 1] = 1  # here", OUTSIDE, "index -1 of `x`"),
    "from memory": ("x[A[thread] + 4] = 1  # here", OUTSIDE, "index 4 of `x`"),
    "vector": ("x[T.ramp(0, 3, 4)] = A[T.ramp(0, 1, 4)]  # here", OUTSIDE, "index 6 of `x`"),
    "vector read": ("x[0] = 1; D[T.ramp(0, 1, 4)] = x[T.ramp(1, 1, 4)]  # here", OUTSIDE, "index 4 of `x`"),
    "single lane": ("if thread == 5:\n    x[thread] = 1  # here", OUTSIDE, "index 5 of `x`"),
    "one element": ("y = T.alloc_local((1,), 'int32'); y[0] = 1; y[1] = 2  # here", OUTSIDE, "it has 1 element, 0"),
    "one element, read": ("y = T.alloc_local((1,), 'int32'); y[0] = 1; D[thread] = y[1]  # here", OUTSIDE, "index 1"),
    "divided": ("D[thread] = T.truncdiv(5, A[thread])  # here", ZERO, ""),
    "remainder": ("D[thread] = T.truncmod(5, A[thread])  # here", ZERO, ""),
    "floor": ("D[thread] = 5 // A[thread]  # here", ZERO, ""),
    "floor remainder": ("D[thread] = 5 % A[thread]  # here", ZERO, ""),
    "divided, uniform": ("D[thread] = 5 // A[0]  # here", ZERO, ""),
    "divided, single lane": ("if thread == 5:\n    D[thread] = 5 // A[thread]  # here", ZERO, ""),
    "flag": ("y = T.alloc_local((1,), 'int32')\nif y[0] != 0:  # here\n    D[thread] = 1", UNWRITTEN, "`y` is read"),
    "flag before": (
        "y = T.alloc_local((1,), 'int32')\nif y[0] != 0:  # here\n    D[thread] = 1\ny[0] = 1\nD[thread] = y[0]",
        UNWRITTEN, "`y` is read",
    ),
    "array": ("D[thread] = x[1]  # here", UNWRITTEN, "`x` is read, and nothing has written it"),
    "index": ("D[thread] = A[x[1]]  # here", UNWRITTEN, "`x` is read"),
    "width": ("D[thread] = T.tvm_warp_shuffle(T.uint32(0xffffffff), thread, 3, 33, 32)  # here", "warp.bad-width", "33"),
}  # fmt: skip
# The same, where nothing is wrong.
RIGHT = {
    "all": "for i in T.serial(4):\n    x[i] = i\nD[thread] = x[thread % 4]",
    "guarded": "x[0] = 1\nif thread < 4:\n    x[thread] = 2\n    D[thread] = x[thread]",
    "guarded value": "x[0] = 1\nD[thread] = T.if_then_else(thread < 4, x[thread], 0)",
    "guarded select": "x[0] = 1\nD[thread] = T.Select(thread < 4, x[thread], 0)",
    "guarded division": "D[thread] = T.if_then_else(A[thread] != 0, 5 // A[thread], 3)",
    "guarded by and": "if A[thread] != 0 and 5 // A[thread] > 1:\n    D[thread] = 1",
    "guarded by or": "if A[thread] == 0 or 5 // A[thread] > 1:\n    D[thread] = 1",
    "divided under a branch": "if thread > 0:\n    D[thread] = 5 // thread",
    "never read": "y = T.alloc_local((1,), 'int32')\nif A[thread] != 0:\n    D[thread] = y[0]",
    "a float that may be anything": "y = T.alloc_local((1,), 'float32')\nA_float = y[0]\nD[thread] = 1",
    "written in a loop": (
        "y = T.alloc_local((1,), 'int32')\nfor i in T.serial(3):\n    if i > 0:\n        D[thread] = y[0]\n    y[0] = i"
    ),
}


def built(statements, tmp_path):
    """A kernel of one CTA of 128 threads with ``A`` of zeros."""
    from importlib import util

    head = """from tvm.script import tirx as T

@T.prim_func
def kernel(A: T.Buffer((128,), "int32"), D: T.Buffer((128,), "int32")):
    T.device_entry()
    T.cta_id([1])
    thread = T.thread_id([128])
    x = T.alloc_local((4,), "int32")
"""
    lines = [part for line in statements.split("\n") for part in parts(line)]
    path = tmp_path / "mistake.py"
    path.write_text(head + "".join(f"    {line}\n" for line in lines))
    spec = util.spec_from_file_location("mistake", path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def parts(line):
    """The statements of one line."""
    return line.split("; ")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_finding_at_its_line(name, tmp_path):
    statements, code, message = MISTAKES[name]
    run = emulator.run(built(statements, tmp_path), np.zeros(N, np.int32), np.zeros(N, np.int32))
    (finding,) = [f for f in run.findings if f.strength == "error"]
    assert finding.code == code and message in finding.message
    assert "# here" in line_of(finding)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_not_done_is_no_mistake(name, tmp_path):
    run = emulator.run(built(RIGHT[name], tmp_path), np.zeros(N, np.int32), np.zeros(N, np.int32))
    assert run.findings == ()


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("lane", ["99", "33", "-1", "thread + 5", "A[0] + 40"])
def test_a_shuffle_takes_the_lane_modulo_the_segment(width, lane, tmp_path):
    statement = f"D[thread] = T.tvm_warp_shuffle(T.uint32(0xffffffff), thread, {lane}, {width}, 32)"
    result = np.zeros(N, np.int32)
    run = emulator.run(built(statement, tmp_path), np.zeros(N, np.int32), result)
    assert run.findings == ()
    thread = np.arange(N)
    source = eval(lane, {"thread": thread, "A": [0]}) % width
    np.testing.assert_array_equal(result, thread // width * width + source)


@pytest.mark.parametrize(("shape", "index"), [("(-4,)", "0"), ("(2, -4)", "1, 0")])
def test_an_extent_below_zero_is_refused_at_its_line(shape, index, tmp_path):
    with pytest.raises(emulator.LoweringError) as caught:
        emulator.compile(built(f"y = T.alloc_local({shape}, 'int32')\ny[{index}] = 1", tmp_path))
    assert "alloc_local(" in line_of_location(caught.value.location)


def test_a_local_of_a_type_that_is_not_emulated_is_refused_at_its_line(tmp_path):
    with pytest.raises(emulator.UnsupportedInstruction, match="local array of float4_e2m1fn") as caught:
        emulator.compile(built("y = T.alloc_local((8,), 'float4_e2m1fn')\ny[0] = y[1]", tmp_path))
    assert "alloc_local(" in line_of_location(caught.value.location)
