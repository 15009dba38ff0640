"""A record: one result and everything needed to get it again.

Its key is the SHA-256 of what decides the result: the exercise, the submission, the versions, the seed, the device and
whether the grade was quick. Equal keys mean equal results, so a record that exists is not computed again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from autograder import __version__
from autograder.errors import EXIT_MACHINE, UsageError
from autograder.files import write_atomically
from autograder.oracle_names import FOLDER as ORACLES
from autograder.oracle_names import oracle_files
from autograder.report.model import GradeReport
from autograder.submission import MAX_SOURCE_BYTES, Submission

if TYPE_CHECKING:
    from autograder.course import Course, Exercise

_PACKAGES = ("apache-tvm", "torch", "numpy", "ml_dtypes")
MAX_RECORD_BYTES = 64 << 20
Device = Literal["emulated", "cuda"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Snapshot(_Model):
    """What was graded: the text of the kernel and the answers, as `autograder.submission` extracted them."""

    name: str
    source: str
    cell: int | None = None
    grade_id: str | None = None
    answers: dict[str, int | float | str | None] = {}
    answers_problem: str = ""
    answers_cell: int | None = None
    untouched: bool = False

    @field_validator("source")
    @classmethod
    def _is_short(cls, source: str) -> str:
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise ValueError("is longer than a kernel may be")
        return source

    def submission(self) -> Submission:
        return Submission(**self.model_dump())

    @property
    def sha256(self) -> str:
        """Of everything that a report depends on or shows; a notebook's other cells and outputs are not part of it."""
        return digest(self.model_dump(mode="json"))


class Record(_Model):
    """One result.

    `submission` is None where nothing could be read; `problem` says why. `report` is None then, and where the grader's own
    process died. `verdicts_sha256` covers everything in the report but times and what the submission printed.
    """

    format: Literal["autograde-record"] = "autograde-record"
    version: Literal[1] = 1
    key: str
    exercise: str
    exercise_sha256: str
    submission_sha256: str
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    quick: bool = False
    device: str
    versions: dict[str, str]
    isolation: dict[str, bool] = {}
    submission: Snapshot | None = None
    problem: str = ""
    report: GradeReport | None = None
    verdicts_sha256: str = ""
    seconds: float = 0.0

    @property
    def final(self) -> bool:
        """Whether the result is about the submission: neither the grader nor the machine failed."""
        if self.report is not None:
            return self.report.exit_code != EXIT_MACHINE
        return self.submission is None

    def file(self, folder: Path) -> Path:
        return record_file(folder, self.exercise, self.key)


def record_file(folder: Path, exercise: str, key: str) -> Path:
    """Where the record of a key lives in a results folder."""
    return folder / "records" / f"{exercise}-{key[:24]}.json"


def snapshot(submission: Submission) -> Snapshot:
    """An immutable copy in plain, finite, printable values."""
    answers = {printable(name): _plain(value) for name, value in submission.answers.items()}
    return Snapshot(
        name=printable(submission.name),
        source=submission.source,
        cell=submission.cell,
        grade_id=submission.grade_id,
        answers=answers,
        answers_problem=printable(submission.answers_problem),
        answers_cell=submission.answers_cell,
        untouched=submission.untouched,
    )


def _plain(value: Any) -> int | float | str | None:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None  # no answer is infinite
    return value if isinstance(value, int | float) else None


def printable(text: str) -> str:
    """The text without lone surrogates, which no UTF-8 file can hold."""
    return text.encode("utf-8", "replace").decode()


def _has_surrogate(value: Any) -> bool:
    """Whether a text in a JSON value is half a character: JSON can spell it, no file and no hash can hold it."""
    return re.search("[\\ud800-\\udfff]", json.dumps(value, ensure_ascii=False)) is not None


def digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def exercise_sha256(course: Course, exercise: Exercise) -> str:
    """Of the exercise's block in course.yaml, of the limits, and of the files that hold its oracles."""
    files = {oracle_files()[kernel.oracle] for kernel in exercise.kernels}
    oracles = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    return digest([exercise.model_dump(mode="json"), course.limits.model_dump(mode="json"), oracles])


@cache
def versions() -> dict[str, str]:
    """What computes a result: packages by version, the grader itself also by the digest of its code."""
    found = {"autograder": __version__, "python": platform.python_version(), "code": _code_sha256()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def _code_sha256() -> str:
    """Of every Python and YAML file of the packages `autograder` and `emulator`, but for the oracles: those concern the
    exercises that name them, see `exercise_sha256`, and a new one is no reason to grade a class again.
    """
    root = Path(__file__).resolve().parents[2]
    total = hashlib.sha256()
    for path in code_files():
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def code_files() -> list[Path]:
    """The files that `code` of `versions` covers."""
    root = Path(__file__).resolve().parents[2]
    found = [p for package in ("autograder", "emulator") for p in sorted((root / package).rglob("*"))]
    found = [p for p in found if p.suffix in (".py", ".yaml") and "__pycache__" not in p.parts]
    return [path for path in found if path.parent != ORACLES or path.name == "__init__.py"]


def key_of(exercise: str, submission: str, seed: int, quick: bool, device: str) -> str:
    """The key of a result, from the hashes of exercise and submission."""
    return digest([exercise, submission, versions(), seed, quick, device])


def verdicts(report: GradeReport) -> dict[str, Any]:
    """What has to come out again bit for bit: the report without times, advice and the submission's own output."""
    left_out = {"seconds", "next_step", "output", "measured", "isolation"}
    return report.model_dump(mode="json", exclude=left_out)


def verdicts_sha256(report: GradeReport) -> str:
    return digest(verdicts(report))


def write_record(folder: Path, record: Record) -> None:
    """Write a record in one step.

    Raises:
        OSError: it cannot be written.
    """
    path = record.file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record.model_dump(mode="json"), indent=1, sort_keys=True)
    write_atomically(path, text.encode() + b"\n")


def read_record(path: Path) -> Record:
    """A record from its file.

    Raises:
        UsageError: there is none, or the file holds something else.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_RECORD_BYTES)
        content = json.loads(raw)
        if _has_surrogate(content):
            raise ValueError("holds half a character")
        return Record.model_validate(content)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValidationError, ValueError, RecursionError):
        raise UsageError(f"{path}: is no record of this version of `autograde batch`") from None


def kept_record(folder: Path, exercise: str, key: str) -> Record | None:
    """The record of a key, None where there is none that is whole."""
    path = record_file(folder, exercise, key)
    if not os.path.isfile(path):
        return None
    try:
        record = read_record(path)
    except UsageError:
        return None
    return record if record.key == key else None
