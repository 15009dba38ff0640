"""Run every kernel of the package tirx-kernels in the emulator and compare it with a reference.

    python benchmarks/tirx_kernels.py                          # all kernels, a table on standard output
    python benchmarks/tirx_kernels.py rmsnorm nvfp4_gemm       # some
    python benchmarks/tirx_kernels.py --json out.json --markdown docs/tirx_kernels.md

The package must be importable (``pip install --no-deps tirx-kernels==0.1.2.post1`` or a directory on ``PYTHONPATH``); its kernels
run unmodified. Each kernel's own test (``run_test``) is called with a small problem, in a process of its own, with PyTorch on
the CPU (:mod:`cuda_on_cpu`). The test prepares the inputs, compiles, launches and compares. Where it compares with a library
that needs a GPU, :mod:`tirx_references` supplies the same function in PyTorch; where there is none, the kernel counts as
"runs, not verified".
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
_HERE = Path(__file__).resolve().parent
# This directory last: this file has the name of the package.
sys.path[:] = [str(_HERE.parent), *(p for p in sys.path if Path(p or ".").resolve() != _HERE), str(_HERE)]

WORDS = {
    "correct": "runs and correct", "unverified": "runs, not verified", "wrong": "runs, differs from the reference",
    "stopped": "stopped by the emulator", "missing": "not supported", "not-run": "not launched", "timeout": "not finished in time",
    "unmeasured": "not measured yet",
}  # fmt: skip


def size_of(config: dict[str, Any]) -> float:
    """A rough size of a problem: the product of its integers, to pick the smallest configuration."""
    total = 1.0
    for key, value in config.items():
        if isinstance(value, bool) or key in ("seed", "label"):
            continue
        if isinstance(value, int) and value > 1:
            total *= value
        elif isinstance(value, (tuple, list)) and value and all(isinstance(v, int) for v in value):
            total *= max(1, sum(v for v in value if v > 0))
    return total


def run_kernel(name: str, config: dict[str, Any] | None = None, *, check: bool = True) -> dict[str, Any]:
    """Run the test of one kernel in this process.

    Returns: name, arch, status (a key of :data:`WORDS`), why, config, launches, findings ({strength:code: count}), examples
    of error and race findings, seconds (emulation), compile_seconds (lowering and translation), lines (of translated code).
    """
    import cuda_on_cpu
    import tirx_drivers
    import tirx_references
    from tirx_kernels.registry import kernel_index

    from emulator import EmulatorError

    kernel = kernel_index()[name]
    arch = kernel.runtime_cuda_archs[0]
    out: dict[str, Any] = {
        "name": name,
        "category": kernel.category,
        "arch": arch,
        "status": "not-run",
        "why": "",
    }
    error: BaseException | None = None
    compared: str | None = "the kernel's test"
    with cuda_on_cpu.installed(arch, num_sms=tirx_references.NUM_SMS.get(name, 148), check=check) as record:
        try:
            module = importlib.import_module(kernel.module_name)
            tirx_references.install(name, module)
            if config is None:
                config = tirx_references.SMALL.get(name) or min(module.CONFIGS, key=size_of)
            out["config"] = {k: v for k, v in config.items() if k != "label"}
            cuda_on_cpu.Placeholder.called.clear()
            if name in tirx_drivers.DRIVERS:
                compared = tirx_drivers.DRIVERS[name](module, dict(out["config"]))
            else:
                module.run_test(**out["config"])
        except BaseException as caught:
            error = caught
            out["traceback"] = traceback.format_exc()[-3000:]
    out |= {
        "launches": len(record.runs), "seconds": round(sum(r.seconds for r in record.runs), 3), "lines": max(record.lines, default=0),
        "compile_seconds": round(sum(record.compile_seconds), 2), "placeholders": cuda_on_cpu.Placeholder.called[:8],
    }  # fmt: skip
    findings: dict[str, int] = {}
    examples: dict[str, str] = {}
    for run in record.runs:
        for f in run.findings:
            key = f"{f.strength}:{f.code}"
            findings[key] = findings.get(key, 0) + 1
            if f.strength != "lint":
                where = ", ".join(f"{Path(x.file).name}:{x.line}" for x in f.locations)
                examples.setdefault(key, f"{f.message} ({where})")
    out |= {"findings": findings, "examples": examples}
    if error is None:
        out["status"] = "unverified" if out["placeholders"] or compared is None else "correct"
        if not record.runs:
            out["status"] = "not-run"
    else:
        out["why"] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        chain = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        emulator_error = next((e for e in chain if isinstance(e, EmulatorError)), None)
        if isinstance(error, cuda_on_cpu.KernelStopped):
            out["status"] = "stopped"
        elif emulator_error is not None:
            out["status"], out["why"] = (
                "missing",
                f"{type(emulator_error).__name__}: {' '.join(str(emulator_error).split())[:400]}",
            )
        elif record.runs:
            out["status"] = (
                "wrong" if isinstance(error, AssertionError) and not out["placeholders"] else "unverified"
            )
    if name in tirx_references.REASONS and not record.runs:
        out["status"], out["why"] = "not-run", tirx_references.REASONS[name]
    return out


def _child(name: str, config: dict[str, Any] | None, check: bool, path: str) -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    Path(path).write_text(json.dumps(run_kernel(name, config, check=check), default=str))


def run_all(
    names: list[str], *, jobs: int, timeout: float, check: bool, scratch: Path, report: Any = print
) -> list[dict[str, Any]]:
    """Run kernels in worker processes forked from this one, ``jobs`` at a time."""
    import torch
    import torch.distributed.tensor

    import emulator.kernel  # noqa: F401

    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    waiting, running, results = list(names), {}, {}
    scratch.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            path = scratch / f"{name}.json"
            path.unlink(missing_ok=True)
            process = context.Process(target=_child, args=(name, None, check, str(path)))
            process.start()
            running[name] = (process, time.monotonic(), path)
        time.sleep(0.05)
        for name, (process, start, path) in list(running.items()):
            late = time.monotonic() - start > timeout
            if process.is_alive() and not late:
                continue
            if process.is_alive():
                process.kill()
            process.join()
            del running[name]
            result = {
                "name": name,
                "status": "timeout" if late else "not-run",
                "why": f"exit code {process.exitcode}",
                "findings": {},
            }
            if path.exists():
                result = json.loads(path.read_text())
            result["wall_seconds"] = round(time.monotonic() - start, 1)
            results[name] = result
            report(line_of(result))
    return [results[n] for n in names]


def line_of(r: dict[str, Any]) -> str:
    serious = {k: v for k, v in r["findings"].items() if not k.startswith("lint")}
    return f"{r['name']:<62} {r['status']:<11} {r.get('seconds', 0):7.2f} s  {serious or ''} {r['why'][:150]}"


def markdown(results: list[dict[str, Any]]) -> str:
    """The document's table."""
    counts = {s: sum(r["status"] == s for r in results) for s in WORDS}
    run = counts["correct"] + counts["unverified"]
    rows = [
        f"{len(results)} kernels, {run} run ({100 * run / len(results):.0f} %), {counts['correct']} of them compared with a reference and correct. "
        f"Measured on {datetime.date.today().isoformat()}.",
        "",
        "| kernel | architecture | result | error and race findings | emulation (s) | remark |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        serious = sum(v for k, v in r["findings"].items() if not k.startswith("lint"))
        why = (
            re.sub(r"/\S*/(?=[\w.]+:\d+)", "", r["why"].removeprefix("KernelStopped: ")).replace("|", "\\|")[
                :160
            ]
            if r["status"] not in ("correct", "unverified")
            else ""
        )
        rows.append(
            f"| `{r['name']}` | {r.get('arch', '')} | {WORDS[r['status']]} | {serious} | {r.get('seconds', 0):.2f} | {why} |"
        )
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300, help="seconds per kernel")
    parser.add_argument("--no-check", action="store_true", help="without race detection")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--markdown", type=Path, help="replace the table in this document (after the line '<!-- table -->')"
    )
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tirx_kernels")
    args = parser.parse_args()
    try:
        from tirx_kernels.registry import kernel_index
    except ImportError:
        print(
            "the package tirx-kernels is not installed: pip install --no-deps tirx-kernels==0.1.2.post1",
            file=sys.stderr,
        )
        return 2
    known = kernel_index()
    unknown = [n for n in args.kernels if n not in known]
    if unknown:
        print(f"no kernel {', '.join(unknown)} in tirx-kernels", file=sys.stderr)
        return 2
    names = args.kernels or sorted(known)
    report = lambda text: print(text, flush=True)  # noqa: E731
    results = run_all(
        names,
        jobs=args.jobs,
        timeout=args.timeout,
        check=not args.no_check,
        scratch=args.scratch,
        report=report,
    )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.markdown:
        head = (
            args.markdown.read_text().split("<!-- table -->")[0]
            if args.markdown.exists()
            else "# Kernels of tirx-kernels\n\n"
        )
        args.markdown.write_text(head + "<!-- table -->\n\n" + markdown(results))
    for status, words in WORDS.items():
        print(f"{sum(r['status'] == status for r in results):4d} {words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
