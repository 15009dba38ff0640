"""How well a measurement repeats, and whether a kernel that is a tenth slower is told apart: on a real GPU.

    python tests/hardware/repeatability.py --out OUT/repeatability.json     on the machine with the GPU
    python tests/hardware/repeatability.py --render                         the table of docs/gpu.md

Every row is one measurement as a grade makes it (`autograder.runner.measure`, `autograder.speed`): a kernel against itself, and the
same kernel with a tenth more work against the unchanged one; then each solution against the library, and a measurement beside another
process, which must be refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
RECORD = Path(__file__).with_name("repeatability.json")
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- repeatability: begin -->", "<!-- repeatability: end -->"
EXERCISES = ("exercise_01", "exercise_02", "exercise_03", "exercise_04")
REPEATS = 3
# Another process that keeps the GPU busy.
NEIGHBOUR = "import torch, time; x = torch.ones(1 << 26, device='cuda'); end = time.time() + 20\nwhile time.time() < end: x.add_(1); torch.cuda.synchronize()"


def jobs() -> list[dict[str, Any]]:
    """What is measured: see `exercises.jobs`; `kind` is the row of the table."""
    from hardware.exercises import SLOWER

    found: list[dict[str, Any]] = []
    for exercise in EXERCISES:
        job = {"exercise": exercise, "what": "repeat", "timing": 0}
        slower = list(SLOWER[exercise])
        found.append(job | {"name": exercise, "kind": "itself", "change": [], "against": []})
        found.append(job | {"name": exercise, "kind": "slower", "change": slower, "against": []})
        found.append(job | {"name": exercise, "kind": "library", "change": []})
    torch = {"exercise": "exercise_02", "what": "library", "timing": 0, "change": [], "name": "torch copy"}
    return [*found, torch | {"kind": "itself"}, torch | {"kind": "slower", "tenths": 1}]


def measure_here(path: Path) -> None:
    """All rows, in one process."""
    import importlib

    from autograder.gpu import Gpu, find_gpu
    from hardware.exercises import backend, machine_info, measure_one

    gpu = find_gpu()
    assert isinstance(gpu, Gpu) and gpu.arch is not None, gpu
    device = importlib.import_module(backend()).open_device(gpu.arch)
    compiled: dict[str, Any] = {}
    rows = []
    for repeat in range(REPEATS):
        for job in jobs():
            started = time.monotonic()
            row = measure_one(device, gpu.arch, job, repeat, compiled) | {k: job[k] for k in ("name", "kind")}
            rows.append(row | {"repeat": repeat, "seconds": round(time.monotonic() - started, 2)})
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    time.sleep(8)
    beside = measure_one(device, gpu.arch, jobs()[0], 0, compiled)
    neighbour.kill()
    neighbour.wait()
    record = {"machine": machine_info(gpu), "measured": rows, "beside another process": beside["measured"]}
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


def table(record: dict[str, Any]) -> str:
    """Markdown of a record."""
    m = record["machine"]
    lines = [
        f"{m['gpu']}, driver {m['driver']}, {m['date']}, torch {m['torch']}: `python tests/hardware/repeatability.py --out FILE`,"
        f" {REPEATS} measurements of each row.",
        "",
        "| kernel | against | median, us | speed relative to that | widest interval | verdict of 3 |",
        "|---|---|---:|---:|---:|---|",
    ]
    words = {"itself": "itself", "slower": "the one without a tenth more work", "library": "PyTorch"}
    for name, kind in dict.fromkeys((row["name"], row["kind"]) for row in record["measured"]):
        rows = [r["measured"] for r in record["measured"] if (r["name"], r["kind"]) == (name, kind)]
        ratios = [r["ratio"] for r in rows]
        width = max(100 * (r["interval"][1] - r["interval"][0]) / r["ratio"] for r in rows)
        apart = {"itself": "equal", "slower": "slower", "library": ""}[kind]
        said = [apart_from_one(r["interval"]) for r in rows]
        verdict = (
            f"{said.count(apart)} of {len(rows)} {apart}"
            if apart
            else ", ".join(sorted({r["verdict"] for r in rows}))
        )
        lines.append(
            f"| {name}{', a tenth more work' if kind == 'slower' else ''} | {words[kind]} | {rows[0]['kernel_us']:.1f}"
            f" | {min(ratios):.3f} to {max(ratios):.3f} | {width:.2f} % | {verdict} |"
        )
    beside = record["beside another process"]
    lines += [
        "",
        f"Beside another process that uses the GPU: verdict {beside['verdict']}, fault of {beside['fault']}: {beside['message']}.",
    ]
    return "\n".join(lines)


EQUAL = 0.02  # two kernels count as equally fast when their ratio is this close to 1


def apart_from_one(interval: list[float]) -> str:
    """What an interval of a ratio says: slower and faster where it does not touch [1 - EQUAL, 1 + EQUAL]."""
    low, high = interval
    return "slower" if high < 1 - EQUAL else "faster" if low > 1 + EQUAL else "equal"


def render() -> None:
    """Put the table between the markers of docs/gpu.md."""
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
    parser.add_argument("--render", action="store_true", help="write the table of docs/gpu.md")
    given = parser.parse_args()
    sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(p for p in sys.path if Path(p).resolve() != HERE.parent)]
    if given.render:
        return render()
    if given.out is None:
        parser.error("--out says where the record goes")
    with contextlib.suppress(OSError):
        given.out.parent.mkdir(parents=True, exist_ok=True)
    measure_here(given.out)
    return None


if __name__ == "__main__":
    main()
