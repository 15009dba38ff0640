"""How far the timing model can be trusted: the model against public measurements of a B200.

    python benchmarks/timing_model.py [--markdown docs/timing_model.md] [--plots docs/_static] [--fit]

1. The main loop of a GEMM on one SM, 384 rows over tile shapes, stages and element types (data/README.md). The rows are divided
   by tile shape: parameters of grade F were fitted to one half (``--fit`` does it again), the error is reported on the other.
2. Four whole kernels of the book "Modern GPU Programming for MLSys" (mlc-ai/modern-gpu-programming-for-mlsys, chapters "Pipelining
   GEMM with TMA" and "Scaling GEMM with Warp Specialization and Clusters"): 4096 cubed, fp16. Their structure (tiles, stages, roles, what
   waits for what) is written down here as events; the rate of L2 was fitted to them (``--fit`` does it again). Their clock is not
   stated; 1.54 GHz is the base clock that a profile in the same book's appendix implies.
3. Kernels that ran on an H200 for this course (tests/hardware/timings.py, its record timings.json): exercises 01 to 04 and wgmma GEMMs,
   modelled with the parameters of an H200 at the clock that the SM's own counter showed during the call. Parameters were fitted
   to kernels that use one engine only (streams of TMA loads, wgmma back to back); one more, how many plain loads a warp has in
   flight, to exercise_01's GEMM.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from emulator.timing.cache import replay  # noqa: E402
from emulator.timing.model import model, shared_memory_system  # noqa: E402
from emulator.timing.parameters import Parameters, load  # noqa: E402
from emulator.timing.record import ClusterTrace, Event, StrandTrace  # noqa: E402
from emulator.timing.simulate import Memory, Node  # noqa: E402

CLOCK_OF_THE_SWEEP = 1.3
CLOCK_OF_THE_BOOK = 1.54
K_OF_THE_SWEEP = 131072
FITTED = (
    "tma_latency_near", "tma_latency_far", "tma_cycles_per_line", "tma_issue", "mma_issue", "wait", "wake", "mma_m64_base",
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- the main loop on one SM


@dataclass(frozen=True)
class Row:
    """One measurement: tile, stages, bytes per element, cycles per step of K."""

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    element: int
    cycles: float

    @property
    def fitted(self) -> bool:
        """Whether the row belongs to the half that parameters were fitted to: by tile shape, so that no shape is in both."""
        shape = f"{self.tile_m}/{self.tile_n}/{self.tile_k}/{self.element}"
        return hashlib.sha256(shape.encode()).digest()[0] % 2 == 0


def rows() -> list[Row]:
    out = []
    with (HERE / "data" / "b200_gemm_mainloop.csv").open(encoding="utf-8") as file:
        for r in csv.DictReader(file):
            m, n, k, stages = (int(r[x]) for x in ("TILE_M", "TILE_N", "TILE_K", "STAGES"))
            element = 2 if r["dtype"] == "BF16" else 1
            if stages == 0:  # as many as fit; more than eight were not tried
                stages = min(8, max(2, (227 * 1024 - 1024) // ((m + n) * k * element)))
            cycles = float(r["time_ms"]) * CLOCK_OF_THE_SWEEP * 1e6 / (int(r["K"]) // k)
            out.append(Row(m, n, k, stages, element, cycles))
    return out


def main_loop(row: Row, steps: int) -> ClusterTrace:
    """A producer warp and an MMA warp that share a ring of stages."""
    row_bytes = row.tile_k * row.element
    lines = -(-row_bytes // 128)
    full = [(0, 8 * s) for s in range(row.stages)]
    empty = [(0, 1024 + 8 * s) for s in range(row.stages)]
    producer: list[Event] = [("init", -1, bar, 1) for bar in full + empty]
    mma: list[Event] = [("bar", -1, 0, 1, 64, True)]
    producer.append(("bar", -1, 0, 1, 64, True))
    for k in range(steps):
        s, phase = k % row.stages, k // row.stages & 1
        a, b = row.tile_m * row_bytes, row.tile_n * row_bytes
        producer += [
            ("wait", -1, empty[s], phase ^ 1),
            ("arrive", -1, full[s], 1, a + b),
            ("load", -1, a, row.tile_m * lines, ((full[s], a),)),
            ("load", -1, b, row.tile_n * lines, ((full[s], b),)),
        ]
        mma.append(("wait", -1, full[s], phase))
        mma += [("mma", -1, 1, row.tile_m, row.tile_n, False)] * max(1, row_bytes // 32)
        mma.append(("commit", -1, (empty[s],)))
    return ClusterTrace(0, 1, [StrandTrace(0, (0,), producer), StrandTrace(0, (1,), mma)])


def cycles_per_step(p: Parameters, row: Row, steps: tuple[int, int] = (60, 180)) -> float:
    """Modelled cycles per step of K in the steady state."""
    footprint = (row.tile_m + row.tile_n) * K_OF_THE_SWEEP * row.element
    latency = p.tma_latency_near if footprint <= p.l2_near_bytes else p.tma_latency_far
    memory = Memory(1 / p.sm_bytes_per_clk, 1 / p.sm_bytes_per_clk, latency, p.gmem_latency)
    short, long = (Node(p, memory).run([main_loop(row, n)]).cycles for n in steps)
    return (long - short) / (steps[1] - steps[0])


def errors(p: Parameters, which: list[Row], steps: tuple[int, int] = (60, 180)) -> list[float]:
    """Signed relative errors."""
    return [cycles_per_step(p, row, steps) / row.cycles - 1 for row in which]


def summary(found: list[float]) -> str:
    size = sorted(abs(e) for e in found)
    within = sum(e <= 0.1 for e in size)
    return (
        f"median {100 * statistics.median(size):.1f} %, 90th percentile {100 * size[int(0.9 * len(size))]:.1f} %, "
        f"worst {100 * size[-1]:.1f} %, bias {100 * statistics.mean(found):+.1f} %, {within} of {len(size)} within 10 %"
    )


def fit(p: Parameters, which: list[Row]) -> Parameters:
    """Coordinate descent on the mean absolute logarithm of the ratio; steps of 16, 8, 4 and 2 %."""

    def cost(q: Parameters) -> float:
        return statistics.mean(abs(math.log(1 + e)) for e in errors(q, which, (24, 72)))

    best = cost(p)
    for step in (0.16, 0.08, 0.04, 0.02):
        for name in FITTED:
            for factor in (1 + step, 1 / (1 + step)):
                q = p.with_values(**{name: p.values[name] * factor})
                found = cost(q)
                if found < best - 1e-5:
                    p, best = q, found
                    print(f"{name} = {p.values[name]:.4g}: {100 * best:.2f} %", flush=True)
                    break
    return p


# ---------------------------------------------------------------------------------------------- whole kernels of the book


def tmem_to_global(columns: int, chunk: int, warp: int, barrier: int) -> Iterator[list[Event]]:
    """Write-back of one warp, chunk by chunk: TMEM, registers, SMEM, TMA store that is waited for."""
    for _ in range(columns // chunk):
        events: list[Event] = [
            ("tmem", -1, chunk * 32 * 4, 1, True),
            ("tmem_wait", -1),
            ("smem", -1, chunk * 2 // 16, chunk * 2 * 32 // 128, True),
            ("fence", -1),
            ("bar", -1, barrier, 1, 128, True),
        ]
        if warp == 0:
            events += [("store", -1, 128 * 64 * 2, 128)] * (chunk // 64)
            events += [("commit_group", -1), ("wait_group", -1, 0, False)]
        events.append(("bar", -1, barrier, 1, 128, True))
        yield events


def step_4(k_tiles: int) -> ClusterTrace:
    """One 128 x 128 tile per CTA; load, wait, multiply, wait."""
    full, done = (0, 8), (0, 16)
    strands = []
    for warp in range(4):
        events: list[Event] = []
        if warp == 0:
            events += [("init", -1, full, 1), ("init", -1, done, 1), ("alloc", -1), ("fence", -1)]
        events.append(("bar", -1, 0, 1, -1, True))
        for k in range(k_tiles):
            if warp == 0:
                events += [("load", -1, 16384, 128, ((full, 16384),))] * 2 + [("arrive", -1, full, 1, 32768)]
            events.append(("wait", -1, full, k & 1))
            if warp == 0:
                events += [("mma", -1, 1, 128, 128, False)] * 4 + [("commit", -1, (done,))]
            events.append(("wait", -1, done, k & 1))
        for chunk in tmem_to_global(128, 128, warp, 10):
            events += chunk
        events.append(("bar", -1, 0, 1, -1, True))
        strands.append(StrandTrace(0, (warp,), events))
    return ClusterTrace(0, 1, strands)


@dataclass(frozen=True)
class Roles:
    """A persistent kernel with load, MMA and write-back roles, one accumulator per consumer.

    Attributes:
        ctas: in a cluster. tiles: that the busiest cluster computes. stages: of the ring. consumers: MMA warps.
        n: columns of one MMA. loads: bytes of each TMA load of a stage in one CTA. chunk: columns that write-back moves at a time.
        release_early: the accumulator is released when it is in registers, not when it is stored.
    """

    ctas: int
    tiles: int
    stages: int
    consumers: int
    n: int
    loads: tuple[int, ...]
    chunk: int
    release_early: bool = False

    def trace(self, k_tiles: int) -> ClusterTrace:
        ctas, consumers = range(self.ctas), range(self.consumers)
        full = [(0, 8 * s) for s in range(self.stages)]
        empty = {r: [(r, 256 + 8 * s) for s in range(self.stages)] for r in ctas}
        done = {r: [(r, 512 + 8 * c) for c in consumers] for r in ctas}
        free = [(0, 600 + 8 * c) for c in consumers]
        meet: list[Event] = (
            [("cluster_arrive", -1, 1), ("cluster_wait", -1)]
            if self.ctas > 1
            else [("bar", -1, 0, 1, -1, True)]
        )
        strands = []
        for r in ctas:
            for c in consumers:
                for warp in range(4):
                    events: list[Event] = []
                    if c == warp == 0:
                        events += [("init", -1, b, self.consumers) for b in empty[r]] + [
                            ("init", -1, b, 1) for b in done[r]
                        ]
                        if r == 0:
                            events += [("init", -1, b, 1) for b in full]
                            events += [("init", -1, b, 128 * self.ctas) for b in free]
                        events.append(("alloc", -1))
                    events += meet
                    for tile in range(self.tiles):
                        events.append(("wait", -1, done[r][c], tile & 1))
                        release: Event = ("arrive", -1, free[c], 32, 0)
                        for chunk in tmem_to_global(self.n, self.chunk, warp, 10 + c):
                            if self.release_early:
                                chunk.insert(2, release)
                            events += chunk
                        if not self.release_early:
                            events.append(release)
                    strands.append(StrandTrace(r, (4 * c + warp,), events))
            strands.append(
                StrandTrace(r, (4 * self.consumers + 3,), meet + self._producer(k_tiles, r, full, empty[r]))
            )
            for warp in range(4 * self.consumers, 4 * self.consumers + 3):
                c = warp - 4 * self.consumers
                work = self._mma(k_tiles, c, full, empty, done, free) if r == 0 and c < self.consumers else []
                strands.append(StrandTrace(r, (warp,), meet + work))
        return ClusterTrace(0, self.ctas, strands)

    def _producer(self, k_tiles: int, r: int, full: Any, empty: Any) -> list[Event]:
        events: list[Event] = []
        for n in range(self.tiles * k_tiles):
            s, phase = n % self.stages, n // self.stages & 1
            events.append(("wait", -1, empty[s], phase ^ 1))
            events += [("load", -1, nbytes, nbytes // 128, ((full[s], nbytes),)) for nbytes in self.loads]
            if r == 0:
                events.append(("arrive", -1, full[s], 1, self.ctas * sum(self.loads)))
        return events

    def _mma(self, k_tiles: int, c: int, full: Any, empty: Any, done: Any, free: Any) -> list[Event]:
        events: list[Event] = []
        n = 0
        for tile in range(self.tiles):
            events.append(("wait", -1, free[c], tile & 1 ^ 1))
            for _ in range(k_tiles):
                s, phase = n % self.stages, n // self.stages & 1
                n += 1
                events.append(("wait", -1, full[s], phase))
                events += [("mma", -1, self.ctas, 128 * self.ctas, self.n, False)] * 4
                events.append(("commit", -1, tuple(empty[r][s] for r in empty)))
            events.append(("commit", -1, tuple(done[r][c] for r in done)))
        return events


def tile_order(rows: int, columns: int, group: int) -> list[tuple[int, int]]:
    """Tiles in the order of the book's persistent kernels: ``group`` rows at a time, down each column (0: row by row)."""
    if not group:
        return [(r, c) for c in range(columns) for r in range(rows)]
    return [
        (r, c)
        for top in range(0, rows, group)
        for c in range(columns)
        for r in range(top, min(top + group, rows))
    ]


