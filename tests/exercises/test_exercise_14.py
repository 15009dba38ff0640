"""The solution of exercise 14 is right at every size and schedule, and its stub can be filled in step by step."""

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
Size = dict[str, int]


def size(h: int, sq: int, skv: int, d: int = 64, causal: int = 0, threshold: int = 0) -> Size:
    return {"H": h, "SQ": sq, "SKV": skv, "D": d, "causal": causal, "threshold": threshold}


THREE_BLOCKS = size(1, 128, 384, 128, threshold=8)
RAGGED = size(2, 200, 300)
TALL = size(1, 300, 200, causal=1, threshold=8)
SIZES = [THREE_BLOCKS, RAGGED, TALL, size(2, 5, 9), size(1, 70, 500, causal=1)]
SCHEDULES = [
    ("late", 0),
    ("eager", 0),
    ("random", 0),
    ("random", 1),
    ("late", 0),
    ("random", 2),
    ("eager", 0),
    ("random", 3),
]
EVERY = ("normal", "huge_scores", "identical_keys", "peaked_scores", "peaks_in_one_warp", "one_key")


def compiled(source: str, of: Size, build: Build) -> emulator.Kernel:
    return emulator.compile(build(source, of, "build_attention"), arch="sm_100a")


@cache
def problem(family: str, h: int, sq: int, skv: int, d: int, causal: int) -> tuple[list[np.ndarray], Any, Any]:
    """Q, K, V, and the ends of the interval in which O is right."""
    shapes = [(h, sq, d), (h, skv, d), (h, skv, d)]
    arrays = [x.astype(np.float16) for x in FAMILIES[family](generator(1, family), shapes)]
    reference = ORACLES["attention"]([x.astype(np.float64) for x in arrays], causal=causal)
    _, low, high = allowed_interval(reference, 1, 1.0, np.dtype(np.float16))
    return arrays, low, high


def launch(kernel: emulator.Kernel, family: str, of: Size, **options: Any) -> tuple[bool, emulator.Run]:
    """Whether every element of O, which was full of NaN, is right; and the run."""
    arrays, low, high = problem(family, of["H"], of["SQ"], of["SKV"], of["D"], of["causal"])
    o = np.full(arrays[0].shape, np.nan, np.float16)
    run = kernel.run(*arrays, o, **options)
    return bool(((o >= low) & (o <= high)).all()), run


@pytest.mark.parametrize("of", SIZES, ids=str)
def test_solution_is_right_and_clean(of: Size, solution_cell: Cell, build: Build) -> None:
    """No finding, lints included, whatever the inputs and the schedule."""
    kernel = compiled(solution_cell("exercise_14"), of, build)
    for family, (schedule, seed) in zip((*EVERY, "normal", "normal"), SCHEDULES, strict=True):
        right, run = launch(kernel, family, of, schedule=schedule, seed=seed)
        assert run.findings == () and right, (family, schedule, seed)


def test_the_tensor_core_s_own_arithmetic_is_right(solution_cell: Cell, build: Build) -> None:
    """With sums that align and truncate as published for the tensor core."""
    of = size(1, 64, 200, threshold=8)
    kernel = compiled(solution_cell("exercise_14"), of, build)
    for family in ("normal", "huge_scores", "peaked_scores"):
        right, run = launch(kernel, family, of, numerics="exact")
        assert run.findings == () and right


