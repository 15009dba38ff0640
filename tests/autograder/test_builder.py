"""Submissions that do not give a kernel: each gets one clear message, and nothing of them is left running."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autograder.course import Exercise, Function, Limits
from autograder.diagnosis import Diagnosis, Failure, Stopped
from autograder.report.model import Fault
from autograder.runner import build_child
from autograder.runner.build import Table, receive_prim_funcs, start_builder
from autograder.runner.limits import landlock_version
from autograder.runner.process import Pump
from autograder.runner.sandbox import Sandbox, bubblewrap, choose
from autograder.submission import Submission
from emulator.tvm_import import import_tvm

from .conftest import REPOSITORY, SMALL_KERNEL

Build = Callable[..., Failure | bytes]


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """The best of this machine, or the level that a test asks for."""
    wanted = getattr(request, "param", "auto")
    if wanted == "full" and bubblewrap()[0] is None:
        pytest.skip(bubblewrap()[1])
    return choose(wanted)


in_both = pytest.mark.parametrize("sandbox", ["full", "basic"], indirect=True)


@pytest.fixture
def build(exercise: Exercise, limits: Limits, sandbox: Sandbox) -> Build:
    """Run a kernel cell's text in the builder's process: its failure, or the graph JSON of its PrimFunc."""

    def run(source: str, **changes: Any) -> Failure | bytes:
        submission = Submission("exercise_05.ipynb", source, 6, "kernel")
        diagnosis = Diagnosis(exercise, submission, limits.model_copy(update=changes))
        with Pump(sandbox) as pump:
            try:
                return receive_prim_funcs(pump, start_builder(pump, diagnosis), diagnosis)[0]
            except Stopped as stopped:
                return stopped.failure

    return run


def test_a_kernel_comes_back_as_data(build: Build) -> None:
    graph = build(SMALL_KERNEL)
    assert isinstance(graph, bytes)
    kinds = {node["type"] for node in json.loads(graph)["nodes"]}
    assert {"tirx.PrimFunc", "tirx.BufferStore"} <= kinds


REJECTED = SMALL_KERNEL.replace("D[lane, 0] = A[lane, 0]", "raise ValueError(lane)")
EARLY_RETURN = SMALL_KERNEL.replace("D[lane, 0] =", "if lane > 9:\n            return\n        D[lane, 0] =")
PYTHONS_MIN = SMALL_KERNEL.replace("A[lane, 0]", "A[min(lane, 9), 0]")
AND_AN_INT = SMALL_KERNEL.replace(
    "D[lane, 0] =", "if lane > 9 and T.cuda.elect_sync():\n            D[lane, 0] ="
)
NOT_AN_INT = SMALL_KERNEL.replace("D[lane, 0] =", "if not T.cuda.elect_sync():\n            D[lane, 0] =")
SHAPE_OF_ONE = SMALL_KERNEL.replace("D[lane, 0] =", "T.SMEMPool().alloc(1, 'uint32')\n        D[lane, 0] =")
STAGE_OF_A_RING = SMALL_KERNEL.replace("A[lane, 0]", "TMABar(T.SMEMPool(), 2)[0]").replace(
    "from tvm.script import tirx as T\n",
    "from tvm.backend.cuda.lang import TMABar\nfrom tvm.script import tirx as T\n",
)
UNKNOWN_NAME = SMALL_KERNEL.replace("D[lane, 0] = A[lane, 0]", "D[lane, 0] = A[lame, 0]")

NO_KERNEL = {
    "empty": ("x = 1\n", "there is no function build_kernel", None),
    "misnamed": ("def build_kernal(M, N, K):\n    pass\n", "is 'build_kernal' meant?", 1),
    "not callable": ("build_kernel = 5\n", "build_kernel is an int, not a function", None),
    "too few parameters": ("\ndef build_kernel(M, N):\n    pass\n", "build_kernel(M, N) cannot be called", 2),
    "other parameters": ("def build_kernel(a, b, c):\n    pass\n", "cannot be called", 1),
    "one too many": ("def build_kernel(M, N, K, L):\n    pass\n", "missing a required argument: 'L'", 1),
    "raising": ("def build_kernel(M, N, K):\n    return M / 0\n", "ZeroDivisionError: division by zero", 2),
    "raising at import": ("import os\nopen('/nope')\n", "FileNotFoundError: ", 2),
    "missing module": ("import cutlass_dsl\n", "ModuleNotFoundError: No module named 'cutlass_dsl'", 1),
    "raising oddly": (
        "class E(Exception):\n    def __str__(self): raise self\ndef build_kernel(M, N, K): raise E()\n",
        "E",
        3,
    ),
    "returning None": (
        "def build_kernel(M, N, K):\n    M\n",
        "returned NoneType, not a tvm.tirx.PrimFunc",
        1,
    ),
    "returning text": ("def build_kernel(M, N, K):\n    return 'k'\n", "returned a str, not a tvm", 1),
    "returning a lookalike": (
        "import tvm\nclass P(tvm.tirx.PrimFunc): pass\ndef build_kernel(M, N, K):\n    return P.__new__(P)\n",
        "returned a kernel.P, not a tvm.tirx.PrimFunc",
        3,
    ),
    "rejected by TVM": (REJECTED, "TVM: Visitor of AST node is not implemented: Raise", 13),
    "unknown name in the kernel": (UNKNOWN_NAME, "TVM: ", 13),
    "Python's min": (PYTHONS_MIN, "min, max, and, or and not do not work on values of the kernel", 13),
    "an int after and": (AND_AN_INT, "want conditions, and this one is an int", 13),
    "an int after not": (NOT_AN_INT, "want conditions, and this one is an int", 13),
    "a shape that is no tuple": (SHAPE_OF_ONE, "the shape of a buffer is a tuple", 13),
    "a stage by [ ]": (STAGE_OF_A_RING, "barriers of a ring have no [ ]", 14),
    "early return": (EARLY_RETURN, "TVM: this statement is not possible in a kernel", 14),
    "sys.exit": ("import sys\nsys.exit(0)\n", "the code called sys.exit(0) before build_kernel returned", 2),
    "interrupt": ("raise KeyboardInterrupt\n", "KeyboardInterrupt", 1),
    "endless recursion": ("def f(): f()\nf()\n", "RecursionError: maximum recursion depth exceeded", 1),
    "another line of lines": (
        "raise Exception('a\\n --> kernel.py:99:1\\nb\\x1b[31m')\n",
        "Exception: a --> ",
        1,
    ),
}


@pytest.mark.parametrize("name", NO_KERNEL)
def test_what_is_no_kernel_is_explained(
    tmp_path: Path, exercise: Exercise, limits: Limits, name: str
) -> None:
    """The builder's own steps, called here: the processes around them are tested below."""
    source, message, line = NO_KERNEL[name]
    path = tmp_path / "snapshot" / "kernel.py"
    path.parent.mkdir()
    path.write_text(source)
    import_tvm()
    diagnosis = Diagnosis(exercise, Submission("exercise_05.ipynb", source, 6, "kernel"), limits)
    with pytest.raises(BaseException) as caught:
        build_child._build(build_child._import(str(path)), "build_kernel", exercise.builder.params)
    sys.modules.pop(build_child.MODULE, None)
    failure = diagnosis.build_failure(build_child._describe(caught.value, str(path)))
    check(failure, source, message, line)
    assert str(tmp_path) not in failure.message


