"""A GradeReport for the terminal, with rich; `--plain` renders the same without colour and with ASCII marks only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autograder.report.model import CheckResult, Evidence, GradeReport, Verdict

_MARKS = {
    Verdict.PASS: ("✓", "ok", "green"),
    Verdict.PARTIAL: ("◐", "part", "yellow"),
    Verdict.FAIL: ("✗", "FAIL", "red"),
    Verdict.ERROR: ("!", "ERROR", "magenta"),
    Verdict.SKIPPED: ("-", "skip", "dim"),
}
MAX_SHOWN = 4


def make_console(plain: bool, file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that never fails on a character: a stream that cannot show it gets a replacement."""
    stream = file or sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    return Console(file=stream, no_color=plain or None, highlight=False, soft_wrap=False, width=width, emoji=False)


def is_ascii(console: Console, plain: bool) -> bool:
    """Whether only ASCII marks are safe."""
    return plain or not console.encoding.lower().startswith("utf")


def show(report: GradeReport, console: Console, plain: bool = False) -> None:
    """Print the whole report."""
    ascii_only = is_ascii(console, plain)
    console.print(Text(f"{report.exercise}  {report.title}", style="bold"))
    quick = ", quick" if report.quick else ""
    console.print(Text(f"{report.source.name} on {report.device}, seed {report.seed}{quick}", style="dim"))
    console.print()
    console.print(_table(report, ascii_only))
    for check in report.checks:
        _details(check, console, ascii_only)
    _notes(report, console, ascii_only)
    if report.output.strip() and not report.full_marks:
        _heading(console, "printed by your code")
        console.print(Padding(Text(_safe(report.output.strip(), ascii_only), style="dim"), (0, 0, 0, 4)))
    console.print()
    style = "green" if report.full_marks else "yellow"
    console.print(Text(f"{_points(report.points)} of {_points(report.max_points)} points", style=f"bold {style}"))
    if report.next_step:
        console.print(Text(f"next: {_safe(report.next_step, ascii_only)}"))


def _table(report: GradeReport, ascii_only: bool) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold", ratio=1)
    for check in report.checks:
        symbol, word, style = _MARKS[check.verdict]
        table.add_row(
            Text(f"  {word if ascii_only else symbol}", style=style),
            Text(check.title),
            Text(f"{_points(check.points)}/{_points(check.max_points)}", style=style),
            Text(_safe(check.reason or check.summary, ascii_only), style="dim"),
        )
    return table


def _details(check: CheckResult, console: Console, ascii_only: bool) -> None:
    if not check.evidence or check.verdict is Verdict.PASS:
        return
    blame = f" (fault: {check.fault})" if check.verdict is Verdict.ERROR else ""
    _heading(console, f"{check.title}{blame}")
    for evidence in check.evidence[:MAX_SHOWN]:
        _evidence(evidence, console, ascii_only)
    if len(check.evidence) > MAX_SHOWN:
        console.print(Text(f"    ... and {len(check.evidence) - MAX_SHOWN} more (--json shows all)", style="dim"))


def _notes(report: GradeReport, console: Console, ascii_only: bool) -> None:
    if not report.notes:
        return
    _heading(console, "notes that cost no points")
    for evidence in report.notes[:MAX_SHOWN]:
        _evidence(evidence, console, ascii_only)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(f"  {text}", style="bold"))


def _evidence(evidence: Evidence, console: Console, ascii_only: bool) -> None:
    for text in evidence_lines(evidence):
        console.print(Padding(Text(_safe(text, ascii_only)), (0, 0, 0, 4)))


def evidence_lines(evidence: Evidence) -> Iterator[str]:
    """Message, places and advice of one piece of evidence, one line each."""
    yield f"{evidence.code}: {evidence.message}" if evidence.code else evidence.message
    for location in evidence.locations:
        yield f"  at {location.spell()}"
    if evidence.fix:
        yield f"  -> {evidence.fix}"


def _points(points: float) -> str:
    return f"{points:g}"


_ASCII = str.maketrans({"–": "-", "—": "-", "→": "->", "×": "x", "≤": "<=", "≥": ">=", "“": '"', "”": '"', "’": "'"})


def _safe(text: str, ascii_only: bool) -> str:
    """ASCII where only that is safe, and never a control sequence that a submission smuggled in."""
    text = "".join(c if c == "\n" or c.isprintable() else " " for c in text)
    return text.translate(_ASCII).encode("ascii", "replace").decode() if ascii_only else text
