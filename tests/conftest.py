"""Which tests share a process: those of a file; of the large file of mutants, those of an exercise. The long ones come first.

pytest-xdist's own `loadgroup` reads a private attribute of pytest's that is gone since 9.2, and then groups nothing: what a file
sets up once was set up in every process.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

APART = "test_mutants.py"
# Few tests and much time: begun last, one of them would leave the other processors idle at the end.
LONG = (
    "test_nbgrader.py", "test_browser.py", "test_faults.py", "test_submissions.py", "test_check_course.py", "test_modelled.py",
    "test_tirx_kernels.py", "test_timing.py", "test_new_exercise.py", "test_batch.py", "test_speed_tiers.py",
)  # fmt: skip


def group_of(nodeid: str) -> str:
    """What stays together: a path, and of the mutants an exercise.

    >>> group_of("tests/exercises/test_mutants.py::test_a[exercise_05/x]"), group_of("tests/a/test_b.py::test_c[exercise_05]")
    ('tests/exercises/test_mutants.py exercise_05', 'tests/a/test_b.py')
    """
    path, _, name = nodeid.partition("::")
    exercise = re.search(r"exercise_\d\d", name) if path.endswith(APART) else None
    return f"{path} {exercise[0]}" if exercise else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)
