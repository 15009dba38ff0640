"""Public times of kernels on a B200 beside the modelled ones: ``python benchmarks/published_timings.py [--markdown docs/timing_model.md]``.

The kernels are the published ones themselves: those of the package tirx-kernels, whose times its own file bench_suite/baseline.json holds
(read from the installed package), and the book's steps, written down as events (benchmarks/timing_model.py). The clock of none of
these runs is stated, so each is modelled at two.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This directory last: one of its files has the name of the package.
sys.path[:] = [str(HERE.parent), *(p for p in sys.path if Path(p or ".").resolve() != HERE), str(HERE)]

CLOCKS = (1.54, 1.85)
SMS = 148


def baseline() -> dict[tuple[str, str], float]:
    """(kernel, configuration) -> microseconds of the package's own kernel."""
    spec = importlib.util.find_spec("tirx_kernels")
    assert spec is not None and spec.origin is not None, "tirx-kernels is not installed"
    path = Path(spec.origin).parent / "bench_suite" / "baseline.json"
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    return {(r["kernel"], r["config"]): r["impls"]["tir"] for r in results if "tir" in r.get("impls", {})}


def attention(keys: int, heads: int, shared: int, causal: bool) -> tuple[Any, list[Any]]:
    import cuda_on_cpu
    import torch

    import emulator

    q, k, v, o = (torch.zeros((1, keys, h, 128), dtype=torch.float16) for h in (heads, shared, shared, heads))
    with cuda_on_cpu.installed("sm_100a", num_sms=SMS) as record:
        module = importlib.import_module("tirx_kernels.ported.flashattention.flash_attention4")
        maps = module.build_tensor_maps(
            q, k, v, o, batch_size=1, seq_len_q=keys, seq_len_kv=keys, num_qo_heads=heads, num_kv_heads=shared, head_dim=128, is_causal=causal,
        )  # fmt: skip
        arguments = [record.encoded[cuda_on_cpu._address(each.ptr)] for each in maps]
        return emulator.compile(module.get_kernel(1, keys, heads, shared, 128, causal), "sm_100a"), arguments


KERNELS: dict[tuple[str, str], Callable[[], tuple[Any, list[Any]]]] = {
    ("flash_attention4", "s1024_h32kv4"): lambda: attention(1024, 32, 4, False),
    ("flash_attention4", "s4096_h32kv4_causal"): lambda: attention(4096, 32, 4, True),
}


def compared() -> Iterator[tuple[str, float, list[float]]]:
    """(kernel, published microseconds, modelled ones at CLOCKS)."""
    import timing_model

    from emulator.timing.model import model
    from emulator.timing.parameters import load

    at = [timing_model.book(load("sm_100a").with_values(clock_ghz=clock)) for clock in CLOCKS]
    for rows in zip(*at, strict=True):
        yield f"book, {rows[0][0]}, 4096 cubed fp16", rows[0][1], [modelled for _, _, modelled in rows]
    measured = baseline()
    for (name, config), build in KERNELS.items():
        kernel, arguments = build()
        times = [model(kernel, arguments, clock_ghz=clock).microseconds for clock in CLOCKS]
        yield f"tirx-kernels, {name} {config}", measured[name, config], times


def table() -> str:
    clocks = " | ".join(f"at {clock} GHz" for clock in CLOCKS)
    lines = [f"| kernel on a B200 | published | {clocks} |", "|---|---:" + "|---:" * len(CLOCKS) + "|"]
    for name, measured, times in compared():
        cells = " | ".join(f"{t:.1f} us ({100 * (t / measured - 1):+.1f} %)" for t in times)
        lines.append(f"| {name} | {measured:.1f} us | {cells} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--markdown", type=Path, help="replace the table between the marks `published` in this file"
    )
    options = parser.parse_args()
    text = table()
    if options.markdown:
        begin, end = "<!-- published -->\n", "<!-- /published -->"
        page = options.markdown.read_text(encoding="utf-8")
        if begin not in page or end not in page:
            sys.exit(f"{options.markdown}: has no lines {begin.strip()} and {end} to put the table between")
        head, rest = page.split(begin, 1)
        options.markdown.write_text(head + begin + text + end + rest.split(end, 1)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
