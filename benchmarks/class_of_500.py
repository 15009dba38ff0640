"""A class of five hundred through `autograde batch`: killed in the middle, resumed, and once more through submitit.

    python benchmarks/class_of_500.py [--count 500] [--kernels 60] [--exercise 2] [--jobs 2] [--out FILE]

Every result has to be the same both ways, and what was there before the kill must not be computed again. Both are checked,
not only measured; exit status 1 when one fails. Times are wall clock, of this machine at this moment; `--out` also says the
processor time, which does not depend on what else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

COURSE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(COURSE), str(COURSE / "benchmarks")]

from synthetic_class import write_class  # noqa: E402

from autograder.course import load_course  # noqa: E402


@dataclass
class Run:
    """One call of the command. Seconds of wall clock and of processor time; `graded` is what it says of itself."""

    what: str
    seconds: float
    cpu_seconds: float
    graded: int
    code: int


def batch(what: str, arguments: list[str], kill_at: int = 0, records: Path | None = None) -> Run:
    """Run `autograde batch`; with `kill_at`, until that many records are there, and then SIGKILL."""
    before, started = _cpu(), time.perf_counter()
    command = [sys.executable, "-m", "autograder", "batch", *arguments, "--quick", "--no-progress", "--plain"]
    process = subprocess.Popen(command, cwd=COURSE, env=_environment(), stdout=subprocess.PIPE, text=True)
    while kill_at and process.poll() is None and records is not None:
        if len(list(records.glob("exercise*.json"))) >= kill_at:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.02)
    printed, _ = process.communicate()
    graded = re.search(r"(\d+) graded now", printed)
    seconds = time.perf_counter() - started
    return Run(what, seconds, _cpu() - before, int(graded[1]) if graded else 0, process.returncode)


def _cpu() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(COURSE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


def verdicts(results: Path) -> dict[str, tuple[str, float]]:
    """Record -> (digest of its verdicts, points)."""
    found = {}
    for path in (results / "records").glob("exercise*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[path.name] = (
            record["verdicts_sha256"] or record["problem"],
            (record["report"] or {}).get("points", 0),
        )
    return found


def measure(folder: Path, options: argparse.Namespace) -> tuple[list[Run], dict[str, bool], dict[str, Any]]:
    """(runs, what has to hold, what the class is made of)."""
    exercise = load_course(COURSE).find(options.exercise)
    submitted, here, there = folder / "submitted", folder / "here", folder / "there"
    kinds = write_class(COURSE, exercise, submitted, options.count, options.kernels)
    common = [str(submitted), "--exercise", exercise.id, "--seed", "1", "--jobs", str(options.jobs)]
    local, cluster = (
        [*common, "--out", str(here)],
        [*common, "--out", str(there), "--engine", "submitit", "--cluster", "local"],
    )
    killed = batch("local, killed", local, kill_at=options.count * 2 // 5, records=here / "records")
    kept = {path: path.stat().st_mtime_ns for path in (here / "records").glob("exercise*.json")}
    resumed = batch("local, resumed", local)
    again = batch("local, nothing to do", local)
    jobs = batch("submitit, local executor", cluster)
    holds = {
        "every submission has a result": len(_lines(here)) == options.count,
        "killed in the middle": killed.code == -signal.SIGKILL and 0 < len(kept) < options.count,
        "resumed: nothing was computed again": all(p.stat().st_mtime_ns == then for p, then in kept.items()),
        "the second run had nothing to do": again.graded == 0 and again.code == 0,
        "all runs ended well": resumed.code == jobs.code == 0,
        "the same verdicts through submitit": verdicts(here) == verdicts(there),
        "the same results.csv": (here / "results.csv").read_bytes() == (there / "results.csv").read_bytes(),
    }
    about = {"exercise": exercise.id, "kept at the kill": len(kept), "kinds": dict(Counter(kinds.values()))}
    return [killed, resumed, again, jobs], holds, about


def _lines(results: Path) -> list[str]:
    return (results / "results.csv").read_text(encoding="utf-8").splitlines()[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--kernels", type=int, default=60, help="how many of them build and run a kernel")
    parser.add_argument("--exercise", default="2")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="class-"))
    try:
        runs, holds, about = measure(folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{options.count} submissions of {about['exercise']}, {options.kernels} of them run a kernel; {options.jobs} jobs\n"
    )
    print("| run | graded | wall clock, s | processor, s |\n|---|---|---|---|")
    for run in runs:
        print(f"| {run.what} | {run.graded or '-'} | {run.seconds:.0f} | {run.cpu_seconds:.0f} |")
    print()
    for what, good in holds.items():
        print(f"{'ok' if good else 'NO'}  {what}")
    if options.out:
        content = {
            "options": {**vars(options), "out": str(options.out)},
            "class": about,
            "runs": [asdict(r) for r in runs],
            "holds": holds,
        }
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
