"""exercises/ from solutions/, with nbgrader: what learners get, and what it may not show.

An exercise that continues another one (`continues` in course.yaml) is handed out with `previous_step.md`, the solution
of that other one, for learners who did not finish it. The file is written here, into solutions/ as well, so that
nbgrader finds it there; what it shows is no secret any more from then on.

The work happens in a temporary course folder, so no gradebook is touched. An instructor who keeps one runs
``nbgrader generate_assignment`` itself, which gives the same files.
"""

from __future__ import annotations

import filecmp
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import yaml

from autograder.course_folder import COURSE_FILE
from autograder.errors import UsageError

PREVIOUS = "previous_step.md"
PREVIOUS_TEXT = """\
# The kernel of {name}

Read on only if your own kernel of {name} is not finished, or differs so much that you cannot go on from it. This is
the reference solution; take from it what you need. The numbers of the TODOs are those of {name}.

```python
{code}
```
"""
SHORTEST_LEAK = 8  # characters; shorter lines, a closing bracket for one, give nothing away
CONFIG = "nbgrader_config.py"


def sources(root: Path) -> list[str]:
    """The exercises that solutions/ holds."""
    folders = (root / "solutions").iterdir() if (root / "solutions").is_dir() else iter(())
    return sorted(folder.name for folder in folders if source_notebook(root, folder.name).is_file())


def source_notebook(root: Path, name: str) -> Path:
    return root / "solutions" / name / f"{name}.ipynb"


def generate(root: Path, names: list[str], into: Path) -> None:
    """Release the exercises `names` of the course into the folder `into`, one folder per exercise.

    Raises:
        UsageError: nbgrader is not installed, or rejects a notebook; its own words are in the message.
    """
    if importlib.util.find_spec("nbgrader") is None:
        raise UsageError("nbgrader is not installed; run: pip install 'tirx-kernel-course[instructor]'")
    if not (root / CONFIG).is_file():
        raise UsageError(f"{root / CONFIG}: there is no such file; nbgrader needs it to release an exercise")
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        shutil.copy(root / CONFIG, course)
        shutil.copy(root / COURSE_FILE, course)
        for name in names:
            shutil.copytree(root / "solutions" / name, course / "solutions" / name)
            _place(course / "solutions" / name, previous_step(root, name))
            command = [sys.executable, "-m", "nbgrader", "generate_assignment", name, "--no-db"]
            done = subprocess.run(command, cwd=course, env=_environment(), capture_output=True, text=True)
            if done.returncode != 0:
                raise UsageError(f"nbgrader does not release {name}: {_own_words(done.stderr)}")
            shutil.copytree(course / "exercises" / name, into / name)


def _environment() -> dict[str, str]:
    """Ours, with this package on the import path: nbgrader_config.py imports it."""
    package = str(Path(__file__).resolve().parents[1])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
    }


def _own_words(log: str) -> str:
    """The reason in nbgrader's log: its last error but for the one that only says that there was one."""
    lines = [line.partition("ERROR | ")[2] or line for line in log.splitlines() if "ERROR |" in line]
    reasons = [line for line in lines if not line.startswith(("There was an error", "Please see", "["))]
    last = [line for line in log.splitlines() if line.strip()][-1:]
    return " ".join((reasons or lines or last or ["no reason is known"])[0].split())


def refresh(root: Path, fresh: Path, name: str) -> None:
    """Replace exercises/NAME by what `generate` has put into `fresh`, and bring points and previous_step.md in solutions/ up to date."""
    if stale_points(root, name):
        source_notebook(root, name).write_text(_with_points(root, name), encoding="utf-8")
    target = root / "exercises" / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(fresh / name, target)
    if stale_previous_step(root, name):
        _place(root / "solutions" / name, previous_step(root, name))


def stale(root: Path, fresh: Path, name: str) -> list[str]:
    """One message for each file of exercise NAME that is not what solutions/ generates."""
    found = [f"exercises/{name}/{path}" for path in differences(fresh / name, root / "exercises" / name)]
    messages = [f"{path} is not what solutions/ generates" for path in found]
    if stale_points(root, name):
        messages.append(f"solutions/{name}/{name}.ipynb has other points than {COURSE_FILE}")
    if stale_previous_step(root, name):
        messages.append(
            f"solutions/{name}/{PREVIOUS} is not the solution of {continued(root, name) or 'another exercise'}"
        )
    return messages


def _exercises(root: Path) -> list[dict[str, Any]]:
    return yaml.safe_load((root / COURSE_FILE).read_text(encoding="utf-8"))["exercises"]


def continued(root: Path, name: str) -> str | None:
    """The exercise that exercise `name` continues, by course.yaml."""
    return next((e.get("continues") for e in _exercises(root) if e["id"] == name), None)


def kernel_cell(root: Path, name: str) -> str:
    """The kernel cell of a solution, without the markers of its regions."""
    wanted = next(e["cells"]["kernel"] for e in _exercises(root) if e["id"] == name)
    path = source_notebook(root, name)
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError(f"{path}: cannot be read, but a later exercise continues {name}") from None
    cells = [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == wanted
    ]
    lines = cells[0].split("\n")
    return "\n".join(line for line in lines if "BEGIN SOLUTION" not in line and "END SOLUTION" not in line)


