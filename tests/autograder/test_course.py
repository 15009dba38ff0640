"""course.yaml: the real one is right, and wrong ones are explained."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autograder.course import (
    CHECK_KINDS,
    FUNCTIONS,
    INPUT_FAMILIES,
    Course,
    Exercise,
    load_course,
    parse_course,
)
from autograder.course_folder import find_course_root
from autograder.course_index import load_index
from autograder.errors import CourseError, UsageError
from autograder.oracle_names import oracle_names

from .conftest import course_of

TEXT = course_of("exercise_05")


def test_exercise_05_is_worth_100_points(exercise: Exercise) -> None:
    points = {check.id: check.points for check in exercise.checks}
    assert points == {
        "predictions": 10,
        "build": 10,
        "correctness": 40,
        "synchronization": 20,
        "mechanism": 10,
        "resources": 10,
    }
    assert exercise.total == 100
    assert exercise.shape(exercise.tensors[2]) == (128, 128)


@pytest.mark.parametrize(
    "spelled", ["exercise_05", "05", "5", "EXERCISE_05", "exercise-05", " 5 ", "exercise_5"]
)
def test_spellings_of_an_exercise(course: Course, spelled: str) -> None:
    assert course.find(spelled).id == "exercise_05"


@pytest.mark.parametrize(
    "spelled", ["", "44", "exercise_5x", "٥", "-5", "5.0", "99999999", "9" * 5000], ids=lambda s: s[:12]
)
def test_unknown_exercise(course: Course, spelled: str) -> None:
    with pytest.raises(UsageError, match="there is no exercise"):
        course.find(spelled)


def test_unknown_exercise_suggests_the_nearest(course: Course) -> None:
    with pytest.raises(UsageError, match="did you mean 'exercise_05'"):
        course.find("exercize_05")


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "        points: 10\n",
            "        pionts: 10\n",
            r"line \d+: .*checks\[predictions\]\.pionts: unknown key; did you mean 'points'",
        ),
        ("    title: One tcgen05 MMA tile\n", "", r"exercises\[exercise_05\]\.title: is missing"),
        (
            "oracle: gemm_nt",
            "oracle: gemm_tn",
            r"\.oracle: 'gemm_tn' is not one of .*gemm_nt.*; did you mean 'gemm_nt'",
        ),
        (
            "inputs: one_hot",
            "inputs: onehot",
            r"cases\[one_hot\]\.inputs: 'onehot' is not one of .*did you mean 'one_hot'",
        ),
        (
            "shape: [N, K]",
            "shape: [N, L]",
            "shape of tensor B uses 'L', which is no parameter of builder.params",
        ),
        ("points: 40", "points: many", r"checks\[correctness\]\.points: .*valid number"),
        ("points: 40", "points: -1", r"checks\[correctness\]\.points: .*greater than or equal to 0"),
        ("points: 40", "points: .nan", r"checks\[correctness\]\.points: "),
        ("memory_mib: 4096", "memory_mib: true", r"limits\.memory_mib: .*valid (number|integer).*True"),
        ("params: {M: 128", "params: {M: true", r"builder\.params\.M.*: .*valid (integer|string).*True"),
        ("version: 1", "version: 7", "line 3: version: Input should be less than or equal to 1"),
        ("version: 1", "version: 1\nversion: 1", "line 4: key 'version' appears twice"),
        ("id: q2", "id: q1", "question 'q1' appears twice"),
        ("role: output", "role: input", "tensors needs at least one with role: output"),
        (
            "        points: 10\n        looks_at: your",
            "        points: 11\n        looks_at: your",
            "questions are worth 10 points, the check 'predictions' 11",
        ),
        ("      terms: K\n", "", "rounding_interval needs terms and an accumulate_eps above 0"),
        (
            "kind: rounding_interval",
            "kind: correctly_rounded",
            "accumulate_eps and terms belong to kind: rounding_interval only",
        ),
        ("      terms: K\n", "      terms: K\n      exp2: 1.0e-4\n", "exp2 belongs to kind: analysed only"),
        ("params: {M: 128", "params: {M: 0", "uses 'M', which is 0 here"),
        ("arch: sm_100a", "arch: [", r"line \d+: "),
        ("arch: sm_100a", "arch: sm_100", "'sm_100' is not one of sm_90a, sm_100a"),
    ],
)
def test_a_broken_course_is_explained(right: str, wrong: str, message: str) -> None:
    assert right in TEXT
    with pytest.raises(CourseError, match=message) as caught:
        parse_course(TEXT.replace(right, wrong, 1))
    assert str(caught.value).startswith("course.yaml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", "a: &a [*a]", "\x00", "exercises: []", "? {a: b}\n: c", "!!python/object:os.system {}"],
)
def test_no_course_at_all(text: str) -> None:
    with pytest.raises(CourseError):
        parse_course(text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_one_changed_value_is_right_or_a_course_error(data: st.DataObject) -> None:
    """Any value replaced by any other: either a course, or an error of one line."""
    tree: Any = yaml.safe_load(TEXT)
    node, key = tree, data.draw(st.sampled_from(sorted(tree)))
    while isinstance(node[key], dict | list) and node[key] and data.draw(st.integers(0, 4)):
        node = node[key]
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    node[key] = data.draw(
        scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=5), scalars, max_size=3)
    )
    try:
        parse_course(yaml.safe_dump(tree, allow_unicode=True))
    except CourseError as error:
        assert "\n" not in str(error)


def test_the_nearest_course_counts_and_for_nbgrader_the_topmost(tmp_path: Path) -> None:
    inner = tmp_path / "submitted" / "ann" / "exercise_05"
    inner.mkdir(parents=True)
    (tmp_path / "course.yaml").write_text(TEXT, encoding="utf-8")
    (inner / "course.yaml").write_text(TEXT, encoding="utf-8")
    assert find_course_root(inner) == inner
    assert find_course_root(inner, outermost=True) == tmp_path


def test_unreadable_courses(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=r"no course\.yaml in .* or any folder above it"):
        find_course_root(tmp_path)
    (tmp_path / "course.yaml").write_bytes(b"title: \xff\xfe")
    with pytest.raises(CourseError, match="is not UTF-8 \\(byte 7\\)"):
        load_course(tmp_path)


def test_names_in_the_course_are_those_that_exist() -> None:
    """The lists that validation uses are the registries' own names."""
    from autograder import checks, inputs
    from autograder.checks import (  # noqa: F401
        bank_conflicts,
        build,
        coalescing,
        correctness,
        functions,
        layouts,
        mechanism,
        predictions,
        resources,
        speed,
        synchronization,
    )
    from autograder.oracles import ORACLES as references
    from autograder.oracles import load_all
    from autograder.swizzles import SWIZZLES

    load_all()

    assert set(CHECK_KINDS) == set(checks.CHECKS)
    assert set(INPUT_FAMILIES) == set(inputs.FAMILIES)
    assert set(oracle_names()) == set(references)
    assert set(FUNCTIONS) == set(SWIZZLES)


