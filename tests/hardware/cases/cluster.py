"""Clusters: ranks, mapa, distributed shared memory, remote mbarrier arrivals, st.async, red.async, cluster barriers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hardware.cases.barriers import _words
from hardware.harness import Case


def neighbours(ctas: int, clusters: int, threads: int) -> Any:
    """Each CTA writes into the next CTA's SMEM and reads from the one after it (ld/st.shared::cluster)."""
    from tvm.script import tirx as T

    total = ctas * clusters

    @T.prim_func
    def kernel(A: T.Buffer((total, threads), "uint32"), D: T.Buffer((2, total, threads), "uint32")):
        T.device_entry()
        bx = T.cta_id([total])
        rank = T.cta_id_in_cluster([ctas])
        tx = T.thread_id([threads])
        pool = T.SMEMPool()
        mine = pool.alloc((threads,), "uint32", align=128)
        box = pool.alloc((threads,), "uint32", align=128)
        pool.commit()
        far = T.alloc_local((2,), "uint32")
        r = T.alloc_local((1,), "uint32")
        mine[tx] = A[bx, tx]
        T.cuda.cluster_sync()
        T.ptx["mapa.shared::cluster.u32"](
            far[0], T.cuda.cvta_generic_to_shared(box.ptr_to([tx])), T.Cast("uint32", (rank + 1) % ctas)
        )
        T.ptx["mapa.shared::cluster.u32"](
            far[1],
            T.cuda.cvta_generic_to_shared(mine.ptr_to([threads - 1 - tx])),
            T.Cast("uint32", (rank + 2) % ctas),
        )
        T.ptx["st.shared::cluster.b32"](far[0], A[bx, tx] * T.uint32(3))
        T.ptx["ld.shared::cluster.b32"](r[0], far[1])
        D[0, bx, tx] = r[0]
        T.cuda.cluster_sync()
        D[1, bx, tx] = box[tx]

    return kernel


def remote_arrive(ctas: int, rounds: int, expect: bool) -> Any:
    """Every CTA arrives on CTA 0's mbarrier; CTA 0 waits, reads what they stored in its SMEM and releases them."""
    from tvm.script import tirx as T

    arrive = "mbarrier.arrive.release.cluster.shared::cluster.b64"
    threads = 32

    @T.prim_func
    def kernel(A: T.Buffer((ctas, rounds, threads), "uint32"), D: T.Buffer((rounds, threads), "uint32")):
        T.device_entry()
        T.cta_id([ctas])
        rank = T.cta_id_in_cluster([ctas])
        tx = T.thread_id([threads])
        pool = T.SMEMPool()
        s = pool.alloc((ctas * threads,), "uint32", align=128)
        ready = pool.alloc((1,), "uint64", align=8)
        free = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        far = T.alloc_local((3,), "uint32")
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](ready.ptr_to([0]), T.uint32(ctas * threads))
            T.ptx["mbarrier.init.shared.b64"](free.ptr_to([0]), T.uint32(threads))
            T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cluster_sync()
        T.ptx["mapa.shared::cluster.u32"](
            far[0], T.cuda.cvta_generic_to_shared(s.ptr_to([rank * threads + tx])), T.uint32(0)
        )
        T.ptx["mapa.shared::cluster.u32"](
            far[1], T.cuda.cvta_generic_to_shared(ready.ptr_to([0])), T.uint32(0)
        )
        for k in T.serial(rounds):
            T.ptx["st.shared::cluster.b32"](far[0], A[rank, k, tx])
            T.ptx[arrive](far[1])
            if rank == 0:
                T.cuda.mbarrier_wait(ready.ptr_to([0]), k % 2)
                total: T.uint32 = T.uint32(0)
                for c in T.serial(ctas):
                    total = total * T.uint32(31) + s[c * threads + tx]
                D[k, tx] = total
                for c in T.serial(ctas):
                    T.ptx["mapa.shared::cluster.u32"](
                        far[2], T.cuda.cvta_generic_to_shared(free.ptr_to([0])), T.Cast("uint32", c)
                    )
                    T.ptx[arrive](far[2])
            T.cuda.mbarrier_wait(free.ptr_to([0]), k % 2)
        T.cuda.cluster_sync()

    return kernel


def store_async(ptx_type: str, dtype: str, ctas: int, redop: str) -> Any:
    """st.async or red.async to the next CTA with transaction bytes on its mbarrier."""
    from tvm.script import tirx as T

    size = np.dtype(dtype).itemsize
    text = f"st_async.weak.shared::cluster.mbarrier::complete_tx::bytes.{ptx_type}"
    if redop:
        text = f"red_async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{redop}.{ptx_type}"
    threads = 64

    @T.prim_func
    def kernel(A: T.Buffer((ctas, threads), dtype), D: T.Buffer((ctas, threads), dtype)):
        T.device_entry()
        T.cta_id([ctas])
        rank = T.cta_id_in_cluster([ctas])
        tx = T.thread_id([threads])
        pool = T.SMEMPool()
        s = pool.alloc((threads,), dtype, align=128)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        far = T.alloc_local((2,), "uint32")
        s[tx] = A[(rank + 1) % ctas, tx]
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(threads * size))
        T.ptx["fence.proxy.async"]()
        T.cuda.cluster_sync()
        T.ptx["mapa.shared::cluster.u32"](
            far[0], T.cuda.cvta_generic_to_shared(s.ptr_to([tx])), T.Cast("uint32", (rank + 1) % ctas)
        )
        T.ptx["mapa.shared::cluster.u32"](
            far[1], T.cuda.cvta_generic_to_shared(bar.ptr_to([0])), T.Cast("uint32", (rank + 1) % ctas)
        )
        T.ptx[text](far[0], A[rank, tx], far[1])
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        D[rank, tx] = s[tx]
        T.cuda.cluster_sync()

    return kernel


