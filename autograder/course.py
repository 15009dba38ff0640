"""course.yaml as validated objects.

Errors name the file, the line, the key, what is wrong, and the nearest valid name.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from autograder.amounts import evaluate
from autograder.course_folder import COURSE_FILE
from autograder.errors import CourseError, UsageError, did_you_mean
from autograder.layouts import MAX_ELEMENTS, Table, check_formula, compute, formula_table
from autograder.oracle_names import known_oracle
from emulator.counters import AMOUNTS, INSTRUCTIONS, OBSERVABLES, RESOURCES

MAX_COURSE_BYTES = 4 << 20

CHECK_KINDS = (
    "predictions",
    "layouts",
    "build",
    "correctness",
    "synchronization",
    "mechanism",
    "coalescing",
    "bank_conflicts",
    "functions",
    "resources",
    "speed",
)
INPUT_FAMILIES = (
    "normal",
    "wide",
    "large",
    "large_nn",
    "signed_zeros",
    "one_hot",
    "one_hot_nn",
    "distinct",
    "extremes",
    "huge_scores",
    "identical_keys",
    "peaked_scores",
    "peaks_in_one_warp",
    "one_key",
)
FUNCTIONS = ("swizzle_32", "swizzle_64", "swizzle_128")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
GradeId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_\-]+$")]
Text = Annotated[str, StringConstraints(min_length=1)]
LARGEST = 2**31 - 1  # of any whole number: kernels count in int32
Positive = Annotated[int, Field(gt=0, le=LARGEST, strict=True)]  # strict: true is no 1
Whole = Annotated[int, Field(ge=0, le=LARGEST, strict=True)]
Points = Annotated[float, Field(ge=0, le=1000, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=86400, strict=True)]
Amount = Whole | Text  # text: see autograder.amounts
Params = dict[Name, Whole | Text]  # 0 is a switch that is off, never a size
MEASURES = ("registers", "spill_bytes", "static_smem_bytes", "barriers")  # of nvcc, see autograder.assembly
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
DTYPES = tuple(ITEM_BYTES)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Limits(_Strict):
    """What one grade may use. Seconds of wall clock, MiB of address space, KiB of printed output.

    `gpu_seconds`: one launch on a GPU, after which the kernel counts as hung; `timing_seconds`: one measurement.
    """

    start_seconds: Seconds = 120
    build_seconds: Seconds = 20
    run_seconds: Seconds = 60
    gpu_seconds: Seconds = 10
    timing_seconds: Seconds = 60
    memory_mib: Annotated[int, Field(ge=512, le=1 << 20, strict=True)] = 4096
    output_kib: Annotated[int, Field(gt=0, le=1 << 20, strict=True)] = 1024


class Builder(_Strict):
    """The function that the solution cell defines, and the values it is called with (by keyword)."""

    name: Name
    params: Params


class Cells(_Strict):
    """nbgrader's grade_id of the two solution cells."""

    kernel: GradeId
    answers: GradeId | None = None


class Tensor(_Strict):
    """One buffer parameter of the PrimFunc, in order. Extents are numbers or builder parameters.

    `dtype: dtype` is what the builder parameter of that name says.
    """

    name: Name
    role: Literal["input", "output"]
    dtype: Literal["float16", "bfloat16", "float32", "dtype"]
    shape: Annotated[list[Positive | Name], Field(min_length=1)]


class Tolerance(_Strict):
    """Which outputs are right.

    rounding_interval: those in [round(R - E), round(R + E)] with E = terms * accumulate_eps * |A||B|.
    correctly_rounded: round(R) and nothing else.
    analysed: those in [round(R - E), round(R + E)] with the E that the oracle derives for each element; `exp2` is the
    largest relative error of an exponential, where that is no ex2.approx.
    """

    kind: Literal["rounding_interval", "correctly_rounded", "analysed"]
    terms: Positive | Name = 1
    accumulate_eps: Annotated[float, Field(ge=0, le=1e-3, strict=True)] = 0
    exp2: Annotated[float, Field(gt=0, le=1e-3, strict=True)] | None = None

    @model_validator(mode="after")
    def _options_match_kind(self) -> Tolerance:
        given = {"terms", "accumulate_eps"} & self.model_fields_set
        if self.kind != "rounding_interval" and given:
            raise ValueError(f"{' and '.join(sorted(given))} belong to kind: rounding_interval only")
        if self.kind == "rounding_interval" and not (len(given) == 2 and self.accumulate_eps > 0):
            raise ValueError("kind: rounding_interval needs terms and an accumulate_eps above 0")
        if self.kind != "analysed" and self.exp2 is not None:
            raise ValueError("exp2 belongs to kind: analysed only")
        return self

    @property
    def eps(self) -> float:
        """What the oracle's magnitude is multiplied with, beside `terms`."""
        return 1.0 if self.kind == "analysed" else self.accumulate_eps


