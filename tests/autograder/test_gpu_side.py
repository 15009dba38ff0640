"""The processes that hold the GPU, with a device that is a few lines of NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autograder.checks import CaseRun
from autograder.course import Course, Exercise
from autograder.diagnosis import Stopped
from autograder.gpu import Gpu
from autograder.on_gpu import GpuSide
from autograder.report.model import Fault
from autograder.runner.process import Pump

from .conftest import REPOSITORY, cell_of

H200 = Gpu("NVIDIA H200", (9, 0), "580.1", visible="0")

DEVICE = """
import os, time
import numpy as np
from autograder.runner.backends.cuda import DeviceError
from autograder.runner.measure import Sample

def neighbours(): return 0

class Bench:
    def __init__(self, plan): self.plan = plan
    def prepare(self, number): self.n = number
    def call(self, which): return Sample(100.0 if which == "kernel" else 95.0, True)
    def verify(self): return VERIFY
    def clocks(self): return {"sm_mhz": 1980}
    def facts(self):
        return {"device": "X", "l2_bytes": 0, "input_bytes": 8, "output_bytes": 8, "peak_bytes_per_s": None}

class Device:
    def __init__(self, arch): assert (arch, os.environ["CUDA_VISIBLE_DEVICES"]) == ("sm_90a", "0")
    def compile(self, prim_func):
        COMPILE
        return prim_func
    def launch(self, kernel, arrays):
        a, d = (array.copy() for array in arrays)
        d[:] = 2 * a
        LAUNCH
        return [a, d]
    def bench(self, kernel, plan, seed): return Bench(plan)
    def versions(self): return {"compiler": "none"}

def open_device(arch):
    OPEN
    return Device(arch)
"""


@pytest.fixture(scope="module")
def graph(course: Course) -> bytes:
    """The solution of exercise_02, as the builder's process hands it over."""
    from autograder.runner.ir_json import dump

    exercise = course.find("2")
    notebook = json.loads(
        (REPOSITORY / "solutions" / exercise.id / exercise.notebook).read_text(encoding="utf-8")
    )
    path = Path(__file__).with_name("test_gpu_side.py")
    namespace: dict[str, Any] = {"__name__": "kernel"}
    source = cell_of(notebook, "kernel")
    import linecache

    linecache.cache[f"{path}.kernel"] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        f"{path}.kernel",
    )
    exec(compile(source, f"{path}.kernel", "exec"), namespace)
    return dump(namespace["build_kernel"](**exercise.builder.params)).encode()


@pytest.fixture
def side(course: Course, tmp_path: Path, graph: bytes) -> Iterator[Callable[..., GpuSide]]:
    """A GpuSide for exercise_02 whose device executes these statements."""
    with Pump() as pump:

        def make(gpu_seconds: float = 20, measure: bool = False, **parts: str) -> GpuSide:
            text = DEVICE.replace("VERIFY", parts.get("verify", "''"))
            for name in ("COMPILE", "LAUNCH", "OPEN"):
                text = text.replace(name, parts.get(name.lower(), "pass"))
            (tmp_path / "fake_gpu.py").write_text(text, encoding="utf-8")
            limits = course.limits.model_copy(update={"gpu_seconds": gpu_seconds})
            made = GpuSide(pump, H200, course.find("2"), limits, "fake_gpu", (tmp_path,))
            made.start(measure=measure)
            made.compile([graph])
            return made

        yield make


def inputs(exercise: Exercise) -> bytes:
    a = np.ones((56, 552), np.float16)
    return a.tobytes() + np.zeros_like(a).tobytes()


def launched(side: GpuSide, number: int = 0) -> tuple[CaseRun, bytes | None]:
    case = side.exercise.cases[number]
    run = CaseRun(case.id, case.title)
    return run, side.launch(0, case, run, inputs(side.exercise))


def test_bytes_go_in_and_come_out(side: Callable[..., GpuSide]) -> None:
    made = side()
    made.await_compiled()
    run, raw = launched(made)
    assert raw == np.full((56, 552), 2, np.float16).tobytes()
    assert run.gpu is not None and run.gpu["status"] == "ran" and run.changed_inputs == []
    assert made.versions == {"compiler": "none"}


def test_a_changed_input_is_named(side: Callable[..., GpuSide]) -> None:
    made = side(launch="a[0, 0] = 3")
    made.await_compiled()
    assert launched(made)[0].changed_inputs == ["A"]


