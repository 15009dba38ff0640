"""Kernel times on an H200 for the timing model: ``python tests/hardware/timings.py --out DIR/timings.json [--only REGEX]``.

Every case is compiled, run, checked where there is something to check, and timed: device events around one call, other data
read in between so that L2 is cold (``cold_us``), and with L2 as the last call left it (``warm_us``). Workers compile side by side;
one of them times at a time. The SM clock is read while the calls run. The record, tests/hardware/timings.json, is what
benchmarks/timing_model.py compares the model with.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
RECORD = HERE.with_name("timings.json")
CALLS = 25
NUM_SMS = 132
SECONDS = 0.15  # of repeated calls before the timed ones, so that the clock is what load makes of it


@dataclass(frozen=True)
class Timed:
    """One kernel: builder (``module:function`` or ``exercise_NN:function``), its arguments, its tensors.

    ``tensors``: (shape, dtype), the last one is written. ``check``: what the output must be: gemm_nt, gemm_nn, copy, double,
    add, transpose, or nothing.
    """

    name: str
    builder: str
    kwargs: dict[str, Any]
    tensors: tuple[tuple[tuple[int, ...], str], ...]
    check: str = ""

    def build(self) -> Any:
        """The PrimFunc."""
        place, function = self.builder.split(":")
        if place.startswith("exercise"):
            from hardware.exercises import build, kernel_cell

            return build(kernel_cell(place), function, self.kwargs)
        return getattr(importlib.import_module(place), function)(**self.kwargs)


def cases() -> Iterator[Timed]:
    yield from _engines()
    yield from _gemms()
    yield from _exercises()


def _engines() -> Iterator[Timed]:
    """Single engines: what the parameters of an H200 are fitted to."""
    for ctas, warpgroups in ((1, 1), (132, 1), (1056, 1), (132, 2)):
        yield Timed(
            f"wgmma n=64, 1 group, {ctas} CTAs of {warpgroups}", "kernels.hopper:wgmma_rate",
            {"n": 64, "groups": 1, "warpgroups": warpgroups, "ctas": ctas, "in_flight": 0},
            (((ctas, 128 * warpgroups), "float32"),),
        )  # fmt: skip
    for n in (64, 128, 256):
        for warpgroups in (1, 2):
            for in_flight in (0, 1):
                yield Timed(
                    f"wgmma n={n}, {warpgroups} warpgroups, {in_flight} in flight", "kernels.hopper:wgmma_rate",
                    {"n": n, "groups": 2048, "warpgroups": warpgroups, "in_flight": in_flight},
                    (((NUM_SMS, 128 * warpgroups), "float32"),),
                )  # fmt: skip
    rows = NUM_SMS * 256 * 256
    for box, stages in (
        (8, 4),
        (32, 4),
        (64, 1),
        (64, 2),
        (64, 4),
        (64, 8),
        (64, 16),
        (128, 8),
        (256, 2),
        (256, 6),
    ):
        yield _stream(f"stream from DRAM, {stages} boxes of {box} rows", rows, rows, box, stages, 1)
    for box, stages in ((64, 1), (64, 2), (64, 4), (64, 8), (64, 16), (256, 6)):
        yield _stream(f"stream from L2, {stages} boxes of {box} rows", NUM_SMS * 1024, rows, box, stages, 64)
    for megabytes in (26, 35, 43, 52, 69):
        share = megabytes * 1000**2 // 128 // NUM_SMS // 64 * 64 * NUM_SMS
        yield _stream(f"stream {megabytes} MB again and again", share, rows, 64, 16, 32)
    for ex2, fma in ((1, 0), (0, 8), (1, 8), (1, 16)):
        n = NUM_SMS * 2048 * 8
        yield Timed(
            f"{ex2} ex2 and {fma} fma", "kernels.hopper:exponentials", {"n": n, "ex2": ex2, "fma": fma},
            (((n,), "float32"), ((n,), "float32")),
        )  # fmt: skip


def _stream(name: str, rows: int, total: int, box: int, stages: int, times: int) -> Timed:
    return Timed(
        name, "kernels.hopper:stream", {"rows": rows, "total_rows": total, "box": box, "stages": stages, "times": times},
        (((total, 64), "float16"), ((NUM_SMS, 32), "float16")),
    )  # fmt: skip


def _gemms() -> Iterator[Timed]:
    """Whole wgmma kernels."""
    for size in (2048, 4096):
        yield _gemm("serial", size)
        for blk_n, stages in ((128, 2), (128, 4), (256, 3)):
            yield _gemm("pipelined", size, blk_n=blk_n, stages=stages)
        for consumers, blk_n, stages, lag in (
            (1, 128, 4, True), (1, 256, 4, True), (2, 128, 2, True), (2, 128, 4, False), (2, 128, 4, True), (2, 256, 4, True),
        ):  # fmt: skip
            yield _gemm("specialized", size, consumers=consumers, blk_n=blk_n, stages=stages, lag=lag)
        yield _gemm("specialized", size, consumers=2, blk_n=256, stages=4, num_ctas=NUM_SMS)
    for group in (1, 8, 64):
        yield _gemm("specialized", 8192, consumers=2, blk_n=256, stages=4, num_ctas=NUM_SMS, group=group)
        yield _gemm(
            "specialized", 16384, K=2048, consumers=2, blk_n=256, stages=4, num_ctas=NUM_SMS, group=group
        )


def _gemm(kind: str, size: int, K: int = 0, **kwargs: Any) -> Timed:
    K = K or size
    words = ", ".join(f"{k}={v}" for k, v in kwargs.items())
    return Timed(
        f"{kind} {size} x {size} x {K}" + (f", {words}" if words else ""), f"kernels.hopper:{kind}",
        {"M": size, "N": size, "K": K, **kwargs},
        (((size, K), "float16"), ((size, K), "float16"), ((size, size), "float16")), "gemm_nt",
    )  # fmt: skip


def _exercises() -> Iterator[Timed]:
    """Exercises 01 to 04, at the sizes of their speed checks and at others."""
    for n in (1 << 26, 1 << 24, 1 << 22):
        yield Timed(
            f"exercise_01 add, N = {n}", "exercise_01:build_add", {"N": n}, (((n,), "float32"),) * 3, "add"
        )
    for size in (1024, 2048):
        square = (size, size)
        yield Timed(
            f"exercise_01 GEMM, {size} cubed", "exercise_01:build_gemm", {"M": size, "N": size, "K": size},
            ((square, "float16"), (square, "float16"), (square, "float32")), "gemm_nn",
        )  # fmt: skip
    for exercise, check in (
        ("exercise_02", "double"),
        ("exercise_03", "transpose"),
        ("exercise_04", "transpose"),
    ):
        builder = "build_transpose" if exercise == "exercise_03" else "build_kernel"
        for size in (8192, 4096, 2048):
            yield Timed(
                f"{exercise}, {size} x {size}", f"{exercise}:{builder}", {"M": size, "N": size},
                (((size, size), "float16"),) * 2, check,
            )  # fmt: skip


# ------------------------------------------------------------------------------------------------ measuring


PROBE = r"""
extern "C" __global__ void probe(unsigned long long* out) {
    unsigned long long cycles, nanoseconds; unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
    out[0] = sm; out[1] = nanoseconds; out[2] = cycles;
}
"""


class Clock:
    """The SM clock during a call, from the SM's own counter: read before and after it on the device."""

    def __init__(self) -> None:
        import cupy

        self._kernel = cupy.RawKernel(PROBE, "probe")
        self._out = cupy.zeros((2, 3), cupy.uint64)
        self.seen: list[float] = []

    def read(self, which: int) -> None:
        self._kernel((1,), (1,), (self._out[which],))

    def note(self) -> None:
        """After both reads are done."""
        (sm, start, first), (other, end, last) = self._out.get().astype("int64").tolist()
        if sm == other and end - start > 5000:
            self.seen.append((last - first) / (end - start) * 1000)


