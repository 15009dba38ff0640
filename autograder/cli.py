"""The `autograde` command. Starts light: what a command needs is imported inside it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autograder import __version__, instructor_cli, learner_cli
from autograder.cli_parts import course_option, course_root, echo, echo_wrapped, find_exercise, open_course
from autograder.errors import (
    EXIT_FULL_MARKS,
    EXIT_MACHINE,
    EXIT_USAGE,
    AutogradeError,
    UsageError,
    did_you_mean,
)
from autograder.files import check_target, write_text
from autograder.learner import learner_submission
from autograder.learner_cli import EXERCISE, ExerciseName, exercise_names

if TYPE_CHECKING:
    from autograder.course import Exercise
    from autograder.gpu import Gpu
    from autograder.report.model import GradeReport
    from autograder.submission import Submission

HELP = """Grade GPU kernels, on a GPU or on the emulator.

\b
autograde                          where you are and what comes next
autograde EX                       grade an exercise: exercise_05, 05, 5, or all
   --solution | --file PATH        the reference solution, or a notebook or .py elsewhere
   --device auto|cuda|emulated     where the kernel runs
   --seed N                        the inputs of an earlier grade
   --json PATH|-  --html PATH      the report as a file
   --plain  --quick                no colours; fewer cases
autograde hint [EX [LEVEL]]        a hint; higher levels say more
autograde watch [EX]               grade whenever you save
autograde diff EX | restore EX     what changed since it was right; go back to it
autograde timeline EX              the modelled time, and who waits for what
autograde batch SUBMITTED          instructors: grade a class; `class` shows what it got wrong
"""


class _Main(click.Group):
    """`autograde EX ...` means `autograde grade EX ...`, and `--plain` may stand ahead of the command, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = ("--help", "-h", "--version")
        plain = args[:1] == ["--plain"] and args != ["--plain"]
        args = args[1:] if plain else args
        if args and args != ["--plain"] and args[0] not in self.commands and args[0] not in own:
            if len(args) > 1 and args[0].isalpha() and args[0] != "all" and not args[1].startswith("-"):
                guess = did_you_mean(args[0], [name for name in self.commands if name != "grade"])
                raise UsageError(f"there is no command '{args[0]}'{guess}")
            args = ["grade", *args]
        if plain and args and any("--plain" in o.opts for o in self._options(args[0])):
            args = [args[0], "--plain", *args[1:]]
        return super().parse_args(ctx, args)

    def _options(self, command: str) -> list[click.Parameter]:
        return self.commands[command].params if command in self.commands else []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names = [(n, t) for n, t in exercise_names() if n.startswith(incomplete)]
        return [CompletionItem(n, help=t) for n, t in names] + super().shell_complete(ctx, incomplete)


@click.group(
    cls=_Main,
    help=HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="autograde")
@click.option("--plain", is_flag=True, help="ASCII only.")
@click.pass_context
def cli(ctx: click.Context, plain: bool) -> None:
    if ctx.invoked_subcommand is None:
        from autograder.where import show

        show(plain)


