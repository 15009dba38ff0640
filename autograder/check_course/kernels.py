"""What has to be graded: stubs earn nothing for the intended reason, solutions everything, and every mutant is caught."""

from __future__ import annotations

import ast
import html
import re
from dataclasses import dataclass, replace
from pathlib import Path

from autograder import release
from autograder.assembly import NO_NVCC, Assembler, Assembly, find_nvcc
from autograder.batch.grading import has_speed
from autograder.check_course.model import Found
from autograder.course import Course, Exercise
from autograder.diagnosis import Diagnosis, Stopped
from autograder.errors import EXIT_MACHINE, SubmissionError
from autograder.grade import Settings, grade
from autograder.progress import FOLDER
from autograder.report.html import fragment
from autograder.report.model import CheckResult, GradeReport
from autograder.report.model import Fault as Blame
from autograder.runner.build import receive_prim_funcs, start_builder
from autograder.runner.process import Pump
from autograder.submission import Submission, cell_grade_id, cell_source, notebook_cells, read_submission

SEED = 1
MUTANT_KEYS = ("mutant", "check", "finding")
MARK = "# <- here"
_BUILDS = ("builds and lowers", "it builds, but")  # what the check `build` says of a kernel that TVM accepts


def stub(root: Path, course: Course, exercise: Exercise) -> Found:
    """The release is the solution without its regions, is recognised, and its kernel parses, lowers and does nothing."""
    notebook = root / "exercises" / exercise.id / exercise.notebook
    released = _released(root, exercise)
    try:
        submission = read_submission(notebook, exercise, released)
    except SubmissionError as error:
        return Found((str(error),))
    if not submission.untouched:
        return Found(
            ("the released kernel is not the solution's without its regions; --fix releases it again",)
        )
    as_handed_out = grade(exercise, submission, course.limits, Settings(seed=SEED, measure=False))
    begun = replace(submission, untouched=False)
    report = grade(exercise, begun, course.limits, Settings(seed=SEED, quick=True, measure=False))
    if report.exit_code == EXIT_MACHINE:
        return Found(owed=_why(report))
    faults = []
    if as_handed_out.points:
        faults.append(f"it earns {as_handed_out.points:g} points")
    build = report.check("build")
    said = (build.reason or build.summary) if build else ""
    if build is not None and not said.startswith(_BUILDS):
        faults.append(f"its kernel is not refused for being empty, but because {said}")
    earned = [check.id for check in report.checks if check.points and check.id != "build"]
    if earned:
        faults.append(f"as it stands it earns points in {', '.join(earned)}")
    faults += _leaks(root, exercise, report, submission.source)
    return Found(tuple(faults))


def solution(root: Path, course: Course, exercise: Exercise) -> Found:
    """The notebook gets full marks, and so does its code in a .py file."""
    notebook = root / "solutions" / exercise.id / exercise.notebook
    try:
        submission = read_submission(notebook, exercise)
    except SubmissionError as error:
        return Found((str(error),))
    settings = Settings(seed=SEED, measure=has_speed(exercise), cache=_assembly_cache(root))
    report = grade(exercise, submission, course.limits, settings)
    if report.exit_code == EXIT_MACHINE:
        return Found(owed=_why(report))
    faults = []
    if not report.full_marks:
        faults.append(f"it earns {report.points:g} of {report.max_points:g} points ({_lost(report)})")
    as_file = grade(exercise, _script(notebook, exercise), course.limits, replace(settings, quick=True))
    if as_file.exit_code == EXIT_MACHINE:
        return Found(owed=_why(as_file))
    if _points(as_file) != _points(report):
        faults.append(
            f"as a .py file it earns {as_file.points:g} points, as a notebook {report.points:g}"
            f" ({_lost(as_file) or 'more than the notebook'})"
        )
    return Found(tuple(faults), (f"{report.points:g} of {report.max_points:g} points",))


def _script(notebook: Path, exercise: Exercise) -> Submission:
    """The notebook's kernel and answers as one .py file."""
    cells = notebook_cells(notebook.read_text(encoding="utf-8"), notebook)
    texts = {cell_grade_id(cell): cell_source(cell) or "" for cell in cells}
    parts = [texts[exercise.cells.kernel], texts.get(exercise.cells.answers, "")]
    path = notebook.with_suffix(".py")
    return from_python(path.name, "\n\n\n".join(parts))


