"""TileLayouts as numbers: evaluated as TIRx does it, compared over the whole domain, and never trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.checks import Outcome, run_checks
from autograder.course import Course, Exercise, Limits, WantedLayout, parse_course
from autograder.diagnosis import Diagnosis, Stopped
from autograder.drawing import apply_everywhere, draw
from autograder.errors import CourseError
from autograder.layouts import Shards, evaluate, read_shards
from autograder.report.model import CheckResult
from autograder.runner.build import receive_prim_funcs, start_builder
from autograder.runner.process import Pump
from autograder.submission import Submission

COURSE = Path(__file__).resolve().parents[2]

# Builds in no time and computes nothing: these tests are about the layouts beside it.
KERNEL = """
from tvm.script import tirx as T
from tvm.tirx.layout import R, S, TCol, TileLayout, TLane, laneid

def build_kernel(M):
    @T.prim_func
    def nothing(A: T.Buffer((M,), "float16"), D: T.Buffer((M,), "float16")):
        T.device_entry()
        T.cta_id([1])
        T.thread_id([32])
    return nothing
"""

TEXT = """
version: 1
title: layouts
exercises:
  - id: exercise_01
    title: layouts
    teaches: layouts
    notebook: exercise_01.ipynb
    cells: {kernel: kernel}
    arch: sm_100a
    layouts:
      - name: plain
        title: row after row
        points: 4
        calls: [{rows: 4, cols: 6}, {rows: 3, cols: 5}]
        shape: {r: rows, c: cols}
        wanted: {m: cols * r + c}
        colour: m // 6
      - name: lanes
        title: a row per lane
        points: 6
        shape: {r: 8, c: 4}
        wanted: {laneid: r, m: c}
        colour: laneid
    builder: {name: build_kernel, params: {M: 32}}
    tensors:
      - {name: A, role: input, dtype: float16, shape: [M]}
      - {name: D, role: output, dtype: float16, shape: [M]}
    oracle: double
    tolerance: {kind: correctly_rounded}
    cases:
      - {id: one, title: one, inputs: normal, quick: true}
    checks:
      - {id: layouts, title: Layouts, points: 10, looks_at: layouts}
"""
RIGHT = {
    "plain": "def plain(rows, cols):\n    return TileLayout(S[(rows, cols) : (cols, 1)])\n",
    "lanes": "def lanes():\n    return TileLayout(S[(8, 4) : (1 @ laneid, 1)])\n",
}


@pytest.fixture(scope="module")
def small() -> Exercise:
    return parse_course(TEXT).exercises[0]


def judged(exercise: Exercise, source: str) -> tuple[CheckResult, Outcome]:
    """The check's verdict about a submission, and what its process sent; nothing is lowered or launched."""
    submission = Submission(name="k.py", source=source)
    outcome = Outcome(Diagnosis(exercise, submission, Limits()))
    with Pump() as pump:
        builder = start_builder(pump, outcome.diagnosis)
        try:
            receive_prim_funcs(pump, builder, outcome.diagnosis, None, outcome.layouts)
        except Stopped as stopped:
            outcome.build_failure = stopped.failure
    (check,) = run_checks(outcome)
    return check, outcome


def graded(small: Exercise, **functions: str) -> CheckResult:
    """The verdict about a submission with these functions in the place of the right ones."""
    return judged(small, KERNEL + "\n".join({**RIGHT, **functions}.values()))[0]


# The rule ---------------------------------------------------------------------------------------

AXES = ["m", "laneid", "TLane", "tid_in_wg"]
ITERS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 40), st.sampled_from(AXES)), min_size=1, max_size=5
)


def tile_layout(shards: Shards) -> Any:
    """The TIRx object with these numbers."""
    from tvm.tirx.layout import Iter, TileLayout

    return TileLayout.from_iters(
        [Iter(*part) for part in shards.shard], [Iter(*part) for part in shards.replica], dict(shards.offset)
    )


@settings(max_examples=60, deadline=None)
@given(iters=ITERS, offsets=st.dictionaries(st.sampled_from(AXES), st.integers(1, 50), max_size=2))
def test_numbers_are_evaluated_as_tirx_does_it(
    iters: list[tuple[int, int, str]], offsets: dict[str, int]
) -> None:
    """Element by element, by TileLayout.apply: an axis that TIRx does not name is 0 everywhere."""
    shards = Shards(tuple(iters), offset=tuple(offsets.items()))
    theirs = apply_everywhere(tile_layout(shards), 1, shards.size)
    ours = evaluate(shards)
    for axis in {*theirs, *ours}:
        nothing = [0] * shards.size
        assert ours.get(axis, nothing) == theirs.get(axis, nothing), axis


