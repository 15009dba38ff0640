"""Each rung of the GEMM ladder is modelled faster than the one before, and for the reason that its lesson gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import emulator
from autograder.course import load_course
from emulator.timing.model import Modelled, model
from kernels import gemm_problem as gemm

COURSE = load_course(Path(__file__).resolve().parents[2])
RUNGS = ("exercise_06", "exercise_07", "exercise_08")


@pytest.fixture(scope="module")
def modelled(solution_cell: Callable[[str], str], build: gemm.Build) -> dict[str, Modelled]:
    """The solutions at the size that course.yaml times."""
    found = {}
    for rung in RUNGS:
        (timing,) = COURSE.find(rung).timing
        m, n, k = (timing.params[name] for name in "MNK")
        a, b, d = (np.zeros(shape, np.float16) for shape in ((m, k), (n, k), (m, n)))
        found[rung] = model(gemm.compiled(solution_cell(rung), (m, n, k), build), (a, b, d))
    return found


def test_each_rung_is_faster(modelled: dict[str, Modelled]) -> None:
    times = [modelled[rung].microseconds for rung in RUNGS]
    assert times == sorted(times, reverse=True)
    assert times[0] > 3 * times[1], "threads that copy keep the tensor core waiting most of the time"
    assert times[1] > 1.1 * times[2]


def test_the_bottleneck_is_what_the_next_rung_changes(modelled: dict[str, Modelled]) -> None:
    assert "let TMA load them" in modelled["exercise_06"].bottleneck
    assert "into more stages" in modelled["exercise_07"].bottleneck


def test_tiles_row_by_row_load_more_from_dram(solution_cell: Callable[[str], str], build: gemm.Build) -> None:
    """B alone has 134 MB, more than L2 keeps. At 4096 cubed, A and B have 67 MB together and stay there.

    The solution of exercise 11, whose warps that load do nothing else: those of exercise 09 cannot be probed in time.
    """
    m, n, k = 2048, 8192, 8192
    tensors = [np.zeros(shape, np.float16) for shape in ((m, k), (n, k), (m, n))]

    def walked(group: int) -> Modelled:
        text = solution_cell("exercise_11")
        assert "\nGROUP = 8 " in text
        source = text.replace("\nGROUP = 8 ", f"\nGROUP = {group} ")
        return model(
            emulator.compile(build(source, {"M": m, "N": n, "K": k, "dtype": "float16", "SMS": 148})), tensors
        )

    grouped, by_rows = walked(8), walked(1)
    assert grouped.bytes_loaded == by_rows.bytes_loaded
    assert by_rows.bytes_dram > 2 * grouped.bytes_dram
    assert by_rows.microseconds > 1.0005 * grouped.microseconds
