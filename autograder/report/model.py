"""GradeReport: everything that one grade found out. Every view renders from it and from nothing else."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from autograder.errors import EXIT_FULL_MARKS, EXIT_MACHINE, EXIT_POINTS_LOST


class Verdict(StrEnum):
    PASS = "pass"
    PARTIAL = "partial"
    FAIL = "fail"
    ERROR = "error"
    SKIPPED = "skipped"


class Fault(StrEnum):
    """Who is to blame for lost points. Only `your code` lowers a grade."""

    YOUR_CODE = "your code"
    GRADER = "the grader"
    MACHINE = "the machine"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Location(_Model):
    """A line of the learner's: in a notebook cell (1-based cell and line) or in a file."""

    file: str
    line: int
    cell: int | None = None
    text: str = ""

    def spell(self) -> str:
        where = (
            f"{self.file}:{self.line}" if self.cell is None else f"notebook cell {self.cell} line {self.line}"
        )
        return f"{where}: {self.text}" if self.text else where


class Evidence(_Model):
    """One thing that was seen, why it matters (`message`) and what to do (`fix`).

    `code` names a finding (e.g. `deadlock`) where the evidence is one; `data` holds the numbers behind the
    message.
    """

    kind: Literal["mismatch", "finding", "lint", "error", "counter", "resource", "answer", "note"]
    message: str
    code: str = ""
    fix: str = ""
    locations: list[Location] = []
    data: dict[str, Any] = {}


class CheckResult(_Model):
    """The verdict of one check. `reason` says why it was skipped or could not be decided."""

    id: str
    title: str
    verdict: Verdict
    points: float
    max_points: float
    fault: Fault | None = None
    summary: str = ""
    reason: str = ""
    evidence: list[Evidence] = []


class Source(_Model):
    """What was graded."""

    kind: Literal["notebook", "file"]
    name: str
    sha256: str
    cell: int | None = None


class GradeReport(_Model):
    """The result of one grade. Points are rounded to 1/100."""

    format: Literal["autograde-report"] = "autograde-report"
    version: Literal[1] = 1
    exercise: str
    title: str
    points: float
    max_points: float
    device: str
    seed: Annotated[int, Field(ge=0)]
    quick: bool = False
    source: Source
    checks: list[CheckResult]
    notes: list[Evidence] = []
    next_step: str = ""
    output: str = ""
    versions: dict[str, str] = {}
    seconds: dict[str, float] = {}

    @property
    def faults(self) -> set[Fault]:
        return {check.fault for check in self.checks if check.fault is not None}

    @property
    def full_marks(self) -> bool:
        return self.points >= self.max_points and all(c.verdict is Verdict.PASS for c in self.checks)

    @property
    def exit_code(self) -> int:
        if self.faults & {Fault.GRADER, Fault.MACHINE}:
            return EXIT_MACHINE
        return EXIT_FULL_MARKS if self.full_marks else EXIT_POINTS_LOST

    def check(self, check_id: str) -> CheckResult | None:
        return next((check for check in self.checks if check.id == check_id), None)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the report's JSON form."""
    schema = GradeReport.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
