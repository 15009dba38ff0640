"""cp.async, bulk copies and bulk reductions between global and shared memory, and between the CTAs of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hardware.harness import Case

SPAN = 8192


def cp_async(size: int, cache: str, source_bytes: int, groups: int) -> Any:
    """Every thread copies ``groups`` chunks with cp.async, each in its group, and waits for them one by one."""
    from tvm.script import tirx as T

    text = f"cp.async.{cache}.shared.global"
    partly = source_bytes != size

    @T.prim_func
    def kernel(A: T.Buffer((SPAN,), "uint8"), D: T.Buffer((SPAN,), "uint8")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        pool = T.SMEMPool()
        s = pool.alloc((SPAN,), "uint8", align=128)
        pool.commit()
        for j in T.serial(SPAN // 64):
            s[j * 64 + tx] = T.uint8(0x77)
        T.cuda.cta_sync()
        for g in T.unroll(groups):
            if partly:
                T.ptx[text](
                    s.ptr_to([(g * 64 + tx) * size]),
                    T.address_of(A[(g * 64 + 63 - tx) * size]),
                    size,
                    T.uint32(source_bytes),
                )
            else:
                T.ptx[text](
                    s.ptr_to([(g * 64 + tx) * size]), T.address_of(A[(g * 64 + 63 - tx) * size]), size
                )
            T.ptx["cp.async.commit_group"]()
        T.ptx["cp.async.wait_group"](0)
        T.cuda.cta_sync()
        for j in T.serial(SPAN // 64):
            D[j * 64 + tx] = s[j * 64 + tx]

    return kernel


def cp_async_mbarrier(noinc: bool) -> Any:
    """cp.async completion through an mbarrier: cp.async.mbarrier.arrive with and without .noinc."""
    from tvm.script import tirx as T

    text = "cp.async.mbarrier.arrive.noinc.shared.b64" if noinc else "cp.async.mbarrier.arrive.shared.b64"

    @T.prim_func
    def kernel(A: T.Buffer((1024,), "uint8"), D: T.Buffer((1024,), "uint8")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        pool = T.SMEMPool()
        s = pool.alloc((1024,), "uint8", align=128)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(64))
        T.cuda.cta_sync()
        T.ptx["cp.async.cg.shared.global"](s.ptr_to([tx * 16]), T.address_of(A[(63 - tx) * 16]), 16)
        T.ptx[text](bar.ptr_to([0]))
        if not noinc:
            T.ptx["mbarrier.arrive.shared.b64"](bar.ptr_to([0]))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for j in T.serial(16):
            D[j * 64 + tx] = s[(j * 64 + 1023 - tx) % 1024]

    return kernel


def g2s(size: int, source: int, target: int, space: str) -> Any:
    """cp.async.bulk from global memory, completing on an mbarrier."""
    from tvm.script import tirx as T

    text = f"cp.async.bulk.{space}.global.mbarrier::complete_tx::bytes"

    @T.prim_func
    def kernel(A: T.Buffer((SPAN,), "uint8"), D: T.Buffer((SPAN,), "uint8")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        pool = T.SMEMPool()
        s = pool.alloc((SPAN,), "uint8", align=128)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        for j in T.serial(SPAN // 64):
            s[j * 64 + tx] = T.uint8(0x77)
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if tx == 0:
            # The copy comes before expect_tx, so the transaction count may become negative: the pending arrival keeps the phase open.
            T.ptx[text](s.ptr_to([target]), T.address_of(A[source]), T.uint32(size), bar.ptr_to([0]))
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(size))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for j in T.serial(SPAN // 64):
            D[j * 64 + tx] = s[j * 64 + tx]

    return kernel


def s2g(size: int, source: int, target: int, redop: str, ptx_type: str, relaxed: bool) -> Any:
    """cp.async.bulk or cp.reduce.async.bulk to global memory."""
    from tvm.script import tirx as T

    noftz = ".noftz" if redop == "add" and ptx_type in ("f16", "bf16") else ""
    text = "cp.async.bulk.global.shared::cta.bulk_group"
    if redop:
        text = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{redop}{noftz}.{ptx_type}"

    @T.prim_func
    def kernel(A: T.Buffer((SPAN,), "uint8"), D: T.Buffer((SPAN,), "uint8")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        pool = T.SMEMPool()
        s = pool.alloc((SPAN,), "uint8", align=128)
        pool.commit()
        for j in T.serial(SPAN // 64):
            s[j * 64 + tx] = A[j * 64 + tx]
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if tx == 0:
            T.ptx[text](T.address_of(D[target]), s.ptr_to([source]), T.uint32(size))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)

    return kernel


def s2c(size: int, redop: str, ptx_type: str, ctas: int) -> Any:
    """Each CTA sends its SMEM to the next CTA of the cluster, whose mbarrier counts the bytes."""
    from tvm.script import tirx as T

    text = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    if redop:
        text = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{redop}.{ptx_type}"

    @T.prim_func
    def kernel(A: T.Buffer((ctas, 2048), "uint8"), D: T.Buffer((ctas, 2048), "uint8")):
        T.device_entry()
        T.cta_id([ctas])
        rank = T.cta_id_in_cluster([ctas])
        tx = T.thread_id([64])
        pool = T.SMEMPool()
        s = pool.alloc((2048,), "uint8", align=128)
        o = pool.alloc((2048,), "uint8", align=128)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        remote = T.alloc_local((2,), "uint32")
        for j in T.serial(32):
            s[j * 64 + tx] = A[rank, j * 64 + tx]
            o[j * 64 + tx] = A[(rank + 2) % ctas, 2047 - (j * 64 + tx)]
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(size))
        T.ptx["fence.proxy.async"]()
        T.cuda.cluster_sync()
        if tx == 0:
            T.ptx["mapa.shared::cluster.u32"](
                remote[0], T.cuda.cvta_generic_to_shared(o.ptr_to([0])), T.Cast("uint32", (rank + 1) % ctas)
            )
            T.ptx["mapa.shared::cluster.u32"](
                remote[1], T.cuda.cvta_generic_to_shared(bar.ptr_to([0])), T.Cast("uint32", (rank + 1) % ctas)
            )
            T.ptx[text](remote[0], s.ptr_to([0]), T.uint32(size), remote[1])
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for j in T.serial(32):
            D[rank, j * 64 + tx] = o[j * 64 + tx]
        T.cuda.cluster_sync()

    return kernel


def multicast(mask: int, ctas: int) -> Any:
    """A bulk copy from global memory into several CTAs of the cluster."""
    from tvm.script import tirx as T

    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"

    @T.prim_func
    def kernel(A: T.Buffer((2048,), "uint8"), D: T.Buffer((ctas, 2048), "uint8")):
        T.device_entry()
        T.cta_id([ctas])
        rank = T.cta_id_in_cluster([ctas])
        tx = T.thread_id([64])
        pool = T.SMEMPool()
        s = pool.alloc((2048,), "uint8", align=128)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        for j in T.serial(32):
            s[j * 64 + tx] = T.uint8(3)
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
            if (T.int32(mask) >> rank) & 1 == 1:
                T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(1008))
        T.ptx["fence.proxy.async"]()
        T.cuda.cluster_sync()
        if tx == 0:
            if rank == ctas - 1:
                T.ptx[text](
                    s.ptr_to([32]), T.address_of(A[16]), T.uint32(1008), bar.ptr_to([0]), T.uint16(mask)
                )
        if (T.int32(mask) >> rank) & 1 == 1:
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for j in T.serial(32):
            D[rank, j * 64 + tx] = s[j * 64 + tx]
        T.cuda.cluster_sync()

    return kernel


def _bytes(*shapes: tuple[int, ...]) -> Any:
    def arguments(rng: np.random.Generator) -> list[np.ndarray]:
        out = [rng.integers(0, 256, shapes[0], dtype=np.uint8)]
        return out + [np.full(s, 0x5A, np.uint8) for s in shapes[1:]]

    return arguments


def _typed(ptx_type: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Two buffers whose bytes are ordinary values of the type (floats of magnitude near 1)."""
    if ptx_type in ("f16", "bf16", "f32", "f64"):
        import ml_dtypes

        dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}[
            ptx_type
        ]
        n = SPAN // np.dtype(dtype).itemsize
        return [rng.standard_normal(n).astype(dtype).view(np.uint8) for _ in range(2)]
    return [rng.integers(0, 256, SPAN, dtype=np.uint8) for _ in range(2)]


