"""What a generated warp program can call: lane arithmetic, memory accesses, elections and local arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from emulator import lanes
from emulator.errors import DeviceFault
from emulator.lanes import np_dtype
from emulator.machine.address import OFFSET_MASK, POOL_BASE, RANK_SHIFT, SHARED_TAG
from emulator.machine.memory import from_lanes, to_lanes
from emulator.numerics import special
from emulator.scheduler import Wait
from emulator.threads import Threads

ndarray = np.ndarray


class _DtypeTable(dict[str, np.dtype[Any]]):
    """TIR dtype -> NumPy storage dtype, filled on demand."""

    def __missing__(self, dtype: str) -> np.dtype[Any]:
        self[dtype] = found = np_dtype(dtype)
        return found


_DTYPES = _DtypeTable()
POISON_FLOAT = {name: np.asarray(float("nan")).astype(np_dtype(name))[()] for name in lanes.FLOATS}


# ---------------------------------------------------------------------------------------------- local arrays


class _Local:
    """Storage of one per-thread array: ``uint8[words, lanes, word]``, poisoned."""

    __slots__ = ("raw",)

    def __init__(self, count: int, words: int, word: int) -> None:
        self.raw = np.full((words, count, word), 0xFF, dtype=np.uint8)

    def view(self, dtype: str) -> ndarray:
        """``dtype[words, lanes, word / itemsize]``."""
        return self.raw.view(_DTYPES[dtype])


def new_local(count: int, words: int, word: int) -> _Local:
    return _Local(count, words, word)


class LocalPointer:
    """``&local[i]``: a byte offset into a per-thread array, for device functions that take pointers to registers."""

    __slots__ = ("raw", "offset", "lane", "mask", "nbytes", "name")

    def __init__(
        self, local: _Local, offset: Any, lane: int | None, mask: Any, nbytes: int, name: str
    ) -> None:
        self.nbytes = nbytes
        self.name = name
        self.raw = local.raw
        self.offset = offset
        self.lane = lane
        self.mask = mask

    def _check(self, nbytes: int) -> None:
        first = int(self.offset)
        if first < 0 or first + nbytes > self.nbytes:
            raise DeviceFault(
                "local.out-of-bounds",
                f"bytes {first} to {first + nbytes - 1} of `{self.name}` are used; it has {self.nbytes} bytes",
                "Check the index against the shape of the local array.",
                name=self.name,
            )

    def _where(self, nbytes: int) -> ndarray:
        """View of ``nbytes`` bytes as ``uint8[words, lanes, word]`` (offset aligned to the word or inside one word)."""
        self._check(nbytes)
        word = self.raw.shape[2]
        first, inner = divmod(int(self.offset), word)
        if inner + nbytes <= word:
            return self.raw[first : first + 1, :, inner : inner + nbytes]
        if inner:
            raise DeviceFault("local.misaligned", "a pointer to registers crosses a word", "")
        return self.raw[first : first + (nbytes + word - 1) // word]

    def elements(self, dtype: str, count: int) -> ndarray | None:
        """``dtype[count, lanes]`` as a view to read and write; None in masked or single-lane code and across words."""
        if self.lane is not None or self.mask is not None:
            return None
        np_type = _DTYPES[dtype]
        size, word = np_type.itemsize, self.raw.shape[2]
        self._check(count * size)
        first, inner = divmod(int(self.offset), word)
        if size == word and not inner:
            return self.raw[first : first + count].view(np_type)[:, :, 0]
        if inner + count * size == word and not inner:
            return self.raw[first].view(np_type).T
        return None

    def read(self, dtype: str, count: int) -> ndarray:
        """``dtype[count, lanes]`` (``dtype[count]`` in single-lane code)."""
        np_type = _DTYPES[dtype]
        block = self._where(count * np_type.itemsize)
        if self.lane is not None:
            return np.ascontiguousarray(block[:, self.lane]).view(np_type).reshape(-1)[:count]
        block = np.ascontiguousarray(block).view(np_type)  # words, lanes, per
        return block.transpose(0, 2, 1).reshape(-1, block.shape[1])[:count]

    def write(self, dtype: str, values: ndarray) -> None:
        """Store ``dtype[count, lanes]`` (``dtype[count]`` in single-lane code)."""
        np_type = _DTYPES[dtype]
        values = np.ascontiguousarray(values, dtype=np_type)
        target = self._where(values.shape[0] * np_type.itemsize)
        words, _, word = target.shape
        per = word // np_type.itemsize
        if self.lane is not None:
            target[:, self.lane] = values.reshape(words, per).view(np.uint8).reshape(words, word)
            return
        data = np.ascontiguousarray(values.reshape(words, per, -1).transpose(0, 2, 1)).view(np.uint8)
        if self.mask is None:
            target[...] = data
        else:
            target[:, self.mask] = data[:, self.mask]


def local_index(t: Threads, index: Any, count: int, name: str) -> Any:
    """``index`` (a scalar or one per lane) into a local array of ``count`` elements; 0 in lanes that are not active.

    Raises:
        DeviceFault: it is outside the array in an active lane.
    """
    if isinstance(index, ndarray):
        outside = (index < 0) | (index >= count)
        if not outside.any():
            return index
        active = outside if t.mask is None else outside & t.mask
        if not active.any():
            return np.where(outside, 0, index)
        lane = int(active.argmax())
        thread, first = f" in thread {int(t.tid[lane])}", int(index[lane])
    elif 0 <= index < count:
        return index
    elif _nothing_active(t):
        return 0
    else:
        thread, first = "", int(index)
    has = "1 element, 0" if count == 1 else f"{count} elements, 0 to {count - 1}" if count else "no elements"
    raise DeviceFault(
        "local.out-of-bounds",
        f"index {first} of `{name}`{thread}; it has {has}",
        "Check the index against the shape of the local array.",
        name=name,
    )


def unwritten(t: Threads, value: Any, name: str) -> Any:
    """A read of a local that nothing has written.

    Raises:
        DeviceFault: some lane does read it.
    """
    if _nothing_active(t):
        return value
    raise DeviceFault(
        "uninitialised.local",
        f"`{name}` is read, and nothing has written it",
        "Give the local variable a value first; registers hold anything at the start.",
        name=name,
    )


def divisor(t: Threads | None, b: Any) -> Any:
    """The divisor of an integer division; 1 for 0 in lanes that are not active (without threads: in all).

    Raises:
        DeviceFault: it is 0 in an active lane.
    """
    if isinstance(b, ndarray):
        zero = b == 0
        if not zero.any():
            return b
        if t is None or (t.mask is not None and not (zero & t.mask).any()):
            return np.where(zero, b.dtype.type(1), b)
    elif b:
        return b
    elif t is None or _nothing_active(t):
        return 1
    raise DeviceFault(
        "arithmetic.division-by-zero",
        "an integer is divided by 0; the result is undefined",
        "Divide only where the divisor is not 0.",
    )


def local_get(view: ndarray, per: int, index: Any) -> Any:
    """Element ``index`` (a scalar or one per lane) of a local array in every lane."""
    if isinstance(index, ndarray):
        return view[index // per, np.arange(view.shape[1]), index % per]
    return view[index // per, :, index % per]


def local_set(view: ndarray, per: int, index: Any, value: Any, mask: Any) -> None:
    """Assign element ``index`` (a scalar or one per lane) of a local array in the lanes of ``mask``."""
    if isinstance(index, ndarray):
        lanes_ = np.arange(view.shape[1])
        if mask is not None:
            lanes_, index = lanes_[mask], index[mask]
            value = value[mask] if isinstance(value, ndarray) and value.ndim else value
        view[index // per, lanes_, index % per] = value
        return
    target = view[index // per, :, index % per]
    if mask is None:
        target[...] = value
    else:
        np.copyto(target, value, where=mask)


def storable(value: Any, dtype: str) -> Any:
    """An integer lane value ready to be stored in a local array."""
    return from_lanes(value, _DTYPES[dtype])


def register_bits(group: Any) -> Any:
    """Destination registers of one instruction as ``uint32[n, L]`` bits; 4-byte registers only."""
    if isinstance(group, ndarray):
        return (
            group
            if group.dtype == np.uint32
            else group.view(np.uint32)
            if group.dtype.itemsize == 4
            else group.astype(np.uint32)
        )
    rows = [
        r.view(np.uint32) if getattr(r, "dtype", None) in (np.float32, np.int32) else storable(r, "uint32")
        for r in group
    ]
    lanes_ = max((len(r) for r in rows if isinstance(r, ndarray) and r.ndim), default=0)
    if not lanes_:
        return np.array(rows, dtype=np.uint32)
    return np.stack(
        [r if isinstance(r, ndarray) and r.ndim else np.full(lanes_, r, dtype=np.uint32) for r in rows]
    )


def register_rows(group: Any) -> Any:
    """:func:`register_bits` of a strand, for which ``uint32[n, 1]`` stands for registers that are the same in every lane."""
    bits = register_bits(group)
    return bits if bits.ndim > 1 else bits[:, None]


_REGISTER_FLOATS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "f64": np.dtype(np.float64)}


def register_value(raw: Any, ptx_type: str) -> Any:
    """One destination register, given as bits or as a value, in the representation of its PTX type."""
    dtype = _REGISTER_FLOATS.get(ptx_type)
    if dtype is not None and hasattr(raw, "dtype") and raw.dtype.kind in "iu":
        return raw.view(dtype)
    return as_value(raw)


def as_value(raw: Any) -> Any:
    """A row of an instruction's uint32 result block in lane representation."""
    if isinstance(raw, ndarray):
        if raw.ndim and raw.dtype.kind in "iu" and raw.dtype != np.uint64:
            return raw.astype(np.int64)
        return raw if raw.ndim else raw.item()
    return raw.item() if isinstance(raw, np.integer) else raw


