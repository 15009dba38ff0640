"""The release tool, and the notebooks of every exercise."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

COURSE = Path(__file__).resolve().parents[2]
EXERCISES = sorted(p.parent.name for p in (COURSE / "solutions").glob("*/*.ipynb") if p.stem == p.parent.name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test with a parameter `exercise` runs once per folder of solutions/."""
    if "exercise" in metafunc.fixturenames:
        metafunc.parametrize("exercise", EXERCISES)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks are graded on the emulator, also on a machine with a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="session")
def course() -> Path:
    return COURSE


@pytest.fixture(scope="session")
def release_tool() -> ModuleType:
    """tools/release.py as a module."""
    spec = importlib.util.spec_from_file_location("release_tool", COURSE / "tools" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