def previous_step(root: Path, name: str) -> str | None:
    """What `previous_step.md` of exercise `name` says; None where it continues no other exercise."""
    previous = continued(root, name)
    if previous is None:
        return None
    return PREVIOUS_TEXT.format(name=previous.replace("_", " "), code=kernel_cell(root, previous))


def stale_previous_step(root: Path, name: str) -> bool:
    """Whether `previous_step.md` in solutions/ is missing, out of date, or one too many."""
    path = root / "solutions" / name / PREVIOUS
    return (path.read_text(encoding="utf-8") if path.is_file() else None) != previous_step(root, name)


def stale_points(root: Path, name: str) -> bool:
    """Whether scored cells of a source notebook have other points than course.yaml, which a release does not care about."""
    notebook = source_notebook(root, name).read_text(encoding="utf-8")
    return json.loads(notebook) != json.loads(_with_points(root, name))


def _with_points(root: Path, name: str) -> str:
    """The source notebook with the points of course.yaml."""
    notebook = json.loads(source_notebook(root, name).read_text(encoding="utf-8"))
    exercise = next(e for e in _exercises(root) if e["id"] == name)
    points = {check["id"]: check["points"] for check in exercise["checks"]}
    for cell in notebook["cells"]:
        marked = cell["metadata"].get("nbgrader", {})
        if marked.get("grade") and marked.get("grade_id") in points:
            marked["points"] = points[marked["grade_id"]]
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _place(folder: Path, text: str | None) -> None:
    """Write `previous_step.md` into a folder, or remove it."""
    (folder / PREVIOUS).unlink(missing_ok=True)
    if text is not None:
        (folder / PREVIOUS).write_text(text, encoding="utf-8")


def known_lines(root: Path, name: str) -> set[str]:
    """Code lines that learners may have seen when they get exercise `name`: solutions that it or an earlier exercise
    hands out, because it continues them.
    """
    handed_out = {e["continues"] for e in _exercises(root) if e["id"] <= name and "continues" in e}
    return {
        squeeze(line.split("  #")[0]) for p in sorted(handed_out) for line in kernel_cell(root, p).split("\n")
    }


def differences(fresh: Path, stored: Path) -> list[str]:
    """Relative paths that differ between two folders, or that only one of them has."""
    names = {p.relative_to(root) for root in (fresh, stored) for p in root.rglob("*") if p.is_file()}
    names = {n for n in names if ".ipynb_checkpoints" not in n.parts}
    both = {n for n in names if (fresh / n).is_file() and (stored / n).is_file()}
    same = {n for n in both if filecmp.cmp(fresh / n, stored / n, shallow=False)}
    return sorted(map(str, names - same))


def solution_lines(notebook: Path) -> set[str]:
    """Code lines, blanks and end comments removed, that stand in solution regions and nowhere else, not even as a
    part of a line of given code.

    A line that ends in an opening bracket names a call and no more; what it is called with is on the next.
    """
    inside: set[str] = set()
    outside: set[str] = set()
    given: set[str] = set()  # code around the regions
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        in_region = False
        for line in "".join(cell["source"]).split("\n"):
            if "BEGIN SOLUTION" in line or "END SOLUTION" in line:
                in_region = "BEGIN" in line
                continue
            code = squeeze(line.split("  #")[0])
            (inside if in_region else outside).add(code)
            if not in_region and cell["cell_type"] == "code":
                given.add(code)
    return {
        line
        for line in inside - outside
        if len(line) >= SHORTEST_LEAK and not line.endswith("(") and not any(line in other for other in given)
    }


def secret_lines(notebook: Path, known: Set[str] = frozenset()) -> set[str]:
    """`solution_lines` but those in `known`, and parts of them: the exercise is handed out with the solution of the one
    that it continues.
    """
    return {line for line in solution_lines(notebook) if not any(line in other for other in known)}


def leaks(notebook: Path, release: Path, known: Set[str] = frozenset()) -> list[str]:
    """One message for each file of the folder `release` that shows a secret line of `notebook`."""
    secret = secret_lines(notebook, known)
    found = []
    for path in sorted(p for p in release.rglob("*") if p.is_file()):
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".ipynb":
            text = "\n".join(strings(json.loads(text)))
        squeezed = squeeze(text)
        shown = sorted(line for line in secret if line in squeezed)
        if shown:
            found.append(f"{path.relative_to(release)} shows solution text: {shown[0]}")
    return found


def leaks_in(root: Path, folder: Path, name: str) -> list[str]:
    """One message for each file of a release of exercise NAME that shows a solution line of its own or of a later one."""
    return [
        leak + (f" of {later}" if later != name else "")
        for later in sources(root)
        if name <= later
        for leak in leaks(source_notebook(root, later), folder, known_lines(root, later))
    ]


def squeeze(text: str) -> str:
    """The text without any white space."""
    return "".join(text.split())


def strings(value: object) -> Iterator[str]:
    """Every string in parsed JSON; a list of strings (a cell's source) as one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        yield "".join(item for item in value if isinstance(item, str))
        for item in value:
            if not isinstance(item, str):
                yield from strings(item)
