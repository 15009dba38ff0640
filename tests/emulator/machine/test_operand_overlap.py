"""An MMA that reads operand A from TMEM must not write its accumulator over it; beside it, everything is allowed."""

from __future__ import annotations

import pytest

from emulator.machine import mma
from emulator.machine.instr_descriptor import InstrDescriptor
from emulator.machine.smem_descriptor import SmemDescriptor
from emulator.machine.swizzle import SwizzleMode

LANE_16 = 16 << 16  # the other half of each quarter of the lanes, in a TMEM address
KINDS = [("f16", "f16"), ("tf32", "tf32"), ("f8f6f4", "e4m3")]  # a slice of A takes 8 columns in each kind


def plan(kind: str, element: str, m: int, a: int, d: int) -> mma.Plan:
    """M x 64, D at TMEM address `d`, A at `a`."""
    instruction = InstrDescriptor(kind, m, 64, "f32", element, element).encode()  # type: ignore[arg-type]
    b = SmemDescriptor.make(1024, 16, 1024, SwizzleMode.B128).encode()
    return mma.plan(kind, 1, False, 0, instruction, None, a, b, d)


@pytest.mark.parametrize(("kind", "element"), KINDS)
@pytest.mark.parametrize(
    ("a", "overlaps"), [(0, False), (56, False), (57, True), (64, True), (127, True), (128, False)]
)
def test_columns(kind: str, element: str, a: int, overlaps: bool) -> None:
    """D has columns 64 to 127; one column in common is enough."""
    assert mma.writes_its_a(plan(kind, element, 128, a, 64), a) is overlaps


@pytest.mark.parametrize(
    ("a", "d", "overlaps"),
    [
        (64, 64, True),
        (64 | LANE_16, 64, False),
        (64, 64 | LANE_16, False),
        (64 | LANE_16, 64 | LANE_16, True),
    ],
)
def test_lanes_of_an_mma_with_64_rows(a: int, d: int, overlaps: bool) -> None:
    """With M = 64 both A and D lie in one half of each quarter of the lanes (layout F)."""
    assert mma.writes_its_a(plan("f16", "f16", 64, a, d), a) is overlaps
