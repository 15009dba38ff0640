"""Which GPU this machine has, and whether an exercise can run on it.

Nothing here opens the device: the driver's own tool is asked, so that the command line stays light.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autograder.errors import MachineError

if TYPE_CHECKING:
    from autograder.course import Exercise

Choice = Literal["auto", "cuda", "emulated"]

# Architectures whose code the course compiles, by compute capability. `a`: with the architecture's own instructions.
ARCHITECTURES = {(9, 0): "sm_90a", (10, 0): "sm_100a"}
# Oldest compute capability for `runs_on` of course.yaml; what tcgen05 needs exists in no other generation.
NEEDS = {"sm_90": ((9, 0), (10, 0)), "sm_100": ((10, 0),)}


@dataclass(frozen=True)
class Gpu:
    """One GPU, as the driver describes it. `visible` is CUDA_VISIBLE_DEVICES for the processes that use it."""

    name: str
    capability: tuple[int, int]
    driver: str
    uuid: str = ""
    visible: str = "0"

    @property
    def arch(self) -> str | None:
        """The architecture to compile for, None where the course has none."""
        return ARCHITECTURES.get(self.capability)


@dataclass(frozen=True)
class NoGpu:
    """Why there is no GPU to run on."""

    reason: str


def find_gpu() -> Gpu | NoGpu:
    """The first GPU that CUDA_VISIBLE_DEVICES leaves visible."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return NoGpu("there is no NVIDIA driver on this machine (no nvidia-smi)")
    query = [program, "--query-gpu=name,compute_cap,driver_version,uuid", "--format=csv,noheader"]
    try:
        shown = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return NoGpu("nvidia-smi does not answer")
    if shown.returncode != 0:
        return NoGpu("nvidia-smi finds no GPU that the driver can use")
    lines = enumerate(shown.stdout.splitlines())
    gpus = [gpu for number, line in lines if (gpu := _parse(line, str(number))) is not None]
    if not gpus:
        return NoGpu("nvidia-smi finds no GPU that the driver can use")
    return _visible(gpus)


def _parse(line: str, visible: str) -> Gpu | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 4:
        return None
    major, _, minor = parts[1].partition(".")
    if not (major.isdigit() and minor.isdigit()):
        return None
    return Gpu(parts[0], (int(major), int(minor)), parts[2], parts[3], visible)


def _visible(gpus: list[Gpu]) -> Gpu | NoGpu:
    """The first entry of CUDA_VISIBLE_DEVICES: a number or the beginning of a UUID."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return gpus[0]
    first = wanted.split(",")[0].strip()
    if first.isdigit() and int(first) < len(gpus):
        return gpus[int(first)]
    named = [replace(gpu, visible=first) for gpu in gpus if first and gpu.uuid.startswith(first)]
    return named[0] if named else NoGpu(f"CUDA_VISIBLE_DEVICES is '{wanted}', which leaves no GPU visible")


def missing_software() -> str | None:
    """What is missing to compile for a GPU, or None."""
    if "CUDA_PATH" in os.environ or shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists():
        return None
    return "compiling needs the CUDA toolkit: put nvcc on the PATH, or set CUDA_PATH"


def compile_mode() -> str:
    """The compiler that TVM shall call: NVRTC where its bindings are, else nvcc."""
    return "nvrtc" if _importable("cuda.bindings") else "nvcc"


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def why_not(gpu: Gpu, exercise: Exercise) -> str | None:
    """Why an exercise does not run on this GPU, or None where it does."""
    spelled = f"{gpu.name} (compute capability {gpu.capability[0]}.{gpu.capability[1]})"
    if gpu.capability not in NEEDS[exercise.runs_on]:
        what = "9.0 or 10.0" if exercise.runs_on == "sm_90" else "10.0, for tcgen05"
        return f"{exercise.id} needs compute capability {what}; this is {spelled}"
    return None


def choose(device: Choice, exercise: Exercise, found: Gpu | NoGpu) -> Gpu | None:
    """The GPU to grade on, None for the emulator.

    Raises:
        MachineError: `cuda` is asked for and cannot be had; one line says why.
    """
    if device == "emulated":
        return None
    reason = found.reason if isinstance(found, NoGpu) else why_not(found, exercise) or missing_software()
    if reason is None:
        assert isinstance(found, Gpu)
        return found
    if device == "cuda":
        raise MachineError(f"--device cuda: {reason} (--device emulated needs no GPU)")
    return None
