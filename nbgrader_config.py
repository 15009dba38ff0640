"""nbgrader configuration of the course: its steps, and what this course puts into them. Run nbgrader in this folder."""

from pathlib import Path

from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.preprocessors import Execute, OverwriteCells

from autograder.files import find_own_programs
from autograder.nbgrader_steps import (
    FlatCollector,
    FlatExtractor,
    GradeCells,
    OfflineFeedback,
    PointsOfCourse,
    RestoreCells,
    look_before_grading,
    need_a_course,
    set_aside,
)

need_a_course()

# nbgrader starts alembic by name, after it has removed what it makes anew: it must be found without an active environment, too.
find_own_programs()

c = get_config()  # noqa: F821  (nbgrader defines it)

c.CourseDirectory.course_id = "tirx-kernel-course"
c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
# Never released: what instructors read, and what editors leave behind. nbgrader's own defaults come first.
# A learner may hand in a .py file beside the notebook, so .py files are not in this list; one in solutions/ stops the release.
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints",
    "*.pyc",
    "__pycache__",
    "feedback",
    "instructor_notes.md",
    ".DS_Store",
]

# Points stand in course.yaml and nowhere else.
c.GenerateAssignment.preprocessors = [PointsOfCourse, *GenerateAssignment.preprocessors.default()]
# A solution region may lie inside @T.prim_func, where TIRx parses `pass` but no `raise`.
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\npass"}

# No cell of a learner's notebook runs: what it displays would be its points. The kernel cell is read and graded like
# `autograde batch` does it, in processes of its own, and the scored cells get their points from there. Where `autograde batch` has graded the class already, its records are used.
c.Autograde.autograde_preprocessors = [
    GradeCells if step is Execute else step for step in Autograde.autograde_preprocessors.default()
]
c.Autograde.sanitize_preprocessors = [
    step
    for name in Autograde.sanitize_preprocessors.default()
    for step in ([RestoreCells, name] if name is OverwriteCells else [name])
]
c.Autograde.pre_convert_hook = set_aside
look_before_grading(Autograde)
# A learner may delete a scored cell; it comes back and scores what it scores.
c.OverwriteCells.add_missing_cells = True

# For `nbgrader validate`, which does execute a notebook. The grader stops a hanging kernel by itself and says why; the cell
# must outlive it. A warning that some library prints to stderr must not turn points into 0.
c.ExecutePreprocessor.timeout = 600
c.IgnorePattern.enabled = True
c.IgnorePattern.pattern = r"(?s).*"

# A flat download of a learning platform, see docs/instructors.md.
c.ZipCollectApp.extractor_plugin = FlatExtractor
c.ZipCollectApp.collector_plugin = FlatCollector

# Feedback pages carry their figures inside and load nothing from the network.
c.GenerateFeedback.exporter_class = OfflineFeedback
c.HTMLExporter.embed_images = True
