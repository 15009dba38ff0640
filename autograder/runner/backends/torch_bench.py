"""A kernel against a PyTorch call on one GPU: the `Bench` of `measure.py`.

Events are recorded by PyTorch on the device's default stream, where TVM launches too. A flush that reads several
hundred MB of other data keeps the device busy while the interval is enqueued, so neither the host's time nor a warm L2
is in it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from autograder.runner.measure import KERNEL, Sample

DEVICE = "cuda:0"
MIN_FLUSH_BYTES = 512 << 20
# Peak DRAM bandwidth in bytes per second where the driver does not tell clock and bus width. NVIDIA's data sheets.
PEAK_BANDWIDTH = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA B200": 7.7e12}

HEAD = 128  # rows of a head in two-dimensional tensors of attention


def _attention(torch: Any, x: list[Any], causal: bool) -> Any:
    """Attention of Q, K and V: (B, S, H, D), (H, S, D), or (N, D) with 128 rows per head; as Q."""
    q, k, v = (_by_head(t) for t in x)
    queries, keys = q.shape[2], k.shape[2]
    options: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1], "is_causal": causal}
    if causal and queries != keys:  # PyTorch's own causal mask begins at the top left
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        options |= {"is_causal": False, "attn_mask": mask}
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
    return o.transpose(1, 2) if x[0].ndim == 4 else o.reshape(x[0].shape)


def _by_head(t: Any) -> Any:
    """As (B, H, S, D)."""
    if t.ndim == 4:
        return t.transpose(1, 2)
    return t.unsqueeze(0) if t.ndim == 3 else t.view(-1, 1, HEAD, t.shape[1])


# What a user would call. All write into a tensor that exists already, except where PyTorch has no such form.
REFERENCES: dict[str, Callable[[Any, list[Any], Any], Any]] = {
    "attention": lambda torch, x, out: _attention(torch, x, causal=False),
    "attention_causal": lambda torch, x, out: _attention(torch, x, causal=True),
    "copy": lambda torch, x, out: out.view(-1).copy_(x[0].view(-1)),
    "double": lambda torch, x, out: torch.mul(x[0], 2, out=out),
    "add": lambda torch, x, out: torch.add(x[0], x[1], out=out),
    "transpose": lambda torch, x, out: x[0].t().contiguous(),
    "matmul_nn": lambda torch, x, out: torch.matmul(x[0], x[1]),
    "matmul_nt": lambda torch, x, out: torch.matmul(x[0], x[1].t()),
}


def _gemm(a: Any, b: Any) -> tuple[Any, Any]:
    return a.float() @ b.float(), a.float().abs() @ b.float().abs()


def _attention_bound(x: list[Any], causal: bool) -> tuple[Any, Any]:
    """The weighted mean of V, and of |V| times the rounding of P to fp16 and as much again for all else."""
    import torch

    q, k, v = (t.float() for t in x)
    return _attention(torch, [q, k, v], causal), 2.0**-10 * _attention(torch, [q, k, v.abs()], causal)


# The right output of an oracle, and the sum of magnitudes that bounds a right kernel's error (None: no error at all).
EXPECTED: dict[str, Callable[[list[Any]], tuple[Any, Any]]] = {
    "add": lambda x: (x[0] + x[1], None),
    "double": lambda x: (x[0] * 2, None),
    "copy": lambda x: (x[0], None),
    "transpose": lambda x: (x[0].t(), None),
    "gemm_nn": lambda x: _gemm(x[0], x[1]),
    "gemm_nt": lambda x: _gemm(x[0], x[1].t()),
    "attention": lambda x: _attention_bound(x, causal=False),
    "attention_causal": lambda x: _attention_bound(x, causal=True),
}


def _with_mask(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan; attention with a causal mask has names of its own."""
    if not plan.get("options", {}).get("causal"):
        return plan
    names = {
        key: f"{plan[key]}_causal" if plan[key] == "attention" else plan[key]
        for key in ("oracle", "reference")
    }
    return {**plan, **names}