class Case(_Strict):
    """One launch: how its inputs are made and when the emulator completes asynchronous work.

    `params` are builder parameters that differ from the exercise's own: another problem size. `stage` names the part of
    the exercise that it belongs to, see `Check`.
    """

    id: Name
    title: Text
    inputs: Literal[
        "normal", "wide", "large", "large_nn", "signed_zeros", "one_hot", "one_hot_nn", "distinct", "extremes",
        "huge_scores", "identical_keys", "peaked_scores", "peaks_in_one_warp", "one_key",
    ]  # fmt: skip
    schedule: Literal["late", "eager", "random"] = "late"
    quick: bool = False
    params: Params = {}
    stage: Name | None = None


def _known(key: str, given: dict[str, Any], names: list[str], who: str = "the emulator reports") -> None:
    """Every name in `given` is one of `names`, for example of what the emulator reports."""
    for name in given:
        if name not in names:
            raise ValueError(f"{key}: {who} no {name!r}{did_you_mean(name, names)}")


class Check(_Strict):
    """One graded check. `at_least` belongs to mechanism (counters), `at_most` to mechanism and resources.

    Bounds of counters may depend on the problem size; `fixes` says, by counter, what to do where one is broken.
    `assembly` belongs to resources: upper bounds of what nvcc reports, where there is one; `{}` reports only.
    `times_ideal` belongs to coalescing and bank_conflicts: how many times the fewest possible sectors an access may
    touch, or wavefronts it may take.
    `kind` says what is judged where the id is a name of its own: an exercise in stages has several checks of the kinds
    correctness and mechanism, each with the `stage` whose cases it looks at.
    """

    id: Name
    kind: Literal[
        "predictions", "layouts", "build", "correctness", "synchronization", "mechanism", "coalescing",
        "bank_conflicts", "functions", "resources", "speed",
    ]  # fmt: skip
    stage: Name | None = None
    title: Text
    points: Points
    looks_at: Text
    at_least: dict[str, Amount] = {}
    at_most: dict[str, Amount] = {}
    fixes: dict[str, Text] = {}
    assembly: dict[str, Whole] | None = None
    times_ideal: Annotated[float, Field(ge=1, le=32, strict=True)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _id_is_a_kind(cls, data: Any) -> Any:
        """Without `kind`, the id is one."""
        if not isinstance(data, dict) or "kind" in data or not isinstance(data.get("id"), str):
            return data
        if data["id"] not in CHECK_KINDS:
            valid = list(CHECK_KINDS)
            raise ValueError(
                f"{data['id']!r} is not one of {', '.join(valid)}{did_you_mean(data['id'], valid)};"
                " a check with another id needs a kind"
            )
        return {**data, "kind": data["id"]}

    @model_validator(mode="after")
    def _options_match_kind(self) -> Check:
        if self.stage is not None and self.kind not in ("correctness", "mechanism"):
            raise ValueError("stage belongs to checks of the kinds correctness and mechanism only")
        if self.at_least and self.kind != "mechanism":
            raise ValueError("at_least belongs to the check 'mechanism' only")
        if self.at_most and self.kind not in ("mechanism", "resources"):
            raise ValueError("at_most belongs to the checks 'mechanism' and 'resources' only")
        counters = [*INSTRUCTIONS, *AMOUNTS, *OBSERVABLES]
        _known("at_least", self.at_least, counters)
        _known("at_most", self.at_most, list(RESOURCES) if self.kind == "resources" else counters)
        _known("fixes", self.fixes, [*self.at_least, *self.at_most])
        if self.assembly is not None and self.kind != "resources":
            raise ValueError("assembly belongs to the check 'resources' only")
        _known("assembly", self.assembly or {}, list(MEASURES), "nvcc reports")
        moving = [name for name, most in self.at_most.items() if isinstance(most, str)]
        if moving and self.kind == "resources":
            raise ValueError(f"at_most.{moving[0]}: a resource is bounded by a number")
        if (self.times_ideal is not None) != (self.kind in ("coalescing", "bank_conflicts")):
            raise ValueError("times_ideal and the checks 'coalescing' and 'bank_conflicts' belong together")
        return self


class Question(_Strict):
    """One prediction question. `answer` is the digest that `python -m autograder.answers` prints."""

    id: Name
    points: Points
    kind: Literal["integer", "number", "choice", "text"]
    prompt: Text
    choices: list[Text] = []
    answer: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _choices_match_kind(self) -> Question:
        if (self.kind == "choice") != bool(self.choices):
            raise ValueError("choices and kind: choice belong together")
        return self


class WantedLayout(_Strict):
    """One TileLayout that a function of the submission returns, and what it must be.

    Attributes:
        name: of the function. calls: the parameters of each call that is looked at, the first one in pictures.
        shape: index -> its extent, a number or a parameter; the indices number the domain in row-major order.
        wanted: axis -> formula of the indices and parameters, e.g. `cols * r + c`.
        colour: formula of the axes that colours the cells of a picture.
    """

    name: Name
    title: Text
    points: Points
    calls: Annotated[list[dict[Name, Positive]], Field(min_length=1)] = [{}]
    shape: Annotated[dict[Name, Positive | Name], Field(min_length=1, max_length=2)]
    wanted: Annotated[dict[Name, Text], Field(min_length=1)]
    colour: Text = "0"

    def extents(self, params: dict[str, int]) -> dict[str, int]:
        """index -> extent, for one of the calls."""
        return {index: params[size] if isinstance(size, str) else size for index, size in self.shape.items()}

    def table(self, params: dict[str, int]) -> Table:
        """What is wanted of one of the calls."""
        return formula_table(self.wanted, self.extents(params), params)

    @model_validator(mode="after")
    def _formulas_are_sound(self) -> WantedLayout:
        check_formula(self.colour, list(self.wanted))
        for params in self.calls:
            if list(params) != list(self.calls[0]):
                raise ValueError(f"calls: every call needs the same parameters, {', '.join(self.calls[0])}")
            for index, size in self.shape.items():
                if isinstance(size, str) and size not in params:
                    raise ValueError(
                        f"shape: the extent of {index} is '{size}', which is no parameter of calls"
                        f" ({', '.join(params)}){did_you_mean(size, list(params))}"
                    )
                if index in params:
                    raise ValueError(f"shape: '{index}' is an index and a parameter")
            extents = self.extents(params)
            if prod(extents.values()) > MAX_ELEMENTS:
                raise ValueError(f"shape: more than {MAX_ELEMENTS} elements")
            for axis, formula in self.wanted.items():
                try:
                    check_formula(formula, [*self.shape, *params])
                    compute(formula, {**params, **dict.fromkeys(extents, 0)})
                except ValueError as error:
                    raise ValueError(f"wanted.{axis}: {error}") from None
        return self


class Roof(_Strict):
    """One peak rate of a GPU, for the roofline: tera floating-point operations per second."""

    name: Text
    tflops: Annotated[float, Field(gt=0, le=1e6, strict=True)]


class Roofline(_Strict):
    """The roofline of a GPU: memory bandwidth in TB/s, peak rates, and where these numbers come from."""

    device: Text
    memory_tb_per_s: Annotated[float, Field(gt=0, le=1e3, strict=True)]
    roofs: Annotated[list[Roof], Field(min_length=1)]
    source: Text


class Function(_Strict):
    """An integer function that the solution cell defines, of one argument from 0 to domain - 1.

    `reference` names what it must be equal to.
    """

    name: Name
    domain: Annotated[int, Field(gt=0, le=1 << 16, strict=True)]
    reference: Literal["swizzle_32", "swizzle_64", "swizzle_128"]


class Tiers(_Strict):
    """Speed relative to something, 1 being its equal, from which a kernel gets all points and half of them.

    `source`: the public number that `full` comes from, and the margin. `solution`: what the reference solution reaches.
    """

    full: Annotated[float, Field(gt=0, le=100, strict=True)]
    partial: Annotated[float, Field(gt=0, le=100, strict=True)]
    source: Text
    solution: Annotated[float, Field(gt=0, le=100, strict=True)] | None = None

    @model_validator(mode="after")
    def _partial_is_less(self) -> Tiers:
        if self.partial >= self.full:
            raise ValueError(f"partial ({self.partial:g}) must be less than full ({self.full:g})")
        return self


class Goals(_Strict):
    """Tiers on one device: speed relative to the library call, and to the roofline. The better of the two counts."""

    library: Tiers | None = None
    roofline: Tiers | None = None

    @model_validator(mode="after")
    def _at_least_one(self) -> Goals:
        if self.library is None and self.roofline is None:
            raise ValueError("needs library, roofline or both")
        return self


Device = Literal["B200", "H200", "modelled"]
MODELLED: Device = "modelled"
MEASURED_ON: dict[str, Device] = {
    "sm_100a": "B200",
    "sm_90a": "H200",
}  # whose tiers hold on a GPU that code is compiled for


class Timing(_Strict):
    """What is timed: a kernel, built for `params`; on a GPU against a library call on the same inputs.

    `builder` names the kernel (the first one where it is left out). The names of references and oracles are those of
    `autograder/runner/backends/torch_bench.py`. `tiers` has one entry per device: B200 and H200 for measured times, modelled
    for the time that the emulator computes for a B200. That one has no library to compare with, only the roofline: a
    modelled time is never set against a measured one. `bytes_loaded`: what all loads together move at least, where that is more
    than each input once; a kernel that loads less at this size gets no modelled time.
    """

    builder: Name | None = None
    params: dict[Name, Annotated[int, Field(ge=0, strict=True)]]
    reference: Literal["add", "attention", "copy", "double", "transpose", "matmul_nn", "matmul_nt"]
    bytes_loaded: Amount = 0
    pairs: Annotated[int, Field(ge=20, le=1000, strict=True)] = 60
    tiers: dict[Device, Goals] = {}

    @model_validator(mode="after")
    def _the_model_knows_no_library(self) -> Timing:
        modelled = self.tiers.get(MODELLED)
        if modelled is not None and modelled.library is not None:
            raise ValueError("tiers.modelled takes roofline only: no library runs where a time is modelled")
        return self

    def goals(self, arch: str) -> Goals:
        """The tiers of measured times on a GPU of an architecture; none where course.yaml has none."""
        device = MEASURED_ON.get(arch)
        return (self.tiers.get(device) if device else None) or Goals.model_construct()


# Inputs that a reference takes.
REFERENCE_INPUTS = {
    "add": 2,
    "attention": 3,
    "copy": 1,
    "double": 1,
    "transpose": 1,
    "matmul_nn": 2,
    "matmul_nt": 2,
}


class KernelSpec(_Strict):
    """A further kernel of an exercise, with the keys that the exercise itself has for its first one."""

    builder: Builder
    tensors: Annotated[list[Tensor], Field(min_length=1)]
    oracle: Annotated[str, AfterValidator(known_oracle)]
    tolerance: Tolerance
    cases: Annotated[list[Case], Field(min_length=1)]
    flop: list[Positive | Name | Text] = []


class Exercise(_Strict):
    """One exercise; `total` is the sum of its checks' points.

    `more_kernels` are built, run and compared after the first kernel, which the exercise itself describes.
    `continues` names the exercise whose kernel the learner brings along.
    `flop` multiplies up to the floating-point operations of one launch: sizes and expressions (autograder.amounts). `functions` are run where the submission
    is, as tables of integers; the check 'functions' looks at them. `layouts` are TileLayouts that functions beside
    the builder return; they need no launch. `runs_on` is the oldest compute capability whose GPUs can run it
    (`sm_100`: no other generation has tcgen05); `timing` says what is measured there. `patience` multiplies the limits of
    builds and runs, for an exercise of many or large kernels.
    """

    id: Annotated[str, StringConstraints(pattern=r"^exercise_\d\d$")]
    title: Text
    teaches: Text
    notebook: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_\-]+\.ipynb$")]
    cells: Cells
    arch: Literal["sm_90a", "sm_100a"]
    runs_on: Literal["sm_90", "sm_100"] = "sm_100"
    builder: Builder
    tensors: Annotated[list[Tensor], Field(min_length=1)]
    oracle: Annotated[str, AfterValidator(known_oracle)]
    tolerance: Tolerance
    cases: Annotated[list[Case], Field(min_length=1)]
    flop: list[Positive | Name | Text] = []
    continues: Annotated[str, StringConstraints(pattern=r"^exercise_\d\d$")] | None = None
    patience: Annotated[float, Field(ge=1, le=10)] = 1
    more_kernels: list[KernelSpec] = []
    functions: list[Function] = []
    layouts: list[WantedLayout] = []
    roofline: Roofline | None = None
    timing: list[Timing] = []
    checks: Annotated[list[Check], Field(min_length=1)]
    questions: list[Question] = []

    def within(self, limits: Limits) -> Limits:
        """The course's limits for a grade of this exercise: `patience` times as long for builds and for runs."""
        longer = {name: getattr(limits, name) * self.patience for name in ("build_seconds", "run_seconds")}
        return limits.model_copy(update=longer)

    @property
    def kernels(self) -> tuple[Exercise, ...]:
        """The exercise once per kernel and problem size, narrowed to that one's builder, tensors and cases."""
        first = self.model_copy(update={"more_kernels": []})
        fields = [
            {name: getattr(more, name) for name in KernelSpec.model_fields} for more in self.more_kernels
        ]
        every = (first, *(first.model_copy(update=update) for update in fields))
        return tuple(narrow for kernel in every for narrow in kernel._by_size())

    def _by_size(self) -> list[Exercise]:
        """One kernel of the exercise, once per set of parameters that its cases use."""
        sizes: dict[tuple[tuple[str, int | str], ...], list[Case]] = {}
        for case in self.cases:
            key = tuple({**self.builder.params, **case.params}.items())
            sizes.setdefault(key, []).append(case)
        return [
            self.model_copy(
                update={
                    "builder": Builder(name=self.builder.name, params=dict(key)),
                    "tensors": [
                        t.model_copy(update={"dtype": dict(key).get("dtype", t.dtype)})
                        if t.dtype == "dtype"
                        else t
                        for t in self.tensors
                    ],
                    "cases": cases,
                }
            )
            for key, cases in sizes.items()
        ]

    def only_quick(self) -> Exercise:
        """The exercise with its quick cases alone."""
        more = [
            kernel.model_copy(update={"cases": [case for case in kernel.cases if case.quick]})
            for kernel in self.more_kernels
        ]
        quick = [case for case in self.cases if case.quick]
        return self.model_copy(update={"cases": quick, "more_kernels": more})

    def timed(self, timing: Timing) -> Exercise:
        """The kernel that an entry of `timing` measures, with the sizes of that entry."""
        kernel = self.kernels[self.timed_kernel(timing)]
        params = {**kernel.builder.params, **timing.params}
        return kernel.model_copy(update={"builder": Builder(name=kernel.builder.name, params=params)})

    def timed_kernel(self, timing: Timing) -> int:
        """Index of the first of `kernels` with the builder that an entry of `timing` measures."""
        names = [kernel.builder.name for kernel in self.kernels]
        return 0 if timing.builder is None else names.index(timing.builder)

    @property
    def number(self) -> int:
        return int(self.id.removeprefix("exercise_"))

    @property
    def total(self) -> float:
        return sum(check.points for check in self.checks)

    def check(self, kind: str) -> Check | None:
        """The first check of a kind."""
        return next((c for c in self.checks if c.kind == kind), None)

    def counters(self, only: str | None = None) -> list[str]:
        """What the checks of kind mechanism count; `only` at_least or at_most."""
        found = [c for c in self.checks if c.kind == "mechanism"]
        bounds = [getattr(c, side) for c in found for side in ("at_least", "at_most") if only in (None, side)]
        return list(dict.fromkeys(name for side in bounds for name in side))

    @property
    def stages(self) -> list[str]:
        """The names of the stages, in the order of the cases."""
        return list(dict.fromkeys(case.stage for case in self._all_cases() if case.stage is not None))

    def _all_cases(self) -> list[Case]:
        return [*self.cases, *(case for kernel in self.more_kernels for case in kernel.cases)]

    def size(self, value: int | str) -> int:
        """A number, or the builder parameter of that name."""
        return value if isinstance(value, int) else int(self.builder.params[value])

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(self.size(entry) for entry in tensor.shape)

    @property
    def operations(self) -> int:
        """Floating-point operations of one launch; 0 where course.yaml does not say."""
        return prod(evaluate(entry, self.builder.params) for entry in self.flop) if self.flop else 0

    @property
    def options(self) -> dict[str, int | float]:
        """What the oracle may ask for by name: numbers of the builder's parameters, and `exp2` of the tolerance."""
        options: dict[str, int | float] = {
            name: value for name, value in self.builder.params.items() if isinstance(value, int)
        }
        return options if self.tolerance.exp2 is None else {**options, "exp2": self.tolerance.exp2}

    @property
    def tensor_bytes(self) -> int:
        """Of all tensors together."""
        return sum(prod(t["shape"]) * ITEM_BYTES.get(t["dtype"], 4) for t in self.tensor_specs())

    def tensor_specs(self) -> list[dict[str, Any]]:
        """name, role, dtype and shape (numbers) of each tensor, as plain data for other processes."""
        return [
            {"name": t.name, "role": t.role, "dtype": t.dtype, "shape": list(self.shape(t))}
            for t in self.tensors
        ]

    @model_validator(mode="after")
    def _is_consistent(self) -> Exercise:
        for what, names in (
            ("tensor", [t.name for t in self.tensors]),
            ("case", [c.id for kernel in self.kernels for c in kernel.cases]),
            ("check", [str(c.id) for c in self.checks]),
            ("question", [q.id for q in self.questions]),
            ("function", [f.name for f in self.functions]),
            ("layout", [wanted.name for wanted in self.layouts]),
        ):
            twice = next((n for n in names if names.count(n) > 1), None)
            if twice is not None:
                raise ValueError(f"{what} '{twice}' appears twice")
        owners: list[Exercise | KernelSpec] = [self, *self.more_kernels]
        for owner in owners:
            if not any(case.quick for case in owner.cases):
                raise ValueError("at least one case needs quick: true")
            for case in owner.cases:
                _known(f"case '{case.id}', params", case.params, list(owner.builder.params), "builder has")
        for kernel in self.kernels:
            kernel._kernel_is_consistent()
        if bool(self.functions) != (self.check("functions") is not None):
            raise ValueError("functions and the check 'functions' belong together")
        observed = [name for name in OBSERVABLES if name in self.counters()]
        if observed and not any(case.quick and case.schedule == "late" for case in self.cases):
            raise ValueError(f"{observed[0]} is recorded under schedule late only: a quick case needs it")
        self._stages_are_consistent()
        for timing in self.timing:
            self._timing_is_consistent(timing)
        self._speed_is_consistent()
        predictions = self.check("predictions")
        asked = sum(q.points for q in self.questions)
        if asked != (predictions.points if predictions else 0):
            raise ValueError(
                f"the questions are worth {asked:g} points, the check 'predictions'"
                f" {predictions.points if predictions else 0:g}; they must be equal"
            )
        layouts = self.check("layouts")
        worth = sum(wanted.points for wanted in self.layouts)
        if (layouts is not None) != bool(self.layouts) or worth != (layouts.points if layouts else 0):
            raise ValueError(
                f"the layouts are worth {worth:g} points, the check 'layouts' {layouts.points if layouts else 0:g};"
                " they belong together and must be equal"
            )
        if self.questions and self.cells.answers is None:
            raise ValueError("cells.answers must name the cell that holds the answers")
        return self

    def _stages_are_consistent(self) -> None:
        """Either no case has a stage or all have; every stage has quick cases and a check of its correctness."""
        cases = self._all_cases()
        bare = [case.id for case in cases if case.stage is None]
        if self.stages and bare:
            raise ValueError(f"case '{bare[0]}' needs a stage, as other cases have one")
        for check in self.checks:
            if check.stage is not None and check.stage not in self.stages:
                known = f" ({', '.join(self.stages)})" if self.stages else ""
                raise ValueError(
                    f"check '{check.id}': no case has the stage '{check.stage}'{known}"
                    f"{did_you_mean(check.stage, self.stages)}"
                )
        whole = any(check.kind == "correctness" and check.stage is None for check in self.checks)
        for stage in self.stages:
            if not any(case.quick for case in cases if case.stage == stage):
                raise ValueError(f"stage '{stage}': at least one case needs quick: true")
            if not whole and not any(c.kind == "correctness" and c.stage == stage for c in self.checks):
                raise ValueError(f"stage '{stage}' has no check of the kind correctness")

    def _speed_is_consistent(self) -> None:
        """What the check 'speed' needs: something to time, and tiers wherever it may be timed."""
        if self.check("speed") is None:
            return
        if not self.timing:
            raise ValueError("the check 'speed' needs an entry of timing")
        devices = ["B200", "H200"] if self.runs_on == "sm_90" else ["B200"]
        kernels: dict[tuple[str | None, str], bool] = {}
        for timing in self.timing:
            missing = [device for device in devices if device not in timing.tiers]
            if missing:
                raise ValueError(f"timing: the check 'speed' needs tiers.{missing[0]}")
            key = (timing.builder, str(timing.params))
            kernels[key] = kernels.get(key, False) or MODELLED in timing.tiers
        if not all(kernels.values()):
            raise ValueError("timing: the check 'speed' needs tiers.modelled for each kernel and size")

    def _timing_is_consistent(self, timing: Timing) -> None:
        names = [kernel.builder.name for kernel in self.kernels]
        if timing.builder is not None and timing.builder not in names:
            raise ValueError(
                f"timing: there is no builder '{timing.builder}' ({', '.join(names)})"
                f"{did_you_mean(timing.builder, names)}"
            )
        kernel = self.kernels[self.timed_kernel(timing)]
        wanted = list(kernel.builder.params)
        for name in timing.params:
            if name not in wanted:
                raise ValueError(
                    f"timing.params has '{name}', which is no parameter of {kernel.builder.name}"
                    f" ({', '.join(wanted)}){did_you_mean(name, wanted)}"
                )
        missing = [n for n in wanted if n not in timing.params and isinstance(kernel.builder.params[n], int)]
        if missing:
            raise ValueError(f"timing.params needs {', '.join(missing)}, as {kernel.builder.name} does")
        try:
            evaluate(timing.bytes_loaded, self.timed(timing).builder.params)
        except ValueError as error:
            raise ValueError(f"timing.bytes_loaded: {error}") from None
        inputs = sum(tensor.role == "input" for tensor in kernel.tensors)
        if inputs != REFERENCE_INPUTS[timing.reference]:
            raise ValueError(
                f"timing: the reference '{timing.reference}' takes {REFERENCE_INPUTS[timing.reference]} inputs,"
                f" {kernel.builder.name} has {inputs}"
            )

    def _kernel_is_consistent(self) -> None:
        params = [name for name, value in self.builder.params.items() if isinstance(value, int)]
        sizes = [(f"shape of tensor {t.name}", entry) for t in self.tensors for entry in t.shape]
        sizes.append(("tolerance.terms", self.tolerance.terms))
        sizes += [("flop", entry) for entry in self.flop if isinstance(entry, int) or entry.isidentifier()]
        for where, entry in sizes:
            if isinstance(entry, str) and entry not in params:
                raise ValueError(
                    f"{where} uses '{entry}', which is no parameter of builder.params"
                    f" ({', '.join(params)}){did_you_mean(entry, params)}"
                )
        for where, entry in sizes:
            if self.size(entry) == 0:
                raise ValueError(f"{where} uses '{entry}', which is 0 here")
        for entry in self.flop:
            try:
                value = evaluate(entry, self.builder.params)
            except ValueError as error:
                raise ValueError(f"flop: {error}") from None
            if value == 0:
                raise ValueError(f"flop uses '{entry}', which is 0 here")
        for tensor in self.tensors:
            if tensor.dtype not in DTYPES:
                raise ValueError(
                    f"dtype of tensor {tensor.name} is the builder parameter 'dtype', which must be one of"
                    f" {', '.join(DTYPES)}"
                )
        for check in self.checks:
            for bounds in (check.at_least, check.at_most):
                for name, bound in bounds.items():
                    try:
                        evaluate(bound, self.builder.params)
                    except ValueError as error:
                        raise ValueError(f"{check.id}, {name}: {error}") from None
        if not any(t.role == "output" for t in self.tensors):
            raise ValueError("tensors needs at least one with role: output")


