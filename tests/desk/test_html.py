"""HTML: one grade, the whole course, and the run to step through. What a screen reader, a printer and an offline machine need."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autograder.checks.whereabouts import heat_map
from autograder.course_index import load_index
from autograder.report import stepping as stepping_view
from autograder.report.html import course_page, fragment, page
from autograder.report.model import CheckResult, Evidence, GradeReport, Location, Source, Verdict
from autograder.stepping import SteppedRun

REPOSITORY = Path(__file__).resolve().parents[2]


class Document(HTMLParser):
    """Tags in order with their attributes, and the text outside of styles and scripts."""

    VOID = frozenset({"meta", "br", "input", "link", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data

    def every(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def a_report(name: str = "exercise_05") -> GradeReport:
    """A grade with every verdict, markup in its texts, and a picture."""
    heat = {"rows": 8, "columns": 8, "shares": [[0.0, 0.5], [1.0, 0.004]]}
    evidence = Evidence(
        kind="mismatch",
        message="<b>first</b> & wrong",
        fix="do `this` <script>alert(1)</script>",
        code="race.x",
        locations=[Location(file="x.ipynb", cell=3, line=7, text="a < b")],
        pictures=heat_map("D", {"heat": heat}),
    )
    checks = [
        CheckResult(
            id=verdict.value,
            title=f"Check {verdict}",
            verdict=verdict,
            points=n,
            max_points=10,
            evidence=[evidence],
        )
        for n, verdict in enumerate(Verdict)
    ]
    return GradeReport(
        exercise=name,
        title="One <tile>",
        points=10,
        max_points=50,
        device="emulated sm_100a",
        seed=1,
        source=Source(kind="notebook", name="x.ipynb", sha256="0" * 64),
        checks=checks,
        notes=[Evidence(kind="note", message="a note")],
        next_step="`autograde hint exercise_05` helps",
        output="printed <i>here</i>",
    )


def check_document(text: str) -> Document:
    """What every page must be: well nested, offline, with landmarks, a language, a title, and headings in order."""
    document = Document(text)
    assert text.startswith("<!DOCTYPE html>") and text.count("<html") == text.count("</html>") == 1
    assert document.every("html")[0]["lang"] == "en" and document.every("main") and document.every("title")
    assert not re.search(r"""(src|href)=["'](?!#)|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", text)
    levels = [int(tag[1]) for tag, _ in document.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels
    assert all(header.get("scope") in ("col", "row") for header in document.every("th"))
    assert len(document.every("caption")) == len(document.every("table"))
    assert "prefers-color-scheme: dark" in text and "@media print" in text
    ids = [a["id"] for _, a in document.tags if "id" in a]
    assert len(ids) == len(set(ids)), "an id names one element"
    anchors = [str(a["href"])[1:] for a in document.every("a") if a.get("href")]
    assert set(anchors) <= set(ids)
    return document


def test_one_grade() -> None:
    report = a_report()
    text = page(report)
    document = check_document(text)
    for verdict in Verdict:
        assert f" {verdict}" in document.text, "a word beside the colour"
    for symbol in "✓◐✗!–":
        assert symbol in document.text, "a shape beside the colour"
    assert "<script>" not in text and "<b>first</b> & wrong" in document.text
    pictures = document.every("svg")
    assert len(pictures) == 4 and all(p.get("role") == "img" for p in pictures)
    assert text.count("<desc>") == 4 and "marked at row 0, column 8: 50" in document.text
    assert "printed <i>here</i>" in document.text


def test_one_check_of_a_grade() -> None:
    text = fragment(a_report(), "fail")
    assert "Check fail" in text and "Check pass" not in text and "of 50 points" not in text
    Document(text)


def test_the_colours_can_be_read() -> None:
    """Every coloured ground under white text has the contrast that WCAG asks of normal text."""
    grounds = set(re.findall(r"background: (#[0-9a-f]{6}); color: #ffffff", fragment(a_report())))
    assert len(grounds) == 5
    for ground in grounds:
        channels = [int(ground[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (luminance + 0.05) >= 4.5, ground


def test_the_whole_course() -> None:
    rows = [
        ("exercise_05", "One <tile>", "things", 10.0, 50.0, False),
        ("exercise_06", "Two", "more", None, 50.0, False),
        ("exercise_07", "Three", "most", 50.0, 50.0, True),
    ]
    text = course_page("The course", rows, [a_report(), a_report("exercise_07")])
    document = check_document(text)
    assert "60 of 150 points, 1 of 3 exercises done" in document.text
    for word in ("done", "begun", "not begun"):
        assert word in document.text
    assert {"exercise_05", "exercise_07"} <= {a.get("id") for _, a in document.tags}


def test_the_commands_write_these_pages(autograde: Any, folder: Path) -> None:
    assert autograde("list", "--html", "course.html").code == 0
    document = check_document((folder / "course.html").read_text(encoding="utf-8"))
    assert load_index(folder).entries[0].title in document.text
    autograde("all", "--html", "all.html")
    document = check_document((folder / "all.html").read_text(encoding="utf-8"))
    assert "still the released stub" in document.text
    assert autograde("list", "--html", "no/such/folder.html").code == 2


# Steps -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The solution of exercise 08 on two K tiles, recorded."""
    from autograder.runner.build_child import _import, _load

    _load(use_once=False)
    import emulator
    from emulator.stepping import Stepper, recording

    notebook = json.loads(
        (REPOSITORY / "solutions/exercise_08/exercise_08.ipynb").read_text(encoding="utf-8")
    )
    (cell,) = (c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == "kernel")
    path = tmp_path_factory.mktemp("kernel") / "kernel.py"
    path.write_text("".join(cell["source"]), encoding="utf-8")
    kernel = emulator.compile(
        _import(str(path))["build_kernel"](M=128, N=128, K=128, dtype="float16"), arch="sm_100a"
    )
    a, b = (np.ones((128, 128), np.float16) for _ in range(2))
    d = np.zeros((128, 128), np.float16)
    stepper = Stepper()
    with recording(stepper):
        kernel.run(a, b, d, check=False, fine=True)
    assert (d == 128).all(), "recording changes nothing"
    recorded = len(stepper.steps)
    kernel.run(a, b, d, check=False, fine=True)
    assert len(stepper.steps) == recorded, "only what runs inside of `recording` is recorded"
    return stepper.steps


def test_what_a_step_shows(steps: list[dict[str, Any]]) -> None:
    told = [step["what"] for step in steps]
    assert (
        "TMA load completes" in told and "tcgen05.mma completes" in told and "warp 0 runs to its end" in told
    )
    assert any("waits for mbarrier full[0], parity 0" in text for text in told)
    load = steps[told.index("TMA load completes")]
    (change,) = load["smem"]
    assert change["name"] == "A_smem" and change["values"][0] == "1" and change["changed"] == 16384
    assert change["blocks"] == list(range(16)), "the first of four stages"
    mma = steps[told.index("tcgen05.mma completes")]
    assert mma["tmem"][0]["written"] == [[0, 127]] * 4 and mma["tmem"][0]["values"][0] == "64"
    barriers = {b["name"]: b for step in steps for b in step["barriers"]}
    assert barriers["full[0]"]["phases"] == 1 and barriers["full[0]"]["parity"] == 1
    waiting = [w for w in load["warps"] if w["state"] == "waits"]
    assert waiting and all(w["waits"] for w in waiting)
    assert any(name == "lane" for step in steps for name, _ in step["registers"])


def test_the_record_is_bounded(steps: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    from emulator import stepping

    assert len(json.dumps(steps)) < stepping.MOST_BYTES
    assert stepping.MOST_STEPS * 4000 < 4e6


def test_the_view(steps: list[dict[str, Any]]) -> None:
    run = SteppedRun("exercise_08", "a <case>", "late", steps, 3, ["found </script>"], ["line 1", "x < y"])
    text = stepping_view.fragment(run)
    document = Document(text)
    assert text.count("</script>") == 2, "data cannot end the script"
    assert "3 more are left out" in document.text and "arrow" in document.text
    assert not re.search(r"https?://|src=|@import", text)
    section = document.every("section")[0]
    assert section["tabindex"] == "0" and section["aria-label"]
    assert any(a.get("aria-live") == "polite" for _, a in document.tags)
    data = re.search(r'data-at="data">(.*?)</script>', text)
    assert data and json.loads(data[1])["steps"] == steps
    assert stepping_view.fragment(run)[:40] != text[:40], "two on one page do not meet"