@cli.command(hidden=True)
@click.argument("exercise", type=ExerciseName(all_of_them=True))
@click.option("--solution", is_flag=True, help="Grade the reference solution.")
@click.option("--file", "path", type=click.Path(path_type=Path), help="Grade this notebook or .py file.")
@click.option("--device", type=click.Choice(["auto", "cuda", "emulated"]), default="auto", show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Use the inputs of an earlier grade.")
@click.option("--json", "json_path", metavar="PATH|-", help="Write the report as JSON.")
@click.option(
    "--html", "html_path", type=click.Path(path_type=Path), help="Write the report as an HTML page."
)
@click.option("--plain", is_flag=True, help="No colours, ASCII only.")
@click.option("--quick", is_flag=True, help="Fewer cases, for a first look; not recorded.")
@instructor_cli.isolation_option
@course_option
def grade(
    exercise: str,
    solution: bool,
    path: Path | None,
    device: str,
    seed: int | None,
    json_path: str | None,
    html_path: Path | None,
    plain: bool,
    quick: bool,
    isolation: str,
    folder: Path | None,
) -> None:
    """Grade an exercise."""
    from autograder.grade import Settings
    from autograder.grading import grade_with_bar
    from autograder.learner import remember
    from autograder.progress import FOLDER
    from autograder.runner.sandbox import choose

    if solution and path is not None:
        raise UsageError("give either --solution or --file, not both")
    root, course = open_course(folder)
    exercises = course.exercises if exercise == "all" else [find_exercise(course, exercise)]
    if path is not None and exercise == "all":
        raise UsageError("--file needs one exercise, not 'all'")
    gpus = _gpus(device, exercises)
    for option, target in (("--json", json_path), ("--html", html_path)):
        if target is not None and (option, str(target)) != ("--json", "-"):
            check_target(option, str(target))
    choose(isolation)
    reports = []
    for number, (spec, gpu) in enumerate(zip(exercises, gpus, strict=True), 1):
        settings = Settings(
            seed=seed,
            quick=quick,
            gpu=gpu,
            cache=root / FOLDER / "assembly",
            isolation=isolation,
            hidden=(root,),
        )
        where = path or (_solution_path(root, spec) if solution else None)
        submission = _read(root, spec, where, solution)
        label = spec.id if len(exercises) == 1 else f"{spec.id} ({number} of {len(exercises)})"
        report = grade_with_bar(spec, submission, course, settings, label, plain)
        reports.append(report)
        note = ""
        if not (solution or path or quick):  # ahead of the printing, which may end early
            note = remember(root, report, submission.source, submission.answers)
        _present(report, json_path, plain)
        if note:
            click.echo(note, err=True)
    _write_files(root, reports, exercise == "all", json_path, html_path)
    sys.exit(max(report.exit_code for report in reports))


@cli.command("list")
@click.option(
    "--html", "html_path", type=click.Path(path_type=Path), help="Write the list as an HTML page, too."
)
@course_option
def list_exercises(html_path: Path | None, folder: Path | None) -> None:
    """List the exercises and what you reached."""
    from autograder import progress
    from autograder.course_index import load_index

    root = course_root(folder)
    if html_path is not None:
        check_target("--html", str(html_path))
        write_text(html_path, _course_as_html(root, []))
    reached = progress.load(root).reached
    for spec in load_index(root).entries:
        entry = reached.get(spec.id)
        points = f"{entry.best:g}/{spec.total:g}" if entry else f"-/{spec.total:g}"
        mark = "done" if entry and entry.full_marks else ""
        echo_wrapped(f"{spec.id}  {points:>8}  {spec.title}{'  ' + mark if mark else ''}", 4)


@cli.command()
@click.argument("exercise", type=EXERCISE)
@click.option("--solution", is_flag=True, help="Of the reference solution.")
@click.option("--file", "path", type=click.Path(path_type=Path), help="Of this notebook or .py file.")
@click.option("--builder", help="Which kernel, where an exercise has several (default: the last).")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="NAME=N",
    help="A problem size, e.g. --size M=4096 (default: where the grade tells the speed).",
)
@click.option("--clock", type=click.FloatRange(0.1, 10), metavar="GHZ", help="The SM clock.")
@click.option("--from", "first", type=click.FloatRange(0), metavar="US", help="Where the close-up begins.")
@click.option("--to", "last", type=click.FloatRange(0), metavar="US", help="Where the close-up ends.")
@click.option(
    "--html", "html_path", type=click.Path(path_type=Path), help="Write the picture as an HTML page."
)
@click.option("--trace", "trace_path", type=click.Path(path_type=Path), help="Write a trace for Perfetto.")
@click.option("--json", "json_path", metavar="PATH|-", help="Write everything as JSON.")
@click.option("--plain", is_flag=True, help="ASCII only.")
@course_option
def timeline(
    exercise: str,
    solution: bool,
    path: Path | None,
    builder: str | None,
    sizes: tuple[str, ...],
    clock: float | None,
    first: float | None,
    last: float | None,
    html_path: Path | None,
    trace_path: Path | None,
    json_path: str | None,
    plain: bool,
    folder: Path | None,
) -> None:
    """The modelled time of your kernel: which warp waits for what, and when."""
    import json

    from autograder.report.bar import waiting
    from autograder.report.timeline import page, summary, trace
    from autograder.timeline import at_size
    from autograder.timeline import timeline as model

    if solution and path is not None:
        raise UsageError("give either --solution or --file, not both")
    if first is not None and last is not None and first >= last:
        raise UsageError(f"--from {first:g} --to {last:g}: the close-up has to end after it begins")
    if html_path is None and (first is not None or last is not None):
        raise UsageError("--from and --to choose a part of the picture: give --html, too")
    root, course = open_course(folder)
    spec = find_exercise(course, exercise)
    for option, target in (("--html", html_path), ("--trace", trace_path), ("--json", json_path)):
        if target is not None and (option, str(target)) != ("--json", "-"):
            check_target(option, str(target))
    submission = _read(root, spec, path, solution)
    with waiting(f"{spec.id}: modelling the kernel", plain):
        found = model(at_size(spec, _sizes(sizes), builder), submission, course.limits, clock_ghz=clock)
    if json_path == "-":
        click.echo(json.dumps(found.to_json()))
    else:
        for line in summary(found):
            echo_wrapped(line.encode("ascii", "replace").decode() if plain else line, 4)
    for target, text in ((html_path, page), (trace_path, trace)):
        if target is not None:
            write_text(target, page(found, first, last) if text is page else trace(found))
    if json_path not in (None, "-"):
        write_text(Path(str(json_path)), json.dumps(found.to_json()) + "\n")


