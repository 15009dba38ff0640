"""The solution of exercise 11 is right for every count of tiles and clusters, and its stub can be filled in step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import emulator
from kernels import gemm_problem as gemm

SIZE = {"M": 512, "N": 768, "K": 320, "dtype": "float16", "SMS": 4}
REGIONS = 17


def compiled(source: str | Path, build: gemm.Build, m: int, n: int, k: int, sms: int) -> emulator.Kernel:
    return emulator.compile(build(source, {"M": m, "N": n, "K": k, "dtype": "float16", "SMS": sms}))


@pytest.fixture(scope="module")
def source(solution_cell: Callable[[str], str]) -> str:
    return solution_cell("exercise_11")


@pytest.mark.parametrize(
    ("m", "n", "k", "sms"),
    [
        (512, 768, 320, 4),  # three tiles on each of two clusters; 5 K tiles in 6 stages
        (256, 256, 64, 4),  # the smallest, with an idle cluster
        (256, 768, 832, 2),  # an odd number of tiles on one cluster, 13 K tiles
    ],
)
def test_solution_is_right(m: int, n: int, k: int, sms: int, source: str, build: gemm.Build) -> None:
    gemm.assert_right_and_clean_everywhere(compiled(source, build, m, n, k, sms), (m, n, k))


def test_solution_does_what_the_lesson_says(source: str, build: gemm.Build) -> None:
    """Six tiles of five K tiles: 64 KiB each, 256 arrivals per tile, MMAs by pairs only, no waiting for epilogues."""
    size = (512, 768, 320)
    _, run = gemm.launch(compiled(source, build, *size, 4), size)
    seen = run.counters
    assert seen["bytes.tma.load"] == 6 * 5 * 65536
    assert seen["mbarrier.arrive"] == 6 * 8  # warp-level: four warps in each of two CTAs
    assert seen["tcgen05.mma"] == seen["tcgen05.mma.cta_group::2"] == 6 * 5 * 4
    assert seen["accumulations"] == 6
    assert seen["accumulations.serial"] == seen["warps.two_roles"] == 0


def test_an_arrival_in_the_wrong_cta_is_called_that(build: gemm.Build, course: Path) -> None:
    """128 of 256 arrivals, and where the others went: not a wrong count."""
    size = (512, 768, 320)
    mutant = course / "tests" / "mutants" / "exercise_11" / "own_acc_empty.py"
    _, run = gemm.launch(compiled(mutant, build, *size, 4), size)
    hang = next(f for f in run.findings if f.code == "deadlock" and "acc_empty[0]" in f.names)
    assert "Mbarrier acc_empty[0] of CTA 1 has got the arrivals." in hang.message and "rank" in hang.fix


def test_every_step_of_the_way_lowers(source: str, build: gemm.Build) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    steps = list(gemm.unfinished(source))
    assert len(steps) == REGIONS
    for text in steps:
        emulator.compile(build(text, SIZE))


def test_each_region_has_its_todo(source: str) -> None:
    assert gemm.todos(source) == list(range(1, REGIONS + 1))
