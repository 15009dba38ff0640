"""Regenerate exercises/ from solutions/ with nbgrader: python tools/release.py [--check] [exercise_NN ...]

Without names, every folder of solutions/ is released. --check writes nothing and fails when exercises/ is not
what nbgrader generates from solutions/ today. Neither accepts a release that shows a solution line.

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
from collections.abc import Iterator
from pathlib import Path

COURSE = Path(__file__).resolve().parent.parent
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
            command = [sys.executable, "-m", "nbgrader", "generate_assignment", name, "--no-db"]
            done = subprocess.run(command, cwd=course, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"nbgrader did not release {name}:\n{done.stderr.strip()}")
            shutil.copytree(course / "exercises" / name, into / name)


def differences(fresh: Path, stored: Path) -> list[str]:
    """Relative paths that differ between two folders, or that only one of them has."""
    names = {p.relative_to(root) for root in (fresh, stored) for p in root.rglob("*") if p.is_file()}
    names = {n for n in names if ".ipynb_checkpoints" not in n.parts}
    both = {n for n in names if (fresh / n).is_file() and (stored / n).is_file()}
    same = {n for n in both if filecmp.cmp(fresh / n, stored / n, shallow=False)}
    return sorted(map(str, names - same))


def solution_lines(notebook: Path) -> set[str]:
    """Code lines, blanks and end comments removed, that stand in solution regions and nowhere else.

    A line that ends in an opening bracket names a call and no more; what it is called with is on the next.
    """
    inside: set[str] = set()
    outside: set[str] = set()
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        in_region = False
        for line in "".join(cell["source"]).split("\n"):
            if "BEGIN SOLUTION" in line or "END SOLUTION" in line:
                in_region = "BEGIN" in line
                continue
            code = squeeze(line.split("  #")[0])
            (inside if in_region else outside).add(code)
    return {line for line in inside - outside if len(line) >= SHORTEST_LEAK and not line.endswith("(")}


def leaks(notebook: Path, release: Path) -> list[str]:
    """One message for each file of the folder `release` that shows a solution line of `notebook`."""
    secret = solution_lines(notebook)
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
            f"{name}: {leak}"
            for name in names
            for leak in leaks(COURSE / "solutions" / name / f"{name}.ipynb", fresh / name)
        ]
        if options.check:
            problems += [
                f"exercises/{name}/{path} is not what solutions/ generates; run: python tools/release.py"
                for name in names
                for path in differences(fresh / name, COURSE / "exercises" / name)
            ]
        for problem in problems:
            print(problem)
        if problems or options.check:
            return 1 if problems else 0
        for name in names:
            target = COURSE / "exercises" / name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(fresh / name, target)
            print(f"released exercises/{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
