"""A load of good, wrong, hanging, crashing and hostile submissions through `autograde batch`, in one go.

    python benchmarks/load.py [--count 500] [--jobs 2] [--alone 40] [--isolation auto] [--out FILE]

Checked, not only measured: every submission that is also graded alone, at least one of each kind, gets the same verdicts, points and
evidence there, bit for bit; every other one gets the points of its kind; the memory of the grader's own processes stays flat; the
processor time per submission is at most 1.3 times what the same submissions take alone. Wall-clock times are those of this machine at
this moment. Exit status 1 when a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

COURSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(COURSE))

from autograder.batch.record import Record, verdicts_sha256  # noqa: E402
from autograder.report.model import GradeReport  # noqa: E402

EXERCISE, SEED, MOST = "exercise_02", 1, 1.3
CODE = {
    "raises": "def build_kernel(M, N):\n    raise ValueError(N)\n",
    "returns nothing": "def build_kernel(M, N):\n    pass\n",
    "syntax error": "def build_kernel(M, N:\n",
    "hangs": "while True:\n    pass\n",
    "sleeps": "import time\ntime.sleep(1000)\n",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n",
    "crashes": "import ctypes\nctypes.string_at(0)\n",
    "exits": "import os\nos._exit(0)\n",
    "prints without end": "while True:\n    print('x' * 10**6)\n",
    "takes memory": "kept = [bytearray(1 << 30) for _ in range(100)]\n",
    "starts threads": "import threading, time\nthreading.stack_size(65536)\nfor _ in range(400):\n"
    "    threading.Thread(target=time.sleep, args=[60], daemon=True).start()\ntime.sleep(60)\n",
    "starts processes": "import os, time\nfor _ in range(50):\n    if os.fork() == 0:\n        time.sleep(60)\n        os._exit(0)\n",
    "fills its folder": "for i in range(100):\n    with open(str(i), 'wb') as f:\n        f.write(bytes(60 << 20))\n",
    "forges frames": "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'AGF1' + bytes(12))\n    except OSError:\n        pass\n",
    "looks for solutions": "import os\nraise Exception([os.path.exists(p) for p in ('/srv', '/home', '/root/.ssh')] and 'nothing')\n",
    "signals its parent": "import os\nos.kill(os.getppid(), 9)\n",
}
# What is exchanged in the solution, each in one place.
WRONG = {
    "wrong factor": ("T.float16(2)", "T.float16(3)"),
    "no fence": ('T.ptx["fence.proxy.async.shared::cta"]()', "pass"),
    "wrong parity": ("(t // STAGES) % 2)", "(t // STAGES + 1) % 2)"),
    "too many bytes": ("TILE_BYTES = ROWS * COLS * 2", "TILE_BYTES = ROWS * COLS * 4"),
    "no wait for the stores": ('T.ptx["cp.async.bulk.wait_group"](0)', "pass"),
}


def submissions(count: int) -> dict[str, tuple[str, str]]:
    """student -> (kind, text): two in five are good, three in ten wrong, the rest hangs, crashes or is hostile. No two are equal."""
    notebook = json.loads((COURSE / "solutions" / EXERCISE / f"{EXERCISE}.ipynb").read_text(encoding="utf-8"))
    cells = [
        c
        for c in notebook["cells"]
        if c["metadata"].get("nbgrader", {}).get("grade_id") in ("kernel", "answers")
    ]
    good = "\n".join("".join(cell["source"]) for cell in cells)
    kinds = {name: good.replace(old, new, 1) for name, (old, new) in WRONG.items()}
    assert all(text != good for text in kinds.values())
    hostile, wrong = list(CODE), list(kinds)
    made = {}
    for number in range(count):
        place, turn = number % 10, number // 10
        if place < 4:
            kind, text = "good", good
        elif place < 7:
            kind = wrong[(3 * turn + place) % len(wrong)]
            text = kinds[kind]
        else:
            kind = hostile[(3 * turn + place) % len(hostile)]
            text = CODE[kind]
        made[f"student{number:03}"] = kind, f"{text}\n# by student {number}\n"
    return made


def course_folder(root: Path) -> None:
    """The one exercise, with bounds that let a hang end soon."""
    text = (COURSE / "course.yaml").read_text(encoding="utf-8")
    head, *blocks = re.split(r"(?m)^(?=  - id: exercise_)", text)
    block = next(block for block in blocks if block.startswith(f"  - id: {EXERCISE}\n"))
    head = re.sub(r"build_seconds: \d+", "build_seconds: 5", head)
    root.mkdir()
    (root / "course.yaml").write_text(head + block, encoding="utf-8")
    shutil.copytree(COURSE / "exercises" / EXERCISE, root / "exercises" / EXERCISE)


def command(root: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "autograder",
        *arguments,
        "--course",
        str(root),
        "--quick",
        "--seed",
        str(SEED),
        "--plain",
    ]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(COURSE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Memory:
    """Resident memory of a process and of its workers, in MiB, twice a second."""

    def __init__(self, pid: int) -> None:
        self.samples: list[float] = []
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        from autograder.runner.tree import children

        while not self._over.wait(0.5):
            workers = [pid for pid in children(self._pid) if "batch.worker" in _command_line(pid)]
            if workers:
                self.samples.append(sum(_resident_mib(pid) for pid in [self._pid, *workers]))

    def growth(self) -> float:
        """The highest of the last quarter relative to the highest of the second: the first one still loads."""
        quarter = max(1, len(self.samples) // 4)
        return max(self.samples[-quarter:]) / max(self.samples[quarter : 2 * quarter] or self.samples)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _resident_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except (OSError, ValueError, IndexError):
        return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--alone", type=int, default=40, help="how many are also graded alone")
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    made = submissions(options.count)
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        root, submitted, results = Path(name) / "course", Path(name) / "submitted", Path(name) / "results"
        course_folder(root)
        for student, (_, text) in made.items():
            path = submitted / student / EXERCISE / f"{EXERCISE}.py"
            path.parent.mkdir(parents=True)
            path.write_text(text, encoding="utf-8")
        before, started = processor_seconds(), time.perf_counter()
        arguments = command(root, "batch", str(submitted), "--out", str(results), "--jobs", str(options.jobs))
        process = subprocess.Popen(
            [*arguments, "--isolation", options.isolation, "--progress"],
            env=environment(),
            stdout=subprocess.DEVNULL,
        )
        memory = Memory(process.pid)
        code = process.wait()
        memory.stop()
        wall, cpu = time.perf_counter() - started, processor_seconds() - before
        state = json.loads((results / "batch.json").read_text())
        records = {
            row["student"]: Record.model_validate_json((results / "records" / row["record"]).read_text())
            for row in state["rows"]
        }
        alone, alone_cpu, alone_wall = grade_alone(root, submitted, made, options.alone, options.isolation)
    found = judged(made, records, alone)
    weighted_cpu = sum(alone_cpu[kind] for kind, _ in made.values()) / len(made)
    weighted_wall = sum(alone_wall[kind] for kind, _ in made.values()) / len(made)
    summary = {
        "count": options.count,
        "jobs": options.jobs,
        "isolation": dict(
            Counter(r.report.isolation.level for r in records.values() if r.report and r.report.isolation)
        ),
        "exit_code": code,
        "kinds": dict(Counter(kind for kind, _ in made.values())),
        "points": found["points"],
        "graded_alone": len(alone),
        "problems": found["problems"],
        "wall_seconds": round(wall, 1),
        "wall_seconds_per_submission_and_job": round(wall * options.jobs / options.count, 2),
        "alone_wall_seconds": round(weighted_wall, 2),
        "cpu_seconds_per_submission": round(cpu / options.count, 2),
        "alone_cpu_seconds": round(weighted_cpu, 2),
        "cpu_ratio": round(cpu / options.count / weighted_cpu, 3),
        "memory_mib": {"highest": round(max(memory.samples)), "growth": round(memory.growth(), 3)},
    }
    text = json.dumps(summary, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    good = not found["problems"] and code == 0 and summary["cpu_ratio"] <= MOST and memory.growth() <= 1.1
    return 0 if good else 1


def grade_alone(
    root: Path, submitted: Path, made: dict[str, tuple[str, str]], count: int, isolation: str
) -> tuple[dict[str, GradeReport], dict[str, float], dict[str, float]]:
    """student -> report; kind -> mean processor and wall-clock seconds. One of each kind first, then spread over the class."""
    first = {kind: student for student, (kind, _) in reversed(made.items())}
    rest = [student for student in made if student not in first.values()]
    more = max(0, count - len(first))
    chosen = [*first.values(), *rest[:: max(1, len(rest) // more)][:more]] if more else list(first.values())
    reports: dict[str, GradeReport] = {}
    cpu, wall = defaultdict(list), defaultdict(list)
    for student in chosen:
        path = submitted / student / EXERCISE / f"{EXERCISE}.py"
        before, started = processor_seconds(), time.perf_counter()
        done = subprocess.run(
            command(root, EXERCISE, "--file", str(path), "--json", "-", "--isolation", isolation),
            env=environment(),
            capture_output=True,
            text=True,
        )
        kind = made[student][0]
        cpu[kind].append(processor_seconds() - before)
        wall[kind].append(time.perf_counter() - started)
        reports[student] = GradeReport.model_validate_json(done.stdout)
    return reports, *({kind: sum(v) / len(v) for kind, v in times.items()} for times in (cpu, wall))  # type: ignore[return-value]


def judged(
    made: dict[str, tuple[str, str]], records: dict[str, Record], alone: dict[str, GradeReport]
) -> dict[str, Any]:
    """Points of each kind, and everything that is not as it has to be."""
    problems: list[str] = []
    points: dict[str, set[float]] = defaultdict(set)
    for student, (kind, _) in made.items():
        record = records.get(student)
        if record is None or record.report is None or not record.final:
            problems.append(f"{student} ({kind}) is not graded: {record.problem if record else 'no record'}")
            continue
        points[kind].add(record.report.points)
        if student in alone and verdicts_sha256(alone[student]) != record.verdicts_sha256:
            problems.append(
                f"{student} ({kind}) gets {record.report.points:g} points, alone {alone[student].points:g}, or other evidence"
            )
    problems += [f"{kind}: {sorted(seen)} points" for kind, seen in points.items() if len(seen) > 1]
    return {"problems": problems, "points": {kind: sorted(seen) for kind, seen in sorted(points.items())}}


if __name__ == "__main__":
    sys.exit(main())