def from_python(name: str, source: str) -> Submission:
    """A submission as `read_submission` makes it of a .py file with this text."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(source, encoding="utf-8")
        # The exercise is looked at for notebooks only.
        return read_submission(path, None)  # type: ignore[arg-type]


def assembly(root: Path, course: Course, exercise: Exercise) -> Found:
    """nvcc takes what TVM generates for each kernel of the solution."""
    nvcc = find_nvcc()
    if nvcc is None:
        return Found(notes=(f"not assembled: {NO_NVCC}",))
    try:
        submission = read_submission(root / "solutions" / exercise.id / exercise.notebook, exercise)
    except SubmissionError as error:
        return Found((str(error),))
    faults, notes = [], []
    for kernel in {kernel.builder.name: kernel for kernel in reversed(exercise.kernels)}.values():
        made = _assemble(root, course, kernel.model_copy(update={"functions": [], "layouts": []}), submission)
        name = kernel.builder.name
        if made.error or made.reason:
            faults.append(f"{name} does not assemble for {exercise.arch}: {made.error or made.reason}")
        else:
            notes.append(
                f"{name}: {made.used['registers']} registers, {made.used['spill_bytes']} bytes spilled"
            )
    return Found(tuple(faults), tuple(notes))


def _assemble(root: Path, course: Course, kernel: Exercise, submission: Submission) -> Assembly:
    diagnosis, limits = Diagnosis(kernel, submission, course.limits), course.limits
    nvcc = find_nvcc()
    assert nvcc is not None
    with Pump() as pump:
        assembler = Assembler(pump, nvcc, _assembly_cache(root))
        assembler.start()
        try:
            graphs = receive_prim_funcs(pump, start_builder(pump, diagnosis), diagnosis, missing={})
        except Stopped as stopped:
            return Assembly(reason=stopped.failure.message)
        assembler.send(next(g for g in graphs if g), kernel.arch, limits.memory_mib, limits.run_seconds)
        return assembler.result(limits.run_seconds)


@dataclass(frozen=True)
class Mutant:
    """A broken kernel and what its header promises. `line` ends in `# <- here`; `finding` is None where none is promised."""

    source: str
    what: str
    check: str
    finding: str | None
    line: int


def read_mutant(text: str, exercise: Exercise) -> Mutant | str:
    """The mutant, or what is wrong with its header."""
    header = dict(re.findall(rf"^# ({'|'.join(MUTANT_KEYS)}): (.+)$", text, flags=re.MULTILINE))
    missing = [key for key in MUTANT_KEYS if key not in header]
    if missing:
        return f"its header has no line `# {missing[0]}: ...`"
    if header["check"] not in [str(check.id) for check in exercise.checks]:
        return f"its header names the check {header['check']}, which {exercise.id} does not have"
    marked = [number for number, line in enumerate(text.split("\n"), 1) if line.endswith(MARK)]
    if len(marked) != 1:
        return f"{len(marked)} of its lines end in `{MARK}`; one has to"
    try:
        ast.parse(text)
    except SyntaxError as error:
        return f"it is no Python (line {error.lineno}: {error.msg})"
    finding = None if header["finding"] == "-" else header["finding"]
    return Mutant(text, header["mutant"], header["check"], finding, marked[0])


def mutant(root: Path, course: Course, exercise: Exercise, name: str) -> Found:
    """The right check takes points, and the report names the finding and the line."""
    path = root / "tests" / "mutants" / exercise.id / f"{name}.py"
    broken = read_mutant(path.read_text(encoding="utf-8"), exercise)
    if isinstance(broken, str):
        return Found((f"{name}: {broken}",))
    judged_by = next(check.kind for check in exercise.checks if check.id == broken.check)
    if broken.finding and judged_by == "synchronization":
        from autograder.check_course.emulated import is_reported

        if is_reported(path, exercise, broken.finding, broken.line):
            return Found()
    submission = from_python(path.name, broken.source)
    escaped: list[str] = []
    for quick in (True, False):  # most mistakes show in the quick cases
        settings = Settings(seed=SEED, quick=quick, measure=judged_by == "speed", cache=_assembly_cache(root))
        report = grade(exercise, submission, course.limits, settings)
        if report.exit_code == EXIT_MACHINE:
            return Found(owed=_why(report))
        leaks = _leaks(root, exercise, report, broken.source)
        if leaks:
            return Found(tuple(f"{name}: {text}" for text in leaks))
        escaped = _escapes(broken, report)
        if not escaped:
            return Found()
    return Found(tuple(f"{name} ({broken.what}) is not caught: {text}" for text in escaped[:1]))


def _escapes(broken: Mutant, report: GradeReport) -> list[str]:
    """What the report lacks of what the mutant's header promises."""
    check = report.check(broken.check)
    if check is None or check.points >= check.max_points:
        return [f"{broken.check} keeps its points"]
    if check.fault not in (None, Blame.YOUR_CODE):
        return [f"{broken.check} blames {check.fault}"]
    codes = {evidence.code for found in report.checks for evidence in found.evidence}
    if broken.finding is not None and broken.finding not in codes:
        there = ", ".join(sorted(filter(None, codes))) or "none"
        return [f"there is no finding {broken.finding} (found: {there})"]
    lines = {int(number) for number in re.findall(r'"line":(\d+)', report.model_dump_json())}
    return [] if broken.line in lines else [f"no message names line {broken.line}"]


# Helpers ----------------------------------------------------------------------------------------


def _leaks(root: Path, exercise: Exercise, report: GradeReport, own: str) -> list[str]:
    """Whether the report, as learners and nbgrader's feedback show it, has a solution line that the learner had not."""
    notebook = root / "solutions" / exercise.id / exercise.notebook
    secret = release.secret_lines(notebook, release.known_lines(root, exercise.id))
    written = release.squeeze(own)
    shown = release.squeeze(html.unescape(re.sub(r"<[^>]+>", " ", fragment(report))))
    found = sorted(line for line in secret if line in shown and line not in written)
    return [f"its report, which is the feedback, shows solution text: {found[0]}"] if found else []


def _released(root: Path, exercise: Exercise) -> str | None:
    from autograder.submission import released_kernel

    return released_kernel(root, exercise)


def _assembly_cache(root: Path) -> Path:
    return root / FOLDER / "assembly"


def _points(report: GradeReport) -> dict[str, float]:
    return {check.id: check.points for check in report.checks}


def _lost(report: GradeReport) -> str:
    lost = [check for check in report.checks if check.points < check.max_points]
    return "; ".join(f"{check.id}: {_first_words(check)}" for check in lost)


def _first_words(check: CheckResult) -> str:
    """What a check says, and its first finding: a summary alone may not say which bound was left."""
    said = check.reason or check.summary
    found = next((one.message for one in check.evidence if one.message and one.message not in said), "")
    return ": ".join(filter(None, (said, found)))


def _why(report: GradeReport) -> str:
    failed = next(c for c in report.checks if c.fault not in (None, Blame.YOUR_CODE))
    return f"{failed.fault} failed: {failed.reason or failed.summary}"
