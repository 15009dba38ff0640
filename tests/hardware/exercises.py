"""The exercises on a real GPU: grades of solutions and mutants there and in the emulator, and measured speed.

    python tests/hardware/exercises.py --out OUT/exercises.json [--deadline SECONDS]     on the machine with the GPU
    python tests/hardware/exercises.py --render                                          the tables of the docs

The record is written after every result, so that what ended by the deadline is there. Measurements come first, while
nothing else uses the GPU; then the solutions, then the mutants, in parallel processes. Nothing here decides anything: it
runs the product's own grade (`autograder.grade`) and measurement (`autograder.runner.measure`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
RECORD = Path(__file__).with_name("exercises.json")
SEED = 1
GPU_SECONDS = 8.0  # one launch of a grade here: many processes share the GPU
GRADE_SECONDS = 60.0
LOST = 3  # exit status: the CUDA context may be lost, start another process
MEASURE_SHARE = 0.45  # of the deadline, at most, for the measurements


STAND_IN = "EXERCISES_STAND_IN"  # folder with a fake_gpu.py, for the test of this file


def stand_ins() -> tuple[Path, ...]:
    """Where the stand-in for the GPU is, if one is asked for."""
    folder = os.environ.get(STAND_IN)
    if folder:
        sys.path.insert(0, folder)
    return (Path(folder),) if folder else ()


def backend() -> str:
    """The module that drives the GPU."""
    from autograder.on_gpu import BACKEND

    return "fake_gpu" if stand_ins() else BACKEND


# ------------------------------------------------------------------------------------------------ kernels


def kernel_cell(exercise: str) -> str:
    """The solution's kernel cell."""
    notebook = json.loads((ROOT / "solutions" / exercise / f"{exercise}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "kernel":
            return "".join(cell["source"])
    raise ValueError(f"{exercise} has no kernel cell")


def build(source: str, name: str, params: dict[str, Any]) -> Any:
    """The PrimFunc of a kernel text."""
    import importlib.util
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="kernel-"))
    path = folder / "kernel.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(folder.name.replace("-", "_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)(**params)


def replaced(source: str, *pairs: tuple[str, str]) -> str:
    """The text with each (old, new) replaced; every old text must be there."""
    for old, new in pairs:
        if old not in source:
            raise ValueError(f"the kernel has no '{old}' any more")
        source = source.replace(old, new)
    return source


# The same work and a tenth more: the CTAs of the first tenth of the elements or rows run twice.
SLOWER = {
    "exercise_01": (
        ("ctas = (N + THREADS - 1) // THREADS", "ctas = ((N + THREADS - 1) // THREADS) * 11 // 10"),
        ("cta = T.cta_id([ctas])", "cta = T.cta_id([ctas]) % ((N + THREADS - 1) // THREADS)"),
    ),
    "exercise_02": (
        ("T.cta_id([STRIPS_M, STRIPS_N])", "T.cta_id([STRIPS_M * 11 // 10, STRIPS_N])"),
        ("T.meta_var(strip_m * ROWS)", "T.meta_var((strip_m % STRIPS_M) * ROWS)"),
    ),
    "exercise_03": (
        ("T.cta_id([TILES_M, TILES_N])", "T.cta_id([TILES_M, TILES_N * 11 // 10])"),
        ("T.meta_var(tile_n * COLS)", "T.meta_var((tile_n % TILES_N) * COLS)"),
    ),
    "exercise_04": (
        ("T.cta_id([TILE_COLS, TILE_ROWS])", "T.cta_id([TILE_COLS, TILE_ROWS * 11 // 10])"),
        ("T.meta_var(tile_row * TILE)", "T.meta_var((tile_row % TILE_ROWS) * TILE)"),
    ),
}
SPAN = "SPAN = 16"


