"""How fast the emulator is, against what a learner without a GPU would use today.

    python benchmarks/emulator_speed.py [--python PYTHON] [--json FILE]

Everything is measured in one run, rounds interleaved, after one round that does not count; median of all launches, in
wall time and in CPU time (which other work on the machine disturbs less).  The comparison needs Triton (its
interpreter, TRITON_INTERPRET=1) and Numba (its CUDA simulator, NUMBA_ENABLE_CUDASIM=1); they are no dependency of the
course, so ``--python`` names an interpreter that has them.

What is compared:

* fp16 GEMM 512 and 1024 cubed: the ladder's last step (emulated, races checked and not) against a 128x128x64-tiled
  Triton matmul in Triton's interpreter;
* one thread per output, 64x64x64 float32: a TIRx kernel against the same kernel in Numba's simulator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

TRITON = textwrap.dedent(
    """
    import os, sys, time
    os.environ["TRITON_INTERPRET"] = "1"
    import torch, triton
    import triton.language as tl
    torch.set_num_threads(2)

    @triton.jit
    def matmul(A, B, D, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        m = tl.program_id(0) * BM + tl.arange(0, BM)
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k0 in range(0, K, BK):
            a = tl.load(A + m[:, None] * K + (k0 + k)[None, :])
            b = tl.load(B + n[:, None] * K + (k0 + k)[None, :])
            acc += tl.dot(a, tl.trans(b))
        tl.store(D + m[:, None] * N + n[None, :], acc.to(tl.float16))

    size = int(sys.argv[1])
    a, b = torch.randn(2, size, size).half()
    d = torch.zeros(size, size, dtype=torch.float16)
    start = time.perf_counter(), time.process_time()
    matmul[(size // 128, size // 128)](a, b, d, size, size, size, BM=128, BN=128, BK=64)
    seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    assert (d.float() - a.float() @ b.float().T).abs().max() < 0.5
    print(*seconds)
    """
)

NUMBA = textwrap.dedent(
    """
    import os, time
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    import numpy as np
    from numba import cuda

    @cuda.jit
    def gemm(A, B, D):
        i, j = cuda.grid(2)
        if i < D.shape[0] and j < D.shape[1]:
            total = 0.0
            for k in range(A.shape[1]):
                total += A[i, k] * B[j, k]
            D[i, j] = total

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 64, 64)).astype(np.float32)
    d = np.zeros((64, 64), np.float32)
    start = time.perf_counter(), time.process_time()
    gemm[(4, 4), (16, 16)](a, b, d)
    seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    assert np.abs(d - a @ b.T).max() < 1e-3
    print(*seconds)
    """
)


Seconds = tuple[float, float]  # wall, CPU
LAUNCHES = 5  # of an emulated GEMM per round; a round of the other tools takes seconds


def foreign(python: str, program: str, *args: str) -> Seconds:
    """The two times that a program in another interpreter prints."""
    done = subprocess.run([python, "-c", program, *args], capture_output=True, text=True, check=True)
    wall, cpu = done.stdout.split()[-2:]
    return float(wall), float(cpu)


def timed(call: Callable[[], Any]) -> tuple[Any, Seconds]:
    """What a call returns, and what it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, (time.perf_counter() - wall, time.process_time() - cpu)


def naive_gemm(size: int):
    from tvm.script import tirx as T

    @T.prim_func
    def gemm(
        A: T.Buffer((size, size), "float32"),
        B: T.Buffer((size, size), "float32"),
        D: T.Buffer((size, size), "float32"),
    ):
        T.device_entry()
        bx = T.cta_id([size * size // 256])
        tx = T.thread_id([256])
        i = T.meta_var((bx * 256 + tx) // size)
        j = T.meta_var((bx * 256 + tx) % size)
        total: T.float32 = T.float32(0)
        for k in T.serial(size):
            total = total + A[i, k] * B[j, k]
        D[i, j] = total

    return gemm


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=None, help="an interpreter with triton, torch and numba")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT))
    import numpy as np

    import emulator
    from tests.kernels import gemm_ladder

    rows: dict[str, list[Seconds]] = {}

    def note(name: str, seconds: Seconds) -> None:
        rows.setdefault(name, []).append(seconds)

    kernels = {}
    for size in (512, 1024):
        prim_func = gemm_ladder.step9_two_consumers(size, size, size)
        kernels[size], seconds = timed(partial(emulator.compile, prim_func))
        note(f"translate step 9, {size}", seconds)
    naive = emulator.compile(naive_gemm(64))
    rng = np.random.default_rng(0)
    for counts in range(-1, args.rounds):
        for size, kernel in kernels.items():
            a, b = rng.standard_normal((2, size, size)).astype(np.float16)
            d = np.zeros((size, size), np.float16)
            for _ in range(LAUNCHES):
                _, plain = timed(partial(kernel.run, a, b, d, check=False))
                assert np.abs(d - a.astype(np.float32) @ b.astype(np.float32).T).max() < 0.5
                run, checked = timed(partial(kernel.run, a, b, d))
                assert run.findings == (), run.findings
                if counts >= 0:
                    note(f"emulator, step 9, {size}", plain)
                    note(f"emulator, step 9, {size}, checked", checked)
            if counts < 0:
                continue
            if args.python:
                note(f"Triton interpreter, {size}", foreign(args.python, TRITON, str(size)))
        a, b = rng.standard_normal((2, 64, 64)).astype(np.float32)
        d = np.zeros((64, 64), np.float32)
        _, plain = timed(partial(naive.run, a, b, d, check=False))
        assert np.abs(d - a @ b.T).max() < 1e-3
        _, checked = timed(partial(naive.run, a, b, d))
        if counts < 0:
            continue
        note("emulator, naive 64", plain)
        note("emulator, naive 64, checked", checked)
        if args.python:
            note("Numba CUDA simulator, naive 64", foreign(args.python, NUMBA))
    medians = {
        name: tuple(statistics.median(v[k] for v in values) for k in range(2))
        for name, values in rows.items()
    }
    print(f"{'':40s} {'wall':>10s}    {'CPU':>10s}")
    for name, (wall, cpu) in medians.items():
        print(f"{name:40s} {wall * 1e3:10.1f} ms {cpu * 1e3:10.1f} ms")

    def ratio(slow: str, fast: str, text: str) -> None:
        if slow in medians:
            wall, cpu = (medians[slow][k] / medians[fast][k] for k in range(2))
            print(f"{text}: {wall:.2f} x in wall time, {cpu:.2f} x in CPU time")

    for size in (512, 1024):
        plain_name = f"emulator, step 9, {size}"
        ratio(f"{plain_name}, checked", plain_name, f"{size}: full checking costs")
        ratio(f"Triton interpreter, {size}", plain_name, f"{size}: faster than Triton's interpreter")
    ratio(
        "Numba CUDA simulator, naive 64", "emulator, naive 64", "naive 64: faster than Numba's CUDA simulator"
    )
    if args.json:
        args.json.write_text(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
