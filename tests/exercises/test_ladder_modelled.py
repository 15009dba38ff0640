"""Each rung of the GEMM ladder is modelled faster than the one before, and for the reason that its lesson gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

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
