"""One sentence for what holds a kernel back: of pipelines with one known fault each, written down as events."""

from __future__ import annotations

import pytest

from emulator.timing.bottleneck import Bottleneck, explain
from emulator.timing.parameters import load
from emulator.timing.record import ClusterTrace, Event, StrandTrace
from emulator.timing.simulate import Memory, Node

P = load("sm_100a")
TILE = 32768  # bytes of one stage
FAST, SLOW = 1 / 122, 1 / 20  # cycles per byte from L2
KERNEL, LOADS, MMAS = 100, 200, 300  # statements
ROOM, NO_ROOM = 64 * 1024, 220 * 1024  # bytes of SMEM that the kernel takes


def pipeline(
    stages: int,
    k_tiles: int = 64,
    loads_late: bool = False,
    mmas_serial: bool = False,
    names: tuple[str, str] = ("full[{}]", "empty[{}]"),
) -> ClusterTrace:
    """A warp that loads and a warp that issues MMAs of 128 x 256, with a ring of stages between them.

    loads_late: the loading warp waits for the MMA of each K tile before it loads the next one; mmas_serial: the other one does so
    before its next MMA.
    """
    full, empty = ([(0, 8 * (n * stages + s)) for s in range(stages)] for n in (0, 1))
    meet: Event = ("bar", KERNEL, 0, 1, -1, True)
    loader: list[Event] = [("init", KERNEL, bar, 1) for bar in (*full, *empty)]
    loader.append(meet)
    issuer: list[Event] = [meet]
    for k in range(k_tiles):
        s, parity = k % stages, k // stages & 1
        loader += [
            ("wait", LOADS, empty[s], parity ^ 1),
            ("arrive", LOADS + 1, full[s], 1, TILE),
            ("load", LOADS + 2, TILE, TILE // 128, ((full[s], TILE),)),
        ]
        if loads_late:
            loader.append(("wait", LOADS + 3, empty[s], parity))
        issuer.append(("wait", MMAS, full[s], parity))
        issuer += [("mma", MMAS + 1, 1, 128, 256, False)] * 4
        issuer.append(("commit", MMAS + 2, (empty[s],)))
        if mmas_serial:
            issuer.append(("wait", MMAS + 3, empty[s], parity))
    named = {bar: names[0].format(s) for s, bar in enumerate(full)}
    named |= {bar: names[1].format(s) for s, bar in enumerate(empty)}
    return ClusterTrace(0, 1, [StrandTrace(0, (0,), loader), StrandTrace(0, (1,), issuer)], named)


def why(trace: ClusterTrace, per_byte: float = FAST, latency: float = 1200.0, smem: int = ROOM) -> Bottleneck:
    simulated = Node(P, Memory(per_byte, per_byte, latency, 600.0)).run([trace])
    assert simulated.unfinished == 0
    microseconds = simulated.cycles / P.clock_ghz / 1e3
    return explain(P, simulated, trace, 0, microseconds, {"smem_bytes": smem})


def test_a_ring_that_is_too_short_for_the_latency_gets_more_stages_where_there_is_room() -> None:
    found = why(pipeline(2))
    assert (
        "for full[], which TMA completes, while the loads of all 2 stages are on their way: add stages"
        in found.sentence
    )
    assert found.statements == (MMAS,)
    more = why(pipeline(6))
    assert "The tensor core works" in more.sentence and "what is left is the start" in more.sentence


def test_where_smem_is_full_more_stages_are_no_advice() -> None:
    found = why(pipeline(2), smem=NO_ROOM)
    assert "SMEM has no room for more: let each stage feed more MMAs" in found.sentence
    assert "add stages" not in found.sentence and "further ahead" not in found.sentence


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_where_the_way_from_l2_is_busy_no_ring_helps(stages: int) -> None:
    found = why(pipeline(stages), per_byte=SLOW, latency=300.0)
    assert (
        "the way from L2 into SMEM is busy" in found.sentence and "more stages do not help" in found.sentence
    )
    assert "add stages" not in found.sentence and "further ahead" not in found.sentence


def test_loads_that_come_late_into_an_empty_ring() -> None:
    """Both waits are named, with both lines: the MMA warp's, and the one of the loading warp that causes it."""
    found = why(pipeline(4, loads_late=True))
    assert (
        "for full[], which TMA completes, but only 1 of 4 stages are being loaded meanwhile" in found.sentence
    )
    assert "the warp that loads waits" in found.sentence and "of its time for empty[]" in found.sentence
    assert found.statements == (MMAS, LOADS + 3)


def test_mmas_that_wait_for_each_other() -> None:
    found = why(pipeline(6, mmas_serial=True), latency=100.0)
    assert (
        "for empty[], which the tensor core completes: give it the next MMAs before these are done"
        in found.sentence
    )
    assert found.statements == (MMAS + 3,)


def test_a_single_load_cannot_be_further_ahead() -> None:
    found = why(pipeline(1, k_tiles=1))
    assert "which TMA completes, once: only another CTA on the same SM" in found.sentence


@pytest.mark.parametrize("names", [("", ""), ("[{}]", "[{}]")])
def test_barriers_without_a_name(names: tuple[str, str]) -> None:
    found = why(pipeline(2, names=names))
    assert "for an mbarrier, which TMA completes" in found.sentence and "[]" not in found.sentence
    assert {what for _, what, _ in found.stalls} <= {"an mbarrier", "cta_sync"} and found.statements == (
        MMAS,
    )


def test_the_percentages_are_those_of_the_simulation() -> None:
    trace = pipeline(2)
    simulated = Node(P, Memory(FAST, FAST, 1200.0, 600.0)).run([trace])
    waited = sum(
        c for (role, what), c in simulated.stalls.items() if role == "MMA" and what.startswith("full")
    )
    share = waited / simulated.lifetimes["MMA"]
    core = simulated.busy[0]["tensor core"] / simulated.cycles
    sentence = why(trace).sentence
    assert f"The tensor core works {100 * core:.0f} % of the time" in sentence
    assert f"waits {100 * share:.0f} % of its time for full[]" in sentence
