"""The kernels that are timed on an H200 are right, and free of races, in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import emulator
from kernels import hopper

GEMMS = (
    ("serial", (128, 128, 128), {}),
    ("pipelined", (128, 256, 320), {"stages": 4}),
    ("pipelined", (64, 256, 192), {"stages": 2, "blk_n": 256}),
    ("specialized", (256, 256, 320), {}),
    ("specialized", (128, 256, 128), {"consumers": 1, "blk_n": 256, "stages": 2}),
    ("specialized", (256, 512, 192), {"num_ctas": 3, "blk_n": 256, "lag": False, "stages": 3}),
)


@pytest.mark.parametrize(("kind", "size", "more"), GEMMS)
def test_wgmma_gemms(kind: str, size: tuple[int, int, int], more: dict[str, Any]) -> None:
    m, n, k = size
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (n, k)))
    d = np.zeros((m, n), np.float16)
    run = emulator.compile(getattr(hopper, kind)(m, n, k, **more), arch="sm_90a").run(a, b, d)
    assert not run.findings
    np.testing.assert_allclose(d, a.astype(np.float32) @ b.astype(np.float32).T, rtol=2e-3, atol=2e-2)


def test_streams_and_rates() -> None:
    a = np.random.default_rng(0).standard_normal((4096, 64)).astype(np.float16)
    d = np.zeros((4, 32), np.float16)
    stream = emulator.compile(hopper.stream(4096, total_rows=4096, ctas=4, times=2), arch="sm_90a").run(a, d)
    assert not stream.findings and stream.counters["bytes.tma.load"] == 2 * a.nbytes
    rate = np.ones((2, 256), np.float32)
    run = emulator.compile(hopper.wgmma_rate(64, groups=3, warpgroups=2, ctas=2), arch="sm_90a").run(rate)
    assert not run.findings and not rate.any()
    assert run.counters["flops.wgmma"] == 2 * 64 * 64 * 16 * 4 * 3 * 2 * 2
    x = np.linspace(-1, 1, 512, dtype=np.float32)
    y = np.zeros(512, np.float32)
    emulator.compile(hopper.exponentials(512, rounds=1, fma=1), arch="sm_90a").run(x, y)
    want = sum(np.exp2(x - c) * 0.999 - 0.001 for c in range(4))
    np.testing.assert_allclose(y, want, rtol=1e-5)
