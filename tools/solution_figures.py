"""What the tools that draw a solution's figures share: the solution's kernel, and files that are drawn or only compared."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

COURSE = Path(__file__).resolve().parent.parent
Figures = Mapping[str, str]  # exercise_NN/NAME.svg -> text of the file


def kernel_source(exercise: str) -> str:
    """The solution's kernel cell."""
    notebook = json.loads((COURSE / "solutions" / exercise / f"{exercise}.ipynb").read_text(encoding="utf-8"))
    return next(
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "kernel"
    )


def run_source(source: str, folder: Path) -> dict[str, Any]:
    """What a kernel cell defines. It runs from a file in `folder`, because TVM reads the source again."""
    path = folder / "kernel.py"
    path.write_text(source, encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), namespace)
    return namespace


def main(tool: str, figures: Callable[[Path], Figures], argv: list[str] | None = None) -> int:
    """Draw or, with `--check`, compare what `figures` makes of a scratch folder; `tool` is the script that people call.

    Exit status 0: drawn, or up to date; 1: `--check` found a figure that would be drawn differently now.
    """
    parser = argparse.ArgumentParser(
        prog=tool, description="Draw figures into solutions/exercise_NN/figures."
    )
    parser.add_argument("--check", action="store_true", help="compare only; write nothing")
    check = parser.parse_args(argv).check
    stale = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in figures(Path(scratch)).items():
            exercise, file = name.split("/")
            path = COURSE / "solutions" / exercise / "figures" / file
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                continue
            if check:
                print(f"{path.relative_to(COURSE)} is not what is drawn today; run: python tools/{tool}")
                stale += 1
                continue
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"drawn: {path.relative_to(COURSE)}")
    return 1 if stale else 0
