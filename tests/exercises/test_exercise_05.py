"""The solution of exercise 05 is right under every schedule, and its stub can be filled in step by step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import emulator

SHAPE = {"M": 128, "N": 128, "K": 64}
REGION = re.compile(r"(?ms)^( *)# BEGIN SOLUTION\n.*?^ *# END SOLUTION$")
STUB = r"\g<1># YOUR CODE HERE\n\g<1>pass"
SCHEDULES = 100


def tensors(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A (128, 64), B (128, 64) with standard normal values, and D (128, 128) full of NaN; all float16."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((SHAPE["M"], SHAPE["K"])).astype(np.float16)
    b = rng.standard_normal((SHAPE["N"], SHAPE["K"])).astype(np.float16)
    return a, b, np.full((SHAPE["M"], SHAPE["N"]), np.nan, np.float16)


@pytest.fixture(scope="module")
def solution(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> Any:
    """The solution, compiled by the emulator."""
    return emulator.compile(build(solution_cell("exercise_05"), SHAPE), arch="sm_100a")


@pytest.mark.parametrize("schedule", ["late", "eager"])
def test_solution_is_right(solution: Any, schedule: str) -> None:
    a, b, d = tensors(1)
    run = solution.run(a, b, d, seed=1, schedule=schedule)
    assert run.findings == ()
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64).T, rtol=2**-10, atol=2**-14)


def test_solution_gives_no_finding_in_any_schedule(solution: Any) -> None:
    a, b, expected = tensors(2)
    solution.run(a, b, expected, schedule="late")
    for seed in range(SCHEDULES):
        d = np.full_like(expected, np.nan)
        run = solution.run(a, b, d, seed=seed, schedule="random")
        assert run.findings == (), f"schedule {seed}"
        np.testing.assert_array_equal(d, expected, f"schedule {seed}")


def test_solution_uses_what_the_lesson_says(solution: Any) -> None:
    """The numbers of the prediction questions, counted: four MMA instructions, 32768 bytes of operands."""
    run = solution.run(*tensors(3))
    assert run.counters["tcgen05.mma"] == 4
    assert run.counters["tcgen05.commit"] == 1
    assert run.counters["tcgen05.alloc"] == run.counters["tcgen05.dealloc"] == 1
    assert run.counters["bytes.global.load"] == 2 * 128 * 64 * 2
    assert solution.resources["threads_per_cta"] == 128
    assert 32768 <= solution.resources["smem_bytes"] <= 32768 + 2048


def test_every_step_of_the_way_lowers(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    source = solution_cell("exercise_05")
    regions = list(REGION.finditer(source))
    assert len(regions) == 7
    for done in range(len(regions)):
        rest = regions[done].start()
        unfinished = source[:rest] + REGION.sub(STUB, source[rest:])
        assert unfinished.count("# YOUR CODE HERE") == len(regions) - done
        emulator.compile(build(unfinished, SHAPE), arch="sm_100a")


def test_each_region_has_its_todo(solution_cell: Callable[[str], str]) -> None:
    source = solution_cell("exercise_05")
    todos = re.findall(r"# TODO (\d+): .*(?:\n *# .*)*?\n *# BEGIN SOLUTION", source)
    assert todos == [str(n) for n in range(1, 8)]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('T.ptx["tcgen05.wait::ld.sync.aligned"]()', "tcgen05.missing-wait-ld"),
        ('T.ptx["tcgen05.fence::after_thread_sync"]()', "tcgen05.missing-fence"),
        ('T.ptx["tcgen05.fence::before_thread_sync"]()', "tcgen05.missing-fence"),
    ],
)
def test_what_is_only_against_the_letter_costs_nothing(
    line: str, code: str, solution_cell: Callable[[str], str], build: Callable[..., Any]
) -> None:
    """Kernels ship without these; the emulator says so, as lint, and the numbers are right."""
    source = solution_cell("exercise_05")
    assert line in source
    kernel = emulator.compile(build(source.replace(line, "pass"), SHAPE), arch="sm_100a")
    a, b, d = tensors(4)
    run = kernel.run(a, b, d)
    assert run.ok
    assert {(finding.strength, finding.code) for finding in run.findings} == {("lint", code)}
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64).T, rtol=2**-10, atol=2**-14)
