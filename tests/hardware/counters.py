"""Bank conflicts and sectors: the emulator's counts against the profiler's.

``python -m hardware.counters --gpu --out DIR`` runs the kernels below under Nsight Compute (its clock control off).
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

METRICS = {
    "shared load wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared store wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared load conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared store conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "global load requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global store requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global store sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
}
THREADS = 128
SPAN = 8192  # words

# name: (words per access, word index of a thread in SMEM, word index of a thread in global memory)
PATTERNS = {
    "dense": (1, "tx", "tx"),
    "stride 2": (1, "tx * 2", "tx * 2"),
    "stride 32": (1, "(tx % 32) * 32 + tx // 32", "(tx % 32) * 32 + tx // 32"),
    "stride 33": (1, "tx * 33 % 4096", "tx * 33 % 4096"),
    "vector of 4, dense": (4, "tx * 4", "tx * 4"),
    "vector of 4, rows of 128 bytes": (4, "tx * 32 % 4096", "tx * 32 % 4096"),
    "vector of 4, rows of 128 bytes, 128B swizzle": (
        4,
        "(tx * 32 % 4096) + ((tx % 8) * 4)",
        "(tx * 32 % 4096) + ((tx % 8) * 4)",
    ),
    "vector of 2, stride 4": (2, "tx * 4", "tx * 4"),
    "one word for all": (1, "tx // 32", "tx // 32"),
    "shifted by one word": (1, "tx + 1", "tx + 1"),
    "pairs share a word": (1, "tx // 2", "tx // 2"),
}


def build(pattern: str) -> Any:
    """One load and one store of the pattern in global memory, and one of each in shared memory, per thread."""
    from hardware.harness import kernel_from_source

    words, shared, global_ = PATTERNS[pattern]
    vector = f".v{words}" if words > 1 else ""
    regs = ", ".join(f"r[{j}]" for j in range(words))
    source = f"""@T.prim_func
def kernel(A: T.Buffer(({SPAN},), "uint32"), D: T.Buffer(({SPAN},), "uint32")):
    T.device_entry()
    T.cta_id([1])
    tx = T.thread_id([{THREADS}])
    pool = T.SMEMPool()
    s = pool.alloc(({SPAN},), "uint32", align=128)
    pool.commit()
    r = T.alloc_local(({words},), "uint32")
    T.ptx["ld.global{vector}.b32"]({regs}, T.address_of(A[{global_}]))
    T.ptx["st.shared{vector}.b32"](s.ptr_to([{shared}]), {regs})
    T.cuda.cta_sync()
    T.ptx["ld.shared{vector}.b32"]({regs}, s.ptr_to([{shared}]))
    T.ptx["st.global{vector}.b32"](T.address_of(D[{global_}]), {regs})
"""
    return kernel_from_source(f"counters {pattern}", source)


def arrays() -> list[np.ndarray]:
    return [np.arange(SPAN, dtype=np.uint32), np.zeros(SPAN, np.uint32)]


def emulated(pattern: str) -> dict[str, int]:
    import emulator

    run = emulator.compile(build(pattern), arch="sm_90a").run(*arrays(), profile=True)
    out = dict.fromkeys(METRICS, 0)
    for a in run.accesses:
        kind = "store" if a.write else "load"
        if a.space == "shared":
            out[f"shared {kind} wavefronts"] += a.passes
            out[f"shared {kind} conflicts"] += a.passes - a.ideal
        else:
            out[f"global {kind} requests"] += a.requests
            out[f"global {kind} sectors"] += a.passes
    return out


def child() -> None:
    """Launch every pattern once."""
    from hardware import harness

    for pattern in PATTERNS:
        harness.run_on_gpu(harness.compile_for_gpu(build(pattern)), arrays())


def profiled() -> list[dict[str, int]]:
    """One row of metrics per launch, in launch order."""
    command = [
        "ncu",
        "--clock-control",
        "none",
        "--csv",
        "--metrics",
        ",".join(METRICS.values()),
        sys.executable,
        "-m",
        "hardware.counters",
        "--child",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    start = done.stdout.find('"ID"')
    if start < 0:
        raise RuntimeError(f"ncu gave no table: {(done.stdout + done.stderr)[-600:]}")
    names = {v: k for k, v in METRICS.items()}
    rows: dict[str, dict[str, int]] = {}
    for row in csv.DictReader(io.StringIO(done.stdout[start:])):
        if row.get("Metric Name") in names:
            rows.setdefault(row["ID"], {})[names[row["Metric Name"]]] = int(
                float(row["Metric Value"].replace(",", ""))
            )
    return [rows[k] for k in sorted(rows, key=int)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        child()
        return
    table = {p: {"emulator": emulated(p)} for p in PATTERNS}
    if args.gpu:
        for pattern, row in zip(PATTERNS, profiled(), strict=True):
            table[pattern]["gpu"] = row
    for pattern, both in table.items():
        print(f"{pattern:46s}", json.dumps(both))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "counters.json").write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
