"""`check`: the grade inside a notebook, and the number that nbgrader reads from a scored cell.

nbgrader takes the first displayed value of a scored cell as its points, gives 0 for anything on stderr, and
fails the whole submission for a number above the maximum. So `check` returns an object whose repr is the
clamped points, whose HTML form is the report, and it neither raises nor writes to stderr.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.errors import AutogradeError, CourseError, UsageError

if TYPE_CHECKING:
    from autograder.course import Course, Exercise
    from autograder.report.model import GradeReport

_SECONDS = 500.0
_cache: dict[str, GradeReport] = {}


class Score:
    """Points of one check or of the whole exercise. Its repr is the number, its HTML form the report.

    Attributes:
        points: clamped to [0, maximum].
        report: the full GradeReport, None when there is none.
        message: why there is no report, empty otherwise.
    """

    def __init__(
        self, points: float, html: str, text: str, report: GradeReport | None = None, message: str = ""
    ) -> None:
        self.points, self.report, self.message = float(points), report, message
        self._html, self._text = html, text

    def __repr__(self) -> str:
        return repr(self.points)

    def __float__(self) -> float:
        return self.points

    def _repr_html_(self) -> str:
        return self._html

    def __str__(self) -> str:
        return self._text


def check(
    exercise: str | None = None, group: str | None = None, *, quick: bool = False, seed: int | None = None
) -> Score:
    """Grade this notebook's kernel and answers.

    exercise: e.g. "exercise_05"; None: the one whose folder the notebook lies in.
    group: id of one check; its points are then the result's points. None: the whole exercise.
    quick: fewer cases.

    Never raises. What goes wrong is said in the result, which then has 0 points.
    """
    try:
        return _check(exercise, group, quick, seed)
    except AutogradeError as error:
        return _nothing(str(error))
    except Exception as error:
        return _nothing(f"the grader failed: {type(error).__name__}: {error}")


def _check(exercise: str | None, group: str | None, quick: bool, seed: int | None) -> Score:
    from autograder.course import load_course

    root = _course_root()
    course = load_course(root)
    spec = course.find(exercise or current_exercise(course))
    return _with_warning(_check_of(root, spec, group, quick, seed), _strange_place(course, spec))


def _strange_place(course: Course, spec: Exercise) -> str:
    """A warning where the running notebook is another exercise's."""
    try:
        here = current_exercise(course)
    except UsageError:
        return ""
    return "" if here == spec.id else f"this notebook is {here}'s, and this is a grade of {spec.id}"


def _with_warning(score: Score, warning: str) -> Score:
    from autograder.report.html import notice

    if not warning:
        return score
    message = f"{warning}: {score.message}" if score.message else ""
    html, text = notice(warning) + score._repr_html_(), f"{warning}\n{score}"
    return Score(score.points, html, text, score.report, message)


def _check_of(root: Path, spec: Exercise, group: str | None, quick: bool, seed: int | None) -> Score:
    ids = [c.id for c in spec.checks]
    if group is not None and group not in ids:
        return _nothing(f"{spec.id} has no check '{group}'; it has {', '.join(ids)}")
    namespace = _namespace()
    answers, source = _answers(namespace), _builder_source(namespace, spec)
    if source is None:
        if group != "predictions":
            return _nothing(
                f"{spec.builder.name} is not defined yet: run the cell that defines it, then this one again"
            )
        source = ""
    request = {
        "root": str(root),
        "exercise": spec.id,
        "source": source,
        "name": spec.notebook,
        "cell": _cell_number(namespace, source),
        "answers": answers,
        "seed": seed,
        "quick": quick,
    }
    key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    if key not in _cache:
        report = _ask_worker(request)
        if isinstance(report, Score):
            return report
        if report.exit_code == 3:  # not the learner's fault: the next call tries again
            return _score(report, group)
        _cache[key] = report
        if not quick and source:
            _remember(root, spec, report, source, answers)
    return _score(_cache[key], group)


def running_course() -> tuple[Path, Course]:
    """The folder and the course of the running notebook.

    Raises:
        CourseError: there is none, or course.yaml is wrong.
    """
    from autograder.course import load_course

    root = _course_root()
    return root, load_course(root)


def current_exercise(course: Course) -> str:
    """The exercise in whose folder the notebook lies.

    Raises:
        UsageError: it lies in none.
    """
    names = {exercise.id for exercise in course.exercises}
    for folder in (Path.cwd(), *Path.cwd().parents):
        if folder.name in names:
            return folder.name
    raise UsageError(
        'which exercise? This notebook lies in no exercise\'s folder; say it, e.g. "exercise_05"'
    )


