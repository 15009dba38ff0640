"""What counts as overlap of TMA loads and tcgen05.mma, on kernels of the GEMM ladder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import emulator
import emulator.lowering
from emulator.counters import COUNTED_BY, INSTRUCTIONS, MAXIMA, OBSERVABLES
from kernels import gemm_ladder as ladder

MOST, BESIDE = "tma.loads_in_flight_at_mma", "tcgen05.mma.beside_loads"


def counters(
    builder: Any, shape: tuple[int, int, int], schedule: str = "late", **options: int
) -> dict[str, int]:
    m, n, k = shape
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(s).astype(np.float16) for s in ((m, k), (n, k)))
    kernel = emulator.compile(builder(m, n, k, **options))
    return kernel.run(a, b, np.zeros((m, n), np.float16), schedule=schedule).counters


@pytest.mark.parametrize("builder", [ladder.step3_tile_grid, ladder.step4_tma])
def test_nothing_overlaps_without_a_pipeline(builder: Any) -> None:
    seen = counters(builder, (256, 128, 320))
    assert (seen[MOST], seen.get(BESIDE, 0)) == (0, 0)


@pytest.mark.parametrize(("stages", "most"), [(2, 2), (3, 4), (4, 6)])
def test_a_ring_keeps_all_but_one_stage_in_flight(stages: int, most: int) -> None:
    """Two loads per K tile; the last K tile of each of two output tiles has nothing left to load beside it."""
    seen = counters(ladder.step5_pipelined, (256, 128, 320), stages=stages)
    assert (seen[MOST], seen[BESIDE]) == (most, 2 * 4 * (5 - 1))


@pytest.mark.parametrize(("k", "most", "beside"), [(64, 0, 0), (128, 2, 4), (192, 4, 8)])
def test_short_sums_have_less_to_load(k: int, most: int, beside: int) -> None:
    seen = counters(ladder.step5_pipelined, (128, 128, k))
    assert (seen[MOST], seen.get(BESIDE, 0)) == (most, beside)


def test_only_the_latest_completion_is_looked_at() -> None:
    """The other schedules say how fast an engine was, not what the program allows."""
    for schedule in ("eager", "random"):
        seen = counters(ladder.step5_pipelined, (128, 128, 192), schedule)
        assert not set(seen) & set(OBSERVABLES)


def test_the_lists_fit() -> None:
    assert set(MAXIMA) <= set(OBSERVABLES)
    assert set(OBSERVABLES) <= set(COUNTED_BY)
    assert {name for names in COUNTED_BY.values() for name in names} <= set(INSTRUCTIONS)
