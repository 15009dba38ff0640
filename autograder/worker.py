"""Grade a running notebook's cell: a JSON request on standard input, the report as JSON on standard output.

The notebook's process starts this module, so that a grade in a notebook is the same isolated grade as on the
command line. Request: {"root": folder of the course or null, "exercise": id, "source": text, "name": file
name, "cell": n or null, "answers": {...}, "seed": n or null, "quick": bool}. Answer: {"report": {...}} or
{"error": message, "exit": code}. With {"do": "timeline", "sizes": {...}} or {"do": "step", "case": id or null, "cluster": n}
it is {"html": fragment, "text": ...}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.errors import EXIT_MACHINE, AutogradeError

if TYPE_CHECKING:
    from autograder.course import Exercise, Limits
    from autograder.submission import Submission


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request. Never raises."""
    try:
        from autograder.course import load_course
        from autograder.gpu import choose, find_gpu
        from autograder.grade import Settings, grade
        from autograder.progress import FOLDER
        from autograder.submission import from_cell, released_kernel

        root = Path(request["root"])
        course = load_course(root)
        exercise = course.find(request["exercise"])
        released = released_kernel(root, exercise)
        submission = from_cell(
            request["source"], request["name"], request["cell"], exercise, request["answers"], released
        )
        if "do" in request:
            return _TASKS[request["do"]](exercise, submission, course.limits, request, root)
        gpu = choose("auto", exercise, find_gpu())
        cache = root / FOLDER / "assembly"
        settings = Settings(
            seed=request["seed"], quick=request["quick"], gpu=gpu, cache=cache, hidden=(root,)
        )
        return {"report": grade(exercise, submission, course.limits, settings).model_dump(mode="json")}
    except AutogradeError as error:
        return {"error": str(error), "exit": error.exit_code}
    except Exception as error:
        return {"error": f"the grader failed: {type(error).__name__}: {error}", "exit": EXIT_MACHINE}


def _timeline(
    exercise: Exercise, submission: Submission, limits: Limits, request: dict[str, Any], root: Path
) -> dict[str, Any]:
    from autograder.report.timeline import page, summary
    from autograder.timeline import at_size, timeline

    found = timeline(at_size(exercise, request["sizes"]), submission, limits)
    body = page(found).partition("<body>")[2].rpartition("</body>")[0]
    return {"html": body, "text": "\n".join(summary(found))}


def _step(
    exercise: Exercise, submission: Submission, limits: Limits, request: dict[str, Any], root: Path
) -> dict[str, Any]:
    from autograder.report.stepping import fragment
    from autograder.stepping import record

    run = record(exercise, submission, limits, request["case"], request["cluster"], (root,))
    text = "\n".join(f"{n}  {step['what']}" for n, step in enumerate(run.steps, 1))
    return {"html": fragment(run), "text": text}


_TASKS = {"timeline": _timeline, "step": _step}


def main() -> None:
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
