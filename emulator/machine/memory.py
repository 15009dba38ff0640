"""Global memory: one segment per tensor argument, bounds checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator import lanes
from emulator.errors import DeviceFault
from emulator.machine.address import SEGMENT_SHIFT

_OFFSET = (1 << SEGMENT_SHIFT) - 1


class Segment:
    """The bytes of one tensor."""

    __slots__ = ("index", "name", "array", "raw", "nbytes", "views", "base")

    def __init__(self, index: int, name: str, array: np.ndarray) -> None:
        self.index = index
        self.name = name
        self.array = array
        self.raw: np.ndarray = array.reshape(-1).view(np.uint8)
        self.nbytes = self.raw.nbytes
        self.base = (index + 1) << SEGMENT_SHIFT
        self.views: dict[np.dtype, np.ndarray] = {}

    def view(self, dtype: np.dtype) -> np.ndarray:
        v = self.views.get(dtype)
        if v is None:
            usable = self.nbytes // dtype.itemsize * dtype.itemsize
            v = self.views[dtype] = self.raw[:usable].view(dtype)
        return v


class GlobalMemory:
    """All tensors of a launch."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.tensor_maps: list[Any] = []  # maps whose bytes lie in memory, by the number in these bytes
        self.map_pages: dict[Any, int] = {}  # addresses of the bytes of maps that are parameters

    def add(self, name: str, array: np.ndarray) -> Segment:
        """Register a C-contiguous array; returns its segment (``segment.base`` is the device pointer)."""
        segment = Segment(len(self.segments), name, array)
        self.segments.append(segment)
        return segment

    def locate(self, pointer: Any, size: int, what: str) -> tuple[Segment, Any]:
        """Segment and byte offset(s) of a global pointer or a vector of pointers into one tensor.

        Raises:
            DeviceFault: an address outside every tensor, out of bounds, or not aligned to ``size`` bytes.
        """
        if isinstance(pointer, np.ndarray) and pointer.ndim:
            lo, hi = int(pointer.min()), int(pointer.max())
        else:
            lo = hi = int(pointer)
        index = (lo >> SEGMENT_SHIFT) - 1
        if not 0 <= index < len(self.segments):
            if 0 <= (hi >> SEGMENT_SHIFT) - 1 < len(self.segments):
                index = (hi >> SEGMENT_SHIFT) - 1
            else:
                raise DeviceFault(
                    "gmem.illegal-address",
                    f"{what} at an address outside every tensor",
                    "check the pointer arithmetic",
                )
        segment = self.segments[index]
        first, last = lo - segment.base, hi - segment.base
        if first < 0 or last + size > segment.nbytes:
            offset = first if first < 0 else last
            raise DeviceFault(
                "gmem.out-of-bounds",
                f"{what} of {size} bytes at byte {offset} of `{segment.name}`, which has {segment.nbytes} bytes",
                "mask the threads whose element lies outside the tensor, or correct the index",
                pointer=pointer, low=segment.base, high=segment.base + segment.nbytes - size,
            )  # fmt: skip
        offsets = pointer - segment.base
        if size > 1 and (
            bool((offsets & (size - 1)).any()) if isinstance(offsets, np.ndarray) else offsets & (size - 1)
        ):
            raise DeviceFault(
                "gmem.misaligned",
                f"{what} of {size} bytes at an address of `{segment.name}` that is not a multiple of {size}",
                f"vector accesses of {size} bytes need {size}-byte aligned addresses",
            )
        return segment, offsets

    def load(self, dtype: np.dtype, pointer: Any, what: str = "load") -> tuple[Segment, Any, Any]:
        """(segment, offsets, raw NumPy values) of a load."""
        segment, offsets = self.locate(pointer, dtype.itemsize, what)
        return segment, offsets, segment.view(dtype)[offsets // dtype.itemsize]

    def store(self, dtype: np.dtype, pointer: Any, value: Any, what: str = "store") -> tuple[Segment, Any]:
        """Store raw values; lanes that write the same address leave the last lane's value."""
        segment, offsets = self.locate(pointer, dtype.itemsize, what)
        segment.view(dtype)[offsets // dtype.itemsize] = value
        return segment, offsets


def to_lanes(raw: Any, dtype: str) -> Any:
    """NumPy storage values in the representation of :mod:`emulator.lanes`."""
    kind = raw.dtype.kind
    if kind == "f" or dtype in lanes.SMALL_FLOATS:
        return raw
    if isinstance(raw, np.ndarray) and raw.ndim:
        if raw.dtype == np.uint64 or kind in "bV":
            return raw
        return raw.astype(np.int64)
    return raw.item() if kind != "V" else int.from_bytes(raw.tobytes(), "little")


def from_lanes(value: Any, dtype: np.dtype) -> Any:
    """A lane value ready to be stored with ``dtype`` (two's complement wrap)."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value.astype(dtype, copy=False)
    if dtype.kind in "iu":
        bits = dtype.itemsize * 8
        v = int(value) & ((1 << bits) - 1)
        return v - (1 << bits) if dtype.kind == "i" and v >> (bits - 1) else v
    if dtype.kind == "V" and dtype.type is np.void:
        return np.frombuffer(int(value).to_bytes(dtype.itemsize, "little"), dtype=dtype)[0]
    return value


__all__ = ["GlobalMemory", "Segment", "from_lanes", "lanes", "to_lanes"]
