"""The timing model: barriers and servers in modelled time, whole kernels, and public measurements."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import emulator
from emulator.timing import classes
from emulator.timing.cache import replay
from emulator.timing.model import Modelled, model, occupancy
from emulator.timing.parameters import Parameters, load
from emulator.timing.probe import probe, probed
from emulator.timing.record import ClusterTrace, Event, Recorder, StrandTrace
from emulator.timing.simulate import Memory, Node
from kernels import gemm_ladder, instruction_kernels
from kernels.triangular_gemm import triangular_gemm

ROOT = Path(__file__).resolve().parents[3]
P = load("sm_100a")
MEMORY = Memory(1 / 64, 1 / 64, 500.0, 600.0)


def cycles(
    *strands: list[Event], p: Parameters = P, ctas: int = 1, ranks: tuple[int, ...] | None = None
) -> float:
    """Simulated cycles of one cluster whose warps do these events, without the start of the CTA."""
    where = ranks or (0,) * len(strands)
    trace = ClusterTrace(
        0, ctas, [StrandTrace(r, (k,), e) for k, (r, e) in enumerate(zip(where, strands, strict=True))]
    )
    found = Node(p, MEMORY).run([trace])
    assert not found.unfinished
    return found.cycles - p.cta_start


BAR = (0, 0)


def test_a_wait_ends_when_the_last_arrival_comes() -> None:
    waiter: list[Event] = [("init", -1, BAR, 2), ("wait", -1, BAR, 0)]
    late: list[Event] = [("fence", -1)] * 50 + [("arrive", -1, BAR, 1, 0)]
    early: list[Event] = [("fence", -1), ("arrive", -1, BAR, 1, 0)]
    assert cycles(waiter, late, early) == pytest.approx(50 * P.fence + P.arrive + P.wake)


def test_a_phase_needs_its_bytes_too() -> None:
    both: list[Event] = [
        ("init", -1, BAR, 1),
        ("arrive", -1, BAR, 1, 4096),
        ("load", -1, 4096, 32, ((BAR, 4096),)),
        ("wait", -1, BAR, 0),
    ]
    moving = max(32 * P.tma_cycles_per_line, 4096 / 64) + MEMORY.tma_latency
    assert cycles(both) == pytest.approx(2 * P.arrive + P.tma_issue + moving + P.wake)


def test_a_parity_that_has_passed_does_not_wait() -> None:
    assert cycles([("init", -1, BAR, 1), ("wait", -1, BAR, 1)]) == pytest.approx(P.arrive + P.wait)


def test_a_wait_that_nobody_ends_is_told() -> None:
    trace = ClusterTrace(0, 1, [StrandTrace(0, (0,), [("init", -1, BAR, 1), ("wait", -1, BAR, 0)])])
    assert Node(P, MEMORY).run([trace]).unfinished == 1


@pytest.mark.parametrize("n", [64, 128, 256])
def test_the_tensor_core_takes_one_mma_after_another(n: int) -> None:
    many = 40
    one: list[Event] = [
        ("init", -1, BAR, 1),
        *[("mma", -1, 1, 128, n, False)] * many,
        ("commit", -1, (BAR,)),
        ("wait", -1, BAR, 0),
    ]
    interval, latency = P.mma_interval(1, 128, n, False), P.mma_latency(1, 128, n, False)
    assert cycles(one) == pytest.approx(P.arrive + P.mma_issue + (many - 1) * interval + latency)


def test_a_pair_of_ctas_uses_both_tensor_cores() -> None:
    pair: list[Event] = [("mma", -1, 2, 256, 256, False)] * 8
    alone: list[Event] = [("mma", -1, 1, 128, 256, False)] * 8
    trace = ClusterTrace(0, 2, [StrandTrace(0, (0,), pair), StrandTrace(1, (0,), alone)])
    found = Node(P, MEMORY).run([trace])
    assert found.busy[0]["tensor core"] == pytest.approx(8 * P.mma_interval(2, 256, 256, False))
    assert found.busy[1]["tensor core"] == pytest.approx(
        8 * P.mma_interval(2, 256, 256, False) + 8 * P.mma_interval(1, 128, 256, False)
    )


def test_named_and_cluster_barriers_wait_for_all() -> None:
    meet: Event = ("bar", -1, 0, 1, -1, True)
    assert cycles([meet], [("fence", -1)] * 9 + [meet]) == pytest.approx(
        9 * P.fence + P.bar_base + 2 * P.bar_per_warp
    )
    both: list[Event] = [("cluster_arrive", -1, 1), ("cluster_wait", -1)]
    slow = cycles(both, [("fence", -1)] * 9 + both, ctas=2, ranks=(0, 1))
    assert slow == pytest.approx(9 * P.fence + P.cluster_barrier, abs=2 * P.issue)


def test_warps_that_left_do_not_hold_up_a_barrier() -> None:
    meet: Event = ("bar", -1, 0, 1, -1, True)
    assert cycles([meet], [("fence", -1)]) < 100


def test_bulk_groups_are_waited_for_in_order() -> None:
    store: list[Event] = [("store", -1, 4096, 32), ("commit_group", -1)]
    read, written = [cycles([*store, *store, ("wait_group", -1, 1, which)]) for which in (True, False)]
    every = cycles([*store, *store, ("wait_group", -1, 0, False)])
    assert read < written < every


def test_a_store_that_waits_for_a_load_holds_up_nobody() -> None:
    """Memory serves whoever is there: warps that copy side by side take little longer than one of them."""
    memory = Memory(1 / 64, 1 / 64, 500.0, 600.0, 1 / 16, 1.0)

    def copying(warps: int) -> float:
        copy: list[Event] = [("gmem", -1, 1, 4, False), ("gmem", -1, 1, 4, True)] * 5
        trace = ClusterTrace(0, 1, [StrandTrace(0, (k,), list(copy)) for k in range(warps)])
        return Node(P, memory).run([trace]).cycles - P.cta_start

    assert copying(1) > 5 * memory.gmem_latency
    assert copying(16) < copying(1) + 16 * 10 * 128 / 16


def ladder(step: int, size: int, **kwargs: Any) -> Modelled:
    build = next(getattr(gemm_ladder, name) for name in dir(gemm_ladder) if name.startswith(f"step{step}_"))
    arrays = [np.zeros((size, size), np.float16) for _ in range(3)]
    return model(emulator.compile(build(size, size, size, **kwargs)), arrays)


@pytest.fixture(scope="module")
def steps() -> dict[int, Modelled]:
    return {step: ladder(step, 4096) for step in range(3, 10)}


def test_every_step_of_the_ladder_is_faster(steps: dict[int, Modelled]) -> None:
    """Down to the two-CTA cluster; the last two are level at this size, where both need whole waves of large tiles."""
    times = [steps[k].microseconds for k in range(3, 9)]
    assert times == sorted(times, reverse=True)
    assert steps[9].microseconds < 1.1 * steps[8].microseconds


def test_no_kernel_beats_the_roofs(steps: dict[int, Modelled]) -> None:
    for found in steps.values():
        assert found.flops == 2 * 4096**3
        assert found.tflops < 8192 * P.sms * found.clock_ghz / 1e3
        assert found.bytes_dram / (found.microseconds * 1e-6) < P.dram_tb_per_s * 1e12
        assert all(0 <= share <= 1.0001 for share in found.busy.values())
        assert found.bytes_dram == 3 * 2 * 4096**2


def test_the_sentence_names_the_barrier_and_the_remedy(steps: dict[int, Modelled]) -> None:
    assert (
        "waits" in steps[3].bottleneck
        and "global memory, since threads copy the tiles" in steps[3].bottleneck
    )
    assert "for loaded, which TMA completes: load further ahead" in steps[4].bottleneck
    assert "for full[], which TMA completes" in steps[6].bottleneck
    assert steps[8].bottleneck.startswith("The tensor core works ")
    for found in steps.values():
        assert all(0 <= share <= 1 for _, _, share in found.stalls)


def test_more_stages_are_not_slower() -> None:
    times = [ladder(7, 1024, stages=n).cycles for n in (2, 3, 4)]
    assert times == sorted(times, reverse=True) and times[0] > 1.2 * times[-1]


def test_the_clock_scales_what_the_sm_does() -> None:
    fast, slow = (
        model(
            emulator.compile(gemm_ladder.step5_pipelined(512, 512, 512)),
            [np.zeros((512, 512), np.float16)] * 3,
            clock_ghz=ghz,
        )
        for ghz in (2.0, 1.0)
    )
    assert 1.7 < (slow.microseconds - P.launch_us) / (fast.microseconds - P.launch_us) < 2.001


def test_recording_leaves_no_trace_in_ordinary_runs() -> None:
    """A recorded kernel runs as before, and its events are the same each time."""
    kernel = emulator.compile(gemm_ladder.step7_warp_specialized(256, 256, 192, num_ctas=2))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((256, 192)).astype(np.float16) for _ in range(2))
    d = np.zeros((256, 256), np.float16)
    before = kernel.run(a, b, d)
    want = d.copy()
    recorded = []
    for _ in range(2):
        recorder = Recorder(dry=True)
        kernel.record(a, b, d, recorder=recorder)
        recorded.append(
            {k: [(s.rank, s.warps, s.events) for s in c.strands] for k, c in recorder.clusters.items()}
        )
    assert recorded[0] == recorded[1]
    after = kernel.run(a, b, d)
    np.testing.assert_array_equal(d, want)
    assert (before.findings, before.counters) == (after.findings, after.counters)


@pytest.mark.parametrize(
    ("step", "kwargs"), [(4, {}), (6, {"num_ctas": 5}), (7, {"num_ctas": 3}), (8, {"num_ctas": 6})]
)
def test_a_grid_of_which_a_part_is_recorded_is_modelled_as_the_whole(
    step: int, kwargs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.timing.model.replay", lambda _, *rest: replay({}, *rest))  # needs a probe
    part = ladder(step, 768, **kwargs)
    monkeypatch.setattr("emulator.kernel._TOGETHER", ("",))  # now every kernel is recorded as a whole
    whole = ladder(step, 768, **kwargs)
    assert part.microseconds == pytest.approx(whole.microseconds, rel=1e-6)
    assert (part.bytes_loaded, part.bytes_stored, part.flops) == (
        whole.bytes_loaded,
        whole.bytes_stored,
        whole.flops,
    )


@pytest.mark.parametrize(
    ("resources", "ctas"),
    [
        ({"threads_per_cta": 128, "smem_bytes": 0}, 16),
        ({"threads_per_cta": 32, "smem_bytes": 0}, 32),
        ({"threads_per_cta": 128, "smem_bytes": 100 * 1024}, 2),
        ({"threads_per_cta": 128, "smem_bytes": 1024, "tmem_columns": 256}, 2),
        ({"threads_per_cta": 128, "smem_bytes": 227 * 1024, "tmem_columns": 512}, 1),
    ],
)
def test_occupancy(resources: dict[str, int], ctas: int) -> None:
    assert occupancy(P, resources) == ctas


def test_every_parameter_has_a_source_and_a_grade() -> None:
    assert all(s.text and s.grade in "ABCDFM" for s in P.sources.values())
    with pytest.raises(ValueError, match="no such timing parameter: tma_latancy"):
        P.with_values(tma_latancy=1)
    with pytest.raises(ValueError, match="no timing model for sm_80"):
        load("sm_80")


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "benchmarks_timing_model", ROOT / "benchmarks" / "timing_model.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_held_out_measurements(benchmark: ModuleType) -> None:
    """Every fifth held-out row of the public sweep; benchmarks/timing_model.py does all."""
    held_out = [r for r in benchmark.rows() if not r.fitted]
    assert len(held_out) > 150
    found = sorted(abs(e) for e in benchmark.errors(P, held_out[::5], (24, 72)))
    assert found[len(found) // 2] < 0.05
    assert found[int(0.9 * len(found))] < 0.12


def test_kernels_of_the_book(benchmark: ModuleType) -> None:
    rows = benchmark.book(P.with_values(clock_ghz=benchmark.CLOCK_OF_THE_BOOK))
    assert len(rows) == 4
    for name, measured, modelled in rows:
        assert abs(modelled / measured - 1) < 0.15, name
    times = [modelled for _, _, modelled in rows]
    assert times == sorted(times, reverse=True)


def test_kernels_on_an_h200(benchmark: ModuleType) -> None:
    """Some of the measured kernels that no parameter was fitted to; the benchmark has all."""
    rows = list(benchmark.on_h200("^serial 2048|^pipelined 2048.*128, stages=4|add, N = 4194304"))
    assert len(rows) == 3
    for row in rows:
        assert not row.fitted
        assert abs(row.error) < 0.15, row


def test_engines_of_an_h200(benchmark: ModuleType) -> None:
    for row in benchmark.on_h200("wgmma n=64, 1 group, 132 CTAs of 1$|1 ex2 and 0 fma"):
        assert row.fitted and abs(row.error) < 0.2, row


@pytest.fixture(scope="module")
def triangular() -> tuple[emulator.Kernel, list[np.ndarray]]:
    return emulator.compile(triangular_gemm(1024)), [np.zeros((1024, 1024), np.float16) for _ in range(3)]


def few_sms(kernel: emulator.Kernel, tensors: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> Modelled:
    """The model of a GPU with six SMs, so that the grid has several waves."""
    monkeypatch.setattr("emulator.timing.model.load", lambda arch: P.with_values(sms=6))
    return model(kernel, tensors)


@pytest.mark.parametrize("way", ["probe", "bisection"])
def test_ctas_that_all_do_different_amounts_of_work(
    way: str, triangular: tuple[emulator.Kernel, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight amounts of work: three of them recorded give what all of them give.

    Bisection does not know what each CTA loads, so there the whole is modelled without the order of loads, too.
    """
    if way == "bisection":
        monkeypatch.setattr("emulator.timing.model.replay", lambda _, *rest: replay({}, *rest))
    whole = few_sms(*triangular, monkeypatch)
    monkeypatch.setattr(classes, "FULL", 3)
    if way == "bisection":
        monkeypatch.setattr(classes, "probe", lambda *_: None)
    part = few_sms(*triangular, monkeypatch)
    assert part.microseconds == pytest.approx(whole.microseconds, rel=0.03)
    assert part.flops == pytest.approx(whole.flops, rel=0.01)
    assert whole.flops == 2 * 128 * 128 * 128 * 8 * sum(range(1, 9))
    mmas = whole.flops / (2 * 128 * 128 * 16)
    assert whole.cycles > mmas * P.mma_interval(1, 128, 128, False) / 6  # what six tensor cores need