def measure(case: Timed, device: Any, lock: Path) -> dict[str, Any]:
    """Compile, and then, while no other worker does, run, check and time."""
    import torch
    import tvm

    started = time.monotonic()
    kernel = device.compile(case.build())
    compiled = time.monotonic()
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        made = [
            torch.empty(shape, dtype=getattr(torch, dtype), device="cuda").normal_()
            for shape, dtype in case.tensors
        ]
        arguments = [tvm.runtime.from_dlpack(t) for t in made]
        kernel(*arguments)
        torch.cuda.synchronize()
        row: dict[str, Any] = {"name": case.name, "wrong": wrong(case.check, made)}
        row |= timed(torch, lambda: kernel(*arguments))
    row["seconds"] = [round(compiled - started, 1), round(time.monotonic() - compiled, 1)]
    return row


def timed(torch: Any, call: Any) -> dict[str, Any]:
    """Medians of `CALLS` calls after other data and after themselves, and the clock (MHz) during these calls."""
    flush = torch.ones((512 << 20) // 4, dtype=torch.int32, device="cuda")
    out: dict[str, Any] = {}
    clock = Clock()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for _ in range(8):
            call()
        torch.cuda.synchronize()
    for what in ("cold", "warm"):
        samples, covered = [], True
        clock.seen.clear()
        for _ in range(CALLS):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            if what == "warm":
                call()
                torch.cuda._sleep(150_000)
            else:
                flush.sum()
            clock.read(0)
            first.record()
            call()
            last.record()
            clock.read(1)
            covered &= not first.query()
            torch.cuda.synchronize()
            clock.note()
            samples.append(first.elapsed_time(last) * 1000)
        samples.sort()
        out[f"{what}_us"] = round(statistics.median(samples), 3)
        out[f"{what}_spread"] = [round(samples[CALLS // 10], 3), round(samples[-1 - CALLS // 10], 3)]
        out[f"{what}_covered"] = covered
        out[f"{what}_mhz"] = round(statistics.median(clock.seen)) if clock.seen else None
    return out


def wrong(check: str, made: list[Any]) -> str:
    """What is wrong with the output, in words; empty when nothing is."""
    if not check:
        return ""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    *x, out = made
    if check.startswith("gemm"):
        b = x[1].t() if check == "gemm_nt" else x[1]
        want = (x[0] @ b).float() if x[0].shape[0] > 4096 else x[0].float() @ b.float()
        error = (out.float() - want).abs().max().item()
        return "" if error < 0.02 * x[0].shape[1] ** 0.5 else f"off by {error:g}"
    want = {
        "double": lambda: x[0] * 2,
        "copy": lambda: x[0],
        "transpose": lambda: x[0].t(),
        "add": lambda: x[0] + x[1],
    }[check]()
    return "" if torch.equal(out, want) else "other values"


def work(indices: list[int], lock: Path) -> None:
    """One process: a JSON line per case on standard output."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from autograder.runner.backends.cuda import open_device

    device = open_device("sm_90a")
    every = list(cases())
    for i in indices:
        try:
            row = measure(every[i], device, lock)
        except Exception:
            row = {"name": every[i].name, "error": traceback.format_exc()[-1500:]}
        out.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--only", default=".", help="regular expression on names")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--deadline", type=float, default=400.0, help="seconds")
    parser.add_argument("--list", action="store_true", help="the names of the cases, without a GPU")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(p for p in sys.path if Path(p).resolve() != HERE.parent)]
    if given.work:
        return work([int(i) for i in given.work[1:]], Path(given.work[0]))
    chosen = [i for i, c in enumerate(cases()) if re.search(given.only, c.name)]
    if given.list:
        return print("\n".join(c.name for i, c in enumerate(cases()) if i in chosen))
    if given.out is None:
        parser.error("--out says where the record goes")
    rows = _in_parallel(chosen, given.workers, given.out.with_suffix(".lock"), given.deadline)
    order = {c.name: i for i, c in enumerate(cases())}
    rows.sort(key=lambda row: order[row["name"]])
    from autograder.gpu import find_gpu
    from hardware.exercises import machine_info

    head = {
        "machine": machine_info(find_gpu()),
        "command": " ".join(["python tests/hardware/timings.py", *sys.argv[1:]]),
    }
    lines = ",\n".join("  " + json.dumps(r) for r in rows)
    given.out.write_text(
        json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8"
    )
    given.out.with_suffix(".lock").unlink(missing_ok=True)
    for row in rows:
        print(
            row["name"],
            *(row.get(k) for k in ("cold_us", "cold_mhz", "warm_us", "warm_mhz", "wrong", "seconds")),
            row.get("error", ""),
        )
    print(
        f"{len(rows)} of {len(chosen)} cases, {sum('error' in r or bool(r.get('wrong')) for r in rows)} with trouble"
    )
    return None


def _in_parallel(chosen: list[int], workers: int, lock: Path, deadline: float) -> list[dict[str, Any]]:
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE), "--work", str(lock), *map(str, chosen[k::workers])],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True,
        )
        for k in range(min(workers, len(chosen)))
    ]  # fmt: skip
    timer = threading.Timer(deadline, lambda: [p.kill() for p in processes])
    timer.start()
    rows: list[dict[str, Any]] = []

    def read(process: Any) -> None:
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))

    threads = [threading.Thread(target=read, args=(p,)) for p in processes]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    timer.cancel()
    return rows


if __name__ == "__main__":
    main()
