"""Regenerate exercises/ from solutions/ with nbgrader: python tools/release.py [--check] [exercise_NN ...]

Without names, every folder of solutions/ is released. --check writes nothing and fails when exercises/ is not
what nbgrader generates from solutions/ today. Neither accepts a release that shows a solution line of its own or of
a later exercise.

An exercise that continues another one (`continues` in course.yaml) is handed out with `previous_step.md`, the solution
of that other one, for learners who did not finish it. The file is written here, into solutions/ as well, so that
nbgrader finds it there; what it shows is no secret any more from then on.

The work happens in a temporary course folder, so no gradebook is touched. An instructor who keeps one runs
``nbgrader generate_assignment`` itself, which gives the same files.
"""

from __future__ import annotations

import argparse
import filecmp
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path

import yaml

COURSE = Path(__file__).resolve().parent.parent
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


def generate(names: list[str], into: Path) -> None:
    """Release the exercises `names` of this course into the folder `into`, one folder per exercise.

    Raises SystemExit with nbgrader's own words when it rejects a notebook or is not installed.
    """
    if importlib.util.find_spec("nbgrader") is None:
        raise SystemExit("nbgrader is not installed; run: pip install -e '.[instructor]'")
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        shutil.copy(COURSE / "nbgrader_config.py", course)
        for name in names:
            shutil.copytree(COURSE / "solutions" / name, course / "solutions" / name)
            text = previous_step(name)
            (course / "solutions" / name / PREVIOUS).unlink(missing_ok=True)
            if text is not None:
                (course / "solutions" / name / PREVIOUS).write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "nbgrader", "generate_assignment", name, "--no-db"]
            done = subprocess.run(command, cwd=course, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"nbgrader did not release {name}:\n{done.stderr.strip()}")
            shutil.copytree(course / "exercises" / name, into / name)


def continued(name: str) -> str | None:
    """The exercise that exercise `name` continues, by course.yaml."""
    exercises = yaml.safe_load((COURSE / "course.yaml").read_text(encoding="utf-8"))["exercises"]
    return next((e.get("continues") for e in exercises if e["id"] == name), None)


def kernel_cell(name: str) -> str:
    """The kernel cell of a solution, without the markers of its regions."""
    exercises = yaml.safe_load((COURSE / "course.yaml").read_text(encoding="utf-8"))["exercises"]
    wanted = next(e["cells"]["kernel"] for e in exercises if e["id"] == name)
    notebook = json.loads((COURSE / "solutions" / name / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == wanted
    ]
    lines = cells[0].split("\n")
    return "\n".join(line for line in lines if "BEGIN SOLUTION" not in line and "END SOLUTION" not in line)


def previous_step(name: str) -> str | None:
    """What `previous_step.md` of exercise `name` says; None where it continues no other exercise."""
    previous = continued(name)
    if previous is None:
        return None
    return PREVIOUS_TEXT.format(name=previous.replace("_", " "), code=kernel_cell(previous))


def stale_previous_step(name: str) -> bool:
    """Whether `previous_step.md` in solutions/ is missing, out of date, or one too many."""
    path, text = COURSE / "solutions" / name / PREVIOUS, previous_step(name)
    return (path.read_text(encoding="utf-8") if path.is_file() else None) != text


def write_previous_step(name: str) -> None:
    """Bring `previous_step.md` of exercise `name` up to date, in solutions/."""
    path, text = COURSE / "solutions" / name / PREVIOUS, previous_step(name)
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text, encoding="utf-8")


def known_lines(name: str) -> set[str]:
    """Code lines that learners may have seen when they get exercise `name`: solutions that it or an earlier exercise
    hands out, because it continues them.
    """
    exercises = yaml.safe_load((COURSE / "course.yaml").read_text(encoding="utf-8"))["exercises"]
    handed_out = {e["continues"] for e in exercises if e["id"] <= name and "continues" in e}
    return {squeeze(line.split("  #")[0]) for p in sorted(handed_out) for line in kernel_cell(p).split("\n")}


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


def leaks(notebook: Path, release: Path, known: Set[str] = frozenset()) -> list[str]:
    """One message for each file of the folder `release` that shows a solution line of `notebook`.

    Lines in `known`, and parts of them, are no secret: the exercise is handed out with the solution of the one that
    it continues.
    """
    secret = {line for line in solution_lines(notebook) if not any(line in other for other in known)}
    found = []
    for path in sorted(p for p in release.rglob("*") if p.is_file()):
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".ipynb":
            text = "\n".join(strings(json.loads(text)))
        shown = sorted(line for line in secret if line in squeeze(text))
        if shown:
            found.append(f"{path.relative_to(release)} shows solution text: {shown[0]}")
    return found


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


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: released, or up to date; 1: `--check` found differences, or a solution would leak."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="exercise_NN")
    parser.add_argument("--check", action="store_true", help="compare only; write nothing")
    options = parser.parse_args(argv)
    known = sorted(p.name for p in (COURSE / "solutions").iterdir() if (p / f"{p.name}.ipynb").is_file())
    for name in options.names:
        if name not in known:
            parser.error(f"no exercise {name!r} in solutions/; there are: {', '.join(known)}")
    names = options.names or known

    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(names, fresh)
        problems = [
            f"{name}: {leak}" + (f" of {later}" if later != name else "")
            for later in known
            for name in names
            if name <= later
            for leak in leaks(
                COURSE / "solutions" / later / f"{later}.ipynb", fresh / name, known_lines(later)
            )
        ]
        if options.check:
            problems += [
                f"exercises/{name}/{path} is not what solutions/ generates; run: python tools/release.py"
                for name in names
                for path in differences(fresh / name, COURSE / "exercises" / name)
            ]
            problems += [
                f"solutions/{name}/{PREVIOUS} is not the solution of {continued(name)}; run: python tools/release.py"
                for name in names
                if stale_previous_step(name)
            ]
        for problem in problems:
            print(problem)
        if problems or options.check:
            return 1 if problems else 0
        for name in names:
            target = COURSE / "exercises" / name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(fresh / name, target)
            if stale_previous_step(name):
                write_previous_step(name)
            print(f"released exercises/{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