def too_large(kernel: Exercise, limits: Limits) -> str:
    """Why the tensors of a kernel, narrowed to one size, are more than a grade may hold; empty where they fit."""
    most = limits.memory_mib << 19
    if kernel.tensor_bytes <= most:
        return ""
    sizes = ", ".join(f"{name} = {value}" for name, value in kernel.builder.params.items())
    return (
        f"the tensors of {kernel.builder.name}({sizes}) take {kernel.tensor_bytes >> 20} MiB,"
        f" at most {most >> 20} fit (half of limits.memory_mib)"
    )


class Course(_Strict):
    """The whole course, in the order of course.yaml."""

    version: Annotated[int, Field(ge=1, le=1, strict=True)]
    title: Text
    limits: Limits = Limits()
    exercises: Annotated[list[Exercise], Field(min_length=1)]

    @model_validator(mode="after")
    def _tensors_fit(self) -> Course:
        """The emulator holds the tensors of a launch twice, beside TVM."""
        for exercise in self.exercises:
            timed = [exercise.timed(timing) for timing in exercise.timing]
            for kernel in (*exercise.kernels, *timed):
                problem = too_large(kernel, self.limits)
                if problem:
                    raise ValueError(f"{exercise.id}: {problem}")
        return self

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Course:
        ids = [exercise.id for exercise in self.exercises]
        twice = next((n for n in ids if ids.count(n) > 1), None)
        if twice is not None:
            raise ValueError(f"exercise '{twice}' appears twice")
        for number, exercise in enumerate(self.exercises):
            if exercise.continues is not None and exercise.continues not in ids[:number]:
                raise ValueError(
                    f"{exercise.id} continues {exercise.continues}, which does not come before it"
                )
        return self

    def find(self, spelled: str) -> Exercise:
        """The exercise called `exercise_05`, `exercise_5`, `05` or `5`.

        Raises:
            UsageError: there is none; names the nearest.
        """
        text = spelled.strip().lower().replace("-", "_")
        spelled_number = re.fullmatch(r"(?:exercise_?)?([0-9]{1,3})", text)
        number = int(spelled_number[1]) if spelled_number else None
        for exercise in self.exercises:
            if text == exercise.id or number == exercise.number:
                return exercise
        ids = [exercise.id for exercise in self.exercises]
        guess = f"exercise_{number:02d}" if number is not None else text
        raise UsageError(
            f"there is no exercise '{spelled}' in {COURSE_FILE}{did_you_mean(guess, ids)}"
            " (`autograde list` shows all of them)"
        )


