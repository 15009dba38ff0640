"""Views of a report: they show the same facts, and nothing that a submission says can break them."""

from __future__ import annotations

import io
import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.report.html import fragment, page
from autograder.report.model import CheckResult, Evidence, Fault, GradeReport, Location, Source, Verdict
from autograder.report.terminal import make_console, show
from autograder.report.write_schema import SCHEMA, schema_text


def report(
    message: str = "race on A_smem", verdict: Verdict = Verdict.FAIL, points: float = 0
) -> GradeReport:
    place = Location(file="exercise_05.ipynb", cell=6, line=12, text="Tx.copy(D[r, 0:N], row[:])")
    evidence = Evidence(
        kind="finding", code="race.smem", message=message, fix="add a cta_sync", locations=[place]
    )
    check = CheckResult(
        id="synchronization",
        title="Synchronization",
        verdict=verdict,
        points=points,
        max_points=20,
        fault=Fault.YOUR_CODE if verdict is Verdict.FAIL else None,
        summary="1 finding",
        evidence=[evidence],
    )
    return GradeReport(
        exercise="exercise_05",
        title="One tile",
        points=points,
        max_points=20,
        device="emulated sm_100a",
        seed=7,
        source=Source(kind="notebook", name="exercise_05.ipynb", sha256="0" * 64, cell=6),
        checks=[check],
        notes=[Evidence(kind="lint", code="lint.wait", message="no wait::ld")],
        next_step="`autograde hint exercise_05`",
        output=message,
    )


def text_of(shown: GradeReport, plain: bool = False, width: int = 80) -> str:
    stream = io.StringIO()
    show(shown, make_console(plain, stream, width), plain)
    return stream.getvalue()


def test_the_schema_in_the_repository_is_the_models() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "run python -m autograder.report.write_schema"


def test_json_fits_the_schema_and_comes_back() -> None:
    data = json.loads(report().model_dump_json())
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(data, schema)
    assert GradeReport.model_validate(data) == report()
    for change in ({"version": 2}, {"points": "many"}, {"extra": 1}, {"checks": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**data, **change}, schema)


def test_views_show_the_same_facts() -> None:
    facts = [
        "exercise_05",
        "emulated sm_100a",
        "seed 7",
        "Synchronization",
        "race.smem",
        "race on A_smem",
        "notebook cell 6 line 12: Tx.copy(D[r, 0:N], row[:])",
        "add a cta_sync",
        "no wait::ld",
        "autograde hint exercise_05",
    ]
    for view in (text_of(report(), width=100), text_of(report(), plain=True, width=100), page(report())):
        for fact in facts:
            assert fact in view


def test_exit_codes() -> None:
    assert report(verdict=Verdict.PASS, points=20).exit_code == 0
    assert report().exit_code == 1
    broken = report()
    broken.checks[0].fault = Fault.GRADER
    assert broken.exit_code == 3
    broken.checks[0].fault = Fault.MACHINE
    assert broken.exit_code == 3


def test_full_points_without_a_pass_are_no_full_marks() -> None:
    assert not report(verdict=Verdict.ERROR, points=20).full_marks


def test_nothing_is_displayed_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside Jupyter, rich would display what it should write into a stream, and nbgrader reads what is
    displayed.
    """
    import rich.console

    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert "race on A_smem" in text_of(report(), plain=True)
    assert "\x1b" not in text_of(report(), plain=True)


@pytest.mark.parametrize("width", [30, 40, 80, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    for line in text_of(report("a long message " * 20), width=width).splitlines():
        assert len(line) <= width
        assert line == line.rstrip()


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_no_text_breaks_a_view(text: str) -> None:
    shown = report(text)
    plain = text_of(shown, plain=True)
    assert plain.isascii()
    assert all(c.isprintable() or c == "\n" for c in text_of(shown).replace("\x1b", "") if c not in "\x1b")
    html = fragment(shown)
    assert html.count("<li>") == 2
    assert "\x1b[" not in plain


@pytest.mark.parametrize("text", ["[red]x[/red]", "<script>alert(1)</script>", "\x1b[2J", "&lt;", "[/]"])
def test_markup_of_a_submission_stays_text(text: str) -> None:
    shown = text_of(report(text), width=100)
    assert "\x1b[2J" not in shown
    if text.startswith("["):
        assert text in shown
    assert "<script>" not in page(report(text))


def test_one_check_of_the_html() -> None:
    assert "Synchronization" in fragment(report(), "synchronization")
    assert "20 points" in fragment(report())
    assert "20 points" not in fragment(report(), "synchronization")
    assert "race on A_smem" not in fragment(report(), "build")


def test_units_stay_readable_in_plain_text() -> None:
    """Both signs for micro, and the others that reports use, have an ASCII spelling of their own: no question mark."""
    from autograder.report.terminal import _safe

    assert _safe("69.1 µs, 69.1 μs, 2 × 3 ≤ 7 – so", True) == "69.1 us, 69.1 us, 2 x 3 <= 7 - so"
