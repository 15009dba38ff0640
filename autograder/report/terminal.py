"""A GradeReport for the terminal, with rich; `--plain` has no colour and ASCII marks only."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import textwrap
from collections.abc import Iterator
from typing import IO

from rich.console import Console
from rich.text import Text

from autograder.report.model import CheckResult, Evidence, GradeReport, Verdict
from autograder.report.picture import text_lines

_MARKS = {
    Verdict.PASS: ("✓", "ok", "green"),
    Verdict.PARTIAL: ("◐", "part", "yellow"),
    Verdict.FAIL: ("✗", "FAIL", "red"),
    Verdict.ERROR: ("!", "ERROR", "magenta"),
    Verdict.SKIPPED: ("-", "skip", "dim"),
}
MAX_SHOWN = 6


class _Console(Console):
    """Goes on in silence when the reader of a pipe has left, so that a command ends as usual."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def make_console(plain: bool, file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that never fails on a character, and that writes to its stream even inside a notebook."""
    stream = file or sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    return _Console(
        file=stream,
        color_system=None if plain else "auto",
        force_terminal=False if plain else None,
        force_jupyter=False,
        highlight=False,
        width=width,
        emoji=False,
    )


def is_ascii(console: Console, plain: bool) -> bool:
    """Whether only ASCII marks are safe."""
    return plain or not console.encoding.lower().startswith("utf")


def show(report: GradeReport, console: Console, plain: bool = False) -> None:
    """Print the whole report."""
    page = _Page(console, is_ascii(console, plain))
    quick = ", quick" if report.quick else ""
    page.line(f"{report.exercise}  {report.title}", "bold")
    page.line(f"{report.source.name} on {report.device}, seed {report.seed}{quick}", "dim")
    if report.isolation:
        page.line(report.isolation.sentence(), "dim", hang=2)
    for device in dict.fromkeys(report.judged_on.values()):
        checks = [title(report, i) for i, where in report.judged_on.items() if where == device]
        page.line(f"{device}: {', '.join(checks)}", "dim", hang=2)
    page.gap()
    _verdicts(report, page, report.checks)
    for check in report.checks:
        _details(check, page)
    if report.speed:
        page.heading("speed")
        for sentence in report.speed:
            page.line(sentence, indent=4, hang=2)
    if report.notes:
        page.heading("notes that cost no points")
        _some(report.notes, page)
    if report.output.strip() and not report.full_marks:
        page.heading("printed by your code")
        for text in report.output.strip().splitlines()[-20:]:
            page.line(text, "dim", indent=4)
    page.gap()
    _sum(report, page)


def _sum(report: GradeReport, page: _Page) -> None:
    page.line(
        f"{_points(report.points)} of {_points(report.max_points)} points",
        "bold green" if report.full_marks else "bold yellow",
    )
    if report.next_step:
        page.line(f"next: {report.next_step}", hang=2)


def say(text: str, console: Console, plain: bool = False, style: str = "") -> None:
    """One wrapped paragraph."""
    _Page(console, is_ascii(console, plain)).line(text, style, hang=2)
    console.file.flush()


def brief(report: GradeReport, console: Console, plain: bool = False) -> None:
    """The verdicts, and of each check that lost points the first evidence."""
    page = _Page(console, is_ascii(console, plain))
    _verdicts(report, page, report.checks)
    _first_evidence(report.checks, page)
    console.file.flush()


def changed_rows(before: GradeReport, after: GradeReport, console: Console, plain: bool = False) -> None:
    """After `brief(before)`: what the larger grade sees differently, its points, its speed and the next step."""
    page = _Page(console, is_ascii(console, plain))
    old = {check.id: (check.verdict, check.points, check.summary) for check in before.checks}
    new = [
        check for check in after.checks if old.get(check.id) != (check.verdict, check.points, check.summary)
    ]
    if new:
        _verdicts(after, page, new)
    _first_evidence([check for check in new if check.verdict is not Verdict.PASS], page)
    for sentence in after.speed:
        page.line(sentence, indent=2, hang=2)
    _sum(after, page)
    console.file.flush()


def _first_evidence(checks: list[CheckResult], page: _Page) -> None:
    for check in checks:
        if check.verdict is not Verdict.PASS and check.evidence:
            page.line(f"{check.title}:", "bold", indent=2)
            _some(check.evidence[:1], page)


def show_diff(old: str, new: str, name: str, plain: bool = False) -> None:
    """What changed from a kept kernel to the one in the file, with lines of the kernel as the learner counts them."""
    console = make_console(plain)
    page = _Page(console, is_ascii(console, plain))
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), "as it was kept", f"now, {name}", n=2, lineterm=""
    )
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in lines:
        page.spans((_safe(line, page.ascii_only), styles.get(line[:1], "")))


