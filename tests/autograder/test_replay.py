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


def test_a_forged_record_of_a_gpu_does_not_come_out(
    record: Path, folder: Path, autograde: Callable[..., Result]
) -> None:
    """Which checks only a GPU decides is not the record's to say; honest or not, what was not computed is named."""
    left_out = "not recomputed, only NVIDIA B200 can: correctness"

    def of_a_gpu(kept: Record) -> None:
        assert kept.report is not None
        kept.device = kept.report.device = "NVIDIA B200"
        kept.report.judged_on = {c.id: "NVIDIA B200" for c in kept.report.checks if c.id == "correctness"}
        kept.report.points, kept.report.check("correctness").points = 100, 40  # type: ignore[union-attr]

    done = autograde("replay", str(edit(record, of_a_gpu)))
    assert done.code == 0 and left_out in " ".join(done.out.split()) and "100 points" not in done.out, done

    def full_marks(kept: Record) -> None:
        of_a_gpu(kept)
        assert kept.report is not None
        kept.report.judged_on = {check.id: "NVIDIA B200" for check in kept.report.checks}
        for check in kept.report.checks:
            check.points, check.evidence = check.max_points, []

    done = autograde("replay", str(edit(record, full_marks)))
    assert done.code == 1 and "the same verdicts" not in done.out
    assert all(f"{name}." in done.out for name in ("synchronization", "mechanism")), done.out


def test_values_that_no_record_has_are_one_line(
    record: Path, folder: Path, autograde: Callable[..., Result]
) -> None:
    """Each of these has the right hashes where one can be computed, and is refused when it is read."""
    kept = json.loads(record.read_text(encoding="utf-8"))
    submission = kept["submission"]
    for change in (
        {"seed": -1},
        {"seed": 1 << 64},
        {"seed": "\ud800"},
        {"device": "\ud800"},
        {"exercise": "\udfff"},
        {"versions": {"\ud800": "1"}},
        {"submission": {**submission, "source": submission["source"] + "\ud800"}},
        {"submission": {**submission, "name": "\udc80"}},
        {"submission": {**submission, "answers": {"q1": "\ud800"}}},
        {"submission": {**submission, "source": "#" * (2 << 20)}},
    ):
        path = folder / "changed.json"
        path.write_text(json.dumps({**kept, **change}), encoding="utf-8")
        done = autograde("replay", str(path))
        assert done.code == 2 and one_line(done.err) and "is no record" in done.err, (change, done)
