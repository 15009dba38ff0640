"""The class's results for other programs: CSV, JUnit XML, and one results.json per submission for Gradescope."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from autograder.batch.run import Class, Row
from autograder.files import write_atomically
from autograder.report.model import CheckResult, Verdict
from autograder.report.terminal import evidence_lines, make_console, show

COLUMNS = ("student", "exercise", "points", "max_points", "status", "device", "seed")
LAST_COLUMNS = ("note", "file", "record")


def write_all(results: Path, whole: Class) -> list[Path]:
    """Write every table into the results folder; their paths.

    Raises:
        OSError: one cannot be written.
    """
    files: dict[str, Callable[[Class], str]] = {"results.csv": csv_text, "junit.xml": junit_xml}
    written = []
    for name, make in files.items():
        write_atomically(results / name, make(whole).encode())
        written.append(results / name)
    folder = results / "gradescope"
    for row in whole.rows:
        target = folder / file_name(row.student) / row.exercise.id / "results.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, (json.dumps(gradescope(row), indent=1) + "\n").encode())
    return [*written, folder]


def csv_text(whole: Class) -> str:
    """One line per student and exercise, one column per check; empty where an exercise has no such check, or owes the marks."""
    checks = list(dict.fromkeys(str(check.id) for row in whole.rows for check in row.exercise.checks))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*COLUMNS, *checks, *LAST_COLUMNS])
    for row in whole.rows:
        points = row.checks
        device = row.confirmed.device if row.confirmed else row.record.device
        first = [
            row.student,
            row.exercise.id,
            _number(row.points),
            f"{row.exercise.total:g}",
            row.status,
            device,
        ]
        last = [row.note, row.name, row.record.file(Path()).name]
        cells = [*first, str(row.record.seed), *(_number(points.get(check)) for check in checks), *last]
        table.writerow([_no_formula(cell) for cell in cells])
    return text.getvalue()


def _number(points: float | None) -> str:
    return "" if points is None else f"{points:g}"


def _no_formula(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula: names of students and files are theirs to choose."""
    risky = cell[:1] in ("=", "+", "-", "@", "\t", "\r") and not re.fullmatch(r"-?\d+(\.\d+)?", cell)
    return "'" + cell if risky else cell


def junit_xml(whole: Class) -> str:
    """A test suite per student and exercise, a test case per check. What the grader owes is an error, not a failure."""
    root = ElementTree.Element("testsuites", name=_xml(whole.title))
    for row in whole.rows:
        suite = ElementTree.SubElement(root, "testsuite", name=_xml(f"{row.student} {row.exercise.id}"))
        found = row.record.report.checks if row.record.report else []
        results = {check.id: check for check in found}
        counts = {"failures": 0, "errors": 0, "skipped": 0}
        for check in row.exercise.checks:
            name = f"{row.exercise.id}.{row.student}"
            case = ElementTree.SubElement(suite, "testcase", classname=_xml(name), name=str(check.id))
            kind, message = _junit(row, results.get(str(check.id)))
            if kind:
                counts["failures" if kind == "failure" else "errors" if kind == "error" else "skipped"] += 1
                ElementTree.SubElement(case, kind, message=_xml(message))
        suite.set("tests", str(len(row.exercise.checks)))
        for name, count in counts.items():
            suite.set(name, str(count))
        suite.set("time", f"{row.record.seconds:.3f}")
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _junit(row: Row, check: CheckResult | None) -> tuple[str, str]:
    """(element of a test case, message); no element where the check holds."""
    if check is None:
        return ("failure" if row.record.final else "error"), row.note or "not graded"
    message = check.reason or check.summary
    match check.verdict:
        case Verdict.PASS:
            return "", ""
        case Verdict.SKIPPED if check.max_points == 0:
            return "skipped", message
        case Verdict.ERROR:
            return "error", message
    return "failure", f"{check.points:g} of {check.max_points:g} points: {message}"


def gradescope(row: Row) -> dict[str, Any]:
    """results.json of Gradescope's autograder: a score and one test per check."""
    if row.points is None:
        return {"output": f"not graded yet: {row.note}", "visibility": "visible", "tests": []}
    points, report = row.checks, row.record.report
    found = {check.id: check for check in report.checks} if report else {}
    tests = []
    for check in row.exercise.checks:
        result = found.get(str(check.id))
        test = {
            "name": check.title,
            "score": points[str(check.id)],
            "max_score": check.points,
            "status": "passed" if points[str(check.id)] >= check.points else "failed",
            "output": _words(result) if result else row.note,
            "output_format": "text",
            "visibility": "visible",
        }
        tests.append(test)
    text = io.StringIO()
    if report:
        show(report, make_console(plain=True, file=text, width=100), plain=True)
    output = text.getvalue() if report else row.note
    if row.status == "provisional":
        output += "\nThese marks are provisional: the speed is confirmed on a GPU later.\n"
    return {
        "score": row.points,
        "output": output,
        "output_format": "text",
        "visibility": "visible",
        "tests": tests,
    }


def _words(check: CheckResult) -> str:
    lines = [check.reason or check.summary]
    for evidence in check.evidence[:3]:
        lines += [" " * indent + text for indent, text in evidence_lines(evidence)]
    return "\n".join(filter(None, lines))


def file_name(student: str) -> str:
    """A student's name as the name of one folder."""
    safe = re.sub(r"[/\\\0]", "_", student)
    return safe if safe.strip(".") else "_" * len(safe)


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 has no way to write."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
