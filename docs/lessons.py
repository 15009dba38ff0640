"""The lessons of the site: exercises/ (what learners get, no solutions) as Markdown pages beside their figures.

Runs when Sphinx starts; writes docs/lessons/, which is generated and not kept.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import yaml

COURSE = Path(__file__).resolve().parent.parent
LESSONS = COURSE / "docs" / "lessons"
ONLY_IN_THE_NOTEBOOK = {"try", "scored"}  # they talk about the cells below them, which the page leaves out

INDEX = """\
# The lessons

Each page is the notebook of an exercise as learners get it: the lesson, the questions to answer first, and the kernel with its open places.
The work itself happens in `exercises/`, where the notebook can be run and graded.

```{{toctree}}
:maxdepth: 1

{entries}
```
"""


def write(into: Path = LESSONS) -> list[str]:
    """Write one folder per released exercise and an index; returns the ids, in the order of course.yaml."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    course = yaml.safe_load((COURSE / "course.yaml").read_text(encoding="utf-8"))
    written = []
    for exercise in course["exercises"]:
        released = COURSE / "exercises" / exercise["id"]
        notebook = released / exercise["notebook"]
        if not notebook.is_file():
            continue
        folder = into / exercise["id"]
        folder.mkdir()
        if (released / "figures").is_dir():
            shutil.copytree(released / "figures", folder / "figures")
        read = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
        (folder / "index.md").write_text(page(read, exercise), encoding="utf-8")
        written.append(exercise["id"])
    entries = "\n".join(f"{name}/index" for name in written)
    (into / "index.md").write_text(INDEX.format(entries=entries), encoding="utf-8")
    return written


def page(notebook: Any, exercise: dict[str, Any]) -> str:
    """The Markdown of one lesson."""
    parts = []
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id") or cell.get("id")
        if cell.cell_type == "markdown" and name not in ONLY_IN_THE_NOTEBOOK:
            parts.append(cell.source)
        elif cell.cell_type == "code" and not calls_only_check(cell.source):
            parts.append(f"```python\n{cell.source.rstrip()}\n```")
    checks = "\n".join(f"| {c['id'].replace('_', ' ')} | {c['points']} |" for c in exercise["checks"])
    number = exercise["id"].rpartition("_")[2]
    parts.append(
        f"## Points\n\n| check | points |\n|---|---|\n{checks}\n\n`autograde {number}` grades your notebook, "
        f"`autograde hint {number}` helps without giving it away."
    )
    return "\n\n".join(parts) + "\n"


def calls_only_check(source: str) -> bool:
    """Whether a code cell does nothing but show a part of the report."""
    lines = [
        line for line in source.splitlines() if line.strip() and not line.startswith(("from autograder", "#"))
    ]
    return bool(lines) and all(re.match(r"check\(", line) for line in lines)
