"""README.md tells the truth: the grade that it shows is today's, and its commands exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from autograder.cli import cli


def test_readme_shows_the_grade_of_today(course: Path) -> None:
    spec = importlib.util.spec_from_file_location("readme_tool", course / "tools" / "readme.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.main(["--check"]) == 0, "run: python tools/readme.py"


def test_readme_names_only_commands_that_exist(course: Path) -> None:
    text = (course / "README.md").read_text(encoding="utf-8")
    used = set(re.findall(r"`autograde ([a-z-]+)", text)) - {"exercise", "all"}
    assert {"list", "hint", "doctor"} <= used
    known = set(cli.commands)
    assert {name for name in used if name not in known} == set()


def test_readme_is_free_of_machines(course: Path) -> None:
    """No path of somebody's machine and no package host: the commands must work anywhere."""
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (course / name).read_text(encoding="utf-8")
        assert (
            re.findall(r"(?:/home/|/root/|/work/|/Users/|index-url|https?://\S*(?:pypi|wheels))", text) == []
        )
