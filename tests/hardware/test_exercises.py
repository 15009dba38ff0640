"""The run of the exercises on a GPU, rehearsed with a stand-in, and the tables of its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autograder.course import load_course
from hardware import exercises
from hardware.exercises_table import BEGIN, END, PAGE, RECORD, render, section, verdict


def launch(gpu: str, emulated: str, same: bool | None = True, error: str = "") -> dict[str, Any]:
    return {"case": "c", "gpu": gpu, "emulated": emulated, "same_bytes": same, "gpu_error": error}


def grade(name: str, launches: list[dict[str, Any]], findings: list[str], **checks: str) -> dict[str, Any]:
    states = {"predictions": "fail", "build": "pass", "correctness": "pass"} | checks
    head = {"exercise": "exercise_02", "name": name, "mutant": "what is broken", "points": 90.0}
    return {**head, "launches": launches, "findings": findings, "checks": states}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (grade("m", [launch("wrong", "wrong")], ["race.x"], correctness="fail"), "both"),
        (grade("m", [launch("hang", "hang", None)], ["deadlock"], correctness="fail"), "both"),
        (grade("m", [launch("right", "right")], ["race.x"], synchronization="fail"), "forgiven"),
        (grade("m", [launch("right", "right")], [], mechanism="fail"), "other check"),
        (grade("m", [launch("wrong", "right", False)], [], correctness="fail"), "gpu only"),
        (grade("m", [launch("right", "right")], []), "nowhere"),
        (grade("m", [], [], build="fail"), "both"),
    ],
)
def test_where_a_mutant_fails(row: dict[str, Any], expected: str) -> None:
    assert verdict(row) == expected


def measured(name: str, what: str, ratio: float, width: float = 0.01, **more: Any) -> dict[str, Any]:
    result = {
        "kernel_us": 65.0, "reference_us": 65.0 * ratio, "ratio": ratio, "interval": [ratio - width / 2, ratio + width / 2],
        "bytes_moved": 268435456, "verdict": "fast", "message": "", "reference": "copy",
    }  # fmt: skip
    return {"name": name, "what": what, "exercise": "exercise_02", "repeat": 0, "measured": result, **more}


def record() -> dict[str, Any]:
    machine = {"gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-01-02", "cores": 16, "torch": "2.11.0"}
    fault = launch("fault", "wrong", None, "CUDA Runtime Error: cudaErrorX (1): an illegal address")
    return {
        "machine": machine,
        "seconds": 99.0,
        "grades": [
            grade("solution", [launch("right", "right")] * 4, []),
            grade("a", [fault], ["gmem.oob"], correctness="fail"),
            {"exercise": "exercise_02", "name": "b", "error": "exit status None"},
        ],
        "measured": [
            measured("against copy", "solution", 0.95),
            measured("against copy", "solution", 0.96),
            measured("slower", "slower", 0.86),
            measured("slower, against itself", "slower", 0.90),
            {"name": "x", "what": "y", "exercise": "exercise_02", "repeat": 0, "error": "Traceback"},
        ],
        "trouble": [{"stage": "grade", "subject": "exercise_02/c", "why": "deadline"}],
    }


def test_the_section_says_what_was_seen() -> None:
    text = section(record())
    assert "| exercise_02 | 90 | 4 right | 4 right | the same bytes |" in text
    assert "| 02 a | what is broken | 1 fault (an illegal address) | 1 wrong; gmem.oob | both |" in text
    assert "1 mutants: 1 fail on the GPU as well" in text and "Without a result: exercise_02/b." in text
    assert "| against copy | 65.0 | 4.13 | 61.8 | 95.0 % | 94.5 to 95.5 | fast |" in text
    assert (
        "the widest interval of a ratio is 1.05 % of it" in text
        and "at most 1.05 % apart (2 measurements" in text
    )
    assert "exercise_02 against the library: told apart from the solution" in text
    assert "exercise_02 against the original: 90.0 % (89.5 to 90.5)" in text
    assert "used up: exercise_02/c" in text


def test_rendering_replaces_what_lies_between_the_marks(tmp_path: Path) -> None:
    page, data = tmp_path / "page.md", tmp_path / "record.json"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    data.write_text(json.dumps(record()))
    for _ in range(2):
        render(data, page)
        text = page.read_text()
        assert text.startswith(f"before\n{BEGIN}\nNVIDIA H200") and text.endswith(f"{END}\nafter\n")
        assert "\nold\n" not in text
    with pytest.raises(SystemExit, match="no record"):
        render(tmp_path / "missing.json", page)


def test_the_page_shows_the_record() -> None:
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()
    assert shown == (
        section(json.loads(RECORD.read_text())) if RECORD.exists() else "There is no record yet."
    )


def test_every_change_of_a_kernel_still_applies() -> None:
    """The texts that are timed differ from the solutions by replacements; each must find its place and build."""
    course = load_course(exercises.ROOT)
    for job in exercises.jobs():
        exercise = course.find(job["exercise"])
        kernel = exercise.timed(exercises.what_to_time(exercise, job))
        source = exercises.replaced(
            exercises.kernel_cell(job["exercise"]), *[tuple(c) for c in job["change"]]
        )
        small = {name: 1000 if len(kernel.builder.params) == 1 else 64 for name in kernel.builder.params}
        assert exercises.build(source, kernel.builder.name, small) is not None


def test_the_record_is_written_after_every_result(tmp_path: Path) -> None:
    kept = exercises.Record(tmp_path / "out" / "record.json")
    kept.add("machine", {"gpu": "X"})
    assert json.loads(kept.path.read_text()) == {
        "machine": {"gpu": "X"},
        "grades": [],
        "measured": [],
        "trouble": [],
    }
    kept.add("grades", {"name": "a"})
    kept.add("seconds", 3.5)
    assert json.loads(kept.path.read_text())["grades"] == [{"name": "a"}]


def test_subjects_are_the_exercises_of_this_generation() -> None:
    found = exercises.subjects()
    names = {s["exercise"] for s in found}
    assert {"exercise_01", "exercise_02"} <= names and "exercise_05" not in names
    assert [s["name"] for s in found[: len(names)]] == ["solution"] * len(names)
    assert all("check" in s and "finding" in s for s in found[len(names) :])
