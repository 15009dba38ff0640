"""Wrong kernels that try to pass for right ones, by what they compute or by what their Python does to the process."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from autograder import compare
from autograder.course import Course
from autograder.inputs import FAMILIES, generator
from autograder.report.model import Fault, Verdict

from .conftest import Emulated, Graded, Tried, message, points

# One CTA writes `VALUE` to each element of D; 56 x 552 like the exercise's.
KERNEL = """
from tvm.script import tirx as T

def build_kernel(M, N):
    @T.prim_func
    def kernel(A: T.Buffer((M, N), "float16"), D: T.Buffer((M, N), "float16")):
        T.device_entry()
        row = T.cta_id([M])
        thread = T.thread_id([128])
        for i in T.serial((N + 127) // 128):
            column = T.meta_var(i * 128 + thread)
            if column < N:
                BODY
    return kernel
"""
RIGHT = "D[row, column] = A[row, column] * T.float16(2)"
WRONG = "D[row, column] = A[row, column]"


def kernel(body: str) -> str:
    return KERNEL.replace("BODY", body)


def test_the_right_kernel_is_right(emulated: Emulated) -> None:
    """What follows is wrong because of the attack, and not because of its frame."""
    found = emulated.judged(kernel(RIGHT))
    assert (found["mismatches"], found["findings"], found["changed"]) == (0, [], [])
    assert found["compared"] == found["elements"] > 0


# A6, A7, A8, A9, A10, A13, A14 as kernels
KERNELS = {
    "does nothing": "T.evaluate(0)",
    "zeros": "D[row, column] = T.float16(0)",
    "a constant": "D[row, column] = T.float16(1.5)",
    "NaN": "D[row, column] = T.float16(0) / (A[row, column] - A[row, column])",
    "infinity": "D[row, column] = T.float16(65504) * T.float16(65504)",
    "copies its input": WRONG,
    "copies a row of the input": "D[row, column] = A[0, column] * T.float16(2)",
    "is just inside": "D[row, column] = A[row, column] * T.float16(2.002)",
    "wrong at one element": "D[row, column] = A[row, column] * T.if_then_else(row * N + column == 30000, T.float16(1), T.float16(2))",
    "wrong at the last element": "D[row, column] = A[row, column] * T.if_then_else(row * N + column == M * N - 1, T.float16(1), T.float16(2))",
    "right in the first rows": "D[row, column] = A[row, column] * T.if_then_else(row < 50, T.float16(2), T.float16(1))",
}


@pytest.mark.parametrize("name", KERNELS)
def test_wrong_kernels_fail(emulated: Emulated, name: str) -> None:
    found = emulated.judged(kernel(KERNELS[name]))
    assert found["mismatches"] > 0 and found["compared"] == found["elements"]


def test_a_kernel_that_changes_its_input_is_told(emulated: Emulated) -> None:
    """A10: zeros in, zeros out. The reference comes from the oracle's own copy, and the change is reported."""
    body = "A[row, column] = T.float16(0)\n                D[row, column] = A[row, column] * T.float16(2)"
    found = emulated.judged(kernel(body))
    assert found["mismatches"] > 0 and set(found["changed"]) == {"A"}


def test_out_of_bounds_is_a_finding_and_not_luck(emulated: Emulated) -> None:
    """A9: the numbers happen to be right, a read past the end of the tensor is found all the same."""
    body = "D[row, column] = A[row, column] * T.float16(2) * T.if_then_else(A[row + 1, column] > T.float16(60000), T.float16(3), T.float16(1))"
    found = emulated.judged(kernel(body))
    assert found["findings"]


def test_every_single_wrong_element_is_seen() -> None:
    """A14: for every index of a small output, in each dtype."""
    for dtype in (np.float16, np.float32):
        expected = np.arange(1, 31, dtype=dtype).reshape(5, 6)
        for index in np.ndindex(expected.shape):
            for value in (-1, np.nan, np.inf):
                actual = expected.copy()
                actual[index] = value
                found = compare.compare(actual, expected, expected, expected)
                assert (
                    found.mismatches == 1 and found.first is not None and found.first["index"] == list(index)
                )


def test_a_reference_that_is_not_finite_is_the_graders_fault() -> None:
    """A2: no position of an output is ever exempt; NaN in the expected values is refused instead of skipped."""
    expected = np.ones((2, 2), np.float16)
    poisoned = expected.copy()
    poisoned[0, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        compare.compare(expected, poisoned, poisoned, poisoned)


def test_no_task_is_degenerate(course: Course) -> None:
    """A7: in every case of every exercise, no constant is the right output: the values differ widely."""
    from autograder.oracles import ORACLES  # registered by the import of the oracle's process
    from autograder.runner import oracle_child

    oracle_child._Judge()
    looked_at = 0
    for exercise in course.exercises:
        for one in exercise.kernels:
            for case in one.cases:
                inputs = FAMILIES[case.inputs](
                    generator(3, case.id),
                    [tuple(t["shape"]) for t in one.tensor_specs() if t["role"] == "input"],
                )
                if len(inputs[0]) > 2000:
                    continue
                exact = _exact(ORACLES[one.oracle], inputs, one)
                if exact is None:
                    continue
                looked_at += 1
                constant = np.full_like(exact, np.median(exact))
                near = np.isclose(exact, constant, rtol=1e-2, atol=0).mean()
                assert near < 0.9, f"{exercise.id} {case.id}: {near:.0%} of the output is one constant"
    assert looked_at > 20


def _exact(oracle: Any, inputs: list[Any], kernel: Any) -> Any:
    from autograder.oracles import taken

    try:
        return oracle(inputs, **taken(oracle, dict(kernel.builder.params))).exact
    except (KeyError, TypeError):
        return None


def test_the_inputs_of_a_run_cannot_be_known_before(emulated: Emulated) -> None:
    """A11: seeds are drawn by the grade, of 40 bits, and inputs of different seeds and cases differ."""
    draws = {generator(seed, case).integers(2**62) for seed in range(20) for case in ("a", "b")}
    assert len(draws) == 40
    from autograder.grade import SEED_BITS, _secret_seed

    assert SEED_BITS >= 40 and len({_secret_seed() for _ in range(200)}) == 200


# A4, A15, A16 and our own: what a builder returns instead of a kernel ---------------------------------

INSTEAD = {
    "equals everything": (
        "class Same:\n    def __eq__(self, other): return True\n    __lt__ = __le__ = __sub__ = __eq__\n"
        "def build_kernel(M, N): return Same()\n",
        "returned a kernel.Same, not a tvm.tirx.PrimFunc",
    ),
    "says it is a PrimFunc": (
        "import tvm\nclass Fake:\n    __class__ = tvm.tirx.PrimFunc\n    params = ()\n"
        "def build_kernel(M, N): return Fake()\n",
        "not a tvm.tirx.PrimFunc",
    ),
    "a module": (
        "import tvm\n" + kernel(RIGHT) + "inner = build_kernel\n"
        "def build_kernel(M, N): return tvm.IRModule({'main': inner(M, N)})\n",
        "not a tvm.tirx.PrimFunc",
    ),
    "a library call": (
        "import torch\ndef build_kernel(M, N): return lambda a, d: torch.mul(a, 2, out=d)\n",
        "not a tvm.tirx.PrimFunc",
    ),
    "a pickle bomb": (
        "class Bomb:\n    def __reduce__(self): return (__import__('os').system, ('touch /tmp/autograde-pickle',))\n"
        "def build_kernel(M, N): return Bomb()\n",
        "returned a kernel.Bomb",
    ),
}


def test_what_is_no_kernel_is_no_kernel(
    tmp_path: Any, emulated: Emulated, exercise: Any, limits: Any
) -> None:
    """The builder's own steps, called here; A32: nothing is ever unpickled, graphs are JSON of known kinds."""
    import sys

    from autograder.diagnosis import Diagnosis
    from autograder.runner import build_child
    from autograder.submission import Submission

    for source, words in INSTEAD.values():
        path = tmp_path / "snapshot" / "kernel.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        with pytest.raises(build_child.Refused) as caught:
            build_child._build(build_child._import(str(path)), "build_kernel", exercise.builder.params)
        sys.modules.pop(build_child.MODULE, None)
        header = build_child._describe(caught.value, str(path))
        failure = Diagnosis(exercise, Submission("kernel.py", source), limits).build_failure(header)
        assert words in failure.message and failure.fault is Fault.YOUR_CODE


HOSTS = {
    "calls a packed function": 'T.evaluate(T.call_packed("runtime.SystemLib"))',
    "calls C": 'T.evaluate(T.call_extern("int32", "system", "touch /tmp/autograde-extern"))',
    "calls a library": 'T.evaluate(T.call_packed("tvm.contrib.cublas.matmul", A.data, A.data, D.data, False, False))',
}


@pytest.mark.parametrize("name", HOSTS)
def test_a_kernel_cannot_call_the_machines_functions(emulated: Emulated, name: str) -> None:
    """A15, TVM's global registries: a name in a kernel is never looked up and called where kernels run."""
    import os

    found = emulated.judged(kernel(HOSTS[name]))
    assert "refused" in found, found
    assert not os.path.exists("/tmp/autograde-extern")


# What the Python around a wrong kernel does to its process ---------------------------------------

CHANGES = """
import atexit, builtins, gc, json, os, random, sys, threading, time
import numpy as np
import tvm, tvm_ffi

# A5: the grader's modules, replaced and edited in place
import emulator
from autograder.runner import frames, ir_json, limits
for module in list(sys.modules.values()):
    if (getattr(module, "__name__", "") or "").startswith(("autograder", "emulator")):
        for name, value in list(vars(module).items()):
            if callable(value) and hasattr(value, "__code__") and name not in ("encode", "_send", "_built", "_build", "dump", "_describe", "_line", "_text", "_find_builder"):
                try: value.__code__ = (lambda *a, **k: True).__code__
                except (ValueError, AttributeError): pass
for name in ("autograder.compare", "autograder.checks", "autograder.grade", "autograder.oracles"):
    sys.modules[name] = type(sys)(name)

# A12: generators of numbers
np.random.default_rng = lambda *a: type("G", (), {"normal": lambda s, *a, **k: np.zeros(1)})()
random.random = lambda: 0.0
os.urandom = lambda n: b"\\0" * n

# TVM's global registries
@tvm.register_global_func("autograder.compare", override=True)
def always(*arguments): return True
for name in ("node.LoadJSON", "ffi.LoadJSON", "tirx.transform.LowerTVMBuiltin"):
    try: tvm.register_global_func(name, lambda *a: True, override=True)
    except Exception: pass

# A17, A18: clocks
time.perf_counter = time.monotonic = time.time = lambda: 0.0

# A20, A31: a thread that goes on, and words after the end
threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(10**6)], daemon=True).start()
atexit.register(lambda: os.write(1, b'{"points": 100}'))
builtins.print = lambda *a, **k: None
sys.excepthook = lambda *a: os._exit(0)
json.dumps = lambda *a, **k: '{"stage": "built"}'
gc.disable()
"""


def test_whatever_its_python_changes_the_verdict_is_the_same(graded: Graded) -> None:
    """A1, A5, A12, A16, A17, A18, A20, A31: beside a wrong kernel, everything in the process is turned to say that it is right."""
    plain = graded(kernel(WRONG))
    changed = graded(
        kernel(WRONG).replace(
            "def build_kernel",
            CHANGES.replace("json.dumps = lambda", "dumps = lambda") + "\ndef build_kernel",
            1,
        )
    )
    assert plain.check("correctness").verdict is Verdict.FAIL  # type: ignore[union-attr]
    assert points(changed)["correctness"] == points(plain)["correctness"] == 0
    assert changed.points <= plain.points
    assert Fault.GRADER not in changed.faults and Fault.MACHINE not in changed.faults


def test_a_process_that_breaks_its_own_tools_is_at_fault_itself(tried: Tried) -> None:
    """Editing the JSON writer in the builder's process spoils its own message, and nothing else."""
    text = message(tried(kernel(WRONG).replace("def build_kernel", CHANGES + "\ndef build_kernel", 1)))
    assert "Traceback" not in text and text


def test_a_kernel_that_takes_all_memory_is_to_blame_itself(graded: Graded) -> None:
    """A36: a gigabyte of local memory per thread. Neither the grader nor the machine failed."""
    body = 'x = T.alloc_local((1 << 28,), "float32")\n                x[thread * 1000000] = T.float32(1)\n                D[row, column] = T.cast(x[column], "float16")'
    report = graded(kernel(body))
    assert report.exit_code == 1 and report.faults == {Fault.YOUR_CODE}
    assert "MiB of memory" in report.check("correctness").summary  # type: ignore[union-attr]


def test_a_fallback_earns_what_the_fallback_is(graded: Graded) -> None:
    """A16: try the kernel, else a library. The library is no kernel."""
    source = (
        "def build_kernel(M, N):\n    try:\n        raise ImportError\n    except ImportError:\n"
        "        import numpy\n        return lambda A, D: numpy.multiply(A, 2, out=D)\n"
    )
    report = graded(source)
    assert report.points == 0 and "not a tvm.tirx.PrimFunc" in report.check("build").summary  # type: ignore[union-attr]


# Names in a kernel -------------------------------------------------------------------------------

EVIL = [
    "x\nimport os; os.mkdir(MARKER)\n#", "x = os.mkdir(MARKER) or 0", "__import__('os').mkdir(MARKER)", "x'); __import__('os').mkdir(MARKER); ('",
    '"""', "\\", "\x00", "é̈", "t", "args", "alive", "K0_f", "STATIC_BASE", "return", "lambda", "x" * 1000, "", "@local x", "%s{}{0}",
]  # fmt: skip


@pytest.mark.parametrize("field", ["name", "every string"])
def test_names_in_a_kernel_are_never_code(emulated: Emulated, tmp_path: Any, field: str) -> None:
    """The emulator makes Python from a kernel. Names and texts in its JSON that are Python themselves stay names and texts."""
    import json

    marker = tmp_path / "marker"
    graph = json.loads(emulated.graph(kernel(RIGHT)))
    nodes = graph["nodes"]
    named = {
        n["data"]["name"]
        for n in nodes
        if isinstance(n.get("data"), dict) and isinstance(n["data"].get("name"), int)
    }
    texts = [i for i, n in enumerate(nodes) if n["type"] == "ffi.String" and (field != "name" or i in named)]
    assert len(texts) > 3
    for shift in range(0, len(EVIL), 5):
        for position, i in enumerate(texts):
            if field == "name" or position % len(EVIL) == shift:
                evil = EVIL[(position + shift) % len(EVIL)].replace("MARKER", repr(str(marker)))
                nodes[i] = {"type": "ffi.String", "data": evil}
        if field == "name":
            assert emulated.judged(json.dumps(graph).encode())["mismatches"] == 0, "it is still right"
        else:
            with suppress(Exception):  # TVM refuses most of these, each in its own way
                emulated.judged(json.dumps(graph).encode())
        assert not marker.exists(), "a name was executed"
