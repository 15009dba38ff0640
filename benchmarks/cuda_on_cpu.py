"""Run programs written for PyTorch on a CUDA device on the CPU, with compiled TIRx kernels executed by the emulator.

Only for the benchmark of third-party kernels (``benchmarks/tirx_kernels.py``): while :func:`installed` is active,

* ``device="cuda"`` means CPU memory, tensors say that they are on ``cuda:0``, and ``torch.cuda`` answers for one device;
* ``tvm.compile`` returns an :class:`Executable` that lowers and emulates the kernel and records every launch;
* packages that only a GPU machine has (FlashInfer, DeepGEMM, CuTe DSL ...) import as placeholders. Whoever needs a number
  from a placeholder fails, so a comparison with one can never pass.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import importlib.abc
import importlib.machinery
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

import emulator
from emulator.host import FORCED_TYPES, tensor_map
from emulator.instructions.tensormap import payload
from emulator.lowering import tvm

GPU_ONLY_PACKAGES = {
    "triton", "flashinfer", "deep_gemm", "flash_attn", "cutlass", "cuda", "nvshmem", "deep_ep", "flash_mla", "cudnn", "fla", "pynvml",
    "vsa", "fastcu", "sgl_kernel", "sglang", "einops", "quack", "msa", "fmha_sm100", "mamba_ssm", "minimax", "nvidia", "cula",
}  # fmt: skip


_UNPACK_SEQUENCE = dis.opmap["UNPACK_SEQUENCE"]


class KernelStopped(RuntimeError):
    """The emulator stopped the kernel: a fault or a deadlock."""


class Placeholder:
    """Stands for any name of a missing package; can be decorated with, subclassed and called, but holds no number."""

    called: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__") and key.endswith("__"):
            raise AttributeError(key)
        return Placeholder(f"{self._name}.{key}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs and not isinstance(args[0], Placeholder):
            return args[0]  # a bare decorator
        Placeholder.called.append(self._name)
        return Placeholder(f"{self._name}()")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)

    def __or__(self, other: Any) -> Placeholder:
        return self

    __ror__ = __or__

    def __getitem__(self, key: Any) -> Placeholder:
        return Placeholder(f"{self._name}[]")

    def __iter__(self) -> Iterator[Any]:
        """``a, b = placeholder`` gives two placeholders (the caller's instruction says how many); a loop sees nothing."""
        caller = sys._getframe(1)
        code, at = caller.f_code.co_code, caller.f_lasti
        count = code[at + 1] if code[at] == _UNPACK_SEQUENCE else 0
        return iter([Placeholder(f"{self._name}[{i}]") for i in range(count)])

    def __enter__(self) -> Placeholder:
        return self

    def __exit__(self, *exc: Any) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<{self._name}, of a package that is not installed>"


class _PlaceholderModule(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - what makes a module a package

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__") and key.endswith("__"):
            raise AttributeError(key)
        return Placeholder(f"{self.__name__}.{key}")


class _PlaceholderFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last on ``sys.meta_path``: only answers for packages that nobody else has."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in GPU_ONLY_PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _PlaceholderModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


@dataclass
class Record:
    """What happened in all launches of one process.

    Attributes:
        runs: every emulated launch, in order.
        compile_seconds: lowering and translation, per kernel.
        num_sms: what ``torch.cuda.get_device_properties().multi_processor_count`` says.
    """

    arch: str
    num_sms: int = 148
    check: bool = True
    runs: list[emulator.Run] = field(default_factory=list)
    compile_seconds: list[float] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    encoded: dict[int, emulator.HostTensorMap] = field(default_factory=dict)  # by address of the 128 bytes
    in_memory: list[emulator.HostTensorMap] = field(
        default_factory=list
    )  # maps whose bytes a kernel reads from a tensor


_VIEWS = {
    "bfloat16": ("int16", ml_dtypes.bfloat16), "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn), "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
    "float8_e8m0fnu": ("uint8", ml_dtypes.float8_e8m0fnu), "float4_e2m1fn_x2": ("uint8", np.uint8),
}  # fmt: skip


def as_array(tensor: Any) -> np.ndarray:
    """The memory of a CPU tensor as a NumPy array (bfloat16 and fp8 as ml_dtypes types), without a copy.

    A tensor whose elements are dense but permuted (a transposed matrix) is passed as it lies in memory.
    """
    import torch

    plain = torch.Tensor.detach(tensor)
    order = sorted(range(plain.dim()), key=lambda d: (-plain.stride(d), d))
    if not plain.is_contiguous() and plain.permute(order).is_contiguous():
        plain = plain.permute(order)
    name = str(plain.dtype).removeprefix("torch.")
    if name in _VIEWS:
        carrier, dtype = _VIEWS[name]
        return plain.view(getattr(torch, carrier)).numpy().view(dtype)
    return plain.numpy()


class Executable:
    """What ``tvm.compile`` returns: callable, subscriptable by function name."""

    def __init__(self, module: Any, arch: str, record: Record) -> None:
        self.record, self.arch = record, arch
        functions = (
            {"main": module}
            if isinstance(module, tvm.tirx.PrimFunc)
            else {str(v.name_hint): f for v, f in module.functions.items()}
        )
        self.kernels: dict[str, emulator.Kernel] = {}
        for name, function in functions.items():
            start = time.perf_counter()
            self.kernels[name] = emulator.compile(function, arch)
            record.compile_seconds.append(time.perf_counter() - start)
            record.lines.append(max(p.source.count("\n") for p in self.kernels[name].programs.values()))
        self.mod = self
        self.jit_mod = self

    def __getitem__(self, name: str) -> Any:
        if name not in self.kernels:
            name = next(iter(self.kernels))
        return lambda *args: self._launch(name, args)

    def get_function(self, name: str, query_imports: bool = True) -> Any:
        if name.startswith("__tvm"):  # helpers of TVM's CUDA module
            raise AttributeError(name)
        return self[name]

    @property
    def main(self) -> Any:
        return self["main"]

    def jit(self, *args: Any, **kwargs: Any) -> Executable:
        return self

    def __call__(self, *args: Any) -> None:
        self._launch(next(iter(self.kernels)), args)

    def _launch(self, name: str, args: tuple[Any, ...]) -> None:
        """Emulate one launch.

        Raises:
            KernelStopped: the emulator stopped the kernel (a fault or a deadlock).
        """
        import torch

        with torch._C.DisableTorchFunction():
            values = [self._argument(a) for a in args]
        try:
            run = self.kernels[name].run(*values, check=self.record.check, tensor_maps=self.record.in_memory)
        except emulator.EmulatorError:
            raise
        except Exception as error:
            raise KernelStopped(f"the emulator failed: {type(error).__name__}: {error}") from error
        self.record.runs.append(run)
        for f in run.findings:
            if f.data.get("stops_kernel") or f.code == "deadlock":
                where = ", ".join(f"{x.file}:{x.line}" for x in f.locations)
                raise KernelStopped(f"{f.code}: {f.message} ({where})")

    def _argument(self, value: Any) -> Any:
        import torch

        if isinstance(value, ctypes.c_void_p):
            address = int(value.value or 0)
            if address in self.record.encoded:
                return self.record.encoded[address]
            mark, number = np.frombuffer((ctypes.c_uint64 * 2).from_address(address), np.uint64)
            if mark == payload(0)[0]:
                return self.record.in_memory[int(number)]
            raise TypeError("a pointer argument that is no tensor map")

        if isinstance(value, torch.Tensor):
            return as_array(value)
        if isinstance(value, torch.nn.Parameter):
            return as_array(value.data)
        if isinstance(value, (bool, np.bool_)):
            return int(value)
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            return as_array(torch.from_dlpack(value))
        return value


def _described(dtype: str, rank: int, address: int, fields: list[int]) -> emulator.HostTensorMap:
    """The map that ``cuTensorMapEncodeTiled`` encodes, with the CPU memory it describes."""
    interleave, swizzle, _l2, fill, *force = fields[4 * rank - 1 :]
    if force and force[0] in FORCED_TYPES:
        dtype = FORCED_TYPES[force[0]]
    map_ = tensor_map(dtype, rank, fields[: 4 * rank - 1], (interleave, swizzle, fill), 0, "tensor map")
    unit = map_.type
    inner = -(-map_.dims[0] // unit.elements) * unit.global_bytes
    nbytes = inner + sum((d - 1) * s for d, s in zip(map_.dims[1:], map_.strides, strict=True))
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return emulator.HostTensorMap(map_, np.frombuffer(memory, np.uint8))


_DRIVER_TYPES = {0: "uint8", 1: "uint16", 2: "uint32", 3: "int32", 6: "float16", 7: "float32", 9: "bfloat16"}


def _address(value: Any) -> int:
    return int(value.value or 0) if isinstance(value, ctypes.c_void_p) else int(value)


def _driver_module(record: Record) -> types.ModuleType:
    """``cuda.bindings.driver`` as far as kernels use it: tensor maps whose bytes lie in device memory."""
    module = _PlaceholderModule("cuda.bindings.driver")
    names = {
        "FLOAT16": "float16",
        "BFLOAT16": "bfloat16",
        "FLOAT32": "float32",
        "UINT8": "uint8",
        "INT32": "int32",
        "UINT16": "uint16",
    }
    swizzles = {"NONE": 0, "32B": 1, "64B": 2, "128B": 3}

    def encode(
        dtype: str,
        rank: int,
        address: int,
        dims: Any,
        strides: Any,
        box: Any,
        steps: Any,
        interleave: int,
        swizzle: int,
        l2: int,
        fill: int,
    ) -> Any:
        record.in_memory.append(
            _described(
                dtype, rank, _address(address), [*dims, *strides, *box, *steps, interleave, swizzle, l2, fill]
            )
        )
        return 0, types.SimpleNamespace(opaque=payload(len(record.in_memory) - 1))

    members: dict[str, Any] = {
        "cuTensorMapEncodeTiled": encode, "cuuint64_t": int, "cuuint32_t": int, "CUresult": types.SimpleNamespace(CUDA_SUCCESS=0),
        "CUtensorMapDataType": types.SimpleNamespace(**{f"CU_TENSOR_MAP_DATA_TYPE_{k}": v for k, v in names.items()}),
        "CUtensorMapSwizzle": types.SimpleNamespace(**{f"CU_TENSOR_MAP_SWIZZLE_{k}": v for k, v in swizzles.items()}),
        "CUtensorMapInterleave": types.SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE=0),
        "CUtensorMapL2promotion": types.SimpleNamespace(**{f"CU_TENSOR_MAP_L2_PROMOTION_{k}": 0 for k in ("NONE", "L2_64B", "L2_128B", "L2_256B")}),
        "CUtensorMapFloatOOBfill": types.SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE=0),
    }  # fmt: skip
    for key, value in members.items():
        setattr(module, key, value)
    return module


_FACTORIES = {
    "empty",
    "zeros",
    "ones",
    "full",
    "rand",
    "randn",
    "randint",
    "empty_like",
    "zeros_like",
    "ones_like",
    "clone",
    "contiguous",
    "tensor",
    "arange",
}


def _aligned(tensor: Any) -> Any:
    """The same tensor in memory aligned like that of a CUDA allocator (256 bytes)."""
    import torch

    with torch._C.DisableTorchFunction():
        if (
            tensor.layout != torch.strided
            or tensor.storage_offset()
            or not tensor.numel()
            or tensor.data_ptr() % 256 == 0
            or not tensor.is_contiguous()
        ):
            return tensor
        memory = torch.empty(tensor.nbytes + 256, dtype=torch.uint8)
        shift = -memory.data_ptr() % 256
        new = memory[shift : shift + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        new.copy_(tensor)
        return new.requires_grad_() if tensor.requires_grad and tensor.is_leaf else new


@contextlib.contextmanager
def installed(arch: str, *, num_sms: int = 148, check: bool = True) -> Iterator[Record]:
    """Install everything for a device of this architecture."""
    import os

    import torch
    from torch.overrides import TorchFunctionMode

    os.environ.update(TIRX_PREPARE_CUDA_ARCH=arch, TIRX_PREPARE_NUM_SMS=str(num_sms))
    record = Record(arch, num_sms, check)
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)

    def is_cuda(value: Any) -> bool:
        return (isinstance(value, str) and value.startswith("cuda")) or (
            isinstance(value, torch.device) and value.type == "cuda"
        )

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            name = getattr(func, "__name__", "")
            if func is torch.device:
                return func(*args, **kwargs)
            if name == "__get__":
                owner = getattr(func, "__self__", None)
                if owner is torch.Tensor.is_cuda:
                    return True
                if owner is torch.Tensor.device:
                    return cuda
                return func(*args, **kwargs)
            if name == "cuda":
                return args[0]
            if name == "get_device":
                return 0
            if name == "to" and len(args) > 1 and isinstance(args[1], int) and not isinstance(args[1], bool):
                args = (args[0], cpu, *args[2:])
            if name == "record_stream":
                return None
            if name == "pin_memory":
                return args[0]
            if "device" in kwargs and (is_cuda(kwargs["device"]) or isinstance(kwargs["device"], int)):
                kwargs["device"] = cpu
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            args = tuple(cpu if is_cuda(a) else a for a in args)
            result = func(*args, **kwargs)
            return _aligned(result) if name in _FACTORIES else result

    capability = (int(arch[3:-2]), int(arch[-2]))
    properties = types.SimpleNamespace(
        name="emulated", major=capability[0], minor=capability[1], multi_processor_count=num_sms, total_memory=1 << 37,
        shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, L2_cache_size=132644864, warp_size=32,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, uuid="emulated",
    )  # fmt: skip
    stream = types.SimpleNamespace(
        cuda_stream=0,
        synchronize=lambda: None,
        wait_stream=lambda s: None,
        wait_event=lambda e: None,
        device=cuda,
    )

    class Event:
        def __init__(self, *a: Any, **k: Any) -> None: ...

        def record(self, *a: Any) -> None: ...

        def synchronize(self) -> None: ...

        def wait(self, *a: Any) -> None: ...

        def elapsed_time(self, other: Any) -> float:
            return 1.0

    patches: dict[str, Any] = {
        "is_available": lambda: True, "is_initialized": lambda: True, "synchronize": lambda *a: None, "current_device": lambda: 0,
        "device_count": lambda: 1, "set_device": lambda d: None, "empty_cache": lambda: None, "init": lambda: None,
        "get_device_capability": lambda *a: capability, "get_device_properties": lambda *a: properties, "get_device_name": lambda *a: "emulated",
        "current_stream": lambda *a: stream, "default_stream": lambda *a: stream, "stream": lambda s: contextlib.nullcontext(),
        "device": lambda d: contextlib.nullcontext(), "Stream": lambda *a, **k: stream, "Event": Event, "manual_seed": lambda s: None,
        "manual_seed_all": lambda s: None, "is_current_stream_capturing": lambda: False, "mem_get_info": lambda *a: (1 << 36, 1 << 37),
        "max_memory_allocated": lambda *a: 0, "reset_peak_memory_stats": lambda *a: None, "memory_allocated": lambda *a: 0,
    }  # fmt: skip
    saved = {k: getattr(torch.cuda, k) for k in patches}
    generator, compile_, seed = torch.Generator, tvm.compile, torch.cuda.manual_seed
    for k, v in patches.items():
        setattr(torch.cuda, k, v)

    class CpuGenerator(generator):  # type: ignore[misc,valid-type]
        def __new__(cls, device: Any = None) -> Any:
            return super().__new__(cls, "cpu")

    torch.Generator = CpuGenerator  # type: ignore[misc]

    def compile_here(module: Any, target: Any = None, **kwargs: Any) -> Executable:
        wanted = str(getattr(target, "arch", "") or "") or arch
        return Executable(module, wanted if wanted != "sm_50" else arch, record)

    tvm.compile = compile_here

    def encode_tiled(descriptor: Any, dtype: str, rank: int, address: Any, *fields: int) -> int:
        record.encoded[_address(descriptor)] = _described(
            str(dtype), int(rank), _address(address), [int(f) for f in fields]
        )
        return 0

    tvm.register_global_func("runtime.cuTensorMapEncodeTiled", encode_tiled, override=True)

    def encode_by_driver(descriptor: Any, dtype: Any, rank: Any, address: Any, *operands: Any) -> int:
        """The driver's own function, called through ctypes: arrays of extents, then the modes."""
        count, code = (int(getattr(x, "value", x)) for x in (rank, dtype))
        arrays = [int(x) for array in operands[:4] for x in array]
        modes = [int(getattr(x, "value", x)) for x in operands[4:]]
        record.encoded[_address(descriptor)] = _described(
            _DRIVER_TYPES.get(code, "uint8"), count, _address(address), [*arrays, *modes, code]
        )
        return 0

    library = ctypes.CDLL

    def load(name: Any, *args: Any, **kwargs: Any) -> Any:
        if "libcuda" in str(name):
            return types.SimpleNamespace(cuTensorMapEncodeTiled=encode_by_driver, cuInit=lambda flags: 0)
        return library(name, *args, **kwargs)

    ctypes.CDLL = load  # type: ignore[assignment,misc]
    finder = _PlaceholderFinder()
    sys.meta_path.append(finder)
    bindings = _PlaceholderModule("cuda.bindings")
    bindings.driver = _driver_module(record)  # type: ignore[attr-defined]
    sys.modules["cuda.bindings"], sys.modules["cuda.bindings.driver"] = bindings, bindings.driver  # type: ignore[attr-defined]
    try:
        with OnCpu():
            yield record
    finally:
        ctypes.CDLL = library  # type: ignore[misc]
        sys.meta_path.remove(finder)
        for k, v in saved.items():
            setattr(torch.cuda, k, v)
        torch.Generator, tvm.compile, torch.cuda.manual_seed = generator, compile_, seed  # type: ignore[misc]
