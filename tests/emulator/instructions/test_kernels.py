"""Whole kernels around one family of instructions each, under every schedule."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import emulator
from emulator.host import HostTensorMap
from emulator.machine.tensor_map import TensorMap
from kernels import instruction_kernels as kernels

SCHEDULES = [("late", 0), ("eager", 0), ("random", 1), ("random", 2)]
every_schedule = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES, ids=lambda x: str(x))
_compiled: dict[tuple, emulator.Kernel] = {}


def kernel(name, *args, arch="sm_100a"):
    key = (name, args, arch)
    if key not in _compiled:
        _compiled[key] = emulator.compile(getattr(kernels, name)(*args), arch)
    return _compiled[key]


@every_schedule
@pytest.mark.parametrize("rows", [0, 5, 16])
def test_warp_mma(schedule, seed, rows):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 16)).astype(np.float16), rng.standard_normal((8, 16)).astype(np.float16)
    d = np.zeros((16, 8), np.float32)
    run = kernel("warp_mma").run(a, b, d, rows, schedule=schedule, seed=seed)
    want = a.astype(np.float32) @ b.astype(np.float32).T
    want[rows:] = 0
    assert run.ok and np.allclose(d, want, atol=1e-5)
    assert run.counters["mma.sync"] == 1 and run.counters["ldmatrix"] == 2


@every_schedule
def test_histogram_and_the_last_cta(schedule, seed):
    x = np.random.default_rng(1).integers(0, 10, 1024).astype(np.int32)
    h, done = np.zeros(11, np.uint32), np.zeros(1, np.uint32)
    run = kernel("histogram", 1024, 10, 4, 64).run(x, h, done, schedule=schedule, seed=seed)
    assert run.ok
    assert h[:10].tolist() == np.bincount(x, minlength=10).tolist()
    assert h[10] == 1024 and done[0] == 4


@every_schedule
def test_ctas_pass_a_flag_on(schedule, seed):
    flag, total = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    run = kernel("relay", 6).run(flag, total, schedule=schedule, seed=seed)
    assert run.ok
    assert (flag[0], total[0]) == (6, 15)


def test_a_flag_that_never_comes_is_a_deadlock():
    flag, total = np.full(1, 99, np.uint32), np.zeros(1, np.uint32)
    run = kernel("relay", 6).run(flag, total)
    assert [f.code for f in run.findings] == ["deadlock"] and "polls memory" in run.findings[0].message


@every_schedule
@pytest.mark.parametrize("suspends", [True, False], ids=["try_wait", "test_wait"])
def test_polling_an_mbarrier(schedule, seed, suspends):
    d = np.zeros(32, np.int32)
    run = kernel("polling", suspends).run(d, schedule=schedule, seed=seed)
    assert run.ok
    assert d.tolist() == [3 * k for k in range(32, 64)]


@every_schedule
def test_grid_barrier(schedule, seed):
    x, y = np.zeros(5, np.int32), np.zeros(5, np.int32)
    run = kernel("grid_barrier", 5).run(x, y, schedule=schedule, seed=seed)
    assert run.ok
    assert y.tolist() == [10, 20, 30, 40, 0]


@every_schedule
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_ring_of_ctas(schedule, seed, arch):
    d = np.zeros((4, 32), np.int32)
    run = kernel("neighbours", arch=arch).run(d, schedule=schedule, seed=seed)
    assert run.ok
    assert d.tolist() == [[100 * ((k + 3) % 4) + lane for lane in range(32)] for k in range(4)]


def test_an_assertion_of_the_kernel_names_its_thread():
    x = np.arange(32, dtype=np.int32)
    assert kernel("talking").run(x, 100).ok
    run = kernel("talking").run(x, 20)
    (finding,) = run.findings
    assert finding.code == "assert.failed" and "thread 20" in finding.message
    assert finding.locations[0].file.endswith("instruction_kernels.py")


def test_printf_formats_like_c():
    from emulator.instructions.cuda import format_c

    assert format_c(
        "thread %d holds %u (%.1f%%) %s %x %5.2e %lld", [1, 7, 12.5, "ok", 255, 0.001, 1 << 40]
    ) == ("thread 1 holds 7 (12.5%) ok ff 1.00e-03 1099511627776")


@every_schedule
def test_votes_of_the_cta_and_the_warp(schedule, seed):
    x = np.arange(128, dtype=np.int32)
    y = np.zeros((128, 4), np.int64)
    assert kernel("votes").run(x, y, schedule=schedule, seed=seed).ok
    for tx in range(128):
        warp = x[tx // 32 * 32 :][:32]
        ballot = sum(1 << k for k in range(32) if warp[k] > 5)
        assert y[tx].tolist() == [0, 1, ballot, int(warp.sum())]


@every_schedule
@pytest.mark.parametrize("n", [0, 20, 32, 64])
def test_threads_that_return_early(schedule, seed, n):
    d = np.full(64, -1, np.int32)
    run = kernel("early_exit").run(d, n, schedule=schedule, seed=seed)
    assert run.ok
    assert d.tolist() == list(range(n)) + [-1] * (64 - n)


def parting_lane(x: int, row: list[int], n: int, tx: int) -> None:
    """One thread of ``parting_lanes``."""
    acc = x
    for i in range(n):
        if acc % 5 == 1:
            continue
        for j in range(3):
            acc = (acc * 3 + i + j) % 1009
            if acc % 7 == 2:
                break
            row[0] += 1
        if acc % 11 == 3:
            break
        acc += 1
    row[1] = acc
    k = 0
    while k < x % 6:
        k += 1
        if k == 2:
            continue
        if acc % 13 == 0:
            break
        if (acc + k) % 17 == 5:
            row[2] = 1000 + k
            return
        acc = (acc * 5 + k) % 1009
    row[2] = acc
    if tx >= 64:
        if tx // 32 == 3:
            return
        row[3] = acc + 1
        if x > 50:
            return
        row[3] = acc + 2
    row[3] += 5


@every_schedule
@pytest.mark.parametrize("n", [0, 1, 6])
def test_lanes_that_leave_loops_and_the_kernel(schedule, seed, n):
    x = np.random.default_rng(n).integers(0, 100, 128).astype(np.int32)
    d = np.zeros((128, 4), np.int32)
    assert kernel("parting_lanes").run(x, d, n, schedule=schedule, seed=seed).ok
    for tx in range(128):
        row = [0, 0, 0, 0]
        parting_lane(int(x[tx]), row, n, tx)
        assert d[tx].tolist() == row


def test_packed_elements():
    x = np.random.default_rng(0).standard_normal((64, 2)).astype(ml_dtypes.bfloat16)
    d = np.zeros(64, np.uint32)
    assert kernel("packed_elements").run(x.view(np.uint32).ravel(), d).ok
    got = d.view(ml_dtypes.bfloat16).reshape(64, 2)
    assert (got[:, 0] == x[:, 0] * x[:, 1]).all() and (got[:, 1] == x[:, 1]).all()


@every_schedule
def test_a_map_that_is_copied_to_memory_and_changed(schedule, seed):
    x, d = np.arange(512, dtype=np.float32).reshape(16, 32), np.zeros((8, 32), np.float32)
    bytes_ = np.zeros(256, np.int8)
    start = -bytes_.ctypes.data % 128
    tensor_map = TensorMap("float32", (32, 16), (128,), (32, 8))
    run = kernel("map_in_memory").run(
        HostTensorMap(tensor_map, x), x, bytes_[start : start + 128], d, 5, schedule=schedule, seed=seed
    )
    assert run.ok, run.findings
    assert (d[:5] == x[4:9]).all() and not d[5:].any(), "rows beyond the new extent read as zero"


def test_a_map_that_starts_inside_a_tensor():
    x, d = np.arange(128, dtype=np.float32).reshape(8, 16), np.zeros((8, 8), np.float32)
    assert kernel("map_into_the_middle").run(x, d).ok
    assert (d == x[:, 8:]).all()


@every_schedule
def test_every_tile_is_done_once(schedule, seed):
    d = np.zeros((9, 2), np.int32)
    run = kernel("work_stealing", 9).run(d, schedule=schedule, seed=seed)
    assert run.ok
    assert d[:, 0].tolist() == [1] * 9
    assert run.counters["clusterlaunchcontrol.try_cancel"] >= 9


def run_wgmma(schedule="late", seed=0, **options):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 48)).astype(np.float16) for _ in range(2))
    d = np.zeros((64, 64), np.float32)
    built = emulator.compile(kernels.warpgroup_mma(3, **options), "sm_90a")
    run = built.run(a, b, d, schedule=schedule, seed=seed)
    return run, np.abs(d - a.astype(np.float32) @ b.astype(np.float32).T).max()


@every_schedule
def test_warpgroup_mma(schedule, seed):
    run, error = run_wgmma(schedule, seed)
    assert run.ok and error < 1e-4
    assert run.counters["flops.wgmma"] == 2 * 64 * 64 * 48


def test_accumulators_read_before_wait_group_are_poison():
    _, error = run_wgmma(wait=False)
    assert not error < 1


def test_wgmma_without_its_fence_is_reported():
    run, error = run_wgmma(fence=False)
    assert [f.code for f in run.findings] == ["wgmma.no-fence"] and error < 1e-4
    assert run.findings[0].locations[0].file.endswith("instruction_kernels.py")
