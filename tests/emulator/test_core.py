"""The emulator's core: translation of statements and expressions, scheduling, hangs, launch errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm.script import tirx as T

import emulator
from emulator.checks.bank_conflicts import shared_conflict


def one(findings, code):
    """The only finding with this code."""
    found = [f for f in findings if f.code == code]
    assert len(found) == 1, [f.code for f in findings]
    return found[0]


# ---------------------------------------------------------------------------------------------- expressions


def add_kernel(n, threads):
    @T.prim_func
    def add(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32"), D: T.Buffer((n,), "float32")):
        T.device_entry()
        bx = T.cta_id([(n + threads - 1) // threads])
        tx = T.thread_id([threads])
        i = T.meta_var(bx * threads + tx)
        if i < n:
            D[i] = A[i] + B[i]

    return add


@pytest.mark.parametrize("n", [1, 31, 32, 100, 1000])
def test_masked_tail(n):
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((2, n)).astype(np.float32)
    d = np.zeros(n, np.float32)
    run = emulator.run(add_kernel(n, 128), a, b, d)
    assert run.findings == ()
    np.testing.assert_array_equal(d, a + b)


def test_missing_mask_is_out_of_bounds():
    n = 100

    @T.prim_func
    def add(A: T.Buffer((n,), "float32"), D: T.Buffer((n,), "float32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([128])
        D[tx] = A[tx] + T.float32(1)

    run = emulator.run(add, np.zeros(n, np.float32), np.zeros(n, np.float32))
    finding = one(run.findings, "gmem.out-of-bounds")
    assert finding.strength == "error"
    assert "`A`" in finding.message
    assert finding.locations[0].file == __file__


def test_integer_semantics():
    """Floor division, C shifts, unsigned wrap and narrow casts, per lane and uniform."""

    @T.prim_func
    def ints(A: T.Buffer((64,), "int32"), D: T.Buffer((64, 8), "int32"), U: T.Buffer((64, 4), "uint32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        D[tx, 0] = A[tx] // 7
        D[tx, 1] = A[tx] % 7
        D[tx, 2] = T.Cast("int32", T.Cast("int8", A[tx]))
        D[tx, 3] = A[tx] << 3
        D[tx, 4] = A[tx] >> 2
        D[tx, 5] = T.max(A[tx], 5) - T.min(A[tx], -5)
        D[tx, 6] = T.if_then_else(A[tx] > 0, A[tx], -A[tx])
        D[tx, 7] = A[tx] ^ 12345
        U[tx, 0] = T.Cast("uint32", A[tx]) * T.uint32(2654435761)
        U[tx, 1] = T.Cast("uint32", A[tx]) - T.uint32(10)
        U[tx, 2] = T.Cast("uint32", A[tx]) >> T.uint32(5)
        U[tx, 3] = T.Cast("uint32", A[tx]) << T.uint32(29)

    a = np.random.default_rng(1).integers(-(2**27), 2**27, 64, dtype=np.int32)
    d, u = np.zeros((64, 8), np.int32), np.zeros((64, 4), np.uint32)
    run = emulator.run(ints, a, d, u)
    assert run.findings == ()
    ua = a.astype(np.uint32)
    expected = [
        a // 7,
        a % 7,
        a.astype(np.int8).astype(np.int32),
        a << 3,
        a >> 2,
        np.maximum(a, 5) - np.minimum(a, -5),
        np.abs(a),
        a ^ 12345,
    ]
    np.testing.assert_array_equal(d, np.stack(expected, axis=1))
    np.testing.assert_array_equal(
        u,
        np.stack(
            [ua * np.uint32(2654435761), ua - np.uint32(10), ua >> np.uint32(5), ua << np.uint32(29)], axis=1
        ),
    )


def test_lanes_leave_a_loop_at_different_times():
    """Collatz steps per lane: a while loop whose lanes finish one by one."""

    @T.prim_func
    def collatz(A: T.Buffer((64,), "int32"), D: T.Buffer((64,), "int32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        x: T.int32 = A[tx]
        steps: T.int32 = 0
        while x != 1:
            if x % 2 == 0:
                x = x // 2
            else:
                x = 3 * x + 1
            steps = steps + 1
        D[tx] = steps

    a = np.arange(1, 65, dtype=np.int32)
    d = np.zeros(64, np.int32)
    run = emulator.run(collatz, a, d)

    def slow(x):
        n = 0
        while x != 1:
            x, n = (x // 2 if x % 2 == 0 else 3 * x + 1), n + 1
        return n

    assert run.findings == ()
    assert d.tolist() == [slow(x) for x in range(1, 65)]


def test_loop_bound_that_differs_by_lane():
    @T.prim_func
    def triangle(D: T.Buffer((64,), "int32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        total: T.int32 = 0
        for i in T.serial(tx):
            total = total + i
        D[tx] = total

    d = np.zeros(64, np.int32)
    assert emulator.run(triangle, d).findings == ()
    assert d.tolist() == [i * (i - 1) // 2 for i in range(64)]


def test_local_array_with_an_index_per_lane():
    @T.prim_func
    def permute(
        A: T.Buffer((32, 8), "float16"), P: T.Buffer((32,), "int32"), D: T.Buffer((32, 8), "float16")
    ):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([32])
        row = T.alloc_local((8,), "float16")
        for i in T.serial(8):
            row[(i + P[tx]) % 8] = A[tx, i]
        for i in T.serial(8):
            D[tx, i] = row[i] * T.float16(2)

    rng = np.random.default_rng(0)
    a, p = rng.standard_normal((32, 8)).astype(np.float16), rng.integers(0, 8, 32).astype(np.int32)
    d = np.zeros_like(a)
    assert emulator.run(permute, a, p, d).findings == ()
    np.testing.assert_array_equal(d, np.stack([np.roll(a[i], p[i]) for i in range(32)]) * np.float16(2))


def test_one_thread_writes_what_all_read():
    """A branch taken by one lane, its variables, and shared memory behind a barrier."""

    @T.prim_func
    def share(A: T.Buffer((1,), "float32"), D: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        s = T.alloc_shared((2,), "float32")
        if tx == 33:
            y: T.float32 = A[0]
            for i in T.serial(3):
                y = y * T.float32(2) + T.Cast("float32", i)
            s[1] = y
        T.cuda.cta_sync()
        D[tx] = s[1] + T.Cast("float32", tx)

    d = np.zeros(64, np.float32)
    run = emulator.run(share, np.float32([1.5]), d)
    assert run.findings == ()
    y = 1.5
    for i in range(3):
        y = y * 2 + i
    np.testing.assert_array_equal(d, np.float32(y) + np.arange(64, dtype=np.float32))


def test_missing_sync_is_a_race_on_the_learners_lines():
    @T.prim_func
    def share(D: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([64])
        s = T.alloc_shared((64,), "float32")
        s[tx] = T.Cast("float32", tx)
        D[tx] = s[63 - tx]

    run = emulator.run(share, np.zeros(64, np.float32))
    assert not run.ok
    races = [f for f in run.findings if f.code == "race.smem.write-read"]
    assert races
    first = share_line()
    assert {loc.line for loc in races[0].locations} == {first, first + 1}


def share_line():
    """Line of ``s[tx] = ...`` in the test above."""
    with open(__file__) as f:
        lines = f.read().splitlines()
    return next(i + 1 for i, line in enumerate(lines) if "s[tx] = T.Cast" in line)


# ---------------------------------------------------------------------------------------------- barriers and hangs


def test_sync_in_a_branch_hangs_and_says_so():
    @T.prim_func
    def hang(D: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        if warp == 0:
            T.cuda.cta_sync()
            T.cuda.cta_sync()
        if warp == 1:
            T.cuda.cta_sync()
            T.ptx.bar.sync(3, 64)
        D[warp * 32 + lane] = T.float32(1)

    run = emulator.run(hang, np.zeros(64, np.float32))
    dead = [f for f in run.findings if f.code == "deadlock"]
    assert len(dead) == 2
    assert {name for f in dead for name in f.names} == {"cta_sync", "named barrier[3]"}
    assert all(f.strength == "error" and f.locations for f in dead)


def test_exited_warps_do_not_hold_up_a_barrier():
    @T.prim_func
    def leave(D: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        if warp == 0:
            T.cuda.cta_sync()
            D[lane] = T.float32(1)

    d = np.zeros(64, np.float32)
    run = emulator.run(leave, d)
    assert [f.code for f in run.findings if f.code == "deadlock"] == []
    assert d.tolist() == [1.0] * 32 + [0.0] * 32


def test_partial_warp_at_a_barrier():
    @T.prim_func
    def partial(D: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([32])
        if lane < 5:
            T.cuda.cta_sync()
        D[lane] = T.float32(1)

    run = emulator.run(partial, np.zeros(32, np.float32))
    assert one(run.findings, "warp.divergent").strength == "error"


@pytest.mark.parametrize("aligned", [False, True])
def test_partial_warp_at_a_barrier_with_and_without_aligned(aligned: bool) -> None:
    """barrier without .aligned is legal for part of a warp: no mistake, but not supported."""
    spelling = "barrier.sync.aligned" if aligned else "barrier.sync"

    @T.prim_func
    def partial(D: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([32])
        if lane < 5:
            T.ptx[spelling](T.uint32(1), T.uint32(32))
        D[lane] = T.float32(1)

    if aligned:
        run = emulator.run(partial, np.zeros(32, np.float32))
        assert one(run.findings, "warp.divergent").strength == "error"
    else:
        with pytest.raises(emulator.UnsupportedInstruction, match=r"without \.aligned"):
            emulator.run(partial, np.zeros(32, np.float32))


# ---------------------------------------------------------------------------------------------- launches


def test_wrong_shape_dtype_and_count_use_tvms_own_words():
    kernel = emulator.compile(add_kernel(100, 128))
    good = np.zeros(100, np.float32)
    with pytest.raises(emulator.LaunchError, match=r"shape"):
        kernel.run(good, np.zeros(99, np.float32), good)
    with pytest.raises(emulator.LaunchError, match=r"dtype"):
        kernel.run(good, good.astype(np.float16), good)
    with pytest.raises(emulator.LaunchError, match=r"Expected 3 arguments"):
        kernel.run(good, good)
    with pytest.raises(emulator.LaunchError, match=r"contiguous"):
        kernel.run(good, np.zeros(200, np.float32)[::2], good)


def test_not_a_prim_func():
    with pytest.raises(emulator.LoweringError, match="PrimFunc"):
        emulator.compile("hello")


def test_too_much_shared_memory():
    @T.prim_func
    def big(D: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((60000,), "float32")
        pool.commit()
        s[tx] = T.float32(0)
        D[tx] = s[tx]

    with pytest.raises(emulator.LaunchError, match="227 KiB"):
        emulator.run(big, np.zeros(32, np.float32))


def test_an_empty_grid():
    """Such as that of a builder that divides a size by a tile that is larger."""

    @T.prim_func
    def nothing(D: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([32 // 64])
        tx = T.thread_id([32])
        D[tx] = T.float32(0)

    with pytest.raises(emulator.LaunchError, match=r"the grid has 0 CTAs in x; it needs at least 1"):
        emulator.run(nothing, np.zeros(32, np.float32))


def test_same_seed_same_run():
    kernel = emulator.compile(add_kernel(1000, 128))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 1000)).astype(np.float32)
    runs = []
    for _ in range(2):
        d = np.zeros(1000, np.float32)
        run = kernel.run(a, b, d, schedule="random", seed=7)
        runs.append((d.tobytes(), run.counters, run.findings))
    assert runs[0] == runs[1]


def test_unknown_schedule():
    with pytest.raises(ValueError, match="late, eager, random"):
        emulator.compile(add_kernel(10, 32)).run(np.zeros(10, np.float32), schedule="soon")


# ---------------------------------------------------------------------------------------------- profile


def test_profile_counts_conflicts_and_sectors_on_the_learners_lines():
    """A 32x32 transpose through unpadded shared memory: 32-way conflicts on the column read, whole sectors outside."""

    @T.prim_func
    def transpose(A: T.Buffer((32, 32), "float32"), D: T.Buffer((32, 32), "float32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([32])
        s = T.alloc_shared((32, 32), "float32")
        for i in T.serial(32):
            s[i, tx] = A[i, tx]
        T.cuda.cta_sync()
        for i in T.serial(32):
            D[i, tx] = s[tx, i]

    a = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    d = np.zeros_like(a)
    run = emulator.compile(transpose).run(a, d, profile=True)
    np.testing.assert_array_equal(d, a.T)
    assert run.ok
    shared = sorted((x for x in run.accesses if x.space == "shared"), key=lambda x: x.passes)
    assert [(x.requests, x.passes, x.ideal, x.degree) for x in shared] == [
        (32, 32, 32, 1),
        (32, 1024, 32, 32),
    ]
    assert all(x.per_request == 4 for x in run.accesses if x.space == "global")
    assert run.counters["shared.wavefronts"] == 1056
    lint = one(run.findings, "smem.bank-conflict")
    assert lint.strength == "lint"
    assert lint.locations[0] == shared[1].location
    pattern = shared[1].pattern
    assert pattern is not None and pattern.nbytes == 4 and pattern.lanes == tuple(range(32))
    assert pattern.addresses == tuple(pattern.addresses[0] + 128 * lane for lane in range(32))
    assert pattern.groups == [list(range(32))]


@pytest.mark.parametrize("stride", [16, 32, 64, 128, 144])
def test_profile_counts_the_rows_of_ldmatrix_and_stmatrix(stride: int):
    """Eight rows of a matrix are served together: eight lanes that access 16 bytes. x2 looks at lanes 0 to 15 only."""

    @T.prim_func
    def rows(D: T.Buffer((32,), "uint32")):
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([32])
        s = T.alloc_shared((8 * stride,), "uint32")
        for i in T.serial(stride // 4):
            s[i * 32 + lane] = T.uint32(0)
        T.cuda.warp_sync()
        r = T.alloc_local((4,), "uint32")
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"](
            r[0], r[1], r[2], r[3], s.ptr_to([lane * (stride // 4)])
        )
        T.cuda.warp_sync()
        T.ptx["stmatrix.sync.aligned.m8n8.x2.trans.shared.b16"](s.ptr_to([lane * (stride // 4)]), r[0], r[1])
        D[lane] = r[3]

    run = emulator.compile(rows).run(np.zeros(32, np.uint32), profile=True)
    assert run.ok
    want = shared_conflict(np.arange(8) * stride, 16)
    found = [x for x in run.accesses if x.space == "shared" and x.pattern.nbytes == 16]
    assert [(x.write, x.requests, x.passes, x.ideal, x.degree, len(x.pattern.groups)) for x in found] == [
        (False, 1, 4 * want.wavefronts, 4 * want.ideal, want.degree, 4),
        (True, 1, 2 * want.wavefronts, 2 * want.ideal, want.degree, 2),
    ]


def test_a_strided_access_takes_more_sectors():
    @T.prim_func
    def strided(A: T.Buffer((32 * 32,), "float32"), D: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([32])
        D[tx] = A[tx * 32]

    run = emulator.compile(strided).run(np.zeros(1024, np.float32), np.zeros(32, np.float32), profile=True)
    assert sorted(x.per_request for x in run.accesses) == [4, 32]
    assert one(run.findings, "gmem.uncoalesced").strength == "lint"


def test_a_partly_filled_warp_takes_part_in_barriers():
    @T.prim_func
    def odd(D: T.Buffer((100,), "int32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([100])
        s = T.alloc_shared((100,), "int32")
        s[tx] = tx
        T.cuda.cta_sync()
        D[tx] = s[99 - tx]

    d = np.zeros(100, np.int32)
    run = emulator.run(odd, d)
    assert run.findings == ()
    assert d.tolist() == list(range(99, -1, -1))


def test_no_public_name_is_a_module():
    """An import of emulator.x sets the attribute x, and would hide a function of that name."""
    package = Path(emulator.__file__).parent
    modules = {path.stem for path in package.glob("*.py")} | {path.name for path in package.iterdir()}
    assert not modules & set(emulator.__all__)


def test_tvms_reason_is_told():
    """A pass that fails prints its reason, its name and the whole program: the reason is what helps."""

    @T.prim_func
    def no_threads(D: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([1])
        lane = T.lane_id([32])
        D[lane] = T.float32(1)

    with pytest.raises(
        emulator.LoweringError, match="TVM rejected the kernel: kernel has no thread launch parameters"
    ):
        emulator.compile(no_threads)
