"""The commands of an instructor. What a command needs is imported inside it, as in `autograder.cli`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autograder.errors import EXIT_FULL_MARKS, EXIT_MACHINE, EXIT_POINTS_LOST, SubmissionError, UsageError

if TYPE_CHECKING:
    from autograder.batch.record import Record
    from autograder.batch.replay import Replay
    from autograder.batch.run import Class, Engine
    from autograder.course import Course

_PATH = click.Path(path_type=Path)
_course_option = click.option(
    "--course", "folder", type=_PATH, help="Course folder (default: found from here upwards)."
)
isolation_option = click.option(
    "--isolation",
    type=click.Choice(["auto", "basic", "full"]),
    default="auto",
    show_default=True,
    help="How submissions are kept apart: full needs bubblewrap on Linux, auto takes the best there is.",
)
MOST_CAUSES = 5


@click.command()
@click.argument("submitted", type=_PATH)
@click.option("--out", "results", type=_PATH, help="Results folder (default: `results` beside SUBMITTED).")
@click.option("--exercise", help="Only this one; in a flat folder, files that name none belong to it.")
@click.option(
    "--jobs", type=click.IntRange(1, 1024), help="Processes, or jobs of a cluster (default: one per core)."
)
@click.option("--engine", type=click.Choice(["local", "submitit"]), default="local", show_default=True)
@click.option(
    "--cluster", type=click.Choice(["slurm", "local"]), help="Where submitit runs (default: what it finds)."
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="For submitit, e.g. slurm_partition=cpu."
)
@click.option("--device", type=click.Choice(["emulated", "cuda"]), default="emulated", show_default=True,
              help="cuda: also confirm the speed on the GPU of this machine, one kernel at a time.")  # fmt: skip
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    help="Inputs of the whole class (default: secret, kept in the results).",
)
@click.option("--quick", is_flag=True, help="Fewer cases, for a first look.")
@isolation_option
@click.option("--gradebook", type=_PATH, help="Also write the marks into this gradebook.db of nbgrader.")
@click.option("--progress/--no-progress", default=None, help="Show how far it is (default: on a terminal).")
@click.option("--plain", is_flag=True, help="ASCII only.")
@_course_option
def batch(
    submitted: Path,
    results: Path | None,
    exercise: str | None,
    jobs: int | None,
    engine: str,
    cluster: str | None,
    settings: tuple[str, ...],
    device: str,
    seed: int | None,
    quick: bool,
    isolation: str,
    gradebook: Path | None,
    progress: bool | None,
    plain: bool,
    folder: Path | None,
) -> None:
    """Grade a class: SUBMITTED is nbgrader's folder of that name, or a flat folder of files.

    Run it again after an interruption, or for late submissions: only what is new is graded.
    """
    from autograder.batch.run import Options, run_batch
    from autograder.runner.sandbox import choose

    choose(isolation)
    root, course = _open_course(folder)
    results = (results or submitted.absolute().parent / "results").absolute()
    if results == submitted.absolute() or submitted.absolute() in results.parents:
        raise UsageError(
            f"--out {results}: results do not belong among the submissions; choose another folder"
        )
    options = Options(
        submitted=submitted.absolute(),
        results=results,
        jobs=jobs or os.cpu_count() or 1,
        seed=seed,
        quick=quick,
        device=device,
        isolation=isolation,
        only=course.find(exercise) if exercise is not None else None,
    )
    run = _engine(engine, results, cluster, settings)
    started = time.monotonic()
    with _Progress(progress if progress is not None else sys.stderr.isatty(), plain) as show:
        found = run_batch(root, course, options, run, show)
    whole = _write_tables(results, course, gradebook)
    _show_class(whole, MOST_CAUSES, plain)
    seconds = time.monotonic() - started
    _echo(
        f"{len(found.rows)} submissions, {found.graded} graded now in {seconds:.0f} s, seed {found.seed}",
        plain,
    )
    before = len(whole.rows) - len(found.rows)
    if before > 0:
        _echo(
            f"the view and the tables also hold {before} results of other exercises, from earlier runs", plain
        )
    for note in found.notes:
        _echo(f"note: {note}", plain)
    _echo(f"results.csv, junit.xml, gradescope/ and class.html are in {results}", plain)
    if found.owed:
        number = len(found.owed)
        _echo(f"{number} not graded; run the command again, `autograde doctor` looks at the machine", plain)
    sys.exit(EXIT_MACHINE if found.owed else EXIT_FULL_MARKS)


@click.command("class")
@click.argument("results", type=_PATH)
@click.option("--html", "html_path", type=_PATH, help="Write the view as an HTML page.")
@click.option("--gradebook", type=_PATH, help="Write the marks into this gradebook.db of nbgrader.")
@click.option("--plain", is_flag=True, help="ASCII only.")
@_course_option
def class_view(
    results: Path, html_path: Path | None, gradebook: Path | None, plain: bool, folder: Path | None
) -> None:
    """What a class got wrong: which check, which cause, how many, one example each. RESULTS is of `batch`."""
    from autograder.batch.class_view import html
    from autograder.batch.run import read_class
    from autograder.files import check_target, write_text

    if html_path is not None:
        check_target("--html", str(html_path))
    _, course = _open_course(folder)
    whole = read_class(results, course)
    if gradebook is not None:
        _gradebook(gradebook, whole)
    if html_path is not None:
        write_text(html_path, html(whole))
    _show_class(whole, 0, plain)


@click.command()
@click.argument("record", type=_PATH)
@click.option("--plain", is_flag=True, help="ASCII only.")
@_course_option
def replay(record: Path, plain: bool, folder: Path | None) -> None:
    """Compute a RECORD of `batch` again in the emulator: it comes out the same, bit for bit, or you see what differs."""
    from autograder.batch import replay as again
    from autograder.batch.record import read_record

    _, course = _open_course(folder)
    kept = read_record(record)
    found = again.replay(kept, course)
    what = f"{kept.exercise}, seed {kept.seed}, {kept.device}"
    for text in found.changed:
        _echo(f"since then: {text}", plain)
    if not found.differences:
        _echo(f"{what}: {_came_out(kept, found)}", plain)
        sys.exit(EXIT_FULL_MARKS)
    for text in found.differences[: again.MOST_DIFFERENCES]:
        _echo(text, plain, 2)
    more = len(found.differences) - again.MOST_DIFFERENCES
    if more > 0:
        _echo(f"... and {more} more", plain, 2)
    why = "see what changed since then" if found.changed else "nothing that is recorded changed since then"
    _echo(f"{what}: {len(found.differences)} differences; {why}", plain)
    sys.exit(EXIT_POINTS_LOST)


def _came_out(record: Record, found: Replay) -> str:
    """What a replay without differences says; the sum of a GPU's grade is nothing that it computed."""
    if not found.not_recomputed:
        return f"the same verdicts, points and evidence ({found.report.points:g} points)"
    checks = [check for check in found.report.checks if check.id not in found.not_recomputed]
    points, most = sum(check.points for check in checks), sum(check.max_points for check in checks)
    return (
        f"the same verdicts, points and evidence in {', '.join(check.id for check in checks)}"
        f" ({points:g} of {most:g} points); not recomputed, only {record.device} can: {', '.join(found.not_recomputed)}"
    )


