"""Seeded mistakes and counters: what the emulator says today against what an H200 showed (mistakes.json, counters.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import emulator
from hardware import counters
from hardware.mistakes import MISTAKES, Mistake, arguments

HERE = Path(__file__).parent
ROWS: dict[str, Any] = {row["name"]: row for row in json.loads((HERE / "mistakes.json").read_text())}
COUNTERS: dict[str, Any] = json.loads((HERE / "counters.json").read_text())


def _run(m: Mistake, wrong: bool) -> Any:
    ctas = 2 * m.cluster
    return emulator.compile(m.build(wrong, ctas), arch="sm_90a").run(*arguments(m, ctas))


@pytest.mark.parametrize("m", MISTAKES, ids=lambda m: m.name)
def test_the_correct_twin_is_clean(m: Mistake) -> None:
    assert _run(m, False).findings == ()
    gpu = ROWS[m.name]["correct"]["gpu"]
    assert (gpu["runs"], gpu["shown"], gpu["hung"]) == (200, 0, False)


@pytest.mark.parametrize("m", MISTAKES, ids=lambda m: m.name)
def test_the_mistake_is_found(m: Mistake) -> None:
    """A finding that costs points for every mistake, an error for every one that hangs the GPU each time."""
    run = _run(m, True)
    assert not run.ok or m.name == "shared_named_barrier"  # that one needs another order of warps: below
    gpu = ROWS[m.name]["mistake"]["gpu"]
    if gpu["hung"] and gpu["runs"] == 0:
        assert "deadlock" in {f.code for f in run.findings}


def test_a_barrier_shared_by_two_pairs_shows_in_another_order() -> None:
    m = next(m for m in MISTAKES if m.name == "shared_named_barrier")
    kernel = emulator.compile(m.build(True, 2), arch="sm_90a")
    assert any(not kernel.run(*arguments(m, 2), schedule="random", seed=seed).ok for seed in range(4))


@pytest.mark.parametrize("pattern", list(counters.PATTERNS))
def test_counters_equal_the_profilers(pattern: str) -> None:
    assert counters.emulated(pattern) == COUNTERS[pattern]["gpu"]
