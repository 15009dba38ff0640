"""Where the course lives. Apart from course.py, whose validation takes a while to import."""

from __future__ import annotations

import os
from pathlib import Path

from autograder.errors import CourseError

COURSE_FILE = "course.yaml"


def find_course_root(start: Path, outermost: bool = False) -> Path:
    """The folder of the nearest course.yaml at or above `start`.

    outermost: take the topmost one instead. Used when nbgrader runs a notebook from a learner's folder, where
        a course.yaml that the learner handed in must not win.

    Raises:
        CourseError: there is none.
    """
    try:
        here = start.absolute()
    except FileNotFoundError:
        raise CourseError(
            "the current folder does not exist any more; change into the course folder"
        ) from None
    roots = [folder for folder in (here, *here.parents) if os.path.isfile(folder / COURSE_FILE)]
    if not roots:
        raise CourseError(
            f"no {COURSE_FILE} in {here} or any folder above it;"
            " change into the course folder, or give --course FOLDER"
        )
    return roots[-1 if outermost else 0]
