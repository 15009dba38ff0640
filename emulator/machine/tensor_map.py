"""Tensor maps and the tile copies TMA makes with them (load, store, reduce, gather4, scatter4).

Dimension 0 is the innermost, contiguous one, as in cuTensorMapEncodeTiled. A box is read into shared memory
with dimension 0 fastest; each row of dimension 0 takes its bytes, or the swizzle width when that is wider;
then the swizzle permutes the absolute shared-memory address. Coordinates are signed and in elements:
elements outside the tensor read as the fill value and are never written.

`memory` is a 1-D contiguous uint8 array whose byte `base` is the map's global address; `smem` is a 1-D
contiguous uint8 array whose byte 0 is CTA-relative address 0. Both have lengths that are multiples of 16, or
the copies take the slower byte path.
Sources: CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, "Tensors" and cp.async.bulk.tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from emulator.machine import swizzle as swizzling
from emulator.machine.swizzle import SwizzleMode
from emulator.numerics.formats import Array

MAX_RANK = 5
OOB_ZERO = 0
OOB_NAN = 1


class TmaType(NamedTuple):
    """One tensor map data type. A unit is the smallest thing copied: one element, or 16 packed ones."""

    elements: int  # elements per unit
    global_bytes: int  # bytes of a unit in global memory
    shared_bytes: int  # bytes of a unit in shared memory
    numpy: np.dtype[Any] | None  # element type of reductions
    nan: bytes | None  # fill of one unit for NaN fill; None for integers
    alignment: int = 16  # of the global address and strides


def _plain(dtype: object, nan: int | None = None) -> TmaType:
    numpy = np.dtype(dtype)  # type: ignore[call-overload]
    size = numpy.itemsize
    return TmaType(1, size, size, numpy, None if nan is None else nan.to_bytes(size, "little"))


TMA_TYPES: dict[str, TmaType] = {
    "uint8": _plain(np.uint8),
    "int8": _plain(np.int8),
    "uint16": _plain(np.uint16),
    "uint32": _plain(np.uint32),
    "int32": _plain(np.int32),
    "uint64": _plain(np.uint64),
    "int64": _plain(np.int64),
    "float16": _plain(np.float16, 0x7FF7),
    "bfloat16": _plain(ml_dtypes.bfloat16, 0x7FF7),
    "float32": _plain(np.float32, 0x7FF77FF7),
    "float32_ftz": _plain(np.float32, 0x7FF77FF7),
    "tfloat32": _plain(np.float32, 0x7FF77FF7),
    "float64": _plain(np.float64, 0x7FF77FF77FF77FF7),
    # 8-bit floats have no CUDA tensor map type of their own: TIRx encodes them as UINT8.
    "float8_e4m3fn": _plain(np.uint8),
    "float8_e5m2": _plain(np.uint8),
    "float8_e8m0fnu": _plain(np.uint8),
    "16u4_align8b": TmaType(16, 8, 8, None, None),
    "16u4_align16b": TmaType(16, 8, 16, None, None, 32),
    "16u6_align16b": TmaType(16, 12, 16, None, None, 32),
    # TIRx's descriptor dtype for padded fp4.
    "float4_e2m1fn": TmaType(16, 8, 16, None, None, 32),
}


class NotSupported(NotImplementedError):
    """A tensor map feature that the emulator does not execute."""


class BoxError(ValueError):
    """A copy that cannot be carried out: wrong coordinate count, or memory too small for the tensor."""


@dataclass(frozen=True)
class TensorMap:
    """What cuTensorMapEncodeTiled is given. Sequences run from the innermost dimension outward.

    dims, box and element_strides are in elements (rank entries), strides in bytes (rank - 1 entries, for
    dimensions 1..). `base` is the byte offset of the tensor inside the `memory` array given to the copies.
    """

    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: SwizzleMode = SwizzleMode.NONE
    oob_fill: int = OOB_ZERO
    interleave: int = 0
    base: int = 0
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.dims))

    @property
    def rank(self) -> int:
        return len(self.dims)

    @cached_property
    def type(self) -> TmaType:
        """The data type's properties. Raises NotSupported for an unknown one."""
        found = TMA_TYPES.get(self.dtype)
        if found is None:
            raise NotSupported(f"tensor map data type {self.dtype} is not supported")
        return found

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Units copied along each dimension: ceil(box / element stride), dimension 0 in units of the type."""
        steps = (1, *self.element_strides[1:])
        counts = [-(-b // s) for b, s in zip(self.box, steps, strict=True)]
        counts[0] = -(-counts[0] // self.type.elements)
        return tuple(counts)

    @cached_property
    def row_bytes(self) -> int:
        """Shared-memory bytes of one row (dimension 0) of the box."""
        return self.shape[0] * self.type.shared_bytes

    @cached_property
    def rows(self) -> int:
        """Rows of dimension 0 in the box."""
        return prod(self.shape[1:])

    @cached_property
    def pitch(self) -> int:
        """Bytes from one row to the next in shared memory."""
        if self.swizzle == SwizzleMode.NONE:
            return self.row_bytes
        return max(self.row_bytes, self.swizzle.row_bytes)

    @cached_property
    def box_bytes(self) -> int:
        """Bytes that a load signals to its mbarrier: the full box, also when parts are out of bounds."""
        return self.rows * self.row_bytes

    @cached_property
    def lines(self) -> int:
        """Pieces of at most 128 bytes of one row that TMA moves for a box."""
        return self.rows * -(-self.row_bytes // 128)

    @cached_property
    def smem_bytes(self) -> int:
        """Extent of the box in shared memory, including the gaps of rows narrower than the swizzle."""
        return (self.rows - 1) * self.pitch + self.row_bytes

    def problems(self, global_address: int = 0) -> list[str]:
        """Everything cuTensorMapEncodeTiled would reject, one sentence each. `global_address` is in bytes."""
        return _problems(self, global_address)

    def coordinate_problems(self, coords: Sequence[int], store: bool) -> list[str]:
        """What makes the corner of a box illegal for the copy engine.

        Measured on an H200, which stops with "illegal instruction": the corner must lie on 16 bytes along dimension 0, and
        the box of a store or reduction may not begin before the tensor (CUDA C++ Programming Guide, "Tensor Memory
        Access"); a load may.
        """
        if len(coords) != self.rank:
            return []
        offset = coords[0] * self.type.global_bytes // self.type.elements
        found = []
        if offset % 16:
            found.append(
                f"the box begins {offset} bytes into a row of the tensor, and TMA needs a multiple of 16 bytes"
            )
        negative = [k for k, c in enumerate(coords) if c < 0]
        if store and negative:
            found.append(
                f"the box begins at {coords[negative[0]]} in dimension {negative[0]}; a store may not begin before the tensor"
            )
        return found

    def destination_problems(self, smem_address: int) -> list[str]:
        """What makes a shared-memory address illegal for this map's boxes."""
        needed = 128  # without swizzle, too: an H200 stops with "misaligned address" at 16 and at 64
        if smem_address % needed:
            return [
                f"the shared memory address {smem_address:#x} of a TMA box with {self.swizzle} must be a "
                f"multiple of {needed}"
            ]
        return []

    # -------------------------------------------------------------------------------------------------
    # Copies
    # -------------------------------------------------------------------------------------------------

    def load(self, memory: Array, coords: Sequence[int], smem: Array, dst: int) -> None:
        """cp.async.bulk.tensor global -> shared: write the box at `coords` to shared address `dst`.

        Raises BoxError when the tensor reaches beyond `memory` or the box beyond `smem`.
        """
        fast = self._fast_source(memory, coords, dst)
        if fast is None or dst + self.smem_bytes > smem.size:
            self.write_box(self.load_box(memory, coords), smem, dst)
            return
        units, start, index = fast
        target = smem[dst : dst + self.box_bytes].view(np.complex128)
        units[start:].take(index, out=target, mode="clip")

    def load_box(self, memory: Array, coords: Sequence[int]) -> Array:
        """The box in shared-memory order before swizzling, uint8 (rows, row_bytes)."""
        kind = self.type
        window = self._window(coords)
        units = np.empty((*reversed(self.shape), kind.shared_bytes), np.uint8)
        if not window.full or kind.shared_bytes != kind.global_bytes:
            units[...] = self._fill()
        if window.inside is not None:
            units[(*window.inside, slice(kind.global_bytes))] = self._tensor_view(memory, window)
        box = units.reshape(self.rows, self.row_bytes)
        return _round_tf32(box) if self.dtype == "tfloat32" else box

    def store(self, smem: Array, src: int, memory: Array, coords: Sequence[int]) -> None:
        """cp.async.bulk.tensor shared -> global: write the in-bounds part of the box at `src`."""
        self.store_box(self.read_box(smem, src), memory, coords)

    def store_box(self, box: Array, memory: Array, coords: Sequence[int]) -> None:
        """Write a box, uint8 (rows, row_bytes) in shared-memory order without swizzle, to global memory."""
        window = self._window(coords)
        if window.inside is not None:
            self._tensor_view(memory, window)[...] = self._units(box)[window.inside]

    def reduce(self, smem: Array, src: int, memory: Array, coords: Sequence[int], op: str) -> None:
        """cp.reduce.async.bulk.tensor: combine the box at `src` into global memory with `op`.

        `op` is add, min, max, inc, dec, and, or, xor. Raises NotSupported for a type PTX does not reduce.
        """
        self.reduce_box(self.read_box(smem, src), memory, coords, op)

    def reduce_box(self, box: Array, memory: Array, coords: Sequence[int], op: str) -> None:
        """`reduce` for a box already in shared-memory order without swizzle."""
        numpy = self.type.numpy
        if numpy is None:
            raise NotSupported(f"cp.reduce.async.bulk.tensor has no .{op} for {self.dtype}")
        window = self._window(coords)
        if window.inside is None:
            return
        target = self._tensor_view(memory, window)
        ours = np.ascontiguousarray(self._units(box)[window.inside]).view(numpy)
        theirs = np.ascontiguousarray(target).view(numpy)
        target[...] = _reduce(op, theirs, ours, self.dtype).view(np.uint8)

    def gather4(self, memory: Array, coords: Sequence[int], smem: Array, dst: int) -> None:
        """.tile::gather4 load of four rows of box[0]: coords are (x, row0, row1, row2, row3), rank 2."""
        rows = [self._row_map.load_box(memory, (coords[0], row)) for row in self._four(coords)]
        self._four_rows.write_box(np.concatenate(rows), smem, dst)

    def scatter4(self, smem: Array, src: int, memory: Array, coords: Sequence[int]) -> None:
        """.tile::scatter4 store: the inverse of `gather4`."""
        box = self._four_rows.read_box(smem, src)
        for i, row in enumerate(self._four(coords)):
            self._row_map.store_box(box[i : i + 1], memory, (coords[0], row))

    def im2col(self, *_: object) -> None:
        """Im2col copies are not executed. Raises NotSupported."""
        raise NotSupported("TMA .im2col copies are not supported by the emulator; use .tile")

    # -------------------------------------------------------------------------------------------------
    # What a copy touches
    # -------------------------------------------------------------------------------------------------

    def smem_chunks(self, dst: int) -> Array:
        """16-byte chunk addresses (int64, 1-D) in shared memory that the box at `dst` covers."""
        low = dst % 1024
        return _smem_index(self.rows, -(-self.row_bytes // 16), self.pitch, self.swizzle, low) * 16 + (
            dst - low
        )

    def global_spans(self, coords: Sequence[int]) -> tuple[Array, int]:
        """In-bounds global bytes of the box: (byte offset of each contiguous span, int64; bytes per span)."""
        window = self._window(coords)
        if window.inside is None:
            return np.zeros(0, np.int64), 0
        offsets = np.zeros(1, np.int64)
        for count, stride in zip(window.counts[1:], window.steps[1:], strict=True):
            offsets = (np.arange(count, dtype=np.int64)[:, None] * stride + offsets).reshape(-1)
        return offsets + window.offset, window.counts[0] * self.type.global_bytes

    # -------------------------------------------------------------------------------------------------
    # Internals
    # -------------------------------------------------------------------------------------------------

    @cached_property
    def _unit_dims(self) -> tuple[int, ...]:
        return (-(-self.dims[0] // self.type.elements), *self.dims[1:])

    @cached_property
    def _unit_strides(self) -> tuple[int, ...]:
        return (self.type.global_bytes, *self.strides)

    @cached_property
    def _row_map(self) -> TensorMap:
        if self.rank != 2:
            raise NotSupported(f"gather4 and scatter4 take a tensor map of rank 2, not {self.rank}")
        return _with_box(self, (self.box[0], 1))

    @cached_property
    def _four_rows(self) -> TensorMap:
        return _with_box(self, (self.box[0], 4))

    def _four(self, coords: Sequence[int]) -> Sequence[int]:
        if len(coords) != 5:
            raise BoxError(f"gather4 and scatter4 take 5 coordinates (x and four rows), got {len(coords)}")
        return coords[1:]

    def _window(self, coords: Sequence[int]) -> _Window:
        return _window(self, tuple(map(int, coords)))

    def _tensor_view(self, memory: Array, window: _Window) -> Array:
        """uint8 view (outer dims..., units of dim 0, bytes per unit) of the in-bounds part of a box."""
        size = self.type.global_bytes
        end = (
            window.offset + size + sum((n - 1) * s for n, s in zip(window.counts, window.steps, strict=True))
        )
        if memory.size < end:
            raise BoxError(
                f"a box of tensor map {self.name or '(unnamed)'} reaches byte {end} of its tensor, which has "
                f"{memory.size}: the dimensions or strides of the map do not fit the tensor"
            )
        shape = (*reversed(window.counts), size)
        return np.ndarray(
            shape, np.uint8, buffer=memory.data, offset=window.offset, strides=(*reversed(window.steps), 1)
        )

    def _units(self, box: Array) -> Array:
        kind = self.type
        units = box.reshape(*reversed(self.shape), kind.shared_bytes)
        return units[..., : kind.global_bytes]

    def _fill(self) -> Array | int:
        if self.oob_fill == OOB_NAN and self.type.nan is not None:
            return np.frombuffer(self.type.nan, np.uint8)
        return 0

    def _fast_source(self, memory: Array, coords: Sequence[int], dst: int) -> tuple[Array, int, Array] | None:
        """(16-byte units of global memory, first unit, gather index in destination order) or None."""
        plan = self._plan
        if plan is None or dst % 128 or memory.size % 16 or len(coords) != len(plan.last):
            return None
        offset = self.base
        for c, last, stride in zip(coords, plan.last, self._unit_strides, strict=True):
            if not 0 <= c <= last:
                return None
            offset += c * stride
        if offset % 16 or offset + plan.extent > memory.size:
            return None
        return memory.view(np.complex128), offset >> 4, _source_index(plan, dst % 1024)

    @cached_property
    def _plan(self) -> _Plan | None:
        """Ingredients of the fast load, None when the map does not allow it."""
        kind = self.type
        steps = [s * e for s, e in zip(self._unit_strides, (1, *self.element_strides[1:]), strict=True)]
        if (
            kind.elements != 1
            or self.dtype in ("tfloat32", "float32_ftz")
            or self.interleave
            or self.swizzle.atom_bytes < 16
            or self.row_bytes % 16
            or self.row_bytes != self.pitch
            or self.box_bytes % 128
            or any(s % 16 for s in steps[1:])
        ):
            return None
        last = tuple(
            d - (n - 1) * e - 1
            for d, n, e in zip(self.dims, self.shape, (1, *self.element_strides[1:]), strict=True)
        )
        extent = self.row_bytes + sum((n - 1) * s for n, s in zip(self.shape[1:], steps[1:], strict=True))
        return _Plan(last, self.shape, tuple(steps), self.row_bytes, extent, self.swizzle)

    def write_box(self, box: Array, smem: Array, dst: int) -> None:
        """Write an unswizzled box to shared memory at `dst`."""
        self._check_smem(smem, dst)
        if not self._chunked(smem, dst):
            smem[self._byte_index(dst)] = box.reshape(-1)
            return
        low = dst % 1024
        index = _smem_index(self.rows, self.row_bytes // 16, self.pitch, self.swizzle, low)
        units = np.ascontiguousarray(box).view(np.complex128).reshape(-1)
        smem.view(np.complex128)[(dst - low) >> 4 :][index] = units

    def read_box(self, smem: Array, src: int) -> Array:
        """Read a box from shared memory at `src` into unswizzled order, uint8 (rows, row_bytes)."""
        self._check_smem(smem, src)
        if not self._chunked(smem, src):
            flat = smem[self._byte_index(src)]
        else:
            low = src % 1024
            index = _smem_index(self.rows, self.row_bytes // 16, self.pitch, self.swizzle, low)
            flat = smem.view(np.complex128)[(src - low) >> 4 :].take(index).view(np.uint8)
        return flat.reshape(self.rows, self.row_bytes)

    def _chunked(self, smem: Array, address: int) -> bool:
        """True if the box can move in 16-byte units."""
        misaligned = self.row_bytes % 16 or address % 16 or smem.size % 16
        return not misaligned and self.swizzle.atom_bytes >= 16

    def _check_smem(self, smem: Array, address: int) -> None:
        if address < 0 or address + self.smem_bytes > smem.size:
            raise BoxError(
                f"a TMA box of {self.smem_bytes} bytes at shared address {address:#x} does not fit in "
                f"{smem.size} bytes of shared memory"
            )

    def _byte_index(self, address: int) -> Array:
        row = np.arange(self.rows, dtype=np.int64)[:, None] * self.pitch
        linear = address + row + np.arange(self.row_bytes, dtype=np.int64)
        return swizzling.apply(self.swizzle, linear).reshape(-1)


class _Window(NamedTuple):
    """The in-bounds part of a box."""

    inside: tuple[slice, ...] | None  # its place in the box, outermost dimension first; None when empty
    full: bool  # True when nothing is out of bounds
    counts: tuple[int, ...]  # units along each dimension, innermost first
    steps: tuple[int, ...]  # byte steps in global memory, innermost first
    offset: int  # byte offset of the first unit in memory


class _Plan(NamedTuple):
    last: tuple[int, ...]  # largest in-bounds coordinate per dimension
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    row_bytes: int
    extent: int  # global bytes from the first to the last of a box
    swizzle: SwizzleMode


@lru_cache(maxsize=4096)
def _window(tensor_map: TensorMap, coords: tuple[int, ...]) -> _Window:
    if tensor_map.interleave:
        raise NotSupported("interleaved tensor maps are not supported by the emulator")
    if len(coords) != tensor_map.rank:
        raise BoxError(
            f"a tensor map of rank {tensor_map.rank} takes {tensor_map.rank} coordinates, got {len(coords)}"
        )
    elements = tensor_map.type.elements
    if coords[0] % elements:
        raise BoxError(
            f"coordinate 0 of a {tensor_map.dtype} box must be a multiple of {elements}, got {coords[0]}"
        )
    starts = (coords[0] // elements, *coords[1:])
    element_steps = (1, *tensor_map.element_strides[1:])
    inside, counts, offset, full = [], [], tensor_map.base, True
    for c, n, d, stride, step in zip(
        starts, tensor_map.shape, tensor_map._unit_dims, tensor_map._unit_strides, element_steps, strict=True
    ):
        low = max(0, -(c // step))
        high = min(n, -((c - d) // step))
        if high <= low:
            return _Window(None, False, (), (), 0)
        full = full and high - low == n
        inside.append(slice(low, high))
        counts.append(high - low)
        offset += (c + low * step) * stride
    steps = tuple(s * e for s, e in zip(tensor_map._unit_strides, element_steps, strict=True))
    return _Window(tuple(reversed(inside)), full, tuple(counts), steps, offset)


@lru_cache(maxsize=512)
def _smem_index(rows: int, chunks: int, pitch: int, mode: SwizzleMode, low: int) -> Array:
    """Index of every 16-byte chunk of a box relative to the address rounded down to 1024, box order, intp."""
    linear = low + np.arange(rows, dtype=np.int64)[:, None] * pitch + np.arange(chunks, dtype=np.int64) * 16
    index = (swizzling.apply(mode, linear) >> 4).reshape(-1).astype(np.intp)
    index.flags.writeable = False
    return index


@lru_cache(maxsize=512)
def _source_index(plan: _Plan, low: int) -> Array:
    """16-byte units of global memory, relative to the box origin, in the order of shared memory addresses."""
    source = np.zeros(1, np.int64)
    for count, step in zip(plan.shape[1:], plan.steps[1:], strict=True):
        source = (np.arange(count, dtype=np.int64)[:, None] * (step // 16) + source).reshape(-1)
    chunks = plan.row_bytes // 16
    place = _smem_index(source.size, chunks, plan.row_bytes, plan.swizzle, low)
    source = (source[:, None] + np.arange(chunks)).reshape(-1)
    index = np.empty(source.size, np.intp)
    index[place - low // 16] = source
    index.flags.writeable = False
    return index


def _with_box(tensor_map: TensorMap, box: tuple[int, ...]) -> TensorMap:
    return TensorMap(
        tensor_map.dtype, tensor_map.dims, tensor_map.strides, box, tensor_map.element_strides,
        tensor_map.swizzle, tensor_map.oob_fill, tensor_map.interleave, tensor_map.base, tensor_map.name,
    )  # fmt: skip


def _round_tf32(box: Array) -> Array:
    """TMA rounds float32 to tf32 while it copies; modelled as round to nearest, ties away from zero."""
    bits = box.view(np.uint32)
    finite = (bits & 0x7F800000) != 0x7F800000
    rounded = np.where(finite, bits + np.uint32(0x1000), bits) & np.uint32(0xFFFFE000)
    return rounded.astype(np.uint32).view(np.uint8)


def _reduce(op: str, old: Array, new: Array, dtype: str) -> Array:
    kind = old.dtype.kind
    is_float = kind not in "iu"
    with np.errstate(all="ignore"):
        if op == "add":
            return (old + new).astype(old.dtype)
        if op in ("min", "max") and dtype != "float32":
            pick = np.fmin if op == "min" else np.fmax
            return pick(old, new).astype(old.dtype)
        if op in ("inc", "dec") and dtype == "uint32":
            if op == "inc":
                return np.where(old >= new, np.uint32(0), old + np.uint32(1))
            return np.where((old == 0) | (old > new), new, old - np.uint32(1))
        if op in ("and", "or", "xor") and not is_float:
            return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op](old, new)
    raise NotSupported(f"cp.reduce.async.bulk.tensor has no .{op} for {dtype}")


def _problems(tensor_map: TensorMap, global_address: int) -> list[str]:
    """The host checks of cuTensorMapEncodeTiled."""
    t = tensor_map
    if not 1 <= t.rank <= MAX_RANK:
        return [f"a tensor map has 1 to {MAX_RANK} dimensions, this one has {t.rank}"]
    if len(t.box) != t.rank or len(t.element_strides) != t.rank or len(t.strides) != t.rank - 1:
        return [
            f"a tensor map of rank {t.rank} needs {t.rank} box extents and element strides and {t.rank - 1} "
            f"strides, got {len(t.box)}, {len(t.element_strides)} and {len(t.strides)}"
        ]
    if t.dtype not in TMA_TYPES:
        return [f"tensor map data type {t.dtype} is not supported"]
    kind = t.type
    found = []
    if global_address % kind.alignment:
        found.append(
            f"the global address must be a multiple of {kind.alignment} bytes, it is {global_address:#x}"
        )
    for i, dim in enumerate(t.dims):
        if not 1 <= dim <= 1 << 32:
            found.append(f"dimension {i} has extent {dim}, it must be 1 to 2^32")
    for i, stride in enumerate(t.strides, 1):
        if stride % kind.alignment or not 0 <= stride < 1 << 40:
            found.append(
                f"the stride of dimension {i} is {stride} bytes, it must be a multiple of "
                f"{kind.alignment} below 2^40"
            )
    for i, extent in enumerate(t.box):
        if not 1 <= extent <= 256:
            found.append(f"box extent {i} is {extent}, it must be 1 to 256")
    for i, step in enumerate(t.element_strides):
        if not 1 <= step <= 8 or (i == 0 and step != 1):
            wanted = "1 for dimension 0" if i == 0 else "1 to 8"
            found.append(f"element stride {i} is {step}, it must be {wanted}")
    found += _inner_box_problems(t)
    if t.oob_fill not in (OOB_ZERO, OOB_NAN):
        found.append(f"out-of-bounds fill {t.oob_fill} does not exist: 0 zeros, 1 NaN")
    elif t.oob_fill == OOB_NAN and kind.nan is None:
        found.append(f"NaN fill needs a floating-point data type, this one is {t.dtype}")
    if t.interleave:
        found.append("interleaved tensor maps are not supported by the emulator")
    return found


def _inner_box_problems(t: TensorMap) -> list[str]:
    kind = t.type
    found = []
    if kind.elements > 1:
        if t.box[0] % kind.elements or t.dims[0] % kind.elements:
            found.append(
                f"{t.dtype} packs {kind.elements} elements: box extent 0 and dimension 0 must be multiples"
            )
        if kind.shared_bytes != kind.global_bytes:
            if t.dims[0] % 128 or t.box[0] != 128:
                found.append(
                    f"{t.dtype} needs dimension 0 to be a multiple of 128 and box extent 0 to be 128"
                )
            if t.swizzle in (SwizzleMode.B32, SwizzleMode.B64):
                found.append(f"{t.dtype} takes no swizzle or a 128-byte swizzle, not the {t.swizzle}")
        if found:
            return found
    inner = -(-t.box[0] // kind.elements) * kind.shared_bytes
    if inner % 16:
        found.append(f"the innermost box extent is {inner} bytes, it must be a multiple of 16")
    if t.swizzle != SwizzleMode.NONE and inner > t.swizzle.row_bytes:
        width = f"{t.swizzle.row_bytes} bytes of a row of the {t.swizzle}"
        found.append(f"the innermost box extent is {inner} bytes, more than the {width}")
    return found
