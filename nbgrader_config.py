"""nbgrader configuration of the course: steps, stubs and time limits. Run nbgrader in this folder."""

from pathlib import Path

from nbconvert.preprocessors import ClearMetadataPreprocessor
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    IgnorePattern,
    LimitOutput,
    SaveAutoGrades,
)

from autograder.nbgrader_execute import GradeCells

c = get_config()  # noqa: F821  (nbgrader defines it)

c.CourseDirectory.course_id = "tirx-kernel-course"
c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
# Never released: what instructors read, and what editors leave behind. nbgrader's own defaults come first.
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints",
    "*.pyc",
    "__pycache__",
    "feedback",
    "instructor_notes.md",
    ".DS_Store",
    "*.py",
]

# A solution region may lie inside @T.prim_func, where TIRx parses `pass` but no `raise`.
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\npass"}

# No cell of a student's notebook runs: what it displays would be its points. The kernel cell is read and graded like
# `autograde batch` does it, and the scored cells get their points from there.
c.Autograde.autograde_preprocessors = [
    GradeCells,
    IgnorePattern,
    ClearMetadataPreprocessor,
    LimitOutput,
    SaveAutoGrades,
    AssignLatePenalties,
    CheckCellMetadata,
]

# The grader stops a hanging kernel by itself and says why. The cell must outlive it: when nbgrader's
# own limit strikes first, the whole submission is lost.
c.ExecutePreprocessor.timeout = 600
# A learner may delete a scored cell; it comes back and scores what it scores.
c.OverwriteCells.add_missing_cells = True
# Scored cells end in a number. A warning that some library prints to stderr must not turn it into 0.
c.IgnorePattern.enabled = True
c.IgnorePattern.pattern = r"(?s).*"
# Feedback pages carry their figures inside.
c.HTMLExporter.embed_images = True
