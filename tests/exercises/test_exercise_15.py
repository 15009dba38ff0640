"""The solution of exercise 15 is right for lengths and groups of all kinds, and its stub can be filled in step by step."""

from __future__ import annotations

from collections.abc import Callable
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
NAMES = ("B", "SQ", "SKV", "HQ", "HKV", "causal", "SMS")
STAGE_1 = (2, 128, 256, 1, 1, 0, 2)
EXP2 = 7.5e-5
SHAPES = {
    "ragged": ((2, 200, 333, 1, 1, 0, 2), "peaked_scores"),
    "causal_on_one_cta": ((1, 512, 512, 1, 1, 1, 1), "normal"),
    "fewer_keys": ((1, 300, 100, 1, 1, 1, 1), "huge_scores"),
    "groups_of_8": ((2, 40, 140, 16, 2, 1, 2), "peaked_scores"),
}


def compiled(source: str, shape: tuple[int, ...], build: Build) -> emulator.Kernel:
    prim_func = build(source, dict(zip(NAMES, shape, strict=True)), "build_attention")
    return emulator.compile(prim_func, arch="sm_100a")


@pytest.mark.parametrize("name", SHAPES)
def test_solution_is_right_and_clean(name: str, solution_cell: Cell, build: Build) -> None:
    """No finding, lints included, whatever completes when."""
    shape, family = SHAPES[name]
    b, sq, skv, hq, hkv, causal, _ = shape
    sizes = [(b, sq, hq, 128), *[(b, skv, hkv, 128)] * 2]
    arrays = [x.astype(np.float16) for x in FAMILIES[family](generator(1, family), sizes)]
    reference = ORACLES["attention"]([x.astype(np.float64) for x in arrays], causal=causal, exp2=EXP2)
    _, low, high = allowed_interval(reference, 1, 1.0, np.dtype(np.float16))
    kernel = compiled(solution_cell("exercise_15"), shape, build)
    for schedule, seed in (("late", 0), ("eager", 0), ("random", 1)):
        o = np.full(sizes[0], np.nan, np.float16)
        run = kernel.run(*arrays, o, schedule=schedule, seed=seed)
        assert run.findings == (), (schedule, seed)
        assert ((o >= low) & (o <= high)).all(), (schedule, seed)


def test_the_polynomial_is_as_exact_as_the_lesson_says() -> None:
    f = np.linspace(-0.5, 0.5, 20001).astype(np.float32)
    c0, c1, c2, c3 = np.float32([0.9999281, 0.693261, 0.2426111, 0.05517167])
    power = ((c3 * f + c2) * f + c1) * f + c0
    assert np.abs(power / np.exp2(f.astype(np.float64)) - 1).max() <= EXP2


def test_sizes_of_later_stages_are_refused(solution_cell: Cell, build: Build) -> None:
    stub = next(gemm.unfinished(solution_cell("exercise_15")))
    for shape in ((1, 128, 128, 1, 1, 1, 1), (1, 128, 128, 2, 1, 0, 1)):
        with pytest.raises(NotImplementedError, match="comes with stage"):
            build(stub, dict(zip(NAMES, shape, strict=True)), "build_attention")


def test_some_steps_of_the_way_lower(solution_cell: Cell, build: Build) -> None:
    """From the stub to the solution, TVM accepts what the learner has so far; every seventh region is tried."""
    steps = list(gemm.unfinished(solution_cell("exercise_15")))
    for text in steps[::7]:
        compiled(text, STAGE_1, build)


def test_each_region_has_its_todo(solution_cell: Cell) -> None:
    assert gemm.todos(solution_cell("exercise_15")) == list(range(1, 33))
