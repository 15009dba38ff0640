"""The solution of exercise 08 is right at every size and schedule, and its stub can be filled in step by step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels import gemm_problem as gemm

BASE = (256, 384, 704)
Cell = Callable[[str], str]
MOST, BESIDE = "tma.loads_in_flight_at_mma", "tcgen05.mma.beside_loads"


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        ((128, 256, 704), "float16"),
        ((128, 128, 64), "float16"),
        ((256, 128, 192), "bfloat16"),
        ((128, 128, 256), "float16"),
        ((128, 128, 320), "float16"),
    ],
)
def test_solution_is_right_and_clean(
    size: gemm.Size, dtype: str, solution_cell: Cell, build: gemm.Build
) -> None:
    """K tiles: almost three rounds, one, AHEAD, STAGES, one more than STAGES."""
    kernel = gemm.compiled(solution_cell("exercise_08"), size, build, dtype)
    gemm.assert_right_and_clean_everywhere(kernel, size, dtype)


def test_solution_does_what_the_lesson_says(solution_cell: Cell, build: gemm.Build) -> None:
    kernel = gemm.compiled(solution_cell("exercise_08"), BASE, build)
    _, run = gemm.launch(kernel, BASE)
    tiles, k_tiles = 6, 11
    seen = run.counters
    assert seen.items() >= gemm.works_per_launch(BASE).items()
    assert seen["bytes.tma.load"] == 32768 * tiles * k_tiles
    assert seen["tcgen05.commit"] == tiles * (k_tiles + 1), "one more, for acc_ready"
    assert seen["mbarrier.wait"] == tiles * (2 * k_tiles + 4), "full, empty; acc_ready by four warps"
    assert (seen[MOST], seen[BESIDE]) == (6, 4 * tiles * (k_tiles - 1))
    assert 4 * 32768 + 32768 <= kernel.resources["smem_bytes"] <= 161 * 1024


@pytest.mark.parametrize(("stages", "most"), [(2, 2), (3, 4), (5, 8)])
def test_the_ring_may_have_other_lengths(
    stages: int, most: int, solution_cell: Cell, build: gemm.Build
) -> None:
    """Right with every number of stages; two stages hold one K tile in flight, too few for the check."""
    size = (128, 128, 704)
    source = solution_cell("exercise_08").replace("STAGES = 4", f"STAGES = {stages}")
    kernel = gemm.compiled(source, size, build)
    for schedule, seed in gemm.SCHEDULES[:4]:
        d, run = gemm.launch(kernel, size, schedule, seed)
        assert run.findings == ()
        gemm.assert_right(d, size)
        if schedule == "late":
            assert run.counters[MOST] == most


def test_a_load_into_the_stage_of_the_running_mma_is_right_too(
    solution_cell: Cell, build: gemm.Build
) -> None:
    """AHEAD = STAGES waits for the MMA that was just issued; as the notebook says, it is still right."""
    source = solution_cell("exercise_08").replace("AHEAD = STAGES - 1", "AHEAD = STAGES")
    d, run = gemm.launch(gemm.compiled(source, BASE, build), BASE)
    assert run.findings == ()
    gemm.assert_right(d, BASE)


@pytest.mark.parametrize(("position", "parity"), [("load", 1), ("mma", 0)])
def test_k_tile_9_waits_for(position: str, parity: int, solution_cell: Cell, build: gemm.Build) -> None:
    """The answers to q2 and q3: the other parity there, and only there, is caught."""
    size = (128, 128, 704)
    wait = {"load": "empty.wait(load.stage, load.phase)", "mma": "full.wait(mma.stage, mma.phase)"}[position]
    source = solution_cell("exercise_08")
    for answer in (0, 1):
        changed = source.replace(wait, wait[:-1].replace(f"{position}.phase", "") + "PARITY)")
        chosen = f"T.if_then_else(k == 9, {answer}, {position}.phase)"
        changed = changed.replace("PARITY", chosen)
        assert chosen in changed
        _, run = gemm.launch(gemm.compiled(changed, size, build), size)
        assert run.ok is (answer == parity)


def test_every_step_of_the_way_lowers(solution_cell: Cell, build: gemm.Build) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    for text in gemm.unfinished(solution_cell("exercise_08")):
        gemm.compiled(text, BASE, build)


def test_each_region_has_its_todo(solution_cell: Cell) -> None:
    assert gemm.todos(solution_cell("exercise_08")) == list(range(1, 15))
