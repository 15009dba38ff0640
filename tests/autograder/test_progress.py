"""The progress file: written in one step, read whatever is in it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autograder.files import write_atomically
from autograder.progress import FOLDER, Progress, Reached, load, save


def test_the_best_grade_stays(tmp_path: Path) -> None:
    progress = Progress()
    progress.record("exercise_05", 100, 100, True)
    progress.record("exercise_05", 40, 100, False)
    assert save(tmp_path, progress)
    assert load(tmp_path).reached == {
        "exercise_05": Reached(best=100, latest=40, max_points=100, full_marks=True)
    }
    assert [p.name for p in (tmp_path / FOLDER).iterdir()] == ["progress.json"], "nothing temporary is left"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 10**5,
        b'{"reached": 5, "hints": []}',
        b'{"reached": {"exercise_05": 7}, "hints": {"exercise_05": "x"}}',
        b'{"reached": {"exercise_05": {"best": NaN, "latest": "x", "max_points": -1, "full_marks": 1}}}',
    ],
)
def test_a_damaged_file_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "progress.json").write_bytes(content)
    progress = load(tmp_path)
    assert all(entry == Reached() for entry in progress.reached.values())
    assert progress.hints == {}


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_can_be_loaded(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FOLDER).mkdir(exist_ok=True)
    (tmp_path / FOLDER / "progress.json").write_bytes(content)
    load(tmp_path)


def test_no_reader_sees_half_a_file(tmp_path: Path) -> None:
    """One thread replaces the file over and over, the other always reads one of the two whole contents."""
    path, contents = tmp_path / "f", (b"a" * 200_000, b"b" * 100_000)
    write_atomically(path, contents[0])
    done = threading.Event()

    def replace() -> None:
        for number in range(50):
            write_atomically(path, contents[number % 2])
        done.set()

    thread = threading.Thread(target=replace)
    thread.start()
    while not done.is_set():
        assert path.read_bytes() in contents
    thread.join()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    assert not save(tmp_path, Progress())
    with pytest.raises(OSError):
        write_atomically(tmp_path / "missing" / "f", b"x")
    assert (tmp_path / FOLDER).read_text() == "a file where the folder should be"
