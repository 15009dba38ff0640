"""Wrong numbers explained: every pattern that has a name, made by a real kernel with that mistake in the emulator."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autograder.checks import CaseRun
from autograder.checks.whereabouts import explanation, heat_map, place_of
from autograder.compare import compare
from autograder.k_steps import explain
from autograder.report.picture import svg, text_lines

REPOSITORY = Path(__file__).resolve().parents[2]
MUTANTS = REPOSITORY / "tests" / "mutants"


def solution(name: str) -> str:
    notebook = json.loads((REPOSITORY / "solutions" / name / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == "kernel"]
    return "".join(cells[0]["source"])


def changed(name: str, old: str, new: str) -> str:
    text = solution(name)
    assert text.count(old) == 1, f"{name} has changed: {old!r} stands in it {text.count(old)} times"
    return text.replace(old, new)


@dataclass
class Seen:
    """A run of a kernel that computes D = A B^T, and what is said about it."""

    source: str
    verdict: dict[str, Any]
    run: CaseRun

    @property
    def words(self) -> str:
        outcome: Any = SimpleNamespace(submission=SimpleNamespace(source=self.source))
        return explanation(self.verdict, outcome)

    def place(self, index: list[int]) -> str:
        return place_of(self.run, None, index)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def see(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Seen]:
    """(text or mutant's name, sizes, schedule) -> what was seen."""
    from autograder.runner.build_child import _import, _load

    _load(use_once=False)
    import emulator

    def look(text: str, schedule: str = "late", **params: Any) -> Seen:
        source = text if "\n" in text else (MUTANTS / f"{text}.py").read_text(encoding="utf-8")
        path = tmp_path_factory.mktemp("kernel") / "kernel.py"
        path.write_text(source, encoding="utf-8")
        kernel = emulator.compile(_import(str(path))["build_kernel"](**params), arch="sm_100a")
        m, n, k = params["M"], params["N"], params["K"]
        generator = np.random.default_rng(7)
        a, b = (generator.normal(size=(rows, k)).astype(np.float16) for rows in (m, n))
        d = np.full((m, n), np.nan, np.float16)
        ran = kernel.run(a, b, d, seed=1, schedule=schedule)
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        error = 2.0**-10 * np.abs(exact) + 2.0**-6
        verdict = compare(
            d,
            exact.astype(np.float16),
            (exact - error).astype(np.float16),
            (exact + error).astype(np.float16),
        ).to_json()
        wrong = ~(np.abs(d.astype(np.float64) - exact) <= error)
        verdict["k_step"] = explain(a.astype(np.float64), b.astype(np.float64), d, exact, wrong)
        case = CaseRun("c", "c", counters=dict(ran.counters))
        case.writers = [[w.cta, w.warp, w.instruction, *w.rows, *w.columns] for w in kernel.writers(d)]
        return Seen(source, verdict, case)

    return look


ONE, SIX = {"M": 128, "N": 128, "K": 64}, {"M": 384, "N": 256, "K": 320, "dtype": "float16"}


def test_whole_rows_are_a_missing_wait(see: Callable[..., Seen]) -> None:
    seen = see("exercise_05/wait_by_one_warp", **ONE)
    assert "whole rows, in groups of 32 (group 1, 2, 3)" in seen.words and "wait or a sync" in seen.words
    assert "read before it was written" in seen.words
    assert seen.place([37, 9]) == ", stored by CTA 0, warp 1, lane 5"


def test_every_eighth_column_is_a_swizzle(see: Callable[..., Seen]) -> None:
    """B lies in SMEM without the swizzle by which the MMA reads it: only columns 0, 8, 16, ... are right."""
    text = changed("exercise_05", "Tx.cta.copy(B_smem[:, :], B[:, :])", PLAIN_COPY)
    seen = see(text, **ONE)
    assert "number modulo 8 is 0" in seen.words
    assert "B is written with no swizzle and read with the 128-byte one" in seen.words


# Thread t writes row t of B element by element to where it would lie in a row-major tile.
PLAIN_COPY = """for i in range(K):
            chunk: T.let = i // 8
            B_smem[warp * 32 + lane, (chunk ^ (lane % 8)) * 8 + i % 8] = B[warp * 32 + lane, i]"""


def test_another_swizzle(see: Callable[..., Seen]) -> None:
    seen = see("exercise_05/wrong_swizzle", **ONE)
    assert "B is written with the 64-byte swizzle and read with the 128-byte one" in seen.words


def test_the_last_k_block_is_a_phase(see: Callable[..., Seen]) -> None:
    seen = see("exercise_06/last_k_tile_missing", **SIX)
    assert "K tile 4 (k = 256 to 319), the last one, is missing" in seen.words and "phase" in seen.words
    assert seen.verdict["k_step"]["tile"] == 4 and seen.verdict["k_step"]["tiles"] == 5


def test_a_stage_that_is_loaded_again(see: Callable[..., Seen]) -> None:
    """The load beside the MMA asks for an earlier K tile again: which one, and in which stage."""
    seen = see("exercise_08/refill_of_this_tile", **SIX)
    assert "missing" in seen.words and "more than once" in seen.words and "(phase)" in seen.words
    assert "of 4 in the first tile" in seen.words


def test_everything_doubled_is_the_accumulate_flag(see: Callable[..., Seen]) -> None:
    text = solution("exercise_05")
    start = text.index("                Tx.gemm_async(")
    stop = text.index('                T.ptx["tcgen05.commit', start)
    call = text[start:stop]
    assert "accum=False" in call
    seen = see(text[:stop] + call.replace("accum=False", "accum=True") + text[stop:], **ONE)
    assert "everything is doubled" in seen.words and "accumulate flag" in seen.words


def test_the_sum_of_an_earlier_tile(see: Callable[..., Seen]) -> None:
    seen = see("exercise_09/accumulates_over_tiles", M=1152, N=256, K=320, dtype="float16", SMS=4)
    assert "holds the sum of the tile at" in seen.words and "must overwrite the accumulator" in seen.words
    assert "TMA store of warp" in seen.place([200, 3])
    assert "lane 72 of TMEM, which is lane 8 of warp 2 of a warpgroup" in seen.place([200, 3])


def test_poison_is_a_read_before_a_write(see: Callable[..., Seen]) -> None:
    seen = see("exercise_05/accumulate_first", **ONE)
    assert "read before it was written" in seen.words


def test_a_right_kernel_is_explained_by_nothing(see: Callable[..., Seen]) -> None:
    seen = see(solution("exercise_05"), **ONE)
    assert seen.verdict["mismatches"] == 0 and seen.verdict["k_step"] is None
    assert len(seen.run.writers) == 4 and seen.place([127, 0]) == ", stored by CTA 0, warp 3, lane 31"


def test_the_heat_map(see: Callable[..., Seen]) -> None:
    seen = see("exercise_05/half_of_d", **ONE)
    (grid,) = heat_map("D", seen.verdict)
    assert len(grid.cells) == 16 and len(grid.cells[0]) == 16
    assert grid.cells[3] == [""] * 8 + ["100"] * 8 and grid.marked == [(0, 8)]
    assert grid.rows[1] == "8" and "blocks" not in svg([grid])
    assert any("[100]" in line for line in text_lines([grid], 100))


def test_no_heat_map_where_every_element_is_wrong() -> None:
    zeros = np.zeros((64, 64), np.float32)
    assert heat_map("D", compare(zeros + 1, zeros, zeros, zeros).to_json()) == []


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 33), (1000, 7), (129, 4096), (5,), (1000,)])
def test_heat_maps_of_any_shape(shape: tuple[int, ...]) -> None:
    """Every block holds what it should: the shares, weighted by the blocks' sizes, add up to all mismatches."""
    generator = np.random.default_rng(0)
    expected = np.zeros(shape, np.float32)
    actual = (generator.random(shape) < 0.3).astype(np.float32)
    actual.reshape(-1)[0] = 1
    found = compare(actual, expected, expected, expected).to_json()
    heat = found["heat"]
    rows, columns = shape if len(shape) == 2 else (1, shape[0])
    total = 0.0
    for i, line in enumerate(heat["shares"]):
        for j, share in enumerate(line):
            total += (
                share
                * min(heat["rows"], rows - i * heat["rows"])
                * min(heat["columns"], columns - j * heat["columns"])
            )
    assert total == pytest.approx(found["mismatches"], rel=1e-3)
    assert len(heat["shares"]) <= 16 and len(heat["shares"][0]) <= 16
    heat_map("D", found)
