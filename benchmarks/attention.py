"""Exercise 15's solution beside flash_attention4 of the package tirx-kernels: modelled times, outputs, assembly.

    python benchmarks/attention.py                       # all three, as Markdown on standard output
    python benchmarks/attention.py --length 1024 --both --no-outputs

Both kernels are modelled by the same model with the same parameters (emulator/timing/b200.yaml): one batch, 32 query heads, 4 heads of K
and V, head dimension 128, fp16, 148 SMs. Both compute the same small problems in the emulator, with race detection, from the
same inputs, and are compared with each other and with PyTorch in float64. Both are compiled for sm_100a where there is an nvcc.

The package runs unmodified (``pip install --no-deps tirx-kernels==0.1.2.post1``), see tirx_kernels.py.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
_HERE = Path(__file__).resolve().parent
# This directory last: a file here has the name of the package.
sys.path[:] = [str(_HERE.parent), *(p for p in sys.path if Path(p or ".").resolve() != _HERE), str(_HERE)]

import cuda_on_cpu  # noqa: E402
import torch  # noqa: E402

import emulator  # noqa: E402
from autograder.assembly import OPTIONS, find_nvcc  # noqa: E402
from autograder.release import kernel_cell  # noqa: E402
from autograder.runner.assembly_child import read_ptxas  # noqa: E402
from emulator.timing.model import Modelled, model  # noqa: E402

SMS, DIM = 148, 128
THEIRS = "tirx_kernels.ported.flashattention.flash_attention4"


@dataclass(frozen=True)
class Problem:
    """Self attention: batches, queries and keys, heads of Q and O, heads of K and V."""

    length: int
    query_heads: int = 32
    key_heads: int = 4
    causal: bool = True
    batches: int = 1
    sms: int = SMS

    @property
    def title(self) -> str:
        mask = "causal" if self.causal else "not causal"
        return f"{self.length} queries and keys, {self.query_heads} and {self.key_heads} heads, {mask}"

    def inputs(self, seed: int) -> list[Any]:
        """Q, K, V and an empty O, (batches, length, heads, 128) each; float16."""
        draw = torch.Generator().manual_seed(seed)
        heads = (self.query_heads, self.key_heads, self.key_heads)
        q, k, v = (
            torch.randn((self.batches, self.length, h, DIM), generator=draw).to(torch.float16) for h in heads
        )
        return [q, k, v, torch.zeros_like(q)]

    def exact(self, q: Any, k: Any, v: Any) -> Any:
        """PyTorch's result in float64."""
        heads_first = [x.double().transpose(1, 2) for x in (q, k, v)]
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(*heads_first, is_causal=self.causal, enable_gqa=True).transpose(1, 2)


def ours(problem: Problem) -> Any:
    """The solution's PrimFunc."""
    p = problem
    sizes = {"B": p.batches, "SQ": p.length, "SKV": p.length, "HQ": p.query_heads, "HKV": p.key_heads}
    return _solution()(**sizes, causal=int(p.causal), SMS=p.sms)


@cache
def _solution() -> Callable[..., Any]:
    """build_attention of exercise 15; TVM's parser reads its source, so it has a file."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    path = Path(folder) / "exercise_15.py"
    path.write_text(kernel_cell(_HERE.parent, "exercise_15"), encoding="utf-8")
    return runpy.run_path(str(path))["build_attention"]


def theirs(problem: Problem) -> Any:
    """The package's PrimFunc."""
    p = problem
    module = importlib.import_module(THEIRS)
    return module.get_kernel(p.batches, p.length, p.query_heads, p.key_heads, DIM, p.causal)


def launched(
    which: Callable[[Problem], Any], problem: Problem, tensors: list[Any], use: Callable[..., Any]
) -> Any:
    """What ``use(kernel, arguments)`` returns; the package's kernel takes tensor maps in the place of tensors."""
    if which is ours:
        return use(emulator.compile(ours(problem)), [t.numpy() for t in tensors])
    p = problem
    with cuda_on_cpu.installed("sm_100a", num_sms=p.sms) as record:
        kernel = emulator.compile(theirs(problem), "sm_100a")
        maps = importlib.import_module(THEIRS).build_tensor_maps(
            *tensors, batch_size=p.batches, seq_len_q=p.length, seq_len_kv=p.length, num_qo_heads=p.query_heads,
            num_kv_heads=p.key_heads, head_dim=DIM, is_causal=p.causal,
        )  # fmt: skip
        return use(kernel, [record.encoded[cuda_on_cpu._address(m.ptr)] for m in maps])