def copy(x: Any) -> Any:
    return x.copy() if isinstance(x, ndarray) else x


def as_index(x: Any) -> Any:
    return x


# ---------------------------------------------------------------------------------------------- lanes of a warp


def elect(t: Threads) -> Any:
    """``elect.sync``: 1 in the lowest active lane of every warp (PTX leaves the choice open; hardware takes this one)."""
    if t.mask is None:
        return _first_lanes(t.count)
    by_warp = t.mask.reshape(-1, 32)
    out = np.zeros(by_warp.shape, dtype=np.int64)
    out[np.arange(len(out)), by_warp.argmax(axis=1)] = by_warp.any(axis=1)
    return out.reshape(-1)


@lru_cache(maxsize=64)
def _first_lanes(count: int) -> ndarray:
    out = np.zeros(count, dtype=np.int64)
    out[::32] = 1
    out.flags.writeable = False
    return out


def warp_broadcast(value: Any, lane: Any) -> Any:
    """``shfl.idx`` from one lane: a scalar when every warp gets the same value."""
    if not isinstance(value, ndarray):
        return value
    per_warp = value.reshape(-1, 32)[:, int(lane) & 31]
    if len(per_warp) == 1:
        return per_warp[0].item() if value.dtype.kind in "iub" else per_warp[0]
    if (per_warp == per_warp[0]).all():
        return per_warp[0].item() if value.dtype.kind in "iub" else per_warp[0]
    return np.repeat(per_warp, 32)