def _write_tables(results: Path, course: Course, gradebook: Path | None) -> Class:
    from autograder.batch.class_view import html
    from autograder.batch.exports import write_all
    from autograder.batch.run import read_class
    from autograder.files import write_text

    whole = read_class(results, course)
    try:
        write_all(results, whole)
    except OSError as error:
        raise UsageError(f"{results}: cannot be written ({error.strerror or error})") from None
    write_text(results / "class.html", html(whole))
    if gradebook is not None:
        _gradebook(gradebook, whole)
    return whole


def _gradebook(path: Path, whole: Class) -> None:
    from autograder.batch.gradebook import write_gradebook

    click.echo(f"{write_gradebook(path, whole)} submissions written to {path}")


def _engine(name: str, results: Path, cluster: str | None, settings: tuple[str, ...]) -> Engine:
    from autograder.batch.local import run_local

    if name == "local":
        if cluster or settings:
            raise UsageError("--cluster and --set belong to --engine submitit")
        return run_local
    from autograder.batch.cluster import run_submitit

    options: dict[str, Any] = {}
    for text in settings:
        key, _, value = text.partition("=")
        if not key or not value:
            raise UsageError(f"--set {text}: write NAME=VALUE, e.g. slurm_partition=cpu")
        options[key] = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else value

    def run(tasks: Any, jobs: int, seconds: float, done: Any) -> None:
        run_submitit(tasks, jobs, seconds, done, results / "jobs", cluster or "", options)

    return run


