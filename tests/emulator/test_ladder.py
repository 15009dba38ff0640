"""The nine steps of the GEMM ladder: right numbers, no finding, the same work under every schedule."""

from __future__ import annotations

from functools import cache, lru_cache

import ml_dtypes
import numpy as np
import pytest

import emulator
import emulator.lowering  # before the kernels: barriers keep their names
from kernels import gemm_ladder as ladder

NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a unit in the last place, relative
SCHEDULES = [("late", 0), ("eager", 0), ("random", 0)]

# builder, (M, N, K), keyword arguments, what the case is about
CASES = [
    ("step1_single_tile", (128, 128, 64), {}, "the book's tile"),
    ("step1_single_tile", (128, 32, 192), {}, "fewest columns, three swizzle rows per K"),
    ("step1_single_tile", (128, 64, 128), {"dtype": "bfloat16"}, "two swizzle rows per K"),
    ("step2_k_loop", (128, 128, 64), {}, "one K tile"),
    ("step2_k_loop", (128, 128, 320), {}, "odd number of K tiles"),
    ("step3_tile_grid", (256, 384, 192), {}, "non-square"),
    ("step4_tma", (128, 128, 64), {}, "one K tile"),
    ("step4_tma", (256, 128, 320), {"dtype": "bfloat16"}, "odd number of K tiles"),
    ("step5_pipelined", (128, 128, 64), {}, "fewer K tiles than stages"),
    ("step5_pipelined", (128, 256, 704), {}, "the ring wraps in the middle"),
    ("step5_pipelined", (128, 128, 320), {"stages": 2}, "the shortest ring"),
    ("step6_persistent", (384, 384, 320), {"num_ctas": 2, "group": 2}, "more tiles than CTAs, a tail group"),
    ("step6_persistent", (128, 256, 192), {"num_ctas": 5}, "fewer tiles than CTAs"),
    ("step7_warp_specialized", (384, 512, 320), {"num_ctas": 2}, "three tiles each: odd rounds everywhere"),
    ("step7_warp_specialized", (128, 256, 64), {"num_ctas": 3, "dtype": "bfloat16"}, "fewer tiles than CTAs"),
    ("step7_warp_specialized", (256, 384, 192), {"num_ctas": 1, "blk_n": 128}, "narrow tiles, one CTA"),
    ("step8_two_cta", (512, 768, 320), {"num_ctas": 4}, "three tiles per cluster"),
    ("step8_two_cta", (256, 256, 64), {"num_ctas": 4}, "an idle cluster"),
    (
        "step8_two_cta",
        (256, 512, 192),
        {"num_ctas": 2, "stages": 2, "dtype": "bfloat16"},
        "the shortest ring",
    ),
    ("step9_two_consumers", (1024, 768, 192), {"num_ctas": 4}, "three tiles per cluster"),
    ("step9_two_consumers", (512, 256, 64), {"num_ctas": 4}, "an idle cluster"),
    ("step9_two_consumers", (512, 512, 320), {"num_ctas": 2, "dtype": "bfloat16"}, "odd number of K tiles"),
]
IDS = [
    f"{name.split('_')[0]}-{'x'.join(map(str, shape))}-{'-'.join(map(str, kw.values()))}"
    for name, shape, kw, _ in CASES
]


@lru_cache(maxsize=1)
def compiled(case: int) -> emulator.Kernel:
    name, shape, kwargs, _ = CASES[case]
    return emulator.compile(getattr(ladder, name)(*shape, **kwargs))