def load_course(root: Path) -> Course:
    """Read and validate `root`/course.yaml.

    Raises:
        CourseError: with file, line, key, what is wrong and the nearest valid name.
    """
    path = root / COURSE_FILE
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
    except OSError as error:
        raise CourseError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise CourseError(f"{path}: is not UTF-8 (byte {error.start})") from None
    if len(raw) > MAX_COURSE_BYTES:
        raise CourseError(f"{path}: is larger than {MAX_COURSE_BYTES >> 20} MiB")
    return parse_course(text, str(path))


def parse_course(text: str, path: str = COURSE_FILE) -> Course:
    """`load_course` on text; `path` is the name that errors show."""
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise CourseError(f"{path}: {_yaml_problem(error)}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise CourseError(f"{path}: is not valid YAML ({_one_line(str(error))})") from None
    if not isinstance(data, dict):
        raise CourseError(f"{path}: must be a mapping with the keys {', '.join(Course.model_fields)}")
    try:
        return Course.model_validate(data)
    except ValidationError as error:
        raise CourseError(f"{path}: {_problem(error, data, text)}") from None


_BaseLoader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):  # type: ignore[misc]
    """Safe YAML in which a repeated key is an error instead of a silent overwrite."""


def _mapping_without_repeats(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, yaml.Node] = {}
    for key_node, _ in node.value:
        key = key_node.value
        if isinstance(key, str) and key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key '{key}' appears twice in one mapping", key_node.start_mark
            )
        if isinstance(key, str):
            seen[key] = key_node
    result: dict[Any, Any] = yaml.SafeLoader.construct_mapping(loader, node, deep=True)
    return result


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_repeats)


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = _one_line(getattr(error, "problem", None) or str(error))
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem


