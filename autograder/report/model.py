"""GradeReport: everything that one grade found out. Every view renders from it and from nothing else."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

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


MAX_CELLS = 4096


class Grid(_Model):
    """A picture: a grid of labelled cells, e.g. which lane holds which element, or which bank it reaches.

    Attributes:
        title: stands above the grid, e.g. `yours`.
        cells: label of each cell, rows of equal length; a newline in a label starts a second line in it, an
            empty label leaves the cell empty. At most MAX_CELLS cells: show a part of what is larger.
        colours: one number per cell; equal numbers get equal colours (of 16), -1 stands for none. Left out,
            all cells that are not empty have the same colour.
        rows, columns: names of the rows and columns, or none.
        row_axis, column_axis: what the rows and columns are, e.g. `row`, `bank`.
        marked: [row, column] of the cells to point at, the most telling one first.
        note: one line below the grid.
        text: what the terminal shows instead of a part of the cells.
    """

    title: str
    cells: list[list[str]]
    colours: list[list[int]] = []
    rows: list[str] = []
    columns: list[str] = []
    row_axis: str = ""
    column_axis: str = ""
    marked: list[tuple[int, int]] = []
    note: str = ""
    text: list[str] = []

    @model_validator(mode="after")
    def _fits(self) -> Grid:
        height, width = len(self.cells), len(self.cells[0]) if self.cells else 0
        if any(len(row) != width for row in self.cells) or not 0 < height * width <= MAX_CELLS:
            raise ValueError(f"a grid has 1 to {MAX_CELLS} cells in rows of equal length")
        if self.colours and [len(row) for row in self.colours] != [width] * height:
            raise ValueError("colours needs one number per cell")
        if len(self.rows) not in (0, height) or len(self.columns) not in (0, width):
            raise ValueError("rows and columns need one name each, or none")
        if not all(0 <= i < height and 0 <= j < width for i, j in self.marked):
            raise ValueError("a marked cell lies outside of the grid")
        return self


class Evidence(_Model):
    """One thing that was seen, why it matters (`message`) and what to do (`fix`).

    `code` names a finding (e.g. `deadlock`) where the evidence is one; `data` holds the numbers behind the
    message; `pictures` are grids to be seen side by side, e.g. what is wanted beside what the learner has.
    """

    kind: Literal["mismatch", "finding", "lint", "error", "counter", "resource", "answer", "note"]
    message: str
    code: str = ""
    fix: str = ""
    locations: list[Location] = []
    data: dict[str, Any] = {}
    pictures: list[Grid] = []


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


class Isolation(_Model):
    """What kept the submission in its place, as its process found it before the submission ran (docs/integrity.md).

    `full`: namespaces of its own; `basic`: what a process can take away from itself; `none`: not even bounded resources.
    """

    level: Literal["full", "basic", "none"]
    active: list[str]
    missing: list[str] = []

    def sentence(self) -> str:
        missing = f"; not active: {', '.join(self.missing)}" if self.missing else ""
        return f"{self.level} isolation{missing}"


Tier = Literal["full", "partial", "none"]


class Goal(_Model):
    """How a time stands to one yardstick, `to`: PyTorch's call (library) or the physical roof (roofline).

    `ratio` is the kernel's speed relative to it, `interval` the 95 % bootstrap interval of a measured ratio. `full` and `partial`
    are the tiers of course.yaml; `tier` is the one that counts, in doubt for the learner: an interval that holds
    a boundary reaches it.
    """

    to: Literal["library", "roofline"]
    ratio: float
    interval: tuple[float, float] | None = None
    full: float
    partial: float
    tier: Tier

    def sentence(self) -> str:
        low, high = self.interval or (self.ratio, self.ratio)
        sure = f" ({100 * low:.1f} to {100 * high:.1f})" if self.interval else ""
        what = "PyTorch's speed" if self.to == "library" else "the roofline"
        wanted = f"all points from {100 * self.full:g} %, half from {100 * self.partial:g} %"
        return f"{100 * self.ratio:.1f} %{sure} of {what}, {wanted}"


class RoofPoint(_Model):
    """The physical roof of a kernel at one problem size: the least time, what it has to compute and to move (each tensor once), and
    the peak rates of the GPU. `solution` is the share of the roof's speed that the reference solution reaches, where that is known.
    """

    microseconds: float
    flop: int
    nbytes: int
    tflops: float
    tb_per_s: float
    solution: float | None = None


def best_tier(goals: list[Goal]) -> Tier:
    """The better one of several yardsticks counts."""
    reached = {goal.tier for goal in goals}
    return "full" if "full" in reached else "partial" if "partial" in reached else "none"


class Measured(_Model):
    """A kernel's speed on a GPU against a library call, in microseconds; never a modelled time.

    `ratio` is the kernel's speed relative to the reference's, `interval` its 95 % bootstrap interval, `repeatability` half of
    the interval relative to the ratio, `goals` how that stands to the tiers of course.yaml, `roof` the physical roof at
    the clock that was seen, `floor_us` the least time that the bytes need at the peak bandwidth when L2 may keep some of the output,
    `clocks` the lowest and highest of each value while measuring.
    """

    builder: str
    params: dict[str, int | str]
    reference: str
    device: str
    verdict: Literal["fast", "slow", "inconclusive", "error"]
    tier: Tier = "none"
    goals: list[Goal] = []
    pairs: int
    bytes_moved: int
    kernel_us: float | None = None
    reference_us: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    repeatability: float | None = None
    roof: RoofPoint | None = None
    floor_us: float | None = None
    clocks: dict[str, list[int]] = {}
    fault: Fault | None = None
    message: str = ""

    def sentence(self) -> str:
        """One line for a reader: what was measured, against what, how sure."""
        sizes = ", ".join(f"{name} = {value}" for name, value in self.params.items())
        what = f"measured on {self.device}: {self.builder}({sizes})"
        if self.verdict == "error" or not (
            self.kernel_us and self.reference_us and self.ratio and self.interval
        ):
            return f"{what}: no verdict, {self.message}"
        low, high = self.interval
        speed = f"{self.bytes_moved / self.kernel_us / 1e6:.2f} TB/s"
        if self.roof and self.roof.flop > 100 * self.bytes_moved:
            speed = f"{self.roof.flop / self.kernel_us / 1e6:.0f} TFLOPS"
        return (
            f"{what} takes {self.kernel_us:.1f} µs ({speed}),"
            f" PyTorch's {self.reference} {self.reference_us:.1f} µs: {100 * self.ratio:.1f} % of its speed"
            f" (95 % interval {100 * low:.1f} to {100 * high:.1f}): {self.verdict}"
        )


class ModelledTime(_Model):
    """What the timing model says of a kernel at a problem size (docs/timing_model.md); never a measured time.

    `tensor_core` is the share of the time that the tensor core works, None for a kernel without MMAs; `roof` the physical
    roof at the same clock, `goals` how the time stands to it, and the tiers of course.yaml.
    """

    builder: str
    params: dict[str, int | str]
    device: str
    clock_ghz: float
    microseconds: float
    bytes_dram: int
    flops: int
    tensor_core: float | None = None
    bottleneck: str
    tier: Tier = "none"
    goals: list[Goal] = []
    roof: RoofPoint | None = None

    def sentence(self) -> str:
        """One line for a reader: how long, how fast, and what holds it up."""
        sizes = ", ".join(f"{name} = {value}" for name, value in self.params.items())
        speed = f"{self.bytes_dram / self.microseconds / 1e6:.2f} TB/s"
        if self.flops:
            speed = f"{self.flops / self.microseconds / 1e6:.0f} TFLOPS"
        return (
            f"modelled on {self.device} at {self.clock_ghz:g} GHz: {self.builder}({sizes}) takes"
            f" {self.microseconds:.1f} µs ({speed}). {self.bottleneck}"
        )


class GradeReport(_Model):
    """The result of one grade. Points are rounded to 1/100.

    `device` is where the output came from, its real name or `emulated sm_100a`. `judged_on` names, where a GPU ran the
    kernel, the device behind each check; `measured` holds times of that GPU, `modelled` those of the timing model
    where no GPU was there: never both. `isolation` is None where nothing of the submission was run.
    """

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
    judged_on: dict[str, str] = {}
    isolation: Isolation | None = None
    measured: list[Measured] = []
    modelled: list[ModelledTime] = []
    notes: list[Evidence] = []
    next_step: str = ""
    output: str = ""
    versions: dict[str, str] = {}
    seconds: dict[str, float] = {}

    @property
    def speed(self) -> list[str]:
        """What was measured or modelled, in words."""
        return [m.sentence() for m in self.measured] + [m.sentence() for m in self.modelled]

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
