"""The record of measurements on a GPU: they repeat, a kernel a tenth slower is told apart, and the page shows this record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hardware.exercises import kernel_cell, replaced
from hardware.repeatability import BEGIN, END, EXERCISES, PAGE, RECORD, REPEATS, apart_from_one, jobs, table

ROWS: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))["measured"]


def test_every_row_was_measured() -> None:
    seen = [(row["name"], row["kind"]) for row in ROWS]
    assert all(seen.count((job["name"], job["kind"])) == REPEATS for job in jobs())
    assert {row["name"] for row in ROWS} == {*EXERCISES, "torch copy"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['name']}-{row['kind']}-{row['repeat']}")
def test_a_measurement_is_sharp_and_right(row: dict[str, Any]) -> None:
    """The interval of the ratio is below 3 %; a kernel is as fast as itself, and slower with a tenth more work."""
    low, high = row["measured"]["interval"]
    assert (high - low) / row["measured"]["ratio"] < 0.03
    if row["kind"] != "library":
        assert apart_from_one([low, high]) == {"itself": "equal", "slower": "slower"}[row["kind"]]
    assert row["uncovered"] == 0 or row["uncovered"] < 0.2 * row["measured"]["pairs"]


def test_beside_another_process_there_is_no_verdict() -> None:
    beside = json.loads(RECORD.read_text(encoding="utf-8"))["beside another process"]
    assert (beside["verdict"], beside["fault"]) == ("error", "the machine") and "other process" in beside[
        "message"
    ]


def test_the_page_shows_the_record() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table(json.loads(RECORD.read_text(encoding="utf-8")))


def test_the_slower_kernels_are_still_made_of_the_solutions() -> None:
    for job in jobs():
        replaced(kernel_cell(job["exercise"]), *[tuple(change) for change in job["change"]])