class _Progress:
    """A bar on a terminal, else a line every ten seconds; nothing when it is off."""

    def __init__(self, on: bool, plain: bool, what: str = "graded") -> None:
        self._on, self._plain, self._what = on, plain, what
        self._bar: Any = None
        self._started = self._last = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int, owed: int) -> None:
        if not self._on:
            return
        if sys.stderr.isatty() and not self._plain:
            self._draw(done, total, owed)
            return
        now = time.monotonic()
        if done == 0:
            self._started = self._last = now
        elif now - self._last >= 10 or done == total:
            self._last = now
            left = (now - self._started) * (total - done) / done
            rest = f", about {max(1, round(left / 60))} min left" if done < total else ""
            click.echo(f"{done} of {total} {self._what}{_owed(owed)}{rest}", err=True)

    def _draw(self, done: int, total: int, owed: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._bar is None:
            self._bar = Progress(
                TextColumn(self._what),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
            )
            self._bar.start()
        if done == 0 or not self._bar.tasks:
            self._bar.add_task("", total=total)
        self._bar.update(self._bar.tasks[-1].id, completed=done, description=_owed(owed).lstrip(", "))


def _owed(owed: int) -> str:
    return f", {owed} need a look" if owed else ""


def _show_class(whole: Class, most: int, plain: bool) -> None:
    from autograder.batch.class_view import text

    if not whole.rows:
        _echo("no results yet; run `autograde batch` again to go on", plain)
    for indent, line in text(whole, most):
        _echo(line, plain, indent)


def _line(text: str, plain: bool) -> None:
    """Print one line, however long it is, without control characters."""
    from autograder.report.terminal import _safe

    encoding = sys.stdout.encoding or "ascii"
    text = _safe(" ".join(text.split()), plain or not encoding.lower().startswith("utf"))
    click.echo(text.encode(encoding, "replace").decode(encoding))


def _echo(text: str, plain: bool, indent: int = 0) -> None:
    """Print wrapped text without control characters."""
    import shutil
    import textwrap

    from autograder.report.terminal import _safe

    encoding = sys.stdout.encoding or "ascii"
    ascii_only = plain or not encoding.lower().startswith("utf")
    width = max(20, min(shutil.get_terminal_size().columns, 110))
    blank = " " * indent
    for line in textwrap.wrap(
        _safe(text, ascii_only),
        width,
        initial_indent=blank,
        subsequent_indent=blank + "    ",
        break_on_hyphens=False,
    ):
        click.echo(line.encode(encoding, "replace").decode(encoding))


def _open_course(folder: Path | None) -> tuple[Path, Course]:
    from autograder.course import load_course
    from autograder.course_folder import find_course_root

    root = (folder if folder is not None else find_course_root(Path())).absolute()
    return root, load_course(root)


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


@click.command("check-course")
@click.argument("names", nargs=-1, metavar="[EXERCISE]...")
@click.option("--fix", is_flag=True, help="First regenerate releases that are not up to date.")
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes (default: one per core).")
@click.option("--fresh", is_flag=True, help="Use no result of an earlier run.")
@click.option("--progress/--no-progress", default=None, help="Show how far it is (default: on a terminal).")
@click.option("--plain", is_flag=True, help="ASCII only.")
@_course_option
def check_course(
    names: tuple[str, ...],
    fix: bool,
    jobs: int | None,
    fresh: bool,
    progress: bool | None,
    plain: bool,
    folder: Path | None,
) -> None:
    """Prove that the course, or these exercises of it, can be released.

    One line per fault. Exit status: 0 none, 1 some, 2 course.yaml or the command is wrong, 3 the machine failed. What is known
    from an earlier run and has not changed is not examined again.
    """
    from autograder.check_course.run import check_course as examine

    root, course = _open_course(folder)
    exercises = list({e.id: e for e in (course.find(name) for name in names)}.values()) or course.exercises
    started = time.monotonic()
    with _Progress(progress if progress is not None else sys.stderr.isatty(), plain, "examined") as show:
        verdict = examine(root.absolute(), course, exercises, jobs or os.cpu_count() or 1, show, fix, fresh)
    for name in verdict.fixed:
        _echo(f"released exercises/{name} anew", plain)
    for text in dict.fromkeys(note for note in verdict.notes if "not assembled" in note):
        _echo(f"note: {text}", plain)
    for fault in verdict.faults:
        _line(f"{'--' if plain else '✗'} {fault}", plain)
    for text in verdict.owed:
        _line(f"?? {text}", plain)
    seen = ", ".join(f"{count} {_plural(kind, count)}" for kind, count in verdict.looked_at.items())
    seconds = f"{verdict.kept} known, {time.monotonic() - started:.0f} s"
    _echo(f"{len(exercises)} {_plural('exercise', len(exercises))}, {seen} ({seconds})", plain)
    if verdict.owed:
        _echo(
            f"{len(verdict.owed)} not examined; run the command again, `autograde doctor` looks at the machine",
            plain,
        )
        sys.exit(EXIT_MACHINE)
    number = len(verdict.faults)
    _echo(f"{number} {_plural('fault', number)}" if number else "no fault: it can be released", plain)
    sys.exit(EXIT_POINTS_LOST if number else EXIT_FULL_MARKS)


@click.command("new-exercise")
@click.argument("number", type=int)
@click.argument("title")
@_course_option
def new_exercise(number: int, title: str, folder: Path | None) -> None:
    """Begin an exercise: one that works, with a TODO at everything that you have to replace."""
    from autograder.new_exercise import create

    root, course = _open_course(folder)
    for path in create(root, course, number, title):
        click.echo(f"wrote {path}")
    click.echo(
        f"next: `autograde check-course {number}` lists what is to do; docs/authoring.md goes through it"
    )


def _plural(word: str, count: int) -> str:
    return word if count == 1 else "assemblies" if word == "assembly" else word + "s"


def _code_blocks(markdown: str) -> list[str]:
    return [part.partition("\n")[2] for part in markdown.split("```")[1::2]]


COMMANDS = (batch, class_view, replay, similarity, check_course, new_exercise)
