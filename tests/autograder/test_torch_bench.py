"""The bench that times a kernel against PyTorch, on the CPU with events that only count."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from autograder.course import REFERENCE_INPUTS
from emulator.tvm_import import import_tvm

import_tvm()
import numpy as np  # noqa: E402
import torch  # noqa: E402

from autograder.runner.backends import torch_bench  # noqa: E402
from autograder.runner.backends.torch_bench import EXPECTED, REFERENCES, TorchBench  # noqa: E402
from autograder.runner.measure import measure  # noqa: E402

M, N, K = 24, 40, 16


class Event:
    """The interval between two of these is 0.25 ms, and the device is always still busy."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return False

    def elapsed_time(self, end: Event) -> float:
        return 0.25


@pytest.fixture(autouse=True)
def events_that_count(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch_bench, "DEVICE", "cpu")
    monkeypatch.setattr(torch_bench, "MIN_FLUSH_BYTES", 4096)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    properties = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132, L2_cache_size=1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    yield


ATTENTION = {"attention": 0, "attention_causal": 1}


def attention_plan(causal: int) -> dict[str, Any]:
    """Two batches, two query heads per head of K and V."""
    q, kv = [2, M, 4, K], [2, N, 2, K]
    roles = [("Q", "input", q), ("K", "input", kv), ("V", "input", kv), ("O", "output", q)]
    return {
        "tensors": [{"name": n, "role": r, "dtype": "float16", "shape": s} for n, r, s in roles],
        "reference": "attention",
        "oracle": "attention",
        "terms": 1,
        "accumulate_eps": 1.0,
        "options": {"causal": causal},
    }


def plan(oracle: str, reference: str) -> dict[str, Any]:
    if oracle in ATTENTION:
        return attention_plan(ATTENTION[oracle])
    inputs: dict[str, list[tuple[str, list[int]]]] = {
        "add": [("float32", [M]), ("float32", [M])],
        "double": [("float16", [M, N])],
        "copy": [("float16", [M, N])],
        "transpose": [("float16", [M, N])],
        "gemm_nn": [("float16", [M, K]), ("float16", [K, N])],
        "gemm_nt": [("float16", [M, K]), ("float16", [N, K])],
    }
    outputs = {"add": ("float32", [M]), "transpose": ("float16", [N, M])}
    dtype, shape = outputs.get(oracle, ("float16", [M, N]))
    tensors = [
        {"name": f"I{i}", "role": "input", "dtype": d, "shape": s} for i, (d, s) in enumerate(inputs[oracle])
    ]
    tensors.append({"name": "D", "role": "output", "dtype": dtype, "shape": shape})
    return {
        "tensors": tensors,
        "reference": reference,
        "oracle": oracle,
        "terms": K,
        "accumulate_eps": 2.0**-23,
    }


def attention(inputs: list[Any], causal: int) -> Any:
    """O in fp32; query i sees keys 0 to i + N - M."""
    q, k, v = (x.astype(np.float32).transpose(0, 2, 1, 3) for x in inputs)
    s = q @ k.repeat(2, axis=1).swapaxes(2, 3) / np.sqrt(K)
    if causal:
        s = np.where(np.arange(N) <= np.arange(M)[:, None] + N - M, s, -np.inf)
    p = np.exp(s - s.max(axis=3, keepdims=True))
    return (p / p.sum(axis=3, keepdims=True) @ v.repeat(2, axis=1)).transpose(0, 2, 1, 3)


def right(oracle: str) -> Callable[..., None]:
    """A kernel on TVM's tensors that computes what the oracle wants."""

    def kernel(*tensors: Any) -> None:
        inputs = [np.from_dlpack(t) for t in tensors[:-1]]
        wide = [x.astype(np.float32) for x in inputs]
        value = {
            "add": lambda: inputs[0] + inputs[1],
            "double": lambda: inputs[0] * 2,
            "copy": lambda: inputs[0],
            "transpose": lambda: inputs[0].T,
            "gemm_nn": lambda: wide[0] @ wide[1],
            "gemm_nt": lambda: wide[0] @ wide[1].T,
            "attention": lambda: attention(inputs, 0),
            "attention_causal": lambda: attention(inputs, 1),
        }[oracle]()
        torch.from_dlpack(tensors[-1]).copy_(torch.from_numpy(np.ascontiguousarray(value)))

    return kernel


PAIRS = [("add", "add"), ("double", "copy"), ("double", "double"), ("transpose", "transpose"), ("transpose", "copy"),
         ("copy", "copy"), ("gemm_nn", "matmul_nn"), ("gemm_nt", "matmul_nt"), ("attention", "attention"), ("attention_causal", "attention_causal")]  # fmt: skip


