"""Arithmetic over lanes."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.lanes import put


@pytest.mark.parametrize("new", [-3, -(1 << 63), (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("old", [0, -1, (1 << 63) - 1])
def test_one_lane_takes_any_integer(old: int, new: int) -> None:
    """What one lane assigns leaves the other lanes as they were, negative numbers and 64 bits included."""
    lanes = np.broadcast_to(put(old, 5, new, 32), 32)
    assert int(lanes[5]) & (1 << 64) - 1 == new & (1 << 64) - 1
    assert int(lanes[4]) & (1 << 64) - 1 == old & (1 << 64) - 1