def check(failure: Failure | bytes, source: str, message: str, line: int | None) -> None:
    assert isinstance(failure, Failure)
    assert message in failure.message
    assert (
        "\n" not in failure.message and "Traceback" not in failure.message and "\x1b" not in failure.message
    )
    assert failure.fault is Fault.YOUR_CODE
    assert (failure.location.line if failure.location else None) == line
    if line is not None and failure.location is not None:
        text = source.splitlines()[line - 1].strip()
        assert failure.location.spell() == f"notebook cell 6 line {line}: {text}"


ENDS = {
    "os._exit": ("import os\nos._exit(0)\n", "the code ended its process (exit status 0)", None),
    "segfault": ("import ctypes\nctypes.string_at(0)\n", "Python crashed with SIGSEGV", None),
    "sys.exit": ("import sys\nsys.exit('bye')\n", "the code called sys.exit(bye)", 2),
    "memory bomb": ("x = bytearray(1 << 40)\n", "MemoryError", 1),
    "a gigabyte of output": ("while True: print('x' * 10**6)\n", "more than 64 KiB printed", None),
    "a gigabyte of errors": (
        "import os\nwhile 1: os.write(2, b'x' * 10**6)\n",
        "more than 64 KiB printed",
        None,
    ),
    "bytes in every descriptor": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{}' * 99)\n    except OSError: pass\n",
        "the code wrote into the grader's channel",
        None,
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_process_of_a_submission_ends_early(build: Build, name: str) -> None:
    source, message, line = ENDS[name]
    check(build(source), source, message, line)


def test_an_endless_loop_is_stopped(build: Build) -> None:
    started = time.monotonic()
    failure = build("while True: pass\n", build_seconds=1)
    assert isinstance(failure, Failure)
    assert "no kernel after 1 s" in failure.message
    assert time.monotonic() - started < 30


def test_the_environment_holds_no_secrets(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_TOKEN", "secret")
    failure = build("import os\nraise Exception(sorted(os.environ), os.listdir('.'), os.getcwd())\n")
    assert isinstance(failure, Failure)
    assert "COURSE_TOKEN" not in failure.message
    assert "[]" in failure.message, "the working directory is empty"


CONFINED = """
import os
found = []
for place in {places!r}:
    try:
        os.listdir(place) if os.path.isdir(place) else open(place).close()
        found.append(place)
    except OSError:
        pass
open("mine", "w").write("x")
for place in {writes!r}:
    try:
        open(place, "a")
        found.append(place)
    except OSError:
        pass
raise Exception("reached", found)
"""


@in_both
def test_files_are_out_of_reach(build: Build, sandbox: Sandbox, tmp_path: Path) -> None:
    """The course, its solutions and mutants cannot be read; only the process's own folder can be written."""
    if sandbox.program is None and not landlock_version():
        pytest.skip("this kernel has no Landlock")
    places = [
        REPOSITORY / p
        for p in ("solutions/exercise_05/exercise_05.ipynb", "course.yaml", "tests/mutants", ".")
    ]
    assert all(place.exists() for place in places)
    writes = [str(tmp_path / "x"), str(REPOSITORY / "autograder" / "x.py"), "/tmp/x"]
    failure = build(CONFINED.format(places=[str(p) for p in places], writes=writes))
    assert isinstance(failure, Failure)
    assert failure.message == "Exception: ('reached', [])"
    assert list(tmp_path.iterdir()) == []


def test_torch_can_be_imported_by_a_submission(build: Build) -> None:
    failure = build("import torch\nraise Exception(torch.ones(3).sum().item())\n", build_seconds=60)
    assert isinstance(failure, Failure)
    assert "Exception: 3.0" in failure.message


# Integer functions ------------------------------------------------------------------------------

Tables = Callable[..., tuple[dict[str, Table], Failure | None]]
LONG = "def {0}(offset):\n    return offset * 2\n"


@pytest.fixture
def tables(exercise: Exercise, limits: Limits) -> Tables:
    """Run a cell's text with the functions of the given names: their tables, and why there is no kernel."""

    def run(source: str, *names: str, **changes: Any) -> tuple[dict[str, Table], Failure | None]:
        functions = [Function(name=name, domain=64, reference="swizzle_32") for name in names]
        submission = Submission("exercise_05.ipynb", source, 6, "kernel")
        own = exercise.model_copy(update={"functions": functions})
        diagnosis = Diagnosis(own, submission, limits.model_copy(update=changes))
        found: dict[str, Table] = {}
        with Pump() as pump:
            try:
                receive_prim_funcs(pump, start_builder(pump, diagnosis), diagnosis, found)
            except Stopped as stopped:
                return found, stopped.failure
        return found, None

    return run


def test_functions_come_back_as_tables_and_leave_the_kernel_alone(tables: Tables) -> None:
    source = (
        SMALL_KERNEL
        + LONG.format("twice")
        + "def none(offset):\n    if offset < 3:\n        return offset\n"
        + "def huge(offset):\n    return 1 << 60 + offset\n"
        + "def half(offset):\n    return offset / 2\n"
        + "def raising(offset):\n    return 1 // (5 - offset)\n"
        + "def leaving(offset):\n    raise SystemExit(3)\n"
        + "def greedy(offset, more):\n    return 1\n"
        + "number = 7\n"
        + "from numpy import int32 as numpys\n"
    )
    names = ("twice", "none", "huge", "half", "raising", "leaving", "greedy", "number", "missing", "numpys")
    found, failure = tables(source, *names)
    assert failure is None and list(found) == list(names)
    assert found["twice"] == Table(tuple(range(0, 128, 2)))
    assert found["numpys"] == Table(tuple(range(64)))
    messages = {
        "none": "none(3) returns None, not an integer of 64 bits",
        "huge": "huge(3) returns 9223372036854775808, not an integer of 64 bits",
        "half": "half(0) returns 0.0, not an integer of 64 bits",
        "raising": "raising(5) fails with ZeroDivisionError: integer division or modulo by zero",
        "leaving": "leaving(0) called sys.exit(3)",
        "greedy": "greedy(0) fails with TypeError: ",
        "number": "number is an int, not a function",
        "missing": "there is no function missing",
    }
    lines = source.split("\n")
    for name, message in messages.items():
        problem = found[name].failure
        assert (
            problem is not None and problem.fault is Fault.YOUR_CODE and problem.message.startswith(message)
        )
        assert "\n" not in problem.message and not found[name].values
        if problem.location is not None:
            assert lines[problem.location.line - 1].strip() == problem.location.text.strip()
    raising = found["raising"].failure
    assert raising is not None and raising.location is not None
    assert raising.location.text.strip() == "return 1 // (5 - offset)"


def test_a_function_is_looked_at_when_the_whole_cell_has_run(tables: Tables) -> None:
    """The last definition counts, as in Python; what fails on the way leaves no table."""
    found, failure = tables(SMALL_KERNEL + LONG.format("f") + LONG.format("f").replace("2", "3"), "f")
    assert failure is None and found["f"].values == tuple(range(0, 192, 3))
    found, failure = tables(LONG.format("f") + "1 / 0\n", "f")
    assert found == {} and failure is not None and "ZeroDivisionError" in failure.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("while True: pass", "no table after 1 s: f or the code around it does not come to an end"),
        ("import os; os._exit(0)", "the code ended its process (exit status 0) before f returned"),
    ],
)
def test_a_function_that_never_returns(tables: Tables, body: str, message: str) -> None:
    found, failure = tables(SMALL_KERNEL + f"def f(offset):\n    {body}\n", "f", build_seconds=1)
    assert found == {} and failure is not None and failure.fault is Fault.YOUR_CODE
    assert failure.message == message