def jobs() -> list[dict[str, Any]]:
    """What is measured, the most important first: exercise, entry of its `timing`, changes of the text, how often.

    `against`: time another text of the same exercise instead of the library call.
    """
    found: list[dict[str, Any]] = []

    def job(
        exercise: str, what: str, name: str, change: Any = (), repeats: int = 1, timing: int = 0, **more: Any
    ) -> None:
        row = {"exercise": exercise, "what": what, "name": name, "change": list(change), "repeats": repeats}
        found.append({**row, "timing": timing, **more})

    for exercise in sorted(generation(), key=lambda e: e.id not in ("exercise_02", "exercise_04")):
        for number, timing in enumerate(exercise.timing):
            often = 3 if exercise.id in ("exercise_02", "exercise_04") else 2
            job(exercise.id, "solution", f"{exercise.id} against {timing.reference}", (), often, number)
    job("exercise_02", "library", "PyTorch's copy against itself", (), 3)
    for name in ("exercise_02", "exercise_01"):
        job(name, "slower", f"{name}, a tenth more work", SLOWER[name])
        job(name, "slower", f"{name}, a tenth more work, against itself", SLOWER[name], against=[])
    for span in (8, 4, 64, 32):
        job("exercise_02", "variant", f"exercise_02, {span} tiles per CTA", [(SPAN, f"SPAN = {span}")])
    gemm = {"builder": "build_gemm", "params": {"M": 2048, "N": 2048, "K": 2048}, "reference": "matmul_nn"}
    job("exercise_01", "size", "exercise_01, GEMM of 2048 x 2048 x 2048 against cuBLAS", spec=gemm)
    for size in (4096, 2048):
        job("exercise_02", "size", f"exercise_02, {size} x {size}", params={"M": size, "N": size})
    return found


def generation() -> list[Any]:
    """The exercises that run on every GPU of the course, an H200 among them."""
    from autograder.course import load_course

    return [exercise for exercise in load_course(ROOT).exercises if exercise.runs_on == "sm_90"]


# ------------------------------------------------------------------------------------------------ measuring


def measure_all(deadline: float, skip: int) -> None:
    """One process: every repeat of `jobs` but the first `skip`; a JSON line per repeat on standard output."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    end = time.monotonic() + deadline
    from autograder.gpu import Gpu, find_gpu

    gpu = find_gpu()
    assert isinstance(gpu, Gpu) and gpu.arch is not None, gpu
    driver = importlib.import_module(backend())
    others = driver.neighbours()
    device = driver.open_device(gpu.arch)
    out.write(json.dumps({"name": "neighbours", "value": others}) + "\n")
    compiled: dict[str, Any] = {}
    kept: list[Exception] = []
    every = [(job, repeat) for job in jobs() for repeat in range(job["repeats"])]
    for job, repeat in every[skip:]:
        if time.monotonic() > end:
            return
        started = time.monotonic()
        try:
            record = measure_one(device, gpu.arch, job, repeat, compiled)
        except Exception as error:
            kept.append(error)  # its frames hold tensors: freeing those of a lost context would abort
            record = {"error": traceback.format_exc()[-2500:]}
        record |= {"name": job["name"], "what": job["what"], "exercise": job["exercise"], "repeat": repeat}
        record["seconds"] = round(time.monotonic() - started, 2)
        out.write(json.dumps(record) + "\n")
        if "error" in record and "CUDA" in record["error"] and "ompil" not in record["error"]:
            out.flush()
            os._exit(LOST)


def what_to_time(exercise: Any, job: dict[str, Any]) -> Any:
    """An entry of the exercise's `timing`, with other sizes, or one of our own that has no goal."""
    from autograder.course import Timing

    if "spec" in job:
        return Timing(**job["spec"])
    timing = exercise.timing[job["timing"]]
    return timing.model_copy(update={"params": job["params"]}) if "params" in job else timing


