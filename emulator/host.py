"""The host half of a launch: argument checks, tensor maps and the launch itself, interpreted from TVM's host function.

The host function that TVM generates is the calling convention of the compiled module, so its own assertions give the
error messages a user of the compiled module would see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from emulator.errors import LaunchError
from emulator.lowering import Lowered, tvm, walk
from emulator.machine.memory import GlobalMemory, Segment
from emulator.machine.swizzle import SwizzleMode
from emulator.machine.tensor_map import TensorMap

_KIND = {"i": 0, "u": 1, "f": 2, "b": 6}
_TENSOR_TYPE_INDEX = 70
_OPAQUE_POINTER = 4
_VALUED_LAUNCH_PARAMS = (
    "blockIdx",
    "threadIdx",
    "clusterCtaIdx",
    "preferredClusterCtaIdx",
    "tirx.use_dyn_shared_memory",
)
# CUtensorMapDataType values that TVM's encoder accepts in place of the tensor's own type.
FORCED_TYPES = {11: "tfloat32", 13: "16u4_align8b", 14: "16u4_align16b", 15: "16u6_align16b"}


@dataclass(frozen=True)
class BoundTensorMap:
    """A tensor map and the tensor it describes."""

    map: TensorMap
    segment: Segment


@dataclass(frozen=True, eq=False)
class HostTensorMap:
    """A tensor map that the caller encoded (``cuTensorMapEncodeTiled``), for kernels with ``T.TensorMap()`` parameters.

    Attributes:
        map: what was encoded; ``base`` is the byte offset of the tensor in ``array``.
        array: the memory that the map describes (C-contiguous).
    """

    map: TensorMap
    array: np.ndarray

    def bind(self, memory: GlobalMemory, check: bool = True) -> BoundTensorMap:
        """The map on the segment that holds the array, a new one when no tensor argument does.

        ``check=False``: what tensormap.replace made is checked when it is used.

        Raises:
            LaunchError: CUDA would reject the map.
        """
        start = self.array.ctypes.data
        for segment in memory.segments:
            offset = start - segment.array.ctypes.data
            if 0 <= offset and offset + self.array.nbytes <= segment.nbytes:
                break
        else:
            segment, offset = memory.add(self.map.name or "tensor map", self.array), 0
        map_ = replace(self.map, base=self.map.base + offset)
        problems = map_.problems(map_.base) if check else []
        if problems:
            raise LaunchError(f"tensor map `{map_.name}`: {problems[0]}")
        return BoundTensorMap(map_, segment)


@dataclass(frozen=True)
class Launch:
    """One ``call_ffi_kernel``: device function, arguments in parameter order, launch extents."""

    kernel: str
    args: tuple[Any, ...]
    grid: tuple[int, int, int]
    block: int
    cluster: tuple[int, int, int]
    smem_bytes: int


class _Args:
    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors


class _Handle:
    """A DLTensor handle."""

    def __init__(self, host: Host, index: int) -> None:
        self.host = host
        self.index = index
        self.array: np.ndarray = host.tensors[index]


class _Member:
    def __init__(self, values: tuple[int, ...]) -> None:
        self.values = values


class _Return(Exception):
    pass


def _type_code(array: np.ndarray) -> tuple[int, int]:
    name = array.dtype.name
    if name == "bfloat16":
        return 4, 16
    codes = {
        "float8_e3m4": 7, "float8_e4m3": 8, "float8_e4m3b11fnuz": 9, "float8_e4m3fn": 10, "float8_e4m3fnuz": 11,
        "float8_e5m2": 12, "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14, "float6_e2m3fn": 15, "float6_e3m2fn": 16,
        "float4_e2m1fn": 17,
    }  # fmt: skip
    if name in codes:
        return codes[name], 4 if "float4" in name else 8
    return _KIND.get(array.dtype.kind, 0), array.dtype.itemsize * 8


class Host:
    """Interprets one call of the host function.

    Args:
        lowered: the kernel.
        tensors: NumPy arrays (C-contiguous) or Python scalars, in the order of the learner's parameters.
        memory: receives one segment per tensor.
    """

    def __init__(self, lowered: Lowered, tensors: list[Any], memory: GlobalMemory) -> None:
        self.lowered = lowered
        self.tensors = tensors
        self.memory = memory
        self.env: dict[Any, Any] = {}
        self.launches: list[Launch] = []
        self.maps: dict[Any, Any] = {}
        names = self._parameter_names()
        self.segments: dict[int, Any] = {}
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, np.ndarray):
                self.segments[i] = memory.add(names[i] if i < len(names) else f"argument {i}", tensor)
        self.tensors = [t.bind(memory) if isinstance(t, HostTensorMap) else t for t in tensors]

    def _parameter_names(self) -> list[str]:
        """The learner's parameter names, read from the signature text inside TVM's own messages."""
        for node in _walk_asserts(self.lowered.host.body):
            for part in node.message_parts:
                text = str(part.value) if hasattr(part, "value") else str(part)
                if text.startswith(self.lowered.name + "(") and text.endswith(")"):
                    return [
                        p.split(":")[0].strip() for p in _split_top(text[len(self.lowered.name) + 1 : -1])
                    ]
        return []

    def run(self) -> list[Launch]:
        """Interpret the host function.

        Raises:
            LaunchError: TVM's own argument checks fail, or a tensor map is illegal.
        """
        f = self.lowered.host
        params = list(f.params)
        values = [None, _Args(self.tensors), len(self.tensors), None]
        for p, v in zip(params, values, strict=False):
            self.env[p] = v
        with contextlib.suppress(_Return):
            self.stmt(f.body)
        return self.launches

    # ------------------------------------------------------------------------------------------ statements

    def stmt(self, s: Any) -> None:
        kind = type(s).__name__
        if kind == "SeqStmt":
            for child in s.seq:
                self.stmt(child)
        elif kind == "AttrStmt":
            self.stmt(s.body)
        elif kind == "Bind":
            self.env[s.var] = self.expr(s.value)
        elif kind == "DeclBuffer":
            self.env[s.buffer] = self.expr(s.data)
        elif kind == "AllocBuffer":
            self.env[s.buffer] = {}
        elif kind == "AssertStmt":
            if not self.expr(s.condition):
                message = "".join(str(p.value) if hasattr(p, "value") else str(p) for p in s.message_parts)
                raise LaunchError(message)
        elif kind == "IfThenElse":
            if self.expr(s.condition):
                self.stmt(s.then_case)
            elif s.else_case is not None:
                self.stmt(s.else_case)
        elif kind == "Evaluate":
            self.expr(s.value)
        elif kind == "Return":
            raise _Return
        elif kind == "For":
            lo, n = self.expr(s.min), self.expr(s.extent)
            for i in range(lo, lo + n):
                self.env[s.loop_var] = i
                self.stmt(s.body)
        elif kind == "BufferStore":
            self.env[s.buffer][tuple(self.expr(i) for i in s.indices)] = self.expr(s.value)
        else:
            raise LaunchError(f"the emulator does not know host statement {kind}")

    # ------------------------------------------------------------------------------------------ expressions

    def expr(self, e: Any) -> Any:
        kind = type(e).__name__
        if kind == "Var":
            return self.env.get(e)
        if kind in ("IntImm", "FloatImm"):
            return e.value
        if kind == "StringImm":
            return str(e.value)
        if kind == "Cast":
            v = self.expr(e.value)
            return int(v) if isinstance(v, (int, float, bool)) and "float" not in str(e.ty) else v
        if kind == "Not":
            return not self.expr(e.a)
        if kind == "And":
            return bool(self.expr(e.a)) and bool(self.expr(e.b))
        if kind == "Or":
            return bool(self.expr(e.a)) or bool(self.expr(e.b))
        if kind == "Select":
            return self.expr(e.true_value) if self.expr(e.condition) else self.expr(e.false_value)
        if kind == "TensorLoad":
            return self.env[e.source][tuple(self.expr(i) for i in e.indices)]
        if kind == "Call":
            return self.call(e)
        a, b = self.expr(e.a), self.expr(e.b)
        return _BINARY[kind](a, b)

    def call(self, e: Any) -> Any:
        name = str(getattr(e.op, "name", e.op)).removeprefix("tirx.")
        args = e.args
        if name == "tvm_struct_get":
            return self.struct_get(self.expr(args[0]), self.expr(args[1]), self.expr(args[2]))
        if name == "if_then_else" or name == "prim.if_then_else":
            return self.expr(args[1]) if self.expr(args[0]) else self.expr(args[2])
        if name in ("isnullptr",):
            return self.expr(args[0]) is None
        if name == "handle_add_byte_offset":
            pointer, offset = self.expr(args[0]), self.expr(args[1])
            # A pointer that is no address is an object's, and the offset skips its head.
            return pointer + offset if isinstance(pointer, int) else pointer
        if name in ("reinterpret", "buffer_data", "address_of"):
            inner = args[-1]
            if type(inner).__name__ == "TensorLoad":
                pointer, index = self.env.get(inner.source), 0
                for i, extent in zip(inner.indices, inner.source.ty.shape, strict=True):
                    index = index * self.expr(extent) + self.expr(i)
                return pointer + index * tvm.DataType(str(inner.ty)).bits // 8 if index else pointer
            return self.expr(inner)
        if name == "tensormap_encode_tiled" or name.endswith("tensormap_encode_tiled"):
            self.encode_tensor_map(e)
            return 0
        if name == "call_ffi_kernel":
            self.launch(e)
            return 0
        if name == "ptr_byte_offset":
            return self.expr(args[0]) + self.expr(args[1])
        if name in ("tvm_stack_alloca", "tvm_stack_make_shape"):
            return {}
        if name in ("call_packed", "tvm_call_packed", "tvm_call_packed_lowered"):
            target = str(args[0].value) if hasattr(args[0], "value") else ""
            if "set_device" in target:
                return 0
            if "cuTensorMapEncodeTiled" in target:
                self.encode_tensor_map_packed(args)
                return 0
            raise LaunchError(f"the emulator does not know the host call {target}")
        if name in _BINARY_CALLS:
            return _BINARY_CALLS[name](self.expr(args[0]), self.expr(args[1]))
        if name == "likely":
            return self.expr(args[0])
        raise LaunchError(f"the emulator does not know the host operation {name}")

    def struct_get(self, obj: Any, index: int, kind: int) -> Any:
        """TVM FFI struct fields (tvm/tirx/builtin.h, TVMStructFieldKind)."""
        if isinstance(obj, _Args):
            value = obj.tensors[index]
            if kind == 13:
                if isinstance(value, BoundTensorMap):
                    return _OPAQUE_POINTER
                return (
                    _TENSOR_TYPE_INDEX
                    if isinstance(value, np.ndarray)
                    else (1 if isinstance(value, (int, np.integer)) else 3)
                )
            return _Handle(self, index) if isinstance(value, np.ndarray) else value
        if isinstance(obj, _Handle):
            a = obj.array
            code, bits = _type_code(a)
            return {
                1: self.segments[obj.index].base, 2: _Member(a.shape), 3: None, 4: a.ndim, 5: code, 6: bits, 7: 1, 8: 0, 9: 0, 10: 2,
            }[kind]  # fmt: skip
        if isinstance(obj, _Member):
            return obj.values[index]
        raise LaunchError("the emulator does not know a host structure of this kernel")

    def launch(self, e: Any) -> None:
        kernel = str(e.args[0].value)
        # Flags such as tirx.use_programtic_dependent_launch have no value.
        params = [p for p in map(str, e.attrs.launch_params) if p.startswith(_VALUED_LAUNCH_PARAMS)]
        raw = list(e.args[1:])
        values = raw[len(raw) - len(params) :]
        args = tuple(self.argument(a) for a in raw[: len(raw) - len(params)])
        grid, cluster, block, smem = [1, 1, 1], [1, 1, 1], [1, 1, 1], 0
        for tag, v in zip(params, values, strict=True):
            value = int(self.expr(v))
            axis = {"x": 0, "y": 1, "z": 2}.get(tag[-1], 0)
            if tag.startswith("blockIdx"):
                grid[axis] = value
            elif tag.startswith("threadIdx"):
                block[axis] = value
            elif tag.startswith("clusterCtaIdx"):
                cluster[axis] = value
            elif tag.startswith("preferredClusterCtaIdx"):
                continue
            elif tag == "tirx.use_dyn_shared_memory":
                smem = value
        (gx, gy, gz), (cx, cy, cz) = grid, cluster
        threads = block[0] * block[1] * block[2]
        self.launches.append(Launch(kernel, args, (gx, gy, gz), threads, (cx, cy, cz), smem))

    def argument(self, e: Any) -> Any:
        key = e.args[0] if type(e).__name__ == "Call" and str(e.op.name).endswith("address_of") else e
        if type(key).__name__ == "TensorLoad":
            key = key.source
        if key in self.maps:
            return self.maps[key]
        return self.expr(e)

    def encode_tensor_map(self, e: Any) -> None:
        attrs = e.attrs
        rank = int(attrs.rank)
        values = [self.expr(a) for a in e.args[1:]]
        force = attrs.force_cu_dtype
        dtype = FORCED_TYPES.get(-1 if force is None else int(force), str(attrs.descriptor_dtype))
        modes = (int(attrs.interleave), int(attrs.swizzle), int(attrs.oob_fill))
        self.add_tensor_map(e.args[0], dtype, rank, values[0], [int(v) for v in values[1:]], modes)

    def encode_tensor_map_packed(self, args: Any) -> None:
        """``call_packed("runtime.cuTensorMapEncodeTiled", map, dtype, rank, pointer, *extents, *modes)``."""
        dtype, rank, pointer, *fields = (self.expr(a) for a in args[2:])
        count = 4 * int(rank) - 1
        interleave, swizzle, _l2, oob_fill, *force = (int(v) for v in fields[count:])
        if force:
            dtype = FORCED_TYPES.get(force[0], dtype)
        self.add_tensor_map(
            args[1],
            str(dtype),
            int(rank),
            pointer,
            [int(v) for v in fields[:count]],
            (interleave, swizzle, oob_fill),
        )

    def add_tensor_map(
        self, key: Any, dtype: str, rank: int, pointer: Any, numbers: list[int], modes: tuple[int, int, int]
    ) -> None:
        """Enter a map: ``numbers`` are dims, byte strides, box and element strides; ``modes`` interleave, swizzle and fill."""
        if type(key).__name__ == "Call":
            key = key.args[0]
        if type(key).__name__ == "TensorLoad":
            key = key.source
        name = str(getattr(key, "name", "tensor map"))
        segment = next(
            (g for g in self.memory.segments if g.base <= int(pointer) < g.base + max(1, g.nbytes)), None
        )
        if segment is None:
            raise LaunchError(f"tensor map `{name}` points outside every tensor")
        map_ = tensor_map(dtype, rank, numbers, modes, int(pointer) - segment.base, name)
        problems = map_.problems(map_.base)
        if problems:
            raise LaunchError(f"tensor map `{name}`: {problems[0]}")
        self.maps[key] = self.env[key] = BoundTensorMap(map_, segment)


def tensor_map(
    dtype: str, rank: int, numbers: list[int], modes: tuple[int, int, int], base: int, name: str
) -> TensorMap:
    """A map from the operands of ``cuTensorMapEncodeTiled``: dims, strides (bytes), box, element strides; interleave, swizzle, fill."""
    return TensorMap(
        dtype, tuple(numbers[:rank]), tuple(numbers[rank : 2 * rank - 1]), tuple(numbers[2 * rank - 1 : 3 * rank - 1]),
        tuple(numbers[3 * rank - 1 : 4 * rank - 1]), SwizzleMode(modes[1]), modes[2], modes[0], base, name,
    )  # fmt: skip


class HostPlan:
    """The host function of one kernel, interpreted once per combination of shapes, dtypes and scalars.

    Device pointers depend only on the position of a tensor among the arguments, so a plan can be used again for other
    arrays of the same shapes: only the tensor maps are bound to the new tensors.
    """

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.known: dict[tuple[Any, ...], tuple[list[str], list[Launch]]] = {}

    def launches(self, tensors: list[Any], memory: GlobalMemory) -> list[Launch]:
        """The launches of a call with these arguments; registers the tensors in ``memory``.

        Raises:
            LaunchError: as :meth:`Host.run`.
        """
        if any(isinstance(t, HostTensorMap) for t in tensors):
            return Host(self.lowered, tensors, memory).run()
        key = tuple(
            (t.shape, t.dtype.name) if isinstance(t, np.ndarray) else (type(t).__name__, t) for t in tensors
        )
        found = self.known.get(key)
        if found is None:
            host = Host(self.lowered, tensors, memory)
            launches = host.run()
            self.known[key] = [g.name for g in memory.segments], launches
            return launches
        names, launches = found
        arrays = [t for t in tensors if isinstance(t, np.ndarray)]
        for name, array in zip(names, arrays, strict=True):
            memory.add(name, array)
        return [replace(launch, args=tuple(_rebind(a, memory) for a in launch.args)) for launch in launches]


def _rebind(argument: Any, memory: GlobalMemory) -> Any:
    if isinstance(argument, BoundTensorMap):
        return BoundTensorMap(argument.map, memory.segments[argument.segment.index])
    return argument


def _walk_asserts(s: Any) -> Any:
    from emulator.lowering import walk

    return (n for n in walk(s) if type(n).__name__ == "AssertStmt")


def _split_top(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, ch in enumerate(text):
        depth += ch in "([{"
        depth -= ch in ")]}"
        if ch == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p for p in (x.strip() for x in parts) if p]


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "FloorDiv": lambda a, b: a // b,
    "FloorMod": lambda a, b: a % b, "Div": lambda a, b: int(a / b) if isinstance(a, int) else a / b, "Mod": lambda a, b: a % b,
    "Min": min, "Max": max, "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b, "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b, "LShift": lambda a, b: a << b,
    "RShift": lambda a, b: a >> b, "BitwiseAnd": lambda a, b: a & b, "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
}  # fmt: skip
_BINARY_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "shift_left": lambda a, b: a << b, "shift_right": lambda a, b: a >> b, "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b, "bitwise_xor": lambda a, b: a ^ b,
}  # fmt: skip


# Everything that TVM's own host code for a launch consists of. The rest could do more than launch: call any function of
# the process, or bring C code along.
_HOST_CALLS = {
    "tvm_struct_get", "if_then_else", "isnullptr", "handle_add_byte_offset", "reinterpret", "buffer_data", "address_of",
    "tensormap_encode_tiled", "call_ffi_kernel", "ptr_byte_offset", "tvm_stack_alloca", "tvm_stack_make_shape", "likely",
}  # fmt: skip
_PACKED_CALLS = {"call_packed", "tvm_call_packed", "tvm_call_packed_lowered"}
_PACKED_TARGETS = {"__tvm_set_device", "runtime.cuTensorMapEncodeTiled"}


def unknown_operations(lowered: Lowered) -> list[str]:
    """What the host function does besides checking arguments, encoding tensor maps and launching; no name twice.

    A module that is compiled for a GPU runs its host function as machine code, so one with such operations must not run.
    """
    found: dict[str, None] = {}
    for node in walk(lowered.host.body):
        kind = type(node).__name__
        if kind == "AttrStmt" and str(node.attr_key).startswith("pragma"):
            found[str(node.attr_key)] = None
        if kind != "Call":
            continue
        name = str(getattr(node.op, "name", node.op)).rsplit(".", 1)[-1]
        if name in _PACKED_CALLS:
            target = str(getattr(node.args[0], "value", node.args[0]))
            if target not in _PACKED_TARGETS:
                found[target] = None
        elif name not in _HOST_CALLS and name not in _BINARY_CALLS:
            found[name] = None
    for device in lowered.devices.values():
        for node in walk(device.body):
            if type(node).__name__ == "AttrStmt" and str(node.attr_key).startswith("pragma_import"):
                found[str(node.attr_key)] = None
    return list(found)