def rescales(kernel: emulator.Kernel, family: str, of: Size) -> int:
    """How many warps stored O, over all blocks, by the bytes that went to TMEM."""
    _, run = launch(kernel, family, of)
    blocks, ctas = -(-of["SKV"] // 128), of["H"] * -(-of["SQ"] // 128)
    stored = run.counters["bytes.tmem.store"] - ctas * blocks * 128 * 256  # P
    count, rest = divmod(stored, 32 * of["D"] * 4)
    assert rest == 0
    return int(count)


def test_rescales_are_executed_where_they_are_needed(solution_cell: Cell, build: Build) -> None:
    """The figure of the lesson, and the bounds of the check: of 5 blocks behind the first, 4 warps."""
    source = solution_cell("exercise_14")
    always, seldom = (size(1, 128, 768, threshold=threshold) for threshold in (0, 8))
    kernel = compiled(source, always, build)
    assert 15 < rescales(kernel, "normal", always) <= 20 and rescales(kernel, "identical_keys", always) == 0
    kernel = compiled(source, seldom, build)
    assert [rescales(kernel, family, seldom) for family in ("normal", "huge_scores", "identical_keys")] == [
        0,
        0,
        0,
    ]
    assert 3 <= rescales(kernel, "peaks_in_one_warp", seldom) <= 5
    assert rescales(kernel, "peaked_scores", seldom) > 12


def test_p_is_at_most_256_as_the_second_answer_says(solution_cell: Cell, build: Build) -> None:
    """With a threshold of 17 binary orders fp16 overflows, with 8 it is far from that."""
    source = solution_cell("exercise_14")
    for threshold, finite in ((8, True), (17, False)):
        kernel = compiled(source, size(1, 128, 768, threshold=threshold), build)
        arrays, *_ = problem("peaked_scores", 1, 128, 768, 64, 0)
        o = np.full((1, 128, 64), np.nan, np.float16)
        kernel.run(*arrays, o)
        assert bool(np.isfinite(o).all()) is finite


def test_unmasked_zeros_count_as_the_third_answer_says(solution_cell: Cell, build: Build) -> None:
    """300 keys with the score 0, and V full of 1: the sum is 384, so O is 300 / 384."""
    source = solution_cell("exercise_14")
    changed = source.replace("j * TILE + n < sees[0]", "j * TILE + n < BLOCKS * TILE")
    assert changed != source
    for text, expected in ((source, 1.0), (changed, 300 / 384)):
        q = np.zeros((1, 128, 64), np.float16)
        k, v = np.ones((1, 300, 64), np.float16), np.ones((1, 300, 64), np.float16)
        o = np.full(q.shape, np.nan, np.float16)
        compiled(text, size(1, 128, 300), build).run(q, k, v, o)
        assert (o == np.float16(expected)).all()


@pytest.mark.parametrize("fence", ["before_thread_sync", "after_thread_sync"])
def test_a_missing_tcgen05_fence_costs_nothing(fence: str, solution_cell: Cell, build: Build) -> None:
    source = solution_cell("exercise_14")
    changed = source.replace(f'T.ptx["tcgen05.fence::{fence}"]()', "pass")
    assert changed != source
    of = size(1, 128, 256)
    right, run = launch(compiled(changed, of, build), "normal", of)
    assert right and run.ok and {finding.code for finding in run.findings} == {"tcgen05.missing-fence"}


def test_every_step_of_the_way_lowers(solution_cell: Cell, build: Build) -> None:
    """From the stub to the solution, three regions at a time, TVM accepts what the learner has so far."""
    for number, text in enumerate(gemm.unfinished(solution_cell("exercise_14"))):
        if number % 3 == 0:
            compiled(text, RAGGED if number % 2 else THREE_BLOCKS, build)


def test_each_region_has_its_todo(solution_cell: Cell) -> None:
    assert gemm.todos(solution_cell("exercise_14")) == list(range(1, 21))


@pytest.fixture(scope="module")
def tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("online_softmax_figures")


def test_figures_are_up_to_date(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run: python tools/online_softmax_figures.py"


def test_the_figures_show_what_the_lesson_says(tool: ModuleType, course: Path, tmp_path: Path) -> None:
    """28 rescales with threshold 0, none with 8; and each block's scores are issued ahead of P V of the block before."""
    from emulator.instructions import tcgen05

    before = tcgen05._hb_ldst
    assert (len(tool.rescales(tmp_path, 0)), len(tool.rescales(tmp_path, 8))) == (28, 0)
    assert tcgen05._hb_ldst is before
    drawn = (course / "solutions" / tool.EXERCISE / "figures" / "events.svg").read_text(encoding="utf-8")
    for block in range(1, tool.BLOCKS):
        assert drawn.index(f"scores of block {block};") < drawn.index(f"P V of block {block - 1};")


def test_a_stale_figure_is_found(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "figures", lambda scratch: {"events.svg": tool.Drawing(1, 1, "", "")})
    assert tool.main(["--check"]) == 1
    assert "exercise_14/figures/events.svg is not what" in capsys.readouterr().out
