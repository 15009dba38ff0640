"""TMA: tensor copies in one to five dimensions, every swizzle, boxes over the edges, element strides, reductions.

The tensor map is encoded by the kernel's own host code, so that every field can be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hardware.harness import Case

ITEM = {
    "uint8": 1,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
}
CARRIER = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
SWIZZLE = {0: "none", 1: "32B", 2: "64B", 3: "128B"}


def _strides(dims: tuple[int, ...], item: int) -> list[int]:
    """Byte strides of dimensions 1.., each rounded up to 16 bytes."""
    out, size = [], dims[0] * item
    for d in dims[1:]:
        size = (size + 15) // 16 * 16
        out.append(size)
        size *= d
    return out


def _tensor_bytes(dims: tuple[int, ...], item: int) -> int:
    strides = _strides(dims, item)
    return (strides[-1] * dims[-1] if strides else dims[0] * item) + 64


def _box_bytes(box: tuple[int, ...], steps: tuple[int, ...], item: int) -> int:
    n = item
    for k, (b, s) in enumerate(zip(box, steps, strict=True)):
        n *= -(-b // s) if k else b  # the step of the innermost dimension is ignored
    return n


def _room(box: tuple[int, ...], steps: tuple[int, ...], item: int) -> int:
    """Bytes of SMEM that hold a box whatever its row pitch is (at most 128 bytes), and a margin that stays untouched."""
    rows = _box_bytes(box, steps, item) // (box[0] * item)
    return (rows * max(128, box[0] * item) + 1023) // 1024 * 1024 + 1024


def load(
    dims: tuple[int, ...],
    box: tuple[int, ...],
    at: tuple[int, ...],
    dtype: str,
    swizzle: int,
    steps: tuple[int, ...],
    fill: int,
    shift: int = 0,
) -> Any:
    """One box from global memory to SMEM; SMEM is copied out byte for byte.  ``shift``: its address in SMEM, in words."""
    from tvm.script import tirx as T

    item, rank = ITEM[dtype], len(dims)
    strides = _strides(dims, item)
    total = _box_bytes(box, steps, item)
    room = _room(box, steps, item)
    whole = _tensor_bytes(dims, item) // item
    load_text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"

    @T.prim_func
    def kernel(A: T.Buffer((whole,), dtype), D: T.Buffer((room // 4,), "uint32")):
        tmap: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.tensormap_encode_tiled(
            tmap,
            A.data,
            *dims,
            *strides,
            *box,
            *steps,
            descriptor_dtype=dtype,
            rank=rank,
            swizzle=swizzle,
            oob_fill=fill,
        )
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([128])
        pool = T.SMEMPool()
        s = pool.alloc((room // 4,), "uint32", align=1024)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        for j in T.serial(room // 512):
            s[j * 128 + tx] = T.uint32(0xC0FFEE00)
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if tx == 0:
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(total))
            T.ptx[load_text](s.ptr_to([shift]), T.address_of(tmap), *at, bar.ptr_to([0]))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for j in T.serial(room // 512):
            D[j * 128 + tx] = s[j * 128 + tx]

    return kernel


def _values(rng: np.random.Generator, n: int, dtype: str) -> np.ndarray:
    """Random bits; for floats ordinary values, since a NaN is not kept by every path."""
    if dtype == "bfloat16":
        import ml_dtypes

        return rng.standard_normal(n).astype(ml_dtypes.bfloat16)
    if dtype.startswith("float"):
        return (rng.standard_normal(n) * 8).astype(dtype)
    return rng.integers(0, 2 ** (8 * ITEM[dtype]), n, dtype=f"uint{8 * ITEM[dtype]}").view(dtype)


def _load_arguments(
    dims: tuple[int, ...], box: tuple[int, ...], dtype: str, steps: tuple[int, ...], rng: np.random.Generator
) -> list[np.ndarray]:
    item = ITEM[dtype]
    room = _room(box, steps, item)
    return [_values(rng, _tensor_bytes(dims, item) // item, dtype), np.full(room // 4, 0xDEADBEEF, np.uint32)]


def store(
    dims: tuple[int, ...],
    box: tuple[int, ...],
    at: tuple[int, ...],
    dtype: str,
    swizzle: int,
    steps: tuple[int, ...],
    redop: str,
) -> Any:
    """SMEM, filled byte for byte from A, to one box of D; with ``redop`` a reduction."""
    from tvm.script import tirx as T

    item, rank = ITEM[dtype], len(dims)
    strides = _strides(dims, item)
    room = _room(box, steps, item)
    whole = _tensor_bytes(dims, item) // item
    head = (
        f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{redop}"
        if redop
        else f"cp.async.bulk.tensor.{rank}d.global.shared::cta"
    )
    store_text = f"{head}.tile.bulk_group"

    @T.prim_func
    def kernel(A: T.Buffer((room // 4,), "uint32"), D: T.Buffer((whole,), dtype)):
        tmap: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.tensormap_encode_tiled(
            tmap, D.data, *dims, *strides, *box, *steps, descriptor_dtype=dtype, rank=rank, swizzle=swizzle
        )
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([128])
        pool = T.SMEMPool()
        s = pool.alloc((room // 4,), "uint32", align=1024)
        pool.commit()
        for j in T.serial(room // 512):
            s[j * 128 + tx] = A[j * 128 + tx]
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if tx == 0:
            T.ptx[store_text](T.address_of(tmap), *at, s.ptr_to([0]))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


def _store_arguments(
    dims: tuple[int, ...],
    box: tuple[int, ...],
    dtype: str,
    steps: tuple[int, ...],
    reduce: bool,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    item = ITEM[dtype]
    room = _room(box, steps, item)
    source = _values(rng, room // item, dtype).view(np.uint32)
    whole = _tensor_bytes(dims, item) // item
    target = (
        _values(rng, whole, dtype) if reduce else np.full(whole * item, 0xA5, np.uint8).view(_dtype(dtype))
    )
    return [source, target]


def _dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def multicast(mask: int, ctas: int, swizzle: int) -> Any:
    """CTA 0 loads one tile into every CTA of the mask; each CTA waits on its own mbarrier and copies its SMEM out."""
    from tvm.script import tirx as T

    text = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"

    @T.prim_func
    def kernel(A: T.Buffer((64 * 32,), "float16"), D: T.Buffer((ctas, 2048), "float16")):
        tmap: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.tensormap_encode_tiled(
            tmap, A.data, 64, 32, 128, 64, 16, 1, 1, descriptor_dtype="float16", rank=2, swizzle=swizzle
        )
        T.device_entry()
        T.cta_id([ctas])
        rank = T.cta_id_in_cluster([ctas])
        tx = T.thread_id([128])
        pool = T.SMEMPool()
        s = pool.alloc((1024,), "float16", align=1024)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        for j in T.serial(8):
            s[j * 128 + tx] = T.float16(-7)
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cluster_sync()
        if tx == 0:
            if (T.int32(mask) >> rank) & 1 == 1:
                T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(2048))
            if rank == 0:
                T.ptx[text](s.ptr_to([0]), T.address_of(tmap), 0, 8, bar.ptr_to([0]), T.uint16(mask))
        if (T.int32(mask) >> rank) & 1 == 1:
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for j in T.serial(8):
            D[rank, j * 128 + tx] = s[j * 128 + tx]
        T.cuda.cluster_sync()

    return kernel


def _multicast_arguments(ctas: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal(2048).astype(np.float16), np.full((ctas, 2048), 3, np.float16)]


# (dims, box) per rank with 64 bytes (32 elements of 2 bytes) in the innermost dimension of the box.
GEOMETRY = {
    1: ((200,), (32,)),
    2: ((72, 20), (32, 8)),
    3: ((72, 9, 7), (32, 4, 3)),
    4: ((72, 7, 5, 4), (32, 4, 2, 3)),
    5: ((72, 5, 4, 3, 4), (32, 3, 2, 2, 2)),
}
DTYPES = (
    "uint8",
    "uint16",
    "float16",
    "bfloat16",
    "uint32",
    "int32",
    "float32",
    "uint64",
    "int64",
    "float64",
)


def _scaled(
    dims: tuple[int, ...], box: tuple[int, ...], dtype: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same bytes for another element size."""
    item = ITEM[dtype]
    return (dims[0] * 2 // item, *dims[1:]), (box[0] * 2 // item, *box[1:])


def _positions(dims: tuple[int, ...], box: tuple[int, ...], store: bool) -> dict[str, tuple[int, ...]]:
    """Inside, over each edge of each dimension, and wholly outside.  A store may not begin before the tensor."""
    inside = tuple(min(1, d - b) if k else 8 for k, (d, b) in enumerate(zip(dims, box, strict=True)))
    out = {"inside": inside}
    for k in range(len(dims)):
        low, high, away = list(inside), list(inside), list(inside)
        low[k] = -max(1, box[k] // 2) if k else -8
        high[k] = dims[k] - max(1, box[k] // 2) if k else (dims[k] - 9) // 8 * 8
        away[k] = dims[k] + 3 if k else (dims[k] + 15) // 8 * 8
        out[f"high{k}"] = tuple(high)
        if not store:
            out[f"low{k}"] = tuple(low)
        if k in (0, len(dims) - 1):
            out[f"outside{k}"] = tuple(away)
    if not store:
        out["corner"] = tuple(-1 if k else -8 for k in range(len(dims)))
    return out


def _faults() -> Iterator[Case]:
    """Boxes whose corner the copy engine refuses: the GPU stops with "illegal instruction", the emulator says why."""
    for rank, (dims, box) in GEOMETRY.items():
        ones = (1,) * rank
        inside = [1] * rank
        corners = (
            {"unaligned": (3, *inside[1:]), "unaligned_edge": (-5, *inside[1:])}
            if rank < 4
            else {"unaligned": (4, *inside[1:])}
        )
        for name, at in corners.items():
            yield _load_case(f"fault/{rank}d/{name}", dims, box, at, "float16", 0, ones, 0, fault=True)
        stores = {
            "unaligned": (3, *inside[1:]),
            f"before{rank - 1}": tuple(-1 if k == rank - 1 and k else 8 * (k == 0) for k in range(rank)),
        }
        if rank == 1:
            stores = {"unaligned": (3,), "before0": (-8,)}
        for name, at in stores.items():
            yield _store_case(f"fault/{rank}d/{name}", dims, box, at, "float16", 0, ones, "", fault=True)
    dims, box = _scaled(*GEOMETRY[2], "uint32")
    yield _store_case("fault/reduce/before1", dims, box, (0, -2), "uint32", 0, (1, 1), "add", fault=True)
    yield _store_case("fault/reduce/unaligned", dims, box, (1, 0), "uint32", 0, (1, 1), "add", fault=True)


def cases() -> Iterator[Case]:
    for rank, (dims, box) in GEOMETRY.items():
        ones = (1,) * rank
        for store in (False, True):
            for number, (where, at) in enumerate(_positions(dims, box, store).items()):
                for swizzle in (0, 1, 2, 3):
                    inner = (16 if swizzle == 1 else 32, *box[1:])
                    if swizzle and number % 3 != (swizzle + rank) % 3 and where != "inside":
                        continue
                    name = f"{rank}d/{where}/{SWIZZLE[swizzle]}"
                    if store:
                        yield _store_case(name, dims, inner, at, "float16", swizzle, ones, "")
                    else:
                        yield _load_case(name, dims, inner, at, "float16", swizzle, ones, 0)
    yield from _faults()
    for shift in (4, 16, 32):  # without swizzle: at 16, 64 and 128 bytes
        yield Case(
            f"tma/load/address/{shift * 4}", "TMA load", partial(load, (72, 20), (32, 8), (8, 1), "float16", 0, (1, 1), 0, shift),
            partial(_load_arguments, (72, 20), (32, 8), "float16", (1, 1)), fault="tma.misaligned" if shift % 32 else "",
        )  # fmt: skip
    for dtype in DTYPES:
        dims, box = _scaled(*GEOMETRY[3], dtype)
        for swizzle in (0, 2, 3):
            yield _load_case(
                f"dtype/{dtype}/{SWIZZLE[swizzle]}",
                dims,
                box,
                (64 // ITEM[dtype], 2, 5),
                dtype,
                swizzle,
                (1, 1, 1),
                0,
            )
            yield _store_case(
                f"dtype/{dtype}/{SWIZZLE[swizzle]}",
                dims,
                box,
                (64 // ITEM[dtype], 2, 5),
                dtype,
                swizzle,
                (1, 1, 1),
                "",
            )
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        dims, box = _scaled(*GEOMETRY[2], dtype)
        yield _load_case(f"nan_fill/{dtype}", dims, box, (-16 // ITEM[dtype], 15), dtype, 3, (1, 1), 1)
    for box0 in (8, 16, 24, 40, 48, 56, 64):  # rows narrower than the span of the swizzle
        for swizzle in (0, 3):
            yield _load_case(
                f"narrow/{box0 * 2}B/{SWIZZLE[swizzle]}",
                (128, 24),
                (box0, 9),
                (8, 2),
                "float16",
                swizzle,
                (1, 1),
                0,
            )
            yield _store_case(
                f"narrow/{box0 * 2}B/{SWIZZLE[swizzle]}",
                (128, 24),
                (box0, 9),
                (8, 2),
                "float16",
                swizzle,
                (1, 1),
                "",
            )
    for steps in ((1, 2), (1, 3), (1, 2, 2), (1, 1, 3), (1, 8), (1, 2, 1, 2), (1, 2, 2, 2, 2)):
        rank = len(steps)
        dims = (72, 40, 12, 9, 8)[:rank]
        box = (32, 12, 5, 4, 4)[:rank]
        for swizzle in (0, 3):
            name = "x".join(map(str, steps))
            at = (8, 5, 2, 1, 3)[:rank]
            yield _load_case(f"steps/{name}/{SWIZZLE[swizzle]}", dims, box, at, "float16", swizzle, steps, 0)
            yield _store_case(
                f"steps/{name}/{SWIZZLE[swizzle]}", dims, box, at, "float16", swizzle, steps, ""
            )
        edge = (56, 33, 9, 7, 6)[:rank]
        yield _load_case(f"steps/{'x'.join(map(str, steps))}/edge", dims, box, edge, "float16", 0, steps, 0)
    reductions = {
        "add": ("uint32", "int32", "uint64", "float32", "float16", "bfloat16"), "min": ("uint32", "int32", "uint64", "int64", "float16", "bfloat16"),
        "max": ("uint32", "int32", "uint64", "int64", "float16", "bfloat16"), "inc": ("uint32",), "dec": ("uint32",),
        "and": ("uint32", "uint64"), "or": ("uint32", "uint64"), "xor": ("uint32", "uint64"),
    }  # fmt: skip
    for redop, dtypes in reductions.items():
        for dtype in dtypes:
            dims, box = _scaled(*GEOMETRY[2], dtype)
            for swizzle, at in ((0, (64 // ITEM[dtype], 3)), (3, (112 // ITEM[dtype], 16))):
                yield _store_case(
                    f"reduce/{redop}/{dtype}/{SWIZZLE[swizzle]}", dims, box, at, dtype, swizzle, (1, 1), redop
                )
    for ctas, mask in ((2, 3), (2, 2), (4, 15), (4, 5), (4, 14), (8, 255), (8, 0b10110010)):
        for swizzle in (0, 3):
            yield Case(
                f"tma/multicast/{ctas}ctas/{mask:b}/{SWIZZLE[swizzle]}", "TMA multicast", partial(multicast, mask, ctas, swizzle),
                partial(_multicast_arguments, ctas),
            )  # fmt: skip


def _load_case(
    name: str,
    dims: Any,
    box: Any,
    at: Any,
    dtype: str,
    swizzle: int,
    steps: Any,
    fill: int,
    fault: bool = False,
) -> Case:
    return Case(
        f"tma/load/{name}", "TMA load", partial(load, dims, box, at, dtype, swizzle, steps, fill),
        partial(_load_arguments, dims, box, dtype, steps), fault="tma.bad-coordinates" if fault else "",
    )  # fmt: skip


def _store_case(
    name: str,
    dims: Any,
    box: Any,
    at: Any,
    dtype: str,
    swizzle: int,
    steps: Any,
    redop: str,
    fault: bool = False,
) -> Case:
    kind = "reduce" if redop else "store"
    return Case(
        f"tma/{'' if redop else 'store/'}{name}", f"TMA {kind}", partial(store, dims, box, at, dtype, swizzle, steps, redop),
        partial(_store_arguments, dims, box, dtype, steps, bool(redop)), fault="tma.bad-coordinates" if fault else "",
    )  # fmt: skip
