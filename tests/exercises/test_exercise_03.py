"""The solution of exercise 03 is right under every schedule, and its stub can be filled in step by step."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import emulator
from autograder.course import load_course
from autograder.grade import Settings, grade
from autograder.submission import Submission

SHAPE = {"M": 72, "N": 152}
BUILDER = "build_transpose"
REGION = re.compile(r"(?ms)^( *)# BEGIN SOLUTION\n.*?^ *# END SOLUTION$")
STUB = r"\g<1># YOUR CODE HERE\n\g<1>pass"
REGIONS, LAYOUTS = 12, 7
SCHEDULES = 20


def tensors(seed: int, m: int = SHAPE["M"], n: int = SHAPE["N"]) -> tuple[np.ndarray, np.ndarray]:
    """A (m, n) with standard normal values, and D (n, m) full of NaN; both float16."""
    a = np.random.default_rng(seed).standard_normal((m, n)).astype(np.float16)
    return a, np.full((n, m), np.nan, np.float16)


@pytest.fixture(scope="module")
def solution(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> Any:
    """The solution, compiled by the emulator."""
    return emulator.compile(build(solution_cell("exercise_03"), SHAPE, BUILDER), arch="sm_100a")


def test_solution_gives_no_finding_in_any_schedule(solution: Any) -> None:
    a, _ = tensors(2)
    for schedule, seeds in (("late", 1), ("eager", 1), ("random", SCHEDULES)):
        for seed in range(seeds):
            d = np.full(a.shape[::-1], np.nan, np.float16)
            run = solution.run(a, d, seed=seed, schedule=schedule)
            assert run.findings == (), f"schedule {schedule} {seed}"
            np.testing.assert_array_equal(d, a.T, f"schedule {schedule} {seed}")


@pytest.mark.parametrize(("m", "n"), [(8, 8), (64, 128), (72, 264)])
def test_solution_is_right_for_other_sizes(
    m: int, n: int, solution_cell: Callable[[str], str], build: Callable[..., Any]
) -> None:
    """Less than a tile, exactly one, two by three with both edges; on sm_90a."""
    prim_func = build(solution_cell("exercise_03"), {"M": m, "N": n}, BUILDER)
    kernel = emulator.compile(prim_func, arch="sm_90a")
    a, d = tensors(3, m, n)
    assert kernel.run(a, d).findings == ()
    np.testing.assert_array_equal(d, a.T)


def test_solution_moves_what_the_lesson_says(solution: Any) -> None:
    """Four tiles of 16384 bytes, whole also at the edge; single elements are read, 16 bytes written per thread."""
    run = solution.run(*tensors(3))
    assert run.counters["cp.async.bulk.tensor.load"] == run.counters["cp.async.bulk.tensor.store"] == 4
    assert run.counters["bytes.tma.load"] == 4 * 64 * 128 * 2
    assert run.counters["ld.shared"] == 4 * 4 * 64  # per CTA and warp: 64 elements of each thread
    assert run.counters["st.shared"] == 4 * 4 * 8  # eight of them with each store
    assert solution.resources["grid"] == (2, 2, 1) and solution.resources["threads_per_cta"] == 128


def test_every_step_of_the_way_lowers(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    source = solution_cell("exercise_03")
    regions = list(REGION.finditer(source))
    assert len(regions) == REGIONS
    for done in (0, *range(LAYOUTS, REGIONS)):  # the layouts alone change nothing in the kernel
        rest = regions[done].start()
        unfinished = source[:rest] + REGION.sub(STUB, source[rest:])
        assert unfinished.count("# YOUR CODE HERE") == len(regions) - done
        emulator.compile(build(unfinished, SHAPE, BUILDER), arch="sm_100a")


def test_each_region_has_its_todo(solution_cell: Callable[[str], str]) -> None:
    source = solution_cell("exercise_03")
    todos = re.findall(r"# TODO (\d+): .*(?:\n *# .*)*?\n *# BEGIN SOLUTION", source)
    assert todos == [str(n) for n in range(1, REGIONS + 1)]


def test_part_a_alone_earns_its_points(solution_cell: Callable[[str], str], course: Path) -> None:
    """Who has not begun with the kernel gets the points of the layouts, and of every single one."""
    source = solution_cell("exercise_03")
    regions = list(REGION.finditer(source))
    exercise, limits = load_course(course).find("3"), load_course(course).limits
    for done, expected in ((3, 13), (LAYOUTS, 35)):
        rest = regions[done].start()
        text = source[:rest] + REGION.sub(STUB, source[rest:])
        report = grade(exercise, Submission(name="k.py", source=text), limits, Settings(seed=1, quick=True))
        assert {check.id: check.points for check in report.checks if check.points} == {"layouts": expected}
        assert report.exit_code == 1


def test_part_b_alone_says_that_it_needs_part_a(solution_cell: Callable[[str], str], course: Path) -> None:
    source = solution_cell("exercise_03")
    kernel = list(REGION.finditer(source))[LAYOUTS].start()
    text = REGION.sub(STUB, source[:kernel]) + source[kernel:]
    exercise, limits = load_course(course).find("3"), load_course(course).limits
    report = grade(exercise, Submission(name="k.py", source=text), limits, Settings(seed=1, quick=True))
    assert report.points == 0
    layouts = report.check("layouts")
    assert layouts is not None and all("not written yet" in item.message for item in layouts.evidence)


SLIPS = {
    "registers without a scope": ('scope="local", ', "", "regs = T.alloc_buffer", "Tx.wg.copy for a warpgroup"),
    "a copy by each thread": ("Tx.wg.copy(regs", "Tx.copy(regs", "Tx.copy(regs", "Tx.wg.copy for a warpgroup"),
    "a layout that is None": (
        "return TileLayout(S[(rows, cols) : (1 @ tid_in_wg, 1)])",
        "pass",
        "Tx.wg.copy(regs",
        "returns None is no layout",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_what_tvm_does_not_lower_is_explained_at_a_line(
    slip: str, solution_cell: Callable[[str], str], course: Path
) -> None:
    old, new, line, words = SLIPS[slip]
    source = solution_cell("exercise_03")
    assert source.count(old) == 1
    exercise, limits = load_course(course).find("3"), load_course(course).limits
    submission = Submission(name="k.py", source=source.replace(old, new))
    build = grade(exercise, submission, limits, Settings(seed=1, quick=True)).check("build")
    assert build is not None and build.points == 0
    (evidence,) = build.evidence
    assert words in evidence.fix and evidence.locations[0].text.startswith(line)
    assert "requires explicit dispatch" not in evidence.message


@pytest.fixture(scope="module")
def figures(course: Path) -> ModuleType:
    """tools/layout_figures.py as a module."""
    spec = importlib.util.spec_from_file_location("layout_figures", course / "tools" / "layout_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_are_those_of_the_solution(figures: ModuleType, course: Path) -> None:
    own = figures.solution()
    folder = course / "solutions" / "exercise_03" / "figures"
    assert {path.stem for path in folder.glob("*.svg")} == set(figures.FIGURES)
    for name, make in figures.FIGURES.items():
        assert (folder / f"{name}.svg").read_text(encoding="utf-8") == make(own) + "\n", name
