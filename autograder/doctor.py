"""`autograde doctor`: what this machine offers to the grader."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata

from autograder.errors import AutogradeError

PACKAGES = ("apache-tvm", "torch", "numpy", "ml_dtypes", "pydantic", "rich")


@dataclass(frozen=True)
class Finding:
    """One fact about the machine. An optional one may be missing without harm."""

    name: str
    good: bool
    text: str
    optional: bool = False


def examine() -> list[Finding]:
    """All facts, in the order in which they are shown."""
    return [_python(), *map(_package, PACKAGES), _gpu(), _nvcc(), _emulator(), *_isolation()]


def _isolation() -> list[Finding]:
    """What is in force where a submission runs: a process confines itself like a submission's and looks."""
    from autograder.runner.confinement import PROTECTIONS, level
    from autograder.runner.process import ChildEnded, Pump
    from autograder.runner.sandbox import bubblewrap, choose, namespaces

    try:
        with Pump(choose("auto")) as pump:
            folder = pump.private_folder("probe")
            probe = pump.start("probe", "probe_child", folder, confined=True)
            pump.send(probe, {"stage": "probe", "work": str(folder), "outside": namespaces()})
            active = pump.receive(probe, 60).header["isolation"]
    except (AutogradeError, ChildEnded) as error:
        return [Finding("isolation", False, f"its self-test failed: {error}")]
    reached, why = level(active), bubblewrap()[1]
    text = reached if reached == "full" else f"{reached}, not full: {why}"
    found = [Finding("isolation", reached == "full", text, optional=True)]
    for name, what in PROTECTIONS.items():
        words = what if active[name] else f"not active ({what})"
        found.append(Finding(f"isolation, {name}", active[name], words, optional=True))
    return found


def _python() -> Finding:
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("python", good, text if good else f"{text}; the course needs 3.11, 3.12 or 3.13")


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, False, "is not installed")


def _gpu() -> Finding:
    """The GPU that `--device auto` takes. None is fine: the emulator grades everything."""
    from autograder.gpu import NoGpu, find_gpu, missing_software

    found = find_gpu()
    if isinstance(found, NoGpu):
        return Finding("GPU", False, f"{found.reason}; kernels run on the emulator", optional=True)
    text = (
        f"{found.name}, compute capability {found.capability[0]}.{found.capability[1]}, driver {found.driver}"
    )
    if found.arch is None:
        text += "; the course compiles for 9.0 and 10.0, so kernels run on the emulator"
        return Finding("GPU", False, text, optional=True)
    missing = missing_software()
    if missing is not None:
        return Finding("GPU", False, f"{text}; kernels run on the emulator, because {missing}", optional=True)
    tcgen05 = "all exercises" if found.capability == (10, 0) else "the exercises without tcgen05"
    return Finding("GPU", True, f"{text}; runs {tcgen05}, compiled for {found.arch}", optional=True)


def _nvcc() -> Finding:
    program = shutil.which("nvcc")
    return Finding("nvcc", program is not None, program or "none; the emulator needs none", optional=True)


_SELF_TEST = """
import sys; sys.path += {roots!r}
from emulator.tvm_import import import_tvm
import_tvm()
import numpy as np, emulator
from autograder.runner.self_check import copy_kernel
source, target = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
run = emulator.run(copy_kernel(), source, target)
assert run.ok, run.findings
assert (source == target).all()
"""


def _emulator() -> Finding:
    """Lower and run a small kernel in a process of its own."""
    from autograder.runner.sandbox import PACKAGE_ROOT

    started = time.perf_counter()
    code = _SELF_TEST.format(roots=[str(PACKAGE_ROOT)])
    try:
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("emulator", False, f"its self-test did not end ({type(error).__name__})")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("emulator", False, f"its self-test failed: {last[:200]}")
    return Finding("emulator", True, f"self-test passed in {time.perf_counter() - started:.1f} s")