def test_two_short_tiles_are_not_one_long_tile() -> None:
    """CTAs that load as much and store twice as much: what they do is told by the number of their tiles, too."""
    tiles = np.array([1] * 20 + [2] * 30)
    work = np.concatenate([np.arange(30, 50), np.arange(22, 52)]).astype(float)
    grid = classes._by_rounds(lambda i: ClusterTrace(i, 1, stored=65536 * int(tiles[i])), work, tiles)
    assert len(grid.traces) <= classes.FULL
    assert np.allclose(grid.shares.sum(axis=1), 1)
    assert sum(n * t.stored for t, n in grid.classes) == pytest.approx(65536 * tiles.sum())


def test_a_probe_sees_what_a_full_record_sees(triangular: tuple[emulator.Kernel, list[np.ndarray]]) -> None:
    kernel, tensors = triangular
    recorder = Recorder(dry=True)
    kernel.record(*tensors, recorder=recorder, clusters=range(0, 64, 9))
    found = probe(kernel, tensors, recorder.clusters[0], range(0, 64, 9))
    assert found is not None and len(found) == 8
    for index, full in recorder.clusters.items():
        assert [s.events for s in probed(full)] == [s.events for s in found[index].strands]
        assert {k: v for k, v in full.loads.items()} == found[index].loads


