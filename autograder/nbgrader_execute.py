"""nbgrader's autograding without running a student's notebook: the scored cells get what the autograder finds.

nbgrader takes what a scored cell displays as its points, and runs the whole notebook in one process. There a student's cell
may replace `check`, or print the maximum. So this preprocessor stands in for nbgrader's `Execute`: it reads the kernel cell and
the answers as text, grades them as `autograde batch` does, and writes the points of each check as that cell's output. No cell
runs, whatever the notebook says of kernels and outputs.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbgrader.converters.base import NbGraderException
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from nbgrader.utils import is_grade

from autograder.errors import EXIT_MACHINE, AutogradeError, UsageError

if TYPE_CHECKING:
    from autograder.course import Course, Exercise
    from autograder.report.model import GradeReport


class GradeCells(NbGraderPreprocessor):  # type: ignore[misc]
    """Writes the points of the course's exercises; any other assignment is executed by nbgrader as usual."""

    def preprocess(self, nb: Any, resources: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Raises NbGraderException where the grader or the machine failed: nbgrader keeps no score then."""
        from autograder.course import load_course

        root = self._root()
        about = resources["nbgrader"]
        try:
            course = load_course(root)
            exercise = course.find(about["assignment"])
            known = f"{about['notebook']}.ipynb" == exercise.notebook
        except UsageError:
            known = False
        except AutogradeError as error:
            raise NbGraderException(str(error)) from None
        if not known:
            return Execute(parent=self.parent).preprocess(nb, resources)
        try:
            report, problem = self._grade(root, course, exercise, about["student"])
        except AutogradeError as error:
            raise NbGraderException(str(error)) from None
        if report is not None and report.exit_code == EXIT_MACHINE:
            raise NbGraderException(
                f"{about['student']}: the grader or the machine failed; {report.next_step}"
            )
        for number, cell in enumerate(nb.cells, 1):
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
                if is_grade(cell):
                    _score(cell, number, report, problem)
        return nb, resources

    def _root(self) -> Path:
        """The course folder, as nbgrader_config.py names it."""
        from autograder.course_folder import find_course_root

        named = self.config.CourseDirectory.get("root")
        return Path(str(named)) if named else find_course_root(Path())

    def _grade(
        self, root: Path, course: Course, exercise: Exercise, student: str
    ) -> tuple[GradeReport | None, str]:
        """The report, or why there is nothing to grade."""
        from autograder.batch.collect import Handed, with_submissions
        from autograder.grade import Settings, grade
        from autograder.progress import FOLDER

        submitted = root / str(self.config.CourseDirectory.get("submitted_directory") or "submitted")
        path = submitted / student / exercise.id / exercise.notebook
        if any(place.is_symlink() for place in (path, path.parent, path.parent.parent)):
            return None, f"{exercise.notebook} is a link; hand in the file itself"
        [read] = with_submissions([Handed(student, exercise.id, exercise.notebook, path)], root, course)
        if read.submission is None:
            return None, read.problem
        settings = Settings(measure=False, cache=root / FOLDER / "assembly", hidden=(root,))
        return grade(exercise, read.submission, course.limits, settings), ""


def _score(cell: Any, number: int, report: GradeReport | None, problem: str) -> None:
    """The points of the check that a cell scores, as its one output."""
    from autograder.report.html import fragment, notice

    name = str(cell.metadata.nbgrader.grade_id)
    found = report.check(name) if report else None
    points = min(max(found.points, 0.0), float(cell.metadata.nbgrader.points)) if found else 0.0
    if report is not None and found is not None:
        html = fragment(report, name)
    else:
        html = notice(problem or f"the course has no check {escape(name)}")
    data = {"text/plain": repr(points), "text/html": html}
    cell.execution_count = number
    cell.outputs = [nbformat.v4.new_output("execute_result", data=data, execution_count=number)]