def _sizes(given: tuple[str, ...]) -> dict[str, int]:
    """`M=4096` -> {"M": 4096}."""
    sizes = {}
    for text in given:
        name, _, value = text.partition("=")
        if not name or not value.isascii() or not value.isdigit() or not value.strip("0"):
            raise UsageError(f"--size {text}: write a name and a positive number, e.g. --size M=4096")
        if len(value) > 10 or int(value) >= 2**31:
            raise UsageError(f"--size {text}: the largest size is {2**31 - 1}")
        sizes[name] = int(value)
    return sizes


@cli.command()
@click.option("--plain", is_flag=True, help="ASCII only.")
def doctor(plain: bool) -> None:
    """Look at this machine: versions, GPU, emulator, isolation."""
    from autograder.doctor import examine
    from autograder.report.bar import waiting

    with waiting("looking at this machine", plain):
        findings = examine()
    for finding in findings:
        plain_mark, mark = ("ok", "✓") if finding.good else ("--", "–") if finding.optional else ("NO", "✗")
        echo(f"{plain_mark if plain else mark} {finding.name}: {finding.text}")
    sys.exit(EXIT_FULL_MARKS if all(f.good or f.optional for f in findings) else EXIT_MACHINE)


for command in (*learner_cli.COMMANDS, *instructor_cli.COMMANDS):
    cli.add_command(command)


# Helpers ----------------------------------------------------------------------------------------


def _gpus(device: Any, exercises: list[Exercise]) -> list[Gpu | None]:
    """The GPU for each exercise, None for the emulator."""
    from autograder.gpu import NoGpu, choose, find_gpu

    found = NoGpu("") if device == "emulated" else find_gpu()
    return [choose(device, exercise, found) for exercise in exercises]


def _read(root: Path, spec: Exercise, where: Path | None, solution: bool) -> Submission:
    """The learner's work, or what lies at `where`."""
    if not solution:
        return learner_submission(root, spec, where)
    from autograder.submission import read_submission

    return read_submission(where or _solution_path(root, spec), spec)


def _solution_path(root: Path, spec: Exercise) -> Path:
    path = root / "solutions" / spec.id / spec.notebook
    if not path.is_file():
        raise UsageError(f"this course folder holds no solution of {spec.id} ({path})")
    return path


def _present(report: GradeReport, json_path: str | None, plain: bool) -> None:
    if json_path == "-":
        return
    from autograder.report.terminal import make_console, show

    show(report, make_console(plain), plain)


def _write_files(
    root: Path, reports: list[GradeReport], many: bool, json_path: str | None, html_path: Path | None
) -> None:
    import json

    if json_path is not None:
        data = [report.model_dump(mode="json") for report in reports]
        text = json.dumps(data if many else data[0], indent=1) + "\n"
        if json_path == "-":
            click.echo(text, nl=False)
        else:
            write_text(Path(json_path), text)
    if html_path is not None:
        from autograder.report.html import page

        write_text(html_path, _course_as_html(root, reports) if many else page(reports[0]))


def _course_as_html(root: Path, reports: list[GradeReport]) -> str:
    """All exercises: with the points of these reports, or, where there are none, with those that were reached."""
    from autograder import progress
    from autograder.course_index import load_index
    from autograder.report.html import course_page

    index, reached = load_index(root), progress.load(root).reached
    graded = {report.exercise: (report.points, report.full_marks) for report in reports}
    best = {name: (entry.best, entry.full_marks) for name, entry in reached.items()}
    rows = []
    for entry in index.entries:
        points, done = (graded if reports else best).get(entry.id, (None, False))
        rows.append((entry.id, entry.title, entry.teaches, points, entry.total, done))
    return course_page(index.title, rows, reports)


def main() -> None:
    """Entry point: every foreseen problem becomes one line and its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the clean-up
    try:
        cli.main(prog_name="autograde", complete_var="_AUTOGRADE_COMPLETE", standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            _fail(f"{error.format_message()} (`autograde --help` shows the commands)", EXIT_USAGE)
        _fail(error.format_message(), error.exit_code)
    except AutogradeError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output left; nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_USAGE)
    except Exception as error:
        if os.environ.get("AUTOGRADE_DEBUG"):
            raise
        _fail(
            f"the grader failed: {type(error).__name__}: {error} (AUTOGRADE_DEBUG=1 shows where)",
            EXIT_MACHINE,
        )


def _fail(message: str, code: int) -> None:
    encoding = sys.stderr.encoding or "ascii"
    line = " ".join(message.split()).encode(encoding, "backslashreplace").decode(encoding)
    click.echo(f"autograde: {line}", err=True)
    sys.exit(code)
