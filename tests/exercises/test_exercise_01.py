"""The two kernels of exercise 01 are right, coalesced, and their stub can be filled in step by step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulator
from autograder.course import Exercise, load_course

COURSE = Path(__file__).resolve().parents[2]
REGION = re.compile(r"(?ms)^( *)# BEGIN SOLUTION\n.*?^ *# END SOLUTION$")
STUB = r"\g<1># YOUR CODE HERE\n\g<1>pass"
ADD, GEMM = load_course(COURSE).find("1").kernels


def tensors(kernel: Exercise, seed: int = 1) -> list[np.ndarray]:
    """Standard normal inputs and an output full of NaN."""
    rng = np.random.default_rng(seed)
    arrays = []
    for tensor in kernel.tensors:
        shape = kernel.shape(tensor)
        values = rng.standard_normal(shape) if tensor.role == "input" else np.full(shape, np.nan)
        arrays.append(values.astype(tensor.dtype))
    return arrays


def compiled(source: str | Path, kernel: Exercise, build: Callable[..., Any]) -> Any:
    prim_func = build(source, kernel.builder.params, kernel.builder.name)
    return emulator.compile(prim_func, arch=kernel.arch)


def per_request(run: Any) -> list[tuple[float, float]]:
    """(sectors per request, fewest possible) of each access, in the order of the lines, loads first."""
    accesses = sorted(run.accesses, key=lambda a: (a.location.line, a.write))
    return [(round(a.per_request, 2), round(a.ideal / a.requests, 2)) for a in accesses]


def test_add_is_right(solution_cell: Callable[[str], str], build: Callable[..., Any]) -> None:
    x, y, z = tensors(ADD)
    run = compiled(solution_cell("exercise_01"), ADD, build).run(x, y, z, profile=True)
    assert run.findings == ()
    np.testing.assert_array_equal(z, x + y)
    assert per_request(run) == [(3.91, 3.91), (3.91, 3.91)]


def test_gemm_is_right_and_moves_what_the_lesson_says(
    solution_cell: Callable[[str], str], build: Callable[..., Any]
) -> None:
    """The intensities of the figure: 215040 FLOP over 353024 bytes asked for and 19328 bytes in all."""
    a, b, d = tensors(GEMM)
    run = compiled(solution_cell("exercise_01"), GEMM, build).run(a, b, d, profile=True)
    assert run.findings == ()
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64), rtol=2**-18, atol=2**-18)
    assert per_request(run) == [(1.0, 1.0), (1.67, 1.67), (3.33, 3.33)]
    flop = 2 * 28 * 80 * 48
    assert (flop, 32 * run.counters["global.sectors"]) == (215040, 353024)
    assert sum(array.nbytes for array in (a, b, d)) == 19328


def test_exchanged_quotient_and_remainder_cost_what_the_notes_say(
    course: Path, build: Callable[..., Any]
) -> None:
    path = course / "tests" / "mutants" / "exercise_01" / "swapped_index.py"
    run = compiled(path, GEMM, build).run(*tensors(GEMM), profile=True)
    assert per_request(run) == [(7.0, 1.0), (1.0, 1.0), (7.0, 3.5)]


def test_one_column_of_d_touches_32_sectors(build: Callable[..., Any]) -> None:
    """The second prediction question, counted: lane l stores D[l, 0] of rows of 80 float32."""
    source = (
        "from tvm.script import tirx as T\n"
        "@T.prim_func\n"
        "def column(D: T.Buffer((32, 80), 'float32')):\n"
        "    T.device_entry()\n"
        "    T.cta_id([1])\n"
        "    lane = T.thread_id([32])\n"
        "    D[lane, 0] = T.float32(1)\n"
        "def build_kernel():\n"
        "    return column\n"
    )
    kernel = emulator.compile(build(source, {}), arch="sm_100a")
    run = kernel.run(np.zeros((32, 80), np.float32), profile=True)
    assert [(a.requests, a.passes) for a in run.accesses] == [(1, 32)]


@pytest.mark.parametrize("done", range(5))
def test_every_step_of_the_way_lowers(
    done: int, solution_cell: Callable[[str], str], build: Callable[..., Any]
) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    source = solution_cell("exercise_01")
    regions = list(REGION.finditer(source))
    assert len(regions) == 5
    rest = regions[done].start()
    unfinished = source[:rest] + REGION.sub(STUB, source[rest:])
    assert unfinished.count("# YOUR CODE HERE") == len(regions) - done
    for kernel in (ADD, GEMM):
        compiled(unfinished, kernel, build)


def test_each_region_has_its_todo(solution_cell: Callable[[str], str]) -> None:
    source = solution_cell("exercise_01")
    todos = re.findall(r"# TODO (\d+): .*(?:\n *# .*)*?\n *# BEGIN SOLUTION", source)
    assert todos == [str(n) for n in range(1, 6)]