def test_a_hang_is_killed_and_ends_the_kernels_cases(side: Callable[..., GpuSide]) -> None:
    made = side(gpu_seconds=1, launch="time.sleep(60)")
    made.await_compiled()
    first, second = launched(made)[0], launched(made, 1)[0]
    assert first.gpu == {"status": "hang", "seconds": 1}
    assert second.gpu == {"status": "not run", "message": "the kernel hung in an earlier case"}
    assert made.children[0].process.returncode is not None


@pytest.mark.parametrize(
    ("error", "kind", "sticky"),
    [
        (
            "CUDA Runtime Error: cudaErrorIllegalAddress (700): an illegal memory access",
            "illegal address",
            True,
        ),
        (
            "CUDA Runtime Error: cudaErrorLaunchFailure (719): unspecified launch failure",
            "launch failure",
            True,
        ),
        ("CUDALaunch Error: CUDA_ERROR_INVALID_VALUE", "invalid launch", False),
    ],
)
def test_what_the_kernel_did(side: Callable[..., GpuSide], error: str, kind: str, sticky: bool) -> None:
    made = side(launch=f"raise DeviceError({error!r})")
    made.await_compiled()
    first, second = launched(made)[0], launched(made, 1)[0]
    assert first.gpu == {"status": "fault", "kind": kind, "message": error}
    assert second.gpu is not None and second.gpu["status"] == ("not run" if sticky else "fault")


@pytest.mark.parametrize(
    "error",
    [
        "CUDA Runtime Error: cudaErrorMemoryAllocation (2): out of memory",
        "CUDA Runtime Error: cudaErrorECCUncorrectable (214): uncorrectable ECC error",
        "CUDA Runtime Error: cudaErrorDevicesUnavailable (46): busy or unavailable",
    ],
)
def test_what_no_kernel_causes_is_the_machines(side: Callable[..., GpuSide], error: str) -> None:
    made = side(launch=f"raise DeviceError({error!r})")
    made.await_compiled()
    with pytest.raises(Stopped) as stopped:
        launched(made)
    assert stopped.value.failure.fault is Fault.MACHINE and error in stopped.value.failure.message


@pytest.mark.parametrize(
    ("parts", "fault", "words"),
    [
        ({"open": "raise DeviceError('TVM sees no CUDA device')"}, Fault.MACHINE, "TVM sees no CUDA device"),
        (
            {"compile": "raise ValueError('error: expected a )')"},
            Fault.GRADER,
            "rejects the kernel: error: expected a )",
        ),
        ({"open": "os._exit(7)"}, Fault.MACHINE, "exit status 7"),
    ],
)
def test_a_kernel_that_does_not_come_to_a_launch(
    side: Callable[..., GpuSide], parts: dict[str, str], fault: Fault, words: str
) -> None:
    with pytest.raises(Stopped) as stopped:
        side(**parts).await_compiled()
    assert stopped.value.failure.fault is fault and words in stopped.value.failure.message


def test_a_process_that_dies_in_a_launch_is_the_machines_fault(side: Callable[..., GpuSide]) -> None:
    made = side(launch="os._exit(7)")
    made.await_compiled()
    with pytest.raises(Stopped) as stopped:
        launched(made)
    assert stopped.value.failure.fault is Fault.MACHINE and "exit status 7" in stopped.value.failure.message


@pytest.mark.parametrize(
    ("parts", "verdict", "words"),
    [
        ({}, "fast", ""),
        (
            {"verify": "'7 of 9 elements are wrong' if self.n == 20 else ''"},
            "error",
            "timed call 20 is wrong",
        ),
        ({"verify": "os._exit(3)"}, "error", "did not end"),
        (
            {"open": "raise DeviceError('CUDA Runtime Error: cudaErrorIllegalAddress (700)')"},
            "error",
            "could not be measured",
        ),
        ({"compile": "raise ValueError('error: too large')"}, "error", "error: too large"),
    ],
)
def test_a_measurement_has_a_verdict_whatever_happens(
    side: Callable[..., GpuSide], graph: bytes, parts: dict[str, str], verdict: str, words: str
) -> None:
    made = side(measure=True, **parts)
    timing = made.exercise.timing[0]
    first, second = made.measure([(timing, graph), (timing, "too large for me")], seed=3)
    assert first.verdict == verdict and words in first.message
    assert (second.verdict, second.message) == ("error", "too large for me")
