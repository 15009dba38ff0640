"""The course folder and the command line of the autograder's tests."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path

_PATH = Path(__file__).resolve().parents[1] / "autograder" / "conftest.py"
_SPEC = util.spec_from_file_location("autograder_fixtures", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
fixtures = util.module_from_spec(_SPEC)
sys.modules["autograder_fixtures"] = fixtures
_SPEC.loader.exec_module(fixtures)

autograde = fixtures.autograde
course = fixtures.course
exercise = fixtures.exercise
fill_in = fixtures.fill_in
folder = fixtures.folder
limits = fixtures.limits
no_gpu = fixtures.no_gpu
solution = fixtures.solution
