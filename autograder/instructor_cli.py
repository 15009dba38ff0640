"""The commands of an instructor. What a command needs is imported inside it, as in `autograder.cli`."""

from __future__ import annotations

from pathlib import Path

import click

from autograder.errors import SubmissionError, UsageError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--exercise", "wanted", help="Only this exercise.")
@click.option(
    "--least",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Smallest share to list, 0 to 1.",
)
@click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path),
    help="Also write a page with each pair side by side.",
)
@click.option(
    "--course",
    "root",
    type=click.Path(path_type=Path),
    help="Course folder (default: found from here upwards).",
)
def similarity(
    folder: Path, wanted: str | None, least: float, html_path: Path | None, root: Path | None
) -> None:
    """List kernels of a class that are alike. Something to look at, never a verdict; no grade changes."""
    from autograder import similarity as alike
    from autograder.class_folder import find_submissions
    from autograder.course import load_course
    from autograder.course_folder import find_course_root
    from autograder.files import check_target, write_text
    from autograder.submission import read_submission, released_kernel

    if html_path is not None:
        check_target("--html", str(html_path))
    root = root if root is not None else find_course_root(Path())
    course = load_course(root)
    handed_in = find_submissions(folder, course)
    if wanted is not None:
        only = course.find(wanted).id
        handed_in = [h for h in handed_in if h.exercise.id == only]
        if not handed_in:
            raise UsageError(f"{folder}: nobody handed in {only}")
    pages = []
    for exercise in dict.fromkeys(h.exercise.id for h in handed_in):
        spec = course.find(exercise)
        released = released_kernel(root, spec)
        given = [released] if released else []
        previous = root / "exercises" / exercise / "previous_step.md"
        if previous.is_file():
            given += _code_blocks(previous.read_text(encoding="utf-8"))
        kernels = []
        for one in (h for h in handed_in if h.exercise.id == exercise):
            try:
                source = read_submission(one.path, spec, released).source
            except SubmissionError as error:
                kernels.append(alike.Kernel(one.student, "", {}, f"cannot be read ({error})"))
            else:
                kernels.append(alike.read(one.student, source, given))
        found = alike.pairs(kernels, least)
        click.echo(alike.as_text(exercise, kernels, found, least) + "\n")
        pages.append(alike.as_html(exercise, kernels, found, least))
    if html_path is not None:
        write_text(html_path, "\n".join(pages))
        click.echo(f"wrote {html_path}")


def _code_blocks(markdown: str) -> list[str]:
    return [part.partition("\n")[2] for part in markdown.split("```")[1::2]]


COMMANDS = [similarity]
