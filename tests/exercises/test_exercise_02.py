"""The solution of exercise 02 is right under every schedule, and its stub can be filled in step by step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import emulator

SHAPE = {"M": 56, "N": 552}
REGION = re.compile(r"(?ms)^( *)# BEGIN SOLUTION\n.*?^ *# END SOLUTION$")
STUB = r"\g<1># YOUR CODE HERE\n\g<1>pass"
SCHEDULES = 10
WAIT = "(t // STAGES) % 2"


def tensors(seed: int, m: int = SHAPE["M"], n: int = SHAPE["N"]) -> tuple[np.ndarray, np.ndarray]:
    """A (m, n) with standard normal values, and D (m, n) full of NaN; both float16."""
    a = np.random.default_rng(seed).standard_normal((m, n)).astype(np.float16)
    return a, np.full_like(a, np.nan)


@pytest.fixture(scope="module")
def solution(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> Any:
    """The solution, compiled by the emulator."""
    return emulator.compile(build(solution_cell("exercise_02"), SHAPE), arch="sm_100a")


def test_solution_gives_no_finding_in_any_schedule(solution: Any) -> None:
    a, _ = tensors(2)
    for schedule, seeds in (("late", 1), ("eager", 1), ("random", SCHEDULES)):
        for seed in range(seeds):
            d = np.full_like(a, np.nan)
            run = solution.run(a, d, seed=seed, schedule=schedule)
            assert run.findings == (), f"schedule {schedule} {seed}"
            np.testing.assert_array_equal(d, 2 * a, f"schedule {schedule} {seed}")


@pytest.mark.parametrize(("m", "n"), [(8, 8), (33, 136), (40, 2320)])
def test_solution_is_right_for_other_sizes(
    m: int, n: int, solution_cell: Callable[[str], str], build: Callable[..., Any]
) -> None:
    """Less than one tile; one row and eight columns too many; strips side by side; on sm_90a."""
    kernel = emulator.compile(build(solution_cell("exercise_02"), {"M": m, "N": n}), arch="sm_90a")
    a, d = tensors(3, m, n)
    assert kernel.run(a, d).findings == ()
    np.testing.assert_array_equal(d, 2 * a)


def test_solution_uses_what_the_lesson_says(solution: Any) -> None:
    """Two strips of five tiles, 8192 bytes each wherever the matrix ends; two stages of SMEM."""
    run = solution.run(*tensors(3))
    assert run.counters["cp.async.bulk.tensor.load"] == run.counters["cp.async.bulk.tensor.store"] == 10
    assert run.counters["bytes.tma.load"] == 10 * 8192
    assert run.counters["mbarrier.init"] == 4
    assert solution.resources["grid"] == (2, 1, 1) and solution.resources["threads_per_cta"] == 128
    assert 2 * 8192 <= solution.resources["smem_bytes"] <= 2 * 8192 + 1024


def test_tile_9_waits_for_parity_0(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> None:
    """The answer to q2: a kernel that waits for the other parity there, and only there, is caught."""
    source = solution_cell("exercise_02")
    shape = {"M": 32, "N": 10 * 128}
    for parity, ok in ((0, True), (1, False)):
        changed = source.replace(WAIT, f"T.if_then_else(t == 9, {parity}, {WAIT})")
        assert changed != source
        kernel = emulator.compile(build(changed, shape), arch="sm_100a")
        assert kernel.run(*tensors(4, 32, 10 * 128)).ok is ok


def test_every_step_of_the_way_lowers(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    source = solution_cell("exercise_02")
    regions = list(REGION.finditer(source))
    assert len(regions) == 8
    for done in range(len(regions)):
        rest = regions[done].start()
        unfinished = source[:rest] + REGION.sub(STUB, source[rest:])
        assert unfinished.count("# YOUR CODE HERE") == len(regions) - done
        emulator.compile(build(unfinished, SHAPE), arch="sm_100a")


def test_each_region_has_its_todo(solution_cell: Callable[[str], str]) -> None:
    source = solution_cell("exercise_02")
    todos = re.findall(r"# TODO (\d+): .*(?:\n *# .*)*?\n *# BEGIN SOLUTION", source)
    assert todos == [str(n) for n in range(1, 9)]


def test_a_proxy_fence_by_the_storing_thread_alone_costs_nothing(
    solution_cell: Callable[[str], str], build: Callable[..., Any]
) -> None:
    """Behind the CTA sync it is not the usual form; the emulator says so, as lint."""
    source = solution_cell("exercise_02")
    fence, sync = 'T.ptx["fence.proxy.async.shared::cta"]()', "T.cuda.cta_sync()"
    late = f"{sync}\n            if thread == 0:\n                {fence}"
    changed = re.sub(rf"{re.escape(fence)}\n *{re.escape(sync)}", late, source)
    assert changed != source
    a, d = tensors(5)
    run = emulator.compile(build(changed, SHAPE), arch="sm_100a").run(a, d)
    assert {(finding.strength, finding.code) for finding in run.findings} == {
        ("lint", "proxy.fence-by-another-thread")
    }
    np.testing.assert_array_equal(d, 2 * a)


def test_a_missing_wait_at_the_end_costs_nothing(
    solution_cell: Callable[[str], str], build: Callable[..., Any]
) -> None:
    """Kernels ship without it; the emulator says so, as lint, at the line of the store."""
    source = solution_cell("exercise_02")
    wait = 'T.ptx["cp.async.bulk.wait_group"](0)'
    assert source.count(wait) == 1
    a, d = tensors(6)
    run = emulator.compile(build(source.replace(wait, "pass"), SHAPE), arch="sm_100a").run(a, d)
    assert run.ok and {finding.code for finding in run.findings} == {"exit.bulk-store-pending"}
    np.testing.assert_array_equal(d, 2 * a)
