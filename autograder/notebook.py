"""What a learner uses in a notebook in the place of a terminal: check, hint, timeline, step, reset.

    from autograder.notebook import check, hint, reset, step, timeline

Every function finds the exercise by the notebook's folder; say `hint("exercise_05")` elsewhere. Each returns something that the
notebook shows; none raises for a foreseen problem. Nothing is loaded from the network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from html import escape
from typing import Any

from autograder.errors import AutogradeError
from autograder.nbgrader_bridge import (
    Score,
    ask_worker_for,
    check,
    current_exercise,
    notebook_request,
    running_course,
)

__all__ = ["check", "hint", "reset", "step", "timeline"]


class Shown:
    """Something for a notebook to show: HTML or Markdown, and text where there is neither."""

    def __init__(self, text: str, html: str = "", markdown: str = "") -> None:
        self.text, self._html, self._markdown = text, html, markdown

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": self.text, "text/html": self._html, "text/markdown": self._markdown}
        return {kind: content for kind, content in bundle.items() if content}


def _said(function: Callable[..., Shown]) -> Callable[..., Shown]:
    """What goes wrong is shown as one sentence."""

    @wraps(function)
    def safe(*arguments: Any, **options: Any) -> Shown:
        try:
            return function(*arguments, **options)
        except AutogradeError as error:
            return _sentence(str(error))
        except Exception as error:
            return _sentence(f"the grader failed: {type(error).__name__}: {error}")

    return safe


def _sentence(text: str) -> Shown:
    from autograder.report.html import notice

    return Shown(text, notice(text))


@_said
def hint(level: int | str | None = None, exercise: str | None = None, *, everything: bool = False) -> Shown:
    """A hint; level 1 points the way, higher levels say more. Without a level it is the highest that you have seen.

    If your last grade lost points at certain TODOs, and the level speaks of these, you see only that, or `everything`.
    """
    from autograder import hints, progress

    if isinstance(level, str):  # hint("exercise_05")
        level, exercise = None, level
    root, course = running_course()
    spec = course.find(exercise or current_exercise(course))
    found = hints.choose(root, spec, level, progress.load(root), everything)
    hints.remember(root, spec, found.level)
    text = found.text
    more = f"\n\nmore: `hint({found.level + 1})`" if found.level < found.levels else ""
    whole = f"\n\nthe whole level: `hint({found.level}, everything=True)`" if found.chosen else ""
    title = f"**{spec.id}, hint {found.level} of {found.levels}**\n\n"
    why = f"For what your last grade lost: {', '.join(found.failing)}.\n\n" if found.chosen else ""
    return Shown(
        f"{spec.id}, hint {found.level} of {found.levels}\n\n{text}",
        markdown=title + why + text + whole + more,
    )


@_said
def reset(exercise: str | None = None) -> Shown:
    """Bring the released notebook back on disk; what you had is kept under .autograde/kept."""
    from autograder.reset import reset_exercise

    root, course = running_course()
    spec = course.find(exercise or current_exercise(course))
    kept = reset_exercise(root, spec)
    if kept is None:
        return _sentence(f"{spec.notebook} is as released; nothing had to be kept")
    return _sentence(
        f"{spec.notebook} is as released again on disk, and what you had saved is kept as {kept}. This page still shows the old text:"
        " do not save it; choose File, Reload Notebook from Disk."
    )


@_said
def timeline(exercise: str | None = None, **sizes: int) -> Shown:
    """The modelled time of the kernel in this notebook: who waits for what, as a picture. `timeline(M=4096)` for other sizes."""
    answer = ask_worker_for(notebook_request(exercise) | {"do": "timeline", "sizes": sizes})
    if isinstance(answer, Score):
        return Shown(str(answer), answer._repr_html_())
    style = "<style>.ag-timeline svg text { fill: currentColor; font: 11px sans-serif }</style>"
    html = f'{style}<section class="ag-timeline" aria-label="Modelled timeline" style="overflow-x: auto">{answer["html"]}</section>'
    return Shown(answer["text"], html)


@_said
def step(exercise: str | None = None, case: str | None = None, cluster: int = 0) -> Shown:
    """Step through an emulated run of the kernel in this notebook: warps, barriers, SMEM, TMEM, registers, and who waits.

    case: id of a case of course.yaml; the first one by default. cluster: which cluster (CTA) of the grid to look at.
    """
    answer = ask_worker_for(notebook_request(exercise) | {"do": "step", "case": case, "cluster": cluster})
    if isinstance(answer, Score):
        return Shown(str(answer), answer._repr_html_())
    return Shown(answer["text"], answer["html"] or f"<pre>{escape(answer['text'])}</pre>")
