"""`autograde timeline`: what it prints and writes, and one clear line for everything that is wrong."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autograder.course import Exercise
from autograder.errors import UsageError
from autograder.timeline import at_size

from .conftest import Result

Autograde = Callable[..., Result]
FillIn = Callable[..., Path]


def test_the_solution(autograde: Autograde, folder: Path) -> None:
    result = autograde(
        "timeline",
        "5",
        "--solution",
        "--html",
        "t.html",
        "--trace",
        "t.trace",
        "--json",
        "t.json",
        "--clock",
        "1.5",
    )
    assert result.code == 0, result.err
    assert "modelled on NVIDIA B200 at 1.5 GHz" in result.out
    assert "measured" not in result.out
    page = (folder / "t.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=|https?://|<script", page), (
        "works without a network and without scripts"
    )
    assert page.count("<svg role=") == 3 and "aria-label" in page and "prefers-color-scheme: dark" in page
    assert "wait: " in page and "tensor core" in page
    data = json.loads((folder / "t.json").read_text(encoding="utf-8"))
    assert (data["format"], data["version"]) == ("autograde-timeline", 1)
    assert data["modelled"]["flops"] == 2 * 128 * 128 * 64
    waits = {what for _, _, _, kind, _, what in data["intervals"] if kind == "wait"}
    assert "mma_done" in waits or any("bar" in what for what in waits), waits
    source = json.loads((folder / "solutions/exercise_05/exercise_05.ipynb").read_text(encoding="utf-8"))
    cell = next(c for c in source["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == "kernel")
    text = "".join(cell["source"]).splitlines()
    lines = {line for _, _, _, kind, line, _ in data["intervals"] if kind == "mma"}
    assert lines and all("gemm" in text[line - 1] or "mma" in text[line - 1] for line in lines)
    trace = json.loads((folder / "t.trace").read_text(encoding="utf-8"))
    boxes = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(boxes) == len(data["intervals"]) and all(e["dur"] >= 0 for e in boxes)
    check_trace(trace)
    assert not (folder / ".autograde").exists()


def check_trace(trace: dict[str, Any]) -> None:
    """The rules of the Trace Event Format that Perfetto's importer insists on."""
    assert set(trace) == {"displayTimeUnit", "traceEvents"} and trace["displayTimeUnit"] in ("ms", "ns")
    needed = {
        "X": {"name", "ts", "dur", "tid"},
        "M": {"name", "args"},
        "s": {"id", "ts", "tid"},
        "f": {"id", "ts", "tid"},
    }
    slices: dict[int, list[tuple[float, float]]] = {}
    ends: dict[str, dict[int, tuple[float, str]]] = {"s": {}, "f": {}}
    for event in trace["traceEvents"]:
        assert needed[event["ph"]] <= set(event) and isinstance(event["pid"], int)
        assert all(isinstance(event[k], int | float) and event[k] >= 0 for k in ("ts", "dur") if k in event)
        if event["ph"] == "X":
            slices.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            assert event["id"] not in ends[event["ph"]]
            ends[event["ph"]][event["id"]] = (event["ts"], event["name"])
    assert ends["s"].keys() == ends["f"].keys() and ends["s"], "every arrow has a beginning and an end"
    assert all(ends["s"][n][0] <= ends["f"][n][0] and ends["s"][n][1] == ends["f"][n][1] for n in ends["s"])
    for of_lane in slices.values():
        of_lane.sort()
        assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(of_lane)), (
            "slices of a lane do not overlap"
        )


def test_json_to_the_terminal_is_json(autograde: Autograde) -> None:
    result = autograde("timeline", "5", "--solution", "--json", "-")
    assert result.code == 0 and result.report["exercise"] == "exercise_05"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["5"], "still the released stub"),
        (["5", "--solution", "--size", "M=256"], "M"),
        (["5", "--solution", "--size", "X=4096"], "no parameter X; it has M, N, K"),
        (["5", "--solution", "--size", "4096"], "write a name and a positive number"),
        (["5", "--solution", "--size", "M=-1"], "write a name and a positive number"),
        (["5", "--solution", "--size", "M=000"], "write a name and a positive number"),
        (["5", "--solution", "--size", "M=2147483648"], "the largest size is 2147483647"),
        (["5", "--solution", "--size", "M=" + "9" * 9999], "the largest size is 2147483647"),
        (["5", "--solution", "--builder", "zzz"], "has no builder 'zzz'; it has build_kernel"),
        (
            ["5", "--solution", "--builder", "build_kernl"],
            "has no builder 'build_kernl'; did you mean 'build_kernel'",
        ),
        (["5", "--solution", "--from", "2", "--to", "1"], "has to end after it begins"),
        (["5", "--solution", "--html", "t.html", "--to", "0"], "has to end after it begins"),
        (["5", "--solution", "--html", "t.html", "--from", "999"], "--from 999: the picture ends at"),
        (["5", "--solution", "--from", "1"], "give --html, too"),
        (["5", "--solution", "--to", "1"], "give --html, too"),
        (["5", "--solution", "--html", "exercises/exercise_05/exercise_05.ipynb"], "overwrite a source file"),
        (["5", "--solution", "--file", "x.py"], "not both"),
        (["77"], "there is no exercise '77'"),
    ],
)
def test_one_line_for_what_is_wrong(autograde: Autograde, arguments: list[str], message: str) -> None:
    result = autograde("timeline", *arguments)
    assert result.code == 2
    assert message in result.err and result.err.count("\n") == 1, result.err


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("def build_kernel(M, N, K):\n    return 3\n", "build_kernel"),
        ("def build_kernel(M, N, K:\n", "syntax error"),
        ("raise RuntimeError('no')\n", "no"),
    ],
)
def test_a_kernel_that_does_not_build(
    autograde: Autograde, fill_in: FillIn, kernel: str, message: str
) -> None:
    fill_in(kernel=kernel)
    result = autograde("timeline", "5")
    assert result.code == 2
    assert message in result.err and result.err.count("\n") == 1, result.err


