"""Rules of barriers, fences, buffers and tensor memory, each broken in a small kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.backend.cuda.lang import MBarrier, TMABar
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

import emulator
import emulator.lowering  # before the kernels: barriers keep their names
from emulator.checks.findings import Finding


def findings(kernel: Any, *arrays: np.ndarray, code: str, schedule: str = "late") -> list[Finding]:
    return [f for f in emulator.run(kernel, *arrays, schedule=schedule).findings if f.code == code]


def codes(kernel: Any, *arrays: np.ndarray, schedule: str = "late") -> set[str]:
    """Codes of errors and races."""
    run = emulator.run(kernel, *arrays, schedule=schedule)
    return {f.code for f in run.findings if f.strength != "lint"}


def floats(n: int = 32) -> np.ndarray:
    return np.zeros(n, np.float32)


# ---------------------------------------------------------------------------------------------- proxy fences


def store_tile(who: str) -> Any:
    """Two warps fill a tile; a TMA store takes it. ``who`` runs the proxy fence."""

    @T.prim_func
    def kernel(OUT: T.Buffer((8, 64), "float16")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        tile = pool.alloc_tcgen05_mma_AB((8, 64), "float16")
        pool.commit()
        for i in T.serial(8):
            tile[i, warp * 32 + lane] = T.float16(1)
        if who == "all":
            T.ptx["fence.proxy.async.shared::cta"]()
        if who == "lane 0":
            if lane == 0:
                T.ptx["fence.proxy.async.shared::cta"]()
        if who == "lane 0 after a warp barrier":
            T.cuda.warp_sync()
            if lane == 0:
                T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if who == "issuer after the barrier":
            if warp == 0:
                if lane == 0:
                    T.ptx["fence.proxy.async.shared::cta"]()
        if warp == 0:
            if lane == 0:
                Tx.copy_async(OUT[:, :], tile[:, :], dispatch="tma_auto")
                T.ptx["cp.async.bulk.commit_group"]()
                T.ptx["cp.async.bulk.wait_group.read"](0)

    return kernel


@pytest.mark.parametrize(
    "who, strong, weak",
    [
        ("all", set(), set()),
        ("lane 0", {"proxy.missing-fence"}, set()),
        ("lane 0 after a warp barrier", set(), set()),
        ("issuer after the barrier", set(), {"proxy.fence-by-another-thread"}),
        ("nobody", {"proxy.missing-fence"}, set()),
    ],
)
def test_a_proxy_fence_covers_what_its_own_lanes_wrote(who: str, strong: set[str], weak: set[str]) -> None:
    run = emulator.run(store_tile(who), np.zeros((8, 64), np.float16))
    assert {f.code for f in run.findings if f.strength != "lint"} == strong
    assert {f.code for f in run.findings if f.strength == "lint"} == weak


def test_a_fence_of_one_lane_is_enough_for_what_it_wrote_itself() -> None:
    """The other lanes write, too, but nobody reads that through the async proxy."""

    @T.prim_func
    def kernel(OUT: T.Buffer((8, 64), "float16")):
        T.device_entry()
        T.cta_id([1])
        T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        tile = pool.alloc_tcgen05_mma_AB((8, 64), "float16")
        other = pool.alloc((32,), "float16")
        pool.commit()
        other[lane] = T.float16(2)
        if lane == 0:
            for i in T.serial(8):
                for j in T.serial(64):
                    tile[i, j] = T.float16(1)
            T.ptx["fence.proxy.async.shared::cta"]()
            Tx.copy_async(OUT[:, :], tile[:, :], dispatch="tma_auto")
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group.read"](0)

    assert emulator.run(kernel, np.zeros((8, 64), np.float16)).findings == ()


# ---------------------------------------------------------------------------------------------- mbarriers


def overwritten(index: int, used: bool) -> Any:
    """Stores to element ``index`` of a buffer that lies before an mbarrier; ``used``: the barrier is used later."""

    @T.prim_func
    def kernel(OUT: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([1])
        T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        data = pool.alloc((2,), "float32")
        done = MBarrier(pool, 1)
        pool.commit()
        done.init(32)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        if lane == 0:
            data[index] = T.float32(1)
        if used:
            done.arrive(0)
            done.wait(0, 0)
        OUT[lane] = T.float32(1)

    return kernel


def test_a_store_over_an_mbarrier() -> None:
    (f,) = findings(overwritten(2, True), floats(), code="mbarrier.overwritten")
    assert f.strength == "error" and f.names == ("done",)
    (f,) = findings(overwritten(2, True), floats(), code="smem.outside-view")
    assert f.strength == "error" and "`done`" in f.message and f.names == ("data",)
    assert findings(overwritten(1, True), floats(), code="mbarrier.overwritten") == []
    assert findings(overwritten(1, True), floats(), code="smem.outside-view") == []
    (f,) = findings(overwritten(3, False), floats(), code="mbarrier.overwritten")
    assert f.strength == "lint"  # nobody needs the barrier any more


def test_an_index_beyond_the_barriers_of_a_ring() -> None:
    @T.prim_func
    def kernel(OUT: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([1])
        T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        full = MBarrier(pool, 2)
        free = MBarrier(pool, 2)
        pool.commit()
        full.init(32)
        free.init(32)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        full.arrive(2)
        free.wait(0, 0)
        OUT[lane] = T.float32(1)

    (f,) = findings(kernel, floats(), code="smem.outside-view")
    assert "mbarrier operation through `full` reaches byte 16" in f.message and "`free`" in f.message


def test_every_lane_initialises_the_barrier() -> None:
    @T.prim_func
    def kernel(OUT: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([1])
        T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        done = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        T.ptx["mbarrier.init.shared.b64"](done.ptr_to([0]), T.uint32(1))
        OUT[lane] = T.float32(1)

    (f,) = findings(kernel, floats(), code="mbarrier.many-initialisers")
    assert f.strength == "lint" and f.names == ("done",)


@pytest.mark.parametrize("order", ["copy first", "expect_tx first"])
def test_expect_tx_may_come_after_the_copy(order: str) -> None:
    @T.prim_func
    def kernel(IN: T.Buffer((8, 64), "float16"), OUT: T.Buffer((8, 64), "float16")):
        T.device_entry()
        T.cta_id([1])
        T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        loaded = TMABar(pool, 1)
        tile = pool.alloc_tcgen05_mma_AB((8, 64), "float16")
        pool.commit()
        loaded.init(1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        if lane == 0:
            if order == "expect_tx first":
                loaded.arrive(0, 1024)
            Tx.copy_async(tile[:, :], IN[:, :], dispatch="tma_auto", mbar=loaded.ptr_to([0]))
            if order == "copy first":
                loaded.arrive(0, 1024)
        loaded.wait(0, 0)
        for i in T.serial(16):
            OUT[i // 2, i % 2 * 32 + lane] = tile[i // 2, i % 2 * 32 + lane]

    for schedule in ("late", "eager"):
        assert (
            codes(kernel, np.ones((8, 64), np.float16), np.zeros((8, 64), np.float16), schedule=schedule)
            == set()
        )


# ---------------------------------------------------------------------------------------------- other rules


def test_a_named_barrier_for_more_threads_than_there_are() -> None:
    @T.prim_func
    def kernel(OUT: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        thread = T.thread_id([64])
        T.ptx["bar.sync"](1, 96)
        OUT[thread] = T.float32(1)

    assert codes(kernel, floats(64)) == {"barrier.count-too-large", "deadlock"}


def arrives_twice(again_in_time: bool) -> Any:
    """Warp 0 arrives at barrier 1 in two rounds, for warp 1; ``again_in_time``: they meet in between."""

    @T.prim_func
    def kernel(OUT: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        if warp == 0:
            T.ptx["bar.arrive"](1, 64)
            if again_in_time:
                T.ptx["bar.sync"](2, 64)
            T.ptx["bar.arrive"](1, 64)  # twice
        else:
            T.ptx["bar.sync"](1, 64)
            if again_in_time:
                T.ptx["bar.sync"](2, 64)
            T.ptx["bar.sync"](1, 64)
        OUT[warp * 32 + lane] = T.float32(1)

    return kernel


def test_a_warp_arrives_twice_in_one_round() -> None:
    """Under `late` warp 0 runs first; the second arrival stands in for warp 1, which then waits for nobody."""
    (f,) = findings(arrives_twice(False), floats(64), code="barrier.double-arrive")
    assert f.strength == "race" and f.names == ("named barrier[1]",) and "Warp 0 arrives again" in f.message
    with open(__file__, encoding="utf-8") as source:
        assert source.read().split("\n")[f.locations[0].line - 1].endswith("# twice")
    for schedule in ("late", "eager", "random"):
        assert codes(arrives_twice(True), floats(64), schedule=schedule) == set()


@pytest.mark.parametrize("schedule", ["late", "eager", "random"])
def test_a_count_that_needs_a_second_arrival_is_no_mistake(schedule: str) -> None:
    """Warp 0 arrives for its copy and for itself; warp 2 never comes."""

    @T.prim_func
    def kernel(OUT: T.Buffer((96,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([3])
        lane = T.lane_id([32])
        if warp < 2:
            for _ in T.serial(2):
                if warp == 0:
                    T.ptx["bar.arrive"](1, 96)
                T.ptx["bar.sync"](1, 96)
        OUT[warp * 32 + lane] = T.float32(1)

    assert codes(kernel, floats(96), schedule=schedule) == set()


def registers(first: int, second: int) -> Any:
    """Two warpgroups, launched with up to 256 registers per thread, change to ``first`` and ``second``."""

    @T.prim_func
    def kernel(OUT: T.Buffer((256,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warpgroup = T.warpgroup_id([2])
        thread = T.thread_id([256])
        if warpgroup == 0:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](first)
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](second)
        OUT[thread] = T.float32(1)

    return kernel


def pool_of(threads: int, grow: int) -> Any:
    """Three warpgroups (launched with 168 registers per thread); the last two grow to ``grow``, the first gives 40."""

    @T.prim_func
    def kernel(OUT: T.Buffer((384,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warpgroup = T.warpgroup_id([3])
        thread = T.thread_id([384])
        if warpgroup == 0:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](grow)
        OUT[thread] = T.float32(1)

    return kernel


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_the_register_pool(schedule: str) -> None:
    assert codes(registers(40, 232), floats(256), schedule=schedule) == set()
    assert codes(pool_of(384, 232), floats(384), schedule=schedule) == set()  # 40 + 2 x 232 = 3 x 168
    out = floats(384)
    (f,) = findings(pool_of(384, 240), out, code="setmaxnreg.pool-exceeded", schedule=schedule)
    assert f.strength == "error" and f.data["pool"] == 384 * 168
    assert (out == 0).any()  # somebody never got its registers


def test_one_cta_group_per_kernel() -> None:
    @T.prim_func
    def kernel(OUT: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([2])
        T.warp_id([1])
        rank = T.cta_id_in_cluster([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        slot = pool.alloc((1,), "uint32")
        pool.commit()
        T.ptx["tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), T.uint32(32))
        T.cuda.cluster_sync()
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], T.uint32(32))
        OUT[rank * 32 + lane] = T.float32(1)

    (f,) = findings(kernel, floats(64), code="tcgen05.mixed-cta-group")
    assert f.strength == "error" and len(f.locations) == 2
