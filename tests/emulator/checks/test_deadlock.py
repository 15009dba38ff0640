"""The autopsy of hangs: causes, who holds up whom, and that a rehearsal leaves no trace."""

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

SCHEDULES = [("late", 0), ("eager", 0), ("random", 1)]


def hang(kernel: Any, *arrays: np.ndarray, schedule: str = "late", seed: int = 0) -> list[Finding]:
    """The deadlock findings of a run, causes first."""
    run = emulator.run(kernel, *arrays, schedule=schedule, seed=seed)
    return [f for f in run.findings if f.code == "deadlock"]


def line_of(text: str) -> int:
    """The line of this file that ends in ``# text``."""
    with open(__file__, encoding="utf-8") as source:
        found = [n for n, line in enumerate(source, 1) if line.rstrip().endswith("# " + text)]
    assert len(found) == 1, text
    return found[0]


def ping_pong(first_phase: int, arrivals: int = 32) -> Any:
    """Warp 0 waits for `free`, then arrives at `full`; warp 1 waits for `full`, then arrives at `free`."""

    @T.prim_func
    def kernel(OUT: T.Buffer((32,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        full = MBarrier(pool, 1)
        free = MBarrier(pool, 1)
        pool.commit()
        full.init(arrivals)
        free.init(32)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        if warp == 0:
            free.wait(0, first_phase)  # waits for free
            full.arrive(0)
        else:
            full.wait(0, 0)  # waits for full
            OUT[lane] = T.float32(1)
            free.arrive(0)  # frees

    return kernel


@pytest.mark.parametrize("schedule, seed", SCHEDULES)
def test_a_wrong_first_phase_is_told_from_a_missing_arrival(schedule: str, seed: int) -> None:
    cause, follows = hang(ping_pong(0), np.zeros(32, np.float32), schedule=schedule, seed=seed)
    assert cause.locations[0].line == line_of("waits for free")
    assert line_of("frees") in [x.line for x in cause.locations]
    assert "comes only after this wait has returned" in cause.message
    assert "start this phase with 1" in cause.fix
    assert cause.names == ("free",) and cause.warps == (0,) and "consequence" not in cause.data
    assert follows.locations[0].line == line_of("waits for full")
    assert follows.data["consequence"] is True
    assert f"gets past mbarrier free (line {cause.locations[0].line})" in follows.message


def test_a_count_that_is_too_high_names_what_has_arrived() -> None:
    (cause,) = hang(ping_pong(1, arrivals=64), np.zeros(32, np.float32))
    assert "phase 0 has seen 32 of 64 arrivals" in cause.message and "(here 32)" in cause.fix


def test_a_rehearsal_changes_neither_memory_nor_counters() -> None:
    out = np.zeros(32, np.float32)
    run = emulator.run(ping_pong(0), out)
    assert (out == 0).all()  # warp 1 stores in the rehearsal only
    assert run.counters.get("st.global", 0) == 0
    assert {f.code for f in run.findings} == {"deadlock"}


def copy(announced: int, threads: int = 1, loads: bool = True, arrives: bool = True) -> Any:
    """A TMA load of 1024 bytes that announces ``announced``."""

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
        if arrives and lane == 0:
            loaded.arrive(0, announced)  # announces
        if loads and lane < threads:
            Tx.copy_async(tile[:, :], IN[:, :], dispatch="tma_auto", mbar=loaded.ptr_to([0]))  # loads
        loaded.wait(0, 0)
        for i in T.serial(16):
            OUT[i // 2, i % 2 * 32 + lane] = tile[i // 2, i % 2 * 32 + lane]

    return kernel


def tiles() -> tuple[np.ndarray, np.ndarray]:
    return np.ones((8, 64), np.float16), np.zeros((8, 64), np.float16)


def test_too_few_bytes_announced() -> None:
    (f,) = hang(copy(1008), *tiles())
    assert "The copies delivered 1024 bytes, expect_tx announced 1008" in f.message and "1024" in f.fix


def test_too_many_bytes_announced() -> None:
    (f,) = hang(copy(2048), *tiles())
    assert "misses 1024 bytes" in f.message
    assert "expect_tx announced 2048 bytes, the copies delivered 1024" in f.message


@pytest.mark.parametrize("announced", [1024, 2048])
def test_every_lane_issues_the_copy(announced: int) -> None:
    run = emulator.run(copy(announced, threads=32), *tiles())
    found = {f.code: f for f in run.findings if f.strength != "lint"}
    many = found["race.smem.many-issuers"]
    assert many.locations[0].line == line_of("loads") and "elect_sync" in many.fix
    assert "32 threads" in many.message and "1024 bytes" in many.message
    early = found["mbarrier.early-completion"]
    assert line_of("loads") in [x.line for x in early.locations]


def test_every_lane_issues_a_copy_that_is_announced_in_full_except_one() -> None:
    (f,) = hang(copy(31 * 1024 + 512, threads=32), *tiles())
    assert f"32 copies were issued at line {line_of('loads')}" in f.message and "elect_sync" in f.fix


def test_nothing_in_the_kernel_arrives() -> None:
    (f,) = hang(copy(1024, loads=False, arrives=False), *tiles())
    assert "No statement of the kernel arrives at it" in f.message


def test_a_barrier_inside_a_branch_names_who_is_missing() -> None:
    @T.prim_func
    def kernel(OUT: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        done = MBarrier(pool, 1)
        pool.commit()
        done.init(32)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        if warp == 0:
            T.cuda.cta_sync()  # alone
            done.arrive(0)
        else:
            done.wait(0, 0)  # waits for done
        OUT[warp * 32 + lane] = T.float32(1)

    found = {f.names[0]: f for f in hang(kernel, np.zeros(64, np.float32))}
    sync, wait = found["cta_sync"], found["done"]
    assert sync.locations[0].line == line_of("alone") and "32 of 64 threads have arrived" in sync.message
    assert f"warp 1 waits at mbarrier done (line {line_of('waits for done')})" in sync.message
    assert wait.data["consequence"] is True


def shared_barrier(first: int, second: int) -> Any:
    """Two warpgroups meet twice at a named barrier each, but warp 7 only once."""

    @T.prim_func
    def kernel(OUT: T.Buffer((256,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([8])
        lane = T.lane_id([32])
        if warp < 4:
            T.cuda.warpgroup_sync(first)
            T.cuda.warpgroup_sync(first)
        else:
            T.cuda.warpgroup_sync(second)
            if warp < 7:
                T.cuda.warpgroup_sync(second)
        OUT[warp * 32 + lane] = T.float32(1)

    return kernel


@pytest.mark.parametrize(("first", "second", "shared"), [(1, 1, True), (1, 2, False)])
def test_a_named_barrier_of_two_warpgroups(first: int, second: int, shared: bool) -> None:
    for f in hang(shared_barrier(first, second), np.zeros(256, np.float32)):
        assert "96 of 128 threads have arrived" in f.message
        assert ("Warps of 2 warpgroups use named barrier 1." in f.message) is shared
        assert f.fix.startswith("Give each warpgroup its own number") is shared


# ---------------------------------------------------------------------------------------------- the usual causes


def ring(mistake: str) -> Any:
    """Four rounds through two stages: warp 0 fills them, warp 1 empties them."""
    FILLS = 3 if mistake == "the producer has a round less" else 4
    EMPTIES = 5 if mistake == "the consumer has a round more" else 4
    COUNT = {"count too high": 33, "count too low": 31}.get(mistake, 32)
    FREE = 0 if mistake == "the producer starts with the consumer's phase" else 1

    @T.prim_func
    def kernel(IN: T.Buffer((4, 32), "float32"), OUT: T.Buffer((4, 32), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        full = MBarrier(pool, 2)
        free = MBarrier(pool, 2)
        tile = pool.alloc((2, 32), "float32")
        pool.commit()
        full.init(COUNT)  # init of full
        free.init(32)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        if warp == 0:
            for k in T.serial(FILLS):
                free.wait(k % 2, k // 2 % 2 ^ FREE)  # needs a free stage
                tile[k % 2, lane] = IN[k, lane]
                if mistake == "always stage 0":
                    full.arrive(0)  # signals stage 0
                elif mistake == "signals every other round":
                    if k % 2 == 0:
                        full.arrive(k % 2)
                else:
                    full.arrive(k % 2)  # has filled a stage
                if mistake == "a barrier of the CTA in one role":
                    T.cuda.cta_sync()  # in one role
        else:
            for k in T.serial(EMPTIES):
                if mistake == "the phase never flips":
                    full.wait(k % 2, 0)  # old phase
                elif mistake == "waits for the other stage":
                    full.wait((k + 1) % 2, k // 2 % 2)  # other stage
                else:
                    full.wait(k % 2, k // 2 % 2)  # needs a full stage
                OUT[k % 4, lane] = tile[k % 2, lane]
                if mistake == "skips a round":
                    if k != 1:
                        free.arrive(k % 2)  # but in round 1
                else:
                    free.arrive(k % 2)  # has emptied a stage

    return kernel


@pytest.mark.parametrize("schedule, seed", [*SCHEDULES, ("random", 2)])
@pytest.mark.parametrize(
    "mistake, waits, also, says",
    [
        (
            "the producer starts with the consumer's phase", "needs a free stage", "has emptied a stage",
            "start this phase with 1",
        ),
        ("count too high", "needs a full stage", "init of full", "(here 32)"),
        ("the producer has a round less", "needs a full stage", "has filled a stage", "same number of rounds"),
        ("the consumer has a round more", "needs a full stage", "has filled a stage", "same number of rounds"),
        ("always stage 0", "needs a full stage", "signals stage 0", "at the stage of this round"),
        ("signals every other round", "needs a full stage", "init of full", "same stage index"),
        ("the phase never flips", "needs a free stage", "old phase", "uses parity 0, which an earlier phase already satisfies"),
        ("skips a round", "needs a free stage", "but in round 1", "same stage index"),
        ("a barrier of the CTA in one role", "in one role", "", "keep it out of branches"),
    ],
)  # fmt: skip
def test_usual_causes(mistake: str, waits: str, also: str, says: str, schedule: str, seed: int) -> None:
    found = hang(ring(mistake), *rounds(), schedule=schedule, seed=seed)
    causes = [f for f in found if not f.data.get("consequence")]
    assert len(causes) == 1, [str(f) for f in found]
    (f,) = causes
    assert f.locations[0].line == line_of(waits), str(f)
    assert not also or line_of(also) in [x.line for x in f.locations]
    assert says in f"{f.message} {f.fix}", str(f)


def rounds() -> tuple[np.ndarray, np.ndarray]:
    return np.ones((4, 32), np.float32), np.zeros((4, 32), np.float32)


@pytest.mark.parametrize("schedule, seed", SCHEDULES)
def test_causes_that_need_not_hang(schedule: str, seed: int) -> None:
    """A wrong stage and a count that is too low are reported where they do not stop the kernel, too."""
    run = emulator.run(ring("waits for the other stage"), *rounds(), schedule=schedule, seed=seed)
    assert not run.ok and line_of("other stage") in {x.line for f in run.findings for x in f.locations}
    run = emulator.run(ring("count too low"), *rounds(), schedule=schedule, seed=seed)
    (f,) = [f for f in run.findings if f.code == "mbarrier.too-many-arrivals"]
    assert {x.line for x in f.locations} == {line_of("has filled a stage"), line_of("init of full")}


@pytest.mark.parametrize("schedule, seed", SCHEDULES)
def test_the_kernel_without_a_mistake(schedule: str, seed: int) -> None:
    source, out = rounds()
    assert emulator.run(ring(""), source, out, schedule=schedule, seed=seed).findings == ()
    assert (out == 1).all()


@pytest.mark.parametrize("schedule, seed", SCHEDULES)
@pytest.mark.parametrize("announced", [1008, 2048])
def test_the_bytes_are_named_with_their_lines(announced: int, schedule: str, seed: int) -> None:
    (f,) = hang(copy(announced), *tiles(), schedule=schedule, seed=seed)
    lines = {x.line for x in f.locations}
    assert {line_of("loads"), line_of("announces")} <= lines
    assert str(announced) in f.message and "1024" in f.message


# ---------------------------------------------------------------------------------------------- clusters


def two_ctas(mistake: str) -> Any:
    """Three rounds in each of two clusters: both CTAs report to the leader, which answers both."""
    TO = 1 if mistake == "reports to nobody" else 0
    ANSWERS = 1 if mistake == "answers one CTA" else 2

    @T.prim_func
    def kernel(OUT: T.Buffer((4, 32), "float32")):
        T.device_entry()
        cta = T.cta_id([4])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        report = MBarrier(pool, 1)
        answer = MBarrier(pool, 1)
        pool.commit()
        report.init(64)
        answer.init(32)
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cluster_sync()
        if warp == 0:
            if rank == 0:
                for k in T.serial(3):
                    report.wait(0, k % 2)  # both reports
                    for other in T.unroll(ANSWERS):
                        answer.remote_view(other).arrive(0)
        else:
            for k in T.serial(3):
                report.remote_view(rank * TO).arrive(0)
                answer.wait(0, k % 2)  # the answer
                OUT[cta, lane] = T.float32(1)
        T.cuda.cluster_sync()

    return kernel


@pytest.mark.parametrize("schedule, seed", [*SCHEDULES, ("random", 2)])
@pytest.mark.parametrize(
    "mistake, waits, cta, says",
    [
        ("reports to nobody", "both reports", 0, "report of CTA 1 has got the other 32 arrivals"),
        ("answers one CTA", "the answer", 1, "answer of CTA 0 has got the arrivals"),
    ],
)
def test_signals_that_went_to_the_other_cta(
    mistake: str, waits: str, cta: int, says: str, schedule: str, seed: int
) -> None:
    """The cause is named, once, in every schedule; the same hang in the other cluster hides nothing."""
    found = hang(two_ctas(mistake), np.zeros((4, 32), np.float32), schedule=schedule, seed=seed)
    causes = [f for f in found if not f.data.get("consequence")]
    assert len(causes) == 1, [str(f) for f in found]
    (f,) = causes
    assert (f.locations[0].line, f.cta) == (line_of(waits), cta)
    assert says in f.message and "remote_view" in f.fix


@pytest.mark.parametrize("schedule, seed", SCHEDULES)
def test_two_ctas_without_a_mistake(schedule: str, seed: int) -> None:
    out = np.zeros((4, 32), np.float32)
    assert emulator.run(two_ctas(""), out, schedule=schedule, seed=seed).findings == ()
    assert (out == 1).all()
