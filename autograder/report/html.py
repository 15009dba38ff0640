"""A GradeReport as a piece of HTML: for notebooks, for nbgrader's feedback page, and for `--html`."""

from __future__ import annotations

from html import escape

from autograder.report.model import CheckResult, Evidence, GradeReport, Verdict
from autograder.report.picture import svg

_COLOURS = {
    Verdict.PASS: "#1a7f37",
    Verdict.PARTIAL: "#9a6700",
    Verdict.FAIL: "#cf222e",
    Verdict.ERROR: "#8250df",
    Verdict.SKIPPED: "#656d76",
}


def fragment(report: GradeReport, only: str | None = None) -> str:
    """The report, or only one check of it, as one <div>. Carries its own styles and needs no script."""
    checks = [check for check in report.checks if only in (None, check.id)]
    rows = "".join(_row(check) for check in checks)
    details = "".join(_details(check) for check in checks)
    speed = "" if only else "".join(f"<li>{escape(sentence)}</li>" for sentence in report.speed)
    speed = f"<p><b>speed</b></p><ul>{speed}</ul>" if speed else ""
    notes = "" if only else "".join(_evidence(note) for note in report.notes)
    notes = f"<p><b>notes that cost no points</b></p><ul>{notes}</ul>" if notes else ""
    total = "" if only else f"<p><b>{report.points:g} of {report.max_points:g} points</b></p>"
    quick = ", quick" if report.quick else ""
    isolation = f"<br>{escape(report.isolation.sentence())}" if report.isolation else ""
    step = "" if only else f"<p>next: {escape(report.next_step)}</p>"
    return (
        '<div style="font-family: sans-serif; font-size: 0.95em">'
        f"<p><b>{escape(report.exercise)}</b> {escape(report.title)}<br>"
        f'<span style="color: #656d76">{escape(report.source.name)} on {escape(report.device)},'
        f" seed {report.seed}{quick}{isolation}</span></p>"
        f"<table>{rows}</table>{details}{speed}{notes}{total}{step}</div>"
    )


def page(report: GradeReport) -> str:
    """A complete HTML document around `fragment`."""
    title = escape(f"{report.exercise}: {report.points:g} of {report.max_points:g}")
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body>{fragment(report)}</body></html>\n"
    )


def notice(text: str) -> str:
    """A message where there is no report."""
    return f'<div style="font-family: sans-serif"><p>{escape(text)}</p></div>'


def _row(check: CheckResult) -> str:
    colour = _COLOURS[check.verdict]
    return (
        f'<tr><td style="color: {colour}"><b>{check.verdict}</b></td>'
        f'<td style="text-align: left">{escape(check.title)}</td>'
        f"<td>{check.points:g} / {check.max_points:g}</td>"
        f'<td style="text-align: left">{escape(check.reason or check.summary)}</td></tr>'
    )


def _details(check: CheckResult) -> str:
    if not check.evidence or check.verdict is Verdict.PASS:
        return ""
    blame = f" (fault: {check.fault})" if check.verdict is Verdict.ERROR else ""
    items = "".join(_evidence(evidence) for evidence in check.evidence)
    return f"<p><b>{escape(check.title + blame)}</b></p><ul>{items}</ul>"


def _evidence(evidence: Evidence) -> str:
    code = f"<b>{escape(evidence.code)}</b>: " if evidence.code else ""
    places = "".join(f"<br>at <code>{escape(place.spell())}</code>" for place in evidence.locations)
    fix = f"<br>&rarr; {escape(evidence.fix)}" if evidence.fix else ""
    drawn = f'<div style="overflow-x: auto">{svg(evidence.pictures)}</div>' if evidence.pictures else ""
    return f"<li>{code}{escape(evidence.message)}{places}{fix}{drawn}</li>"
