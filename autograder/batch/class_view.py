"""The class by misconception: which check, which named cause, how many, and one example of each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from autograder.batch.run import Class, Row
from autograder.report.model import CheckResult, Evidence, Verdict


@dataclass(frozen=True)
class Group:
    """Students of one exercise who lost points in one check for the same reason.

    `cause` is a finding's code where there is one, otherwise what the check says in words; `evidence` is the example's.
    """

    exercise: str
    check: str
    title: str
    cause: str
    students: tuple[str, ...]
    example: str
    summary: str
    evidence: Evidence | None

    @property
    def words(self) -> str:
        """The example's own message and its first line."""
        text = self.evidence.message if self.evidence else self.summary
        places = self.evidence.locations[:1] if self.evidence else []
        return text + "".join(f" (at {place.spell()})" for place in places)


def groups(whole: Class) -> list[Group]:
    """The largest first, within each exercise and check in course order."""
    found: dict[tuple[str, str, str], list[tuple[Row, CheckResult, Evidence | None]]] = defaultdict(list)
    order: dict[tuple[str, str], int] = {}
    for row in whole.rows:
        for number, spec in enumerate(row.exercise.checks):
            order[row.exercise.id, str(spec.id)] = number
        for check_result, cause, evidence in _causes(row):
            found[row.exercise.id, check_result.id, cause].append((row, check_result, evidence))
    result = []
    for (exercise, check, cause), members in found.items():
        row, shown, evidence = next((m for m in members if m[2] and m[2].locations), members[0])
        students = tuple(dict.fromkeys(member[0].student for member in members))
        summary = shown.reason or shown.summary
        result.append(Group(exercise, check, shown.title, cause, students, row.student, summary, evidence))
    return sorted(result, key=lambda g: (g.exercise, order[g.exercise, g.check], -len(g.students), g.cause))


def _causes(row: Row) -> Iterator[tuple[CheckResult, str, Evidence | None]]:
    """(check, cause, evidence) for each check that lost points to the learner's code; skipped ones follow from others."""
    for check in row.record.report.checks if row.record.final and row.record.report else []:
        if check.verdict not in (Verdict.FAIL, Verdict.PARTIAL):
            continue
        telling = [e for e in check.evidence if e.kind != "note"] or check.evidence
        if not telling:
            yield check, _normal(check.reason or check.summary), None
            continue
        named: dict[str, Evidence] = {}
        for evidence in telling:
            named.setdefault(_cause(evidence), evidence)
        if check.id == "correctness":  # the cases of one kernel share their cause
            named = dict([next(iter(named.items()))])
        for cause, evidence in named.items():
            yield check, cause, evidence


def _cause(evidence: Evidence) -> str:
    if evidence.code:
        return evidence.code
    if evidence.kind == "answer":
        return str(evidence.data.get("question") or evidence.message.split(":")[0])
    if evidence.kind == "mismatch":
        meaning = str(evidence.data.get("meaning") or "")
        return _normal(meaning or evidence.message.split(": ", 1)[-1])
    return _normal(evidence.message)


def _normal(text: str) -> str:
    """Numbers and quoted names aside, equal messages are the same cause."""
    text = re.sub(r"'[^']*'", "'...'", text)
    text = re.sub(r"\[[^\]]*\]", "[...]", text)
    text = re.sub(r"(?<![\w.])-?\d+(\.\d+)?(e[-+]?\d+)?(?![\w.])", "n", text)
    return " ".join(text.split())[:160] or "no reason is given"


