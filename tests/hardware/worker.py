"""One process that compiles and runs cases: reads case ids from stdin, writes one JSON line per case to stdout.

A kernel that hangs or faults takes this process with it, never the whole run: :mod:`hardware.run` starts another.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from emulator.tvm_import import import_tvm


class LostContext(Exception):
    """The GPU faulted: nothing else runs in this process."""


def run_case(case: Any, gpu: bool, outputs: Path) -> dict[str, Any]:
    """Both sides of one case.  With ``gpu`` false, the GPU's bytes are read from ``outputs``."""
    import numpy as np

    from hardware import harness

    record: dict[str, Any] = {"id": case.id, "family": case.family}
    if case.known:
        record["known"] = case.known
    stored = outputs / (case.id.replace("/", "~") + ".npz")
    arguments = case.make_arguments()
    func = case.build()
    if case.fault:
        return _run_fault(case, gpu, func, arguments, record)
    try:
        if gpu:
            executable = harness.compile_for_gpu(func)
            on_gpu = harness.run_on_gpu(executable, arguments)
            record["digest"] = harness.digest(on_gpu)
            np.savez(stored, *[harness.raw(a) for a in on_gpu])
        else:
            with np.load(stored) as saved:
                on_gpu = [saved[f"arr_{k}"].view(a.dtype) for k, a in enumerate(arguments)]
            record["digest"] = harness.digest(on_gpu)
    except Exception as error:
        record |= {"equal": False, "stage": "gpu", "error": _short(error)}
        if "CUDA" in str(error) and "ompil" not in str(
            error
        ):  # the context is lost; freeing its tensors would abort
            raise LostContext(record) from error
        return record
    try:
        emulated, run = harness.run_in_emulator(func, case, arguments)
    except Exception as error:
        return record | {"equal": False, "stage": "emulator", "error": _short(error)}
    record["findings"] = sorted({f.code for f in run.findings if f.strength != "lint"})
    record |= harness.compare(case, arguments, on_gpu, emulated)
    surprising = set(record["findings"]) - case.expect
    if surprising:
        record["equal"] = False
        record["error"] = "; ".join(f.message for f in run.findings if f.code in surprising)[:600]
    return record


def _run_fault(case: Any, gpu: bool, func: Any, arguments: Any, record: dict[str, Any]) -> dict[str, Any]:
    """A kernel that the GPU must stop and whose reason the emulator must name."""
    from hardware import harness

    _, run = harness.run_in_emulator(func, case, arguments)
    record["findings"] = sorted({f.code for f in run.findings if f.strength != "lint"})
    named = case.fault in record["findings"]
    record |= {"equal": named, "bitwise": named, "rows": {}, "instructions": 1}
    if not named:
        record["error"] = f"the emulator does not report {case.fault}"
    if gpu:
        executable = harness.compile_for_gpu(func)
        try:
            harness.run_on_gpu(executable, arguments)
        except Exception as error:
            record["gpu_fault"] = _short(error)
            raise LostContext(record) from error
        record |= {"equal": False, "bitwise": False, "error": "the GPU runs it"}
    return record


def _short(error: BaseException) -> str:
    text = str(error)
    lines = [ln for ln in text.splitlines() if "error" in ln.lower()] or text.splitlines()[-3:]
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__} ({Path(where.filename).name}:{where.lineno}): " + " | ".join(lines[:4])[:900]
    )


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # compilers talk on stdout
    gpu, outputs = sys.argv[1] == "gpu", Path(sys.argv[2])

    import_tvm()
    from hardware.cases import all_cases

    found = all_cases()
    out.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        try:
            record = run_case(found[line.strip()], gpu, outputs)
        except LostContext as lost:
            out.write(json.dumps(lost.args[0] | {"fatal": True}) + "\n")
            out.flush()
            os._exit(3)
        except Exception as error:
            record = {"id": line.strip(), "equal": False, "stage": "case", "error": _short(error)}
        out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
