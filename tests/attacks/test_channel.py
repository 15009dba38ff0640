"""A submission that speaks the grader's own language: frames that it forges on the channel, words that it puts into reports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autograder.checks import Outcome, run_checks
from autograder.course import Course, Exercise, Function, Limits
from autograder.diagnosis import Diagnosis, Stopped
from autograder.report import html, terminal
from autograder.report.model import Fault, GradeReport, Source
from autograder.runner import build
from autograder.runner.build import Table, receive_prim_funcs
from autograder.runner.frames import Frame, FrameError, parse_json
from autograder.submission import Submission

from .conftest import Tried, message

texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["\ud800", "\x1b[31m", "a\nb", "\u202eabc", "<script>", "ready", "built"]),
)
values = texts | st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-3, 3),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)
KINDS = [
    "builder_missing", "builder_not_callable", "builder_signature", "not_a_prim_func", "not_a_layout", "symbolic",
    "not_a_kernel", "exit", "rejected", "raised", "function_missing", "function_not_callable", "no_integer", "empty",
]  # fmt: skip
headers = st.fixed_dictionaries(
    {},
    optional={
        "stage": st.one_of(
            st.sampled_from(["built", "failed", "table", "no_table", "layouts", "ready"]), values
        ),
        "kind": st.one_of(st.sampled_from(KINDS), values),
        **{
            name: values
            for name in ("message", "line", "type", "returned", "signature", "defined", "argument", "layouts")
        },
        "isolation": values,
    },
)


def received(
    exercise: Exercise, limits: Limits, frames: list[Frame], monkeypatch: pytest.MonkeyPatch
) -> GradeReport:
    """The report where the submission's process sent these frames, from the same code as in a grade."""
    submission = Submission("kernel.py", "def build_kernel(M, N):\n    pass\n")
    diagnosis = Diagnosis(exercise, submission, limits)
    waiting = [Frame({"stage": "ready", "isolation": {}}), *frames, *[Frame({})] * 20]
    pump = SimpleNamespace(receive=lambda child, seconds: waiting.pop(0), kill=lambda child: None)
    outcome = Outcome(diagnosis)
    try:
        graphs = receive_prim_funcs(
            pump,
            SimpleNamespace(tail="", isolation={}),
            diagnosis,
            outcome.tables,
            outcome.layouts,
            False,
            outcome.missing,  # type: ignore[arg-type]
        )
        assert all(graph is None or isinstance(graph, bytes) and graph for graph in graphs)
    except Stopped as stopped:
        assert stopped.failure.fault is Fault.YOUR_CODE
        outcome.build_failure = stopped.failure
    checks = run_checks(outcome) if outcome.build_failure else []
    return GradeReport(
        exercise=exercise.id,
        title="",
        points=sum(check.points for check in checks),
        max_points=100,
        device="emulated",
        seed=0,
        source=Source(kind="file", name="k", sha256=""),
        checks=checks,
    )


@example(
    sent=[({"stage": "failed", "kind": "raised", "type": "E", "message": "\ud800", "line": 10**30}, b"")],
    which="2",
)
@example(sent=[({"stage": "failed", "kind": "rejected", "message": "\ud800\x1b --> k:1:1"}, b"")], which="2")
@example(sent=[({"stage": "built"}, b"")], which="2")
@example(sent=[({"stage": "built"}, b"\x00")], which="2")
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sent=st.lists(st.tuples(headers, st.binary(max_size=20)), max_size=4),
    which=st.sampled_from(["2", "3", "4"]),
)
def test_forged_frames_earn_nothing_and_break_nothing(
    course: Course,
    limits: Limits,
    monkeypatch: pytest.MonkeyPatch,
    sent: list[tuple[dict[str, Any], bytes]],
    which: str,
) -> None:
    """A34 and our own: whatever the channel brings, the report is whole, shows everywhere, and no point comes of it."""
    exercise = course.find(which)
    report = received(exercise, limits, [Frame(header, raw) for header, raw in sent], monkeypatch)
    assert report.points == 0
    for view in (json.dumps(report.model_dump(mode="json")), html.page(report)):
        view.encode()
    console = terminal.make_console(True, width=80)
    with console.capture() as shown:
        terminal.show(report, console, True)
    assert "\x1b" not in shown.get() and "Traceback" not in shown.get()


def test_a_table_has_the_length_of_its_domain(exercise: Exercise, limits: Limits) -> None:
    diagnosis = Diagnosis(exercise, Submission("k.py", ""), limits)
    function = Function(name="f", domain=4, reference="swizzle_32")
    for raw in (b"", bytes(31), bytes(33), bytes(8 * 5)):
        found = build._table(Frame({"stage": "table"}, raw), function.name, function.domain, diagnosis)
        assert found.values == () and found.failure is not None
    assert build._table(Frame({"stage": "table"}, bytes(32)), "f", 4, diagnosis) == Table((0, 0, 0, 0))


@pytest.mark.parametrize(
    "text",
    [
        b'{"stage": "built", "stage": "failed"}',
        b'{"points": NaN}',
        b"[" * 5000,
        b'"built"',
        b"\xff",
        b"{" * 99999,
    ],
)
def test_json_that_two_readers_would_read_differently_is_refused(text: bytes) -> None:
    """A34: repeated keys, NaN, deep nesting."""
    with pytest.raises(FrameError):
        parse_json(text)


def test_forging_the_channel_from_inside(tried: Tried) -> None:
    """A3, A34: the submission finds the channel's descriptor and writes a whole grade there. It is only data, and no kernel."""
    code = """
import os, json, struct
def frame(header, raw=b""):
    text = json.dumps(header).encode()
    return struct.pack("<4sIQ", b"AGF1", len(text), len(raw)) + text + raw
report = {"stage": "verdict", "case": "distinct", "mismatches": 0, "points": 100, "isolation": {"namespaces": True}}
for fd in range(3, 64):
    try:
        os.write(fd, frame(report) + frame({"stage": "built"}, b'{"root_index": 0, "nodes": []}'))
    except OSError: pass
os._exit(0)
"""
    assert "fails" in message(tried(code)) or message(tried(code))


def test_an_output_that_looks_like_a_result_is_only_output(graded: Any) -> None:
    """A34, A52: lines such as `points: 100` or a whole report on standard output change nothing and reach no parser."""
    report = graded('print(\'{"points": 100, "verdict": "pass"}\\npoints: 100\\n\\x1b[2Jcleared\')\nx = 1\n')
    assert report.points == 0 and "points: 100" in report.output and "\x1b" not in report.output
