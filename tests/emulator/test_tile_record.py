"""Observables of tiles, roles and overlap: what they count, on records made by hand and on the GEMM ladder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import emulator
from emulator.counters import OBSERVABLES
from emulator.tile_record import TileRecord
from kernels import gemm_ladder as ladder

SLICE = 128 * 64 * 2  # bytes of one box


def cta(index: int, clocks: np.ndarray | None = None) -> Any:
    """A CTA of a cluster of its own, with the clocks of its 6 warps if there is race detection."""
    hb = None if clocks is None else SimpleNamespace(now=clocks)
    return SimpleNamespace(linear=index, rank=0, num_warps=6, cluster=SimpleNamespace(index=index, hb=hb))


def record_of(waves: list[list[tuple[int, int]]]) -> dict[str, int]:
    """One CTA per place of a wave, one K tile: the counters of a launch that computes these tiles, wave by wave."""
    record = TileRecord()
    for wave in waves:
        for c, (m, n) in enumerate(wave):
            record.load(cta(c), 0, 0, (0, 128 * m), SLICE)
            record.load(cta(c), 0, 1, (0, 128 * n), SLICE)
            record.mma(cta(c), 0, 0, 128, 128 * 128, True)
    return record.counters()


@pytest.mark.parametrize(
    ("waves", "slices", "ideal"),
    [
        ([[(0, 0)]], 2, 2),
        ([[(0, 0), (0, 1), (1, 0), (1, 1)]], 4, 4),  # a square
        (
            [[(0, 0), (0, 1), (0, 2), (0, 3)], [(1, 0), (1, 1), (1, 2), (1, 3)]],
            10,
            8,
        ),  # rows of 4: 5 against 2 + 2
        ([[(0, 0), (0, 1), (0, 2), (0, 3)]], 5, 5),  # there is but one row
        ([[(0, 0), (1, 1), (2, 2), (3, 3)]], 8, 4),  # nothing is shared
        ([[(0, 0), (0, 1), (1, 0)], [(1, 1)]], 6, 6),  # the last wave is not full
    ],
)
def test_waves_count_distinct_slices(waves: list[list[tuple[int, int]]], slices: int, ideal: int) -> None:
    seen = record_of(waves)
    assert seen["waves.bytes"] == slices * SLICE
    assert seen["waves.bytes.ideal"] == ideal * SLICE
    assert seen["waves.percent"] == -(-100 * slices // ideal)


def test_loads_by_two_warps_belong_to_the_same_tile() -> None:
    record = TileRecord()
    for tile in range(2):
        record.load(cta(0), 0, 0, (0, 128 * tile), SLICE)
        record.load(cta(0), 1, 1, (0, 0), SLICE)
        record.mma(cta(0), 2, 0, 128, 128 * 128, True)
    seen = record.counters()
    assert seen["waves.bytes"] == 4 * SLICE and seen["warps.two_roles"] == 0


@pytest.mark.parametrize("spoil", ["one more load", "a third tensor", "no accumulation"])
def test_waves_are_left_out_when_tiles_cannot_be_told(spoil: str) -> None:
    record = TileRecord()
    for tile in range(2):
        record.load(cta(0), 0, 0, (0, tile), SLICE)
        record.load(cta(0), 0, 1, (0, tile), SLICE)
        if spoil == "a third tensor":
            record.load(cta(0), 0, 2, (0, tile), SLICE)
        if spoil != "no accumulation":
            record.mma(cta(0), 0, 0, 128, 128 * 128, True)
    if spoil == "one more load":
        record.load(cta(0), 0, 0, (0, 9), SLICE)
    assert not {"waves.bytes", "waves.percent"} & set(record.counters())


@pytest.mark.parametrize(
    ("loads", "known", "serial"),
    [(8, 1, 1), (7, 1, 0), (8, 0, 0), (0, 0, 0)],
    ids=["read back and known", "one load is missing", "nobody told warp 5", "not read at all"],
)
def test_an_accumulation_is_serial_when_it_must_follow_the_read_back(
    loads: int, known: int, serial: int
) -> None:
    """Warps 0 to 3 load an accumulator of 128 columns in two steps; warp 5 begins the next one, in other columns."""
    clocks = np.eye(6, dtype=np.int64)
    clocks[5, :4] = known
    record, own = TileRecord(), cta(0, clocks)
    record.mma(own, 5, 0, 128, 128 * 128, True)
    record.mma(own, 5, 0, 128, 128 * 128, False)  # goes on, begins nothing
    for i in range(loads):
        record.read_back(own, [i % 4], 64 * (i // 4), 64, 32)
    record.mma(own, 5, 128, 128, 128 * 128, True)
    seen = record.counters()
    assert (seen["accumulations"], seen["accumulations.serial"]) == (2, serial)


def test_the_first_accumulation_of_a_cta_is_never_serial() -> None:
    record = TileRecord()
    for index in range(2):
        record.mma(cta(index, np.eye(6, dtype=np.int64)), 5, 0, 128, 128 * 128, True)
    assert record.counters()["accumulations.serial"] == 0


def test_without_race_detection_nothing_is_known_of_overlap() -> None:
    record = TileRecord()
    record.mma(cta(0), 5, 0, 128, 128 * 128, True)
    assert "accumulations.serial" not in record.counters()


def test_a_warp_with_two_roles_counts_once() -> None:
    record = TileRecord()
    record.load(cta(0), 3, 0, (0, 0), SLICE)
    record.mma(cta(0), 3, 0, 128, 128 * 128, True)
    record.read_back(cta(0), [0, 1, 2, 3], 0, 128, 32)
    assert record.counters()["warps.two_roles"] == 1


def launch(kernel: emulator.Kernel, m: int, n: int, k: int, schedule: str) -> dict[str, int]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    return kernel.run(a, b, np.empty((m, n), np.float16), schedule=schedule).counters


@pytest.mark.parametrize(
    ("group", "slices"),
    [(1, 4 + 3), (4, 5 + 3)],
    ids=["row by row", "column by column"],
)
def test_order_of_the_persistent_kernel(group: int, slices: int) -> None:
    """3 x 2 tiles on 4 CTAs with two K tiles: the slices of both waves, counted by hand.

    Row by row the first wave is (0, 0), (0, 1), (1, 0), (1, 1) and the second (2, 0), (2, 1); column by column the first
    is (0, 0), (1, 0), (2, 0), (0, 1) and the second (1, 1), (2, 1).
    """
    kernel = emulator.compile(ladder.step6_persistent(384, 256, 128, num_ctas=4, group=group))
    seen = launch(kernel, 384, 256, 128, "late")
    assert seen["ctas"] == 4
    assert seen["waves.bytes"] == slices * 2 * SLICE and seen["waves.bytes.ideal"] == 7 * 2 * SLICE
    assert seen["warps.two_roles"] == 4  # warp 0 of each CTA does everything
    assert seen["accumulations"] == 6 and seen["accumulations.serial"] == 2


def test_roles_and_overlap_of_the_warp_specialized_kernel() -> None:
    """Nobody has two roles, and no accumulation waits for the epilogue before; the pair of CTAs counts as one.

    Five K tiles in four stages: under late some epilogues *are* over before the next accumulation begins. They need not.
    """
    kernel = emulator.compile(ladder.step7_warp_specialized(384, 256, 320, num_ctas=1, blk_n=128))
    seen = launch(kernel, 384, 256, 320, "late")
    assert (seen["warps.two_roles"], seen["accumulations"], seen["accumulations.serial"]) == (0, 6, 0)
    pair = launch(emulator.compile(ladder.step8_two_cta(256, 768, 64, num_ctas=2)), 256, 768, 64, "late")
    assert (pair["accumulations"], pair["accumulations.serial"], pair["waves.percent"]) == (3, 0, 100)
    assert pair["tcgen05.mma.cta_group::2"] == pair["tcgen05.mma"] == 3 * 4
    assert "tcgen05.mma.cta_group::2" not in seen


def test_warps_that_issue_mmas() -> None:
    """The cluster with the fewest: two consumers per cluster, one MMA warp per CTA, and a cluster without MMAs."""
    two = launch(
        emulator.compile(ladder.step9_two_consumers(1024, 256, 64, num_ctas=6)), 1024, 256, 64, "late"
    )
    assert two["warps.mma"] == 2  # the third cluster has no tile
    one = launch(emulator.compile(ladder.step6_persistent(256, 128, 64, num_ctas=2)), 256, 128, 64, "late")
    assert one["warps.mma"] == 1


def test_only_late_records() -> None:
    kernel = emulator.compile(ladder.step6_persistent(128, 128, 64, num_ctas=1))
    assert not set(OBSERVABLES) & set(launch(kernel, 128, 128, 64, "eager"))
    assert set(launch(kernel, 128, 128, 64, "late")) & set(OBSERVABLES)