def loads(
    trace: ClusterTrace, tiles: list[tuple[int, int]], k_tiles: int, clusters: int
) -> dict[int, ClusterTrace]:
    """What the producers of every cluster load; each load of a step is another box of its tile's row or column."""
    probes = {}
    for index in range(clusters):
        strands = []
        for s in trace.strands:
            sizes = [e for e in s.events if e[0] == "load"]
            if not sizes:
                continue
            mine = tiles[index::clusters]
            each = len(sizes) // (k_tiles * max(1, len(tiles) // clusters + (len(tiles) % clusters > 0)))
            boxes = [
                (int(part == each - 1), (mine[t][int(part == each - 1)], s.rank, part, k))
                for t in range(len(mine))
                for k in range(k_tiles)
                for part in range(each)
            ]
            strands.append(StrandTrace(s.rank, s.warps, sizes[: len(boxes)], boxes[: len(sizes)]))
        probes[index] = ClusterTrace(index, trace.ctas, strands)
    return probes


def book(p: Parameters, size: int = 4096) -> list[tuple[str, float, float]]:
    """(kernel, measured microseconds, modelled microseconds) of the book's steps 4, 7, 8 and 9."""
    k_tiles, sms = size // 64, int(p.sms)
    rows, tiles = size // 128, (size // 128) ** 2
    kernels = [
        ("step 4: TMA loads", 493.814, step_4(k_tiles), tile_order(rows, rows, 0), tiles, sms, tiles * 32768),
        ("step 7: warp specialization", 226.613, Roles(1, -(-tiles // sms), 2, 1, 128, (16384, 16384), 128, True).trace(k_tiles), tile_order(rows, rows, 8), sms, sms, tiles * 32768),
        ("step 8: two-CTA cluster", 103.529, Roles(2, -(-tiles // 4 // (sms // 2)), 4, 1, 256, (16384, 16384), 128).trace(k_tiles), tile_order(rows // 2, rows // 2, 8), sms // 2, sms // 2, tiles // 4 * 65536),
        ("step 9: two consumers", 94.139, Roles(2, -(-tiles // 8 // (sms // 2)), 4, 2, 256, (16384,) * 3, 64).trace(k_tiles), tile_order(rows // 4, rows // 2, 8), sms // 2, sms // 2, tiles // 8 * 98304),
    ]  # fmt: skip
    out = []
    for name, measured, trace, order, clusters, nodes, per_step in kernels:
        stored, loaded = 2 * size * size, per_step * k_tiles
        memory = shared_memory_system(p, sms, loaded, stored, 4 * size * size + stored)
        for s in trace.strands:
            s.boxes = [(0, 0)] * sum(
                e[0] == "load" for e in s.events
            )  # the simulation only asks whether there are any
        waves = -(-clusters // nodes)
        late = []
        if p.l2_replay:
            seen = replay(loads(trace, order, k_tiles, clusters), nodes, p.l2_capacity)
            late = [seen.late[k * nodes] for k in range(waves)]
        cycles = Node(p, memory).run([trace] * waves, late).cycles
        out.append((name, measured, cycles / p.clock_ghz / 1e3 + p.launch_us))
    return out


def fit_l2(p: Parameters) -> Parameters:
    """The rate of L2, in whole bytes per cycle and SM, with which the greatest of the book's four errors is least."""

    def at(rate: int) -> Parameters:
        return p.with_values(l2_bytes_per_clk=rate * p.sms, l2_shared_bytes_per_clk=rate * p.sms)

    def worst(rate: int) -> float:
        found = book(at(rate).with_values(clock_ghz=CLOCK_OF_THE_BOOK))
        return max(abs(modelled / measured - 1) for _, measured, modelled in found)

    return at(min(range(50, 75), key=worst))


# ---------------------------------------------------------------------------------------------- the exercises on an H200


# Rows that parameters of an H200 were fitted to.
ENGINES = re.compile(r"wgmma n=|stream |\d+ ex2 and")


@dataclass(frozen=True)
class OnH200:
    """One kernel: measured there with L2 cold, and modelled at the clock that it ran at."""

    name: str
    measured: float
    clock_ghz: float
    modelled: float

    @property
    def fitted(self) -> bool:
        return ENGINES.match(self.name) is not None

    @property
    def error(self) -> float:
        return self.modelled / self.measured - 1


def on_h200(only: str = ".") -> Iterator[OnH200]:
    """The kernels of tests/hardware/timings.json whose names match the regular expression ``only``."""
    import numpy as np

    import emulator

    sys.path[:0] = [str(HERE.parent / "tests")]
    from hardware import timings

    record = json.loads(timings.RECORD.read_text(encoding="utf-8"))
    measured = {row["name"]: row for row in record["rows"]}
    for case in timings.cases():
        row = measured.get(case.name)
        if row is None or not re.search(only, case.name):
            continue
        kernel = emulator.compile(case.build(), arch="sm_90a")
        clock = row["cold_mhz"] / 1000
        found = model(kernel, [np.zeros(shape, dtype) for shape, dtype in case.tensors], clock_ghz=clock)
        yield OnH200(case.name, row["cold_us"], clock, found.microseconds)


# ---------------------------------------------------------------------------------------------- the report


@dataclass
class Compared:
    """Everything that was compared: (row, modelled cycles) of the sweep, the book's kernels, those on an H200."""

    sweep: list[tuple[Row, float]]
    book: list[tuple[str, float, float]]
    h200: list[OnH200]

    def errors(self, fitted: bool) -> list[float]:
        return [modelled / row.cycles - 1 for row, modelled in self.sweep if row.fitted == fitted]


def compare(p: Parameters, only: str) -> Compared:
    return Compared(
        [(row, cycles_per_step(p, row)) for row in rows()],
        book(p.with_values(clock_ghz=CLOCK_OF_THE_BOOK)),
        list(on_h200(only)),
    )


def plots(found: Compared, folder: Path) -> None:
    """Modelled against measured, two SVG files."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text, and the files small
    matplotlib.rcParams["svg.hashsalt"] = "timing model"
    import matplotlib.pyplot as plt

    def draw(name: str, title: str, unit: str, groups: dict[str, list[tuple[float, float]]]) -> None:
        figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
        for (label, points), marker in zip(groups.items(), "os^", strict=False):
            axes.plot(*zip(*points, strict=True), marker, markersize=4, fillstyle="none", label=label)
        ends = [
            min(min(x) for points in groups.values() for x in points),
            max(max(x) for points in groups.values() for x in points),
        ]
        axes.plot(ends, ends, "k-", linewidth=0.8, label="equal")
        axes.fill_between(
            ends, [0.85 * e for e in ends], [1.15 * e for e in ends], color="0.85", label="within 15 %"
        )
        axes.set(
            xscale="log", yscale="log", xlabel=f"measured, {unit}", ylabel=f"modelled, {unit}", title=title
        )
        axes.legend()
        figure.savefig(folder / name, metadata={"Date": None})
        plt.close(figure)

    draw(
        "sweep.svg", "Main loop of a GEMM on one SM of a B200", "cycles per step of K",
        {
            "held out": [(r.cycles, m) for r, m in found.sweep if not r.fitted],
            "fitted to": [(r.cycles, m) for r, m in found.sweep if r.fitted],
        },
    )  # fmt: skip
    draw(
        "h200.svg", "Whole kernels on an H200", "microseconds",
        {
            "whole kernels": [(r.measured, r.modelled) for r in found.h200 if not r.fitted],
            "engines, fitted to": [(r.measured, r.modelled) for r in found.h200 if r.fitted],
        },
    )  # fmt: skip


def report(compared: Compared) -> str:
    held_out, fitted = (compared.errors(which) for which in (False, True))
    lines = [
        f"`python benchmarks/timing_model.py`, {time.strftime('%Y-%m-%d')}.",
        "",
        "| rows of the main-loop sweep | error of cycles per step of K |",
        "|---|---|",
        f"| held out: {len(held_out)} | {summary(held_out)} |",
        f"| fitted to: {len(fitted)} | {summary(fitted)} |",
        "",
        f"| kernel of the book, 4096 cubed fp16 | measured, clock not stated | modelled at {CLOCK_OF_THE_BOOK} GHz | difference |",
        "|---|---:|---:|---:|",
    ]
    for name, measured, modelled in compared.book:
        lines.append(
            f"| {name} | {measured:.1f} us | {modelled:.1f} us | {100 * (modelled / measured - 1):+.1f} % |"
        )
    found = compared.h200
    for title, rows_ in (
        ("whole kernel on an H200", [r for r in found if not r.fitted]),
        ("engine on an H200, fitted to", [r for r in found if r.fitted]),
    ):
        if rows_:
            lines += [
                "",
                f"| {title} | clock | measured | modelled | difference |",
                "|---|---:|---:|---:|---:|",
            ]
        for r in rows_:
            lines.append(
                f"| {r.name} | {r.clock_ghz:.2f} GHz | {r.measured:.1f} us | {r.modelled:.1f} us | {100 * r.error:+.1f} % |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--markdown", type=Path, help="replace the section between the marks `measured` in this file"
    )
    parser.add_argument(
        "--fit", action="store_true", help="fit the parameters of grade F again and print them"
    )
    parser.add_argument("--h200", default=".", help="regular expression on the kernels that ran on an H200")
    parser.add_argument("--plots", type=Path, help="folder for the figures (needs matplotlib)")
    args = parser.parse_args()
    p = load("sm_100a")
    if args.fit:
        p = fit(p, [r for r in rows() if r.fitted])
        p = fit_l2(p)
        for name in (*FITTED, "l2_bytes_per_clk", "l2_shared_bytes_per_clk"):
            print(f"{name}: {p.values[name]:.4g}")
    compared = compare(p, args.h200)
    text = report(compared)
    print(text)
    if args.plots:
        plots(compared, args.plots)
    if args.markdown:
        begin, end = "<!-- measured -->\n", "<!-- /measured -->"
        page = args.markdown.read_text(encoding="utf-8")
        if begin not in page or end not in page:
            sys.exit(f"{args.markdown}: has no lines {begin.strip()} and {end} to put the tables between")
        head, rest = page.split(begin, 1)
        args.markdown.write_text(head + begin + text + end + rest.split(end, 1)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