def notebook_request(exercise: str | None) -> dict[str, Any]:
    """A request to the worker about the kernel of the running notebook.

    Raises:
        UsageError: no kernel is defined yet.
    """
    root, course = running_course()
    spec = course.find(exercise or current_exercise(course))
    namespace = _namespace()
    source = _builder_source(namespace, spec)
    if source is None:
        raise UsageError(
            f"{spec.builder.name} is not defined yet: run the cell that defines it, then this one again"
        )
    return {
        "root": str(root),
        "exercise": spec.id,
        "source": source,
        "name": spec.notebook,
        "cell": _cell_number(namespace, source),
        "answers": _answers(namespace),
        "seed": None,
        "quick": False,
    }


def _remember(root: Path, spec: Exercise, report: GradeReport, source: str, answers: dict[str, Any]) -> None:
    """Record a grade in a learner's notebook like one in the terminal; not where nbgrader grades."""
    from autograder.learner import remember

    if "NBGRADER_EXECUTION" in os.environ or not (root / "exercises" / spec.id).is_dir():
        return
    remember(root, report, source, answers)


def _score(report: GradeReport, group: str | None) -> Score:
    import io

    from autograder.report.html import fragment
    from autograder.report.terminal import make_console, show

    points, most = report.points, report.max_points
    if group is not None:
        result = report.check(group)
        points, most = (result.points, result.max_points) if result else (0.0, 0.0)
    text = io.StringIO()
    show(report, make_console(plain=True, file=text, width=100), plain=True)
    html = fragment(report, group) + ("" if group else _IN_A_CELL)
    return Score(min(max(points, 0.0), most), html, text.getvalue(), report)


_IN_A_CELL = (
    '<p style="font-family: system-ui, sans-serif; font-size: 0.95em">In a cell of your own:'
    " <code>from autograder.notebook import hint, reset, step, timeline</code>, then <code>hint()</code>,"
    " <code>timeline()</code>, <code>step()</code> to walk through a run, or <code>reset()</code>.</p>"
)


def _nothing(message: str) -> Score:
    from autograder.report.html import notice

    return Score(0.0, notice(message), message, message=message)


def _course_root() -> Path:
    """The course of the notebook's folder; without one, the course that the package carries.

    While nbgrader grades, the topmost course.yaml counts, so that one in a learner's folder changes nothing.
    """
    from autograder.course_folder import COURSE_FILE, find_course_root

    try:
        return find_course_root(Path.cwd(), outermost="NBGRADER_EXECUTION" in os.environ)
    except CourseError:
        package = Path(__file__).resolve().parent
        for folder in (package, package.parent):
            if (folder / COURSE_FILE).is_file():
                return folder
        raise


def _namespace() -> dict[str, Any]:
    """The variables of the running notebook, or of the main module outside of one."""
    shell = _shell()
    return dict(shell.user_ns) if shell is not None else dict(vars(sys.modules["__main__"]))


def _shell() -> Any:
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def _builder_source(namespace: dict[str, Any], spec: Exercise) -> str | None:
    """The text of the cell that defined the builder."""
    builder = namespace.get(spec.builder.name)
    code = getattr(builder, "__code__", None)
    if code is None:
        return None
    lines = linecache.getlines(code.co_filename)
    return "".join(lines) if lines else None


def _cell_number(namespace: dict[str, Any], source: str) -> int | None:
    """The execution count of the cell with this text, as the notebook shows it; None where unknown."""
    history = namespace.get("In")
    if isinstance(history, list):
        for number in range(len(history) - 1, 0, -1):
            if str(history[number]).strip() == source.strip():
                return number
    return None


def _answers(namespace: dict[str, Any]) -> dict[str, Any]:
    """The notebook's `answers`, numbers and text only."""
    answers = namespace.get("answers")
    if not isinstance(answers, dict):
        return {}
    kept: dict[str, Any] = {}
    for name, value in answers.items():
        if isinstance(name, str) and isinstance(value, int | float | str) and len(str(value)) <= 1000:
            kept[name] = value if type(value) in (bool, int, float, str) else str(value)
        elif isinstance(name, str):
            kept[name] = None
    return kept


def _ask_worker(request: dict[str, Any]) -> GradeReport | Score:
    """The report of a grade in a process of its own, or a result that says why there is none."""
    from autograder.report.model import GradeReport

    answer = ask_worker_for(request)
    return answer if isinstance(answer, Score) else GradeReport.model_validate(answer["report"])


def ask_worker_for(request: dict[str, Any]) -> dict[str, Any] | Score:
    """The worker's answer to a request, or a result that says why there is none."""
    package_root = str(Path(__file__).resolve().parents[1])
    code = f"import sys; sys.path.insert(0, {package_root!r}); from autograder.worker import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-X", "utf8", "-c", code],
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return _nothing(f"the grader did not answer within {_SECONDS:g} s")
    except (OSError, ValueError) as error:
        return _nothing(f"the grader failed ({type(error).__name__})")
    if not isinstance(answer, dict) or not {"report", "html"} & answer.keys():
        said = answer.get("error") if isinstance(answer, dict) else None
        return _nothing(str(said or "the grader failed"))
    return answer
