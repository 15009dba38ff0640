"""What a kernel's host code may do before anything but the emulator runs it."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest

import emulator

KERNEL = """
from tvm.script import tirx as T


@T.prim_func
def kernel(A: T.Buffer((64,), "float16"), D: T.Buffer((64,), "float16")):
    HOST
    T.device_entry()
    T.cta_id([1])
    lane = T.thread_id([32])
    DEVICE
    D[lane] = A[lane]
"""


def kernel(folder: Path, host: str = "pass", device: str = "pass") -> Any:
    """The kernel with one more statement on the host or on the device."""
    path = folder / "kernel.py"
    source = KERNEL.replace("HOST", host).replace("DEVICE", device)
    path.write_text(source, encoding="utf-8")
    linecache.checkcache(str(path))
    namespace: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(source, str(path), "exec"), namespace)
    return namespace["kernel"]


def test_a_launch_and_nothing_else(tmp_path: Path) -> None:
    assert emulator.compile(kernel(tmp_path)).unknown_host_operations == []


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ('T.evaluate(T.call_packed("runtime.GetCudaFreeMemory"))', "runtime.GetCudaFreeMemory"),
        ('T.evaluate(T.call_extern("int32", "system", 0))', "call_extern"),
        ('pid: T.int32 = T.call_pure_extern("int32", "getpid")', "call_pure_extern"),
    ],
)
def test_a_call_of_the_process_is_named(tmp_path: Path, host: str, named: str) -> None:
    assert emulator.compile(kernel(tmp_path, host=host)).unknown_host_operations == [named]


@pytest.mark.parametrize(
    "device",
    [
        'T.evaluate(T.call_extern("int32", "evil", 0))',
        'T.evaluate(T.cuda.func_call("evil", source_code="__device__ void evil() {}"))',
        'T.evaluate(T.call_packed("runtime.GetCudaFreeMemory"))',
    ],
)
def test_device_code_of_its_own_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(emulator.UnsupportedInstruction):
        emulator.compile(kernel(tmp_path, device=device))
