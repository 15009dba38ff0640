"""The model's arithmetic pipes, wgmma groups, and L2 by the order of loads, on events written by hand."""

from __future__ import annotations

import pytest

from emulator.timing.cache import replay
from emulator.timing.parameters import load
from emulator.timing.record import ClusterTrace, Event, StrandTrace
from emulator.timing.simulate import Memory, Node

H = load("sm_90a")
MEMORY = Memory(1 / 64, 1 / 64, 500.0, 600.0, hit_latency=300.0, dram_latency=900.0)


def cycles(warps: dict[int, list[Event]], late: list[list[list[bool]]] | None = None) -> float:
    strands = [StrandTrace(0, (w,), e, [(0, 0)] * sum(x[0] == "load" for x in e)) for w, e in warps.items()]
    found = Node(H, MEMORY).run([ClusterTrace(0, 1, strands)], late or [])
    assert not found.unfinished
    return found.cycles - H.cta_start


def test_special_functions_of_one_quarter_take_turns() -> None:
    """16 results per clock and SM: a warp's 32 take eight cycles on its quarter."""
    work: list[Event] = [("work", -1, 100, 0, 0)]
    assert cycles({0: work}) == pytest.approx(800)
    assert cycles({0: work, 1: work}) == pytest.approx(800)  # another quarter
    assert cycles({0: work, 4: work}) == pytest.approx(1600)  # the same
    both: list[Event] = [("work", -1, 100, 1200, 0)]
    assert cycles({0: both}) == pytest.approx(1200)  # pipes overlap


def test_wgmma_groups_are_waited_for_in_order() -> None:
    group: list[Event] = [("wgmma", -1, 256, 16, False, 1)] * 4 + [("wgmma_commit", -1)]
    interval = H.wgmma_interval(256, False)

    def waiting(pending: int) -> float:
        return cycles({0: [*group, *group, ("wgmma_wait", -1, pending)]})

    assert waiting(0) - waiting(1) == pytest.approx(4 * interval)
    assert waiting(0) == pytest.approx(8 * interval + H.wgmma_issue + H.wgmma_latency)


def test_a_load_from_dram_comes_later_than_one_from_l2() -> None:
    bar = (0, 0)
    one: list[Event] = [
        ("init", -1, bar, 1), ("arrive", -1, bar, 1, 4096), ("load", -1, 4096, 32, ((bar, 4096),)), ("wait", -1, bar, 0),
    ]  # fmt: skip
    assert cycles({0: one}, [[[True]]]) - cycles({0: one}, [[[False]]]) == pytest.approx(600)


def tiles(order: list[tuple[int, int]], k_tiles: int = 4) -> dict[int, ClusterTrace]:
    """One cluster per tile (row, column); each loads the steps of its row of A and of its column of B, 1 KB each."""
    found = {}
    for index, (row, column) in enumerate(order):
        boxes = [(t, (line, k)) for k in range(k_tiles) for t, line in ((0, row), (1, column))]
        found[index] = ClusterTrace(
            index, 1, [StrandTrace(0, (0,), [("load", -1, 1024, 8, ())] * len(boxes), boxes)]
        )
    return found


def test_the_order_of_tiles_decides_what_comes_from_dram() -> None:
    """16 x 16 tiles, 16 at a time, and an L2 that holds a quarter of A and B: squares of tiles load less than rows."""
    rows = [(r, c) for r in range(16) for c in range(16)]
    squares = [(4 * (s // 4) + i // 4, 4 * (s % 4) + i % 4) for s in range(16) for i in range(16)]
    assert sorted(rows) == sorted(squares)
    by_rows, by_squares = (replay(tiles(order), 16, 32 * 1024) for order in (rows, squares))
    assert by_rows.loaded == by_squares.loaded == 256 * 8 * 1024
    assert by_squares.from_dram < 0.6 * by_rows.from_dram
    enough = replay(tiles(rows), 16, 1e9)
    assert enough.from_dram == 2 * 16 * 4 * 1024  # every byte once
    assert all(enough.late[0][0])  # the first cluster finds nothing in L2
    assert not any(enough.late[255][0][1::2])  # the last one finds its column there
