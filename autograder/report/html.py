"""A GradeReport as HTML: a fragment for notebooks and nbgrader's feedback, a page for `--html`, and a page of the whole course.

Nothing is loaded from anywhere and there is no script. A verdict is a word and a shape before it is a colour. The fragment sets
no background and inherits the colour of text, so that it reads on a light and on a dark ground, in JupyterLab, the classic
notebook and VS Code alike; what has a colour of its own brings its ground along.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from autograder.report import roofline
from autograder.report.model import CheckResult, Evidence, GradeReport, Grid, Measured, ModelledTime, Verdict
from autograder.report.picture import svg

# Symbol and ground under white text; each reaches a contrast of 4.5 to 1 with it.
_CHIPS = {
    Verdict.PASS: ("✓", "#1a7f37"),
    Verdict.PARTIAL: ("◐", "#8a5a00"),
    Verdict.FAIL: ("✗", "#c21d28"),
    Verdict.ERROR: ("!", "#7a3fd0"),
    Verdict.SKIPPED: ("–", "#57606a"),
}
_CELL = "padding: 0.3em 0.8em 0.3em 0; text-align: left; vertical-align: top"
_NUMBER = "padding: 0.3em 0.8em 0.3em 0; text-align: right; vertical-align: top; white-space: nowrap"

_STYLE = """
:root { color-scheme: light dark }
body { font-family: system-ui, sans-serif; line-height: 1.45; max-width: 75em; margin: 0 auto; padding: 1em;
  background: #ffffff; color: #1f2328 }
a { color: #0a58ca } code { font-size: 0.95em } summary { cursor: pointer }
.skip { position: absolute; left: -999px } .skip:focus { position: static }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } a { color: #7db7ff } }
@media print { body { background: #ffffff; color: #000000; max-width: none; font-size: 10pt }
  section, tr, li, svg { break-inside: avoid } details { display: block } .skip, nav { display: none }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact } }
"""


def fragment(report: GradeReport, only: str | None = None, level: int = 3) -> str:
    """The report, or only one check of it, as one <section> with headings from `level` on."""
    checks = [check for check in report.checks if only in (None, check.id)]
    details = "".join(_details(check, level + 1) for check in checks)
    quick = ", quick" if report.quick else ""
    isolation = f"<br>{escape(report.isolation.sentence())}" if report.isolation else ""
    parts = [
        f"<h{level} style='margin: 0.4em 0'>{escape(report.exercise)}: {escape(report.title)}</h{level}>",
        f'<p style="opacity: 0.8; margin: 0.3em 0">{escape(report.source.name)} on {escape(report.device)},'
        f" seed {report.seed}{quick}{isolation}</p>",
    ]
    if not only:
        parts.append(f"<p><strong>{report.points:g} of {report.max_points:g} points</strong></p>")
    parts.append(_table(checks, report))
    parts.append(details)
    if not only:
        parts += [_list("Speed", [f"<li>{escape(s)}</li>" for s in report.speed], level + 1)]
        parts += _rooflines(report)
        parts += [_list("Notes that cost no points", [_evidence(note) for note in report.notes], level + 1)]
        if report.output.strip() and not report.full_marks:
            text = escape("\n".join(report.output.strip().splitlines()[-20:]))
            parts.append(
                f"<h{level + 1}>Printed by your code</h{level + 1}><pre style='overflow-x: auto'>{text}</pre>"
            )
        parts.append(f"<p>Next: {_with_code(report.next_step)}</p>" if report.next_step else "")
    name = escape(
        f"Grade of {report.exercise}" + (f", {checks[0].title}" if only and checks else ""), quote=True
    )
    return (
        f'<section aria-label="{name}" style="font-family: system-ui, sans-serif; font-size: 0.95em; color: inherit">'
        + "".join(parts)
        + "</section>"
    )


def _rooflines(report: GradeReport) -> list[str]:
    """Each timed kernel under the physical roof of its GPU, once."""
    drawn: dict[str, str] = {}
    times: list[Measured | ModelledTime] = [*report.measured, *report.modelled]
    for time in times:
        us, how = (
            (time.kernel_us, "measured") if isinstance(time, Measured) else (time.microseconds, "modelled")
        )
        name = f"{time.builder}({', '.join(f'{k} = {v}' for k, v in time.params.items())}), {how}"
        if time.roof is None or us is None or name in drawn:
            continue
        library = time.reference_us if isinstance(time, Measured) else None
        picture = roofline.svg(roofline.marks(us, time.roof, library), time.roof, how, time.device)
        drawn[name] = (
            f"<figure style='margin: 1em 0'>{picture}<figcaption>{escape(name)} on {escape(time.device)}</figcaption></figure>"
        )
    return list(drawn.values())


def page(report: GradeReport) -> str:
    """A complete HTML document around `fragment`."""
    title = f"{report.exercise}: {report.points:g} of {report.max_points:g} points"
    return _document(title, f"<h1>{escape(title)}</h1>" + fragment(report, level=2))


def course_page(
    title: str,
    rows: Sequence[tuple[str, str, str, float | None, float, bool]],
    reports: Sequence[GradeReport] = (),
) -> str:
    """The whole course as one document: a table of the exercises, then the reports.

    rows: (id, title, what one learns, points or None where nothing was graded, maximum, whether it is done).
    """
    graded = {report.exercise for report in reports}
    body = []
    for name, heading, teaches, points, most, done in rows:
        verdict = Verdict.PASS if done else Verdict.SKIPPED if points is None else Verdict.PARTIAL
        word = "done" if done else "not begun" if points is None else "begun"
        link = f'<a href="#{escape(name)}">{escape(name)}</a>' if name in graded else escape(name)
        reached = "–" if points is None else f"{points:g}"
        body.append(
            f'<tr><th scope="row" style="{_CELL}; font-weight: normal">{link}</th><td style="{_CELL}">{escape(heading)}</td>'
            f'<td style="{_CELL}">{_chip(verdict, word)}</td><td style="{_NUMBER}">{reached} / {most:g}</td>'
            f'<td style="{_CELL}">{escape(teaches)}</td></tr>'
        )
    total = sum(points or 0 for *_, points, _, _ in rows)
    most = sum(row[4] for row in rows)
    finished = sum(row[5] for row in rows)
    table = (
        f'<table style="border-collapse: collapse"><caption style="text-align: left">{total:g} of {most:g} points,'
        f" {finished} of {len(rows)} exercises done</caption><thead><tr>"
        + "".join(
            f'<th scope="col" style="{_NUMBER if name == "points" else _CELL}">{name}</th>'
            for name in ("exercise", "title", "state", "points", "you learn")
        )
        + f"</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )
    links = "".join(
        f'<li><a href="#{escape(r.exercise)}">{escape(r.exercise)}: {escape(r.title)}</a></li>'
        for r in reports
    )
    contents = f'<nav aria-label="Reports"><ul>{links}</ul></nav>' if links else ""
    sections = "".join(f'<div id="{escape(r.exercise)}">{fragment(r, level=2)}</div>' for r in reports)
    return _document(title, f"<h1>{escape(title)}</h1>{table}{contents}{sections}")


def notice(text: str) -> str:
    """A message where there is no report."""
    return f'<section aria-label="Message of the grader" style="font-family: system-ui, sans-serif"><p>{_with_code(text)}</p></section>'


def _document(title: str, main: str) -> str:
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f'<body><a class="skip" href="#main">To the report</a><main id="main">{main}</main></body></html>\n'
    )


def _chip(verdict: Verdict, word: str = "") -> str:
    symbol, ground = _CHIPS[verdict]
    return (
        f'<span style="background: {ground}; color: #ffffff; border-radius: 0.3em; padding: 0.05em 0.5em; white-space: nowrap">'
        f'<span aria-hidden="true">{symbol}</span> {word or verdict}</span>'
    )


def _table(checks: Sequence[CheckResult], report: GradeReport) -> str:
    head = "".join(
        f'<th scope="col" style="{_NUMBER if name == "points" else _CELL}">{name}</th>'
        for name in ("check", "verdict", "points", "what was seen")
    )
    caption = f"Checks of {report.exercise}"
    return (
        '<table style="border-collapse: collapse; background: transparent">'
        f'<caption style="text-align: left; opacity: 0.8">{escape(caption)}</caption>'
        f'<thead><tr style="background: transparent">{head}</tr></thead><tbody>{"".join(_row(check) for check in checks)}</tbody></table>'
    )


def _row(check: CheckResult) -> str:
    return (
        '<tr style="background: transparent">'
        f'<th scope="row" style="{_CELL}; font-weight: normal">{escape(check.title)}</th>'
        f'<td style="{_CELL}">{_chip(check.verdict)}</td>'
        f'<td style="{_NUMBER}">{check.points:g} / {check.max_points:g}</td>'
        f'<td style="{_CELL}">{escape(check.reason or check.summary)}</td></tr>'
    )


def _details(check: CheckResult, level: int) -> str:
    if not check.evidence or check.verdict is Verdict.PASS:
        return ""
    blame = f" (fault: {check.fault})" if check.verdict is Verdict.ERROR else ""
    return _list(check.title + blame, [_evidence(evidence) for evidence in check.evidence], level)


def _list(title: str, items: Sequence[str], level: int) -> str:
    if not items:
        return ""
    return f"<h{level} style='margin: 0.8em 0 0.2em'>{escape(title)}</h{level}><ul>{''.join(items)}</ul>"


def _evidence(evidence: Evidence) -> str:
    code = f"<strong>{escape(evidence.code)}</strong>: " if evidence.code else ""
    places = "".join(f"<br>at <code>{escape(place.spell())}</code>" for place in evidence.locations)
    fix = f'<br><span aria-hidden="true">&rarr;</span> {escape(evidence.fix)}' if evidence.fix else ""
    drawn = f'<div style="overflow-x: auto">{_picture(evidence.pictures)}</div>' if evidence.pictures else ""
    return f"<li>{code}{escape(evidence.message)}{places}{fix}{drawn}</li>"


def _picture(grids: list[Grid]) -> str:
    """The grids as one image, with words for who cannot see it."""
    return svg(grids, description="; ".join(_in_words(grid) for grid in grids))


def _in_words(grid: Grid) -> str:
    filled = sum(1 for row in grid.cells for cell in row if cell)
    marked = ""
    if grid.marked:
        i, j = grid.marked[0]
        where = f"row {grid.rows[i] if grid.rows else i}, column {grid.columns[j] if grid.columns else j}"
        marked = f", marked at {where}: {grid.cells[i][j] or 'empty'}"
    return (
        f"{grid.title}: {len(grid.cells)} rows of {len(grid.cells[0])} cells, {filled} of them filled{marked}"
    )


def _with_code(text: str) -> str:
    """`x` as code."""
    parts = escape(text).split("`")
    return "".join(
        f"<code>{part}</code>" if n % 2 and n < len(parts) - 1 else part for n, part in enumerate(parts)
    )
