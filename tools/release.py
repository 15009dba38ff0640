"""Regenerate exercises/ from solutions/ with nbgrader: python tools/release.py [--check] [exercise_NN ...]

Without names, every folder of solutions/ is released. --check writes nothing and fails when exercises/ is not
what nbgrader generates from solutions/ today. Neither accepts a release that shows a solution line of its own or of
a later exercise. `autograde check-course --fix` does the same and looks at everything else, too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

COURSE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(COURSE))

from autograder import release  # noqa: E402
from autograder.errors import AutogradeError  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: released, or up to date; 1: `--check` found differences, or a solution would leak."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="exercise_NN")
    parser.add_argument("--check", action="store_true", help="compare only; write nothing")
    options = parser.parse_args(argv)
    known = release.sources(COURSE)
    for name in options.names:
        if name not in known:
            parser.error(f"no exercise {name!r} in solutions/; there are: {', '.join(known)}")
    names = options.names or known

    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        try:
            release.generate(COURSE, names, fresh)
        except AutogradeError as error:
            raise SystemExit(str(error)) from None
        problems = [f"{n}: {leak}" for n in names for leak in release.leaks_in(COURSE, fresh / n, n)]
        if options.check:
            stale = [text for name in names for text in release.stale(COURSE, fresh, name)]
            problems += [f"{text}; run: python tools/release.py" for text in stale]
        for problem in problems:
            print(problem)
        if problems or options.check:
            return 1 if problems else 0
        for name in names:
            release.refresh(COURSE, fresh, name)
            print(f"released exercises/{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