def _problem(error: ValidationError, data: dict[str, Any], text: str) -> str:
    """The first validation problem as one line: line number, key, what is wrong, nearest valid name."""
    # A misspelt key shows up as one unknown and one missing key; the unknown one tells more.
    first = min(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    location = tuple(part for part in first["loc"] if not _is_union_tag(part))
    key = _spell(location, data)
    line = _line_of(text, location)
    where = f"line {line}: {key}" if line else key
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {_what_is_wrong(first, location)}{more}"


def _what_is_wrong(first: Any, location: tuple[int | str, ...]) -> str:
    kind, context = first["type"], first.get("ctx", {})
    if kind == "extra_forbidden":
        valid = _keys_of_model_at(location[:-1])
        return f"unknown key{did_you_mean(str(location[-1]), valid)} (valid: {', '.join(valid)})"
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        expected = re.findall(r"'([^']*)'", context.get("expected", "")) or [context.get("expected", "")]
        given = first["input"]
        return f"{given!r} is not one of {', '.join(expected)}{did_you_mean(str(given), expected)}"
    if kind == "value_error":
        return _one_line(str(context.get("error", first["msg"])))
    return f"{_one_line(first['msg'])} (got {_one_line(repr(first['input']))[:60]})"


def _is_union_tag(part: int | str) -> bool:
    """pydantic adds the branch of a union to the location, e.g. `int` or `constrained-str`."""
    return part in ("int", "str", "constrained-int", "constrained-str", "[key]")


def _keys_of_model_at(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Course
    for part in location:
        if isinstance(part, int) or part not in model.model_fields:  # the latter is a key of a mapping
            continue
        annotation = model.model_fields[part].annotation
        model = next((m for m in _models_in(annotation)), model)
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in getattr(annotation, "__args__", ()) for m in _models_in(argument)]


def _spell(location: tuple[int | str, ...], data: Any) -> str:
    """`exercises[exercise_05].checks[build].points`: list entries by their id where they have one."""
    text = ""
    for part in location:
        if isinstance(part, int):
            data = data[part] if isinstance(data, list) and part < len(data) else None
            name = (data.get("id") or data.get("name")) if isinstance(data, dict) else None
            text += f"[{name if isinstance(name, str) else part}]"
        else:
            data = data.get(part) if isinstance(data, dict) else None
            text += f".{part}" if text else str(part)
    return text or "the course"


def _line_of(text: str, location: tuple[int | str, ...]) -> int | None:
    """The line of the deepest part of `location` that the file has, for messages only."""
    try:
        node: Any = yaml.compose(text, Loader=_BaseLoader)
    except yaml.YAMLError:
        return None
    line: int | None = None
    for part in location:
        if isinstance(part, int) and isinstance(node, yaml.SequenceNode) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            entry = next(((k, v) for k, v in node.value if k.value == part), None)
            if entry is None:
                break
            line, node = entry[0].start_mark.line + 1, entry[1]
        else:
            break
    return line


def _one_line(text: str) -> str:
    return " ".join(text.split())
