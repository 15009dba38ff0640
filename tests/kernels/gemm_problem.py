"""What the tests of the GEMM exercises share: problems, launches, and the way from a stub to its solution."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

import emulator

Build = Callable[..., Any]  # the fixture `build`: (source, parameters) -> PrimFunc
Size = tuple[int, int, int]

NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
HALF_ULP = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
REGION = re.compile(r"(?ms)^( *)# BEGIN SOLUTION\n.*?^ *# END SOLUTION$")
STUB = r"\g<1># YOUR CODE HERE\n\g<1>pass"
SCHEDULES = (("late", 0), ("eager", 0), *(("random", seed) for seed in range(4)))


def compiled(source: Any, size: Size, build: Build, dtype: str = "float16") -> emulator.Kernel:
    """The kernel of a cell's text or .py file for M, N, K."""
    m, n, k = size
    return emulator.compile(build(source, {"M": m, "N": n, "K": k, "dtype": dtype}), arch="sm_100a")


def operands(size: Size, dtype: str = "float16", seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A (M, K) and B (N, K), standard normal."""
    m, n, k = size
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal(shape).astype(NUMPY[dtype]) for shape in ((m, k), (n, k)))
    return a, b


def launch(
    kernel: emulator.Kernel, size: Size, schedule: str = "late", seed: int = 0, dtype: str = "float16"
) -> tuple[np.ndarray, emulator.Run]:
    """D (M, N), which was full of NaN, and the run."""
    a, b = operands(size, dtype)
    d = np.full((size[0], size[1]), np.nan, NUMPY[dtype])
    return d, kernel.run(a, b, d, schedule=schedule, seed=seed)


def assert_right(d: np.ndarray, size: Size, dtype: str = "float16") -> None:
    """D is A B^T up to one rounding and the error of an fp32 sum."""
    a, b = (x.astype(np.float64) for x in operands(size, dtype))
    exact = a @ b.T
    allowed = HALF_ULP[dtype] * np.abs(exact) + size[2] * 2.0**-23 * (np.abs(a) @ np.abs(b).T)
    assert (np.abs(d.astype(np.float64) - exact) <= 1.01 * allowed + 2.0**-24).all()


def assert_right_and_clean_everywhere(kernel: emulator.Kernel, size: Size, dtype: str = "float16") -> None:
    """Right numbers and no finding, lints included, under six schedules."""
    for schedule, seed in SCHEDULES:
        d, run = launch(kernel, size, schedule, seed, dtype)
        assert run.findings == (), f"schedule {schedule} {seed}"
        assert_right(d, size, dtype)


def unfinished(source: str) -> Iterator[str]:
    """The stub, then the stub with its first region filled in, and so on; not the solution itself."""
    regions = list(REGION.finditer(source))
    for done, region in enumerate(regions):
        rest = region.start()
        text = source[:rest] + REGION.sub(STUB, source[rest:])
        assert text.count("# YOUR CODE HERE") == len(regions) - done
        yield text


def todos(source: str) -> list[int]:
    """Numbers of the TODO comments that stand right ahead of a region."""
    found = re.findall(r"# TODO (\d+) ?\(?.*(?:\n *# .*)*?\n *# BEGIN SOLUTION", source)
    return [int(number) for number in found]


def works_per_launch(size: Size) -> dict[str, int]:
    """Counters that every kernel with 128 x 128 tiles has, whatever it does beside."""
    m, n, k = size
    return {"tcgen05.mma": m * n * k // (128 * 128 * 16), "flops.tcgen05.mma": 2 * m * n * k}