@pytest.mark.parametrize(("oracle", "reference"), PAIRS)
def test_a_right_kernel_is_right_in_every_call(oracle: str, reference: str) -> None:
    bench = TorchBench(right(oracle), plan(oracle, reference), seed=1)
    samples = measure(bench, 20, seed=2, seconds=20)
    assert samples["wrong"] == {} and samples["kernel"] == [250.0] * 20 and all(samples["covered"])
    facts = samples["facts"]
    assert facts["device"] == "NVIDIA H200" and facts["peak_bytes_per_s"] == 4.8e12
    specs = plan(oracle, reference)["tensors"]
    size = [int(np.prod(s["shape"])) * np.dtype(s["dtype"]).itemsize for s in specs]
    assert (facts["input_bytes"], facts["output_bytes"]) == (sum(size[:-1]), size[-1])


@pytest.mark.parametrize("oracle", sorted(EXPECTED))
def test_a_kernel_that_does_nothing_is_wrong(oracle: str) -> None:
    reference = next(r for o, r in PAIRS if o == oracle)
    bench = TorchBench(lambda *_: None, plan(oracle, reference), seed=1)
    bench.prepare(0)
    bench.call("kernel")
    assert "elements are wrong" in bench.verify()


@pytest.mark.parametrize("oracle", sorted(EXPECTED))
def test_one_wrong_element_is_seen(oracle: str) -> None:
    def kernel(*tensors: Any) -> None:
        right(oracle)(*tensors)
        output = torch.from_dlpack(tensors[-1]).view(-1)
        output[-1] = output[-1] * 1.25 + 1

    bench = TorchBench(kernel, plan(oracle, next(r for o, r in PAIRS if o == oracle)), seed=1)
    bench.prepare(0)
    bench.call("kernel")
    assert bench.verify().startswith("1 of ")


def test_a_changed_input_is_seen() -> None:
    def kernel(*tensors: Any) -> None:
        right("double")(*tensors)
        torch.from_dlpack(tensors[0])[0, 0] += 1

    bench = TorchBench(kernel, plan("double", "copy"), seed=1)
    bench.prepare(0)
    bench.call("kernel")
    assert bench.verify() == "input 0 was changed"


def test_inputs_are_new_for_every_call() -> None:
    seen = []
    bench = TorchBench(lambda a, d: seen.append(np.from_dlpack(a).tobytes()), plan("copy", "copy"), seed=1)
    for number in range(5):
        bench.prepare(number)
        bench.call("kernel")
    assert len(set(seen)) == 5


def test_what_the_repeatability_is_measured_with() -> None:
    """The library against itself, and one kernel against another."""
    bench = TorchBench(lambda *_: None, plan("double", "copy"), seed=1)
    bench.use_reference_as_kernel()
    assert measure(bench, 20, seed=2, seconds=20)["wrong"] == {}
    ran = []
    bench = TorchBench(right("double"), plan("double", "copy"), seed=1)
    bench.use_kernel_as_reference(lambda *tensors: ran.append(len(tensors)))
    bench.prepare(0)
    bench.call("reference")
    assert ran == [2]


def test_every_reference_of_the_course_exists() -> None:
    assert set(REFERENCES) - {"attention_causal"} == set(REFERENCE_INPUTS)


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"]
)
def test_clocks_of_the_drivers_library(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What the library does not know is left out; the peak bandwidth is two transfers per clock over the bus."""
    known = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetClockInfo": lambda handle, which: 1980 if which == "sm" else 3201,
        "nvmlDeviceGetMaxClockInfo": lambda handle, which: 3201,
        "nvmlDeviceGetMemoryBusWidth": lambda handle: 6144,
        name: lambda handle: 4,
        "NVML_CLOCK_SM": "sm",
        "NVML_CLOCK_MEM": "memory",
    }
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**known))
    nvml = torch_bench._Nvml()
    assert nvml.clocks() == {"sm_mhz": 1980, "memory_mhz": 3201, "reasons": 4}
    assert nvml.peak_bandwidth() == pytest.approx(4.917e12, rel=1e-3)


def test_clocks_without_the_drivers_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '1980, 3201'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    nvml = torch_bench._Nvml()
    assert nvml.clocks() == {"sm_mhz": 1980, "memory_mhz": 3201} and nvml.peak_bandwidth() is None
    program.write_text("#!/bin/sh\necho 'No devices'; exit 6\n")
    assert nvml.clocks() == {} and torch_bench.neighbours() is None
    program.write_text("#!/bin/sh\nprintf '71\\n72\\n'\n")
    assert torch_bench.neighbours() == 2