FUNCTION = "    functions: [{name: f, domain: 64, reference: swizzle_32}]\n    checks:\n"
CHECK = "      - {id: functions, title: F, points: 1, looks_at: f}\n"
BANKS = "      - {id: bank_conflicts, title: B, points: 1, looks_at: b, times_ideal: 1}\n"


@pytest.mark.parametrize(
    ("functions", "check", "message"),
    [
        (FUNCTION, CHECK + BANKS, ""),
        (FUNCTION, "", "functions and the check 'functions' belong together"),
        ("    checks:\n", CHECK, "functions and the check 'functions' belong together"),
        (FUNCTION.replace("swizzle_32", "swizzle_16"), CHECK, "did you mean 'swizzle_"),
        (FUNCTION.replace("64", "0"), CHECK, "functions[f].domain: Input should be greater than 0"),
        (FUNCTION.replace("64", "100000"), CHECK, "functions[f].domain: Input should be less than or equal"),
        (
            FUNCTION.replace("domain", "domian"),
            CHECK,
            "functions[f].domian: unknown key; did you mean 'domain'",
        ),
        (
            FUNCTION.replace("}]", "}, {name: f, domain: 1, reference: swizzle_64}]"),
            CHECK,
            "function 'f' appears twice",
        ),
        ("    checks:\n", BANKS.replace(", times_ideal: 1", ""), "times_ideal and the checks"),
        ("    checks:\n", BANKS.replace("bank_conflicts", "build"), "times_ideal and the checks"),
    ],
)
def test_functions_and_bank_conflicts(functions: str, check: str, message: str) -> None:
    text = TEXT.replace("    checks:\n", functions + check)
    if not message:
        assert parse_course(text).exercises[0].functions[0].domain == 64
        return
    with pytest.raises(CourseError) as caught:
        parse_course(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_table_of_contents_is_kept_until_the_course_changes(tmp_path: Path) -> None:
    """What `autograde list` shows: taken from the validated course, never from a stale or damaged copy."""
    course, kept = tmp_path / "course.yaml", tmp_path / ".autograde" / "course.json"
    course.write_text(TEXT, encoding="utf-8")
    first = load_index(tmp_path)
    assert first.title == load_course(tmp_path).title
    assert [entry.total for entry in first.entries] == [e.total for e in load_course(tmp_path).exercises]
    assert kept.is_file() and load_index(tmp_path) == first
    course.write_text(TEXT.replace("title: GPU kernels", "title: CPU kernels"), encoding="utf-8")
    assert load_index(tmp_path).title.startswith("CPU kernels")
    for damage in (b"", b"[]", b"{}", b"\xff", kept.read_bytes()[:-9], b'{"key": 5}'):
        kept.write_bytes(damage)
        assert load_index(tmp_path).title.startswith("CPU kernels")
    course.write_text("version: 9", encoding="utf-8")
    with pytest.raises(CourseError, match=r"course\.yaml: "):
        load_index(tmp_path)
    course.unlink()
    with pytest.raises(CourseError, match="cannot be read"):
        load_index(tmp_path)


def _numbers(data: Any, place: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """Where the numbers of a course stand, one place for each key that has some."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield (*place, key)
        yield from _numbers(value, (*place, key))


OPTIONAL = {"solution"}  # null says that it is not given


@pytest.mark.parametrize("strange", [True, 2**70, -(2**70), float("nan"), float("inf"), -1, [], None])
@pytest.mark.parametrize("exercise_id", ["exercise_01", "exercise_08"])
def test_no_number_of_the_course_may_be_anything_else(exercise_id: str, strange: object) -> None:
    """Each kind of number, once: one line that names the key, never something that a grade would run into later."""
    whole = yaml.safe_load(course_of(exercise_id))
    places = {tuple(p for p in place if isinstance(p, str)): place for place in _numbers(whole)}
    assert len(places) >= 25
    for place in places.values():
        if strange is None and place[-1] in OPTIONAL:
            continue
        changed = copy.deepcopy(whole)
        at: Any = changed
        for part in place[:-1]:
            at = at[part]
        at[place[-1]] = strange
        with pytest.raises(CourseError) as error:
            parse_course(yaml.safe_dump(changed))
        words = str(error.value)
        assert "\n" not in words and str(next(p for p in reversed(place) if isinstance(p, str))) in words, (
            place
        )


def test_tensors_that_no_grade_could_hold() -> None:
    text = course_of("exercise_08").replace(
        "params: {M: 4096, N: 4096, K: 4096}", "params: {M: 65536, N: 65536, K: 4096}"
    )
    with pytest.raises(CourseError, match=r"build_kernel\(M = 65536, .*\) take 9216 MiB, at most 2048 fit"):
        parse_course(text)
