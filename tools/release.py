"""Regenerate exercises/ from solutions/ with nbgrader: ``python tools/release.py [--check] [exercise_NN ...]``.

Without names, every folder of solutions/ is released. ``--check`` writes nothing and fails when exercises/ is not what
nbgrader generates from solutions/ today. The work happens in a temporary course folder, so no gradebook is touched:
an instructor who keeps one runs ``nbgrader generate_assignment`` itself, which gives the same files.
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COURSE = Path(__file__).resolve().parent.parent


def generate(names: list[str], into: Path) -> None:
    """Release the exercises `names` of this course into the empty folder `into` (one folder per exercise).

    Raises SystemExit with nbgrader's own words when it rejects a notebook or is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        shutil.copy(COURSE / "nbgrader_config.py", course)
        for name in names:
            shutil.copytree(COURSE / "solutions" / name, course / "solutions" / name)
            command = [sys.executable, "-m", "nbgrader", "generate_assignment", name, "--no-db", "--force"]
            done = subprocess.run(command, cwd=course, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"nbgrader did not release {name}:\n{done.stderr.strip()}")
            shutil.copytree(course / "exercises" / name, into / name)


def differences(fresh: Path, stored: Path) -> list[str]:
    """Relative paths that differ between two folders, or that only one of them has."""
    names = {p.relative_to(root) for root in (fresh, stored) for p in root.rglob("*") if p.is_file()}
    names = {n for n in names if ".ipynb_checkpoints" not in n.parts}
    same = [
        n
        for n in names
        if (fresh / n).is_file() and (stored / n).is_file() and filecmp.cmp(fresh / n, stored / n, shallow=False)
    ]
    return sorted(str(n) for n in names.difference(same))


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: released, or up to date; 1: `--check` found differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
        if options.check:
            stale = [f"{n}/{d}" for n in names for d in differences(fresh / n, COURSE / "exercises" / n)]
            for path in stale:
                print(f"exercises/{path} is not what solutions/ generates; run: python tools/release.py")
            return 1 if stale else 0
        for name in names:
            target = COURSE / "exercises" / name
            if target.exists():
                shutil.rmtree(target)
            shutil.copytree(fresh / name, target)
            print(f"released exercises/{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
