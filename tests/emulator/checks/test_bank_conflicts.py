import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.checks.bank_conflicts import AccessStatistics, global_sectors, shared_conflict

LANE = np.arange(32)


@pytest.mark.parametrize(
    ("stride", "degree"), [(4, 1), (8, 2), (16, 4), (32, 8), (64, 16), (128, 32), (132, 1), (68, 1), (0, 1)]
)
def test_strides_of_words(stride: int, degree: int) -> None:
    found = shared_conflict(LANE * stride, 4)
    assert (found.degree, found.wavefronts, found.ideal) == (degree, degree, 1)
    assert len(found.lanes) == (degree if degree > 1 else 0)


def test_the_same_word_is_broadcast_and_bytes_of_a_word_do_not_conflict() -> None:
    assert shared_conflict(LANE * 0 + 400, 4).degree == 1
    assert shared_conflict(LANE, 1).degree == 1
    assert shared_conflict(LANE * 2, 2).degree == 1


def test_wide_accesses_proceed_in_half_and_quarter_warps() -> None:
    pair = shared_conflict(LANE * 8, 8)
    assert (pair.wavefronts, pair.ideal, pair.degree) == (2, 2, 1)
    quad = shared_conflict(LANE * 16, 16)
    assert (quad.wavefronts, quad.ideal, quad.degree) == (4, 4, 1)
    column = shared_conflict(LANE * 128, 16)  # a column of 16-byte chunks of 128-byte rows
    assert (column.wavefronts, column.degree) == (32, 8)
    assert column.lanes == tuple(range(8)) and column.bank == 0


def test_the_128_byte_swizzle_removes_the_conflict() -> None:
    addr = LANE * 128 + (LANE % 8) * 16
    assert shared_conflict(addr, 16).degree == 1


def test_inactive_lanes_do_not_count() -> None:
    found = shared_conflict(np.array([0, 128]), 4, np.array([3, 9]))
    assert (found.degree, found.lanes) == (2, (3, 9))
    apart = shared_conflict(np.array([0, 128]), 16, np.array([3, 9]))  # different quarter warps
    assert (apart.degree, apart.wavefronts) == (1, 2)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=32), st.sampled_from([4, 8, 16]))
def test_against_a_word_by_word_model(cells: list[int], nbytes: int) -> None:
    addr = np.array(cells) * nbytes
    found = shared_conflict(addr, nbytes)
    group = {4: 32, 8: 16, 16: 8}[nbytes]
    total = worst = 0
    for first in range(0, len(cells), group):
        banks: dict[int, set[int]] = {}
        for a in addr[first : first + group].tolist():
            for word in range(a // 4, (a + nbytes) // 4):
                banks.setdefault(word % 32, set()).add(word)
        passes = max(len(words) for words in banks.values())
        total += passes
        worst = max(worst, passes)
    assert (found.wavefronts, found.degree) == (total, worst)


def test_sectors() -> None:
    assert global_sectors(LANE * 4, 4) == (4, 4)
    assert global_sectors(LANE * 4 + 16, 4) == (5, 4)
    assert global_sectors(LANE * 32, 4) == (32, 4)
    assert global_sectors(LANE * 16, 16) == (16, 16)
    assert global_sectors(LANE * 0, 4) == (1, 1)
    assert global_sectors(np.array([24]), 16) == (2, 1)


def test_statistics_per_statement() -> None:
    stats = AccessStatistics()
    for i in range(3):
        stats.add_shared(7, LANE * 128 + 4 * i, 4)
        stats.add_shared(8, LANE * 4 + 128 * i, 4)
        stats.add_global(9, LANE * 64 + 4096 * i, 4)
    assert stats.shared[7].passes == 96 and stats.shared[7].ideal == 3
    assert len(stats._shared_patterns) == 4  # three shifts of the first statement, one pattern of the second
    problems = dict(stats.problems())
    assert set(problems) == {7, 9}
    assert problems[7].code == "smem.bank-conflict" and "32-way" in problems[7].message
    assert problems[9].code == "gmem.uncoalesced" and problems[9].data["sectors"] == 96
    assert problems[7].at(names=("tile",)).strength == "lint"


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="not 3"):
        shared_conflict(LANE, 3)
    with pytest.raises(ValueError, match="at most 32 lanes"):
        shared_conflict(np.arange(64), 4)
