"""cp.async, atomics, st.async, cluster launch control and wgmma: asynchrony, order and memory effects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import DeviceFault
from emulator.instructions import clc

from .conftest import Bench, op

# ---------------------------------------------------------------------------------------------- cp.async


def copier(bench, size=16, src_size=True):
    name = f"cp_async_{'cg' if size == 16 else 'ca'}{'_src_size' if src_size else ''}"
    return op(name, "async", "cg" if size == 16 else "ca", "shared", "global")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 16), min_size=32, max_size=32), st.sampled_from([4, 8, 16]))
def test_cp_async_fills_the_rest_with_zeros(sizes, size):
    bench = Bench(1)
    data = np.random.default_rng(1).integers(1, 256, 1024, dtype=np.uint8)
    base = bench.machine.memory.add("x", data).base
    sizes = np.minimum(sizes, size)
    source = np.arange(32) * size
    copier(bench, size)(bench.t, bench.shared(source), base + source, size, sizes)
    assert (bench.smem(np.uint8)[: 32 * size] == 0xFF).all(), "nothing arrives before it is waited for"
    op("cp_async_wait_all")(bench.t)
    got = bench.smem(np.uint8)[: 32 * size].reshape(32, size)
    for lane in range(32):
        n = int(sizes[lane])
        assert got[lane].tolist() == data[lane * size : lane * size + n].tolist() + [0] * (size - n)


def test_cp_async_groups_complete_oldest_first():
    bench = Bench(2)
    data = np.arange(256, dtype=np.uint32)
    base = bench.machine.memory.add("x", data).base
    copy, commit, wait = copier(bench, src_size=False), op("cp_async_commit_group"), op("cp_async_wait_group")
    for group in range(3):
        address = bench.shared(np.arange(64) * 16 + 1024 * group)
        copy(bench.t, address, base + (np.arange(64) * 16) % 1024, 16)
        commit(bench.t)
    arrived = lambda g: bool((bench.smem(np.uint32)[256 * g : 256 * g + 256] == data).all())  # noqa: E731
    wait(bench.t, 2)
    assert [arrived(g) for g in range(3)] == [True, False, False]
    wait(bench.t, 1)
    assert [arrived(g) for g in range(3)] == [True, True, False]
    wait(bench.t, 0)
    assert [arrived(g) for g in range(3)] == [True, True, True]


def test_a_wait_does_not_cover_another_warps_copies():
    bench = Bench(2)
    base = bench.machine.memory.add("x", np.arange(64, dtype=np.uint32)).base
    copy = copier(bench, 4, src_size=False)
    for w in range(2):
        t = bench.threads(w)
        copy(t, bench.shared(np.arange(32) * 4 + 128 * w), base + np.arange(32) * 4 + 128 * w, 4)
        op("cp_async_commit_group")(t)
    op("cp_async_wait_group")(bench.threads(1), 0)
    assert (bench.smem(np.uint32)[:32] == 0xFFFFFFFF).all()
    assert (bench.smem(np.uint32)[32:64] == np.arange(32, 64)).all()


def test_uncommitted_copies_are_not_waited_for():
    bench = Bench(1)
    base = bench.machine.memory.add("x", np.arange(64, dtype=np.uint32)).base
    copy = copier(bench, 4, src_size=False)
    copy(bench.t, bench.shared(np.arange(32) * 4), base + np.arange(32) * 4, 4)
    op("cp_async_wait_group")(bench.t, 0)
    assert (bench.smem(np.uint32)[:32] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("noinc", ["", "noinc"])
def test_cp_async_arrives_at_an_mbarrier(noinc):
    bench = Bench(1)
    bar = bench.barrier(4096, 32 if noinc else 1)
    base = bench.machine.memory.add("x", np.arange(64, dtype=np.uint32)).base
    copier(bench, 4, src_size=False)(bench.t, bench.shared(np.arange(32) * 4), base + np.arange(32) * 4, 4)
    op("cp_async_mbarrier_arrive", "async", "mbarrier", "arrive", noinc, "shared", "b64")(
        bench.t, bench.shared(4096)
    )
    assert bar.generation == 0
    bench.machine.finish()
    if noinc:
        assert bar.generation == 1
    else:  # the pending count went up by 32 and down again: the arrival of init is still missing
        assert (bar.generation, bar.pending) == (0, 1)
    assert (bench.smem(np.uint32)[:32] == np.arange(32)).all()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"size": 12}, "cp.async.bad-size"), ({"shift": 4}, "smem.misaligned"), ({"source": 2}, "gmem.misaligned"),
        ({"source": 1 << 20}, "gmem.out-of-bounds"), ({"src_size": 20}, "cp.async.bad-size"),
    ],
)  # fmt: skip
def test_cp_async_faults(change, code):
    bench = Bench(1)
    base = bench.machine.memory.add("x", np.zeros(1024, np.uint8)).base
    address = bench.shared(np.arange(32) * 16 + change.get("shift", 0))
    with pytest.raises(DeviceFault) as fault:
        copier(bench)(
            bench.t,
            address,
            base + np.arange(32) * 16 + change.get("source", 0),
            change.get("size", 16),
            change.get("src_size", 16),
        )
    assert fault.value.code == code


# ---------------------------------------------------------------------------------------------- atomics

lanes = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 0xFFFFFFFF), st.booleans()), min_size=64, max_size=64
).filter(lambda r: any(x[2] for x in r))


def model(operation, old, value, kind):
    if kind == "s32":
        old, value = (x - (1 << 32) if x >> 31 else x for x in (old, value))
    return {
        "add": lambda: old + value, "and": lambda: old & value, "or": lambda: old | value, "xor": lambda: old ^ value,
        "min": lambda: min(old, value), "max": lambda: max(old, value), "inc": lambda: 0 if old >= value else old + 1,
        "dec": lambda: value if old == 0 or old > value else old - 1,
    }[operation]() & 0xFFFFFFFF  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    lanes,
    st.sampled_from(["add", "and", "or", "xor", "min", "max", "inc", "dec"]),
    st.sampled_from(["u32", "s32", "b32"]),
    st.sampled_from(["global", "shared"]),
)
def test_atomics_of_one_warp_take_turns(rows, operation, kind, space):
    kind = (
        "b32"
        if operation in ("and", "or", "xor")
        else "u32"
        if operation in ("inc", "dec") or kind == "b32"
        else kind
    )
    bench = Bench(2)
    start = np.array([0, 1, 5, 0xFFFFFFFF, 0x80000000, 7, 100, 3], np.uint32)
    memory = start.copy()
    if space == "shared":
        bench.smem(np.uint32)[:8] = start
        base, memory = bench.shared(0), bench.smem(np.uint32)[:8]
    else:
        base = bench.machine.memory.add("x", memory).base
    index, value, active = (np.array(c) for c in zip(*rows, strict=True))
    mask = active.astype(bool)
    t = bench.threads(0, 1, mask=mask)
    operand = value if kind != "s32" else value.astype(np.uint32).view(np.int32).astype(np.int64)
    old = op("atom", "relaxed", "gpu", space, operation, "", kind)(t, base + 4 * index, operand)
    want, returned = start.tolist(), {}
    for lane in range(64):
        if mask[lane]:
            k = index[lane]
            returned[lane] = want[k]
            want[k] = model(operation, want[k], int(value[lane]), kind)
    assert memory.tolist() == want
    assert all(int(old[lane]) & 0xFFFFFFFF == v for lane, v in returned.items())


@settings(max_examples=30, deadline=None)
@given(lanes)
def test_red_equals_atom(rows):
    index, value, active = (np.array(c) for c in zip(*rows, strict=True))
    results = []
    for name in ("atom", "red", "atom_bitbucket"):
        bench = Bench(2)
        x = np.arange(8, dtype=np.uint32)
        base = bench.machine.memory.add("x", x).base
        op(name, "relaxed", "gpu", "global", "add", "", "u32")(
            bench.threads(0, 1, mask=active.astype(bool)), base + 4 * index, value
        )
        results.append(x.tolist())
    assert results[0] == results[1] == results[2]


def test_compare_and_swap_lets_one_lane_win():
    bench = Bench(1)
    x = np.zeros(1, np.uint32)
    base = bench.machine.memory.add("x", x).base
    old = op("atom_cas", "relaxed", "gpu", "global", "cas", "b32")(bench.t, base, 0, np.arange(32) + 1)
    assert x[0] == 1 and old.tolist() == [0] + [1] * 31


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_float_atomics(kind, dtype):
    bench = Bench(1)
    x = np.zeros(4, dtype)
    base = bench.machine.memory.add("x", x).base
    values = (np.arange(32) + 0.5).astype(dtype)
    op("red", "relaxed", "gpu", "global", "add", "", kind)(
        bench.t, base + (np.arange(32) % 4) * dtype().itemsize, values
    )
    assert x.tolist() == [sum(values[k::4]) for k in range(4)]


def test_packed_and_vector_atomics():
    bench = Bench(1)
    x = np.zeros(4, np.float16)
    base = bench.machine.memory.add("x", x).base
    pair = int(np.array([1.5, 2.5], np.float16).view(np.uint32)[0])
    op("red_half", "relaxed", "gpu", "global", "add", "noftz", "", "f16x2")(bench.t, base, pair)
    assert x.tolist() == [48, 80, 0, 0]
    y = np.zeros(4, np.float32)
    base = bench.machine.memory.add("y", y).base
    old = op("atom_vec_f32", "relaxed", "gpu", "global", "add", "", "v4", "f32")(
        bench.t, base, tuple(np.full(32, k, np.float32) for k in range(4))
    )
    assert y.tolist() == [0, 32, 64, 96]
    assert old[3].tolist() == [3 * k for k in range(32)]


# ---------------------------------------------------------------------------------------------- st.async, red.async, ranks


def test_st_async_writes_there_and_completes_bytes_there():
    bench = Bench(1, ctas=2)
    bar = bench.barrier(512, 1, rank=1)
    bar.update(1, 128)
    t = bench.threads(0)
    op("st_async", "", "shared::cluster", "mbarrier::complete_tx::bytes", "b32")(
        t, bench.shared(np.arange(32) * 4, rank=1), np.arange(32) + 7, bench.shared(512, rank=1)
    )
    assert bar.generation == 0 and (bench.smem(np.uint32, 1)[:32] == 0xFFFFFFFF).all()
    bench.machine.finish()
    assert bar.generation == 1
    assert bench.smem(np.uint32, 1)[:32].tolist() == list(range(7, 39))
    assert (bench.smem(np.uint32, 0)[:32] == 0xFFFFFFFF).all()


def test_st_async_vectors_and_one_lane():
    bench = Bench(1, ctas=2)
    bar = bench.barrier(512, 1, rank=1)
    bar.update(0, 16)
    t = bench.threads(0, lane=3)
    op("st_async_vec", "", "shared::cluster", "mbarrier::complete_tx::bytes", "v4", "u32")(
        t, bench.shared(64, rank=1), (1, 2, 3, 4), bench.shared(512, rank=1)
    )
    bench.machine.finish()
    assert bench.smem(np.uint32, 1)[16:20].tolist() == [1, 2, 3, 4] and bar.tx == 0


def test_st_async_needs_its_barrier_in_the_same_cta():
    bench = Bench(1, ctas=2)
    bench.barrier(512, 1, rank=0)
    with pytest.raises(DeviceFault) as fault:
        op("st_async", "", "shared::cluster", "mbarrier::complete_tx::bytes", "b32")(
            bench.threads(0, lane=0), bench.shared(0, rank=1), 1, bench.shared(512, rank=0)
        )
    assert fault.value.code == "cluster.other-barrier"


def test_red_async_adds_in_the_other_cta():
    bench = Bench(1, ctas=2)
    bar = bench.barrier(512, 1, rank=1)
    bar.update(1, 128)
    bench.smem(np.uint32, 1)[0] = 5
    op("red_async", "relaxed", "cluster", "shared::cluster", "mbarrier::complete_tx::bytes", "add", "u32")(
        bench.threads(0), bench.shared(0, rank=1), 2, bench.shared(512, rank=1)
    )
    bench.machine.finish()
    assert bench.smem(np.uint32, 1)[0] == 5 + 64 and bar.generation == 1


def test_ranks_of_addresses():
    bench = Bench(1, ctas=4)
    t = bench.threads(0)
    mapped = op("mapa_u32", "shared::cluster", "u32")(t, bench.shared(48), np.arange(32) % 4)
    assert op("getctarank", "shared::cluster", "u32")(t, mapped).tolist() == [k % 4 for k in range(32)]
    assert (mapped & 0xFFFFFF == bench.shared(48)).all()


# ---------------------------------------------------------------------------------------------- cluster launch control


def request(bench, lane=0):
    op(
        "clusterlaunchcontrol_try_cancel",
        "try_cancel",
        "async",
        "shared::cta",
        "mbarrier::complete_tx::bytes",
        "multicast::cluster::all",
        "b128",
    )(bench.threads(0, lane=lane), bench.shared(64), bench.shared(512))


def test_try_cancel_hands_over_every_waiting_cluster_once():
    bench = Bench(1, ctas=2, num_clusters=4)
    bars = [bench.barrier(512, 1, rank=r) for r in range(2)]
    got = []
    for _ in range(4):
        for bar in bars:
            bar.update(1, 16)
        request(bench)
        assert bars[0].generation == bars[1].generation == len(got)
        bench.machine.finish()
        responses = [int.from_bytes(bytes(bench.smem(np.uint8, r)[64:80]), "little") for r in range(2)]
        assert responses[0] == responses[1]
        got.append(clc.decode(responses[0]))
    assert got == [(2, 0, 0), (4, 0, 0), (6, 0, 0), None]
    assert bench.machine.cancelled == {1, 2, 3} and bench.machine.next_cluster == 4
    with pytest.raises(DeviceFault) as fault:
        request(bench)
    assert fault.value.code == "clc.after-refusal"


def test_query_cancel_decodes():
    bench = Bench(1)
    granted = np.array([clc.encode((6, 1, 2))] * 32, dtype=object)
    refused = clc.encode(None)
    canceled = op(
        "clusterlaunchcontrol_query_cancel_is_canceled", "query_cancel", "is_canceled", "pred", "b128"
    )
    assert canceled(bench.t, granted).tolist() == [1] * 32
    assert canceled(bench.threads(0, lane=1), refused) == 0
    for axis, value in zip("xyz", (6, 1, 2), strict=True):
        first = op(
            "clusterlaunchcontrol_query_cancel_get_first_ctaid",
            "query_cancel",
            f"get_first_ctaid::{axis}",
            "b32",
            "b128",
        )
        assert first(bench.t, 0, granted).tolist() == [value] * 32
    with pytest.raises(DeviceFault) as fault:
        first(bench.threads(0, lane=0), 0, refused)
    assert fault.value.code == "clc.not-canceled"
    with pytest.raises(DeviceFault) as fault:
        canceled(bench.threads(0, lane=0), (1 << 128) - 1)
    assert fault.value.code == "clc.bad-response"


# ---------------------------------------------------------------------------------------------- wgmma


def setup_wgmma(n=8):
    from emulator.machine.smem_descriptor import SmemDescriptor
    from emulator.machine.swizzle import SwizzleMode

    bench = Bench(4)
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((64, 16)).astype(np.float16), rng.standard_normal((n, 16)).astype(np.float16)
    a_desc = SmemDescriptor.make(bench.shared(0), 128, 256, SwizzleMode.NONE, wgmma=True).encode()
    b_desc = SmemDescriptor.make(bench.shared(8192), 128, 256, SwizzleMode.NONE, wgmma=True).encode()
    for matrix, start in ((a, 0), (b, 4096)):  # 8x8 core matrices, two along K
        for r in range(matrix.shape[0]):
            for k in range(16):
                bench.smem(np.float16)[start + r // 8 * 128 + k // 8 * 64 + r % 8 * 8 + k % 8] = matrix[r, k]
    multiply = op("wgmma_f16_ss", "mma_async", "sync", "aligned", f"m64n{n}k16", "f32", "f16", "f16")
    d = np.zeros((n // 2, 128), np.uint32)
    return bench, multiply, (a_desc, b_desc), d, a.astype(np.float32) @ b.astype(np.float32).T


def accumulators(d):
    """D by the figure of the PTX ISA: lane 4 g + q of warp w holds rows 16 w + g (+ 8), columns 8 b + 2 q (+ 1)."""
    x = d.view(np.float32)
    out = np.zeros((64, 2 * len(d)), np.float32)
    for register in range(len(d)):
        block, r, j = register // 4, register // 2 % 2, register % 2
        for lane in range(128):
            w, g, q = lane // 32, lane % 32 // 4, lane % 4
            out[16 * w + g + 8 * r, 8 * block + 2 * q + j] = x[register, lane]
    return out


def test_wgmma_results_appear_at_wait_group():
    bench, multiply, (a, b), d, product = setup_wgmma()
    other = np.zeros_like(d)
    op("wgmma_fence", "fence", "sync", "aligned")(bench.t)
    commit, wait = (
        op("wgmma_commit_group", "commit_group", "sync", "aligned"),
        op("wgmma_wait_group", "wait_group", "sync", "aligned"),
    )
    multiply(bench.t, d, a, b, 0, 1, 1, 0, 0)
    multiply(bench.t, d, a, b, 1, 1, 1, 0, 0)
    commit(bench.t)
    multiply(bench.t, other, a, b, 0, 1, 1, 0, 0)
    commit(bench.t)
    assert (d == 0xFFFFFFFF).all() and (other == 0xFFFFFFFF).all()
    wait(bench.t, 1)
    assert np.allclose(accumulators(d), 2 * product, atol=1e-3)
    assert (other == 0xFFFFFFFF).all()
    wait(bench.t, 0)
    assert np.allclose(accumulators(other), product, atol=1e-3)
    assert not bench.machine.reports


def test_wgmma_reads_shared_memory_late():
    """An operand that is overwritten before the wait changes the result: the emulator shows the race."""
    bench, multiply, (a, b), d, product = setup_wgmma()
    op("wgmma_fence", "fence", "sync", "aligned")(bench.t)
    multiply(bench.t, d, a, b, 0, 1, 1, 0, 0)
    bench.smem(np.float16)[:4096] = 0
    bench.machine.finish()
    assert not np.allclose(accumulators(d), product, atol=1e-3)


def test_wgmma_accumulates_over_waits_and_groups():
    bench, multiply, (a, b), d, product = setup_wgmma(16)
    op("wgmma_fence", "fence", "sync", "aligned")(bench.t)
    for k in range(3):
        multiply(bench.t, d, a, b, int(k > 0), 1, 1, 0, 0)
        op("wgmma_commit_group", "commit_group", "sync", "aligned")(bench.t)
        op("wgmma_wait_group", "wait_group", "sync", "aligned")(bench.t, 0)
    assert np.allclose(accumulators(d), 3 * product, atol=1e-3)


def test_wgmma_without_a_fence_is_reported_once():
    bench, multiply, (a, b), d, _ = setup_wgmma()
    multiply(bench.t, d, a, b, 0, 1, 1, 0, 0)
    multiply(bench.t, d, a, b, 1, 1, 1, 0, 0)
    assert bench.machine.reports == [("wgmma.no-fence", "race")]


def test_wgmma_rejects_a_descriptor_outside_shared_memory():
    bench, multiply, (a, b), d, _ = setup_wgmma()
    bad = a & ~0x3FFF | 0x3FFF
    with pytest.raises(DeviceFault) as fault:
        multiply(bench.t, d, bad, b, 0, 1, 1, 0, 0)
    assert fault.value.code == "wgmma.bad-descriptor"


# ---------------------------------------------------------------------------------------------- lane by lane

# instruction, modifiers, registers per lane, type, whether it returns registers
ACCESSES = [
    ("st", ("shared", "b32"), 1, np.uint32, False), ("st", ("global", "b32"), 1, np.uint32, False), ("st", ("shared", "f32"), 1, np.float32, False),
    ("st", ("shared", "b16"), 1, np.uint16, False), ("st", ("global", "b64"), 1, np.uint64, False),
    ("st_vec", ("shared", "v2", "b32"), 2, np.uint32, False), ("st_vec", ("shared", "v4", "f32"), 4, np.float32, False),
    ("st_vec", ("global", "v4", "b32"), 4, np.uint32, False), ("st_vec", ("global", "v2", "b64"), 2, np.uint64, False),
    ("ld", ("shared", "b32"), 0, np.uint32, True), ("ld", ("global", "f32"), 0, np.float32, True), ("ld_vec", ("shared", "v4", "b32"), 0, np.uint32, True),
    ("ld_vec", ("global", "v2", "b32"), 0, np.uint32, True), ("atom", ("shared", "add", "u32"), 1, np.uint32, True),
    ("atom_exch", ("global", "exch", "b32"), 1, np.uint32, True), ("atom", ("global", "add", "f32"), 1, np.float32, True), ("red", ("shared", "max", "u32"), 1, np.uint32, False),
    ("red", ("global", "add", "u32"), 1, np.uint32, False), ("red", ("shared", "inc", "u32"), 1, np.uint32, False), ("atom_cas", ("shared", "cas", "b32"), 2, np.uint32, True),
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(ACCESSES),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "some", "one"]),
    st.integers(0, 1 << 30),
)
def test_a_masked_access_is_one_access_per_active_lane(access, one_address, one_value, masked, seed):
    name, tokens, registers, dtype, returns = access
    rng = np.random.default_rng(seed)
    mask = None if masked is None else rng.random(64) < 0.4
    if masked == "one":
        mask = np.arange(64) == int(rng.integers(64))
    elif mask is not None:
        mask[int(rng.integers(64))] = True
    slot = rng.integers(0, 24, 64)
    slot = int(slot[0]) if one_address else slot
    values = []
    for _ in range(registers):
        v = rng.integers(0, 30, 64)
        v = v.astype(dtype) if dtype in (np.float32, np.uint64) else v
        values.append((v[0] if dtype in (np.float32, np.uint64) else int(v[0])) if one_value else v)
    content = rng.integers(0, 30, 24 * 16 // np.dtype(dtype).itemsize).astype(dtype)
    together, apart = Bench(2), Bench(2)
    fn, memory, results = op(name, *tokens), [], []
    for bench in (together, apart):
        bench.smem(np.uint8)[: 24 * 16] = content.view(np.uint8)
        array = content.copy()
        base = bench.machine.memory.add("x", array).base
        address = bench.shared(16 * slot) if "shared" in tokens else base + 16 * slot
        memory.append((bench.smem(np.uint8)[: 24 * 16], array))

        def call(t, lane, address=address):
            at = lambda x: x[lane] if lane is not None and isinstance(x, np.ndarray) else x  # noqa: E731
            where = address if lane is None or not isinstance(address, np.ndarray) else int(address[lane])
            operands = [at(v) for v in values]
            return fn(
                t, where, *([operands] if "vec" in name else operands), *([] if "cas" in name else [()])
            )

        if bench is together:
            results.append(call(bench.t if mask is None else bench.t.masked(mask), None))
        else:
            results.append(
                {k: call(bench.threads(0, 1, lane=k), k) for k in range(64) if mask is None or mask[k]}
            )
    assert (memory[0][0] == memory[1][0]).all() and (memory[0][1] == memory[1][1]).all()
    if returns:
        for k, want in results[1].items():
            rows = results[0] if "vec" in name else [results[0]]
            got = [r[k] if isinstance(r, np.ndarray) and r.ndim else r for r in rows]
            assert np.array_equal(np.asarray(got).ravel(), np.asarray(want).ravel())
