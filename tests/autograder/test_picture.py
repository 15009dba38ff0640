"""Pictures in a report: valid data, well-formed SVG that stays inside of its own frame, and text that lines up."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autograder.report.html import fragment
from autograder.report.model import CheckResult, Evidence, GradeReport, Grid, Source, Verdict
from autograder.report.picture import TEXT_COLUMNS, TEXT_ROWS, svg, text_lines
from autograder.report.terminal import make_console, show

SVG = "{http://www.w3.org/2000/svg}"


def numbered(rows: int, columns: int, title: str = "yours", marked: tuple[tuple[int, int], ...] = ()) -> Grid:
    return Grid(
        title=title,
        cells=[[f"{i * columns + j}" for j in range(columns)] for i in range(rows)],
        colours=[[j % 20 for j in range(columns)] for _ in range(rows)],
        rows=[f"{i}" for i in range(rows)],
        columns=[f"{j}" for j in range(columns)],
        row_axis="row",
        column_axis="column",
        marked=list(marked),
        note="a note",
    )


def with_pictures(*grids: Grid) -> GradeReport:
    evidence = Evidence(kind="mismatch", message="they differ", pictures=list(grids))
    check = CheckResult(
        id="layouts",
        title="Layouts",
        verdict=Verdict.FAIL,
        points=0,
        max_points=10,
        summary="0 of 1",
        evidence=[evidence],
    )
    return GradeReport(
        exercise="exercise_03",
        title="Layouts",
        points=0,
        max_points=10,
        device="none",
        seed=1,
        source=Source(kind="file", name="k.py", sha256="0" * 64),
        checks=[check],
        notes=[Evidence(kind="note", message="a note with a picture", pictures=[numbered(2, 2, "noted")])],
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells": [["1", "2"], ["3"]]}, "rows of equal length"),
        ({"cells": []}, "1 to 4096 cells"),
        ({"cells": [[""] * 4097]}, "1 to 4096 cells"),
        ({"colours": [[0]]}, "one number per cell"),
        ({"rows": ["only one"]}, "one name each"),
        ({"columns": ["a", "b", "c"]}, "one name each"),
        ({"marked": [(0, 2)]}, "outside"),
        ({"marked": [(-1, 0)]}, "outside"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Grid.model_validate({"title": "t", "cells": [["1", "2"], ["3", "4"]], **change})


@settings(max_examples=40, deadline=None)
@given(
    cells=st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.lists(st.text(max_size=8), min_size=width, max_size=width), min_size=1, max_size=5
        )
    ),
    title=st.text(max_size=20),
)
def test_any_text_gives_well_formed_svg_inside_its_frame(cells: list[list[str]], title: str) -> None:
    image = ET.fromstring(svg([Grid(title=title, cells=cells), numbered(3, 4)]))
    width, height = float(image.attrib["width"]), float(image.attrib["height"])
    for box in image.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert x >= 0 and x + float(box.attrib["width"]) <= width
        assert y >= 0 and y + float(box.attrib["height"]) <= height


def test_svg_shows_every_cell_and_a_frame_per_mark() -> None:
    image = ET.fromstring(svg([numbered(3, 5, marked=((2, 4), (0, 0)))], "the name", "what it shows"))
    texts = [element.text for element in image.iter(f"{SVG}text")]
    assert {str(n) for n in range(15)} <= set(texts)
    assert image.findtext(f"{SVG}title") == "the name" and image.findtext(f"{SVG}desc") == "what it shows"
    assert len(list(image.iter(f"{SVG}rect"))) == 1 + 15 + 2


def test_text_shows_the_same_window_of_both_around_the_first_mark() -> None:
    lines = list(text_lines([numbered(40, 30, "wanted"), numbered(40, 30, "yours", ((37, 20),))], 200))
    assert len(lines) == 2 + TEXT_ROWS + 1
    assert re.search(r" 1130 .*\[1130\]", next(line for line in lines if line.startswith("37")))
    assert lines[1].split() == [str(j) for j in range(16, 16 + TEXT_COLUMNS)] * 2
    narrow = list(text_lines([numbered(40, 30, "wanted"), numbered(40, 30, "yours", ((37, 20),))], 60))
    assert len(narrow) == 2 * len(lines) and max(len(line) for line in narrow) <= 60


def test_every_view_shows_the_picture() -> None:
    report = with_pictures(numbered(3, 3, "wanted"), numbered(3, 3, "yours", ((1, 1),)))
    assert fragment(report).count("<svg") == 2
    assert GradeReport.model_validate_json(report.model_dump_json()) == report
    for plain in (False, True):
        stream = io.StringIO()
        show(report, make_console(plain, stream, 80), plain)
        text = stream.getvalue()
        assert "wanted" in text and "[4]" in text and "noted" in text
        assert max(len(line) for line in text.splitlines()) <= 80
