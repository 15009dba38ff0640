"""Grades by a process that has loaded TVM, PyTorch and the emulator once: each process of a grade is a fork of it.

Starting the interpreters is most of what a quick grade costs, and a test that grades a mutant asks what the grade says, not
how its processes begin. Everything else is `autograder.grade` with `--isolation basic`: the same processes, pipes, limits and
confinement. What is special about a fresh process is tested in tests/autograder and tests/attacks.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[1]


class PreloadedGrader:
    """The process, from the side of the tests. Use as a context manager."""

    def __init__(self) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-B", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self) -> PreloadedGrader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __call__(self, exercise: str, path: Path, **settings: Any) -> Any:
        """The GradeReport of the file `path` as a submission of `exercise`; `settings` as of autograder.grade.Settings.

        With `case`, the id of one, that is the only launch, and the checks of other stages are left out.
        """
        from autograder.report.model import GradeReport

        assert self._process.stdin and self._process.stdout
        request = {"exercise": exercise, "path": str(path), "settings": settings}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the preloaded grader ended"
        return GradeReport.model_validate_json(answer)


class ForkedProcess:
    """A fork that runs `main` of a child module: what `Pump` needs of subprocess.Popen."""

    def __init__(self, module: str, channel: int, folder: Path, environment: dict[str, str]) -> None:
        ends = [os.pipe() for _ in range(3)]  # standard input, output, error: (reading end, writing end)
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(module, channel, folder, environment, [ends[0][0], ends[1][1], ends[2][1]])
        for end in (ends[0][0], ends[1][1], ends[2][1]):
            os.close(end)
        self.stdin: IO[bytes] = os.fdopen(ends[0][1], "wb", 0)
        self.stdout: IO[bytes] = os.fdopen(ends[1][0], "rb", 0)
        self.stderr: IO[bytes] = os.fdopen(ends[2][0], "rb", 0)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _become(module: str, channel: int, folder: Path, environment: dict[str, str], pipes: list[int]) -> None:
    """In the fork: a session, pipes, folder and variables as `Pump` gives them to a fresh interpreter, then the module."""
    status = 1
    try:
        os.setsid()
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
        os.closerange(3, channel)
        os.closerange(channel + 1, 1024)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        importlib.import_module(f"autograder.runner.{module}").main(channel)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _narrowed(exercise: Any, case: str | None) -> Any:
    """The exercise with one case alone, and without the checks of other stages."""
    if case is None:
        return exercise
    chosen = next(c for c in exercise.cases if c.id == case).model_copy(update={"quick": True})
    checks = [check for check in exercise.checks if check.stage in (None, chosen.stage)]
    return exercise.model_copy(update={"cases": [chosen], "checks": checks})


def _serve() -> None:
    """One line with a request per grade on standard input, one line with the report on standard output."""
    sys.path.insert(0, str(REPOSITORY))
    from emulator.tvm_import import import_tvm

    import_tvm()  # ahead of PyTorch, which it would load in a slower way
    from tvm.script import tirx  # noqa: F401

    from autograder import grade
    from autograder.course import load_course
    from autograder.runner import build_child, ir_json, machine_child, oracle_child, process  # noqa: F401
    from autograder.submission import read_submission
    from emulator import tvm_repairs  # noqa: F401

    oracle_child._Judge()  # PyTorch and the references

    class ForkingPump(process.Pump):
        def _spawn(
            self,
            module: str,
            channel: int,
            folder: Path,
            roots: tuple[Path, ...],
            readable: tuple[Path, ...] | None,
            gpu: str | None,
        ) -> Any:
            assert readable is None, "a fork cannot enter a sandbox"
            return ForkedProcess(module, channel, folder, process._environment(folder, gpu))

    grade.Pump = ForkingPump  # type: ignore[misc]
    grade.find_nvcc = lambda: None  # it takes seconds; tests/autograder/test_assembly.py asks it
    course = load_course(REPOSITORY)
    for line in sys.stdin:
        request = json.loads(line)
        exercise = course.find(request["exercise"])
        exercise = _narrowed(exercise, request["settings"].pop("case", None))
        submission = read_submission(Path(request["path"]), exercise)
        report = grade.grade(
            exercise, submission, course.limits, grade.Settings(isolation="basic", **request["settings"])
        )
        print(report.model_dump_json(), flush=True)


if __name__ == "__main__":
    _serve()