def test_the_default_size_is_where_the_grade_tells_the_speed() -> None:
    from autograder.course import load_course

    from .conftest import REPOSITORY

    course = load_course(REPOSITORY)
    for spec in course.exercises:
        names = {k.builder.name for k in spec.kernels}
        for name in names:
            timed = [t.params for t in spec.timing if spec.timed(t).builder.name == name]
            params = at_size(spec, {}, name).builder.params
            assert not timed or params == {**params, **timed[-1]}
            small = next(k for k in spec.kernels if k.builder.name == name).builder.params
            assert timed or params == small
            size = next(iter(small))
            assert at_size(spec, {size: 7}, name).builder.params == {**small, size: 7}


def test_sizes_belong_to_one_kernel(exercise: Exercise) -> None:
    sized = at_size(exercise, {"K": 128})
    assert sized.builder.params == {**exercise.builder.params, "K": 128}
    assert len(sized.kernels) == 1 and exercise.builder.params["K"] == 64
    with pytest.raises(UsageError, match="--size Q=1"):
        at_size(exercise, {"Q": 1})


def test_barriers_have_the_learners_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """TMABar, TCGen05Bar and MBarrier as well as plain mbarriers, through the process that builds a submission."""
    from autograder.course import load_course
    from autograder.submission import read_submission
    from autograder.timeline import timeline

    from .conftest import REPOSITORY

    course = load_course(REPOSITORY)
    spec = course.find("7")
    path = REPOSITORY / "solutions" / spec.id / spec.notebook
    found = timeline(at_size(spec, {}), read_submission(path, spec, None), course.limits)
    waits = {what for _, what, _ in found.modelled["stalls"]}
    assert {"loaded", "cta_sync"} <= waits and "" not in waits


@pytest.mark.parametrize(
    ("sizes", "grid"), [({"M": 100}, "0 x 3 x 1"), ({"N": 1}, "2 x 0 x 1"), ({"M": 1, "N": 1}, "0 x 0 x 1")]
)
def test_an_empty_grid_is_told(sizes: dict[str, int], grid: str) -> None:
    from autograder.course import load_course
    from autograder.submission import read_submission
    from autograder.timeline import timeline

    from .conftest import REPOSITORY

    course = load_course(REPOSITORY)
    spec = course.find("6")
    submission = read_submission(REPOSITORY / "solutions" / spec.id / spec.notebook, spec, None)
    with pytest.raises(UsageError, match=f"the grid of {grid} CTAs is empty") as raised:
        timeline(at_size(spec, sizes), submission, course.limits)
    assert "report this" not in str(raised.value)


@pytest.mark.parametrize(
    ("first", "last", "close_up"),
    [(None, None, "2.67 to 3.67"), (3.0, None, "3.00 to 4.00"), (7.5, None, "7.50 to 8.00"), (None, 2.0, "0.00 to 2.00"), (6.0, 7.0, "6.00 to 7.00")],
)  # fmt: skip
@pytest.mark.parametrize(
    ("cycles", "heading"), [(8000.0, "The whole run"), (16000.0, "The first 8.0 of 16.0 microseconds")]
)
def test_the_page_says_what_it_shows(
    first: float | None, last: float | None, close_up: str, cycles: float, heading: str
) -> None:
    """Two pictures of 8 microseconds: of all of a run, or of its beginning where the rest goes on like that."""
    from autograder.report.timeline import page
    from autograder.timeline import Timeline

    modelled = {
        "clock_ghz": 1.0, "cycles": cycles, "microseconds": cycles / 1e3 + 2, "device": "B200", "flops": 0, "tflops": 0.0,
        "bytes_loaded": 0, "bytes_stored": 0, "bytes_dram": 0, "busy": {}, "stalls": [], "bottleneck": "",
    }  # fmt: skip
    timeline = Timeline(
        "exercise_05", "", "", {}, modelled, ["CTA 0: warp 0"], [(0, 0.0, 8000.0, "mma", 1, "x")]
    )
    html = page(timeline, first, last)
    assert re.findall("<h2>(.*?)</h2>", html)[:2] == [heading, f"{close_up} microseconds"]
    assert ("goes on at the same pace" in html) == (cycles > 8000) and "2.0 us more for its launch" in html