def test_a_probe_gives_up_where_others_decide(triangular: tuple[emulator.Kernel, list[np.ndarray]]) -> None:
    kernel, tensors = triangular
    recorder = Recorder(dry=True)
    kernel.record(*tensors, recorder=recorder, clusters=[0])
    other = recorder.clusters[0]
    for strand in other.strands:
        strand.events.append(("fence", -1))
    assert probe(kernel, tensors, other, [0, 1]) is None


def test_the_triangular_kernel_is_right(triangular: tuple[emulator.Kernel, list[np.ndarray]]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((256, 256)).astype(np.float16) for _ in range(2))
    a[:128, 128:] = 0
    d = np.zeros((256, 256), np.float16)
    run = emulator.compile(triangular_gemm(256)).run(a, b, d)
    assert not run.findings
    np.testing.assert_allclose(d, a.astype(np.float32) @ b.astype(np.float32).T, atol=0.05, rtol=2e-3)


def test_what_waits_for_ever_in_the_model_has_no_time() -> None:
    """Cluster launch control is not simulated: no number is better than a wrong one."""
    kernel = emulator.compile(instruction_kernels.work_stealing(400), "sm_100a")
    with pytest.raises(ValueError, match=r"cannot be modelled: \d+ warps? waits? for"):
        model(kernel, [np.zeros((400, 2), np.int32)])
