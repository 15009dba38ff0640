"""A PrimFunc survives the way between two processes, and JSON that is no kernel is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from autograder.runner import ir_json
from emulator.tvm_import import import_tvm

from .conftest import SMALL_KERNEL

tvm = import_tvm()

CONSTANTS = SMALL_KERNEL.replace(
    "        D[lane, 0] = A[lane, 0]\n",
    "        total = T.alloc_local((4,), 'float32')\n"
    "        total[0] = T.float32(float('-inf'))\n"
    "        total[1] = T.float32(float('nan'))\n"
    "        total[2] = T.float32(-0.0)\n"
    "        total[3] = T.float32(0.0)\n"
    "        D[lane, 0] = T.Cast('float16', total[0])\n",
)


def build(tmp_path: Path, source: str) -> Any:
    path = tmp_path / "kernel.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernel_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_kernel(M=128, N=128, K=64)


def spans(prim_func: Any) -> list[str]:
    graph = json.loads(ir_json.dump(prim_func))
    return [json.dumps(n["data"]) for n in graph["nodes"] if n["type"] in ("ir.Span", "ir.SourceName")]


@pytest.mark.parametrize("which", ["small", "constants", "solution"])
def test_kernels_come_back_equal(tmp_path: Path, solution: str, which: str) -> None:
    """Structure, printed text, source lines, and the signs of zeros."""
    source = {"small": SMALL_KERNEL, "constants": CONSTANTS, "solution": solution}[which]
    before = build(tmp_path, source)
    text = ir_json.dump(before)
    after = ir_json.load(text)
    tvm.ir.assert_structural_equal(before, after)
    assert after.script() == before.script()
    assert spans(after) == spans(before)
    assert len(spans(before)) > 3
    if which == "constants":
        assert "-0.0" in after.script() and "-inf" in after.script() and "nan" in after.script()


def graph(*nodes: dict[str, Any]) -> str:
    return json.dumps({"root_index": len(nodes) - 1, "nodes": list(nodes), "metadata": {}})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"nodes": 5}',
        '{"nodes": [5]}',
        graph({"type": "ffi.Function", "data": "runtime.Module"}),
        graph({"type": "ffi.Module", "data": {}}),
        graph({"type": "runtime.PackedFunc", "data": {}}),
        graph({"type": "tirx.NoSuchNode", "data": {}}),
        graph({"type": "tirx.PrimFunc", "data": {}}),
        graph({"type": "tirx.Evaluate", "data": {"value": 17}}),
        "[" * 100_000,
    ],
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ir_json.NotAKernel):
        ir_json.load(text)


def test_what_is_no_ir_is_refused() -> None:
    for thing in (object(), tvm.target.Target("llvm"), lambda: None):
        with pytest.raises(ir_json.NotAKernel):
            ir_json.dump(thing)
