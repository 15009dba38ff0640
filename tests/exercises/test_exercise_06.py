"""The solution of exercise 06 is right at every size and schedule, and its stub can be filled in step by step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels import gemm_problem as gemm

BASE = (256, 384, 320)
WAIT = "T.cuda.mbarrier_wait(mma_done.ptr_to([0]), phase)"
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
    kernel = gemm.compiled(solution_cell("exercise_06"), size, build, dtype)
    gemm.assert_right_and_clean_everywhere(kernel, size, dtype)


def test_solution_does_what_the_lesson_says(solution_cell: Cell, build: gemm.Build) -> None:
    """Once per K tile, or once per tile; the answers to q1 and q3 in small: 6 CTAs, A is loaded 3 times."""
    m, n, k = BASE
    kernel = gemm.compiled(solution_cell("exercise_06"), BASE, build)
    _, run = gemm.launch(kernel, BASE)
    tiles, k_tiles = 6, 5
    seen = run.counters
    assert seen.items() >= gemm.works_per_launch(BASE).items()
    assert kernel.resources["grid"] == (2, 3, 1) and seen["tcgen05.alloc"] == tiles
    assert seen["tcgen05.commit"] == tiles * k_tiles and seen["mbarrier.wait"] == 4 * tiles * k_tiles
    assert seen["bytes.global.load"] == 2 * (3 * m * k + 2 * n * k)
    assert seen["bytes.tmem.load"] == 4 * m * n
    assert seen["tma.loads_in_flight_at_mma"] == 0


def test_the_last_of_25_k_tiles_waits_for_parity_0(solution_cell: Cell, build: gemm.Build) -> None:
    """The answer to q2: the other parity there, and only there, is caught."""
    size = (128, 128, 1600)
    source = solution_cell("exercise_06")
    for parity, ok in ((0, True), (1, False)):
        changed = source.replace(WAIT, WAIT.replace("phase", f"T.if_then_else(k == 24, {parity}, phase)"))
        assert changed != source
        _, run = gemm.launch(gemm.compiled(changed, size, build), size)
        assert run.ok is ok


def test_one_warp_may_wait_for_all_if_they_meet(solution_cell: Cell, build: gemm.Build) -> None:
    """As the instructor notes say: a wait by warp 0 and a CTA sync are right, too."""
    source = solution_cell("exercise_06")
    indent = " " * 12
    met = f"if warp == 0:\n{indent}    {WAIT}\n{indent}T.cuda.cta_sync()"
    kernel = gemm.compiled(source.replace(WAIT, met), BASE, build)
    for schedule, seed in gemm.SCHEDULES[:4]:
        d, run = gemm.launch(kernel, BASE, schedule, seed)
        assert run.ok
        gemm.assert_right(d, BASE)


def test_every_step_of_the_way_lowers(solution_cell: Cell, build: gemm.Build) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    for text in gemm.unfinished(solution_cell("exercise_06")):
        gemm.compiled(text, BASE, build)


def test_each_region_has_its_todo(solution_cell: Cell) -> None:
    assert gemm.todos(solution_cell("exercise_06")) == list(range(1, 10))
