"""How long a grade takes, and how much memory: `python benchmarks/grade_time.py [--runs 5] [--check]`.

Times are wall clock from process start to exit, medians of interleaved runs, so that a busy machine slows all
of them alike. Ratios are what counts. --check exits 1 when a target is missed:

    grade of the solution     at most 1.5 x `python -c "import tvm, torch"`
    autograde --help, list    at most 0.35 s
    one emulated launch       at most 30 ms
    all processes together    less than 1.5 GiB
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
AUTOGRADE = [sys.executable, "-m", "autograder"]
COMMANDS = {
    "import tvm, torch": [sys.executable, "-c", "import tvm, torch"],
    "autograde exercise_05 --solution": [*AUTOGRADE, "exercise_05", "--solution", "--json", "-"],
    "autograde --help": [*AUTOGRADE, "--help"],
    "autograde list": [*AUTOGRADE, "list"],
}


def timed(command: list[str]) -> tuple[float, str]:
    """(seconds, standard output) of one command that must succeed."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=COURSE, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}: {done.stdout}{done.stderr}")
    return seconds, done.stdout


def peak_memory(command: list[str]) -> int:
    """Largest sum of the proportional set sizes of a command and its descendants, in bytes (Linux)."""
    process = subprocess.Popen(command, cwd=COURSE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(_proportional_set(pid) for pid in _tree(process.pid)))
        time.sleep(0.02)
    return peak


def _tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        found += [descendant for child in children for descendant in _tree(child)]
    return found


def _proportional_set(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    launches: list[float] = []
    for _ in range(options.runs):
        for name, command in COMMANDS.items():
            taken, out = timed(command)
            seconds[name].append(taken)
            if "--json" in command:
                report = json.loads(out)
                launches.append(report["seconds"]["launches"] / 5)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    launch = statistics.median(launches)
    memory = peak_memory(COMMANDS["autograde exercise_05 --solution"])
    ratio = median["autograde exercise_05 --solution"] / median["import tvm, torch"]
    rows = [
        ("import tvm, torch", f"{median['import tvm, torch']:.2f} s", "the yardstick", True),
        ("autograde exercise_05 --solution", f"{median['autograde exercise_05 --solution']:.2f} s", "", True),
        ("  as a ratio", f"{ratio:.2f}", "at most 1.5", ratio <= 1.5),
        (
            "autograde --help",
            f"{median['autograde --help']:.2f} s",
            "at most 0.35 s",
            median["autograde --help"] <= 0.35,
        ),
        (
            "autograde list",
            f"{median['autograde list']:.2f} s",
            "at most 0.35 s",
            median["autograde list"] <= 0.35,
        ),
        ("one emulated launch", f"{launch * 1000:.1f} ms", "at most 30 ms", launch <= 0.030),
        ("peak memory of all processes", f"{memory / 2**30:.2f} GiB", "under 1.5 GiB", memory < 1.5 * 2**30),
    ]
    for name, value, target, good in rows:
        print(f"{name:<36}{value:>10}  {target}{'' if good else '   MISSED'}")
    return 1 if options.check and not all(good for *_, good in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
