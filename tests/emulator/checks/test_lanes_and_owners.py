"""Who owns an element: lanes of a warp at one address, lanes that talk through SMEM, threads and CTAs that collide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

import emulator
from emulator.checks.findings import Finding
from emulator.checks.lane_order import colliding_lanes

SCHEDULES = ("late", "eager", "random")


def findings(kernel: Any, *arrays: np.ndarray, schedule: str = "late") -> list[Finding]:
    """Everything but advice."""
    return [f for f in emulator.run(kernel, *arrays, schedule=schedule).findings if f.strength != "lint"]


def only(kernel: Any, *arrays: np.ndarray, schedule: str = "late") -> Finding:
    found = findings(kernel, *arrays, schedule=schedule)
    assert len(found) == 1, [str(f) for f in found]
    return found[0]


def line_of(text: str) -> int:
    """The line of this file that ends in ``# text``."""
    with open(__file__, encoding="utf-8") as source:
        found = [n for n, line in enumerate(source, 1) if line.rstrip().endswith("# " + text)]
    assert len(found) == 1, text
    return found[0]


def floats(n: int = 64) -> np.ndarray:
    return np.zeros(n, np.float32)


# ---------------------------------------------------------------------------------------------- one address


def stores(where: str, what: str) -> Any:
    """A warp stores to ``where``; ``what``: what each lane stores."""

    @T.prim_func
    def kernel(OUT: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        slot = pool.alloc((64,), "float32")
        pool.commit()
        value = T.cast(lane, "float32")
        if what == "equal":
            value = T.float32(7)
        if what == "equal in pairs":
            value = T.cast(lane // 2, "float32")
        if where == "shared":
            slot[0] = value  # one word of SMEM
        elif where == "shared pairs":
            slot[lane // 2] = value  # a word of SMEM for two lanes
        elif where == "global":
            OUT[0] = value  # one element
        elif where == "global pairs":
            OUT[lane // 2] = value  # an element for two lanes
        elif where == "pairs of a part":
            if lane < 3:
                OUT[lane // 2] = value  # an element for two of three lanes
        elif where == "pointer":
            T.ptx["st.global.f32"](OUT.ptr_to([lane // 2]), value)  # through a pointer
        elif where == "vector":
            T.ptx["st.global.v2.f32"](OUT.ptr_to([lane // 2 * 2]), value, value)  # two at a time

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "where, line, lanes",
    [
        ("shared", "one word of SMEM", tuple(range(32))),
        ("shared pairs", "a word of SMEM for two lanes", (0, 1)),
        ("global", "one element", tuple(range(32))),
        ("global pairs", "an element for two lanes", (0, 1)),
        ("pairs of a part", "an element for two of three lanes", (0, 1)),
        ("pointer", "through a pointer", (0, 1)),
        ("vector", "two at a time", (0, 1)),
    ],
)
def test_lanes_store_different_values_to_one_address(
    where: str, line: str, lanes: tuple[int, ...], schedule: str
) -> None:
    f = only(stores(where, "lane"), floats(), schedule=schedule)
    space, name = ("smem", "slot") if where.startswith("shared") else ("gmem", "OUT")
    assert f.code == f"race.{space}.same-address" and f.strength == "race"
    assert [x.line for x in f.locations] == [line_of(line)]
    assert f.names[0].startswith(name) and f.lanes == lanes and f.warps == (0,)
    assert "which of them stays is undefined" in f.message and f.data["missing"] == "one lane per address"


@pytest.mark.parametrize("where", ["shared", "shared pairs", "global", "global pairs", "pointer", "vector"])
def test_equal_values_are_no_mistake(where: str) -> None:
    assert findings(stores(where, "equal"), floats()) == []
    if "pairs" in where or where in ("pointer", "vector"):
        assert findings(stores(where, "equal in pairs"), floats()) == []


def test_the_lowest_element_with_different_values() -> None:
    index = np.array([5, 3, 5, 3, 3])
    warp, lane = np.array([0, 0, 0, 0, 1]), np.array([0, 1, 2, 3, 0])
    values = np.array([1, 2, 9, 8, 7], np.int32)
    assert colliding_lanes(index, values, warp, lane) == (0, (1, 3), 3)
    assert colliding_lanes(index, np.array([1, 2, 1, 2, 7], np.int32), warp, lane) is None
    assert colliding_lanes(4, np.array([1, 2, 2, 2, 2], np.int32), warp, lane) == (0, (0, 1, 2, 3), 4)
    assert (
        colliding_lanes(4, np.array([2, 2, 2, 2, 1], np.int32), warp, lane) is None
    )  # that is a race of warps


# ---------------------------------------------------------------------------------------------- lanes that talk


def reduction(sync: str) -> Any:
    """The lanes of a warp add up 32 numbers through SMEM; ``sync``: what stands between their turns."""

    @T.prim_func
    def kernel(IN: T.Buffer((32,), "float32"), OUT: T.Buffer((1,), "float32")):
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        part = pool.alloc((32,), "float32")
        pool.commit()
        part[lane] = IN[lane]  # stores a part
        if sync == "bar.warp.sync":
            T.cuda.warp_sync()
        if sync == "cta_sync":
            T.cuda.cta_sync()
        if lane == 0:
            total = T.alloc_local((1,), "float32")
            total[0] = T.float32(0)
            for i in T.serial(32):
                total[0] += part[i]  # reads all parts
            OUT[0] = total[0]

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_that_talk_through_smem_without_a_warp_barrier(schedule: str) -> None:
    f = only(reduction("none"), np.ones(32, np.float32), floats(1), schedule=schedule)
    assert f.code == "race.smem.within-warp" and f.strength == "race" and f.lanes == (0,)
    assert [x.line for x in f.locations] == [line_of("reads all parts"), line_of("stores a part")]
    assert "bar.warp.sync" in f.fix and f.data["missing"] == "bar.warp.sync" and f.names[0].startswith("part")


@pytest.mark.parametrize("sync", ["bar.warp.sync", "cta_sync"])
def test_a_barrier_of_the_warp_orders_its_lanes(sync: str) -> None:
    out = floats(1)
    assert findings(reduction(sync), np.ones(32, np.float32), out) == [] and out[0] == 32


# ---------------------------------------------------------------------------------------------- owners


def overlapping(ctas: int, cluster: int, warps: int) -> Any:
    """Every warp of every CTA writes the same 32 elements."""

    @T.prim_func
    def kernel(OUT: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([ctas])
        if cluster > 1:
            T.cta_id_in_cluster([cluster])
        thread = T.thread_id([32 * warps])
        OUT[thread % 32] = T.float32(1)  # the same elements

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "ctas, cluster, warps, who", [(4, 1, 1, "CTAs"), (4, 2, 1, "CTAs"), (1, 1, 2, "threads")]
)
def test_two_that_own_one_element(ctas: int, cluster: int, warps: int, who: str, schedule: str) -> None:
    f = only(overlapping(ctas, cluster, warps), floats(), schedule=schedule)
    assert f.code == "race.gmem.write-write" and f.locations[0].line == line_of("the same elements")
    assert f"Two {who} own the same element" in f.fix and f.data["missing"] == "one owner per element"
    assert "cluster" not in f.fix and "cta_sync" not in f.fix


def neighbours(ctas: int) -> Any:
    """CTA c reads what CTA c + 1 writes."""

    @T.prim_func
    def kernel(OUT: T.Buffer((64,), "float32")):
        T.device_entry()
        cta = T.cta_id([ctas])
        T.thread_id([32])
        OUT[cta] = OUT[(cta + 1) % ctas] + T.float32(1)

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ctas_without_a_cluster_get_no_advice_on_cluster_barriers(schedule: str) -> None:
    found = findings(neighbours(2), floats(), schedule=schedule)
    assert found and all("CTAs of one launch run in any order" in f.fix for f in found)


# ---------------------------------------------------------------------------------------------- nobody's data


def beyond(use: str) -> Any:
    """Each lane fills one word of SMEM and reads another, which nobody has written."""

    @T.prim_func
    def kernel(OUT: T.Buffer((32,), "float32"), AT: T.Buffer((32,), "int32")):
        T.device_entry()
        T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        tile = pool.alloc((64,), "float32")
        index = pool.alloc((64,), "int32")
        pool.commit()
        tile[lane] = T.float32(3)
        index[lane] = lane
        if use == "stored":
            OUT[lane] = tile[lane + 32]  # nobody's
        if use == "dropped":
            unused = tile[lane + 32]  # read and dropped
            OUT[lane] = T.if_then_else(lane < 32, T.float32(2), unused)
        if use == "in a condition":
            if index[lane + 32] == 0:  # decides
                OUT[lane] = T.float32(2)
        if use == "in part":
            AT[lane] = index[lane + 1]  # the last one is nobody's

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "use, line",
    [("stored", "nobody's"), ("in a condition", "decides"), ("in part", "the last one is nobody's")],
)
def test_an_output_that_depends_on_what_nobody_wrote(use: str, line: str, schedule: str) -> None:
    run = emulator.run(beyond(use), floats(32), np.zeros(32, np.int32), schedule=schedule)
    (f,) = [f for f in run.findings if f.code == "uninitialised.smem"]
    assert f.strength == "error" and f.locations[0].line == line_of(line)
    last = "element 31 of AT" if use == "in part" else "element 0 of OUT"
    assert f"The output depends on this read: {last} changes" in f.message and f.data["reaches"] == last


def test_what_is_dropped_stays_advice_and_leaves_no_trace() -> None:
    out, at = floats(32), np.zeros(32, np.int32)
    run = emulator.run(beyond("dropped"), out, at)
    (f,) = run.findings
    assert (f.code, f.strength) == ("uninitialised.smem", "lint") and run.ok
    assert (out == 2).all() and run.counters["st.global"] == 1  # of one run


def test_the_outputs_are_those_of_the_first_run() -> None:
    out = floats(32)
    run = emulator.run(beyond("stored"), out, np.zeros(32, np.int32))
    assert not run.ok and np.isnan(out).all() and run.counters["st.global"] == 1
