"""Every mutant is the solution with one mistake, and gets the diagnosis that its header promises."""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulator
import emulator.lowering  # before the kernels: barriers keep their names
from autograder.course import Course, Exercise, load_course
from autograder.report.model import GradeReport

COURSE = Path(__file__).resolve().parents[2]
MOST_CHANGED_LINES = 12
# Mutants that solve the task by other means, which is no small change.
REWRITTEN = {
    "b_by_threads", "element_by_element", "no_tensor_core", "no_tma", "no_tma_store", "one_mma_warp", "one_stage", "sums_in_registers",
}  # fmt: skip
# A full grade takes seconds, so only one mutant of each kind goes all the way.
GRADED = [
    "exercise_01/mask_one_too_few",
    "exercise_01/swapped_index",
    "exercise_01/tiles_overlap",
    "exercise_02/no_wait_before_reuse",
    "exercise_02/one_stage",
    "exercise_02/smem_hoard",
    "exercise_02/tiles_rounded_down",
    "exercise_03/grid_rounded_down",
    "exercise_03/no_proxy_fence",
    "exercise_03/no_tma",
    "exercise_03/smem_hoard",
    "exercise_03/strides_exchanged",
    "exercise_04/no_proxy_fence",
    "exercise_04/no_swizzle",
    "exercise_04/no_tma_store",
    "exercise_04/not_aligned",
    "exercise_04/smem_hoard",
    "exercise_04/swizzle_64_of_rows",
    "exercise_05/accumulate_first",
    "exercise_05/missing_commit",
    "exercise_05/no_tensor_core",
    "exercise_05/row_major_tiles",
    "exercise_05/row_off_by_one",
    "exercise_05/tmem_512",
    "exercise_06/b_from_the_rows_of_a",
    "exercise_06/parity_never_turns",
    "exercise_06/smem_hoard",
    "exercise_06/sums_in_registers",
    "exercise_07/b_by_threads",
    "exercise_07/bytes_of_one_tile",
    "exercise_07/coordinates_exchanged",
    "exercise_07/smem_hoard",
    "exercise_08/first_loads_beyond_k",
    "exercise_08/refill_of_this_tile",
    "exercise_08/ring_of_two",
    "exercise_08/smem_hoard",
    "exercise_08/one_k_tile_at_a_time",
    "exercise_09/phase_never_flips",
    "exercise_09/row_by_row",
    "exercise_09/smem_hoard",
    "exercise_09/tail_group",
    "exercise_09/one_k_tile_at_a_time",
    "exercise_10/epilogue_column",
    "exercise_10/idle_warpgroup",
    "exercise_10/one_accumulator",
    "exercise_10/one_k_tile_at_a_time",
    "exercise_10/states_start_anew",
    "exercise_11/commit_to_one_cta",
    "exercise_11/idle_warpgroup",
    "exercise_11/mma_of_one_cta",
    "exercise_11/narrow_tile",
    "exercise_11/one_k_tile_at_a_time",
    "exercise_11/same_half_of_b",
    "exercise_12/a_of_consumer_0",
    "exercise_12/b_for_each_consumer",
    "exercise_12/empty_counts_one_commit",
    "exercise_12/idle_warpgroup",
    "exercise_12/one_k_tile_at_a_time",
    "exercise_13/max_not_subtracted",
    "exercise_13/no_wait_ld_of_s",
    "exercise_13/no_wait_st",
    "exercise_13/p_in_other_columns",
    "exercise_13/scale_without_log2_e",
    "exercise_13/tmem_512",
    "exercise_13/v_k_major",
    "exercise_14/idle_warpgroup",
    "exercise_14/no_keys_nan",
    "exercise_14/o_not_rescaled",
    "exercise_14/p_parity",
    "exercise_14/q_by_the_mma_warp",
    "exercise_14/reference_without_rescale",
    "exercise_14/rescale_without_vote",
    "exercise_15/all_by_ex2",
    "exercise_15/exponent_off_by_one",
    "exercise_15/mask_one_too_many",
    "exercise_15/rescale_lost",
    "exercise_15/rescales_always",
    "exercise_15/shortest_first",
    "exercise_15/stale_mailbox",
    "exercise_15/wrong_head",
]
# From here on a grade has many problem sizes, and the first of them shows the mistake; but not these.
QUICK_FROM, WHOLE = "exercise_06", {"exercise_08/first_loads_beyond_k"}
WHAT_HANGS = re.compile(r"mbarrier \w+(\[\d+\])? |named barrier \d+: |cta_sync: |the cluster barrier")
SCHEDULES = [("late", 0), ("eager", 0), ("random", 1), ("random", 2)]
MUTANTS = sorted((COURSE / "tests" / "mutants").glob("*/*.py"))
FEWEST = {
    "exercise_05": 14,
    **dict.fromkeys((f"exercise_{n:02}" for n in range(6, 13)), 10),
}  # of the others, eight


