"""The solution of exercise 03 is right under every schedule, and its stub can be filled in step by step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import emulator
from autograder.course import WantedLayout, load_course
from autograder.diagnosis import SNAPSHOT, Diagnosis
from autograder.drawing import apply_everywhere
from autograder.layouts import differences
from autograder.report.model import GradeReport
from autograder.submission import Submission

SHAPE = {"M": 72, "N": 152}
BUILDER = "build_transpose"
QuickGrade = Callable[[str, Path], GradeReport]
REGION = re.compile(r"(?ms)^( *)# BEGIN SOLUTION\n.*?^ *# END SOLUTION$")
STUB = r"\g<1># YOUR CODE HERE\n\g<1>pass"
REGIONS, LAYOUTS = 12, 7
SCHEDULES = 20
LAYOUT_MUTANTS = [
    path
    for path in sorted((Path(__file__).resolve().parents[1] / "mutants" / "exercise_03").glob("*.py"))
    if "# check: layouts\n" in path.read_text(encoding="utf-8")
]


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


def test_part_a_alone_earns_its_points(
    solution_cell: Callable[[str], str], quick_grade: QuickGrade, tmp_path: Path
) -> None:
    """Who has not begun with the kernel gets the points of the layouts that are right."""
    source = solution_cell("exercise_03")
    regions = list(REGION.finditer(source))
    rest = regions[3].start()
    text = source[:rest] + REGION.sub(STUB, source[rest:])
    path = tmp_path / "k.py"
    path.write_text(text, encoding="utf-8")
    report = quick_grade("exercise_03", path)
    assert {check.id: check.points for check in report.checks if check.points} == {"layouts": 13}
    assert report.exit_code == 1


def test_part_b_alone_says_that_it_needs_part_a(
    solution_cell: Callable[[str], str], quick_grade: QuickGrade, tmp_path: Path
) -> None:
    source = solution_cell("exercise_03")
    kernel = list(REGION.finditer(source))[LAYOUTS].start()
    text = REGION.sub(STUB, source[:kernel]) + source[kernel:]
    path = tmp_path / "k.py"
    path.write_text(text, encoding="utf-8")
    report = quick_grade("exercise_03", path)
    assert report.points == 0
    layouts = report.check("layouts")
    assert layouts is not None and all("not written yet" in item.message for item in layouts.evidence)


SLIPS = {
    "registers without a scope": (
        'scope="local", ',
        "",
        "regs = T.alloc_buffer",
        "Tx.wg.copy for a warpgroup",
    ),
    "a copy by each thread": (
        "Tx.wg.copy(regs",
        "Tx.copy(regs",
        "Tx.copy(regs",
        "Tx.wg.copy for a warpgroup",
    ),
    "a layout that is None": (
        "return TileLayout(S[(rows, cols) : (1 @ tid_in_wg, 1)])",
        "pass",
        "Tx.wg.copy(regs",
        "returns None is no layout",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_what_tvm_does_not_lower_is_explained_at_a_line(
    slip: str, solution_cell: Callable[[str], str], build: Callable[..., Any], course: Path, tmp_path: Path
) -> None:
    """The emulator's refusal, in the words of the report; lines are those of the submission, not of TVM."""
    old, new, line, words = SLIPS[slip]
    assert solution_cell("exercise_03").count(old) == 1
    source = solution_cell("exercise_03").replace(old, new)
    path = tmp_path / SNAPSHOT
    path.parent.mkdir()
    path.write_text(source, encoding="utf-8")
    with pytest.raises(emulator.LoweringError) as refused:
        emulator.compile(build(path, SHAPE, BUILDER), arch="sm_100a")
    place = refused.value.location
    header = {
        "kind": "lowering",
        "message": refused.value.message,
        "location": {"file": place.file, "line": place.line} if place else None,
    }
    settings = load_course(course)
    submission = Submission(name="k.py", source=source)
    failure = Diagnosis(settings.find("3"), submission, settings.limits).refusal(header)
    assert words in failure.fix and failure.location is not None and failure.location.text.startswith(line)
    assert failure.message.count("TVM") == 1 and "requires explicit dispatch" not in failure.message


@pytest.fixture(scope="module")
def wanted(course: Path) -> list[WantedLayout]:
    return load_course(course).find("3").layouts


@pytest.mark.parametrize("path", LAYOUT_MUTANTS, ids=lambda path: path.stem)
def test_a_broken_layout_differs_in_the_marked_function_and_nowhere_else(
    path: Path, wanted: list[WantedLayout], load: Callable[[Path], ModuleType]
) -> None:
    module = load(path)
    lines = path.read_text(encoding="utf-8").split("\n")
    marked = next(number for number, line in enumerate(lines, 1) if line.endswith("# <- here"))
    broken = {
        layout.name
        for layout in wanted
        for params in layout.calls
        if not is_right(getattr(module, layout.name)(**params), layout, params)
    }
    above = [line for line in lines[:marked] if line.startswith("def ")][-1]
    assert broken == {above.removeprefix("def ").split("(")[0]}


def is_right(layout: Any, wanted: WantedLayout, params: dict[str, int]) -> bool:
    """By TIRx's own apply, an axis that it does not name being 0."""
    rows, columns = wanted.extents(params).values()
    if int(layout.size()) != rows * columns:
        return False
    return not differences(apply_everywhere(layout, rows, columns), wanted.table(params))


@pytest.fixture(scope="module")
def figures(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("layout_figures")


def test_figures_are_those_of_the_solution(figures: ModuleType, course: Path) -> None:
    own = figures.solution()
    folder = course / "solutions" / "exercise_03" / "figures"
    assert {path.stem for path in folder.glob("*.svg")} == set(figures.FIGURES)
    for name, make in figures.FIGURES.items():
        assert (folder / f"{name}.svg").read_text(encoding="utf-8") == make(own) + "\n", name
