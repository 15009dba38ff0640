"""The same seed gives the same findings, counters and bits: in any process, with any hash seed, on any Python.

The outputs are those of exact numerics; the fast ones multiply in the BLAS of the machine.  AUTOGRADE_OTHER_PYTHON names a
second interpreter (another version with TVM, NumPy and ml_dtypes) that must give the same digest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import hashlib, json, sys
import numpy as np
import emulator
emulator.compile
from kernels import gemm_ladder
from tvm.script import tirx as T

def racy():
    @T.prim_func
    def kernel(D: T.Buffer((128,), "float32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([128])
        s = T.alloc_shared((128,), "float32")
        s[tx] = T.Cast("float32", tx)
        D[tx] = s[127 - tx]
    return kernel

record = []
kernel = emulator.compile(gemm_ladder.step7_warp_specialized(256, 256, 192, num_ctas=2))
rng = np.random.default_rng(3)
a = rng.standard_normal((256, 192)).astype(np.float16)
b = rng.standard_normal((256, 192)).astype(np.float16)
for schedule, seed in (("late", 0), ("random", 5), ("random", 6)):
    d = np.zeros((256, 256), np.float16)
    run = kernel.run(a, b, d, schedule=schedule, seed=seed, numerics="exact")
    record.append([hashlib.sha256(d.tobytes()).hexdigest(), sorted(run.counters.items()), len(run.findings)])
racy_kernel = emulator.compile(racy())
for schedule, seed in (("late", 0), ("random", 5)):
    d = np.zeros(128, np.float32)
    run = racy_kernel.run(d, schedule=schedule, seed=seed)
    findings = [[f.code, f.strength, f.message, f.warps, f.lanes] for f in run.findings]
    record.append([hashlib.sha256(d.tobytes()).hexdigest(), sorted(run.counters.items()), findings])
print(hashlib.sha256(json.dumps(record).encode()).hexdigest(), len(record[-1][-1]))
"""


def digest(hash_seed: int, python: str = sys.executable) -> str:
    env = dict(os.environ, PYTHONHASHSEED=str(hash_seed), OPENBLAS_NUM_THREADS="1")
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    # the program is a real file, because TIRx reads the source of a kernel
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"determinism_{os.getpid()}_{hash_seed}.py"
    path.write_text(PROGRAM)
    try:
        done = subprocess.run([python, str(path)], capture_output=True, text=True, env=env, check=True)
    finally:
        path.unlink()
    return done.stdout.strip()


def test_two_processes_with_different_hash_seeds_agree() -> None:
    first, second = digest(1), digest(2, os.environ.get("AUTOGRADE_OTHER_PYTHON", sys.executable))
    assert first == second
    assert not first.endswith(" 0")  # the racy kernel was caught