def measure_one(
    device: Any, arch: str, job: dict[str, Any], repeat: int, compiled: dict[str, Any]
) -> dict[str, Any]:
    """One measurement: the judged result and the raw samples."""
    from autograder.course import load_course
    from autograder.runner.measure import measure
    from autograder.speed import judge

    exercise = load_course(ROOT).find(job["exercise"])
    timing = what_to_time(exercise, job)
    kernel = exercise.timed(timing)

    def executable(changes: Any) -> Any:
        source = replaced(kernel_cell(job["exercise"]), *[tuple(c) for c in changes])
        key = repr((source, kernel.builder))
        if key not in compiled:
            compiled[key] = device.compile(build(source, kernel.builder.name, dict(kernel.builder.params)))
        return compiled[key]

    plan = {
        "tensors": kernel.tensor_specs(),
        "reference": timing.reference,
        "oracle": kernel.oracle,
        "terms": kernel.size(kernel.tolerance.terms),
        "accumulate_eps": kernel.tolerance.eps,
        "options": kernel.options,
    }
    run = executable(job["change"])
    bench = device.bench(run, plan, SEED + repeat)
    if job["what"] == "library":
        bench.use_reference_as_kernel(job.get("tenths", 0))
    if "against" in job:
        bench.use_kernel_as_reference(executable(job["against"]))
    samples = measure(bench, timing.pairs, SEED + repeat, 8.0)
    result = judge(samples, timing, kernel, arch)
    record: dict[str, Any] = {"measured": result.model_dump(mode="json"), "facts": samples["facts"]}
    record["samples"] = {k: [round(v, 2) for v in samples[k]] for k in ("kernel", "reference")}
    record["uncovered"] = samples["covered"].count(False)
    record["clocks"] = samples["clocks"][-2:]
    return record


# ------------------------------------------------------------------------------------------------ grading


def subjects() -> list[dict[str, str]]:
    """Every solution and mutant of an exercise that runs on this generation, solutions first."""
    found, mutants = [], []
    for exercise in generation():
        path = ROOT / "solutions" / exercise.id / exercise.notebook
        found.append({"exercise": exercise.id, "name": "solution", "path": str(path)})
        for mutant in sorted((ROOT / "tests" / "mutants" / exercise.id).glob("*.py")):
            head = dict(
                re.findall(
                    r"^# (mutant|check|finding): (.+)$", mutant.read_text(encoding="utf-8"), flags=re.M
                )
            )
            mutants.append({"exercise": exercise.id, "name": mutant.stem, "path": str(mutant), **head})
    # One of each exercise in turn, so that what the deadline cuts off is shared.
    own = [[m for m in mutants if m["exercise"] == f["exercise"]] for f in found]
    return found + [m for row in itertools.zip_longest(*own) for m in row if m is not None]


