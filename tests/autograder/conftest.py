"""A course folder per test, kernels as text, and the command line as a function."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autograder import cli
from autograder.course import Course, Exercise, Limits, load_course

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Result:
    """What a command printed and returned."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """Standard output as the JSON of `--json -`."""
        report: dict[str, Any] = json.loads(self.out)
        return report


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests say what the emulator says, also on a machine with a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="session")
def course() -> Course:
    return load_course(REPOSITORY)


@pytest.fixture(scope="session")
def exercise(course: Course) -> Exercise:
    return course.find("5")


@pytest.fixture(scope="session")
def limits() -> Limits:
    """Bounds that a test can wait for."""
    return Limits(build_seconds=6, run_seconds=30, output_kib=64)


@pytest.fixture(scope="session")
def solution(exercise: Exercise) -> str:
    """The text of the solution's kernel cell."""
    notebook = json.loads(
        (REPOSITORY / "solutions" / exercise.id / exercise.notebook).read_text(encoding="utf-8")
    )
    return cell_of(notebook, exercise.cells.kernel)


def cell_of(notebook: dict[str, Any], grade_id: str) -> str:
    (cell,) = (c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)
    return "".join(cell["source"])


def course_of(exercise: str) -> str:
    """The text of course.yaml with one exercise only."""
    text = (REPOSITORY / "course.yaml").read_text(encoding="utf-8")
    head, *blocks = re.split(r"(?m)^(?=  - id: exercise_)", text)
    return head + next(block for block in blocks if block.startswith(f"  - id: {exercise}\n"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A course folder with blanks and non-ASCII letters in its path, holding exercise_05 as released."""
    root = tmp_path / "Übung für GPUs 漢字"
    root.mkdir()
    (root / "course.yaml").write_text(course_of("exercise_05"), encoding="utf-8")
    for step in ("exercises", "solutions"):
        shutil.copytree(REPOSITORY / step / "exercise_05", root / step / "exercise_05")
    return root


@pytest.fixture
def fill_in(folder: Path, exercise: Exercise) -> Callable[..., Path]:
    """Write text into the learner's cells of the notebook; returns the notebook's path."""

    def fill(kernel: str | None = None, answers: str | None = None) -> Path:
        path = folder / "exercises" / exercise.id / exercise.notebook
        notebook = json.loads(path.read_text(encoding="utf-8"))
        texts = {exercise.cells.kernel: kernel, exercise.cells.answers: answers}
        for cell in notebook["cells"]:
            text = texts.get(cell["metadata"].get("nbgrader", {}).get("grade_id"))
            if text is not None:
                cell["source"] = text.splitlines(keepends=True)
        path.write_text(json.dumps(notebook), encoding="utf-8")
        return path

    return fill


def run_command(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, text: bool = True, timeout: float = 120
) -> Result:
    """`autograde ARGUMENTS` as its own process, with piped output."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", **(env or {})}
    done = subprocess.run(
        [sys.executable, "-m", "autograder", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=timeout,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def autograde(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`autograde ARGUMENTS` in the course folder, in this process; with `env` as a process of its own."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
        if env is not None:
            return run_command(*arguments, cwd=folder, env=env)
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(sys, "argv", ["autograde", *arguments])
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.delenv("COLUMNS", raising=False)
            code = 0
            try:
                cli.main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return Result(code, *texts)

    return run


def one_line(text: str) -> bool:
    """Whether an error message is one clear line and no stack trace."""
    return text.count("\n") == 1 and text.startswith("autograde: ") and "Traceback" not in text


EMULATOR = '''
"""A stand-in for the emulator: computes D = A B^T and reports what the test wants."""
import time
import numpy as np

class EmulatorError(Exception):
    location = None
class LoweringError(EmulatorError): pass
class UnsupportedInstruction(EmulatorError): pass
class LaunchError(EmulatorError): pass

class Finding:
    def __init__(self, **fields): self.fields = fields
    def to_json(self):
        return {"code": "x", "strength": "error", "message": "m", "fix": "f", "locations": [], "names": [],
                "cta": None, "warps": [], "lanes": [], "data": {}, **self.fields}

class Place:
    def __init__(self, file, line): self.file, self.line = file, line

class Run:
    findings = ()
    counters = {"tcgen05." + name: 4 for name in ("alloc", "mma", "commit", "ld", "dealloc")}

class Kernel:
    operations = ()
    resources = {"threads_per_cta": 128, "smem_bytes": 33792, "grid": (1, 1, 1), "tmem_columns": 128}
    def run(self, a, b, d, seed, schedule, check):
        run = Run()
        d[:] = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16)
        BODY
        return run
    def follow_mmas(self, a, b, d, outputs): return [], 0.0

def compile(prim_func, arch):
    COMPILE
    return Kernel()
'''


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., tuple[Path, ...]]:
    """(statements of a launch, statements of compile) -> import roots with a stand-in for the emulator."""

    def make(body: str = "pass", compile: str = "pass") -> tuple[Path, ...]:
        package = tmp_path / "stand-in" / "emulator"
        package.mkdir(parents=True)
        indented = body.replace("\n", "\n        ")
        text = EMULATOR.replace("BODY", indented).replace("COMPILE", compile)
        (package / "__init__.py").write_text(text, encoding="utf-8")
        shutil.copy(REPOSITORY / "emulator" / "tvm_import.py", package)  # the processes import TVM by it
        return (package.parent,)

    return make


SMALL_KERNEL = """
from tvm.script import tirx as T


def build_kernel(M, N, K):
    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"), B: T.Buffer((N, K), "float16"), D: T.Buffer((M, N), "float16")
    ):
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([128])
        D[lane, 0] = A[lane, 0]

    return kernel
"""