class Spin(Wait):
    """A loop that polls memory: it may continue when anything at all has happened since, or when all others only poll."""

    __slots__ = ("machine", "seen", "site", "round")
    kind = "spin"
    polls = True

    def __init__(self, t: Threads) -> None:
        self.machine = t.cta.machine
        self.seen = self.machine.progress
        self.round = self.machine.idle_rounds
        self.site = t.site

    def ready(self) -> bool:
        return self.machine.progress != self.seen or self.machine.idle_rounds != self.round


def spin(t: Threads) -> Spin:
    return Spin(t)


# ---------------------------------------------------------------------------------------------- memory


def _active(t: Threads, address: Any) -> Any:
    """Addresses of the active lanes, or the one uniform address."""
    if isinstance(address, ndarray) and address.ndim:
        return address if t.mask is None else address[t.mask]
    return address


def _spread(t: Threads, address: Any, raw: Any) -> Any:
    """Values of the active lanes as a vector of all lanes (inactive lanes 0)."""
    if t.mask is None or not (isinstance(address, ndarray) and address.ndim):
        return raw
    out = np.zeros((t.count, *raw.shape[1:]), dtype=raw.dtype)
    out[t.mask] = raw
    return out


def _nothing_active(t: Threads) -> bool:
    return t.mask is not None and not t.mask.any()


