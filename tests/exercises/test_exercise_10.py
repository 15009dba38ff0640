"""The solution of exercise 10 is right for every count of tiles and CTAs, and its stub can be filled in step by step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import emulator
from kernels import gemm_problem as gemm

SIZE = {"M": 640, "N": 512, "K": 320, "dtype": "float16", "SMS": 3}
REGIONS = 14


def compiled(source: str, build: gemm.Build, m: int, n: int, k: int, sms: int) -> emulator.Kernel:
    return emulator.compile(build(source, {"M": m, "N": n, "K": k, "dtype": "float16", "SMS": sms}))


@pytest.fixture(scope="module")
def source(solution_cell: Callable[[str], str]) -> str:
    return solution_cell("exercise_10")


@pytest.mark.parametrize(
    ("m", "n", "k", "sms"),
    [
        (640, 512, 320, 3),  # 4, 3 and 3 tiles; 5 K tiles in 4 stages
        (128, 256, 64, 3),  # the smallest, with idle CTAs
        (384, 256, 576, 1),  # an odd number of tiles on one CTA, 9 K tiles
    ],
)
def test_solution_is_right(m: int, n: int, k: int, sms: int, source: str, build: gemm.Build) -> None:
    gemm.assert_right_and_clean_everywhere(compiled(source, build, m, n, k, sms), (m, n, k))


def test_roles_never_wait_for_the_end_of_a_tile(source: str, build: gemm.Build) -> None:
    """Whatever the number of K tiles, also when it is a multiple of the stages."""
    for k_tiles in (1, 4, 5):
        m, n, k = 640, 256, 64 * k_tiles
        _, run = gemm.launch(compiled(source, build, m, n, k, 1), (m, n, k))
        assert run.counters["accumulations"] == 5
        assert run.counters["accumulations.serial"] == run.counters["warps.two_roles"] == 0


def test_one_accumulator_makes_every_tile_wait(source: str, build: gemm.Build) -> None:
    """Right, and without a finding; but each accumulation after a CTA's first must follow the epilogue before."""
    m, n, k = 640, 512, 320
    changed = source.replace("ACCS = 2", "ACCS = 1")
    assert changed != source
    kernel = compiled(changed, build, m, n, k, 3)
    gemm.assert_right_and_clean_everywhere(kernel, (m, n, k))
    _, run = gemm.launch(kernel, (m, n, k))
    assert (run.counters["accumulations"], run.counters["accumulations.serial"]) == (10, 7)


def test_answers(source: str, build: gemm.Build) -> None:
    """acc_empty counts 128 arrivals per tile, full 49152 bytes; the fifth tile waits for parity 1."""
    m, n, k = 640, 256, 64
    _, run = gemm.launch(compiled(source, build, m, n, k, 1), (m, n, k))
    assert run.counters["bytes.tma.load"] == 5 * 49152
    assert run.counters["mbarrier.arrive"] == 5 * 4  # warp-level: four warps of 32 threads
    wait = "acc_empty.wait(slot.stage, slot.phase)"
    for parity, ok in ((1, True), (0, False)):
        changed = source.replace(
            wait, f"acc_empty.wait(slot.stage, T.if_then_else(tiles.m_idx == 4, {parity}, slot.phase))"
        )
        assert changed != source
        a, b = gemm.operands((m, n, k))
        run = compiled(changed, build, m, n, k, 1).run(a, b, np.empty((m, n), np.float16))
        assert run.ok is ok


def test_every_step_of_the_way_lowers(source: str, build: gemm.Build) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    steps = list(gemm.unfinished(source))
    assert len(steps) == REGIONS
    for text in steps:
        emulator.compile(build(text, SIZE))


def test_each_region_has_its_todo(source: str) -> None:
    assert gemm.todos(source) == list(range(1, REGIONS + 1))
