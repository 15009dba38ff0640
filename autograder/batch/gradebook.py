"""The class's marks in nbgrader's gradebook, as nbgrader itself would have written them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autograder.batch.run import Class, Row
from autograder.errors import UsageError
from autograder.files import find_own_programs


def write_gradebook(path: Path, whole: Class) -> int:
    """Put the points of every check into the gradebook (an SQLite file); how many submissions that were.

    Assignments that `nbgrader generate_assignment` has put there keep their cells. Results that are owed are left out.

    Raises:
        UsageError: nbgrader is not installed, or the file is no gradebook that fits the course.
    """
    try:
        from nbgrader.api import Gradebook, MissingEntry
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise UsageError(
            "--gradebook: nbgrader is not installed; run: pip install 'tirx-kernel-course[instructor]'"
        ) from None
    if not path.parent.is_dir():
        raise UsageError(f"--gradebook {path}: there is no folder {path.parent}")
    find_own_programs()
    written = 0
    try:
        with Gradebook(f"sqlite:///{path.resolve()}") as gradebook:
            for row in whole.rows:
                if row.points is not None:
                    _write(gradebook, MissingEntry, row)
                    written += 1
    except SQLAlchemyError as error:
        raise UsageError(f"--gradebook {path}: {str(error).splitlines()[0]}") from None
    return written


def _write(gradebook: Any, missing: type[Exception], row: Row) -> None:
    name, notebook = row.exercise.id, Path(row.exercise.notebook).stem
    try:
        gradebook.find_notebook(notebook, name)
    except missing:
        gradebook.update_or_create_assignment(name)
        gradebook.add_notebook(notebook, name)
        for check in row.exercise.checks:
            gradebook.add_grade_cell(str(check.id), notebook, name, max_score=check.points, cell_type="code")
    known = {cell.name for cell in gradebook.find_notebook(notebook, name).grade_cells}
    lacking = [check for check in row.checks if check not in known]
    if lacking:
        raise UsageError(
            f"--gradebook: its {name} has no cell {lacking[0]}; release the exercise again with nbgrader generate_assignment"
        )
    gradebook.update_or_create_student(row.student)
    submission = gradebook.update_or_create_submission(name, row.student)
    [own] = [n for n in submission.notebooks if n.name == notebook]
    for grade in own.grades:
        if grade.name in row.checks:
            grade.auto_score, grade.needs_manual_grade = row.checks[grade.name], False
    gradebook.db.commit()