def cases() -> Iterator[Case]:
    for size, cache in ((4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")):
        for source_bytes in {size, 0, 1, size // 2, size - 1}:
            for groups in (1, 3):
                yield Case(
                    f"bulk/cp.async/{cache}{size}/{source_bytes}/{groups}", "cp.async", partial(cp_async, size, cache, source_bytes, groups),
                    _bytes((SPAN,), (SPAN,)),
                )  # fmt: skip
    for noinc in (False, True):
        yield Case(
            f"bulk/cp.async.mbarrier/{'noinc' if noinc else 'inc'}",
            "cp.async",
            partial(cp_async_mbarrier, noinc),
            _bytes((1024,), (1024,)),
        )
    for size, source, target in (
        (16, 0, 0),
        (48, 16, 32),
        (1024, 0, 128),
        (4000, 160, 16),
        (8192, 0, 0),
        (8176, 16, 0),
    ):
        for space in ("shared::cluster", "shared::cta"):
            yield Case(
                f"bulk/g2s/{space.replace('::', '_')}/{size}",
                "bulk copy",
                partial(g2s, size, source, target, space),
                _bytes((SPAN,), (SPAN,)),
            )
        yield Case(
            f"bulk/s2g/{size}",
            "bulk copy",
            partial(s2g, size, source, target, "", "", False),
            _bytes((SPAN,), (SPAN,)),
        )
    reductions = {
        "add": ("f16", "bf16", "u32", "s32", "u64", "f32", "f64"), "min": ("f16", "bf16", "u32", "s32", "u64", "s64"),
        "max": ("f16", "bf16", "u32", "s32", "u64", "s64"), "inc": ("u32",), "dec": ("u32",), "and": ("b32", "b64"), "or": ("b32", "b64"),
        "xor": ("b32", "b64"),
    }  # fmt: skip
    for redop, types in reductions.items():
        for ptx_type in types:
            yield Case(
                f"bulk/reduce/global/{redop}.{ptx_type}", "bulk reduction", partial(s2g, 4096, 256, 1024, redop, ptx_type, False), partial(_typed, ptx_type)
            )  # fmt: skip
    for size in (16, 1008, 2048):
        for ctas in (2, 4, 8):
            yield Case(
                f"bulk/s2c/{size}/{ctas}",
                "bulk copy (DSMEM)",
                partial(s2c, size, "", "", ctas),
                _bytes((ctas, 2048), (ctas, 2048)),
            )
    for redop, types in {
        "add": ("u32", "s32", "u64"),
        "min": ("u32", "s32"),
        "max": ("u32", "s32"),
        "inc": ("u32",),
        "dec": ("u32",),
        "and": ("b32",),
        "or": ("b32",),
        "xor": ("b32",),
    }.items():
        for ptx_type in types:
            yield Case(
                f"bulk/reduce/cluster/{redop}.{ptx_type}",
                "bulk reduction",
                partial(s2c, 1024, redop, ptx_type, 4),
                _bytes((4, 2048), (4, 2048)),
            )
    for ctas, mask in ((2, 3), (4, 6), (8, 0b10110101)):
        yield Case(
            f"bulk/multicast/{ctas}/{mask:b}",
            "bulk copy",
            partial(multicast, mask, ctas),
            _bytes((2048,), (ctas, 2048)),
        )
