"""The GPU through TVM's own runtime: compile a PrimFunc, launch it on raw bytes, name what went wrong.

Only functions here touch the device. `open_device` is what the process of `cuda_child.py` calls; tests put another
module with the same function in its place.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from autograder.runner.measure import Bench

Array = npt.NDArray[Any]


class Device(Protocol):
    """What the GPU's process needs of a device."""

    def compile(self, prim_func: Any) -> Any:
        """A kernel that `launch` takes. Raises ValueError with the compiler's words."""

    def launch(self, kernel: Any, arrays: list[Array]) -> list[Array]:
        """Run on copies of the arrays and wait; all of them afterwards. Raises DeviceError."""

    def bench(self, kernel: Any, plan: dict[str, Any], seed: int) -> Bench:
        """The kernel against a library call (see `TorchBench`)."""

    def versions(self) -> dict[str, str]:
        """What compiles and what runs, by name."""


class DeviceError(Exception):
    """The device refused or stopped a launch. `sticky`: this process can use the device no more."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.kind, self.sticky = classify(message)


# (what the driver calls it, kind, ends the context). CUDA driver API, CUresult; runtime names are spelled alike.
_KNOWN = (
    (r"IllegalAddress|ILLEGAL_ADDRESS|illegal memory access", "illegal address", True),
    (r"MisalignedAddress|MISALIGNED_ADDRESS|misaligned address", "misaligned address", True),
    (r"IllegalInstruction|ILLEGAL_INSTRUCTION|illegal instruction", "illegal instruction", True),
    (r"InvalidAddressSpace|INVALID_ADDRESS_SPACE", "invalid address space", True),
    (r"InvalidPc|INVALID_PC", "invalid program counter", True),
    (r"HardwareStackError|HARDWARE_STACK_ERROR", "stack error", True),
    (r"cudaErrorAssert|CUDA_ERROR_ASSERT|device-side assert", "assertion", True),
    (r"LaunchFailure|LAUNCH_FAILED|unspecified launch failure", "launch failure", True),
    (r"LaunchTimeout|LAUNCH_TIMEOUT", "hang", True),
    (r"LaunchOutOfResources|LAUNCH_OUT_OF_RESOURCES|too many resources", "too many resources", False),
    (r"InvalidClusterSize|INVALID_CLUSTER_SIZE", "invalid cluster size", False),
    (r"InvalidConfiguration|cudaErrorInvalidValue|CUDA_ERROR_INVALID_VALUE", "invalid launch", False),
)
MACHINE = "machine"


def classify(message: str) -> tuple[str, bool]:
    """(what the kernel did, whether the context is lost); `machine` for everything that no kernel causes.

    An error such as "out of memory", "no device", "ECC uncorrectable" or "device unavailable" is the machine's.
    """
    for pattern, kind, sticky in _KNOWN:
        if re.search(pattern, message):
            return kind, sticky
    return MACHINE, True


def open_device(arch: str) -> Device:
    """The first visible GPU.

    Raises:
        DeviceError: there is none, or TVM was built without CUDA.
    """
    return TvmDevice(arch)


class TvmDevice:
    """A GPU driven by `tvm.compile` and the compiled module, as a user of TVM would."""

    def __init__(self, arch: str) -> None:
        from autograder.gpu import compile_mode
        from emulator.tvm_import import import_tvm

        os.environ.setdefault("TVM_CUDA_COMPILE_MODE", compile_mode())
        load_cuda_runtime()
        self._tvm = import_tvm()
        import tvm.tirx  # noqa: F401

        self._arch = arch
        self._device = self._tvm.cuda(0)
        if not self._device.exist:
            raise DeviceError("TVM sees no CUDA device")
        try:  # the first allocation makes the context: no launch shall wait for that
            self._tvm.runtime.tensor(np.zeros(1, np.float32), device=self._device)
            self._device.sync()
        except Exception as error:
            raise DeviceError(last_line(error)) from None

    def compile(self, prim_func: Any) -> Any:
        return compile_module(self._tvm, prim_func, self._arch)

    def launch(self, kernel: Any, arrays: list[Array]) -> list[Array]:
        try:
            tensors = [self._tvm.runtime.tensor(array, device=self._device) for array in arrays]
            self._device.sync()
            kernel(*tensors)
            self._device.sync()
            return [tensor.numpy() for tensor in tensors]
        except Exception as error:  # TVM raises what its C++ side names
            raise DeviceError(last_line(error)) from None

    def bench(self, kernel: Any, plan: dict[str, Any], seed: int) -> Bench:
        from autograder.runner.backends.torch_bench import TorchBench

        return TorchBench(kernel, plan, seed)

    def versions(self) -> dict[str, str]:
        return {"compiler": os.environ["TVM_CUDA_COMPILE_MODE"]}


def neighbours() -> int | None:
    """Other processes on the GPU; to be asked before this process uses it."""
    from autograder.runner.backends import torch_bench

    return torch_bench.neighbours()


def load_cuda_runtime() -> None:
    """TVM's CUDA part links libcudart.so.13; where only pip packages bring it, the loader has to be shown the file."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
        return
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in Path(folder).glob("*/lib/libcudart.so.13"):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
                return


def compile_module(tvm: Any, prim_func: Any, arch: str) -> Any:
    """The function of the compiled module, through the same pipeline that the emulator lowers with.

    Raises:
        ValueError: the compiler's first error, one line.
    """
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    try:
        with target:
            module = tvm.IRModule({"main": prim_func})
            return tvm.compile(module, target=target, tir_pipeline="tirx")["main"]
    except Exception as error:
        raise ValueError(_compiler_error(str(error))) from None


def _compiler_error(text: str) -> str:
    """The compiler's own first error, or the last line that says anything."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines[-1:] or ["no message"])[0][:500]


def last_line(error: BaseException) -> str:
    """The last line of an error that names CUDA, else its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cuda = [line for line in lines if "CUDA" in line or "cuda" in line]
    return (cuda or lines or [type(error).__name__])[-1][:500]
