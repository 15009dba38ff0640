"""Kernels over the wrong buffers: said before anything is run, with what the exercise wants."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from autograder.course import Exercise, Limits
from autograder.diagnosis import Diagnosis
from autograder.report.model import Fault
from autograder.runner import machine_child
from autograder.runner.ir_json import NotAKernel
from autograder.submission import Submission
from emulator.tvm_import import import_tvm

from .conftest import SMALL_KERNEL

import_tvm()


def buffers(tmp_path: Path, source: str) -> tuple[list[dict[str, Any]], list[str]]:
    path = tmp_path / "kernel.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernel_with_buffers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prim_func = module.build_kernel(M=128, N=128, K=64)
    return machine_child._buffers(prim_func), [str(parameter.name) for parameter in prim_func.params]


def test_the_right_buffers(tmp_path: Path, exercise: Exercise) -> None:
    found, names = buffers(tmp_path, SMALL_KERNEL)
    assert names == ["A", "B", "D"]
    assert found == [{key: t[key] for key in ("dtype", "shape")} for t in exercise.tensor_specs()]


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            'D: T.Buffer((M, N), "float16")',
            'D: T.Buffer((M, N), "float32")',
            "parameter 3, D, is float32 (128, 128)",
        ),
        (
            'A: T.Buffer((M, K), "float16")',
            'A: T.Buffer((K, M), "float16")',
            "parameter 1, A, is float16 (64, 128)",
        ),
        (
            'B: T.Buffer((N, K), "float16")',
            'B: T.Buffer((N * K,), "float16")',
            "parameter 2, B, is float16 (8192,)",
        ),
        ('B: T.Buffer((N, K), "float16"), ', "", "the kernel has 2 parameters, not 3"),
        ('B: T.Buffer((N, K), "float16")', "B: T.int32", "parameter 2, B, is no buffer"),
    ],
)
def test_wrong_buffers(
    tmp_path: Path, exercise: Exercise, limits: Limits, right: str, wrong: str, message: str
) -> None:
    source = SMALL_KERNEL.replace(right, wrong)
    assert source != SMALL_KERNEL
    found, names = buffers(tmp_path, source)
    diagnosis = Diagnosis(exercise, Submission("exercise_05.ipynb", source, 6, "kernel"), limits)
    failure = diagnosis.refusal({"kind": "buffers", "buffers": machine_child._named(found, names)})
    assert failure.message.startswith(message)
    assert "A: float16 (128, 64), B: float16 (128, 64), D: float16 (128, 128)" in failure.fix
    assert failure.fault is Fault.YOUR_CODE
    declared = "def build_kernel(M, N, K):" if "parameters, not" in message else wrong.split(":")[0] + ": T."
    assert failure.location is not None and declared in failure.location.text


def test_something_else_than_a_prim_func() -> None:
    import tvm

    with pytest.raises(NotAKernel, match="IntImm instead of a PrimFunc"):
        machine_child._buffers(tvm.tirx.IntImm("int32", 5))


@pytest.mark.parametrize("kind", ["buffer", "variable", "file"])
def test_names_too_long_for_the_answers_are_refused(kind: str) -> None:
    import json

    from tvm.script import tirx as T

    from autograder.runner import ir_json

    @T.prim_func
    def kernel(A: T.Buffer((128,), "float32")):
        T.device_entry()
        thread = T.thread_id([128])
        A[thread] = A[thread] + T.float32(1)

    graph = json.loads(ir_json.dump(kernel))
    nodes = graph["nodes"]
    assert ir_json.load(json.dumps(graph)) is not None
    if kind == "file":
        node = next(n for n in nodes if n["type"] == "ir.SourceName")
        node["data"] += "x" * (9 << 20)
    else:
        wanted = "A" if kind == "buffer" else "thread"
        node = next(n for n in nodes if n["type"] == "ffi.String" and n["data"] == wanted)
        node["data"] += "x" * (9 << 20)
    with pytest.raises(NotAKernel, match="a name of more than 1000 characters"):
        ir_json.load(json.dumps(graph))


def test_findings_become_strict_json() -> None:
    import json

    import numpy as np

    value = {
        "a": np.float32(1.5),
        2: [np.int64(3), float("nan"), float("-inf")],
        "t": (True, None, "x"),
        "o": object,
    }
    plain = machine_child._plain(value)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["a"] == 1.5 and plain["2"] == [3, "nan", "-inf"] and plain["t"] == [True, None, "x"]
