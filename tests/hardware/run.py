"""Run the cases: ``python -m hardware.run --gpu --out DIR`` (from ``tests/``).

Without ``--gpu`` the GPU's bytes come from an earlier run's DIR, so that the emulator can be compared again anywhere.
The record, ``DIR/record.json``, has the date, the GPU, driver and versions, and per case what is equal or differs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import queue
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
TIMEOUT = 60.0  # seconds per case, compilation included


class Worker:
    """A process of :mod:`hardware.worker`."""

    def __init__(self, gpu: bool, outputs: Path) -> None:
        env = dict(
            os.environ,
            OPENBLAS_NUM_THREADS="1",
            PYTHONPATH=os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hardware.worker", "gpu" if gpu else "stored", str(outputs)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True, bufsize=1,
        )  # fmt: skip
        self.ready = self._read(120.0) is not None

    def _read(self, timeout: float) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if readable else ""
        return json.loads(line) if line else None

    def run(self, case_id: str) -> dict[str, Any] | None:
        """The record of one case; None when the process hung or died."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(case_id + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._read(TIMEOUT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def run_cases(
    ids: Iterable[str], gpu: bool, outputs: Path, jobs: int, budget: float = 1e9
) -> list[dict[str, Any]]:
    """Run cases in ``jobs`` processes; a case that kills or hangs its process is recorded as such."""
    outputs.mkdir(parents=True, exist_ok=True)
    work: queue.SimpleQueue[str] = queue.SimpleQueue()
    for case_id in ids:
        work.put(case_id)
    records: list[dict[str, Any]] = []
    deadline = time.monotonic() + budget

    def serve() -> None:
        worker: Worker | None = None
        while time.monotonic() < deadline:
            try:
                case_id = work.get_nowait()
            except queue.Empty:
                break
            if worker is None:
                worker = Worker(gpu, outputs)
            record = worker.run(case_id)
            if record is None:
                record = {"id": case_id, "equal": False, "stage": "gpu", "error": "the process hung or died"}
            records.append(record)
            if record.get("fatal") or "hung or died" in record.get("error", ""):
                worker.stop()
                worker = None
        if worker is not None:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return records


def machine(gpu: bool) -> dict[str, Any]:
    """Date, GPU, driver and versions."""
    from importlib.metadata import version

    info: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), "python": platform.python_version(),
        "apache-tvm": version("apache-tvm"), "numpy": version("numpy"),
    }  # fmt: skip
    if gpu:
        query = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
        info["gpu"], info["driver"], info["compute_capability"] = (
            x.strip() for x in query.stdout.splitlines()[0].split(",")
        )
        nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"V(\d+\.\d+\.\d+)", nvcc)
        info["cuda"] = found.group(1) if found else "unknown"
        info["compiler"] = os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc")
    return info


def summary(records: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Per family: kernels and instructions run, equal bit for bit, accepted within a bound, different."""
    out: dict[str, dict[str, int]] = {}
    for r in records:
        f = out.setdefault(
            r.get("family", "not run"),
            {
                "cases": 0,
                "bitwise": 0,
                "accepted": 0,
                "different": 0,
                "instructions": 0,
                "instructions_bitwise": 0,
            },
        )
        f["cases"] += 1
        f["bitwise"] += bool(r.get("bitwise") and r["equal"])
        f["accepted"] += bool(r["equal"] and not r.get("bitwise"))
        f["different"] += not r["equal"]
        n = r.get("instructions", 1)
        f["instructions"] += n
        f["instructions_bitwise"] += n - len(r["rows"]) if "rows" in r else 0
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=".", help="regular expression on case ids")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=480.0, help="seconds after which no new case starts")
    args = parser.parse_args()
    from hardware import harness

    harness.import_tvm_with_cuda()
    from hardware.cases import all_cases

    ids = [c for c in all_cases() if re.search(args.only, c)]
    if not args.gpu:
        ids = [c for c in ids if (args.out / "outputs" / (c.replace("/", "~") + ".npz")).exists()]
    start = time.perf_counter()
    records = run_cases(ids, args.gpu, args.out / "outputs", args.jobs, args.budget)
    seconds = time.perf_counter() - start
    order = {c: k for k, c in enumerate(ids)}
    records.sort(key=lambda r: order[r["id"]])
    table = summary(records)
    head = {"machine": machine(args.gpu), "seconds": round(seconds, 1), "jobs": args.jobs, "summary": table}
    lines = ",\n".join("  " + json.dumps(r) for r in records)
    text = json.dumps(head, indent=1)[:-2] + f',\n "cases": [\n{lines}\n ]\n}}\n'
    (args.out / ("record.json" if args.gpu else "again.json")).write_text(text)
    for family, row in table.items():
        print(f"{family:28s} {row}")
    bad = [r for r in records if not r["equal"] and "known" not in r]
    for r in bad[:60]:
        print(
            "DIFFERENT",
            r["id"],
            r.get("stage", ""),
            r.get("error", "")[:300],
            json.dumps(dict(list(r.get("rows", {}).items())[:1]))[:300],
        )
    print(f"{len(records)} of {len(ids)} cases, {len(bad)} different, {seconds:.0f} s")


if __name__ == "__main__":
    main()
