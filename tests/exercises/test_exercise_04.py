"""The solution of exercise 04 is right under every schedule and without a bank conflict; its answers are the emulator's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulator
from autograder.report.model import GradeReport
from emulator.checks.bank_conflicts import shared_conflict

SHAPE = {"M": 136, "N": 200}
REGION = re.compile(r"(?ms)^( *)# BEGIN SOLUTION\n.*?^ *# END SOLUTION$")
STUB = r"\g<1># YOUR CODE HERE\n\g<1>pass"
SCHEDULES = 6
LANE = np.arange(32)


def tensors(seed: int, m: int = SHAPE["M"], n: int = SHAPE["N"]) -> tuple[np.ndarray, np.ndarray]:
    """A (m, n) with standard normal values, and D (n, m) full of NaN; both float16."""
    a = np.random.default_rng(seed).standard_normal((m, n)).astype(np.float16)
    return a, np.full((n, m), np.nan, np.float16)


@pytest.fixture(scope="module")
def solution(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> Any:
    """The solution, compiled by the emulator."""
    return emulator.compile(build(solution_cell("exercise_04"), SHAPE), arch="sm_100a")


def test_solution_gives_no_finding_in_any_schedule(solution: Any) -> None:
    a, _ = tensors(2)
    for schedule, seeds in (("late", 1), ("eager", 1), ("random", SCHEDULES)):
        for seed in range(seeds):
            _, d = tensors(2)
            run = solution.run(a, d, seed=seed, schedule=schedule, profile=True)
            assert run.findings == (), f"schedule {schedule} {seed}"
            np.testing.assert_array_equal(d, a.T, f"schedule {schedule} {seed}")
            assert run.counters["shared.wavefronts"] == run.counters["shared.wavefronts.ideal"]


@pytest.mark.parametrize(("m", "n"), [(8, 8), (64, 64), (72, 8), (8, 136), (128, 256)])
def test_solution_is_right_for_other_sizes(
    m: int, n: int, solution_cell: Callable[[str], str], build: Callable[..., Any]
) -> None:
    """Less than a tile, whole tiles, a little more than one in either direction; on sm_90a."""
    kernel = emulator.compile(build(solution_cell("exercise_04"), {"M": m, "N": n}), arch="sm_90a")
    a, d = tensors(3, m, n)
    run = kernel.run(a, d, profile=True)
    assert run.findings == () and all(x.degree == 1 for x in run.accesses)
    np.testing.assert_array_equal(d, a.T)


def test_solution_uses_what_the_lesson_says(solution: Any) -> None:
    """One tile per CTA, moved as four blocks at a time; so little SMEM that 13 CTAs share an SM."""
    run = solution.run(*tensors(3), profile=True)
    counters = run.counters
    assert counters["cp.async.bulk.tensor.load"] == counters["cp.async.bulk.tensor.store"] == 12
    assert counters["ldmatrix"] == counters["stmatrix"] == counters["shared.requests"] / 2 == 12 * 16
    assert solution.resources["grid"] == (4, 3, 1) and solution.resources["threads_per_cta"] == 128
    assert (228 * 1024) // (solution.resources["smem_bytes"] + 1024) == 13


@pytest.mark.parametrize(
    ("addresses", "nbytes", "wavefronts"),
    [(128 * LANE, 4, 32), (136 * LANE, 4, 2), (64 * LANE, 16, 16)],
    ids=["q1", "q2", "q3"],
)
def test_answers(
    addresses: np.ndarray, nbytes: int, wavefronts: int, solution_cell: Callable[[str], str], course: Path
) -> None:
    """The three patterns of the predictions, counted by the emulator."""
    assert shared_conflict(addresses, nbytes).wavefronts == wavefronts


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_any_eight_rows_have_their_first_chunks_in_different_positions(
    bits: int, solution_cell: Callable[[str], str]
) -> None:
    """The lesson says so of all three swizzles; it holds for every chunk."""
    namespace: dict[str, Any] = {}
    part_a = solution_cell("exercise_04").split("# Part B")[0]
    exec(part_a, namespace)
    row_bytes = 16 << bits
    swizzle = namespace[f"swizzle_{row_bytes}"]
    for chunk in range(1 << bits):
        for first in range(64):
            places = [swizzle((first + row) * row_bytes + 16 * chunk) for row in range(8)]
            assert shared_conflict(np.array(places), 16).wavefronts == 1
    assert [swizzle(swizzle(offset)) for offset in range(4096)] == list(range(4096))


def test_every_step_of_the_way_lowers(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    source = solution_cell("exercise_04")
    regions = list(REGION.finditer(source))
    assert len(regions) == 9
    for done in range(len(regions)):
        rest = regions[done].start()
        unfinished = source[:rest] + REGION.sub(STUB, source[rest:])
        assert unfinished.count("# YOUR CODE HERE") == len(regions) - done
        emulator.compile(build(unfinished, SHAPE), arch="sm_100a")


def test_each_region_has_its_todo(solution_cell: Callable[[str], str]) -> None:
    source = solution_cell("exercise_04")
    todos = re.findall(r"# TODO (\d+): .*(?:\n *# .*)*?\n *# BEGIN SOLUTION", source)
    assert todos == [str(n) for n in range(1, 10)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "offset ^ (((offset >> 7) & 7) << 4)",
            "offset // 128 * 128 + (offset // 16 % 8 ^ offset // 128 % 8) * 16 + offset % 16",
        ),
        (
            'T.ptr_byte_offset(start_in, swizzle_128(source), "float16")',
            "tile_in.ptr_to([first + lane, chunk * 8])",
        ),
        (".x4.trans.shared", ".x4.shared"),
        ("cp.async.bulk.wait_group.read", "cp.async.bulk.wait_group"),
    ],
    ids=["arithmetic", "layout applied by TIRx", "transposed by stmatrix", "wait for the writes"],
)
def test_other_ways_are_as_good(
    old: str, new: str, solution_cell: Callable[[str], str], build: Callable[..., Any]
) -> None:
    source = solution_cell("exercise_04")
    assert source.count(old) == 1
    changed = source.replace(old, new)
    if old.startswith(".x4.trans"):
        changed = changed.replace(
            "stmatrix.sync.aligned.m8n8.x4.shared", "stmatrix.sync.aligned.m8n8.x4.trans.shared"
        )
    a, d = tensors(5)
    run = emulator.compile(build(changed, SHAPE), arch="sm_100a").run(a, d, profile=True)
    assert run.findings == () and all(x.passes == x.ideal for x in run.accesses)
    np.testing.assert_array_equal(d, a.T)


def test_the_report_says_which_lanes_collide_in_which_bank(
    course: Path, quick_grade: Callable[[str, Path], GradeReport]
) -> None:
    """The transpose without a swizzle is right, and loses the points for bank conflicts alone, as far as is looked at."""
    report = quick_grade("exercise_04", course / "tests" / "mutants" / "exercise_04" / "no_swizzle.py")
    lost = {check.id for check in report.checks if check.points < check.max_points}
    assert lost == {
        "bank_conflicts",
        "predictions",
        "speed",
    }  # a .py file without answers; the speed is not asked for
    check = report.check("bank_conflicts")
    assert check is not None and check.points == 0
    load, store = check.evidence
    for evidence, name in ((load, "ldmatrix (tile_in)"), (store, "stmatrix (tile_out)")):
        assert evidence.message == (
            f"{name}: 8-way bank conflict: lanes 0 to 7 want different words of banks 0 to 3;"
            " a warp's request takes 32 wavefronts, 4 would do"
        )
        assert evidence.pictures[0].text[-1] == "wavefront 8  7777............................"


def test_figures_are_what_the_emulator_shows(course: Path) -> None:
    tool = course / "tools" / "swizzle_figures.py"
    shown = subprocess.run(
        [sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False
    )
    assert (shown.returncode, shown.stdout) == (0, ""), shown.stderr