def split_barrier(ctas: int, relaxed: bool) -> Any:
    """barrier.cluster.arrive and wait apart, with work in between; a relaxed arrival first, which orders nothing."""
    from tvm.script import tirx as T

    threads = 64

    @T.prim_func
    def kernel(A: T.Buffer((ctas, threads), "uint32"), D: T.Buffer((ctas, threads), "uint32")):
        T.device_entry()
        T.cta_id([ctas])
        rank = T.cta_id_in_cluster([ctas])
        tx = T.thread_id([threads])
        pool = T.SMEMPool()
        s = pool.alloc((threads,), "uint32", align=128)
        pool.commit()
        far = T.alloc_local((1,), "uint32")
        r = T.alloc_local((1,), "uint32")
        if relaxed:
            T.ptx["barrier.cluster.arrive.relaxed.aligned"]()
            T.ptx["barrier.cluster.wait.aligned"]()
        x: T.uint32 = A[rank, tx]
        s[tx] = x * T.uint32(5)
        T.ptx["barrier.cluster.arrive.release.aligned"]()
        x = x + T.uint32(11)
        T.ptx["barrier.cluster.wait.acquire.aligned"]()
        T.ptx["mapa.shared::cluster.u32"](
            far[0], T.cuda.cvta_generic_to_shared(s.ptr_to([63 - tx])), T.Cast("uint32", ctas - 1 - rank)
        )
        T.ptx["ld.shared::cluster.b32"](r[0], far[0])
        D[rank, tx] = x ^ r[0]
        T.cuda.cluster_sync()

    return kernel


def ranks(grid: tuple[int, int], cluster: tuple[int, int]) -> Any:
    """Where every CTA of a two-dimensional grid of clusters is."""
    from tvm.script import tirx as T

    total = grid[0] * grid[1]

    @T.prim_func
    def kernel(D: T.Buffer((total, 8), "int32")):
        T.device_entry()
        bx, by = T.cta_id([grid[0], grid[1]])
        cx, cy = T.cta_id_in_cluster([cluster[0], cluster[1]])
        tx = T.thread_id([32])
        if tx == 0:
            D[bx * grid[1] + by, 0] = bx
            D[bx * grid[1] + by, 1] = by
            D[bx * grid[1] + by, 2] = cx
            D[bx * grid[1] + by, 3] = cy

    return kernel


def _typed(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> list[np.ndarray]:
    if dtype.startswith("float"):
        return [rng.standard_normal(shape).astype(dtype), np.zeros(shape, dtype)]
    return [
        rng.integers(
            0, 2 ** (8 * np.dtype(dtype).itemsize), shape, dtype=f"uint{8 * np.dtype(dtype).itemsize}"
        ).view(dtype),
        np.zeros(shape, dtype),
    ]


def cases() -> Iterator[Case]:
    for ctas, clusters, threads in ((2, 1, 64), (2, 3, 32), (4, 2, 128), (8, 2, 64), (3, 2, 32)):
        yield Case(
            f"cluster/dsmem/{ctas}x{clusters}x{threads}", "cluster", partial(neighbours, ctas, clusters, threads),
            _words((ctas * clusters, threads), (2, ctas * clusters, threads)),
        )  # fmt: skip
    for ctas, rounds in ((2, 3), (4, 5), (8, 4)):
        yield Case(
            f"cluster/remote_arrive/{ctas}x{rounds}",
            "cluster",
            partial(remote_arrive, ctas, rounds, False),
            _words((ctas, rounds, 32), (rounds, 32)),
        )
    for ptx_type, dtype in (
        ("b32", "uint32"),
        ("u32", "uint32"),
        ("s32", "int32"),
        ("b64", "uint64"),
        ("f32", "float32"),
        ("f64", "float64"),
    ):
        yield Case(
            f"cluster/st.async/{ptx_type}",
            "cluster",
            partial(store_async, ptx_type, dtype, 4, ""),
            partial(_typed, (4, 64), dtype),
        )
    for redop, ptx_type, dtype in (
        ("add", "u32", "uint32"), ("add", "s32", "int32"), ("add", "u64", "uint64"), ("min", "u32", "uint32"), ("max", "s32", "int32"), ("inc", "u32", "uint32"),
        ("dec", "u32", "uint32"), ("and", "b32", "uint32"), ("or", "b32", "uint32"), ("xor", "b32", "uint32"),
    ):  # fmt: skip
        yield Case(
            f"cluster/red.async/{redop}.{ptx_type}",
            "cluster",
            partial(store_async, ptx_type, dtype, 4, redop),
            partial(_typed, (4, 64), dtype),
        )
    for ctas in (2, 4, 8):
        for relaxed in (False, True):
            yield Case(
                f"cluster/barrier/{ctas}/{'relaxed' if relaxed else 'plain'}",
                "cluster",
                partial(split_barrier, ctas, relaxed),
                _words((ctas, 64), (ctas, 64)),
            )
    for grid, cluster in (((4, 2), (2, 1)), ((4, 4), (2, 2)), ((2, 6), (1, 3))):
        yield Case(
            f"cluster/ranks/{grid[0]}x{grid[1]}/{cluster[0]}x{cluster[1]}",
            "cluster",
            partial(ranks, grid, cluster),
            lambda rng, n=grid[0] * grid[1]: [np.full((n, 8), -1, np.int32)],
        )