def grade_one(exercise: str, path: str, gpu: str) -> None:
    """One process: the grade of one file on the GPU, as a JSON report on standard output."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from autograder.course import load_course
    from autograder.gpu import Gpu
    from autograder.grade import Settings, grade
    from autograder.submission import read_submission

    course = load_course(ROOT)
    spec = course.find(exercise)
    described = json.loads(gpu)
    device = Gpu(**{**described, "capability": tuple(described["capability"])})
    limits = course.limits.model_copy(update={"gpu_seconds": GPU_SECONDS})
    report = grade(
        spec,
        read_submission(Path(path), spec),
        limits,
        Settings(seed=SEED, gpu=device, measure=False, backend=backend(), roots=stand_ins()),
    )
    out.write(report.model_dump_json())
    out.flush()


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """What the tables need of a report."""
    notes = [n for n in report["notes"] if n["data"].get("launches")]
    return {
        "points": report["points"],
        "device": report["device"],
        "checks": {c["id"]: c["verdict"] for c in report["checks"]},
        "reasons": {
            c["id"]: (c["summary"] or c["reason"])[:300] for c in report["checks"] if c["verdict"] != "pass"
        },
        "faults": sorted({c["fault"] for c in report["checks"] if c["fault"]}),
        "findings": sorted({e["code"] for c in report["checks"] for e in c["evidence"] if e["code"]}),
        "launches": notes[0]["data"]["launches"] if notes else [],
        "correctness": [
            e["message"][:250] for c in report["checks"] if c["id"] == "correctness" for e in c["evidence"]
        ][:2],
        "versions": report["versions"],
        "timings": report["seconds"],
    }


# ------------------------------------------------------------------------------------------------ the whole run


class Record:
    """The record on disk; every change is written at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self._lock = (
            path,
            {"grades": [], "measured": [], "trouble": []},
            threading.Lock(),
        )
        path.parent.mkdir(parents=True, exist_ok=True)

    data: dict[str, Any]

    def add(self, key: str, value: Any) -> None:
        with self._lock:
            if isinstance(self.data.get(key), list):
                self.data[key].append(value)
            else:
                self.data[key] = value
            self._write()

    def _write(self) -> None:
        rows = {k: v for k, v in self.data.items() if k in ("grades", "measured", "trouble")}
        head = json.dumps({k: v for k, v in self.data.items() if k not in rows}, indent=1)[:-2] or "{"
        parts = [head] if head != "{" else ["{"]
        for key, entries in rows.items():
            lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
            parts.append(f' "{key}": [\n{lines}\n ]' if lines else f' "{key}": []')
        text = parts[0] + (",\n" if len(parts[0]) > 2 else "\n") + ",\n".join(parts[1:]) + "\n}\n"
        partial = self.path.with_suffix(".part")
        partial.write_text(text)
        partial.replace(self.path)


