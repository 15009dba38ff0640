"""Which tests share a process: those of a file; of the large file of mutants, those of an exercise."""

from __future__ import annotations

import re

import pytest

APART = "test_mutants.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        exercise = re.search(r"exercise_\d\d", item.name) if item.path.name == APART else None
        group = f"{item.path.name}-{exercise[0]}" if exercise else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
