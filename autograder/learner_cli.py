"""The learner's commands of `autograde` beside grading: hint, watch, reset, diff, restore, completion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autograder.cli_parts import course_option, course_root, echo, echo_wrapped, find_exercise, open_course
from autograder.errors import AutogradeError, UsageError

if TYPE_CHECKING:
    from autograder.checkpoints import Checkpoint


class ExerciseName(click.ParamType):  # type: ignore[type-arg]
    """The name of an exercise. It is only looked up when the command runs; the shell completes it."""

    name = "exercise"

    def __init__(self, all_of_them: bool = False) -> None:
        self.all_of_them = all_of_them

    def shell_complete(self, ctx: click.Context, param: Any, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names = exercise_names() + ([("all", "every exercise")] if self.all_of_them else [])
        return [CompletionItem(name, help=title) for name, title in names if name.startswith(incomplete)]


def exercise_names() -> list[tuple[str, str]]:
    """(id, title) of the exercises of the course found from here upwards; none where there is none."""
    from autograder.course_index import load_index

    try:
        return [(entry.id, entry.title) for entry in load_index(course_root(None)).entries]
    except (AutogradeError, OSError):
        return []


EXERCISE = ExerciseName()


@click.command()
@click.argument("exercise", type=EXERCISE, required=False)
@click.argument("level", type=int, required=False)
@click.option(
    "--all", "everything", is_flag=True, help="The whole level, not only what your last grade needs."
)
@course_option
def hint(exercise: str | None, level: int | None, everything: bool, folder: Path | None) -> None:
    """Show a hint. LEVEL 1 points the way, higher levels say more.

    Without LEVEL it is the highest one that you have seen. If your last grade lost points at certain TODOs of the kernel,
    and the level speaks of these, you see only that.
    """
    from autograder import hints, progress

    root, course = open_course(folder)
    spec = find_exercise(course, exercise or _current(root))
    found = hints.choose(root, spec, level, progress.load(root), everything)
    echo(f"{spec.id}, hint {found.level} of {found.levels}\n")
    if found.chosen:
        echo_wrapped(f"for what your last grade lost: {', '.join(found.failing)}", 4)
        echo("")
        for line in found.text.splitlines():
            echo_wrapped(line, hints.indent(line, False))
        echo("")
        echo_wrapped(f"the whole level: autograde hint {spec.id} {found.level} --all", 2)
    else:
        for line, code in hints.lines(found.text):
            echo_wrapped(line, hints.indent(line, code))
    if found.level < found.levels:
        if not found.chosen:
            echo("")
        echo_wrapped(f"more: autograde hint {spec.id} {found.level + 1}", 2)
    hints.remember(root, spec, found.level)


@click.command()
@click.argument("exercise", type=EXERCISE, required=False)
@click.option("--plain", is_flag=True, help="No colours, ASCII only.")
@course_option
def watch(exercise: str | None, plain: bool, folder: Path | None) -> None:
    """Grade on every save: the quick checks at once, then the rest. Ctrl-C ends it.

    Without EXERCISE, whichever exercise you save is graded. On network folders that report no changes, set
    WATCHFILES_FORCE_POLLING=1.
    """
    from autograder.watch import watch as run

    root, course = open_course(folder)
    run(root, course, None if exercise is None else find_exercise(course, exercise), plain)


@click.command()
@click.argument("exercise", type=EXERCISE)
@course_option
def reset(exercise: str, folder: Path | None) -> None:
    """Bring the released notebook back. Your work is kept under .autograde/kept."""
    from autograder.reset import reset_exercise

    root, course = open_course(folder)
    spec = find_exercise(course, exercise)
    kept = reset_exercise(root, spec)
    if kept is not None:
        echo(f"your notebook is kept as {kept}")
    echo(f"{spec.notebook} is as released again")


def _state_options(function: Any) -> Any:
    for option in (
        click.option(
            "--number", type=int, metavar="N", help="A certain state; `restore EX --list` shows them."
        ),
        click.option("--fastest", is_flag=True, help="The fastest right state, not the latest."),
    ):
        function = option(function)
    return function


@click.command()
@click.argument("exercise", type=EXERCISE)
@_state_options
@click.option("--plain", is_flag=True, help="No colours, ASCII only.")
@course_option
def diff(exercise: str, number: int | None, fastest: bool, plain: bool, folder: Path | None) -> None:
    """What changed in your kernel since it was last right (or, with --fastest, last fastest)."""
    from autograder import checkpoints
    from autograder.learner import learner_submission
    from autograder.report.terminal import show_diff

    root, course = open_course(folder)
    spec = find_exercise(course, exercise)
    state = checkpoints.choose(root, spec.id, number, fastest)
    now = learner_submission(root, spec)
    echo_wrapped(_which(state, number), 4)
    if now.source == state.source:
        echo("nothing has changed since")
        return
    show_diff(state.source, now.source, now.name, plain)
    echo("")
    echo_wrapped(f"back to it: autograde restore {spec.id} --number {state.number}", 2)


@click.command()
@click.argument("exercise", type=EXERCISE)
@_state_options
@click.option("--list", "listing", is_flag=True, help="Show what is kept, and change nothing.")
@course_option
def restore(exercise: str, number: int | None, fastest: bool, listing: bool, folder: Path | None) -> None:
    """Put a kept kernel back: the last right one, or the best so far. Your file as it is now is kept under .autograde/kept."""
    from autograder import checkpoints
    from autograder.learner import learner_path

    root, course = open_course(folder)
    spec = find_exercise(course, exercise)
    if listing:
        for state in checkpoints.kept(root, spec.id):
            echo_wrapped(state.spell(), 4)
        return
    state = checkpoints.choose(root, spec.id, number, fastest)
    path = learner_path(root, spec)
    aside = checkpoints.restore(root, path, spec.cells.kernel, spec.id, state)
    echo_wrapped(_which(state, number), 4)
    if aside is None:
        echo_wrapped(f"{path.name} holds exactly this kernel already", 2)
        return
    echo(f"your file as it was is kept as {aside}")
    echo_wrapped(f"{path.name} holds this kernel now; if it is open in an editor, load it again there", 2)


def _which(state: Checkpoint, number: int | None) -> str:
    """The state that a command means; without a number it looks for a right one."""
    if number is None and not state.full_marks:
        return f"no state was right yet; the best so far is checkpoint {state.spell()}"
    return f"checkpoint {state.spell()}"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), required=False)
def completion(shell: str | None) -> None:
    """How your shell completes commands and exercises with the Tab key."""
    shell = shell or Path(os.environ.get("SHELL", "bash")).name
    lines = {
        "bash": ('eval "$(_AUTOGRADE_COMPLETE=bash_source autograde)"', "~/.bashrc"),
        "zsh": ('eval "$(_AUTOGRADE_COMPLETE=zsh_source autograde)"', "~/.zshrc"),
        "fish": ("_AUTOGRADE_COMPLETE=fish_source autograde | source", "~/.config/fish/config.fish"),
    }
    if shell not in lines:
        raise UsageError(f"no completion for {shell}; bash, zsh and fish have it: autograde completion bash")
    line, file = lines[shell]
    echo_wrapped(f"run this now, or put it at the end of {file} for every new {shell}:", 2)
    echo(f"\n  {line}")


def _current(root: Path) -> str:
    """The exercise that comes next, or the last one when all are done."""
    from autograder.where import next_exercise

    return next_exercise(root).id


COMMANDS = (watch, hint, diff, restore, reset, completion)
