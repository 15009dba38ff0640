"""The kernels that are mutated: source, builder, inputs, and what the outputs must be.

Inputs are small integers, so that every sum is exact in float32 and the result does not depend on the order of
additions; only the attention tile needs a tolerance.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Subject:
    """A kernel.

    Attributes:
        name: in reports and mutant ids.
        path: file that holds it (a module, or a notebook with a solution cell ``kernel``).
        builder: function that returns the PrimFunc, called with ``args`` and ``kwargs``.
        holds: function whose source is mutated, when the builder only calls it.
        arrays: makes the arguments, outputs full of NaN.
        tolerance: relative to the largest output; 0: bit for bit.
        per_operator: mutants drawn of each operator, at most.
    """

    name: str
    path: str
    builder: str
    arrays: Callable[[], Arrays]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    holds: str = ""
    tolerance: float = 0.0
    per_operator: int = 2

    @property
    def text(self) -> str:
        """The module's source."""
        path = ROOT / self.path
        if path.suffix != ".ipynb":
            return path.read_text(encoding="utf-8")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("grade_id") == "kernel":
                return "".join(cell["source"])
        raise ValueError(f"{path} has no solution cell named `kernel`")

    @property
    def function(self) -> str:
        """The function whose source is mutated."""
        return self.holds or self.builder


def _integers(*shape: int, dtype: Any = np.float16, high: int = 3) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return rng.integers(-high, high + 1, shape).astype(dtype)


def _nan(*shape: int, dtype: Any = np.float16) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def _gemm(m: int, n: int, k: int) -> Callable[[], Arrays]:
    return lambda: [_integers(m, k), _integers(n, k)[::-1].copy(), _nan(m, n)]


def _attention() -> Arrays:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 128, 64)).astype(np.float16) for _ in range(3))
    return [q, k, v, _nan(1, 128, 64)]


def _ladder(step: int, builder: str, m: int, n: int, k: int, *, holds: str = "", **kwargs: Any) -> Subject:
    few = 1 if step == 3 else 2  # the source of step 2 again
    return Subject(
        f"step{step}",
        "tests/kernels/gemm_ladder.py",
        builder,
        _gemm(m, n, k),
        (m, n, k),
        kwargs,
        holds,
        0.0,
        few,
    )


_SMALL = "tests/mutation/small_kernels.py"
_F32 = np.float32

SUBJECTS: dict[str, Subject] = {
    s.name: s
    for s in (
        _ladder(1, "step1_single_tile", 128, 128, 64),
        _ladder(2, "step2_k_loop", 128, 128, 192, holds="_k_loop"),
        _ladder(3, "step3_tile_grid", 256, 128, 128, holds="_k_loop"),
        _ladder(4, "step4_tma", 128, 128, 192),
        _ladder(5, "step5_pipelined", 128, 128, 320, stages=3),
        _ladder(6, "step6_persistent", 256, 256, 192, num_ctas=2, stages=2, group=2),
        _ladder(7, "step7_warp_specialized", 256, 256, 192, num_ctas=1, blk_n=128, stages=2),
        _ladder(8, "step8_two_cta", 256, 1024, 128, num_ctas=2, stages=2),
        _ladder(9, "step9_two_consumers", 512, 512, 192, num_ctas=2, stages=2),
        Subject(
            "exercise_05",
            "solutions/exercise_05/exercise_05.ipynb",
            "build_kernel",
            _gemm(128, 128, 64),
            kwargs={"M": 128, "N": 128, "K": 64},
        ),
        Subject(
            "attention",
            "tests/kernels/attention_tile.py",
            "attention_tile",
            _attention,
            kwargs={"causal": True},
            tolerance=2**-9,
        ),
        Subject("ring_scale", _SMALL, "ring_scale", lambda: [_integers(320, 64), _nan(320, 64)]),
        Subject("transpose", _SMALL, "transpose", lambda: [_integers(64, 128), _nan(128, 64)]),
        Subject(
            "named_barriers",
            _SMALL,
            "named_barriers",
            lambda: [_integers(5, 2, 32, dtype=_F32), _nan(5, 2, 32, dtype=_F32)],
        ),
        Subject(
            "cluster_exchange",
            _SMALL,
            "cluster_exchange",
            lambda: [_integers(64, 64, dtype=_F32), _nan(2, 64, dtype=_F32)],
        ),
        Subject(
            "cp_async_ring",
            _SMALL,
            "cp_async_ring",
            lambda: [_integers(5, 256, dtype=_F32), _nan(5, 256, dtype=_F32)],
        ),
        Subject(
            "split_sum",
            _SMALL,
            "split_sum",
            lambda: [
                _integers(3, 64, dtype=_F32),
                _nan(3, 64, dtype=_F32),
                np.zeros(1, np.int32),
                _nan(64, dtype=_F32),
            ],
        ),
    )
}
