"""A reference of one's own: known by its file alone, and a wrong one is the course's mistake, never the learner's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autograder import oracle_names
from autograder.oracles import Reference
from autograder.runner.oracle_child import _checked

NEW = """
from autograder.oracles import Array, Reference, oracle

@oracle
def negate(inputs: list[Array]) -> Reference:
    return Reference(exact=-inputs[0], magnitude=abs(inputs[0]))

def no_oracle() -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(oracle_names, "FOLDER", tmp_path)
    oracle_names.oracle_files.cache_clear()
    yield tmp_path
    oracle_names.oracle_files.cache_clear()


def test_a_file_is_enough(folder: Path) -> None:
    (folder / "negating.py").write_text(NEW, encoding="utf-8")
    assert oracle_names.oracle_names() == ("negate",)
    assert oracle_names.known_oracle("negate") == "negate"
    with pytest.raises(ValueError, match="'negat' is not one of negate; did you mean 'negate'"):
        oracle_names.known_oracle("negat")


GOOD = np.ones((2, 3))


@pytest.mark.parametrize(
    ("exact", "magnitude", "words"),
    [
        (GOOD * np.nan, GOOD, "exact of the oracle 'negate' is not finite everywhere"),
        (GOOD, GOOD * np.inf, "magnitude of the oracle 'negate' is not finite everywhere"),
        (GOOD.T, GOOD, r"exact of the oracle 'negate' is float64 \(3, 2\), not float64 \(2, 3\)"),
        (GOOD.astype(np.float32), GOOD, "exact of the oracle 'negate' is float32"),
    ],
)
def test_a_reference_that_nothing_can_be_compared_with(
    exact: np.ndarray, magnitude: np.ndarray, words: str
) -> None:
    with pytest.raises(ValueError, match=f"a mistake of the course: {words}"):
        _checked("negate", Reference(exact, magnitude), (2, 3))


def test_a_good_one_is_taken_as_it_is() -> None:
    reference = Reference(GOOD, GOOD)
    assert _checked("negate", reference, (2, 3)) is reference
