"""How far the timing model can be trusted: the model against public measurements of a B200.

    python benchmarks/timing_model.py [--markdown FILE] [--fit]

1. The main loop of a GEMM on one SM, 384 rows over tile shapes, stages and element types (data/README.md). The rows are divided
   by tile shape: parameters of grade F were fitted to one half (``--fit`` does it again), the error is reported on the other.
2. Four whole kernels of the book "Modern GPU Programming for MLSys" (mlc-ai/modern-gpu-programming-for-mlsys, chapters "Pipelining
   GEMM with TMA" and "Scaling GEMM with Warp Specialization and Clusters"): 4096 cubed, fp16. Their structure (tiles, stages, roles, what
   waits for what) is written down here as events; nothing was fitted to their times. Their clock is not stated; 1.54 GHz is the
   base clock that a profile in the same book's appendix implies.
3. The exercises that run on an H200, measured there for this course (tests/hardware/exercises.json) and modelled with the parameters of
   an H200 at the clock of the measurement. One parameter, how many plain loads a warp has in flight, was fitted to exercise_01's GEMM.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

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


def book(p: Parameters, size: int = 4096) -> list[tuple[str, float, float]]:
    """(kernel, measured microseconds, modelled microseconds) of the book's steps 4, 7, 8 and 9."""
    k_tiles, sms = size // 64, int(p.sms)
    tiles = (size // 128) ** 2
    kernels = [
        ("step 4: TMA loads", 493.814, step_4(k_tiles), -(-tiles // sms), tiles * 32768),
        ("step 7: warp specialization", 226.613, Roles(1, -(-tiles // sms), 2, 1, 128, (16384, 16384), 128, True).trace(k_tiles), 1, tiles * 32768),
        ("step 8: two-CTA cluster", 103.529, Roles(2, -(-tiles // 4 // (sms // 2)), 4, 1, 256, (16384, 16384), 128).trace(k_tiles), 1, tiles // 4 * 65536),
        ("step 9: two consumers", 94.139, Roles(2, -(-tiles // 8 // (sms // 2)), 4, 2, 256, (16384,) * 3, 64).trace(k_tiles), 1, tiles // 8 * 98304),
    ]  # fmt: skip
    out = []
    for name, measured, trace, waves, per_step in kernels:
        stored, loaded = 2 * size * size, per_step * k_tiles
        memory = shared_memory_system(p, sms, loaded, stored, 4 * size * size + stored)
        cycles = Node(p, memory).run([trace] * waves).cycles
        out.append((name, measured, cycles / p.clock_ghz / 1e3 + p.launch_us))
    return out


# ---------------------------------------------------------------------------------------------- the exercises on an H200


def kernel_cell(exercise: str) -> str:
    """The solution's source."""
    notebook = json.loads(
        (HERE.parent / "solutions" / exercise / f"{exercise}.ipynb").read_text(encoding="utf-8")
    )
    cells = notebook["cells"]
    return "".join(
        next(c for c in cells if c["metadata"].get("nbgrader", {}).get("grade_id") == "kernel")["source"]
    )


def built(source: str, builder: str, params: dict[str, int]) -> Any:
    """What the builder in a source returns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("timed_kernel", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, builder)(**params)


def on_h200(exercises: tuple[str, ...] = ("exercise",)) -> list[tuple[str, float, float]]:
    """(what, measured, modelled microseconds) of each solution and size that was measured.

    ``exercises``: beginnings of names; default: all.
    """
    import numpy as np

    import emulator

    measured = json.loads(
        (HERE.parent / "tests" / "hardware" / "exercises.json").read_text(encoding="utf-8")
    )["measured"]
    found: dict[str, list[float]] = {}
    kernels: dict[str, tuple[str, str, dict[str, int]]] = {}
    for row in measured:
        name, result = row["name"], row.get("measured")
        if not result or result["kernel_us"] is None or "more work" in name or "PyTorch" in name:
            continue
        exercise = row["exercise"]
        if not exercise.startswith(exercises):
            continue
        source = kernel_cell(exercise)
        name = (
            f"{exercise}, {result['builder']}({', '.join(f'{k} = {v}' for k, v in result['params'].items())})"
        )
        if "tiles per CTA" in row["name"]:
            span = row["name"].split(", ")[1].split()[0]
            source = source.replace("SPAN = 16", f"SPAN = {span}")
            name += f", {span} tiles per CTA"
        found.setdefault(name, []).append(result["kernel_us"])
        kernels[name] = (source, result["builder"], result["params"])
    out = []
    for name, times in found.items():
        kernel = emulator.compile(built(*kernels[name]), arch="sm_90a")
        modelled = model(kernel, [np.zeros(shape, dtype) for shape, dtype in tensors(*kernels[name][1:])])
        out.append((name, statistics.median(times), modelled.microseconds))
    return out


def tensors(builder: str, p: dict[str, int]) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of the exercises that run on an H200."""
    if builder == "build_add":
        return [((p["N"],), "float32")] * 3
    if builder == "build_gemm":
        return [((p["M"], p["K"]), "float16"), ((p["K"], p["N"]), "float16"), ((p["M"], p["N"]), "float32")]
    return [((p["M"], p["N"]), "float16"), ((p["N"], p["M"]), "float16")]


# ---------------------------------------------------------------------------------------------- the report


def report(p: Parameters) -> str:
    every = rows()
    held_out = [r for r in every if not r.fitted]
    fitted = [r for r in every if r.fitted]
    lines = [
        f"`python benchmarks/timing_model.py`, {time.strftime('%Y-%m-%d')}.",
        "",
        "| rows of the main-loop sweep | error of cycles per step of K |",
        "|---|---|",
        f"| held out: {len(held_out)} | {summary(errors(p, held_out))} |",
        f"| fitted to: {len(fitted)} | {summary(errors(p, fitted))} |",
        "",
        f"| kernel of the book, 4096 cubed fp16 | measured, clock not stated | modelled at {CLOCK_OF_THE_BOOK} GHz | difference |",
        "|---|---:|---:|---:|",
    ]
    for name, measured, modelled in book(p.with_values(clock_ghz=CLOCK_OF_THE_BOOK)):
        lines.append(
            f"| {name} | {measured:.1f} us | {modelled:.1f} us | {100 * (modelled / measured - 1):+.1f} % |"
        )
    h200 = load("sm_90a")
    lines += [
        "",
        f"| exercise on an H200 | measured at {h200.clock_ghz:g} GHz | modelled | difference |",
        "|---|---:|---:|---:|",
    ]
    for name, measured, modelled in on_h200():
        lines.append(
            f"| {name} | {measured:.1f} us | {modelled:.1f} us | {100 * (modelled / measured - 1):+.1f} % |"
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
    args = parser.parse_args()
    p = load("sm_100a")
    if args.fit:
        p = fit(p, [r for r in rows() if r.fitted])
        for name in FITTED:
            print(f"{name}: {p.values[name]:.4g}")
    text = report(p)
    print(text)
    if args.markdown:
        begin, end = "<!-- measured -->\n", "<!-- /measured -->"
        page = args.markdown.read_text(encoding="utf-8")
        if begin not in page or end not in page:
            sys.exit(f"{args.markdown}: has no lines {begin.strip()} and {end} to put the tables between")
        head, rest = page.split(begin, 1)
        args.markdown.write_text(head + begin + text + end + rest.split(end, 1)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
