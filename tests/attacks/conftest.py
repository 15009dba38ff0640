"""How an attack is tried: in a submission's own process, as a kernel, or through the whole grade.

An attack must be able to succeed, or its failure says nothing. Where that makes sense the same code also runs without any
protection (`unprotected`), and has to succeed there.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autograder.course import Course, Exercise, Limits, load_course
from autograder.diagnosis import Diagnosis, Failure, Stopped
from autograder.grade import Settings, grade
from autograder.report.model import GradeReport
from autograder.runner import machine_child, oracle_child
from autograder.runner.build import receive_prim_funcs, start_builder
from autograder.runner.frames import Decoder, Frame
from autograder.runner.process import Pump
from autograder.runner.sandbox import bubblewrap, choose
from autograder.submission import Submission

REPOSITORY = Path(__file__).resolve().parents[2]
LEVELS = ("full", "basic")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks are tried on the emulator, also on a machine with a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="session")
def course() -> Course:
    return load_course(REPOSITORY)


@pytest.fixture(scope="session")
def exercise(course: Course) -> Exercise:
    return course.find("2")


@pytest.fixture(scope="session")
def limits() -> Limits:
    """Bounds that a test can wait for."""
    return Limits(build_seconds=10, run_seconds=30, output_kib=64)


@pytest.fixture(scope="session")
def solution_of() -> Callable[[Exercise], str]:
    """Exercise -> text of its solution's kernel cell."""
    return lambda exercise: cell_of(notebook_of(exercise), exercise.cells.kernel)


@pytest.fixture(scope="session")
def solution(exercise: Exercise, solution_of: Callable[[Exercise], str]) -> str:
    """The text of the solution's kernel cell."""
    return solution_of(exercise)


def notebook_of(exercise: Exercise, step: str = "solutions") -> dict[str, Any]:
    path = REPOSITORY / step / exercise.id / exercise.notebook
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def cell_of(notebook: dict[str, Any], grade_id: str) -> str:
    [cell] = (c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)
    return "".join(cell["source"])


def small_course(root: Path, exercise: str = "exercise_02") -> Path:
    """A course folder with one exercise."""
    import shutil

    root.mkdir(parents=True, exist_ok=True)
    text = (REPOSITORY / "course.yaml").read_text(encoding="utf-8")
    head, *blocks = re.split(r"(?m)^(?=  - id: exercise_)", text)
    block = next(block for block in blocks if block.startswith(f"  - id: {exercise}\n"))
    (root / "course.yaml").write_text(head + block, encoding="utf-8")
    for step in ("exercises", "solutions"):
        shutil.copytree(REPOSITORY / step / exercise, root / step / exercise)
    return root


# In a submission's process -----------------------------------------------------------------------

Tried = Callable[..., Failure | bytes]


@pytest.fixture(scope="session")
def tried(exercise: Exercise, limits: Limits) -> Tried:
    """Run a text as a submission in its process: why there is no kernel, or the graph JSON of the kernel."""

    def run(source: str, level: str = "auto", **changes: Any) -> Failure | bytes:
        submission = Submission("kernel.py", source)
        diagnosis = Diagnosis(exercise, submission, limits.model_copy(update=changes))
        with Pump(choose(level)) as pump:
            try:
                [graph] = receive_prim_funcs(pump, start_builder(pump, diagnosis), diagnosis)
            except Stopped as stopped:
                return stopped.failure
        assert graph is not None
        return graph

    return run


def message(failure: Failure | bytes) -> str:
    assert isinstance(failure, Failure), "the attack became a kernel"
    return failure.message


def need(level: str) -> None:
    """Skip where this machine does not offer a level."""
    if level == "full" and bubblewrap()[0] is None:
        pytest.skip(bubblewrap()[1])


def unprotected(code: str, folder: Path, **environment: str) -> str:
    """What the code prints as an ordinary program, without any protection."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# As a kernel ------------------------------------------------------------------------------------


class Emulated:
    """The machine's and the oracle's own functions, called here: for kernels that do no harm to a process."""

    def __init__(self, exercise: Exercise, seed: int) -> None:
        import emulator
        from emulator.tvm_import import import_tvm

        import_tvm()
        self.exercise, self.seed, self.emulator = exercise, seed, emulator
        self._judge = oracle_child._Judge()

    def graph(self, source: str) -> bytes:
        """The graph JSON of the kernel that a text builds."""
        import linecache

        from autograder.runner.ir_json import dump

        name = f"<attack {hash(source)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope: dict[str, Any] = {"__name__": "kernel", "__file__": name}
        exec(compile(source, name, "exec"), scope)
        return dump(scope[self.exercise.builder.name](**self.exercise.builder.params)).encode()

    def judged(self, source: str | bytes) -> dict[str, Any]:
        """Mismatches, findings and changed inputs of all quick cases; or why the kernel is refused."""
        [kernel] = self.exercise.only_quick().kernels
        tensors = kernel.tensor_specs()
        graph = self.graph(source) if isinstance(source, str) else source
        out = io.BytesIO()
        header = {"stage": "kernel", "arch": kernel.arch, "tensors": tensors}
        compiled = machine_child._compile(self.emulator, Frame(header, graph), out)
        if compiled is None:
            return {"refused": _frames(out)[-1].header}
        plan = {
            "oracle": kernel.oracle,
            "terms": kernel.size(kernel.tolerance.terms),
            "accumulate_eps": kernel.tolerance.eps,
            "tensors": tensors,
            "options": {},
        }
        total: dict[str, Any] = {"mismatches": 0, "elements": 0, "compared": 0, "findings": [], "changed": []}
        for case in kernel.cases:
            inputs = oracle_child._make_inputs(self.seed, plan, {"id": case.id, "inputs": case.inputs})
            launch = {
                "stage": "run",
                "case": case.id,
                "schedule": case.schedule,
                "seed": 1,
                "profile": False,
                "follow": False,
            }
            out = io.BytesIO()
            machine_child._run(self.emulator, compiled, tensors, Frame(launch, inputs.launch_bytes), out)
            ran = _frames(out)[-1]
            if ran.stage == "refused":
                return {"refused": ran.header}
            verdict = self._judge({case.id: inputs}, Frame({"case": case.id}, ran.raw))
            for key in ("mismatches", "elements", "compared"):
                total[key] += verdict[key]
            total["findings"] += [f["code"] for f in ran.header["findings"]]
            total["changed"] += ran.header["changed_inputs"]
        return total


def _frames(out: io.BytesIO) -> list[Frame]:
    return list(Decoder(1 << 26, 1 << 30).feed(out.getvalue()))


@pytest.fixture(scope="session")
def emulated(exercise: Exercise) -> Emulated:
    return Emulated(exercise, seed=20)


# Through the whole grade ------------------------------------------------------------------------

Graded = Callable[..., GradeReport]


@pytest.fixture(scope="session")
def graded(exercise: Exercise, limits: Limits) -> Graded:
    """The quick grade of a text."""

    def run(source: str, answers: dict[str, Any] | None = None, **changes: Any) -> GradeReport:
        submission = Submission("kernel.py", source, answers=answers or {})
        settings = Settings(seed=None, quick=True, **changes)
        return grade(exercise, submission, limits, settings)

    return run


def points(report: GradeReport) -> dict[str, float]:
    return {check.id: check.points for check in report.checks}