@lru_cache(maxsize=1)
def problem(case: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B and the float32 reference."""
    _, (m, n, k), kwargs, _ = CASES[case]
    dtype = NUMPY[kwargs.get("dtype", "float16")]
    rng = np.random.default_rng(case)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((n, k)).astype(dtype)
    return a, b, a.astype(np.float32) @ b.astype(np.float32).T


@cache
def launch(case: int, schedule: str, seed: int) -> tuple[np.ndarray, emulator.Run]:
    a, b, reference = problem(case)
    d = np.full(reference.shape, np.nan, dtype=a.dtype)
    return d, compiled(case).run(a, b, d, schedule=schedule, seed=seed)


@pytest.mark.parametrize(
    "schedule, seed", SCHEDULES, ids=[f"{s}{n}" if s == "random" else s for s, n in SCHEDULES]
)
@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
def test_right_and_clean(case: int, schedule: str, seed: int) -> None:
    _, _, kwargs, _ = CASES[case]
    _, _, reference = problem(case)
    d, run = launch(case, schedule, seed)
    assert [f.to_json() for f in run.findings] == []
    tolerance = 2 * EPSILON[kwargs.get("dtype", "float16")]
    error = np.abs(d.astype(np.float32) - reference)
    assert (error <= tolerance * np.abs(reference) + 1e-4).all(), error.max()


@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
def test_the_work_is_the_same_under_every_schedule(case: int) -> None:
    """Multiply-adds, bytes and asynchronous instructions do not depend on when things complete."""
    name, (m, n, k), _, _ = CASES[case]
    runs = [launch(case, schedule, seed) for schedule, seed in SCHEDULES]
    kept = (
        "flops.tcgen05.mma",
        "bytes.tma.load",
        "bytes.tma.store",
        "tcgen05.mma",
        "tcgen05.commit",
        "tcgen05.ld",
    )
    work = [{key: run.counters.get(key, 0) for key in kept} for _, run in runs]
    assert all(w == work[0] for w in work)
    assert work[0]["flops.tcgen05.mma"] == 2 * m * n * k
    if name >= "step4":
        assert work[0]["bytes.tma.load"] == operand_bytes(name, m, n, k, CASES[case][2])
        assert work[0]["bytes.tma.store"] == 2 * m * n


@pytest.mark.parametrize("schedule, seed", [("late", 0), ("random", 3)])
def test_the_same_seed_gives_the_same_run(schedule: str, seed: int) -> None:
    case = next(i for i, c in enumerate(CASES) if c[0] == "step8_two_cta")
    (first, run), (second, again) = (launch.__wrapped__(case, schedule, seed) for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert (run.counters, run.findings) == (again.counters, again.findings)


def operand_bytes(name: str, m: int, n: int, k: int, kwargs: dict[str, object]) -> int:
    """Bytes that TMA moves into SMEM when every output tile loads its rows of A and of B once."""
    tile_m, tile_n = {
        "step7_warp_specialized": (128, kwargs.get("blk_n", 256)),
        "step8_two_cta": (256, 256),
        "step9_two_consumers": (512, 256),
    }.get(name, (128, 128))
    return (m // tile_m) * (n // int(tile_n)) * (tile_m + int(tile_n)) * k * 2


PERSISTENT = {
    "step6_persistent": 8,
    "step7_warp_specialized": 4,
    "step8_two_cta": 4,
    "step9_two_consumers": 2,
}


@pytest.mark.parametrize("name", PERSISTENT)
def test_default_grid(name: str) -> None:
    """No more CTAs than 512 x 256 outputs give work to, and never more than there are SMs."""
    assert emulator.compile(getattr(ladder, name)(512, 256, 128)).resources["grid"] == (
        PERSISTENT[name],
        1,
        1,
    )
    assert emulator.compile(getattr(ladder, name)(8192, 8192, 128)).resources["grid"] == (148, 1, 1)


@pytest.mark.parametrize("name", PERSISTENT)
def test_a_grid_of_idle_ctas(name: str) -> None:
    """148 CTAs, most of them idle."""
    kernel = emulator.compile(getattr(ladder, name)(512, 256, 128, num_ctas=148))
    rng = np.random.default_rng(7)
    a, b = (
        rng.standard_normal((512, 128)).astype(np.float16),
        rng.standard_normal((256, 128)).astype(np.float16),
    )
    d = np.full((512, 256), np.nan, dtype=np.float16)
    run = kernel.run(a, b, d)
    assert run.findings == ()
    assert kernel.resources["grid"] == (148, 1, 1)
    np.testing.assert_allclose(d, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", [n for n in dir(ladder) if n.startswith("step")])
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="K = 100 must be a positive multiple of 64"):
        getattr(ladder, name)(512, 256, 100)
    with pytest.raises(ValueError, match="M = 100 must be a positive multiple of"):
        getattr(ladder, name)(100, 256, 64)
