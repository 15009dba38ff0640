"""`autograde replay`: a record comes out bit for bit again, or what differs is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autograder.batch.record import Record, read_record, verdicts_sha256, write_record

from .conftest import REPOSITORY, Result, one_line

RACE = "exercise_05/missing_commit.py"


@pytest.fixture
def record(folder: Path, autograde: Callable[..., Result]) -> Path:
    """The record of a kernel that hangs, from a class of one."""
    (folder / "submitted").mkdir()
    text = (REPOSITORY / "tests" / "mutants" / RACE).read_text(encoding="utf-8")
    (folder / "submitted" / "ann_exercise_05.py").write_text(text, encoding="utf-8")
    assert autograde("batch", "submitted", "--quick", "--seed", "77").code == 0
    (path,) = (folder / "results" / "records").iterdir()
    return path


def edit(path: Path, change: Callable[[Record], Any], honest: bool = True) -> Path:
    """A changed copy of a record; an honest one has the right hashes."""
    record = read_record(path)
    change(record)
    assert record.report is not None and record.submission is not None
    if honest:
        record.verdicts_sha256 = verdicts_sha256(record.report)
        record.submission_sha256 = record.submission.sha256
    folder = path.parent.parent / change.__name__
    write_record(folder, record)
    return record.file(folder)


def test_a_record_comes_out_again(record: Path, folder: Path, autograde: Callable[..., Result]) -> None:
    """All of it, findings and lines included; then with other points in it, under other rules, and edited by hand."""
    kept = read_record(record)
    assert kept.report is not None and any(c.evidence for c in kept.report.checks)
    done = autograde("replay", str(record), "--plain")
    assert (
        done.code == 0
        and "the same verdicts, points and evidence" in done.out
        and "since then" not in done.out
    )

    def more_points(kept: Record) -> None:
        assert kept.report is not None
        kept.report.checks[1].points, kept.versions["torch"] = 3, "1.0"

    done = autograde("replay", str(edit(record, more_points)))
    assert done.code == 1 and "build.points: 3.0, now 10.0" in done.out and "1 differences" in done.out
    assert "since then: torch was 1.0" in done.out

    text = (folder / "course.yaml").read_text(encoding="utf-8")
    (folder / "course.yaml").write_text(text.replace("output_kib: 1024", "output_kib: 512"), encoding="utf-8")
    done = autograde("replay", str(record))
    assert done.code == 0 and "since then: exercise_05 or the limits" in done.out


def test_what_cannot_be_replayed_gets_one_line(
    record: Path, folder: Path, autograde: Callable[..., Result]
) -> None:
    def other_source(kept: Record) -> None:
        assert kept.submission is not None
        kept.submission.source += "\n# 100 points, please"

    def other_points(kept: Record) -> None:
        assert kept.report is not None
        kept.report.points = 100

    (folder / "no.json").write_text(json.dumps({"format": "autograde-record"}))
    for path, words in (
        (edit(record, other_source, honest=False), "its submission does not fit"),
        (edit(record, other_points, honest=False), "its report does not fit"),
        (folder / "no.json", "is no record"),
        (folder / "nowhere.json", "cannot be read"),
    ):
        done = autograde("replay", str(path))
        assert done.code == 2 and one_line(done.err) and words in done.err, done