@dataclass(frozen=True)
class Mutant:
    """A broken kernel and what its header promises. `line` is the one that ends in `# <- here`.

    `case`: the one whose problem size shows the mistake; None: the first one.
    """

    path: Path
    what: str
    check: str
    finding: str | None
    line: int
    case: str | None = None

    @property
    def exercise(self) -> str:
        return self.path.parent.name

    @property
    def id(self) -> str:
        return f"{self.exercise}/{self.path.stem}"


def read(path: Path) -> Mutant:
    text = path.read_text(encoding="utf-8")
    header = dict(re.findall(r"^# (mutant|check|finding|case): (.+)$", text, flags=re.M))
    marked = [number for number, line in enumerate(text.split("\n"), 1) if line.endswith("# <- here")]
    assert set(header) - {"case"} == {"mutant", "check", "finding"}, (
        f"{path.name}: the header is not complete"
    )
    assert len(marked) == 1, f"{path.name}: one line ends in '# <- here'"
    finding = None if header["finding"] == "-" else header["finding"]
    return Mutant(path, header["mutant"], header["check"], finding, marked[0], header.get("case"))


@pytest.fixture(params=MUTANTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def mutant(request: pytest.FixtureRequest) -> Mutant:
    return read(request.param)


@pytest.fixture(scope="module")
def settings() -> Course:
    """course.yaml."""
    return load_course(COURSE)


def broken_kernel(mutant: Mutant, exercise: Exercise) -> Exercise:
    """The exercise, narrowed to the kernel whose builder holds the marked line, or to the size of the mutant's case."""
    if mutant.case is not None:
        return next(k for k in exercise.kernels if mutant.case in [case.id for case in k.cases])
    builders = {
        node.name: node
        for node in ast.parse(mutant.path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    for kernel in exercise.kernels:
        node = builders[kernel.builder.name]
        if node.lineno <= mutant.line <= (node.end_lineno or 0):
            return kernel
    return exercise.kernels[0]


def tensors(exercise: Exercise) -> list[np.ndarray]:
    """Random inputs and outputs full of NaN, as the exercise declares them."""
    rng = np.random.default_rng(5)
    arrays = []
    for tensor in exercise.tensors:
        shape = [exercise.builder.params.get(size, size) for size in tensor.shape]
        values = rng.standard_normal(shape) if tensor.role == "input" else np.full(shape, np.nan)
        arrays.append(values.astype(tensor.dtype))
    return arrays


def test_there_are_enough(settings: Course) -> None:
    counts = Counter(path.parent.name for path in MUTANTS)
    assert {e.id: counts[e.id] for e in settings.exercises if counts[e.id] < FEWEST.get(e.id, 8)} == {}


def test_mutant_is_the_solution_with_one_mistake(
    mutant: Mutant, settings: Course, solution_cell: Callable[[str], str]
) -> None:
    """Comments and layout aside, a mutant differs in a few lines, so it cannot fall behind the solution."""
    assert mutant.check in {check.id for check in settings.find(mutant.exercise).checks}
    if mutant.path.stem in REWRITTEN:
        return
    solution = ast.unparse(ast.parse(solution_cell(mutant.exercise))).split("\n")
    changed = ast.unparse(ast.parse(mutant.path.read_text(encoding="utf-8"))).split("\n")
    difference = [line for line in difflib.ndiff(solution, changed) if line[:1] in "+-"]
    assert 1 <= len(difference) <= MOST_CHANGED_LINES


def test_the_marked_line_begins_a_statement(mutant: Mutant) -> None:
    """Reports name the line on which a statement begins; a formatter may have moved the mark to its end."""
    tree = ast.parse(mutant.path.read_text(encoding="utf-8"))
    assert mutant.line in {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)}


def test_emulator_finds_the_mistake(
    mutant: Mutant, settings: Course, build: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The promised finding comes in one of a few schedules and names the marked line.

    A hang is explained at the wait that is its cause, and no rehearsal of it ends for a reason of the emulator's own.
    """
    caplog.set_level("DEBUG", "emulator.checks.rehearsal")
    if mutant.check == "layouts":
        pytest.skip("no kernel is broken: the tests of its exercise compare the layout")
    exercise = broken_kernel(mutant, settings.find(mutant.exercise))
    prim_func = build(mutant.path, exercise.builder.params, exercise.builder.name)
    if mutant.check == "build":
        with pytest.raises(emulator.LoweringError) as rejected:
            emulator.compile(prim_func, arch=exercise.arch)
        assert rejected.value.location is not None and rejected.value.location.line == mutant.line
        return
    kernel = emulator.compile(prim_func, arch=exercise.arch)
    found: dict[str, set[int]] = {}
    for schedule, seed in SCHEDULES if mutant.finding else SCHEDULES[::2]:
        run = kernel.run(*tensors(exercise), schedule=schedule, seed=seed)
        for finding in run.findings:
            if finding.code == "deadlock":
                if finding.data.get("consequence"):
                    continue
                assert WHAT_HANGS.search(finding.message) and finding.names
                assert "Nobody has arrived at it" not in finding.message, (
                    "who should have, and what kept them?"
                )
            if finding.strength in ("error", "race"):
                lines = {location.line for location in finding.locations}
                found.setdefault(finding.code, set()).update(lines)
        assert caplog.messages == []
        if mutant.finding is not None and mutant.line in found.get(mutant.finding, ()):
            break
    if mutant.finding is None:
        assert found == {}, "the header promises no finding"
    else:
        assert mutant.finding in found
        assert mutant.line in found[mutant.finding]


@pytest.mark.parametrize("name", GRADED)
def test_grade_takes_the_points(name: str, quick_grade: Callable[..., GradeReport]) -> None:
    """The right check loses points, the fault is the learner's, and the report names the marked line."""
    mutant = read(COURSE / "tests" / "mutants" / f"{name}.py")
    quick = mutant.exercise >= QUICK_FROM and name not in WHOLE
    options = {} if mutant.case is None else {"case": mutant.case}
    report = quick_grade(
        mutant.exercise, mutant.path, quick=quick, measure=mutant.check == "speed", **options
    )
    check = next(check for check in report.checks if check.id == mutant.check)
    assert check.points < check.max_points
    assert check.verdict in ("fail", "partial") and check.fault in (None, "your code")
    assert all(other.verdict != "error" for other in report.checks)
    assert check.summary and len(check.evidence) >= 1
    named = {int(number) for number in re.findall(r'"line":(\d+)', report.model_dump_json())}
    assert mutant.line in named


def test_some_mutants_of_each_check_are_graded() -> None:
    mutants = [read(path) for path in MUTANTS]
    graded = {(mutant.exercise, mutant.check) for mutant in mutants if mutant.id in GRADED}
    assert graded == {(mutant.exercise, mutant.check) for mutant in mutants}


def test_the_table_lists_every_mutant() -> None:
    text = (COURSE / "tests" / "mutants" / "README.md").read_text(encoding="utf-8")
    listed = set()
    for part in re.split(r"(?m)^(?=## )", text)[1:]:
        exercise = part.split("\n", 1)[0].removeprefix("## ")
        names = set(re.findall(r"^\| (\w+) \| ", part, flags=re.M)) - {"mutant"}
        listed |= {f"{exercise}/{name}" for name in names}
    assert listed == {read(path).id for path in MUTANTS}