@dataclass(frozen=True)
class Summary:
    """Points of one exercise over the class. `points` is sorted; `owed` results are not in it."""

    exercise: str
    title: str
    total: float
    points: tuple[float, ...]
    full: int
    owed: int
    unreadable: int
    stubs: int

    @property
    def median(self) -> float | None:
        n = len(self.points)
        return None if not n else (self.points[(n - 1) // 2] + self.points[n // 2]) / 2


def summaries(whole: Class) -> list[Summary]:
    """One per exercise, in course order."""
    by_exercise: dict[str, list[Row]] = defaultdict(list)
    for row in whole.rows:
        by_exercise[row.exercise.id].append(row)
    result = []
    for name in sorted(by_exercise):
        rows, exercise = by_exercise[name], by_exercise[name][0].exercise
        points = sorted(row.points for row in rows if row.points is not None)
        result.append(
            Summary(
                name,
                exercise.title,
                exercise.total,
                tuple(points),
                full=sum(value >= exercise.total for value in points),
                owed=sum(row.points is None for row in rows),
                unreadable=sum(row.record.submission is None for row in rows),
                stubs=sum(bool(row.record.submission and row.record.submission.untouched) for row in rows),
            )
        )
    return result


def text(whole: Class, most: int = 0) -> Iterator[tuple[int, str]]:
    """(indentation, line) for a terminal. most: causes shown per exercise, 0 for all."""
    shown = groups(whole)
    for summary in summaries(whole):
        yield 0, _headline(summary)
        own = [group for group in shown if group.exercise == summary.exercise and not _of_stub(group)]
        largest = sorted(own, key=lambda g: -len(g.students))[: most or None]
        for group in [g for g in own if g in largest]:
            yield 2, f"{len(group.students):>3} x {group.check}: {group.cause}"
            yield 8, f"{group.example}: {group.words}"
        if len(own) > len(largest):
            more = len(own) - len(largest)
            yield 2, f"... and {more} more cause{'s' * (more > 1)} (autograde class RESULTS shows all)"
    for row in whole.owed:
        yield 0, f"not graded: {row.student}, {row.exercise.id}: {row.note}"
    for row in whole.rows:
        if row.record.submission is None and row.record.problem:
            yield 0, f"unreadable: {row.student}, {row.exercise.id}: {row.note}"
        elif row.remark and row.points is not None:
            yield 0, f"look: {row.student}, {row.exercise.id}: {row.name} {row.remark}"


def _of_stub(group: Group) -> bool:
    return group.cause.endswith("still the released stub")


def _headline(summary: Summary) -> str:
    number = len(summary.points) + summary.owed
    parts = [f"{summary.exercise}  {summary.title}: {number} submission{'s' if number != 1 else ''}"]
    if summary.median is not None:
        parts.append(f"median {summary.median:g} of {summary.total:g} points")
    for count, what in (
        (summary.full, "with full marks"),
        (summary.stubs, "not begun"),
        (summary.unreadable, "unreadable"),
        (summary.owed, "not graded yet"),
    ):
        if count:
            parts.append(f"{count} {what}")
    return ", ".join(parts)


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1f2328; background: #fff; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .3rem .6rem; text-align: left; vertical-align: top;
border-bottom: 1px solid #d1d9e0; } td.n { text-align: right; white-space: nowrap; } code { font-size: .92em; }
.bar { background: #54aeff; height: .6rem; min-width: 2px; } .dim { color: #59636e; } summary { cursor: pointer; }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117; } td, th { border-color: #3d444d; }
.dim { color: #9198a1; } }
"""


def html(whole: Class) -> str:
    """One page that needs no network and no script."""
    parts = [f"<h1>{escape(whole.title)}</h1>"]
    found = groups(whole)
    for summary in summaries(whole):
        number = len(summary.points) + summary.owed
        parts.append(f"<h2>{escape(summary.exercise)}</h2><p>{escape(_headline(summary))}</p>")
        rows = "".join(
            _html_row(g, number) for g in found if g.exercise == summary.exercise and not _of_stub(g)
        )
        if rows:
            parts.append(
                f"<table><tr><th>how many</th><th></th><th>check</th><th>cause, and one example</th></tr>{rows}</table>"
            )
    for row in whole.rows:
        if row.points is None or row.record.submission is None:
            kind = "not graded" if row.points is None else "unreadable"
            parts.append(
                f"<p>{kind}: {escape(row.student)}, {escape(row.exercise.id)}: {escape(row.note)}</p>"
            )
        elif row.remark:
            text = f"{row.student}, {row.exercise.id}: {row.name} {row.remark}"
            parts.append(f"<p>look: {escape(text)}</p>")
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(whole.title)}: the class</title><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _html_row(group: Group, number: int) -> str:
    share = 100 * len(group.students) / max(number, 1)
    fix = f"<br>&rarr; {escape(group.evidence.fix)}" if group.evidence and group.evidence.fix else ""
    names = ", ".join(group.students)
    return (
        f'<tr><td class="n">{len(group.students)}</td><td style="width: 8rem"><div class="bar" style="width: {share:.0f}%"></div></td>'
        f"<td>{escape(group.title)}</td><td><b>{escape(group.cause)}</b><br>"
        f'<span class="dim">{escape(group.example)}:</span> {escape(group.words)}{fix}'
        f'<details><summary class="dim">all {len(group.students)}</summary>{escape(names)}</details></td></tr>'
    )
