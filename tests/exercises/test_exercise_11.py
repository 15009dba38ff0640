"""The solution of exercise 11 is right for every count of tiles and clusters, and its stub can be filled in step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import emulator
from kernels import gemm_problem as gemm

SIZE = {"M": 512, "N": 768, "K": 320, "dtype": "float16", "SMS": 4}
REGIONS = 18


def compiled(source: str | Path, build: gemm.Build, m: int, n: int, k: int, sms: int) -> emulator.Kernel:
    return emulator.compile(build(source, {"M": m, "N": n, "K": k, "dtype": "float16", "SMS": sms}))


@pytest.fixture(scope="module")
def source(solution_cell: Callable[[str], str]) -> str:
    return solution_cell("exercise_11")


@pytest.mark.parametrize(
    ("m", "n", "k", "sms"),
    [
        (512, 768, 320, 4),  # 3 tiles for each cluster; 5 K tiles in 6 stages
        (256, 256, 64, 6),  # the smallest, with idle clusters
        (768, 256, 448, 2),  # an odd number of tiles on one cluster, 7 K tiles
    ],
)
def test_solution_is_right(m: int, n: int, k: int, sms: int, source: str, build: gemm.Build) -> None:
    gemm.assert_right_and_clean_everywhere(compiled(source, build, m, n, k, sms), (m, n, k))


def test_answers(source: str, build: gemm.Build, solution_cell: Callable[[str], str]) -> None:
    """65536 bytes per K tile, 256 arrivals per tile, and what two CTAs of exercise 10 load more."""
    m, n, k = 256, 256, 128
    _, run = gemm.launch(compiled(source, build, m, n, k, 2), (m, n, k))
    assert run.counters["bytes.tma.load"] == 2 * 65536
    assert run.counters["mbarrier.arrive"] == 256 // 32  # warp-level: 32 arrivals each
    assert run.counters["tcgen05.mma"] == run.counters["tcgen05.mma.cta_group::2"] == 2 * 4
    assert run.counters["tcgen05.commit"] == run.counters["tcgen05.commit.multicast::cluster"] == 2 + 1
    _, before = gemm.launch(compiled(solution_cell("exercise_10"), build, m, n, k, 2), (m, n, k))
    assert "tcgen05.mma.cta_group::2" not in before.counters
    more = before.counters["bytes.tma.load"] - run.counters["bytes.tma.load"]
    assert more * (4096 // k) == 2097152


def test_two_ctas_are_one_cluster_whatever_the_number_of_k_tiles(source: str, build: gemm.Build) -> None:
    """No role waits for the end of a tile, also when the K tiles are a multiple of the stages."""
    for k_tiles in (6, 7):
        m, n, k = 768, 256, 64 * k_tiles
        _, run = gemm.launch(compiled(source, build, m, n, k, 2), (m, n, k))
        assert run.counters["accumulations"] == 3
        assert run.counters["accumulations.serial"] == run.counters["warps.two_roles"] == 0


@pytest.mark.parametrize(
    ("mutant", "says"),
    [
        ("acc_full_in_one_cta", "acc_full[0] of CTA 0 has got the arrivals"),
        ("commit_to_one_cta", "empty[0] of CTA 0 has got the arrivals"),
        ("mask_of_rank_1", "empty[0] of CTA 1 has got the arrivals"),
        ("own_acc_empty", "acc_empty[0] of CTA 1 has got the other 128 arrivals"),
        ("own_full", "full[0] of CTA 1 has got bytes that it did not expect"),
    ],
)
def test_a_hang_has_one_cause_and_names_the_cta(
    mutant: str, says: str, course: Path, build: gemm.Build
) -> None:
    """Although seven groups of warps wait, in each of two clusters."""
    kernel = compiled(course / "tests" / "mutants" / "exercise_11" / f"{mutant}.py", build, 512, 768, 320, 4)
    for schedule, seed in (("late", 0), ("random", 1)):
        _, run = gemm.launch(kernel, (512, 768, 320), schedule, seed)
        hangs = [f for f in run.findings if f.code == "deadlock"]
        (cause,) = [f for f in hangs if "consequence" not in f.data]
        assert says in cause.message, str(cause)


def test_every_step_of_the_way_lowers(source: str, build: gemm.Build) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    steps = list(gemm.unfinished(source))
    assert len(steps) == REGIONS
    for text in steps:
        emulator.compile(build(text, SIZE))


def test_each_region_has_its_todo(source: str) -> None:
    assert gemm.todos(source) == list(range(1, REGIONS + 1))
