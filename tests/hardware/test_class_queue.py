"""The record of a class that went through the queue of a GPU: killed, resumed, confirmed; the page shows this record."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from hardware.class_queue import BEGIN, CLASS, END, KILL_AT, PAGE, RECORD, SOLUTION, hand_in, table

FOUND: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
LINES = {(line["student"], line["exercise"]): line for line in FOUND["confirmed"]}


def test_the_queue_was_killed_and_went_on() -> None:
    emulated, killed, resumed, again, after = FOUND["runs"]
    assert killed["code"] == -signal.SIGKILL and KILL_AT <= killed["kept"] < resumed["kept"]
    assert resumed["graded"] == resumed["kept"] - killed["kept"] and FOUND["untouched"]
    assert (again["graded"], after["graded"]) == (0, 0)
    assert all(run["code"] == 0 for run in (emulated, resumed, again, after))
    assert FOUND["after"] == FOUND["confirmed"]


def test_the_right_kernels_that_this_gpu_runs_were_confirmed() -> None:
    for before in FOUND["before"]:
        line = LINES[before["student"], before["exercise"]]
        assert line["status"] == ("confirmed" if before["status"] == "provisional" else "graded")
        changed = {name for name in line if line[name] != before[name]}
        assert changed <= {"points", "status", "device", "speed", "note"}
        assert float(line["points"] or 0) - float(before["points"]) == float(line["speed"] or 0) - float(
            before["speed"] or 0
        )
    assert {line["speed"] for (student, _), line in LINES.items() if student == "ada"} == {"10", ""}
    assert [LINES["ada", e]["points"] for e in ("exercise_01", "exercise_04")] == [
        LINES["gus", e]["points"] for e in ("exercise_01", "exercise_04")
    ]


def test_a_kernel_that_the_gpu_sees_fail_is_noted() -> None:
    assert LINES["cleo", "exercise_03"]["note"] and LINES["cleo", "exercise_03"]["speed"] == "0"


def test_the_class_can_still_be_handed_in(tmp_path: Path) -> None:
    hand_in(tmp_path)
    assert len(list(tmp_path.glob("*/exercise_*/exercise_*.py"))) == len(FOUND["confirmed"])
    assert len(CLASS["ada"]) == CLASS["ada"].count(SOLUTION)


def test_the_page_shows_the_record() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table(FOUND)