def test_the_formulas_of_the_course_are_those_of_the_solution(course: Course) -> None:
    """Every wanted layout, every call, by TIRx's own apply: the solution's functions are equal everywhere."""
    import json

    from emulator.tvm_import import import_tvm

    import_tvm()
    for exercise in course.exercises:
        if not exercise.layouts:
            continue
        text = (COURSE / "solutions" / exercise.id / exercise.notebook).read_text(encoding="utf-8")
        cell = next(c for c in json.loads(text)["cells"] if c["id"] == "kernel")
        scope: dict[str, Any] = {}
        exec("".join(cell["source"]), scope)
        for wanted in exercise.layouts:
            for params in wanted.calls:
                rows, columns = wanted.extents(params).values()
                assert apply_everywhere(scope[wanted.name](**params), rows, columns) == wanted.table(params)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"shard": [[2, 1, "m"]], "replica": []},
        {"shard": "m", "replica": [], "offset": []},
        {"shard": [[2, 1]], "replica": [], "offset": []},
        {"shard": [[2, 1.5, "m"]], "replica": [], "offset": []},
        {"shard": [[True, 1, "m"]], "replica": [], "offset": []},
        {"shard": [[0, 1, "m"]], "replica": [], "offset": []},
        {"shard": [[2, 1 << 50, "m"]], "replica": [], "offset": []},
        {"shard": [[2, 1, "m\nforged line"]], "replica": [], "offset": []},
        {"shard": [[2, 1, 7]], "replica": [], "offset": []},
        {"shard": [[1, 1, "m"]] * 33, "replica": [], "offset": []},
        {"shard": [], "replica": [], "offset": [["m"]]},
    ],
)
def test_what_is_no_layout_is_refused(data: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_shards(data)


def test_a_huge_layout_is_never_expanded() -> None:
    with pytest.raises(ValueError, match="more than"):
        evaluate(Shards(((1 << 30, 1, "m"), (1 << 30, 1, "m"))))


def test_a_layout_of_very_many_parts_costs_nothing_extra(small: Exercise) -> None:
    """A wrong layout is evaluated for each pair of its strides; there are not many pairs in one that a learner writes."""
    from autograder.checks import layouts as module

    counted = []
    shards = Shards(tuple((2, 1 << n, f"axis{n}") for n in range(12)) + ((1, 5, "spare"),) * 20)
    wanted = WantedLayout(
        name="many", title="many", points=0, shape={"r": 64, "c": 64}, wanted={"m": "64 * r + c"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "evaluate", lambda one: counted.append(one) or evaluate(one))
        assert module._Compared(wanted, {}, shards).problem() is not None
    assert len(counted) == 1 and len(evaluate(shards)) == 12


# The transport ----------------------------------------------------------------------------------


def test_only_plain_numbers_leave_the_process_of_the_submission(small: Exercise) -> None:
    _, outcome = judged(small, KERNEL + "".join(RIGHT.values()))
    assert outcome.layouts == [
        {"shard": [[4, 6, "m"], [6, 1, "m"]], "replica": [], "offset": []},
        {"shard": [[3, 5, "m"], [5, 1, "m"]], "replica": [], "offset": []},
        {"shard": [[8, 1, "laneid"], [4, 1, "m"]], "replica": [], "offset": []},
    ]


def test_a_verdict_of_the_submission_does_not_count(small: Exercise) -> None:
    """Whatever a submission does to TIRx or to its own process, its layout is still the numbers it consists of."""
    cheat = """
import tvm.tirx.layout as tirx_layout
tirx_layout.TileLayout.apply = lambda self, *place, **_: {"m": 0}
tirx_layout.TileLayout.__eq__ = lambda self, other: True
class Equal(int):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
def plain(rows, cols):
    return TileLayout(S[(rows, cols) : (Equal(1), Equal(1))])
"""
    check = graded(small, plain=cheat)
    assert check.points == 6 and "differ" in check.evidence[0].message


def test_a_forged_frame_is_the_learners_fault(small: Exercise) -> None:
    forged = """
import os, json, struct
def lanes():
    text = json.dumps({"stage": "layouts", "layouts": ["yes"] * 3}).encode()
    for channel in range(3, 64):
        try:
            os.write(channel, struct.pack("<4sIQ", b"AGF1", len(text), 0) + text)
        except OSError:
            pass
    return TileLayout(S[(8, 4) : (1 @ laneid, 1)])
"""
    check = graded(small, lanes=forged)
    assert check.points == 0 and check.fault == "your code"


# Verdicts ---------------------------------------------------------------------------------------


def test_right_layouts_get_all_points_however_they_are_written(small: Exercise) -> None:
    other = "def plain(rows, cols):\n    return TileLayout(S[(1, rows * cols) : (99, 1)])\n"
    spare = "def lanes():\n    return TileLayout(S[(2, 4, 4) : (4 @ laneid, 1 @ laneid, 1)] + 0 @ TCol + R[1 : 7])\n"
    assert graded(small).points == graded(small, plain=other, lanes=spare).points == 10


WRONG = {
    "TileLayout(S[(8, 4) : (1, 1 @ laneid)])": [
        "Two strides are exchanged: 1 and 1 @ laneid",
        "element (0, 1)",
    ],
    "TileLayout(S[(8, 4) : (4, 1)])": ["Nothing moves along laneid"],
    "TileLayout(S[(8, 4) : (1 @ TLane, 1)])": ["The axis TLane is not asked for, laneid is missing"],
    "TileLayout(S[(8, 4) : (1 @ laneid, 1)] + 3)": ["Every element is off by 3 on m", "32 of 32"],
    "TileLayout(S[(8, 4) : (1 @ laneid, 2)])": ["laneid is right everywhere, m is not"],
    "TileLayout(S[(8, 4) : (2 @ laneid, 2)])": ["element (0, 1) at laneid 0, m 2; wanted is laneid 0, m 1"],
    "TileLayout(S[(4, 8) : (2 @ laneid, 0)])": ["Nothing moves along m"],
    "TileLayout(S[(4, 2, 4) : (1 @ laneid, 0, 1)])": ["(0, 0) and (1, 0) lie in the same place"],
    "TileLayout(S[(8, 8) : (1 @ laneid, 1)])": ["extents multiply to 64, but 8 x 4 is 32 elements"],
    "TileLayout(S[(8, 4) : (1 @ laneid,)])": ["extents multiply to 8"],
    "TileLayout(S[(8, 4) : (1 @ laneid, 1)] + R[2 : 8 @ laneid])": ["R[...] puts every element in 2 places"],
    "[8, 4]": ["lanes returned a list, not a TileLayout"],
    "TileLayout(S[(8, T.Var('n', 'int32')) : (1 @ laneid, 1)])": ["is no number"],
    "1 // 0": ["ZeroDivisionError"],
    "exit(3)": ["sys.exit(3)"],
}


@pytest.fixture(scope="module")
def wrong(small: Exercise) -> Iterator[Callable[[str], CheckResult]]:
    """All wrong layouts in one grade: each as a layout of its own."""
    names = {f"lanes_{n}": text for n, text in enumerate(WRONG)}
    layouts = [small.layouts[1].model_copy(update={"name": name, "points": 1}) for name in names]
    exercise = small.model_copy(update={"layouts": layouts})
    source = KERNEL + "".join(f"def {name}():\n    return {text}\n" for name, text in names.items())
    check, _ = judged(exercise, source)
    assert check.points == 0 and len(check.evidence) == len(names)
    lines = source.split("\n")
    found = {}
    for evidence in check.evidence:
        assert len(evidence.locations) == 1
        line = lines[evidence.locations[0].line - 1]
        name = next(name for name, text in names.items() if line in (f"    return {text}", f"def {name}():"))
        found[names[name]] = evidence.model_copy(update={"message": evidence.message.replace(name, "lanes")})
    yield lambda text: found[text]  # type: ignore[return-value]


@pytest.mark.parametrize(("text", "words"), WRONG.items(), ids=range(len(WRONG)))
def test_a_wrong_layout_is_explained_at_its_line(text: str, words: list[str], wrong: Any) -> None:
    for word in words:
        assert word in wrong(text).message


def test_pictures_stand_beside_each_other_and_mark_what_differs(wrong: Any) -> None:
    one, other = wrong("TileLayout(S[(8, 4) : (1 @ laneid, 2)])").pictures
    assert (one.title, other.title) == ("wanted", "yours")
    assert one.cells[3] == ["T3\nv0", "T3\nv1", "T3\nv2", "T3\nv3"]
    assert other.cells[3] == ["T3\nv0", "T3\nv2", "T3\nv4", "T3\nv6"]
    assert other.marked[0] == (0, 1) and set(other.marked) == set(product(range(8), range(1, 4)))
    assert one.marked == [] and one.colours == other.colours


def test_each_layout_has_points_of_its_own_and_every_call_counts(small: Exercise) -> None:
    fixed = "def plain(rows, cols):\n    return TileLayout(S[(4, 6) : (6, 1)])\n"
    check = graded(small, plain=fixed)
    assert (check.points, check.verdict, check.summary) == (6, "partial", "1 of 2 layouts")
    assert check.evidence[0].message.startswith("plain(rows=3, cols=5) is S[(4, 6) : (6, 1)]")
    assert graded(small, lanes="def lanes(x):\n    return None\n").points == 4


def test_what_is_not_written_yet_is_said_last_and_kindly(small: Exercise) -> None:
    check = graded(small, plain="def plain(rows, cols):\n    pass\n", lanes="def lanes():\n    return 3\n")
    assert [item.kind for item in check.evidence] == ["error", "note"]
    assert "plain: not written yet (row after row)" in check.evidence[1].message
    missing = graded(small, plain="")
    assert "there is no function plain" in missing.evidence[0].message


def test_layouts_count_although_the_kernel_does_not_build(small: Exercise) -> None:
    from autograder.grade import Settings, grade

    broken = RIGHT["lanes"] + "def build_kernel(M):\n    raise RuntimeError('not today')\n"
    submission = Submission(name="k.py", source=KERNEL + RIGHT["plain"] + broken)
    report = grade(small, submission, Limits(), Settings(seed=1))
    assert report.points == 10 and "layouts" in report.model_dump_json()


@pytest.mark.parametrize("text", ["raise ValueError('early')\n", "def plain(:\n", "import os\nos._exit(0)\n"])
def test_nothing_is_graded_when_the_submission_does_not_run(text: str, small: Exercise) -> None:
    check = graded(small, plain=text)
    assert (check.points, check.verdict, check.fault) == (0, "skipped", "your code") and check.reason


# course.yaml ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "{m: cols * r + c}",
            "{m: cols * q + c}",
            "wanted.m: 'cols * q + c' uses 'q'; known here are r, c, rows, cols",
        ),
        ("{m: cols * r + c}", "{m: cols ** r}", "only + - * // % are known"),
        ("{m: cols * r + c}", "{m: 'open(r)'}", "only integers, names and"),
        ("{m: cols * r + c}", "{m: 'r.real'}", "only integers, names and"),
        ("{m: cols * r + c}", "{m: r +}", "is no formula"),
        ("{m: cols * r + c}", "{m: r * 1.5}", "1.5 is no integer"),
        ("{m: cols * r + c}", "{m: c // r}", "divides by zero"),
        ("{m: cols * r + c}", "{}", "wanted"),
        ("colour: m // 6", "colour: n // 6", "'n // 6' uses 'n'; known here are m"),
        (
            "{r: rows, c: cols}",
            "{r: row, c: cols}",
            "no parameter of calls (rows, cols); did you mean 'rows'?",
        ),
        ("{r: rows, c: cols}", "{rows: rows, c: cols}", "'rows' is an index and a parameter"),
        ("{rows: 3, cols: 5}", "{rows: 3, columns: 5}", "every call needs the same parameters"),
        ("{rows: 3, cols: 5}", "{rows: 3000, cols: 5000}", "more than 65536 elements"),
        ("points: 4", "points: 5", "the layouts are worth 11 points, the check 'layouts' 10"),
        ("name: lanes", "name: plain", "layout 'plain' appears twice"),
        ("id: layouts", "id: build", "they belong together"),
        ("wanted: {laneid", "wnated: {laneid", "did you mean 'wanted'?"),
    ],
)
def test_a_wrong_course_is_refused_in_one_line(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(CourseError) as error:
        parse_course(TEXT.replace(old, new))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith("course.yaml: line ")


# draw -------------------------------------------------------------------------------------------


def test_draw_shows_any_layout_and_never_fails(small: Exercise) -> None:
    from tvm.tirx.layout import S, TileLayout, laneid

    shown = draw(TileLayout(S[(8, 4) : (1 @ laneid, 1)]), 8, 4)
    assert "T3:v2" in repr(shown) and "<svg" in shown._repr_html_()
    for layout, rows, words in (
        (None, 8, "nothing to draw yet"),
        (7, 8, "cannot"),
        (TileLayout(S[8, 4]), 9, "32"),
    ):
        nothing = draw(layout, rows, 4)
        assert words in repr(nothing) and "<svg" not in nothing._repr_html_()


def test_a_layout_over_one_index_has_a_picture(small: Exercise) -> None:
    from autograder.checks.layout_pictures import picture

    line = WantedLayout(name="line", title="line", points=0, shape={"i": 5}, wanted={"m": "2 * i"})
    assert picture("line", line, [5], line.table({})).cells == [["0", "2", "4", "6", "8"]]
