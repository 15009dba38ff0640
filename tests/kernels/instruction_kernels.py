"""Small kernels, each built around one family of instructions."""

# ruff: noqa: F821 (TVMScript declares variables by annotations)
from __future__ import annotations

from typing import Any

from tvm.script import tirx as T


def warp_mma() -> Any:
    """D = A B^T for one 16x8x16 tile: cp.async with zero fill, ldmatrix, mma.sync. Rows of A from ``rows`` on are zero."""

    @T.prim_func
    def kernel(
        A: T.Buffer((16, 16), "float16"),
        B: T.Buffer((8, 16), "float16"),
        D: T.Buffer((16, 8), "float32"),
        rows: T.int32,
    ):
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        a = pool.alloc((16, 16), "float16", align=16)
        b = pool.alloc((8, 16), "float16", align=16)
        pool.commit()
        row = T.meta_var(lane // 2)
        col = T.meta_var(lane % 2 * 8)
        size: T.let[T.uint32] = T.if_then_else(row < rows, T.uint32(16), T.uint32(0))
        T.ptx["cp.async.cg.shared.global"](a.ptr_to([row, col]), A.ptr_to([row, col]), 16, size)
        if lane < 16:
            T.ptx["cp.async.cg.shared.global"](b.ptr_to([row, col]), B.ptr_to([row, col]), 16)
        T.ptx["cp.async.commit_group"]()
        T.ptx["cp.async.wait_group"](0)
        T.cuda.warp_sync()
        fa = T.alloc_local((4,), "uint32")
        fb = T.alloc_local((2,), "uint32")
        acc = T.alloc_local((4,), "float32")
        for k in T.unroll(4):
            acc[k] = T.float32(0)
        # matrices: rows 0-7 and 8-15 of the left half, then of the right half
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"](
            fa[0], fa[1], fa[2], fa[3], a.ptr_to([lane % 16, lane // 16 * 8])
        )
        T.ptx["ldmatrix.sync.aligned.m8n8.x2.shared.b16"](
            fb[0], fb[1], b.ptr_to([lane % 8, lane // 8 % 2 * 8])
        )
        T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"](
            acc[0], acc[1], acc[2], acc[3], fa[0], fa[1], fa[2], fa[3], fb[0], fb[1], acc[0], acc[1], acc[2], acc[3]
        )  # fmt: skip
        for k in T.unroll(4):
            D[lane // 4 + k // 2 * 8, lane % 4 * 2 + k % 2] = acc[k]

    return kernel


def histogram(n: int, bins: int, ctas: int, threads: int) -> Any:
    """Every element of X counts one; the last CTA to finish writes the total behind the bins."""

    @T.prim_func
    def kernel(
        X: T.Buffer((n,), "int32"), H: T.Buffer((bins + 1,), "uint32"), done: T.Buffer((1,), "uint32")
    ):
        T.device_entry()
        bx = T.cta_id([ctas])
        tx = T.thread_id([threads])
        pool = T.SMEMPool()
        ticket = pool.alloc((1,), "uint32")
        pool.commit()
        for i in range(n // (ctas * threads)):
            x: T.let[T.int32] = X[(i * ctas + bx) * threads + tx]
            T.ptx["red.relaxed.gpu.global.add.u32"](H.ptr_to([x]), T.uint32(1))
        T.cuda.thread_fence()
        T.cuda.cta_sync()
        old: T.uint32
        if tx == 0:
            T.ptx["atom.acq_rel.gpu.global.add.u32"](old, done.ptr_to([0]), T.uint32(1))
            ticket[0] = old
        T.cuda.cta_sync()
        if ticket[0] == T.uint32(ctas - 1):
            if tx == 0:
                T.cuda.thread_fence()
                total: T.uint32
                total = T.uint32(0)
                value: T.uint32
                for b in range(bins):
                    T.ptx["ld.relaxed.gpu.global.u32"](value, H.ptr_to([b]))
                    total = total + value
                H[bins] = total

    return kernel


def relay(ctas: int) -> Any:
    """CTA k waits until the flag says k, adds its number to the sum, and passes the flag on."""

    @T.prim_func
    def kernel(flag: T.Buffer((1,), "uint32"), total: T.Buffer((1,), "uint32")):
        T.device_entry()
        bx = T.cta_id([ctas])
        tx = T.thread_id([32])
        if tx == 0:
            seen: T.uint32
            T.cuda.wait_until(seen, flag.ptr_to([0]), seen == T.uint32(bx))
            total[0] = total[0] + T.uint32(bx)
            T.ptx["st.release.gpu.global.u32"](flag.ptr_to([0]), T.uint32(bx) + T.uint32(1))

    return kernel


def polling(with_predicate: bool) -> Any:
    """Warp 0 polls an mbarrier with try_wait or test_wait until warp 1 has arrived, then reads what warp 1 wrote."""
    wait = "mbarrier.try_wait.parity.shared.b64" if with_predicate else "mbarrier.test_wait.parity.shared.b64"

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        pool = T.SMEMPool()
        data = pool.alloc((32,), "int32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(32))
        T.cuda.cta_sync()
        if tx // 32 == 0:
            ok: T.uint32
            ok = T.uint32(0)
            while ok == T.uint32(0):
                T.ptx[wait](ok, bar.ptr_to([0]), T.uint32(0))
            D[tx] = data[tx]
        else:
            data[tx - 32] = tx * 3
            T.ptx["mbarrier.arrive.shared.b64"](bar.ptr_to([0]), T.uint32(1))

    return kernel


def grid_barrier(ctas: int) -> Any:
    """Every CTA writes its number, all meet, every CTA reads its neighbour's."""

    @T.prim_func
    def kernel(X: T.Buffer((ctas,), "int32"), Y: T.Buffer((ctas,), "int32")):
        T.device_entry()
        bx = T.cta_id([ctas])
        tx = T.thread_id([32])
        if tx == 0:
            X[bx] = bx * 10
        T.cuda.grid_sync()
        if tx == 0:
            Y[bx] = X[(bx + 1) % ctas]

    return kernel


def neighbours() -> Any:
    """A ring of four CTAs: each sends its thread indices to the next with st.async and waits for the bytes."""

    @T.prim_func
    def kernel(D: T.Buffer((4, 32), "int32")):
        T.device_entry()
        bx = T.cta_id([4])
        rank = T.cta_id_in_cluster([4])
        tx = T.thread_id([32])
        pool = T.SMEMPool()
        inbox = pool.alloc((32,), "int32", align=16)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cluster_sync()
        if tx == 0:
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(128))
        target: T.uint32
        signal: T.uint32
        T.ptx["mapa.shared::cluster.u32"](
            target, T.cuda.cvta_generic_to_shared(inbox.ptr_to([tx])), T.uint32((rank + 1) % 4)
        )
        T.ptx["mapa.shared::cluster.u32"](
            signal, T.cuda.cvta_generic_to_shared(bar.ptr_to([0])), T.uint32((rank + 1) % 4)
        )
        T.ptx["st_async.shared::cluster.mbarrier::complete_tx::bytes.u32"](
            target, T.uint32(bx * 100 + tx), signal
        )
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        D[bx, tx] = inbox[tx]
        T.cuda.cluster_sync()

    return kernel


def talking() -> Any:
    """printf and an assertion."""

    @T.prim_func
    def kernel(X: T.Buffer((32,), "int32"), limit: T.int32):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([32])
        if tx < 2:
            T.cuda.printf("thread %d holds %d (%.1f%%)\n", tx, X[tx], T.float32(12.5))
        T.cuda.trap_when_assert_failed(X[tx] < limit)

    return kernel


def votes() -> Any:
    """__syncthreads_and/or over four warps, ballot, shuffle and reduce builtins."""

    @T.prim_func
    def kernel(X: T.Buffer((128,), "int32"), Y: T.Buffer((128, 4), "int64")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([128])
        x: T.let[T.int32] = X[tx]
        every: T.let[T.int64] = T.cuda.syncthreads_and(x > 0)
        some: T.let[T.int64] = T.cuda.syncthreads_or(x > 100)
        Y[tx, 0] = every
        Y[tx, 1] = some
        Y[tx, 2] = T.Cast("int64", T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), T.Cast("int32", x > 5)))
        Y[tx, 3] = T.Cast("int64", T.cuda.reduce_add_sync_u32(T.uint32(0xFFFFFFFF), T.Cast("uint32", x)))

    return kernel


def early_exit() -> Any:
    """Half of the threads return before the others write."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32"), n: T.int32):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        if tx >= n:
            T.thread_return()
        D[tx] = tx

    return kernel


def parting_lanes() -> Any:
    """Lanes leave loops, rounds of loops and the kernel at different places; a barrier and a shuffle are in between."""

    @T.prim_func
    def kernel(X: T.Buffer((128,), "int32"), D: T.Buffer((128, 4), "int32"), n: T.int32):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([128])
        acc = T.alloc_local((1,), "int32")
        k = T.alloc_local((1,), "int32")
        acc[0] = X[tx]
        for i in range(n):
            if acc[0] % 5 == 1:
                continue
            for j in range(3):
                acc[0] = (acc[0] * 3 + i + j) % 1009
                if acc[0] % 7 == 2:
                    break
                D[tx, 0] = D[tx, 0] + 1
            if acc[0] % 11 == 3:
                break
            acc[0] = acc[0] + 1
        D[tx, 1] = acc[0]
        k[0] = 0
        while k[0] < X[tx] % 6:
            k[0] = k[0] + 1
            if k[0] == 2:
                continue
            if acc[0] % 13 == 0:
                break
            if (acc[0] + k[0]) % 17 == 5:
                D[tx, 2] = 1000 + k[0]
                T.thread_return()
            acc[0] = (acc[0] * 5 + k[0]) % 1009
        D[tx, 2] = acc[0]
        if tx >= 64:
            if tx // 32 == 3:
                T.thread_return()
            T.cuda.warp_sync()
            D[tx, 3] = acc[0] + 1
            if X[tx] > 50:
                T.thread_return()
            D[tx, 3] = acc[0] + 2
        D[tx, 3] = D[tx, 3] + 5

    return kernel


def packed_elements() -> Any:
    """Two bf16 are taken from a word, multiplied and put back."""

    @T.prim_func
    def kernel(X: T.Buffer((64,), "uint32"), D: T.Buffer((64,), "uint32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        a = T.alloc_local((1,), "uint32")
        a[0] = X[tx]
        p: T.let[T.bfloat16] = T.Shuffle([T.reinterpret("bfloat16x2", a[0])], [0])
        q: T.let[T.bfloat16] = T.Shuffle([T.reinterpret("bfloat16x2", a[0])], [1])
        D[tx] = T.reinterpret("uint32", T.Shuffle([p * q, q], [0, 1]))

    return kernel


def map_in_memory() -> Any:
    """The bytes of a map parameter are copied to global memory; there the map gets fewer rows, and loads a box."""

    @T.prim_func
    def kernel(
        m: T.TensorMap(),
        X: T.Buffer((16, 32), "float32"),
        W: T.Buffer((128,), "int8", align=128),
        D: T.Buffer((8, 32), "float32"),
        rows: T.int32,
    ):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([32])
        pool = T.SMEMPool()
        tile = pool.alloc((8, 32), "float32", align=128)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        tmp = T.alloc_local((4,), "uint64")
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
            source: T.let[T.uint64] = T.reinterpret("uint64", T.address_of(m))
            target: T.let[T.uint64] = T.reinterpret("uint64", W.ptr_to([0]))
            for part in T.unroll(4):
                T.ptx["ld.global.v4.b64"](
                    tmp[0], tmp[1], tmp[2], tmp[3], T.reinterpret("handle", source + T.uint64(part * 32))
                )
                T.ptx["st.global.v4.b64"](
                    T.reinterpret("handle", target + T.uint64(part * 32)), tmp[0], tmp[1], tmp[2], tmp[3]
                )
            T.ptx["tensormap_replace.tile.global_address.global.b1024.b64"](
                W.ptr_to([0]), T.reinterpret("uint64", X.ptr_to([4, 0]))
            )
            T.ptx["tensormap_replace.tile.global_dim.global.b1024.b32"](
                W.ptr_to([0]), 1, T.Cast("uint32", rows)
            )
            T.ptx["tensormap_replace.tile.global_dim.global.b1024.b32"](W.ptr_to([0]), 4, T.uint32(1))
            T.ptx["fence.proxy.tensormap::generic.release.gpu"]()
            T.ptx["fence.proxy.tensormap::generic.acquire.gpu"](W.ptr_to([0]))
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(1024))
            T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"](
                tile.ptr_to([0, 0]), W.ptr_to([0]), 0, 0, bar.ptr_to([0])
            )
        T.cuda.cta_sync()
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for r in range(8):
            D[r, tx] = tile[r, tx]

    return kernel


def map_into_the_middle() -> Any:
    """The host encodes a map that starts in the middle of each row: column 8 of 16."""

    @T.prim_func
    def kernel(X: T.Buffer((8, 16), "float32"), D: T.Buffer((8, 8), "float32")):
        m: T.let[T.TensorMap()] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            "runtime.cuTensorMapEncodeTiled", m, "float32", 2, T.handle_add_byte_offset(X.data, 32),
            8, 8, 64, 8, 8, 1, 1, 0, 0, 0, 0,
        )  # fmt: skip
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([32])
        pool = T.SMEMPool()
        tile = pool.alloc((8, 8), "float32", align=128)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(256))
            T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"](
                tile.ptr_to([0, 0]), T.address_of(m), 0, 0, bar.ptr_to([0])
            )
        T.cuda.cta_sync()
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        if tx < 8:
            for r in range(8):
                D[r, tx] = tile[r, tx]

    return kernel


def work_stealing(tiles: int, threads: int = 32) -> Any:
    """Each tile of the grid is marked once, by whichever CTA got it (clusterlaunchcontrol)."""

    @T.prim_func
    def kernel(D: T.Buffer((tiles, 2), "int32")):
        T.device_entry()
        bx = T.cta_id([tiles])
        tx = T.thread_id([threads])
        pool = T.SMEMPool()
        response = pool.alloc((2,), "uint64", align=16)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tx == 0:
            T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        tile: T.int32
        more: T.uint32
        phase: T.int32
        raw = T.alloc_local((1,), "uint128")
        tile = bx
        more = T.uint32(1)
        phase = 0
        while more != T.uint32(0):
            if tx == 0:
                T.ptx["fence.proxy.async.shared::cta"]()
                T.ptx["mbarrier.arrive.expect_tx.shared.b64"](bar.ptr_to([0]), T.uint32(16))
                T.ptx["clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"](
                    response.ptr_to([0]), bar.ptr_to([0])
                )
                D[tile, 0] = D[tile, 0] + 1
                D[tile, 1] = bx
            T.cuda.mbarrier_wait(bar.ptr_to([0]), phase)
            phase = phase ^ 1
            T.ptx["ld.shared.b128"](raw[0], response.ptr_to([0]))
            T.ptx["clusterlaunchcontrol.query_cancel.is_canceled.pred.b128"](more, raw[0])
            T.ptx["clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128"](
                tile, raw[0], pred=more != T.uint32(0)
            )
            T.cuda.cta_sync()

    return kernel


def warpgroup_mma(k_tiles: int, fence: bool = True, wait: bool = True) -> Any:
    """D = A B^T, 64 x 64 x (16 k_tiles) on one warpgroup of sm_90a: wgmma on unswizzled tiles, one group per K tile."""
    K = 16 * k_tiles

    @T.prim_func
    def kernel(
        A: T.Buffer((64, K), "float16"), B: T.Buffer((64, K), "float16"), D: T.Buffer((64, 64), "float32")
    ):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([128])
        pool = T.SMEMPool()
        a = pool.alloc((64 * K,), "float16", align=128)
        b = pool.alloc((64 * K,), "float16", align=128)
        pool.commit()
        # 8x8 core matrices of 128 bytes; two along K, then along M or N; then the K tiles
        for i in range(64 * K // 128):
            e: T.let[T.int32] = i * 128 + tx
            r: T.let[T.int32] = e // K
            k: T.let[T.int32] = e % K
            at: T.let[T.int32] = k // 16 * 1024 + r // 8 * 128 + k % 16 // 8 * 64 + r % 8 * 8 + k % 8
            a[at] = A[r, k]
            b[at] = B[r, k]
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        acc = T.alloc_local((32,), "float32")
        a_desc: T.uint64
        b_desc: T.uint64
        if fence:
            T.ptx["wgmma.fence.sync.aligned"]()
        for step in T.unroll(k_tiles):
            T.cuda.wgmma.encode_matrix_descriptor(T.address_of(a_desc), a.ptr_to([step * 1024]), 8, 16, 0)
            T.cuda.wgmma.encode_matrix_descriptor(T.address_of(b_desc), b.ptr_to([step * 1024]), 8, 16, 0)
            T.ptx["wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"](
                *[acc[j] for j in range(32)], a_desc, b_desc, T.ptx.pred(T.uint32(step != 0)), 1, 1, 0, 0
            )
            T.ptx["wgmma.commit_group.sync.aligned"]()
        if wait:
            T.ptx["wgmma.wait_group.sync.aligned"](0)
        for j in T.unroll(32):
            D[tx // 32 * 16 + tx % 32 // 4 + j % 4 // 2 * 8, j // 4 * 8 + tx % 4 * 2 + j % 2] = acc[j]

    return kernel