def modelled(which: Callable[[Problem], Any], problem: Problem) -> Modelled:
    return launched(which, problem, [torch.zeros_like(t) for t in problem.inputs(0)], model)


def outputs(problem: Problem, seed: int) -> tuple[list[float], list[int]]:
    """Largest deviations ours/exact, theirs/exact, ours/theirs, and the numbers of findings of error and race strength."""
    q, k, v, _ = problem.inputs(seed)
    exact = problem.exact(q, k, v)
    results, findings = [], []
    for which in (ours, theirs):
        o = torch.zeros_like(q)
        run = launched(which, problem, [q, k, v, o], lambda kernel, args: kernel.run(*args))
        results.append(o.double())
        findings.append(sum(f.strength in ("error", "race") for f in run.findings))
    a, b = results
    return [float((x - y).abs().max()) for x, y in ((a, exact), (b, exact), (a, b))], findings


def assembled(function: Any) -> dict[str, int]:
    """Registers, spill bytes and barriers by ptxas; empty without nvcc."""
    nvcc = find_nvcc()
    if nvcc is None:
        return {}
    from emulator.tvm_import import import_tvm

    tvm = import_tvm()
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_100a"})
    with target:
        module = tvm.compile(tvm.IRModule({"main": function}), target=target, tir_pipeline="tirx")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.cu"
        source.write_text(str(module.mod.imports[0].inspect_source()), encoding="utf-8")
        command = [str(nvcc), "-arch=sm_100a", *OPTIONS, "-o", str(source.with_suffix(".cubin")), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return read_ptxas(done.stdout + done.stderr)


def times_table(problems: list[Problem]) -> list[str]:
    lines = ["| problem | exercise 15 | tirx-kernels | ratio |", "|---|---|---|---|"]
    for problem in problems:
        a, b = (modelled(which, problem).microseconds for which in (ours, theirs))
        lines.append(f"| {problem.title} | {a:.1f} µs | {b:.1f} µs | {a / b:.3f} |")
    return lines


def outputs_table(problems: list[Problem]) -> list[str]:
    lines = [
        "| problem | exercise 15, PyTorch | tirx-kernels, PyTorch | the two | findings |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for seed, problem in enumerate(problems):
        largest, findings = outputs(problem, seed)
        cells = " | ".join(f"{x:.1e}" for x in largest)
        lines.append(f"| {problem.title} | {cells} | {findings[0]} and {findings[1]} |")
    return lines


def assembly_table(problem: Problem) -> list[str]:
    used = assembled(ours(problem))
    if not used:
        return ["No nvcc here: nothing was assembled."]
    return ["| kernel | " + " | ".join(used) + " |", "|---" * (len(used) + 1) + "|",
            f"| exercise 15, {problem.title} | " + " | ".join(str(x) for x in used.values()) + " |"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=4096, help="queries and keys of the modelled problem")
    parser.add_argument("--both", action="store_true", help="model the problem without a causal mask, too")
    parser.add_argument("--no-outputs", action="store_true", help="do not compare outputs")
    options = parser.parse_args()

    start = time.perf_counter()
    large = [Problem(options.length)] + [Problem(options.length, causal=False)] * options.both
    print("\n".join(times_table(large)), flush=True)
    if not options.no_outputs:
        small = [
            Problem(512, 4, 2, sms=4), Problem(512, 4, 4, causal=False, sms=4), Problem(256, 8, 1, sms=2),
        ]  # fmt: skip
        print("\nLargest deviations:\n\n" + "\n".join(outputs_table(small)), flush=True)
    print("\n" + "\n".join(assembly_table(large[0])))
    print(f"\n{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