def title(report: GradeReport, check_id: str) -> str:
    """A check's title."""
    found = report.check(check_id)
    return found.title if found else check_id


class _Page:
    """Wrapped lines on a console, without trailing blanks."""

    def __init__(self, console: Console, ascii_only: bool) -> None:
        self.console, self.ascii_only = console, ascii_only
        self.width = max(20, console.width)

    def line(self, text: str, style: str = "", indent: int = 0, hang: int = 0) -> None:
        """A paragraph; continued lines are indented by `hang` more."""
        wrapped = textwrap.wrap(
            _safe(text, self.ascii_only),
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hang),
            break_on_hyphens=False,
        )
        for part in wrapped:
            self.spans((part, style))

    def spans(self, *spans: tuple[str, str]) -> None:
        """One line made of (text, style) pieces that already fit."""
        self.console.print(Text.assemble(*spans), soft_wrap=True)

    def verbatim(self, text: str, indent: int = 0) -> None:
        """One line of a picture: blanks count, so it is cut and not wrapped where it is too long."""
        self.spans(((" " * indent + _safe(text, self.ascii_only))[: self.width], ""))

    def heading(self, text: str) -> None:
        self.gap()
        self.line(text, "bold", indent=2)

    def gap(self) -> None:
        self.console.print()


def _verdicts(report: GradeReport, page: _Page, checks: list[CheckResult]) -> None:
    """One row per check. On a narrow terminal the summary gets lines of its own."""
    if not report.checks:
        return
    marks = {check.id: _MARKS[check.verdict] for check in report.checks}
    shown = {i: word if page.ascii_only else symbol for i, (symbol, word, _) in marks.items()}
    points = {check.id: f"{_points(check.points)}/{_points(check.max_points)}" for check in report.checks}
    mark_width = max(len(text) for text in shown.values())
    title_width = max(len(check.title) for check in report.checks)
    points_width = max(len(text) for text in points.values())
    room = page.width - (2 + mark_width + 1 + title_width + 2 + points_width + 2)
    for check in checks:
        style = marks[check.id][2]
        note = _safe(check.reason or check.summary, page.ascii_only)
        row = [
            (f"  {shown[check.id]:<{mark_width}} ", style),
            (f"{check.title:<{title_width}}  ", ""),
            (f"{points[check.id]:>{points_width}}", style),
        ]
        if room >= 24:
            first, *rest = textwrap.wrap(note, room, break_on_hyphens=False) or [""]
            page.spans(*row, (f"  {first}" if first else "", "dim"))
            for part in rest:
                page.spans((" " * (page.width - room) + part, "dim"))
        else:
            page.spans(*row)
            page.line(note, "dim", indent=4 + mark_width)


def _details(check: CheckResult, page: _Page) -> None:
    if not check.evidence or check.verdict is Verdict.PASS:
        return
    blame = f" (fault: {check.fault})" if check.verdict is Verdict.ERROR else ""
    page.heading(f"{check.title}{blame}")
    _some(check.evidence, page)


def _some(evidence: list[Evidence], page: _Page) -> None:
    for item in evidence[:MAX_SHOWN]:
        for indent, text in evidence_lines(item):
            page.line(text, indent=4 + indent, hang=2)
        if item.pictures:
            for text in text_lines(item.pictures, page.width - 6):
                page.verbatim(text, indent=6)
    if len(evidence) > MAX_SHOWN:
        page.line(f"... and {len(evidence) - MAX_SHOWN} more (--json FILE has all)", "dim", indent=4)


def evidence_lines(evidence: Evidence) -> Iterator[tuple[int, str]]:
    """(indentation, line) of one piece of evidence: the message, its places, the advice."""
    yield 0, f"{evidence.code}: {evidence.message}" if evidence.code else evidence.message
    for location in evidence.locations:
        yield 2, f"at {location.spell()}"
    if evidence.fix:
        yield 2, f"-> {evidence.fix}"


def _points(points: float) -> str:
    return f"{points:g}"


_ASCII = str.maketrans(
    {
        "–": "-",
        "—": "-",
        "→": "->",
        "×": "x",
        "µ": "u",
        "μ": "u",
        "≤": "<=",
        "≥": ">=",
        "·": "*",
        "“": '"',
        "”": '"',
        "’": "'",
    }
)


def _safe(text: str, ascii_only: bool) -> str:
    """ASCII where only that is safe, and never a control sequence that a submission smuggled in."""
    text = "".join(c if c == "\n" or c.isprintable() else " " for c in text)
    return text.translate(_ASCII).encode("ascii", "replace").decode() if ascii_only else text