def test_a_long_run_is_drawn_pixel_by_pixel() -> None:
    """Every lane of the picture reaches as far as its intervals do, however many there are."""
    from autograder.report.timeline import LEFT, MOST_BOXES, WIDTH, svg
    from autograder.timeline import Timeline

    for count in (10, MOST_BOXES, 40 * MOST_BOXES):
        intervals = [(0, float(2 * k), 2.0 * k + 1, "mma" if k % 2 else "wait", 1, "x") for k in range(count)]
        modelled = {"clock_ghz": 1.0}
        drawn = svg(
            Timeline("exercise_05", "", "", {}, modelled, ["CTA 0: warp 0"], intervals), 0.0, 2.0 * count - 1
        )
        boxes = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', drawn)
        assert len(boxes) <= max(MOST_BOXES, WIDTH - LEFT)
        assert max(float(x) + float(w) for x, w in boxes) == pytest.approx(WIDTH, abs=2)


def test_arrows_go_from_the_signal_to_the_warp_that_waited() -> None:
    """In the close-up only, and only as many as can be told apart; they name the barrier and both lanes."""
    from autograder.report.timeline import MOST_ARROWS, page
    from autograder.timeline import Timeline

    modelled = {
        "clock_ghz": 1.0, "cycles": 8000.0, "microseconds": 9.0, "device": "B200", "flops": 0, "tflops": 0.0,
        "bytes_loaded": 0, "bytes_stored": 0, "bytes_dram": 0, "busy": {}, "stalls": [], "bottleneck": "because <of> this",
    }  # fmt: skip
    lanes = ["CTA 0: TMA load", "CTA 0: warp 1"]
    intervals = [
        (0, 0.0, 3000.0, "TMA load", 1, ""),
        (1, 0.0, 3000.0, "wait", 7, "full[0]"),
        (1, 3000.0, 8000.0, "mma", 8, ""),
    ]
    arrow = (0, 2900.0, 1, 3000.0, "full[0]")
    few = page(
        Timeline("exercise_05", "", "", {}, modelled, lanes, intervals, [arrow], ["k.py:7: full.wait"])
    )
    assert (
        few.count("<title>full[0]: CTA 0: TMA load signals at 2.900 us, CTA 0: warp 1 goes on</title>") == 1
    )
    assert "because &lt;of&gt; this<br>at k.py:7: full.wait" in few and "CTA 0: warp 1, MMA" in few
    many = page(Timeline("exercise_05", "", "", {}, modelled, lanes, intervals, [arrow] * (MOST_ARROWS + 1)))
    assert "signals at" not in many and f"{MOST_ARROWS + 1} signals of barriers are left out here" in many


def test_the_roofline_shows_the_kernel_the_solution_and_pytorch() -> None:
    from autograder.report.model import RoofPoint
    from autograder.report.roofline import marks, svg

    gemm = RoofPoint(
        microseconds=60.0, flop=2 * 4096**3, nbytes=3 * 2**25, tflops=2243.0, tb_per_s=7.67, solution=0.5
    )
    drawn = svg(marks(240.0, gemm, 80.0), gemm, "measured", "NVIDIA <B200>")
    assert (
        "your kernel 573 TFLOPS, 25 % of the roof; reference solution 1145 TFLOPS, 50 % of the roof" in drawn
    )
    assert "PyTorch 1718 TFLOPS, 75 % of the roof" in drawn and "measured on NVIDIA &lt;B200&gt;" in drawn
    places = {
        shape: float(y) for shape, y in re.findall(r'<(circle cx|rect x)="[\d.]+" c?y="([\d.]+)"', drawn)
    }
    assert places["circle cx"] > places["rect x"] + 40, (
        "four times the speed of the roof, and logarithmic: lower"
    )
    copy = RoofPoint(microseconds=35.0, flop=0, nbytes=2**28, tflops=2243.0, tb_per_s=7.67)
    bars = svg(marks(70.0, copy), copy, "modelled", "B200")
    assert "your kernel 3.83 TB/s, 50 % of the roof" in bars and "reference" not in bars
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="18"', bars)]
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.01)
