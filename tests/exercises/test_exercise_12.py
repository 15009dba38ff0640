"""The solution of exercise 12 is right for every count of tiles and clusters, and its stub can be filled in step by step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import emulator
from emulator.timing.model import model
from kernels import gemm_problem as gemm

SIZE = {"M": 1024, "N": 768, "K": 320, "dtype": "float16", "SMS": 4}
REGIONS = 18
MOST_SECONDS = 2.0  # of CPU time, for one run at 512 x 512 x 512


def compiled(source: str, build: gemm.Build, m: int, n: int, k: int, sms: int) -> emulator.Kernel:
    return emulator.compile(build(source, {"M": m, "N": n, "K": k, "dtype": "float16", "SMS": sms}))


def changed(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1
    return source.replace(old, new)


@pytest.fixture(scope="module")
def source(solution_cell: Callable[[str], str]) -> str:
    return solution_cell("exercise_12")


@pytest.mark.parametrize(
    ("m", "n", "k", "sms"),
    [
        (1024, 768, 320, 4),  # 3 tiles for each of 2 clusters; 5 K tiles in 4 stages
        (512, 256, 64, 6),  # the smallest, with idle clusters
        (512, 1280, 192, 4),  # 3 and 2 tiles, 3 K tiles
    ],
)
def test_solution_is_right(m: int, n: int, k: int, sms: int, source: str, build: gemm.Build) -> None:
    gemm.assert_right_and_clean_everywhere(compiled(source, build, m, n, k, sms), (m, n, k))


def test_512_cubed_is_quick(source: str, build: gemm.Build) -> None:
    size = (512, 512, 512)
    kernel = compiled(source, build, *size, 4)
    start = time.process_time()
    d, run = gemm.launch(kernel, size)
    assert time.process_time() - start < MOST_SECONDS
    assert run.findings == ()
    gemm.assert_right(d, size)


@pytest.mark.parametrize("k_tiles", [1, 4])
def test_consumers_share_b_and_wait_for_nobody_else(k_tiles: int, source: str, build: gemm.Build) -> None:
    """Whatever the number of K tiles, also when it is a multiple of the stages."""
    m, n, k = 1024, 768, 64 * k_tiles
    _, run = gemm.launch(compiled(source, build, m, n, k, 2), (m, n, k))
    tiles = 2 * 3
    assert run.counters["warps.mma"] == 2
    assert run.counters["bytes.tma.load"] == tiles * k_tiles * 96 * 1024
    assert run.counters["accumulations"] == 2 * tiles
    assert run.counters["accumulations.serial"] == run.counters["warps.two_roles"] == 0


def test_modelled_time_is_near_the_peak(source: str, build: gemm.Build) -> None:
    """At 4096 cubed: at least 75 % of 8192 FLOP per cycle and SM, where whole tiles allow 86.5 %."""
    n, sms = 4096, 148
    operands = [np.zeros((n, n), np.float16) for _ in "ABD"]
    modelled = model(compiled(source, build, n, n, n, sms), operands)
    peak = modelled.clock_ghz * 8192 * sms / 1000  # TFLOPS
    assert 0.75 * peak <= modelled.tflops <= 0.865 * peak


def test_answers(source: str, build: gemm.Build) -> None:
    """98304 bytes per phase of full, two arrivals per phase of empty, 768 MiB of operands at 4096 cubed."""
    m, n, k = 512, 256, 128
    _, run = gemm.launch(compiled(source, build, m, n, k, 2), (m, n, k))
    assert run.counters["bytes.tma.load"] == 2 * 98304
    assert 98304 * (4096 // 512) * (4096 // 256) * (4096 // 64) == 768 << 20
    for count, ok in ((2, True), (1, False), (3, False)):
        text = changed(source, "empty.init(CONSUMERS)", f"empty.init({count})")
        a, b = gemm.operands((m, n, 320))
        kernel = compiled(text, build, m, n, 320, 2)
        assert kernel.run(a, b, np.empty((m, n), np.float16)).ok is ok


def test_every_step_of_the_way_lowers(source: str, build: gemm.Build) -> None:
    """From the stub to the solution, region by region, TVM accepts what the learner has so far."""
    steps = list(gemm.unfinished(source))
    assert len(steps) == REGIONS
    for text in steps:
        emulator.compile(build(text, SIZE))


def test_each_region_has_its_todo(source: str) -> None:
    assert gemm.todos(source) == list(range(1, REGIONS + 1))


@pytest.mark.parametrize("name", ["slot_parity", "arrivals_of_all_warpgroups", "own_acc_empty"])
def test_a_hang_of_two_clusters_has_one_cause(name: str, course: Path, build: gemm.Build) -> None:
    """Twenty waits, and one of them is the first to look at: the consumers' for their accumulators."""
    mutant = course / "tests" / "mutants" / "exercise_12" / f"{name}.py"
    kernel = emulator.compile(build(mutant, SIZE))
    _, run = gemm.launch(kernel, (1024, 768, 320))
    first, *others = [finding for finding in run.findings if finding.code == "deadlock"]
    assert "for ever on mbarrier acc_empty" in first.message
    assert others and all("too, at" in finding.message for finding in others)
