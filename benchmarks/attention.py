"""The solution of exercise 15 beside flash_attention4 of the package tirx-kernels: same outputs, modelled times.

    python benchmarks/attention.py                 # both modelled at 4096 keys, causal, 32 query heads, 4 heads of K and V
    python benchmarks/attention.py --outputs       # both run in the emulator on a small problem, outputs compared

Both kernels are modelled by the same model with the parameters of a B200; nothing here is measured on a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
# This directory last: one of its files has the name of the package.
sys.path[:] = [str(HERE.parent), *(p for p in sys.path if Path(p or ".").resolve() != HERE), str(HERE)]

HEADS, SHARED, D, SMS = 32, 4, 128, 148


def solution() -> Any:
    """The module that the solution cell of exercise 15 is."""
    notebook = json.loads(
        (HERE.parent / "solutions/exercise_15/exercise_15.ipynb").read_text(encoding="utf-8")
    )
    cell = next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == "kernel")
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write("".join(cell["source"]))
    spec = importlib.util.spec_from_file_location("exercise_15_solution", file.name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def theirs(q: Any, k: Any, v: Any, o: Any) -> tuple[Any, list[Any]]:
    """flash_attention4, causal, compiled for these tensors, and its arguments: Q, O (1, S, H, 128), K, V (1, S, h, 128)."""
    import cuda_on_cpu

    import emulator

    with cuda_on_cpu.installed("sm_100a", num_sms=SMS) as record:
        module = importlib.import_module("tirx_kernels.ported.flashattention.flash_attention4")
        (_, s, h, d), shared = q.shape, k.shape[2]
        maps = module.build_tensor_maps(
            q, k, v, o, batch_size=1, seq_len_q=s, seq_len_kv=s, num_qo_heads=h, num_kv_heads=shared, head_dim=d, is_causal=True,
        )  # fmt: skip
        arguments = [record.encoded[cuda_on_cpu._address(each.ptr)] for each in maps]
        return emulator.compile(module.get_kernel(1, s, h, shared, d, True), "sm_100a"), arguments


def modelled(keys: int) -> None:
    """Print both modelled times at ``keys`` queries and keys."""
    import torch

    import emulator
    from emulator.timing.model import model

    tensors = [torch.zeros((1, keys, h, D), dtype=torch.float16) for h in (HEADS, SHARED, SHARED, HEADS)]
    ours = emulator.compile(solution().build_attention(1, keys, keys, HEADS, SHARED, 1, SMS))
    a = model(ours, [x.numpy() for x in tensors]).microseconds
    kernel, arguments = theirs(*tensors)
    b = model(kernel, arguments).microseconds
    print(f"{keys} keys, causal, {HEADS} query heads, {SHARED} heads of K and V, modelled on a B200")
    print(f"exercise 15 {a:.1f} us, flash_attention4 {b:.1f} us, ratio {a / b:.3f}")


def outputs(keys: int = 256, heads: int = 4, shared: int = 2) -> float:
    """The largest difference of both outputs on a small problem, as the emulator computes them."""
    import torch

    import emulator

    torch.manual_seed(0)
    q, k, v = (torch.randn((1, keys, h, D)).half() for h in (heads, shared, shared))
    one, other = torch.zeros_like(q), torch.zeros_like(q)
    ours = emulator.compile(solution().build_attention(1, keys, keys, heads, shared, 1, 2))
    ours.run(*(x.numpy() for x in (q, k, v, one)))
    kernel, arguments = theirs(q, k, v, other)
    kernel.run(*arguments)
    assert other.abs().max() > 0
    return float(np.abs(one.numpy().astype(np.float64) - other.numpy().astype(np.float64)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=4096)
    parser.add_argument("--outputs", action="store_true", help="compare outputs of a small problem instead")
    options = parser.parse_args()
    if options.outputs:
        print(f"largest difference of the outputs: {outputs():.2e}")
    else:
        modelled(options.keys)


if __name__ == "__main__":
    main()
