"""The promised finding of a mutant, from the emulator in this process: a fifth of a grade's time, and most mutants need no more.

A mutant is code of the course, so it may run here, where no submission may. A yes is certain, since these are launches that
a grade has too, and such a finding always costs the points of the check `synchronization`; a no is for a grade to judge.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from autograder.checks import COSTLY
from autograder.course import Exercise
from autograder.runner.oracle_child import numpy_dtype


def is_reported(path: Path, exercise: Exercise, finding: str, line: int) -> bool:
    """Whether a launch of a quick grade reports this finding at this line."""
    from emulator.tvm_import import import_tvm

    import_tvm()
    import emulator

    sys.setrecursionlimit(10_000)
    try:
        module = _load(path)
        for kernel in exercise.only_quick().kernels:
            prim_func = getattr(module, kernel.builder.name)(**kernel.builder.params)
            compiled = emulator.compile(prim_func, arch=exercise.arch)
            for case in kernel.cases:
                run = compiled.run(*_tensors(kernel), seed=1, schedule=case.schedule, check=True)
                if any(_is(found, finding, line) for found in run.findings):
                    return True
    except Exception:  # a broken kernel may break anything; a grade tells it from the grader's own faults
        return False
    return False


def _is(found: Any, code: str, line: int) -> bool:
    lines = {location.line for location in found.locations}
    return found.code == code and found.strength in COSTLY and line in lines


def _load(path: Path) -> ModuleType:
    """The file as a module; TVM's parser reads the source of what it defines."""
    spec = importlib.util.spec_from_file_location(f"mutant_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tensors(kernel: Exercise) -> list[Any]:
    """Random inputs, and outputs full of NaN."""
    random = np.random.default_rng(1)
    arrays = []
    for tensor in kernel.tensors:
        shape = kernel.shape(tensor)
        values = random.standard_normal(shape) if tensor.role == "input" else np.full(shape, np.nan)
        arrays.append(values.astype(numpy_dtype(tensor.dtype)))
    return arrays