class TorchBench:
    """One compiled kernel, one reference, and their tensors."""

    def __init__(self, kernel: Callable[..., Any], plan: dict[str, Any], seed: int) -> None:
        """`plan`: tensors (name, role, dtype, shape), reference, oracle, terms, accumulate_eps."""
        import torch
        import tvm

        self._torch, self._plan = torch, _with_mask(plan)
        torch.backends.cuda.matmul.allow_tf32 = False
        self._device = torch.device(DEVICE)
        self._random = torch.Generator(self._device).manual_seed(seed % 2**63)
        specs = plan["tensors"]
        make = [torch.empty(s["shape"], dtype=getattr(torch, s["dtype"]), device=self._device) for s in specs]
        self._inputs = [t for s, t in zip(specs, make, strict=True) if s["role"] == "input"]
        (self._output,) = (t for s, t in zip(specs, make, strict=True) if s["role"] == "output")
        self._pristine = [torch.empty_like(t) for t in self._inputs]
        self._reference_output = torch.empty_like(self._output)
        self._arguments = [tvm.runtime.from_dlpack(t) for t in make]
        self._kernel, self._reference = kernel, REFERENCES[self._plan["reference"]]
        self._properties = torch.cuda.get_device_properties(0)
        self._l2 = int(getattr(self._properties, "L2_cache_size", 0))
        self._flush = torch.ones(
            max(MIN_FLUSH_BYTES, 2 * self._l2) // 4, dtype=torch.int32, device=self._device
        )
        self._nvml = _Nvml()

    def use_reference_as_kernel(self, tenths: int = 0) -> None:
        """Time the library call against itself: how well a measurement repeats. `tenths` of the rows are computed twice."""
        reference, torch = self._reference, self._torch
        rows = self._output.shape[0] * tenths // 10

        def kernel(*_: Any) -> None:
            reference(torch, self._inputs, self._output)
            if rows:
                reference(torch, [t[:rows] for t in self._inputs], self._output[:rows])

        self._kernel = kernel
        self._plan = {**self._plan, "oracle": "copy"} if self._plan["reference"] == "copy" else self._plan

    def use_kernel_as_reference(self, kernel: Callable[..., Any]) -> None:
        """Time one kernel against another instead of against the library."""
        import tvm

        own = [tvm.runtime.from_dlpack(t) for t in (*self._pristine, self._reference_output)]
        self._reference = lambda *_: kernel(*own)

    def prepare(self, number: int) -> None:
        for tensor, pristine in zip(self._inputs, self._pristine, strict=True):
            tensor.normal_(generator=self._random)
            pristine.copy_(tensor)
        self._output.fill_(float("nan"))

    def call(self, which: str) -> Sample:
        torch = self._torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        self._flush.sum()
        start.record()
        if which == KERNEL:
            self._kernel(*self._arguments)
        else:
            kept = self._reference(torch, self._pristine, self._reference_output)  # noqa: F841  freed after the interval
        end.record()
        covered = not start.query()
        torch.cuda.synchronize()
        return Sample(start.elapsed_time(end) * 1000, covered)

    def verify(self) -> str:
        torch = self._torch
        for number, (tensor, pristine) in enumerate(zip(self._inputs, self._pristine, strict=True)):
            if not torch.equal(tensor, pristine):
                return f"input {number} was changed"
        exact, magnitude = EXPECTED[self._plan["oracle"]](self._pristine)
        output = self._output
        if magnitude is None:
            wrong = int((output != exact.to(output.dtype)).sum())
        else:
            # Twice the error bound of any order of summation, because the reference is rounded, too, and one unit of
            # the output's type.
            eps = torch.finfo(output.dtype).eps
            bound = 2 * self._plan["terms"] * self._plan["accumulate_eps"] * magnitude + eps * exact.abs()
            wrong = int(((output.float() - exact).abs() <= bound).logical_not().sum())
        return f"{wrong} of {output.numel()} elements are wrong" if wrong else ""

    def clocks(self) -> dict[str, Any]:
        return self._nvml.clocks()

    def facts(self) -> dict[str, Any]:
        size = [t.numel() * t.element_size() for t in self._inputs]
        return {
            "device": self._properties.name,
            "sms": int(self._properties.multi_processor_count),
            "l2_bytes": self._l2,
            "flush_bytes": self._flush.numel() * 4,
            "input_bytes": sum(size),
            "output_bytes": self._output.numel() * self._output.element_size(),
            "peak_bytes_per_s": self._nvml.peak_bandwidth() or PEAK_BANDWIDTH.get(self._properties.name),
            "torch": self._torch.__version__,
        }


class _Nvml:
    """Clocks and neighbours from the driver's management library; from nvidia-smi where its bindings are missing."""

    def __init__(self) -> None:
        self._lib: Any = None
        try:
            import pynvml  # type: ignore[import-not-found,unused-ignore]

            pynvml.nvmlInit()
            import torch

            uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
            self._handle = _nvml_handle(pynvml, uuid)
            self._lib = pynvml
        except Exception:  # no bindings, no permission, another library of that name
            self._lib = None

    def clocks(self) -> dict[str, Any]:
        if self._lib is None:
            return _clocks_from_smi()
        lib, handle = self._lib, self._handle
        seen: dict[str, Any] = {
            "sm_mhz": _try(lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),
            "memory_mhz": _try(lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_MEM)),
            "celsius": _try(lambda: lib.nvmlDeviceGetTemperature(handle, 0)),
            "watts": _try(lambda: lib.nvmlDeviceGetPowerUsage(handle) // 1000),
            "processes": _try(lambda: len(lib.nvmlDeviceGetComputeRunningProcesses(handle))),
            "reasons": _try(lambda: lib.nvmlDeviceGetCurrentClocksEventReasons(handle)),
        }
        if seen["reasons"] is None:  # the name before driver 535
            seen["reasons"] = _try(lambda: lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return {name: value for name, value in seen.items() if value is not None}

    def peak_bandwidth(self) -> float | None:
        """Two transfers per clock over the whole bus, bytes per second."""
        if self._lib is None:
            return None
        lib, handle = self._lib, self._handle
        clock = _try(lambda: lib.nvmlDeviceGetMaxClockInfo(handle, lib.NVML_CLOCK_MEM))
        width = _try(lambda: lib.nvmlDeviceGetMemoryBusWidth(handle))
        return None if not clock or not width else 2.0 * clock * 1e6 * width / 8


def neighbours() -> int | None:
    """Other compute processes on the first visible GPU, asked before this process uses it; None where unknown."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        shown = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if shown.returncode != 0:
        return None
    return sum(1 for line in shown.stdout.splitlines() if line.strip().isdigit())


def _nvml_handle(lib: Any, uuid: str) -> Any:
    for index in range(int(lib.nvmlDeviceGetCount())):
        handle = lib.nvmlDeviceGetHandleByIndex(index)
        name = lib.nvmlDeviceGetUUID(handle)
        name = name.decode() if isinstance(name, bytes) else str(name)
        if not uuid or uuid in name:
            return handle
    return lib.nvmlDeviceGetHandleByIndex(0)


def _clocks_from_smi() -> dict[str, Any]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--query-gpu=clocks.sm,clocks.mem", "--format=csv,noheader,nounits"]
    try:
        shown = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.splitlines()
        sm, memory = (int(part) for part in shown[0].split(","))
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return {}
    return {"sm_mhz": sm, "memory_mhz": memory}


def _try(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # a driver that does not support one query
        return None
