"""Kernels of the course as modules: the solution cell of a notebook, and the mutants beside it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autograder.report.model import GradeReport
from preloaded import PreloadedGrader

COURSE = Path(__file__).resolve().parents[2]


def cell(notebook: Path, grade_id: str) -> str:
    """The source of the cell that nbgrader knows by `grade_id`."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return next(
        "".join(c["source"]) for c in cells if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id
    )


def load_module(path: Path) -> ModuleType:
    """Import a .py file under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"kernel_of_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def course() -> Path:
    return COURSE


@pytest.fixture(scope="session")
def load_tool(course: Path) -> Callable[[str], ModuleType]:
    """Name -> tools/NAME.py as a module; the path of imports stays as it was."""

    def load(name: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [str(course / "tools"), *sys.path])
            return importlib.import_module(name)

    return load


@pytest.fixture(scope="session")
def solution_cell(course: Path) -> Callable[[str], str]:
    """exercise -> text of its kernel cell, with the solution regions' markers."""
    return lambda exercise: cell(course / "solutions" / exercise / f"{exercise}.ipynb", "kernel")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | Path, dict[str, int]], Any]:
    """(source text or .py file, parameters, name of the builder) -> the PrimFunc that its builder returns."""

    def build_from(source: str | Path, parameters: dict[str, int], name: str = "build_kernel") -> Any:
        if isinstance(source, str):
            path = tmp_path_factory.mktemp("kernel") / "kernel.py"
            path.write_text(source, encoding="utf-8")
            source = path
        return getattr(load_module(source), name)(**parameters)

    return build_from


@pytest.fixture(scope="session")
def load() -> Callable[[Path], ModuleType]:
    """Imports a .py file under a name of its own."""
    return load_module


@pytest.fixture(scope="session")
def quick_grade() -> Iterator[Callable[[str, Path], GradeReport]]:
    """(exercise, .py file) -> the report of a quick grade with seed 1; `quick=False` grades every case."""
    with PreloadedGrader() as grader:
        yield lambda exercise, path, quick=True, measure=False, **options: grader(
            exercise, path, seed=1, quick=quick, measure=measure, **options
        )
