"""The modelled tiers of course.yaml: each solution gets all points, the step before it does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import emulator
from autograder.course import Exercise, Tiers, Timing, load_course
from autograder.roofline import roof
from emulator.timing.model import model

ROOT = Path(__file__).resolve().parents[2]
COURSE = load_course(ROOT)
TIMED = [
    e.id
    for e in COURSE.exercises
    if any("modelled" in t.tiers and t.tiers["modelled"].roofline.solution for t in e.timing)
]
# Exercise 13's kernel is for one block of keys, with other parameters.
OTHER_PROBLEM = {"exercise_14"}
STEPS = [e for e in TIMED if COURSE.find(e).continues in TIMED and e not in OTHER_PROBLEM]
SERIAL = sorted((ROOT / "tests" / "mutants").glob("exercise_*/one_k_tile_at_a_time.py"))
AGREES = 0.04  # how far the recorded speed of a solution may be from what is modelled today

Speed = Callable[[str, str], float]


def tiers(spec: Exercise) -> tuple[Timing, Tiers]:
    timing = next(t for t in spec.timing if "modelled" in t.tiers)
    found = timing.tiers["modelled"].roofline
    assert found is not None
    return timing, found


@pytest.fixture(scope="module")
def speed(load: Callable[[Path], ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Speed:
    """(exercise, text of a kernel) -> modelled speed relative to the roofline, at the exercise's size; computed once."""
    known: dict[tuple[str, str], float] = {}

    def of(exercise: str, source: str) -> float:
        key = (exercise, source)
        if key not in known:
            spec = COURSE.find(exercise)
            kernel = spec.timed(tiers(spec)[0])
            path = tmp_path_factory.mktemp("kernel") / "kernel.py"
            path.write_text(source, encoding="utf-8")
            builder = getattr(load(path), kernel.builder.name)
            takes = inspect.signature(builder).parameters
            prim_func = builder(**{k: v for k, v in kernel.builder.params.items() if k in takes})
            arrays = [np.zeros(t["shape"], t["dtype"]) for t in kernel.tensor_specs()]
            found = model(emulator.compile(prim_func, arch="sm_100a"), arrays)
            known[key] = roof(kernel, "sm_100a", found.clock_ghz).microseconds / found.microseconds
        return known[key]

    return of


@pytest.mark.parametrize("exercise", TIMED)
def test_a_solution_gets_all_points(exercise: str, speed: Speed, solution_cell: Callable[[str], str]) -> None:
    """And its recorded speed, which pictures show, is the one that is modelled today."""
    _, wanted = tiers(COURSE.find(exercise))
    ratio = speed(exercise, solution_cell(exercise))
    assert ratio >= wanted.full
    assert wanted.solution == pytest.approx(ratio, rel=AGREES), f"course.yaml: solution: {ratio:.3g}"


@pytest.mark.parametrize("exercise", STEPS)
def test_the_step_before_does_not(exercise: str, speed: Speed, solution_cell: Callable[[str], str]) -> None:
    spec = COURSE.find(exercise)
    assert spec.continues is not None
    ratio = speed(exercise, solution_cell(spec.continues))
    assert ratio < tiers(spec)[1].full


def test_every_step_from_the_ring_on_has_a_serial_mutant() -> None:
    """They are graded with the other mutants: the check of the speed loses points, and the line is named."""
    assert {path.parent.name for path in SERIAL} == {f"exercise_{n:02d}" for n in range(8, 13)}
