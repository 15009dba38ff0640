"""The solution of exercise 07 is right at every size and schedule, and its stub can be filled in step by step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels import gemm_problem as gemm

BASE = (256, 384, 320)
Cell = Callable[[str], str]


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (BASE, "float16"),
        ((128, 128, 64), "float16"),
        ((128, 512, 128), "float16"),
        ((384, 128, 192), "bfloat16"),
    ],
)
def test_solution_is_right_and_clean(
    size: gemm.Size, dtype: str, solution_cell: Cell, build: gemm.Build
) -> None:
    kernel = gemm.compiled(solution_cell("exercise_07"), size, build, dtype)
    gemm.assert_right_and_clean_everywhere(kernel, size, dtype)


def test_solution_does_what_the_lesson_says(solution_cell: Cell, build: gemm.Build) -> None:
    """No generic access to global memory; the answers to the questions in small: 32768 bytes, two loads per K tile."""
    m, n, k = BASE
    kernel = gemm.compiled(solution_cell("exercise_07"), BASE, build)
    _, run = gemm.launch(kernel, BASE)
    tiles, k_tiles = 6, 5
    seen = run.counters
    assert seen.items() >= gemm.works_per_launch(BASE).items()
    assert "ld.global" not in seen and "st.global" not in seen
    assert seen["cp.async.bulk.tensor.load"] == 2 * tiles * k_tiles
    assert seen["bytes.tma.load"] == 32768 * tiles * k_tiles == m * n * k // 32
    assert (seen["cp.async.bulk.tensor.store"], seen["bytes.tma.store"]) == (tiles, 2 * m * n)
    assert seen["mbarrier.arrive.expect_tx"] == seen["tcgen05.commit"] == tiles * k_tiles
    assert seen["mbarrier.wait"] == 2 * tiles * k_tiles, "by one thread, for each of the two barriers"
    assert seen["tma.loads_in_flight_at_mma"] == 0, "loads and MMAs take turns"


def test_the_main_loop_has_no_proxy_fence(solution_cell: Cell, build: gemm.Build) -> None:
    """The answer to q3: each warp executes one proxy fence per tile, however many K tiles there are."""
    for k in (64, 320):
        size = (128, 128, k)
        _, run = gemm.launch(gemm.compiled(solution_cell("exercise_07"), size, build), size)
        assert run.counters["fence.proxy.async"] == 4


@pytest.mark.parametrize("fence", ["before_thread_sync", "after_thread_sync"])
def test_a_missing_tcgen05_fence_costs_nothing(fence: str, solution_cell: Cell, build: gemm.Build) -> None:
    """As the instructor notes say: what is missing is shown as lint, and the numbers are right."""
    source = solution_cell("exercise_07")
    changed = source.replace(f'T.ptx["tcgen05.fence::{fence}"]()', "pass")
    assert changed != source
    d, run = gemm.launch(gemm.compiled(changed, BASE, build), BASE)
    assert run.ok and {finding.code for finding in run.findings} == {"tcgen05.missing-fence"}
    gemm.assert_right(d, BASE)


def test_every_step_of_the_way_lowers(solution_cell: Cell, build: gemm.Build) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    for text in gemm.unfinished(solution_cell("exercise_07")):
        gemm.compiled(text, BASE, build)


def test_each_region_has_its_todo(solution_cell: Cell) -> None:
    assert gemm.todos(solution_cell("exercise_07")) == list(range(1, 12))
