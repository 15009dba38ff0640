"""A small class graded in the emulator, then through the queue for a real GPU, which is killed in the middle and goes on.

    python tests/hardware/class_queue.py --out OUT/class_queue.json     on the machine with the GPU
    python tests/hardware/class_queue.py --render                       the table of docs/instructors.md

It runs `autograde batch` as an instructor does and reads what that writes: results.csv and the records.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
RECORD = Path(__file__).with_name("class_queue.json")
PAGE = ROOT / "docs" / "instructors.md"
BEGIN, END = "<!-- class queue: begin -->", "<!-- class queue: end -->"
KILL_AT = 4  # confirmed results that are there when the command is killed

SOLUTION = "solution"
# student -> what was handed in for exercises 01, 02, ...: the solution, or a mutant of that exercise. None: nothing.
CLASS: dict[str, tuple[str | None, ...]] = {
    "ada": (SOLUTION, SOLUTION, SOLUTION, SOLUTION, SOLUTION),
    "ben": ("strided_add", "one_stage", "element_by_element", "no_swizzle"),
    "cleo": (None, "no_proxy_fence", "no_proxy_fence", "no_proxy_fence"),
    "dan": ("mask_one_too_few", "tiles_rounded_down", "grid_rounded_down", "grid_rounded_down"),
    "eve": (None, "wrong_parity", "wrong_parity", "no_wait"),
    "gus": (SOLUTION, SOLUTION, SOLUTION, SOLUTION),  # equal to ada's
}
KINDS = {
    "ada": "solution",
    "ben": "slow, or without the mechanism",
    "cleo": "a fence is missing",
    "dan": "wrong elements",
    "eve": "waits wrongly",
    "gus": "the same text as ada's",
}


def hand_in(submitted: Path) -> None:
    """submitted/STUDENT/exercise_NN/exercise_NN.py for the whole class."""
    from hardware.exercises import kernel_cell

    for student, works in CLASS.items():
        for number, work in enumerate(works, start=1):
            if work is None:
                continue
            exercise = f"exercise_{number:02}"
            folder = submitted / student / exercise
            folder.mkdir(parents=True)
            mutant = ROOT / "tests" / "mutants" / exercise / f"{work}.py"
            text = kernel_cell(exercise) if work == SOLUTION else mutant.read_text(encoding="utf-8")
            (folder / f"{exercise}.py").write_text(text, encoding="utf-8")


def batch(what: str, arguments: list[str], kill_at: int = 0, results: Path = Path()) -> dict[str, Any]:
    """Run `autograde batch`; with `kill_at`, until that many results of a GPU are there, and then SIGKILL."""
    started = time.monotonic()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "autograder", "batch", *arguments, "--no-progress", "--plain"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    while kill_at and process.poll() is None:
        if len(on_gpu(results)) >= kill_at:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.05)
    printed, _ = process.communicate()
    graded = re.search(r"(\d+) graded now", printed)
    return {
        "what": what,
        "seconds": round(time.monotonic() - started, 1),
        "graded": int(graded[1]) if graded else None,
        "code": process.returncode,
        "kept": len(on_gpu(results)),
    }


def on_gpu(results: Path) -> dict[str, int]:
    """Records of a GPU -> when they were written."""
    found = {}
    for path in (results / "records").glob("exercise*.json"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if "emulated" not in record["device"]:
            found[path.name] = path.stat().st_mtime_ns
    return found


COLUMNS = (
    "student",
    "exercise",
    "points",
    "status",
    "device",
    "correctness",
    "synchronization",
    "speed",
    "note",
)


def lines(results: Path) -> list[dict[str, str]]:
    """results.csv, without what only this class has."""
    with (results / "results.csv").open(encoding="utf-8", newline="") as file:
        return [{name: line[name] for name in COLUMNS} for line in csv.DictReader(file)]


def measure_here(path: Path) -> None:
    """Four runs of the command over one class, and what they left."""
    from autograder.gpu import Gpu, find_gpu
    from hardware.exercises import machine_info

    gpu = find_gpu()
    assert isinstance(gpu, Gpu), gpu
    folder = Path(tempfile.mkdtemp(prefix="class-"))
    try:
        submitted, results = folder / "submitted", folder / "results"
        hand_in(submitted)
        common = [str(submitted), "--out", str(results), "--seed", "1"]
        emulated = [*common, "--jobs", str(min(8, os.cpu_count() or 1))]
        runs = [batch("emulator", emulated, results=results)]
        before = lines(results)
        runs.append(batch("GPU, killed", [*common, "--device", "cuda"], KILL_AT, results))
        kept = on_gpu(results)
        runs.append(batch("GPU, resumed", [*common, "--device", "cuda"], results=results))
        untouched = all(on_gpu(results)[name] == then for name, then in kept.items())
        runs.append(batch("GPU, nothing to do", [*common, "--device", "cuda"], results=results))
        confirmed = lines(results)
        runs.append(batch("emulator, afterwards", emulated, results=results))
        record = {
            "machine": machine_info(gpu),
            "runs": runs,
            "before": before,
            "confirmed": confirmed,
            "after": lines(results),
            "kept": len(kept),
            "untouched": untouched,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def table(record: dict[str, Any]) -> str:
    """Markdown of a record."""
    m = record["machine"]
    shown = [
        f"{m['gpu']}, driver {m['driver']}, {m['cores']} cores, {m['date']}: `python tests/hardware/class_queue.py --out FILE`, a class of {len(CLASS)}"
        f" with {len(record['confirmed'])} files (no answers to the questions, so 90 points at most). The command was killed when {record['kept']}"
        " results were there, and computed none of them again.",
        "",
        "| run | results | wall clock, s |",
        "|---|---:|---:|",
    ]
    for run in record["runs"]:
        results = run["kept"] if run["graded"] is None else run["graded"]
        shown.append(f"| {run['what']} | {results} | {run['seconds']:.0f} |")
    shown += [
        "",
        "| handed in | exercise | emulator: points, status | then: points, status | speed before, then | note |",
        "|---|---|---|---|---|---|",
    ]
    for before, after in zip(record["before"], record["confirmed"], strict=True):
        exercise = after["exercise"]
        work = CLASS[after["student"]][int(exercise[-2:]) - 1]
        name = KINDS[after["student"]] if work == SOLUTION else f"{KINDS[after['student']]} (`{work}`)"
        speed = f"{before['speed']}, {after['speed']}" if before["speed"] else "no such check"
        shown.append(
            f"| {name} | {exercise[-2:]} | {before['points']}, {before['status']} | {after['points']}, {after['status']}"
            f" | {speed} | {after['note']} |"
        )
    return "\n".join(shown)


def render() -> None:
    """Put the tables between the markers of docs/instructors.md."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = table(json.loads(RECORD.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{BEGIN}\n{shown}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--render", action="store_true", help="write the tables of docs/instructors.md")
    given = parser.parse_args()
    sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(p for p in sys.path if Path(p).resolve() != HERE.parent)]
    if given.render:
        return render()
    if given.out is None:
        parser.error("--out says where the record goes")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    measure_here(given.out)
    return None


if __name__ == "__main__":
    main()