def run_child(command: list[str], seconds: float) -> tuple[int | None, str, str]:
    """(exit status or None when it was stopped, standard output, end of standard error)."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=max(1.0, seconds))
        return process.returncode, out, err[-2000:]
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(timeout=5)
            return None, out, err[-2000:]
        return None, "", ""


def machine_info(gpu: Any) -> dict[str, Any]:
    """Date, GPU, driver and versions."""
    import datetime
    from importlib import metadata

    info: dict[str, Any] = {"date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")}
    info |= {
        "gpu": gpu.name,
        "capability": list(gpu.capability),
        "driver": gpu.driver,
        "cores": os.cpu_count(),
    }
    info["python"] = platform.python_version()
    for package in ("apache-tvm", "torch", "numpy", "cuda-bindings", "pydantic"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            info[package] = metadata.version(package)
    return info


def run_measurements(record: Record, end: float) -> None:
    """Measure until all is done; after a lost context, another process goes on with the next."""
    for _ in range(4):
        done = sum("repeat" in row for row in record.data["measured"])
        if end - time.monotonic() < 5 or _measuring_process(record, end, done) != LOST:
            return


def _measuring_process(record: Record, end: float, skip: int) -> int:
    """One measuring process; its lines are recorded as they come. Returns its exit status."""
    seconds = max(5.0, end - time.monotonic())
    command = [
        sys.executable,
        str(HERE),
        "--measure",
        str(seconds - 3),
        "--skip",
        str(skip),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True, start_new_session=True
    )
    timer = threading.Timer(seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    errors: list[str] = []
    assert process.stdout is not None and process.stderr is not None
    drain = threading.Thread(target=lambda: errors.append(process.stderr.read()[-2500:]))  # type: ignore[union-attr]
    drain.start()
    for line in process.stdout:
        with contextlib.suppress(ValueError):
            record.add("measured", json.loads(line))
    process.wait()
    timer.cancel()
    drain.join(5)
    if process.returncode != 0:
        record.add("trouble", {"stage": "measure", "status": process.returncode, "stderr": "".join(errors)})
    return process.returncode


def run_grades(record: Record, gpu: Any, workers: int, end: float) -> None:
    """Solutions and mutants in parallel until the deadline."""
    described = json.dumps(
        {"name": gpu.name, "capability": gpu.capability, "driver": gpu.driver, "visible": gpu.visible}
    )

    def one(subject: dict[str, str]) -> None:
        left = end - time.monotonic()
        if left < 8:
            record.add(
                "trouble",
                {"stage": "grade", "subject": subject["exercise"] + "/" + subject["name"], "why": "deadline"},
            )
            return
        started = time.monotonic()
        command = [
            sys.executable,
            str(HERE),
            "--grade",
            subject["exercise"],
            subject["path"],
            described,
        ]
        status, out, err = run_child(command, min(GRADE_SECONDS, left))
        row: dict[str, Any] = {k: v for k, v in subject.items() if k != "path"}
        try:
            row |= summary(json.loads(out))
        except ValueError:
            row |= {"error": f"exit status {status}: {err[-1500:]}"}
        row["seconds"] = round(time.monotonic() - started, 1)
        record.add("grades", row)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, subjects()))


def run_commands(record: Record, end: float) -> None:
    """The command line itself: doctor, and one grade with `--device auto`, measurement included, while nothing else runs."""

    def one(name: str, arguments: list[str]) -> None:
        seconds = min(45.0, end - time.monotonic())
        status, out, err = run_child([sys.executable, "-m", "autograder", *arguments], seconds)
        record.add(f"command_{name}", {"status": status, "out": out[-5000:], "err": err})

    grade = ["exercise_02", "--solution", "--device", "auto", "--seed", str(SEED), "--plain"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, ("auto", "doctor"), (grade, ["doctor", "--plain"])))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--deadline", type=float, default=150.0, help="seconds for everything (default 150)")
    parser.add_argument(
        "--workers", type=int, default=max(1, (os.cpu_count() or 2) * 5 // 8), help="grades at a time"
    )
    parser.add_argument(
        "--render", action="store_true", help="write the tables of docs/hardware_validation.md"
    )
    parser.add_argument("--measure", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--grade", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(p for p in sys.path if Path(p).resolve() != HERE.parent)]
    if given.measure is not None:
        return measure_all(given.measure, given.skip)
    if given.grade:
        return grade_one(*given.grade)
    if given.render:
        from hardware.exercises_table import render

        return render()
    if given.out is None:
        parser.error("--out says where the record goes")
    run(Record(given.out), given.deadline, given.workers)
    return None


def run(record: Record, deadline: float, workers: int) -> None:
    """Every stage on its own: one that fails leaves its traceback in the record."""
    started = time.monotonic()
    end = started + deadline
    from autograder.gpu import NoGpu, find_gpu

    gpu = find_gpu()
    if isinstance(gpu, NoGpu):
        raise SystemExit(f"exercises.py: {gpu.reason}")
    stages = [
        ("machine", lambda: record.add("machine", machine_info(gpu))),
        ("measure", lambda: run_measurements(record, started + deadline * MEASURE_SHARE)),
        ("commands", lambda: run_commands(record, end)),
        ("grades", lambda: run_grades(record, gpu, workers, end - 3)),
    ]
    for name, stage in stages:
        try:
            stage()
        except Exception:
            record.add("trouble", {"stage": name, "traceback": traceback.format_exc()[-2500:]})
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    record.add("seconds", round(time.monotonic() - started, 1))
    for row in record.data["measured"]:
        if "measured" in row:
            m = row["measured"]
            print(
                row["name"],
                row["repeat"],
                m["verdict"],
                m["kernel_us"],
                m["ratio"],
                m["interval"],
                m["message"],
            )
        else:
            print(row.get("name"), str(row.get("error", row.get("value")))[-300:])
    bad = [
        r for r in record.data["grades"] if "error" in r or (r["name"] == "solution") != (r["points"] == 100)
    ]
    for row in bad:
        print(
            "LOOK",
            row["exercise"],
            row["name"],
            row.get("points"),
            row.get("reasons"),
            row.get("error", "")[-300:],
        )
    print(f"{len(record.data['grades'])} grades, {len(record.data['trouble'])} troubles")


if __name__ == "__main__":
    main()
