"""TMA: tensor copies in one to five dimensions, every swizzle, boxes over the edges, element strides, reductions.

The tensor map is encoded by the kernel's own host code, so that every field can be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hardware.harness import Case

ITEM = {"uint8": 1, "uint16": 2, "float16": 2, "bfloat16": 2, "uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8}
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
    for b, s in zip(box, steps, strict=True):
        n *= -(-b // s)
    return n


def load(dims: tuple[int, ...], box: tuple[int, ...], at: tuple[int, ...], dtype: str, swizzle: int, steps: tuple[int, ...], fill: int) -> Any:
    """One box from global memory to SMEM; SMEM is copied out byte for byte."""
    from tvm.script import tirx as T

    item, rank = ITEM[dtype], len(dims)
    strides = _strides(dims, item)
    total = _box_bytes(box, steps, item)
    room = (total + 1023) // 1024 * 1024 + 1024
    whole = _tensor_bytes(dims, item) // item
    load_text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"

    @T.prim_func
    def kernel(A: T.Buffer((whole,), dtype), D: T.Buffer((room // 4,), "uint32")):
        tmap: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.tensormap_encode_tiled(
            tmap, A.data, *dims, *strides, *box, *steps, descriptor_dtype=dtype, rank=rank, swizzle=swizzle, oob_fill=fill
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
            T.ptx[load_text](s.ptr_to([0]), T.address_of(tmap), *at, bar.ptr_to([0]))
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


def _load_arguments(dims: tuple[int, ...], box: tuple[int, ...], dtype: str, steps: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    item = ITEM[dtype]
    room = (_box_bytes(box, steps, item) + 1023) // 1024 * 1024 + 1024
    return [_values(rng, _tensor_bytes(dims, item) // item, dtype), np.full(room // 4, 0xDEADBEEF, np.uint32)]


def cases() -> Iterator[Case]:
    for swizzle in (0, 3):
        dims, box, at, dtype, steps = (64, 40), (64, 16), (0, 8), "float16", (1, 1)
        yield Case(
            f"tma/load/2d/{SWIZZLE[swizzle]}", "TMA load", partial(load, dims, box, at, dtype, swizzle, steps, 0),
            partial(_load_arguments, dims, box, dtype, steps),
        )  # fmt: skip
