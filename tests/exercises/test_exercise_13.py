"""The solution of exercise 13 is right at every size and schedule, and its stub can be filled in step by step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import autograder.oracles.attending  # noqa: F401  registers the reference
import emulator
from autograder.compare import allowed_interval
from autograder.inputs import FAMILIES, generator
from autograder.oracles import ORACLES
from kernels import gemm_problem as gemm

Cell = Callable[[str], str]
Build = Callable[..., Any]
BASE = (256, 128)
SIZES = [BASE, (128, 64), (384, 64)]


def compiled(source: str, size: tuple[int, int], build: Build) -> emulator.Kernel:
    n, d = size
    return emulator.compile(build(source, {"N": n, "D": d}, "build_attention"), arch="sm_100a")


@cache
def problem(family: str, size: tuple[int, int]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Q, K, V, and the ends of the interval in which O is right."""
    arrays = [x.astype(np.float16) for x in FAMILIES[family](generator(1, family), [size] * 3)]
    reference = ORACLES["attention"]([x.astype(np.float64) for x in arrays])
    _, low, high = allowed_interval(reference, 1, 1.0, np.dtype(np.float16))
    return arrays, low, high


def launch(
    kernel: emulator.Kernel, family: str, size: tuple[int, int], **options: Any
) -> tuple[bool, emulator.Run]:
    """Whether every element of O, which was full of NaN, is right; and the run."""
    arrays, low, high = problem(family, size)
    o = np.full(size, np.nan, np.float16)
    run = kernel.run(*arrays, o, **options)
    return bool(((o >= low) & (o <= high)).all()), run


@pytest.mark.parametrize("size", SIZES)
def test_solution_is_right_and_clean(size: tuple[int, int], solution_cell: Cell, build: Build) -> None:
    """No finding, lints included, whatever the inputs and the schedule."""
    kernel = compiled(solution_cell("exercise_13"), size, build)
    for family in ("normal", "huge_scores", "identical_keys", "one_key"):
        for schedule, seed in gemm.SCHEDULES[:5]:
            right, run = launch(kernel, family, size, schedule=schedule, seed=seed)
            assert run.findings == () and right, (family, schedule, seed)


def test_the_tensor_core_s_own_arithmetic_is_right(solution_cell: Cell, build: Build) -> None:
    """With sums that align and truncate as published for the tensor core."""
    kernel = compiled(solution_cell("exercise_13"), (128, 64), build)
    for family in ("normal", "huge_scores"):
        right, run = launch(kernel, family, (128, 64), numerics="exact")
        assert run.findings == () and right


def test_solution_does_what_the_lesson_says(solution_cell: Cell, build: Build) -> None:
    """The answers: 64 columns of P, 16 MMAs per head with D = 128; and nothing but Q, K, V, O in global memory."""
    kernel = compiled(solution_cell("exercise_13"), BASE, build)
    _, run = launch(kernel, "normal", BASE)
    heads, seen = 2, run.counters
    assert seen["tcgen05.mma"] == 16 * heads and seen["mma.a_in_tmem"] == 8 * heads
    assert seen["bytes.tmem.store"] == heads * 128 * 64 * 4, "64 columns in 128 lanes"
    assert (seen["tcgen05.wait::ld"], seen["tcgen05.wait::st"]) == (8 * heads, 4 * heads)
    assert (seen["bytes.tma.load"], seen["bytes.global.store"]) == (3 * 256 * 128 * 2, 256 * 128 * 2)
    assert "ld.global" not in seen and "st.shared" not in seen
    assert kernel.resources["tmem_columns"] == 256


def test_largest_exponentials_are_as_the_third_answer_says() -> None:
    with np.errstate(over="ignore"):
        assert np.isfinite(np.float16(np.exp(11.0))) and np.isinf(np.float16(np.exp(12.0)))


@pytest.mark.parametrize("fence", ["before_thread_sync", "after_thread_sync"])
def test_a_missing_tcgen05_fence_costs_nothing(fence: str, solution_cell: Cell, build: Build) -> None:
    source = solution_cell("exercise_13")
    changed = source.replace(f'T.ptx["tcgen05.fence::{fence}"]()', "pass")
    assert changed != source
    right, run = launch(compiled(changed, (128, 64), build), "normal", (128, 64))
    assert right and run.ok and {finding.code for finding in run.findings} == {"tcgen05.missing-fence"}


def test_v_as_k_major_with_d_64_is_refused(solution_cell: Cell, build: Build) -> None:
    source = solution_cell("exercise_13").replace("transB=True, ", "")
    with pytest.raises(emulator.LoweringError, match="doesn't match B_K"):
        compiled(source, (128, 64), build)


def test_every_step_of_the_way_lowers(solution_cell: Cell, build: Build) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far, at both widths."""
    for number, text in enumerate(gemm.unfinished(solution_cell("exercise_13"))):
        compiled(text, BASE if number % 2 else (128, 64), build)


def test_each_region_has_its_todo(solution_cell: Cell) -> None:
    assert gemm.todos(solution_cell("exercise_13")) == list(range(1, 11))


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("tmem_figure")


def test_figures_are_up_to_date(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run: python tools/tmem_figure.py"


def test_the_map_shows_what_the_lesson_says(tool: ModuleType, tmp_path: Path) -> None:
    """S on columns 0 to 127, P on the first half of them when S is dead, O behind S; nothing stays patched."""
    from emulator.instructions import tcgen05

    before = tcgen05._check_mma, tcgen05._hb_ldst
    steps = [(step.what, step.reads, step.writes) for step in tool.record(tmp_path)]
    assert steps == [
        ("tcgen05.mma", [], [(0, 128)]),
        ("tcgen05.ld", [(0, 128)], []),
        ("tcgen05.st", [], [(0, 64)]),
        ("tcgen05.mma", [(0, 64)], [(128, 256)]),
        ("tcgen05.ld", [(128, 256)], []),
    ]
    assert (tcgen05._check_mma, tcgen05._hb_ldst) == before


def test_a_stale_figure_is_found(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "figures", lambda scratch: {"major.svg": "other"})
    assert tool.main(["--check"]) == 1
    assert "exercise_13/figures/major.svg is not what" in capsys.readouterr().out
