"""The race detector on hand-written event sequences: each test is a tiny kernel, right and wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulator.checks.findings import Finding, FindingLog, SourceLocation
from emulator.checks.happens_before import (
    Chunks,
    ClusterOrder,
    Lanes,
    RaceDetector,
    Span,
    Strided,
    TmemBlock,
)

ALL = (0, 1, 2, 3)
TILE = Span(1024, 1024 + 4096)


class Bench:
    """A detector, one cluster, and sites that are simply line numbers of one file."""

    def __init__(self, ctas: int = 1, warps: int = 4, **options: Any) -> None:
        self.log = FindingLog()
        self.detector = RaceDetector(self.log, self.name, **options)
        for line in range(1, 200):
            assert self.detector.site(SourceLocation("kernel.py", line)) == line
        self.ctas, self.warps = ctas, warps
        self.cl = self.cluster()

    def name(self, space: str, index: int, byte: int) -> str:
        if space == "gmem":
            return "ABCD"[index]
        if space == "tmem":
            return "acc" if byte & 0xFFFF < 128 else "P"
        return f"bar{byte // 8}" if byte < 1024 else "tile"

    def cluster(self, *cta_ids: int) -> ClusterOrder:
        return self.detector.start_cluster(self.ctas, self.warps, 65536, cta_ids or None)

    def barrier(self, index: int = 0, cta: int = 0) -> Any:
        """An initialized mbarrier that everybody can see."""
        bar = self.cl.mbarrier_init(cta * self.warps, cta, 8 * index, 1)
        self.cl.fence_mbarrier_init((cta * self.warps,))
        everyone = range(self.ctas * self.warps)
        self.cl.cluster_arrive(everyone)
        self.cl.cluster_complete()
        self.cl.cluster_wait(everyone)
        return bar

    def fill(self, cta: int = 0) -> None:
        """Write the tile by warp 0, then let everybody and the async proxy see it."""
        self.cl.smem_write(rows(0), cta, 1024 + np.arange(32) * 128, 16, 2)
        for w in range(1, 4):
            self.cl.smem_write(rows(0), cta, 1024 + np.arange(32) * 128 + 16 * w, 16, 2)
        for w in range(4, 8):
            self.cl.smem_write(rows(0), cta, 1024 + np.arange(32) * 128 + 16 * w, 16, 2)
        self.cl.fence_proxy_async((0,))
        self.cl.cta_sync(cta)

    def codes(self) -> list[str]:
        return [f.code for f in self.log.findings]

    def only(self) -> Finding:
        findings = self.log.findings
        assert len(findings) == 1, [str(f) for f in findings]
        return findings[0]

    def clean(self) -> None:
        assert not self.log.findings, [str(f) for f in self.log.findings]

    def lines(self) -> list[list[int]]:
        return [[location.line for location in f.locations] for f in self.log.findings]


def rows(*warps: int) -> Lanes:
    return Lanes.of(warps)


def vec(first: int, count: int, step: int) -> np.ndarray:
    return first + np.arange(count, dtype=np.int64) * step


# ---------------------------------------- generic accesses and CTA barriers


def test_write_then_read_by_another_warp_needs_a_barrier() -> None:
    b = Bench()
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 16), 16, 10)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 16), 16, 11)
    f = b.only()
    assert (f.code, f.strength) == ("race.smem.write-read", "race")
    assert [x.line for x in f.locations] == [11, 10]
    assert f.names == ("tile",) and f.warps == (1, 0) and f.data["missing"] == "barrier"
    assert "st.shared by warp 0 at line 10" in f.message and "512 bytes of tile" in f.message


def test_a_barrier_orders_them() -> None:
    b = Bench()
    b.cl.smem_write(rows(*ALL), 0, vec(1024, 128, 16), 16, 10)
    b.cl.cta_sync(0)
    b.cl.smem_read(rows(*ALL), 0, vec(1024, 128, 16)[::-1].copy(), 16, 11)
    b.cl.cta_sync(0)
    b.cl.smem_write(rows(*ALL), 0, vec(1024, 128, 16), 16, 12)
    b.clean()


def test_read_then_overwrite() -> None:
    b = Bench()
    b.fill()
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 16), 16, 10)
    b.cl.smem_write(rows(2), 0, vec(1024, 32, 16), 16, 11)
    f = b.only()
    assert f.code == "race.smem.read-write" and f.warps == (2, 1)


def test_every_reader_is_remembered() -> None:
    b = Bench()
    b.fill()
    b.cl.smem_read(rows(1, 2, 3), 0, 1024, 4, 10)  # all lanes of three warps read one word
    b.cl.bar_sync((0, 1), 0, 1)
    b.cl.smem_write(Lanes.one(0), 0, 1024, 4, 11)
    assert [f.warps for f in b.log.findings] == [(0, 2, 3)]
    assert "ld.shared by warps 2 and 3 at line 10" in b.log.findings[0].message
    assert b.log.count(b.log.findings[0]) == 2  # warps 2 and 3, the same two lines


def test_broadcast_reads_through_a_vector_of_addresses_are_all_remembered() -> None:
    b = Bench()
    b.fill()
    b.cl.smem_read(rows(1, 2), 0, np.full(64, 1024), 4, 10)
    b.cl.bar_sync((0, 2), 0, 1)
    b.cl.smem_write(Lanes.one(0), 0, 1024, 4, 11)
    assert b.only().warps == (0, 1)


def test_two_warps_write_the_same_word_in_one_instruction() -> None:
    b = Bench()
    b.cl.smem_write(rows(0, 1), 0, np.tile(vec(1024, 32, 4), 2), 4, 10)
    f = b.only()
    assert f.code == "race.smem.write-write" and [x.line for x in f.locations] == [10]


def test_lanes_of_one_warp_meet_at_bar_warp_sync() -> None:
    b = Bench()
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
    b.cl.smem_read(rows(0), 0, vec(1024, 32, 4), 4, 11)  # each lane its own
    b.cl.warp_sync((0,))
    b.cl.smem_read(rows(0), 0, vec(1024, 32, 4)[::-1].copy(), 4, 12)
    b.cl.smem_write(Lanes.one(0, 7), 0, 1024, 4, 13)
    b.cl.smem_read(Lanes.one(0, 7), 0, 1024, 4, 14)
    b.clean()
    b.cl.smem_read(Lanes.one(0, 8), 0, 1024, 4, 15)
    f = b.only()
    assert (f.code, f.strength) == ("race.smem.within-warp", "race") and f.data["missing"] == "bar.warp.sync"
    assert [x.line for x in f.locations] == [15, 13] and f.lanes == (8,) and f.names == ("tile",)
    assert "which lane 7 of the same warp stored at line 13" in f.message


@pytest.mark.parametrize("lanes", [rows(0), Lanes.one(0, 3)])
@pytest.mark.parametrize("address", ["one for all", "one each"])
def test_lanes_that_read_what_a_neighbour_has_stored(lanes: Lanes, address: str) -> None:
    b = Bench()
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
    where = 1024 if address == "one for all" else vec(1024, 33, 4)[1:][lanes.lane]
    if address == "one each":
        b.cl.smem_write(Lanes.one(0, 0), 0, 1024 + 128, 4, 11)
    b.cl.smem_read(lanes, 0, where, 4, 12)
    assert set(b.codes()) == {"race.smem.within-warp"} and [12, 10] in b.lines()
    assert ([12, 11] in b.lines()) == (address == "one each" and lanes.full)


def test_lanes_of_other_warps_do_not_count_as_neighbours() -> None:
    b = Bench()
    b.cl.smem_write(rows(0, 1), 0, vec(1024, 64, 4), 4, 10)
    b.cl.bar_sync((0, 1), 0, 1)
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 11)
    b.cl.smem_read(rows(1), 0, vec(1152, 32, 4)[::-1].copy(), 4, 12)  # written before they met
    b.clean()


def test_a_row_of_stmatrix_comes_from_several_lanes() -> None:
    b = Bench()
    b.cl.smem_write(Lanes.of((0,)).select(np.arange(8)), 0, vec(1024, 8, 16), 16, 10, "stmatrix")
    b.cl.smem_read(Lanes.one(0, 0), 0, 1024, 4, 11)
    assert b.only().code == "race.smem.within-warp" and "other lanes of the same warp" in b.only().message


def test_only_the_masked_lanes_touch_memory() -> None:
    b = Bench()
    mask = np.zeros(128, bool)
    mask[40] = True
    b.cl.smem_write(rows(*ALL).select(mask), 0, np.array([2048]), 4, 10)
    b.cl.smem_read(rows(3), 0, vec(2052, 32, 4), 4, 11)
    assert b.codes() == ["uninitialised.smem"]
    b.cl.warp_sync((1,))
    b.cl.smem_read(rows(1), 0, 2048, 4, 12)  # lane 40 belongs to warp 1
    assert b.codes() == ["uninitialised.smem"]


def test_lanes_that_collide_are_named() -> None:
    b = Bench()
    b.fill()
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 4), 4, 10)
    b.cl.smem_write(rows(2), 0, vec(1024 + 64, 32, 4), 4, 11)
    f = b.only()
    assert f.lanes == tuple(range(16))
    assert f.data["first_byte"] == 1024 + 64 and f.data["bytes"] == 64


def test_the_line_is_right_when_several_statements_share_an_epoch() -> None:
    b = Bench()
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
    b.cl.smem_write(rows(0), 0, vec(2048, 32, 4), 4, 11)
    b.cl.smem_write(rows(0), 0, 4096, 4, 12)
    b.cl.smem_read(rows(1), 0, 4096, 4, 20)
    b.cl.smem_read(rows(1), 0, vec(2048, 32, 4), 4, 21)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 4), 4, 22)
    assert sorted(b.lines()) == [[20, 12], [21, 11], [22, 10]]


def test_bar_arrive_releases_but_does_not_acquire() -> None:
    b = Bench()
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
    b.cl.smem_write(rows(1), 0, vec(2048, 32, 4), 4, 11)
    b.cl.bar_arrive((0,), 0, 3)
    b.cl.bar_sync((1,), 0, 3)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 4), 4, 12)
    b.clean()
    b.cl.smem_read(rows(0), 0, vec(2048, 32, 4), 4, 13)
    assert b.lines() == [[13, 11]]


def test_a_barrier_of_other_warps_orders_nothing() -> None:
    b = Bench()
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
    b.cl.bar_sync((1, 2, 3), 0, 1)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 4), 4, 11)
    assert b.codes() == ["race.smem.write-read"]


@pytest.mark.parametrize("granule", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
def test_every_access_size_on_every_granule(granule: int, nbytes: int) -> None:
    b = Bench(smem_granule=granule)
    step = max(granule, nbytes)
    b.cl.smem_write(rows(0), 0, vec(1024, 32, step), nbytes, 10)
    b.cl.smem_write(rows(1), 0, vec(1024 + 32 * step, 32, step), nbytes, 10)
    b.cl.smem_read(rows(0), 0, vec(1024, 32, step), nbytes, 11)
    b.clean()
    b.cl.warp_sync((1,))
    b.cl.smem_read(rows(1), 0, vec(1024 + 31 * step, 32, step), nbytes, 12)
    f = b.only()
    assert f.lanes == (0,) and f.data["first_byte"] == 1024 + 31 * step


# ---------------------------------------- mbarriers


def test_arrive_and_wait_order_like_release_and_acquire() -> None:
    b = Bench()
    bar = b.barrier()
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
    b.cl.mbarrier_arrive((0,), bar, 11)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((1,), bar, 0, 12)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 4), 4, 13)
    b.clean()
    b.cl.smem_read(rows(2), 0, vec(1024, 32, 4), 4, 14)
    assert b.lines() == [[14, 10]]


def test_a_write_after_the_arrive_is_not_released() -> None:
    b = Bench()
    bar = b.barrier()
    b.cl.mbarrier_arrive((0,), bar, 11)
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 12)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((1,), bar, 0, 13)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 4), 4, 14)
    assert b.lines() == [[14, 12]]


def test_a_relaxed_arrive_releases_nothing() -> None:
    b = Bench()
    bar = b.barrier()
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
    b.cl.mbarrier_arrive((0,), bar, 11, release=False)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((1,), bar, 0, 12)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 4), 4, 13)
    assert b.codes() == ["race.smem.write-read"]


def test_waiting_on_another_stage_orders_nothing() -> None:
    b = Bench()
    full = [b.barrier(0), b.barrier(1)]
    for stage in range(2):
        b.cl.mbarrier_arrive((0,), full[stage], 10)
        b.cl.tma_load(0, full[stage], 11 + stage, [(0, Span(1024 + stage * 4096, 5120 + stage * 4096))])
        b.cl.mbarrier_complete(full[stage])
    b.cl.mbarrier_wait((1,), full[0], 0, 20)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 16), 16, 21)
    b.clean()
    b.cl.smem_read(rows(1), 0, vec(5120, 32, 16), 16, 22)
    f = b.only()
    assert [x.line for x in f.locations] == [22, 12] and f.names == ("tile", "bar1")
    assert f.fix == "Wait on mbarrier bar1 with parity 0 before this access."
    assert "the TMA load issued by warp 0 at line 12" in f.message


def test_a_wait_that_returns_at_once_is_named() -> None:
    b = Bench()
    bar = b.barrier()
    b.cl.tma_load(0, bar, 10, [(0, TILE)])
    b.cl.mbarrier_wait((1,), bar, 1, 11)  # wrong initial phase
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 16), 16, 12)
    f = b.only()
    assert "The wait on mbarrier bar0 at line 11 uses parity 1" in f.fix and "parity 0" in f.fix


def test_a_wait_proves_no_more_than_its_parity() -> None:
    # Two phases pass before a slow consumer waits for the first: it may not assume the second.
    b = Bench()
    bar = b.barrier()
    for line, start in ((10, 1024), (11, 2048), (12, 3072)):
        b.cl.tma_load(0, bar, line, [(0, Span(start, start + 1024))])
        b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((1,), bar, 0, 20)  # three phases are complete, it has seen none
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 16), 16, 21)
    assert b.codes() == ["mbarrier.stale-phase"]
    b.cl.smem_read(rows(1), 0, vec(3072, 32, 16), 16, 22)
    assert sorted(b.codes()) == ["mbarrier.stale-phase", "race.smem.write-read"]


def test_a_ring_of_stages_is_clean_and_a_forgotten_phase_flip_is_not() -> None:
    def run(flip: bool) -> Bench:
        b = Bench()
        full = [b.barrier(0), b.barrier(1)]
        empty = [b.barrier(2), b.barrier(3)]
        for i in range(8):
            stage, phase = i % 2, (i // 2) & 1
            region = [(0, Span(1024 + stage * 4096, 5120 + stage * 4096))]
            b.cl.mbarrier_wait((0,), empty[stage], phase ^ 1, 10)
            b.cl.mbarrier_arrive((0,), full[stage], 11)
            b.cl.tma_load(0, full[stage], 12, region)
            b.cl.mbarrier_complete(full[stage])
            b.cl.mbarrier_wait((1,), full[stage], phase if flip else 0, 13)
            b.cl.mma(1, 14, region, (), [(0, TmemBlock(0, 64))], accumulate=i > 0)
            b.cl.tcgen05_commit(1, [empty[stage]], 15)
            b.cl.mbarrier_complete(empty[stage])
        return b

    run(True).clean()
    assert "race.smem.write-read" in run(False).codes()


def test_uses_before_the_init_is_visible() -> None:
    b = Bench()
    bar = b.cl.mbarrier_init(0, 0, 0, 10)
    b.cl.mbarrier_arrive((1,), bar, 11)
    f = b.only()
    assert f.code == "mbarrier.init-not-visible" and f.data["missing"] == "cta_sync"
    assert [x.line for x in f.locations] == [11, 10] and f.names == ("bar0",)


def test_an_unfenced_init_is_a_lint_for_asynchronous_signals_only() -> None:
    b = Bench()
    bar = b.cl.mbarrier_init(0, 0, 0, 10)
    b.cl.cta_sync(0)
    b.cl.mbarrier_arrive((1,), bar, 11)
    b.clean()
    b.cl.tma_load(1, bar, 12, [(0, TILE)])
    f = b.only()
    assert (f.code, f.strength) == ("mbarrier.init-not-fenced", "lint")


@pytest.mark.parametrize("fence", ["fence_mbarrier_init", "fence_proxy_async"])
def test_either_fence_makes_the_init_visible_to_the_async_proxy(fence: str) -> None:
    b = Bench()
    bar = b.cl.mbarrier_init(0, 0, 0, 10)
    getattr(b.cl, fence)((0,))
    b.cl.cta_sync(0)
    b.cl.tma_load(1, bar, 12, [(0, TILE)])
    b.clean()


def test_remote_use_needs_a_cluster_barrier_after_the_init() -> None:
    b = Bench(ctas=2)
    bar = b.cl.mbarrier_init(0, 0, 0, 10)
    b.cl.fence_mbarrier_init((0,))
    b.cl.cta_sync(0)
    b.cl.cta_sync(1)
    b.cl.mbarrier_arrive((4,), bar, 11)
    assert b.only().data["missing"] == "cluster_sync"


def test_a_second_commit_of_a_round_overruns_the_waiters() -> None:
    def run(commits: int, sync: bool) -> Bench:
        b = Bench()
        b.fill()
        bar = b.barrier()
        b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 64))], accumulate=False)
        b.cl.tcgen05_commit(0, [bar], 11)
        b.cl.mbarrier_complete(bar)
        b.cl.mbarrier_wait(ALL, bar, 0, 12)
        if sync:
            b.cl.cta_sync(0)
        for _ in range(commits - 1):
            b.cl.tcgen05_commit(0, [bar], 13)
            b.cl.mbarrier_complete(bar)
        return b

    run(1, False).clean()
    run(2, True).clean()
    f = run(2, False).only()
    assert f.code == "mbarrier.phase-overrun" and f.names == ("bar0",)
    assert [x.line for x in f.locations] == [13, 12] and f.data["phase"] == 1


def test_the_only_arriver_knows_that_its_phase_is_complete() -> None:
    b = Bench()
    first, second = b.barrier(0), b.barrier(1)
    b.cl.mbarrier_arrive((0,), first, 10)
    b.cl.mbarrier_complete(first)
    b.cl.mbarrier_arrive((0,), first, 11)
    b.cl.mbarrier_complete(first)
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 12)
    b.cl.mbarrier_arrive((0,), second, 13)
    b.cl.mbarrier_complete(second)
    b.cl.mbarrier_wait((1,), second, 0, 14)
    b.cl.mbarrier_wait((1,), first, 1, 15)  # both phases of `first` are known through `second`
    b.clean()


# ---------------------------------------- tcgen05


def test_the_accumulator_is_read_before_the_commit_was_waited_for() -> None:
    b = Bench()
    b.fill()
    bar = b.barrier()
    b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    b.cl.tcgen05_commit(0, [bar], 11)
    b.cl.mbarrier_complete(bar)
    b.cl.tcgen05_ld(rows(1), 0, 0, 128, 12)
    f = b.only()
    assert (f.code, f.names) == ("race.tmem.write-read", ("acc", "bar0"))
    assert "Wait on mbarrier bar0 with parity 0" in f.fix


def test_an_mma_that_comes_too_early_is_not_blamed_on_the_reader() -> None:
    """The reader has waited for the accumulator, and hands it back ahead of its loads."""
    b = Bench()
    b.fill()
    ready, handed_back = b.barrier(0), b.barrier(1)
    b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    b.cl.tcgen05_commit(0, [ready], 11)
    b.cl.mbarrier_complete(ready)
    b.cl.mbarrier_wait((1,), ready, 0, 12)
    b.cl.tcgen05_fence_after((1,))
    b.cl.mbarrier_arrive((1,), handed_back, 13)
    b.cl.mbarrier_complete(handed_back)
    b.cl.mbarrier_wait((0,), handed_back, 0, 14)
    b.cl.mma(0, 15, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    b.cl.tcgen05_ld(rows(1), 0, 0, 128, 16)
    f = b.only()
    assert (f.code, f.names) == ("race.tmem.write-read", ("acc", "bar1"))
    assert "look at who arrives at mbarrier bar1 and when" in f.fix


def test_without_any_commit_the_fix_asks_for_one() -> None:
    b = Bench()
    b.fill()
    b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    b.cl.tcgen05_ld(rows(0), 0, 0, 128, 12)
    assert b.only().data["missing"] == "tcgen05.commit"


def test_a_commit_covers_only_what_was_issued_before_it() -> None:
    b = Bench()
    b.fill()
    bar = b.barrier()
    b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 64))], accumulate=False)
    b.cl.tcgen05_commit(0, [bar], 11)
    b.cl.mma(0, 12, [(0, TILE)], (), [(0, TmemBlock(64, 64))], accumulate=False)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait(ALL, bar, 0, 13)
    b.cl.tcgen05_fence_after(ALL)
    b.cl.tcgen05_ld(rows(*ALL), 0, 0, 64, 14)
    b.cl.tcgen05_wait_ld(ALL)
    b.clean()
    b.cl.tcgen05_ld(rows(*ALL), 0, 64, 64, 15)
    assert b.lines() == [[15, 12]]


def test_mmas_of_one_thread_are_pipelined_those_of_two_are_not() -> None:
    b = Bench()
    b.fill()
    for i in range(4):
        b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=i > 0)
    b.clean()
    b.cl.mma(1, 11, [(0, TILE)], (), [(0, TmemBlock(0, 128))])
    f = b.only()
    assert f.code == "race.tmem.write-write" and "tcgen05.mma issued by warp 1" in f.message


def test_a_stage_is_overwritten_while_the_mma_may_read_it() -> None:
    b = Bench()
    full, empty = b.barrier(0), b.barrier(1)
    b.cl.tma_load(0, full, 10, [(0, TILE)])
    b.cl.mbarrier_complete(full)
    b.cl.mbarrier_wait((1,), full, 0, 11)
    b.cl.mma(1, 12, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    b.cl.tcgen05_commit(1, [empty], 13)
    b.cl.mbarrier_complete(empty)
    b.cl.mbarrier_wait((0,), empty, 1, 14)  # passes at once: the wrong parity for the second round
    b.cl.tma_load(0, full, 15, [(0, TILE)])
    read_write = next(f for f in b.log.findings if f.code == "race.smem.read-write")
    assert [x.line for x in read_write.locations] == [15, 12] and read_write.names == ("tile", "bar1")
    assert "at line 14 uses parity 1" in read_write.fix and "Wait for parity 0" in read_write.fix


def test_slices_of_a_swizzled_tile_are_distinct() -> None:
    b = Bench()
    bars = [b.barrier(i) for i in range(2)]
    row = np.arange(32)
    slices = [1024 + row * 128 + ((2 * k + half) ^ (row & 7)) * 16 for k in range(4) for half in (0, 1)]
    for k in range(4):
        b.cl.tma_load(0, bars[k // 2], 10 + k, [(0, Chunks(np.concatenate(slices[2 * k : 2 * k + 2]), 16))])
    b.cl.mbarrier_complete(bars[0])
    b.cl.mbarrier_wait((1,), bars[0], 0, 20)
    first_half = Chunks(np.concatenate(slices[:4]), 16)
    b.cl.mma(1, 21, [(0, first_half)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    b.clean()
    whole = Chunks(np.concatenate(slices), 16)
    b.cl.mma(1, 22, [(0, whole)], (), [(0, TmemBlock(0, 128))])
    assert sorted(b.lines()) == [[22, 12], [22, 13]]
    assert all(f.data["bytes"] == 32 * 32 for f in b.log.findings)


def test_a_shifted_region_is_the_same_shape_elsewhere() -> None:
    region = Chunks(vec(1024, 4, 64), 16)
    moved = region.shifted(256).shifted(-64)
    assert moved.start_addresses().tolist() == [1216, 1280, 1344, 1408]
    assert moved.rows(4).tolist() == [76, 80, 84, 88] and moved.rows(2).tolist() == [304, 320, 336, 352]


def test_missing_wait_ld_is_a_lint() -> None:
    def run(wait: bool) -> Bench:
        b = Bench()
        b.fill()
        bar, free = b.barrier(0), b.barrier(1)
        b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
        b.cl.tcgen05_commit(0, [bar], 11)
        b.cl.mbarrier_complete(bar)
        b.cl.mbarrier_wait(ALL, bar, 0, 12)
        b.cl.tcgen05_fence_after(ALL)
        b.cl.tcgen05_ld(rows(*ALL), 0, 0, 128, 13)
        if wait:
            b.cl.tcgen05_wait_ld(ALL)
        b.cl.tcgen05_fence_before(ALL)
        b.cl.mbarrier_arrive(ALL, free, 14)
        b.cl.mbarrier_complete(free)
        b.cl.mbarrier_wait((0,), free, 0, 15)
        b.cl.tcgen05_fence_after((0,))
        b.cl.mma(0, 16, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
        b.cl.tcgen05_commit(0, [bar], 17)
        b.cl.mbarrier_complete(bar)
        b.cl.mbarrier_wait(ALL, bar, 1, 18)
        b.cl.exit(ALL)
        return b

    run(True).clean()
    missing = run(False)
    assert set(missing.codes()) == {"tcgen05.missing-wait-ld"} and missing.log.ok
    assert [16, 13] in missing.lines() and [13] in missing.lines()


def test_an_unread_accumulator_is_not_overwritten() -> None:
    b = Bench()
    b.fill()
    bar = b.barrier(0)
    b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    b.cl.tcgen05_commit(0, [bar], 11)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait(ALL, bar, 0, 12)
    b.cl.tcgen05_fence_after(ALL)
    b.cl.tcgen05_ld(rows(1, 2, 3), 0, 0, 128, 13)
    b.cl.tcgen05_wait_ld(ALL)
    b.cl.mma(0, 14, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)  # nobody arrived
    assert {f.code for f in b.log.findings} == {"race.tmem.read-write"}
    assert b.log.findings[0].data["missing"] == "barrier"


def test_p_is_read_from_tmem_before_its_stores_are_performed() -> None:
    def run(wait: bool, fence: bool = True) -> Bench:
        b = Bench()
        b.fill()
        ready = b.barrier(0)
        b.cl.tcgen05_st(rows(*ALL), 0, 128, 64, 10)
        if wait:
            b.cl.tcgen05_wait_st(ALL)
        if fence:
            b.cl.tcgen05_fence_before(ALL)
        b.cl.mbarrier_arrive(ALL, ready, 11)
        b.cl.mbarrier_complete(ready)
        b.cl.mbarrier_wait((0,), ready, 0, 12)
        b.cl.tcgen05_fence_after((0,))
        b.cl.mma(0, 13, [(0, TILE)], [(0, TmemBlock(128, 64))], [(0, TmemBlock(0, 128))], accumulate=False)
        return b

    run(True).clean()
    f = run(False).log.findings[0]
    assert (f.code, f.strength, f.data["missing"]) == ("race.tmem.write-read", "race", "tcgen05.wait::st")
    assert f.names == ("P",)
    lint = run(True, fence=False)
    assert set(lint.codes()) == {"tcgen05.missing-fence"} and lint.log.ok
    assert lint.log.findings[0].data["missing"] == "tcgen05.fence::before_thread_sync"


def test_missing_after_fence_is_a_lint() -> None:
    b = Bench()
    b.fill()
    bar = b.barrier(0)
    b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    b.cl.tcgen05_commit(0, [bar], 11)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait(ALL, bar, 0, 12)
    b.cl.tcgen05_ld(rows(*ALL), 0, 0, 128, 13)
    f = b.only()
    assert (f.code, f.strength) == ("tcgen05.missing-fence", "lint")
    assert f.data["missing"] == "tcgen05.fence::after_thread_sync"


def test_each_warp_touches_its_own_lane_quarter() -> None:
    b = Bench()
    b.cl.tcgen05_st(rows(0), 0, 0, 32, 10)
    b.cl.tcgen05_wait_st((0,))
    b.cl.tcgen05_ld(rows(0), 0, 0, 32, 11)
    b.clean()
    b.cl.tcgen05_ld(rows(1), 0, 0, 32, 12)
    assert b.only().code == "uninitialised.tmem"


def test_half_quarters_are_distinct() -> None:
    b = Bench()
    b.cl.tcgen05_st(rows(1), 0, 0, 8, 10, lane0=16, n_lanes=16)
    b.cl.tcgen05_wait_st((1,))
    b.cl.tcgen05_ld(rows(1), 0, 0, 8, 11, lane0=16, n_lanes=16)
    b.clean()
    b.cl.tcgen05_ld(rows(1), 0, 0, 8, 12)
    f = b.only()
    assert f.code == "uninitialised.tmem" and f.data["first_byte"] == 32 << 16


def test_layout_f_uses_the_lower_half_of_every_quarter() -> None:
    b = Bench()
    b.fill()
    bar = b.barrier()
    b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 64, layout="F"))], accumulate=False)
    b.cl.tcgen05_commit(0, [bar], 11)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait(ALL, bar, 0, 12)
    b.cl.tcgen05_fence_after(ALL)
    b.cl.tcgen05_ld(rows(*ALL), 0, 0, 64, 13, n_lanes=16)
    b.cl.tcgen05_wait_ld(ALL)
    b.clean()
    b.cl.tcgen05_ld(rows(2), 0, 0, 64, 14)
    assert b.only().data["first_byte"] == (2 * 32 + 16) << 16


def test_accumulating_into_fresh_columns() -> None:
    b = Bench()
    b.fill()
    b.cl.mma(0, 10, [(0, TILE)], (), [(0, TmemBlock(0, 64))])
    f = b.only()
    assert f.code == "uninitialised.tmem" and "enable_input_d" in f.fix
    b.cl.tmem_alloc(0, 0, 64)
    b.cl.mma(0, 11, [(0, TILE)], (), [(0, TmemBlock(0, 64))])
    assert b.codes() == ["uninitialised.tmem"] * 2


def test_columns_are_freed_after_their_last_use() -> None:
    def run(barrier: bool, fence: bool = True) -> Bench:
        b = Bench()
        b.cl.tcgen05_st(rows(*ALL), 0, 0, 64, 10)
        b.cl.tcgen05_wait_st(ALL)
        b.cl.tcgen05_ld(rows(*ALL), 0, 0, 64, 11)
        b.cl.tcgen05_wait_ld(ALL)
        if fence:
            b.cl.tcgen05_fence_before(ALL)
        if barrier:
            b.cl.cta_sync(0)
        b.cl.tcgen05_fence_after((0,))
        b.cl.tmem_dealloc(0, 0, 64, 0, 12)
        return b

    run(True).clean()
    f = run(False).only()
    assert f.code == "race.tmem.read-write" and [x.line for x in f.locations] == [12, 11]
    assert "tcgen05.dealloc by warp 0 at line 12 frees acc" in f.message
    assert {x.code for x in run(True, fence=False).log.findings} == {"tcgen05.missing-fence"}


# ---------------------------------------- proxies


def proxy_kernel(where: str, store: bool) -> Bench:
    """Four warps fill a tile with st.shared; after a barrier warp 0 starts an asynchronous read of it."""
    b = Bench()
    buf = b.detector.add_global(4096, 4)
    if where == "too early":
        b.cl.fence_proxy_async(ALL)
    b.cl.smem_write(rows(*ALL), 0, vec(1024, 128, 32), 16, 10)
    b.cl.smem_write(rows(*ALL), 0, vec(1040, 128, 32), 16, 10)
    if where == "writers":
        b.cl.fence_proxy_async(ALL, gmem=False)
    if where == "one writer":
        b.cl.fence_proxy_async((0,))
    b.cl.cta_sync(0)
    if where == "issuer":
        b.cl.fence_proxy_async((0,))
    if store:
        b.cl.tma_store(0, 0, 20, [(0, TILE)], [(buf, Span(0, 4096))])
    else:
        b.cl.mma(0, 20, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    return b


@pytest.mark.parametrize("store", [True, False])
def test_proxy_fences(store: bool) -> None:
    proxy_kernel("writers", store).clean()
    for where in ("nowhere", "too early"):
        f = proxy_kernel(where, store).only()
        assert (f.code, f.strength, f.names) == ("proxy.missing-fence", "race", ("tile",))
        assert [x.line for x in f.locations] == [20, 10]
        assert ("forgives" in f.message) is not store
    issuer = proxy_kernel("issuer", store)
    assert set(issuer.codes()) == {"proxy.fence-by-another-thread"} and issuer.log.ok
    partly = proxy_kernel("one writer", store)
    assert partly.codes() == ["proxy.missing-fence"]
    assert partly.log.count(partly.only()) == 3  # warps 1, 2 and 3


def test_the_async_proxy_needs_no_fence_to_hand_over() -> None:
    b = Bench()
    bar = b.barrier()
    buf = b.detector.add_global(4096, 4)
    b.cl.tma_load(0, bar, 10, [(0, TILE)])
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((0, 1), bar, 0, 11)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 16), 16, 12)
    b.cl.tma_store(0, 0, 13, [(0, TILE)], [(buf, Span(0, 4096))])
    b.clean()


def test_global_writes_before_a_tma_load_need_a_global_proxy_fence() -> None:
    for smem_only in (False, True):
        b = Bench()
        bar = b.barrier()
        buf = b.detector.add_global(4096, 4)
        b.cl.gmem_write(rows(0), buf, vec(0, 32, 16), 16, 10)
        b.cl.fence_proxy_async((0,), gmem=not smem_only)
        b.cl.tma_load(0, bar, 11, [(0, TILE)], [(buf, Strided(0, (4, 128), (128, 1)))])
        assert b.codes() == (["proxy.missing-fence"] if smem_only else [])


# ---------------------------------------- bulk stores


def store_kernel(
    waiter: tuple[int, int] | None, *, n: int = 0, commit: bool = True, read: bool = True
) -> Bench:
    b = Bench()
    buf = b.detector.add_global(8192, 4)
    b.fill()
    b.cl.tma_store(0, 5, 10, [(0, TILE)], [(buf, Span(0, 4096))])
    if commit:
        b.cl.bulk_commit_group(0, 5)
    if waiter is not None:
        b.cl.bulk_wait_group(*waiter, n, read, 11)
    b.cl.cta_sync(0)
    b.cl.smem_write(rows(2), 0, vec(1024, 32, 16), 16, 12)
    return b


def test_smem_is_reused_only_after_the_store_has_read_it() -> None:
    store_kernel((0, 5)).clean()
    store_kernel((0, 5), read=False).clean()
    missing = store_kernel(None).only()
    assert missing.code == "race.smem.read-write" and missing.data["missing"] == "wait_group.read"
    assert [x.line for x in missing.locations] == [12, 10] and "wait_group.read" in missing.fix
    assert store_kernel((0, 5), n=1).codes() == ["race.smem.read-write"]
    other_thread = store_kernel((0, 6)).only()
    assert "at line 11 runs in warp 0 by threads that issued no store" in other_thread.fix
    uncommitted = store_kernel((0, 5), commit=False).only()
    assert "commit_group" in uncommitted.fix


def test_a_wait_ahead_of_the_first_store_is_no_wait_by_another_thread() -> None:
    """As in an epilogue that waits for the store of the tile before; the wait of lane 6 never has one to wait for."""
    for lane, stray in ((5, False), (6, True)):
        b = Bench()
        buf = b.detector.add_global(8192, 4)
        b.fill()
        b.cl.bulk_wait_group(0, lane, 0, True, 11)
        b.cl.tma_store(0, 5, 10, [(0, TILE)], [(buf, Span(0, 4096))])
        b.cl.bulk_commit_group(0, 5)
        b.cl.cta_sync(0)
        b.cl.smem_write(rows(2), 0, vec(1024, 32, 16), 16, 12)
        assert ("by threads that issued no store" in b.only().fix) is stray


def test_all_lanes_may_wait_when_the_issuing_lane_is_among_them() -> None:
    b = Bench()
    buf = b.detector.add_global(8192, 4)
    b.fill()
    b.cl.tma_store(0, 0, 10, [(0, TILE)], [(buf, Span(0, 4096))])
    b.cl.bulk_commit_group(0, range(32))
    b.cl.bulk_wait_group(0, range(32), 0, True)
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 16), 16, 12)
    b.clean()


def test_wait_group_leaves_the_youngest_groups_pending() -> None:
    b = Bench()
    buf = b.detector.add_global(8192, 4)
    for half in range(2):
        b.cl.smem_write(rows(0), 0, vec(1024 + 2048 * half, 32, 16), 16, 9)
        b.cl.fence_proxy_async((0,))
        part = Span(1024 + 2048 * half, 1024 + 2048 * half + 512)
        b.cl.tma_store(0, 0, 10 + half, [(0, part)], [(buf, Span(512 * half, 512 * half + 512))])
        b.cl.bulk_commit_group(0)
    b.cl.bulk_wait_group(0, 0, 1, True)
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 16), 16, 20)
    b.clean()
    b.cl.smem_write(rows(0), 0, vec(3072, 32, 16), 16, 21)
    assert b.lines() == [[21, 11]]


def test_a_wait_by_the_issuer_still_needs_a_barrier_for_others() -> None:
    b = Bench()
    buf = b.detector.add_global(8192, 4)
    b.fill()
    b.cl.tma_store(0, 0, 10, [(0, TILE)], [(buf, Span(0, 4096))])
    b.cl.bulk_commit_group(0)
    b.cl.bulk_wait_group(0, 0, 0, True)
    b.cl.smem_write(rows(1), 0, vec(1024, 32, 16), 16, 11)
    assert b.only().data["missing"] == "barrier"


def test_read_wait_does_not_make_the_global_writes_done() -> None:
    for read in (False, True):
        b = Bench()
        buf = b.detector.add_global(8192, 4)
        b.fill()
        b.cl.tma_store(0, 0, 10, [(0, TILE)], [(buf, Span(0, 4096))])
        b.cl.bulk_commit_group(0)
        b.cl.bulk_wait_group(0, 0, 0, read)
        b.cl.gmem_read(rows(0), buf, vec(0, 32, 16), 16, 11)
        assert b.codes() == (["race.gmem.write-read"] if read else [])


# ---------------------------------------- exit


def test_idle_lanes_beside_an_accumulator_of_64_rows_may_be_loaded_and_dropped() -> None:
    """M = 64 fills 16 lanes of each quarter; .32x32b loads all 32 of them."""
    b = Bench()
    b.fill()
    b.cl.tmem_alloc(0, 0, 64)
    bar = b.barrier()
    b.cl.mma(0, 10, [(0, TILE)], tmem_writes=[(0, TmemBlock(0, 32, layout="F"))], accumulate=False)
    b.cl.tcgen05_commit(0, [bar], 11)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait(ALL, bar, 0, 12)
    b.cl.tcgen05_fence_after(ALL)
    b.cl.tcgen05_ld(ALL, 0, 0, 32, 13)
    assert [(f.code, f.strength) for f in b.log.findings] == [("uninitialised.tmem", "lint")]
    b.cl.tcgen05_ld(ALL, 0, 32, 32, 14)  # nobody wrote these columns
    assert [f.strength for f in b.log.findings if f.locations[0].line == 14] == ["error"]


@pytest.mark.parametrize("lane", [0, 16])
def test_two_accumulators_of_64_rows_share_their_columns(lane: int) -> None:
    """The second one, in lanes 16 to 31 of every quarter, is independent of the first."""
    b = Bench()
    b.fill()
    b.cl.tmem_alloc(0, 0, 64)
    bar = b.barrier()
    b.cl.mma(0, 10, [(0, TILE)], tmem_writes=[(0, TmemBlock(0, 32, layout="F"))], accumulate=False)
    b.cl.tcgen05_commit(0, [bar], 11)
    b.cl.mbarrier_complete(bar)
    b.cl.mma(
        0, 12, [(0, TILE)], tmem_writes=[(0, TmemBlock(0, 32, lane0=lane, layout="F"))], accumulate=False
    )
    b.cl.mbarrier_wait((1,), bar, 0, 13)
    b.cl.tcgen05_fence_after((1,))
    b.cl.tcgen05_ld((1,), 0, 0, 32, 14, lane0=0, n_lanes=16)
    assert b.codes() == ([] if lane else ["race.tmem.write-read"])


def test_commits_of_one_thread_prove_each_other() -> None:
    """Who waits for the second commit knows the phase that the first one completed on another barrier."""
    b = Bench()
    b.fill()
    first, second = b.barrier(0), b.barrier(1)
    for bar in (first, second):
        b.cl.mma(0, 10, [(0, TILE)], tmem_writes=[(0, TmemBlock(0, 32))], accumulate=False)
        b.cl.tcgen05_commit(0, [bar], 11)
        b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((1,), second, 0, 12)
    b.cl.mma(0, 10, [(0, TILE)], tmem_writes=[(0, TmemBlock(0, 32))], accumulate=False)
    b.cl.tcgen05_commit(0, [first], 11)
    b.cl.mbarrier_complete(first)
    b.cl.mbarrier_wait((1,), first, 1, 13)  # phase 1: it has never waited for phase 0 itself
    b.clean()
    b.cl.mbarrier_wait((2,), first, 1, 14)  # this warp knows of neither
    assert b.only().code == "mbarrier.stale-phase"


@pytest.mark.parametrize("waits_before_the_copy", [True, False])
def test_a_copy_after_a_wait_holds_the_next_phase_back(waits_before_the_copy: bool) -> None:
    """A warp waits for "free" and fills by cp.async; the MMA warp waits for the copies before it commits to "free" again."""
    b = Bench()
    b.fill()
    free, full = b.barrier(0), b.barrier(1)
    address = 1024 + np.arange(32) * 128

    def commit() -> None:
        b.cl.mma(0, 10, [(0, TILE)], tmem_writes=[(0, TmemBlock(0, 32))], accumulate=False)
        b.cl.tcgen05_commit(0, [free], 11)
        b.cl.mbarrier_complete(free)

    def copy() -> None:
        b.cl.cp_async(rows(1), 0, address + 8192, 16, 20)
        b.cl.cp_async_mbarrier_arrive((1,), full, 21)
        b.cl.mbarrier_complete(full)

    commit()
    if waits_before_the_copy:
        b.cl.mbarrier_wait((1,), free, 0, 19)
        copy()
    else:
        copy()
        b.cl.mbarrier_wait((1,), free, 0, 19)
    b.cl.mbarrier_wait((0,), full, 0, 12)
    commit()
    assert b.codes() == ([] if waits_before_the_copy else ["mbarrier.phase-overrun"])
    if waits_before_the_copy:  # nor can the copies overrun the MMA warp: they follow a commit behind its wait
        b.cl.mbarrier_wait((1,), free, 1, 19)
        copy()
        b.clean()


@pytest.mark.parametrize("committed", [True, False])
def test_exit_with_a_store_that_still_reads_smem(committed: bool) -> None:
    b = Bench()
    buf = b.detector.add_global(8192, 4)
    b.fill()
    b.cl.tma_store(0, 0, 10, [(0, TILE)], [(buf, Span(0, 4096))])
    if committed:
        b.cl.bulk_commit_group(0)
    b.cl.exit((1, 2, 3), 20)
    b.clean()
    b.cl.exit((0,), 20)
    f = b.only()
    assert f.code == "exit.bulk-store-pending" and [x.line for x in f.locations] == [10]
    assert f.strength == "lint"


def test_exit_with_a_load_or_an_mma_in_flight() -> None:
    b = Bench()
    bar = b.barrier()
    b.fill()
    b.cl.tma_load(0, bar, 10, [(0, Span(8192, 12288))])
    b.cl.mma(1, 11, [(0, TILE)], (), [(0, TmemBlock(0, 64))], accumulate=False)
    b.cl.exit(ALL, 20)
    assert sorted(b.codes()) == ["exit.load-pending", "exit.mma-pending"]


def test_exit_after_one_warp_has_waited_is_clean() -> None:
    b = Bench()
    bar = b.barrier()
    b.cl.tma_load(0, bar, 10, [(0, TILE)])
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((3,), bar, 0)
    b.cl.exit(ALL, 20)
    b.clean()


# ---------------------------------------- clusters


def test_cluster_barrier_orders_remote_accesses_unless_relaxed() -> None:
    for release in (True, False):
        b = Bench(ctas=2)
        b.cl.smem_write(rows(0), 1, vec(1024, 32, 4), 4, 10)  # CTA 0 writes into CTA 1
        b.cl.cluster_arrive(range(8), release=release)
        b.cl.cluster_complete()
        b.cl.cluster_wait(range(8))
        b.cl.smem_read(rows(5), 1, vec(1024, 32, 4), 4, 11)
        assert b.codes() == ([] if release else ["race.smem.write-read"])
        if not release:
            assert b.only().data["missing"] == "cluster synchronization"
            assert "warp 0 of CTA 0" in b.only().message


def test_shared_memory_of_two_ctas_is_separate() -> None:
    b = Bench(ctas=2)
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
    b.cl.smem_write(rows(4), 1, vec(1024, 32, 4), 4, 10)
    b.clean()


def test_multicast_signals_the_barrier_of_each_receiver() -> None:
    b = Bench(ctas=2)
    bars = [b.barrier(0, 0), b.barrier(0, 1)]
    for cta in range(2):
        b.cl.tma_load(0, bars[cta], 10, [(cta, TILE)])
        b.cl.mbarrier_complete(bars[cta])
    b.cl.mbarrier_wait((4,), bars[1], 0, 11)
    b.cl.smem_read(rows(4), 1, vec(1024, 32, 16), 16, 12)
    b.clean()
    b.cl.smem_read(rows(4), 0, vec(1024, 32, 16), 16, 13)
    assert b.codes() == ["race.smem.write-read"]


def test_a_pair_mma_reads_and_writes_both_ctas() -> None:
    b = Bench(ctas=2)
    done = [b.barrier(0, 0), b.barrier(0, 1)]
    full = b.barrier(1, 0)
    for cta in range(2):
        b.cl.tma_load(4 * cta, full, 10 + cta, [(cta, TILE)])
    b.cl.mbarrier_complete(full)
    b.cl.mbarrier_wait((0,), full, 0, 12)
    both = [(0, TILE), (1, TILE)]
    b.cl.mma(0, 13, both, (), [(0, TmemBlock(0, 128)), (1, TmemBlock(0, 128))], accumulate=False)
    b.cl.tcgen05_commit(0, done, 14)
    for bar in done:
        b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((4, 5, 6, 7), done[1], 0, 15)
    b.cl.tcgen05_fence_after((4, 5, 6, 7))
    b.cl.tcgen05_ld(rows(4, 5, 6, 7), 1, 0, 128, 16)
    b.clean()


def test_a_remote_arrive_may_find_the_other_cta_gone() -> None:
    def run(sync: bool, early: bool = False) -> Bench:
        b = Bench(ctas=2)
        bar = b.barrier(0, 0)
        if early:
            b.cl.exit(ALL)
        b.cl.mbarrier_arrive((4,), bar, 10)
        if sync:
            b.cl.cluster_arrive(range(8))
            b.cl.cluster_complete()
            b.cl.cluster_wait(range(8))
        b.cl.exit(range(4, 8) if early else range(8))
        return b

    run(True).clean()
    for b in (run(False), run(False, early=True)):
        f = b.only()
        assert f.code == "exit.remote-use" and [x.line for x in f.locations] == [10] and f.cta == 1


# ---------------------------------------- global memory, between clusters


def test_two_clusters_may_not_write_the_same_element() -> None:
    b = Bench()
    buf = b.detector.add_global(4096, 4, "D")
    other = b.cluster(7)
    b.cl.gmem_write(rows(0), buf, vec(0, 32, 4), 4, 10)
    b.cl.finish()
    other.gmem_write(rows(1), buf, vec(128, 32, 4), 4, 11)
    b.clean()
    other.gmem_write(rows(1), buf, vec(64, 32, 4), 4, 12)
    f = b.only()
    assert f.code == "race.gmem.write-write" and f.cta == 7 and f.data["bytes"] == 64
    assert "warp 0 of CTA 0" in f.message


def test_read_only_buffers_cost_nothing_and_inputs_are_initialised() -> None:
    b = Bench()
    quiet = b.detector.add_global(4096, 4, "A", written=False)
    inout = b.detector.add_global(4096, 4, "B")
    b.cl.gmem_read(rows(0), quiet, vec(0, 32, 4), 4, 10)
    b.cl.gmem_read(rows(0), inout, vec(0, 32, 4), 4, 10)
    assert b.detector.buffers[quiet] is None
    b.clean()


@pytest.mark.parametrize("orders", [("release", "acquire"), ("acq_rel", "acq_rel"), ("relaxed", "relaxed")])
@pytest.mark.parametrize("fenced", [True, False])
def test_a_flag_orders_two_clusters(orders: tuple[str, str], fenced: bool) -> None:
    b = Bench()
    buf = b.detector.add_global(4096, 4)
    other = b.cluster(1)
    b.cl.gmem_write(rows(0), buf, vec(0, 32, 4), 4, 10)
    b.cl.cta_sync(0)
    if fenced:
        b.cl.fence_acq_rel((1,))
    b.cl.sync_location(1, "flag", orders[0])
    other.sync_location(2, "flag", orders[1])
    if fenced:
        other.fence_acq_rel((2,))
    other.cta_sync(0)
    other.gmem_read(rows(3), buf, vec(0, 32, 4), 4, 11)
    ordered = fenced or orders[0] != "relaxed"
    assert b.codes() == ([] if ordered else ["race.gmem.write-read"])
    if not ordered:
        assert b.only().data["missing"] == "grid synchronization"


@pytest.mark.parametrize(
    ("left_out", "advice"),
    [
        ("signal", "give each its own elements"),
        ("meet before", "cta_sync between the writes and the signal"),
        ("release", "fence.acq_rel.gpu after the writes"),
        ("acquire", "fence.acq_rel.gpu after the relaxed read"),
        ("meet after", "cta_sync between the acquire"),
    ],
)
def test_what_is_left_out_of_a_signal_between_clusters_is_named(left_out: str, advice: str) -> None:
    b = Bench()
    buf = b.detector.add_global(4096, 4)
    other = b.cluster(1)
    b.cl.gmem_write(rows(0), buf, vec(0, 32, 4), 4, 10)
    if left_out != "meet before":
        b.cl.cta_sync(0)
    if left_out != "release":
        b.cl.fence_acq_rel((1,))
    if left_out != "signal":
        b.cl.sync_location(1, "flag", "relaxed")
        other.sync_location(2, "flag", "relaxed")
    if left_out != "acquire":
        other.fence_acq_rel((2,))
    if left_out != "meet after":
        other.cta_sync(0)
    other.gmem_read(rows(3), buf, vec(0, 32, 4), 4, 11)
    assert b.only().code == "race.gmem.write-read" and advice in b.only().fix


def test_knowledge_of_other_clusters_travels_through_mbarriers() -> None:
    b = Bench()
    buf = b.detector.add_global(4096, 4)
    first = b.cl
    first.gmem_write(rows(0), buf, vec(0, 32, 4), 4, 10)
    first.sync_location(0, "flag", "release")
    b.cl = b.cluster(1)
    bar = b.barrier()
    b.cl.sync_location(2, "flag", "acquire")
    b.cl.mbarrier_arrive((2,), bar)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((3,), bar, 0)
    b.cl.gmem_read(rows(3), buf, vec(0, 32, 4), 4, 11)
    b.clean()
    b.cl.gmem_read(rows(1), buf, vec(0, 32, 4), 4, 12)
    assert b.lines() == [[12, 10]]


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses() -> None:
    b = Bench()
    buf = b.detector.add_global(4096, 4)
    b.cl.gmem_write(rows(0), buf, 0, 4, 10, "atom.global", atomic=True)
    b.cl.gmem_write(rows(1), buf, 0, 4, 11, "atom.global", atomic=True)
    b.cl.gmem_read(rows(2), buf, 0, 4, 12, "ld.relaxed", atomic=True)
    b.clean()
    b.cl.bar_sync((1, 3), 0, 1)
    b.cl.gmem_read(rows(3), buf, 0, 4, 13)  # knows the atomic of warp 1, not that of warp 0
    assert b.lines() == [[13, 10]]


def test_a_kernel_boundary_orders_everything() -> None:
    b = Bench()
    buf = b.detector.add_global(4096, 4)
    b.cl.gmem_write(rows(0), buf, vec(0, 32, 4), 4, 10)
    b.cl.finish()
    b.detector.next_kernel()
    b.cl = b.cluster(0)
    b.cl.gmem_read(rows(1), buf, vec(0, 32, 4), 4, 11)
    b.clean()


def test_boxes_of_global_memory() -> None:
    b = Bench()
    buf = b.detector.add_global(64 * 256, 2)
    b.fill()
    b.cl.tma_store(0, 0, 10, [(0, TILE)], [(buf, Strided(64, (32, 64), (256, 1)))])
    b.cl.gmem_write(rows(1), buf, vec(0, 32, 256), 2, 11)  # left of the box
    b.cl.gmem_write(rows(1), buf, vec(128, 32, 256), 2, 12)  # right of it
    b.clean()
    b.cl.gmem_write(rows(1), buf, vec(126, 32, 256), 2, 13)
    f = b.only()
    assert f.code == "race.gmem.write-write" and f.data["first_byte"] == 126 and f.data["bytes"] == 64


def test_boxes_whose_rows_are_no_multiple_of_the_granule() -> None:
    b = Bench()
    buf = b.detector.add_global(4096, 4)
    b.fill()
    b.cl.tma_store(0, 0, 10, [(0, TILE)], [(buf, Strided(2, (4, 6), (6, 1)))])  # bytes 2..26
    b.cl.gmem_write(rows(1), buf, 28, 4, 11)
    b.clean()
    b.cl.gmem_write(rows(1), buf, 24, 4, 12)
    assert b.codes() == ["race.gmem.write-write"]


# ---------------------------------------- cp.async and wgmma


def test_cp_async_needs_wait_group_and_a_barrier() -> None:
    def run(wait: bool, barrier: bool) -> Bench:
        b = Bench()
        b.cl.cp_async(rows(0), 0, vec(1024, 32, 16), 16, 10)
        b.cl.cp_async_commit_group((0,))
        b.cl.cp_async(rows(0), 0, vec(2048, 32, 16), 16, 11)
        b.cl.cp_async_commit_group((0,))
        if wait:
            b.cl.cp_async_wait_group((0,), 1)
        if barrier:
            b.cl.cta_sync(0)
        b.cl.smem_read(rows(1 if barrier else 0), 0, vec(1024, 32, 16), 16, 12)
        return b

    run(True, True).clean()
    run(True, False).clean()
    assert run(False, True).only().data["missing"] == "cp.async.wait_group"
    b = run(True, True)
    b.cl.smem_read(rows(0), 0, vec(2048, 32, 16), 16, 13)
    assert b.lines() == [[13, 11]]


def test_cp_async_mbarrier_arrive() -> None:
    b = Bench()
    bar = b.barrier()
    b.cl.cp_async(rows(0), 0, vec(1024, 32, 16), 16, 10)
    b.cl.cp_async_mbarrier_arrive((0,), bar, 11)
    b.cl.mbarrier_complete(bar)
    b.cl.mbarrier_wait((1,), bar, 0, 12)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 16), 16, 13)
    b.clean()


def test_wgmma_reads_its_operands_until_the_group_is_done() -> None:
    for wait in (True, False):
        b = Bench()
        b.fill()
        b.cl.wgmma(ALL, 10, [(0, TILE)])
        b.cl.wgmma_commit_group(ALL)
        if wait:
            b.cl.wgmma_wait_group(ALL, 0)
        b.cl.cta_sync(0)
        b.cl.smem_write(rows(0), 0, vec(1024, 32, 16), 16, 11)
        assert b.codes() == ([] if wait else ["race.smem.read-write"])


# ---------------------------------------- uninitialised reads and bookkeeping


@pytest.mark.parametrize("strength", ["error", "lint", "off"])
def test_uninitialised_reads(strength: str) -> None:
    b = Bench(uninitialised=strength)
    b.cl.smem_read(rows(0), 0, vec(1024, 32, 4), 4, 10)
    # A plain load of bytes nobody wrote is lint: kernels that ship load rows beyond the tensor and drop them.
    assert [f.strength for f in b.log.findings] == ([] if strength == "off" else ["lint"])
    if strength != "off":
        assert b.only().code == "uninitialised.smem" and b.only().data["bytes"] == 128


def test_uninitialised_reads_by_kind_of_reader() -> None:
    b = Bench(uninitialised={"program": "error", "mma": "lint", "bulk_read": "off"})
    buf = b.detector.add_global(4096, 4)
    b.cl.mma(0, 10, [(0, Span(1024, 2048))], (), [(0, TmemBlock(0, 64))], accumulate=False)
    b.cl.tma_store(0, 0, 11, [(0, Span(2048, 4096))], [(buf, Span(0, 2048))])
    b.cl.smem_read(rows(0), 0, vec(4096, 32, 4), 4, 12)
    assert [(f.strength, f.locations[0].line) for f in b.log.findings] == [("error", 12), ("lint", 10)]


def test_a_flag_in_shared_memory_orders_two_warps() -> None:
    for order in ("release", "relaxed"):
        b = Bench()
        b.fill()
        b.cl.smem_write(rows(0), 0, vec(2048, 32, 4), 4, 10)
        b.cl.smem_write(Lanes.one(0), 0, 512, 4, 11, "st.release.shared", atomic=True)
        b.cl.sync_location(0, ("smem", 0, 512), order)
        b.cl.smem_read(Lanes.one(1), 0, 512, 4, 12, "ld.acquire.shared", atomic=True)
        b.cl.sync_location(1, ("smem", 0, 512), "acquire")
        b.cl.smem_read(rows(1), 0, vec(2048, 32, 4), 4, 13)
        assert b.codes() == ([] if order == "release" else ["race.smem.write-read"])


def test_a_read_before_the_write_is_told_as_a_read_that_came_too_early() -> None:
    b = Bench()
    b.cl.smem_read(rows(0), 0, vec(1024, 32, 4), 4, 10)
    b.cl.smem_write(rows(1), 0, vec(1024, 32, 4), 4, 11)
    f = b.only()
    assert f.code == "race.smem.write-read"
    assert [x.line for x in f.locations] == [10, 11]


def test_many_barriers_grow_the_clock() -> None:
    b = Bench()
    bars = [b.barrier(i % 100) for i in range(300)]
    early = bars[0]
    b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
    b.cl.mbarrier_arrive((0,), early)
    b.cl.mbarrier_complete(early)
    b.cl.mbarrier_wait((1,), early, 0)
    b.cl.smem_read(rows(1), 0, vec(1024, 32, 4), 4, 11)
    b.clean()
    b.cl.smem_read(rows(2), 0, vec(1024, 32, 4), 4, 12)
    assert b.codes() == ["race.smem.write-read"]


def test_dropping_unused_states_changes_nothing() -> None:
    b = Bench()
    b.detector._compact_at = 4
    full, empty = b.barrier(0), b.barrier(1)
    for i in range(50):
        b.cl.mbarrier_wait((0,), empty, (i & 1) ^ 1)
        b.cl.tma_load(0, full, 10, [(0, Span(1024, 1536))])
        b.cl.mbarrier_complete(full)
        b.cl.mbarrier_wait((1,), full, i & 1)
        b.cl.smem_read(rows(1), 0, vec(1024, 32, 16), 16, 11)
        b.cl.mbarrier_arrive((1,), empty)
        b.cl.mbarrier_complete(empty)
        b.detector._compact_at = 4
    assert len(b.detector.states) < 20
    b.clean()
    b.cl.tma_load(0, full, 12, [(0, Span(1024, 1536))])
    assert b.lines() == [[12, 11]]


def test_reports_of_one_pair_of_lines_are_bounded() -> None:
    b = Bench()
    for _ in range(200):
        b.cl.smem_write(rows(0), 0, vec(1024, 32, 4), 4, 10)
        b.cl.smem_write(rows(1), 0, vec(1024, 32, 4), 4, 11)
    assert sorted(b.lines()) == [[10, 11], [11, 10]]


@pytest.mark.parametrize("by", ["readers, before the barrier", "issuer, after the barrier"])
def test_the_fence_before_a_barrier_is_that_of_the_thread_that_did_the_work(by: str) -> None:
    b = Bench()
    b.cl.tcgen05_st(rows(*ALL), 0, 0, 128, 10)
    b.cl.tcgen05_wait_st(ALL)
    if by == "readers, before the barrier":
        b.cl.tcgen05_fence_before(ALL)
    b.cl.bar_sync(ALL, 0, 0, 11)
    if by == "issuer, after the barrier":
        b.cl.tcgen05_fence_before((0,))
    b.cl.tcgen05_fence_after((0,))
    b.fill()
    b.cl.mma(0, 13, [(0, TILE)], (), [(0, TmemBlock(0, 128))])
    assert b.codes() == ([] if by == "readers, before the barrier" else ["tcgen05.missing-fence"])


def test_an_unwritten_read_names_who_writes_the_rest_of_the_buffer() -> None:
    b = Bench()
    b.cl.smem_write(rows(0), 0, vec(2048, 32, 4), 4, 10)
    b.cl.smem_read(rows(0), 0, vec(4096, 32, 4), 4, 11)
    f = b.only()
    assert f.code == "uninitialised.smem" and [x.line for x in f.locations] == [11, 10]
    assert "tile is written at line 10, but not there" in f.message


def test_a_write_over_an_mbarrier_matters_when_the_barrier_is_used_again() -> None:
    b = Bench()
    bar = b.barrier(0)
    b.cl.smem_write(Lanes.one(1), 0, 0, 8, 10)
    f = b.only()
    assert (f.code, f.strength, f.names) == ("mbarrier.overwritten", "lint", ("bar0",))
    b.cl.mbarrier_arrive((0,), bar, 11)
    assert b.only().strength == "error"


def test_memory_of_an_invalidated_mbarrier_is_free() -> None:
    b = Bench()
    b.barrier(0)
    b.cl.mbarrier_inval(0, 0)
    b.cl.smem_write(Lanes.one(1), 0, 0, 8, 10)
    b.clean()


@pytest.mark.parametrize("order", ["cta_sync", "relaxed cluster barrier", ""])
def test_tmem_is_used_after_its_allocation(order: str) -> None:
    b = Bench()
    b.fill()
    b.cl.tmem_alloc(0, 0, 128, 1, 10)
    if order == "cta_sync":
        b.cl.cta_sync(0)
    elif order:
        b.cl.cluster_arrive(ALL, 11, release=False)
        b.cl.cluster_complete()
        b.cl.cluster_wait(ALL, 12)
    b.cl.mma(0, 13, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    b.cl.mma(0, 14, [(0, TILE)], (), [(0, TmemBlock(0, 128))], accumulate=False)
    assert b.lines() == ([] if order else [[13, 10]])
    assert b.codes() == ([] if order else ["tmem.alloc-not-visible"])


@pytest.mark.parametrize("pair", [False, True])
def test_a_pair_of_ctas_allocates_together(pair: bool) -> None:
    b = Bench(ctas=2)
    b.fill()
    b.cl.tmem_alloc(0, 0, 128, 0, 10, pair)
    b.cl.tmem_alloc(1, 0, 128, 4, 11, pair)
    b.cl.mma(0, 13, [(0, TILE)], (), [(0, TmemBlock(0, 128)), (1, TmemBlock(0, 128))], accumulate=False)
    assert b.lines() == ([] if pair else [[13, 11]])
    b.cl.mma(1, 14, [(0, TILE)], (), [(1, TmemBlock(0, 128))], accumulate=False)
    assert [14, 11] in b.lines()
