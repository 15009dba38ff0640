"""The solution of exercise 09 is right for every count of tiles and CTAs, and its stub can be filled in step by step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulator
from autograder.course import load_course
from kernels import gemm_problem as gemm

SIZE = {"M": 1152, "N": 256, "K": 320, "dtype": "float16", "SMS": 4}
REGIONS = 11
SCHEDULES = [("late", 0), ("eager", 0), ("random", 0), ("random", 1), ("random", 2)]


def launch(kernel: Any, m: int, n: int, k: int, schedule: str = "late", seed: int = 0) -> emulator.Run:
    """Run on normal values; the numbers are right and there is no finding of any strength."""
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    d = np.full((m, n), np.nan, np.float16)
    run = kernel.run(a, b, d, schedule=schedule, seed=seed)
    assert run.findings == (), f"{schedule} {seed}"
    np.testing.assert_allclose(d, a.astype(np.float32) @ b.astype(np.float32).T, rtol=2**-10, atol=2**-9)
    return run


@pytest.fixture(scope="module")
def source(solution_cell: Callable[[str], str]) -> str:
    return solution_cell("exercise_09")


@pytest.mark.parametrize(
    ("m", "n", "k", "sms"),
    [
        (1152, 256, 320, 4),  # a last wave that is not full, a last group of one row, odd K tiles
        (128, 128, 64, 1),  # the smallest
        (128, 384, 192, 5),  # idle CTAs
        (
            256,
            384,
            576,
            1,
        ),  # one CTA does everything; 9 K tiles, so that every stage sees odd and even rounds
    ],
)
def test_solution_is_right(m: int, n: int, k: int, sms: int, source: str, build: Callable[..., Any]) -> None:
    kernel = emulator.compile(build(source, {"M": m, "N": n, "K": k, "dtype": "float16", "SMS": sms}))
    for schedule, seed in SCHEDULES:
        launch(kernel, m, n, k, schedule, seed)


@pytest.mark.parametrize("declared", ["n0 =", "n0: T.int32 ="])
def test_a_coordinate_in_a_variable_is_named(
    declared: str, source: str, quick_grade: Callable[..., Any], tmp_path: Path
) -> None:
    """TVM's own words advise another dispatch, and that is not what is wrong."""
    path = tmp_path / "kernel.py"
    text = source.replace("n0: T.let[T.int32] =", declared)
    line = next(n for n, t in enumerate(text.split("\n"), 1) if declared in t)
    path.write_text(text, encoding="utf-8")
    report = quick_grade("exercise_09", path)
    (shown,) = next(check for check in report.checks if check.id == "build").evidence
    assert (
        f"n0 is a variable (assigned at line {line}), so TVM cannot see that it is a multiple"
        in shown.message
    )
    assert "T.let" in shown.fix and "T.meta_var" in shown.fix and "dispatch" not in shown.message
    assert "Tx.copy_async" in shown.locations[0].text


def test_answers(source: str, build: Callable[..., Any]) -> None:
    """Counted: the tiles of the busiest CTA are waves; K tile 14 is in round 3; 12 slices in the second wave."""
    assert -(-32 * 32 // 148) == 7
    group, rows, columns, ctas = 2, 8, 12, 16
    wave = []
    for tile in range(ctas, 2 * ctas):
        top = tile // (group * columns) * group
        height = min(rows - top, group)
        place = tile % (group * columns)
        wave.append((top + place % height, place // height))
    assert len({m for m, _ in wave}) + len({n for _, n in wave}) == 12
    changed = source.replace(
        "full.wait(mma.stage, mma.phase)", "full.wait(mma.stage, T.if_then_else(tile == 2, 0, mma.phase))"
    )
    assert changed != source
    size = {"M": 128, "N": 384, "K": 448, "dtype": "float16", "SMS": 1}
    a, b, d = (np.ones(shape, np.float16) for shape in ((128, 448), (384, 448), (128, 384)))
    assert not emulator.compile(build(changed, size)).run(a, b, d).ok  # K tiles 14 and 15 need parity 1


@pytest.mark.parametrize(("group", "passes"), [(1, False), (2, False), (8, True)])
def test_order_of_tiles(
    group: int, passes: bool, source: str, build: Callable[..., Any], course: Path
) -> None:
    """The bound of course.yaml separates groups from rows in the case with 6 waves."""
    exercise = load_course(course).find("exercise_09")
    case = next(case for case in exercise.cases if case.id == "waves")
    size = {**exercise.builder.params, **case.params}
    kernel = emulator.compile(build(re.sub(r"(?m)^GROUP = \d+", f"GROUP = {group}", source), size))
    run = launch(kernel, *(int(size[name]) for name in ("M", "N", "K")))
    bound = exercise.check("mechanism").at_most["waves.percent"]
    assert (run.counters["waves.percent"] <= bound) is passes


def test_every_step_of_the_way_lowers(source: str, build: gemm.Build) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    steps = list(gemm.unfinished(source))
    assert len(steps) == REGIONS
    for text in steps:
        emulator.compile(build(text, SIZE))


def test_each_region_has_its_todo(source: str) -> None:
    assert gemm.todos(source) == list(range(1, REGIONS + 1))


def test_a_kernel_that_hangs_at_once_has_still_been_built(
    quick_grade: Callable[..., Any], course: Path
) -> None:
    """Nothing is loaded, multiplied or stored before the hang, but all of it stands there."""
    report = quick_grade("exercise_09", course / "tests/mutants/exercise_09/load_parity.py")
    built, mechanism = report.check("build"), report.check("mechanism")
    assert (built.verdict, built.points) == ("pass", built.max_points)
    assert mechanism.points == 0 and mechanism.summary.startswith("not reached: cp.async.bulk.tensor.load,")