def shared_offsets(t: Threads, address: Any, size: int, what: str, indexed: bool = False) -> Any:
    """Window offsets of own-CTA shared addresses, checked against the allocation, the buffer and the alignment.

    ``indexed``: the program indexes a buffer; otherwise it computes an address, which may leave its buffer on purpose.
    """
    if isinstance(address, ndarray):
        lo, hi = int(address.min()), int(address.max())
        bad = size > 1 and bool((address & (size - 1)).any())
    else:
        lo = hi = int(address)
        bad = size > 1 and bool(lo & (size - 1))
    t.cta.check_shared(lo, hi + size, what)
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.lane_order.extent(address, lo, hi + size)
        t.cta.machine.check_view(t, lo, hi + size, what, "error" if indexed else "lint")
    if bad:
        raise DeviceFault(
            "smem.misaligned",
            f"{what} of {size} bytes at a shared address that is not a multiple of {size}",
            f"{size}-byte accesses need {size}-byte aligned addresses",
            site=t.site,
        )
    return address


def ld_shared(t: Threads, dtype: str, address: Any) -> Any:
    """Load one element per active lane from the own CTA's shared memory (window offsets)."""
    if _nothing_active(t):
        return np.zeros(t.count, dtype=np.int64)
    np_type = _DTYPES[dtype]
    size = np_type.itemsize
    active = shared_offsets(t, _active(t, address), size, "load", True)
    t.count_op("ld.shared")
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.smem_read(t.hb_lanes(), t.cta.rank, active, size, t.rd_site)
    if t.cta.machine.statistics is not None:
        count_access(t, True, active, size, False)
    raw = t.cta.view(np_type)[active // size]
    return to_lanes(_spread(t, address, raw), dtype)


def st_shared(t: Threads, dtype: str, address: Any, value: Any) -> None:
    """Store one element per active lane to the own CTA's shared memory."""
    if _nothing_active(t):
        return
    np_type = _DTYPES[dtype]
    size = np_type.itemsize
    active = shared_offsets(t, _active(t, address), size, "store", True)
    t.count_op("st.shared")
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.smem_write(t.hb_lanes(), t.cta.rank, active, size, t.rd_site)
    if t.cta.machine.statistics is not None:
        count_access(t, True, active, size, True)
    put(t, t.cta.view(np_type), active // size, value, np_type, "shared", address)
    t.cta.machine.progress += 1


def put(
    t: Threads, view: ndarray, index: Any, value: Any, np_type: np.dtype, space: str, pointer: Any
) -> None:
    """Store one element per active lane: ``index`` of the active lanes, or one for all; ``value`` of all lanes."""
    if isinstance(index, ndarray):
        data = from_lanes(t.compact(value), np_type)
        view[index] = data
    else:
        view[index] = from_lanes(pick_last(t, value), np_type)
        data = value
    if t.lane is None and isinstance(value, ndarray) and value.ndim and t.cta.cluster.hb is not None:
        check_lanes(t, view, index, data, space, pointer)


def check_lanes(t: Threads, view: ndarray, index: Any, data: ndarray, space: str, pointer: Any) -> None:
    """Report lanes of one warp that have stored different values to one element (warps among themselves: a race).

    ``index`` and ``data`` are those of the active lanes; with one index for all, ``data`` may hold all lanes.
    """
    if isinstance(index, ndarray):
        # Reading back is the fastest way to see whether two lanes had the same element and different values.
        if view[index].tobytes() == data.tobytes():
            return
    else:
        data = np.ascontiguousarray(t.compact(data) if len(data) == t.count else data)
        raw = data.tobytes()
        if raw[data.itemsize :] == raw[: -data.itemsize]:
            return
    from emulator.checks.findings import Finding
    from emulator.checks.lane_order import colliding_lanes, collision

    lane = np.asarray(t.active_indices())
    found = colliding_lanes(index, data, t.warp_of_lane[lane], lane % 32)
    if found is None:
        return
    warp, lanes_, element = found
    first = int(np.min(_active(t, pointer)))
    machine = t.cta.machine
    if space == "shared" or (space == "generic" and (first & SHARED_TAG or first < (1 << 32))):
        space, name = "smem", machine.name_of_shared(element * view.itemsize)
        place = name
    else:
        space, name = "gmem", machine.memory.locate(first, 1, "store")[0].name
        place = f"element {element} of {name}"
    cta, warp = divmod(warp, machine.num_warps)  # many CTAs share a strand where threads are independent
    message, fix = collision(warp, lanes_, place)
    location = machine.location(t.site)
    machine.log.add(
        Finding(
            f"race.{space}.same-address", "race", message, fix, (location,) if location is not None else (), (name,),
            t.cta.linear + cta, (warp,), lanes_, {"missing": "one lane per address", "element": element},
        )
    )  # fmt: skip


def pick_last(t: Threads, value: Any) -> Any:
    """All active lanes store to one address: one of them wins (hardware leaves open which; we take the last)."""
    if isinstance(value, ndarray) and value.ndim:
        return value[-1] if t.mask is None else value[np.flatnonzero(t.mask)[-1]]
    return value


def remote(t: Threads, address: Any) -> Any:
    """(CTA, window offsets) of a shared address with a CTA rank; the rank must be the same in all lanes."""
    if isinstance(address, ndarray):
        low, high = int(address.min()), int(address.max())
        cta, _ = t.cta.cluster.resolve(low, "access")
        if low >> RANK_SHIFT != high >> RANK_SHIFT:
            raise DeviceFault(
                "smem.mixed-ranks",
                "lanes of one instruction access the shared memory of different CTAs",
                "the emulator needs one CTA rank per instruction",
                site=t.site,
            )
        return cta, address & OFFSET_MASK
    return t.cta.cluster.resolve(int(address), "access")


def count_access(t: Threads, shared: bool, offsets: Any, size: int, write: bool) -> None:
    """Bank conflicts or sectors of an access, warp by warp; ``offsets`` holds the active lanes' byte offsets."""
    statistics = t.cta.machine.statistics
    site = 2 * t.site + write
    add = statistics.add_shared if shared else statistics.add_global
    if t.lane is not None or not (isinstance(offsets, ndarray) and offsets.ndim):
        one = np.asarray(offsets, dtype=np.int64).reshape(-1)[:1]
        for _ in t.active_warps():
            add(site, one, size)
        return
    if t.mask is None:
        for row in offsets.reshape(-1, 32):
            add(site, row, size)
        return
    lanes_ = np.flatnonzero(t.mask)
    for warp in np.unique(lanes_ // 32).tolist():
        mine = lanes_ // 32 == warp
        if shared:
            statistics.add_shared(site, offsets[mine], size, lanes_[mine] % 32)
        else:
            statistics.add_global(site, offsets[mine], size)


def access(
    t: Threads, np_type: np.dtype, pointer: Any, space: str, write: bool, atomic: bool = False
) -> tuple[ndarray, Any, Any]:
    """Resolve a pointer for active lanes: (typed view of the memory, element indices, addresses).

    ``space`` is ``shared``, ``global`` or ``generic``; checks bounds and alignment and tells the race detector.
    """
    active = _active(t, pointer)
    first = int(active.flat[0]) if isinstance(active, ndarray) else int(active)
    is_shared = space == "shared" or (space == "generic" and (first & SHARED_TAG or first < (1 << 32)))
    size = np_type.itemsize
    hb = t.cta.cluster.hb
    what = "store" if write else "load"
    if is_shared:
        cta, offsets = remote(t, active)
        if cta is t.cta:
            shared_offsets(t, offsets, size, what)
        else:
            lo = int(offsets.min()) if isinstance(offsets, ndarray) else int(offsets)
            hi = int(offsets.max()) if isinstance(offsets, ndarray) else int(offsets)
            cta.check_shared(lo, hi + size, what)
        if hb is not None:
            (hb.smem_write if write else hb.smem_read)(
                t.hb_lanes(), cta.rank, offsets, size, t.rd_site, atomic=atomic
            )
        if t.cta.machine.statistics is not None:
            count_access(t, True, offsets, size, write)
        return cta.view(np_type), offsets // size, offsets
    segment, offsets = t.cta.machine.memory.locate(active, size, what)
    if hb is not None:
        (hb.gmem_write if write else hb.gmem_read)(
            t.hb_lanes(), segment.index, offsets, size, t.rd_site, atomic=atomic
        )
    if t.cta.machine.statistics is not None:
        count_access(t, False, offsets, size, write)
    return segment.view(np_type), offsets // size, offsets


def ld_global(t: Threads, dtype: str, pointer: Any) -> Any:
    """Load one element per active lane through a global pointer."""
    if _nothing_active(t):
        return np.zeros(t.count, dtype=np.int64)
    np_type = _DTYPES[dtype]
    t.count_op("ld.global")
    view, index, _ = access(t, np_type, pointer, "global", False)
    count_bytes(t, "bytes.global.load", np_type.itemsize)
    return to_lanes(_spread(t, pointer, view[index]), dtype)


def st_global(t: Threads, dtype: str, pointer: Any, value: Any) -> None:
    """Store one element per active lane through a global pointer."""
    if _nothing_active(t):
        return
    np_type = _DTYPES[dtype]
    t.count_op("st.global")
    view, index, _ = access(t, np_type, pointer, "global", True)
    count_bytes(t, "bytes.global.store", np_type.itemsize)
    put(t, view, index, value, np_type, "global", pointer)
    t.cta.machine.progress += 1


def _tensor(t: Threads, np_type: np.dtype, pointer: int, index: Any, what: str) -> tuple[Any, ndarray, Any]:
    """(segment, typed view, element indices of the active lanes) of an access at ``pointer[index]``."""
    segment, offset = t.cta.machine.memory.locate(pointer, np_type.itemsize, what)
    view = segment.view(np_type)
    first = offset // np_type.itemsize
    if isinstance(index, ndarray):
        active = index if t.mask is None else index[t.mask]
        if first:
            active = active + first
        if int(active.view(np.uint64).max()) >= len(view):  # negative indices are huge as unsigned
            t.cta.machine.memory.locate(pointer + active * np_type.itemsize, np_type.itemsize, what)
        return segment, view, active
    active = int(index) + first
    if not 0 <= active < len(view):
        t.cta.machine.memory.locate(pointer + int(index) * np_type.itemsize, np_type.itemsize, what)
    return segment, view, active


def ld_tensor(t: Threads, dtype: str, pointer: int, index: Any) -> Any:
    """``tensor[index]``: load one element per active lane from the tensor at a uniform pointer."""
    if t.mask is not None and not t.mask.any():
        return np.zeros(t.count, dtype=np.int64)
    np_type = _DTYPES[dtype]
    segment, view, active = _tensor(t, np_type, pointer, index, "load")
    t.count_op("ld.global")
    count_bytes(t, "bytes.global.load", np_type.itemsize)
    hb = t.cta.cluster.hb
    if hb is not None and t.cta.machine.written.get(segment.index, True):
        hb.gmem_read(t.hb_lanes(), segment.index, active * np_type.itemsize, np_type.itemsize, t.rd_site)
    if t.cta.machine.statistics is not None:
        count_access(t, False, active * np_type.itemsize, np_type.itemsize, False)
    return to_lanes(_spread(t, index, view[active]), dtype)


def st_tensor(t: Threads, dtype: str, pointer: int, index: Any, value: Any) -> None:
    """Store one element per active lane to the tensor at a uniform pointer."""
    if t.mask is not None and not t.mask.any():
        return
    np_type = _DTYPES[dtype]
    segment, view, active = _tensor(t, np_type, pointer, index, "store")
    t.count_op("st.global")
    count_bytes(t, "bytes.global.store", np_type.itemsize)
    hb = t.cta.cluster.hb
    if hb is not None:
        hb.gmem_write(t.hb_lanes(), segment.index, active * np_type.itemsize, np_type.itemsize, t.rd_site)
    if t.cta.machine.statistics is not None:
        count_access(t, False, active * np_type.itemsize, np_type.itemsize, True)
    put(t, view, active, value, np_type, "global", pointer)
    t.cta.machine.progress += 1


def ld_generic(t: Threads, dtype: str, pointer: Any) -> Any:
    """Load through a generic pointer (own or another CTA's shared memory, or global)."""
    if _nothing_active(t):
        return np.zeros(t.count, dtype=np.int64)
    np_type = _DTYPES[dtype]
    view, index, _ = access(t, np_type, pointer, "generic", False)
    return to_lanes(_spread(t, pointer, view[index]), dtype)


def st_generic(t: Threads, dtype: str, pointer: Any, value: Any) -> None:
    """Store through a generic pointer."""
    if _nothing_active(t):
        return
    np_type = _DTYPES[dtype]
    view, index, _ = access(t, np_type, pointer, "generic", True)
    put(t, view, index, value, np_type, "generic", pointer)
    t.cta.machine.progress += 1


def map_word(t: Threads, bound: Any, index: Any, dtype: str) -> Any:
    """An element of the bytes of a tensor map that is a kernel parameter."""
    from emulator.instructions.tensormap import word

    return word(t, bound, index, _DTYPES[dtype])


def map_pointer(t: Threads, bound: Any) -> int:
    """The address of the bytes of a tensor map that is a kernel parameter."""
    from emulator.instructions.tensormap import number, payload

    if isinstance(bound, int):
        return bound
    memory = t.cta.machine.memory
    if bound not in memory.map_pages:
        segment = memory.add("tensor map", payload(number(memory, bound)))
        t.cta.machine.written[segment.index] = False
        if t.cta.cluster.hb is not None:
            t.cta.cluster.hb.detector.add_global(segment.nbytes, 8, name=segment.name, written=False)
        memory.map_pages[bound] = segment.base
    return memory.map_pages[bound]


def count_bytes(t: Threads, name: str, per_lane: int) -> None:
    counters = t.cta.machine.counters
    counters[name] = counters.get(name, 0) + per_lane * t.active_count()


# ---------------------------------------------------------------------------------------------- arithmetic


def u64_op(a: Any, b: Any, op: str) -> Any:
    """uint64 arithmetic: Python integers mod 2**64, or uint64 vectors."""
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        a = a.astype(np.uint64) if isinstance(a, ndarray) else np.uint64(a & lanes.M64)
        b = b.astype(np.uint64) if isinstance(b, ndarray) else np.uint64(b & lanes.M64)
        return {
            "+": np.add,
            "-": np.subtract,
            "*": np.multiply,
            "&": np.bitwise_and,
            "|": np.bitwise_or,
            "^": np.bitwise_xor,
        }[op](a, b)
    value = {"+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b}[op]
    return value & lanes.M64


def fdiv(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return a / b


def bool_int(x: Any) -> Any:
    return x.astype(np.int64) if isinstance(x, ndarray) else int(x)


def leave(live: Any, t: Any) -> Any:
    """The lanes of ``live`` (True: all) without the active ones of ``t``."""
    if t.mask is None:
        return False
    return ~t.mask if live is True else live & ~t.mask


def as_bool(x: Any, like: ndarray) -> ndarray:
    return np.broadcast_to(np.asarray(x) != 0, like.shape)


def as_row(x: Any, like: ndarray) -> ndarray:
    return np.broadcast_to(np.asarray(x), like.shape)


def fmin(a: Any, b: Any) -> Any:
    return np.fmin(a, b)


def fmax(a: Any, b: Any) -> Any:
    return np.fmax(a, b)


def _math(fn: Any) -> Any:
    def call(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return fn(x)

    return call


def math_fma(a: Any, b: Any, c: Any) -> Any:
    """Fused multiply-add, one rounding."""
    if isinstance(a, (np.float16,)) or getattr(a, "dtype", None) == np.float16:
        return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float16)
    from emulator.numerics import rounding

    return rounding.fma_f32(a, b, c)


def _rsqrt(x: Any) -> Any:
    return (1 / np.sqrt(np.asarray(x, dtype=np.float64))).astype(x.dtype) if hasattr(x, "dtype") else x**-0.5


def _sigmoid(x: Any) -> Any:
    return (1 / (1 + np.exp(-x))).astype(x.dtype)


NAMESPACE: dict[str, Any] = {
    **{k: getattr(lanes, k) for k in dir(lanes) if not k.startswith("_")},
    **{
        f.__name__: f
        for f in (
            new_local, local_get, local_set, local_index, unwritten, divisor, LocalPointer, storable, as_value, register_bits,
            register_rows, register_value, map_word, map_pointer, copy, as_index, elect, warp_broadcast, leave, spin, ld_shared, st_shared,
            ld_global, st_global, ld_tensor, st_tensor, ld_generic, st_generic, u64_op, fdiv, bool_int, as_bool, as_row, fmin, fmax, math_fma,
        )
    },
    **{
        f"math_{n}": _math(getattr(np, fn))
        for n, fn in {
            "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "log10": "log10", "sqrt": "sqrt", "sin": "sin",
            "cos": "cos", "tan": "tan", "tanh": "tanh", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fabs": "abs",
            "abs": "abs", "nearbyint": "rint", "round": "rint", "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "log1p": "log1p",
        }.items()
    },
    "math_rsqrt": _math(_rsqrt),
    "math_sigmoid": _math(_sigmoid),
    "math_pow": _math(np.power) if False else (lambda a, b: np.power(a, b)),
    "arange": np.arange,
    "np": np,
    "POISON_FLOAT": POISON_FLOAT,
    "POOL_BASE": POOL_BASE,
    "special": special,
}  # fmt: skip
