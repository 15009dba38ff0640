"""Every case on the GPU against the emulator; without a GPU, a sample of them against the record of an H200.

The record, ``record.json``, has the SHA-256 of the bytes that the H200 left in all arguments of every case.
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from hardware import harness
from hardware.cases import all_cases
from hardware.conftest import why_not

RECORD = Path(__file__).parent / "record.json"
SAMPLE = 20  # one case in so many is compared with the record where there is no GPU


@lru_cache(maxsize=1)
def recorded() -> dict[str, Any]:
    return {r["id"]: r for r in json.loads(RECORD.read_text())["cases"]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per case where they run; one skipped test where they do not."""
    if metafunc.definition.name == "test_on_the_gpu":
        reason = why_not(metafunc.config)
        metafunc.parametrize(
            "case_id", [pytest.param("all", marks=pytest.mark.skip(reason))] if reason else list(all_cases())
        )


def test_on_the_gpu(case_id: str, gpu_records: dict[str, dict[str, Any]]) -> None:
    record = gpu_records.get(case_id)
    assert record is not None, "the case did not run: the time was used up"
    if record.get("known") and not record["equal"]:
        pytest.xfail(record["known"])
    assert record["equal"], record.get("error") or record.get("rows")


def _sample() -> list[str]:
    """Cases whose bytes the record says are equal, a fixed sample of every family."""
    return [
        c
        for c, r in recorded().items()
        if r.get("bitwise") and "digest" in r and zlib.crc32(c.encode()) % SAMPLE == 0
    ]


@pytest.mark.parametrize("case_id", _sample() if RECORD.exists() else [])
def test_against_the_record(case_id: str) -> None:
    """The emulator still leaves the bytes that the H200 left."""
    case = all_cases()[case_id]
    arrays, _ = harness.run_in_emulator(case.build(), case, case.make_arguments())
    assert harness.digest(arrays) == recorded()[case_id]["digest"]


def test_the_record_is_complete() -> None:
    """Every case was run on the GPU, and what differs is known."""
    assert set(all_cases()) == set(recorded())
    different = {c for c, r in recorded().items() if not r["equal"] and "known" not in r}
    assert different == set()
