"""Put the real output of a grade into README.md: python tools/readme.py [--check]

The graded notebook is the solution of exercise_05 with one line less: the proxy fence. --check writes nothing
and fails when README.md does not show what the grader says today.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COURSE = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- grade: begin -->\n", "<!-- grade: end -->\n"
COMMAND = "autograde exercise_05 --seed 1"
FENCE = 'T.ptx["fence.proxy.async.shared::cta"]()'
COLUMNS = "92"


def broken_notebook() -> dict[str, object]:
    """The solution notebook without its proxy fence and without the markers of solution regions."""
    path = COURSE / "solutions" / "exercise_05" / "exercise_05.ipynb"
    notebook: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    cells = notebook["cells"]
    assert isinstance(cells, list)
    for cell in cells:
        lines = "".join(cell["source"]).split("\n")
        kept = [line for line in lines if FENCE not in line and "SOLUTION" not in line]
        cell["source"] = "\n".join(kept)
    return notebook


def graded() -> str:
    """What COMMAND prints in a course folder with that notebook.

    Raises SystemExit when the grade is not what the README claims it to be: points lost, nothing else.
    """
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        shutil.copy(COURSE / "course.yaml", course)
        shutil.copytree(COURSE / "exercises", course / "exercises")
        target = course / "exercises" / "exercise_05" / "exercise_05.ipynb"
        target.write_text(json.dumps(broken_notebook()), encoding="utf-8")
        command = [sys.executable, "-m", "autograder", *COMMAND.split()[1:]]
        environment = {**os.environ, "COLUMNS": COLUMNS, "NO_COLOR": "1", "PYTHONUTF8": "1"}
        environment["PYTHONPATH"] = str(COURSE)
        done = subprocess.run(command, cwd=course, env=environment, capture_output=True, encoding="utf-8")
    if done.returncode != 1:
        raise SystemExit(f"the grade ended in {done.returncode}, not 1:\n{done.stdout}{done.stderr}")
    return done.stdout.rstrip() + "\n"


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: README.md shows today's output; 1: `--check` found another one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only; write nothing")
    options = parser.parse_args(argv)
    readme = COURSE / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    fresh = f"{before}{BEGIN}```text\n$ {COMMAND}\n{graded()}```\n{END}{after}"
    if options.check and fresh != text:
        print("README.md shows another grade than today's; run: python tools/readme.py")
        return 1
    if fresh != text:
        readme.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
