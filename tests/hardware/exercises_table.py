"""The record of `exercises.py` as the section of docs/hardware_validation.md."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("exercises.json")
PAGE = ROOT / "docs" / "hardware_validation.md"
BEGIN, END = "<!-- exercises: begin -->", "<!-- exercises: end -->"


def render(record: Path = RECORD, page: Path = PAGE) -> None:
    """Put the tables between the markers of the page.

    Raises:
        SystemExit: the record or a marker is missing; one line.
    """
    if not record.is_file():
        raise SystemExit(
            f"{record}: no record; run `python tests/hardware/exercises.py --out {record.name}` on a GPU"
        )
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{page}: needs the lines {BEGIN} and {END} once each")
    before, _, rest = text.partition(BEGIN)
    tables = section(json.loads(record.read_text(encoding="utf-8")))
    page.write_text(f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def section(record: dict[str, Any]) -> str:
    """Markdown: what ran where, the grades, the measurements."""
    parts = [_head(record), *_grades(record["grades"]), *_measurements(record["measured"])]
    lost = [t for t in record["trouble"] if t.get("why") == "deadline"]
    if lost:
        parts.append(
            f"Not run, because the time was used up: {', '.join(sorted(t['subject'] for t in lost))}."
        )
    return "\n\n".join(parts)


def _head(record: dict[str, Any]) -> str:
    m = record["machine"]
    software = ", ".join(f"{name} {m[name]}" for name in ("apache-tvm", "torch", "numpy") if name in m)
    return (
        f"{m['gpu']}, driver {m['driver']}, {m['date']}; {software}; {record.get('seconds', '?')} s for everything, with"
        f" {m['cores']} CPU cores."
    )


# Grades -----------------------------------------------------------------------------------------


def _grades(grades: list[dict[str, Any]]) -> list[str]:
    ran = [g for g in grades if "error" not in g]
    parts = []
    solutions = [g for g in ran if g["name"] == "solution"]
    if solutions:
        rows = [
            f"| {g['exercise']} | {g['points']:g} | {_ended(g, 'gpu')} | {_ended(g, 'emulated')} | {_same(g)} |"
            for g in sorted(solutions, key=lambda g: g["exercise"])
        ]
        parts.append(
            "| solution | points | launches on the GPU | in the emulator | outputs |\n|---|---|---|---|---|\n"
            + "\n".join(rows)
        )
    mutants = sorted((g for g in ran if g["name"] != "solution"), key=lambda g: (g["exercise"], g["name"]))
    if mutants:
        counts = Counter(verdict(g) for g in mutants)
        parts.append(
            f"{len(mutants)} mutants: {counts['both']} fail on the GPU as well as in the emulator;"
            f" {counts['other check']} give right numbers on both and lose points in a check that looks at something else;"
            f" {counts['forgiven']} give right numbers on the GPU although the emulator proves a race or an error:"
            f" the hardware forgives them; {counts['gpu only']} fail on the GPU alone."
        )
        rows = [
            f"| {g['exercise'][-2:]} {g['name']} | {g.get('mutant', '')} | {_ended(g, 'gpu')} | {_emulator(g)} | {verdict(g)} |"
            for g in mutants
        ]
        parts.append(
            "| mutant | mistake | on the GPU | in the emulator | fails on |\n|---|---|---|---|---|\n"
            + "\n".join(rows)
        )
    broken = [f"{g['exercise']}/{g['name']}" for g in grades if "error" in g]
    if broken:
        parts.append(f"Without a result: {', '.join(sorted(broken))}.")
    return parts


def _ended(grade: dict[str, Any], where: str) -> str:
    """`3 right, 1 wrong`."""
    ends = Counter(launch[where] for launch in grade["launches"])
    if not ends:
        return "not built" if grade["checks"].get("build") != "pass" else "not run"
    faults = {
        launch["gpu_error"] for launch in grade["launches"] if where == "gpu" and launch["gpu"] == "fault"
    }
    text = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    return text + (f" ({_short(faults)})" if faults else "")


def _short(faults: set[str]) -> str:
    return "; ".join(sorted(fault.rsplit(": ", 1)[-1][:60] for fault in faults))


def _emulator(grade: dict[str, Any]) -> str:
    codes = [code for code in grade["findings"]]
    return _ended(grade, "emulated") + (f"; {', '.join(codes)}" if codes else "")


def _same(grade: dict[str, Any]) -> str:
    same = [launch["same_bytes"] for launch in grade["launches"] if launch["same_bytes"] is not None]
    return "the same bytes" if same and all(same) else f"{same.count(True)} of {len(same)} the same bytes"


def verdict(grade: dict[str, Any]) -> str:
    """Where a mutant fails: both, forgiven, gpu only, or other check (its numbers are right everywhere)."""
    launches = grade["launches"]
    gpu_wrong = any(launch["gpu"] != "right" for launch in launches) or not launches
    lost = {check for check, state in grade["checks"].items() if state != "pass"} - {"predictions"}
    emulator_wrong = (
        bool(grade["findings"]) or any(launch["emulated"] != "right" for launch in launches) or not launches
    )
    if gpu_wrong:
        return "both" if emulator_wrong or lost - {"correctness"} else "gpu only"
    if emulator_wrong:
        return "forgiven"
    return "other check" if lost else "nowhere"


# Measurements -----------------------------------------------------------------------------------


def _measurements(rows: list[dict[str, Any]]) -> list[str]:
    good = [r for r in rows if "measured" in r]
    if not good:
        return []
    lines = [
        "| measured | µs | TB/s | reference µs | speed | 95 % interval | verdict |",
        "|---|---|---|---|---|---|---|",
        *map(_line, good),
    ]
    parts = ["\n".join(lines)]
    repeats = _repeatability(good)
    if repeats:
        parts.append(repeats)
    told = _told_apart(good)
    if told:
        parts.append(told)
    return parts


def _line(row: dict[str, Any]) -> str:
    m = row["measured"]
    if not m.get("ratio"):
        return f"| {row['name']} | | | | | | {m['verdict']}: {m['message']} |"
    low, high = m["interval"]
    note = f": {m['message']}" if m["verdict"] == "error" else ""
    return (
        f"| {row['name']} | {m['kernel_us']:.1f} | {m['bytes_moved'] / m['kernel_us'] / 1e6:.2f} | {m['reference_us']:.1f} |"
        f" {100 * m['ratio']:.1f} % | {100 * low:.1f} to {100 * high:.1f} | {m['verdict']}{note} |"
    )


def _repeatability(rows: list[dict[str, Any]]) -> str:
    """The widest interval and how far repeats of one measurement are apart."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["measured"].get("ratio"):
            groups.setdefault(row["name"], []).append(row["measured"])
    repeated = {name: ms for name, ms in groups.items() if len(ms) > 1}
    if not repeated:
        return ""
    width = max((m["interval"][1] - m["interval"][0]) / m["ratio"] for ms in repeated.values() for m in ms)
    ratios = {name: [m["ratio"] for m in ms] for name, ms in repeated.items()}
    spread = max((max(rs) - min(rs)) / min(rs) for rs in ratios.values())
    return (
        f"Repeatability: the widest interval of a ratio is {100 * width:.2f} % of it, and the ratios of repeated"
        f" measurements are at most {100 * spread:.2f} % apart ({sum(map(len, ratios.values()))} measurements of"
        f" {len(ratios)} kernels)."
    )


def _told_apart(rows: list[dict[str, Any]]) -> str:
    """Whether a kernel with a tenth more work is told from the original."""
    said = []
    for row in rows:
        if row["what"] != "slower" or not row["measured"].get("ratio"):
            continue
        m, name = row["measured"], row["exercise"]
        low, high = (100 * x for x in m["interval"])
        if row["name"].endswith("against itself"):
            said.append(f"{name} against the original: {100 * m['ratio']:.1f} % ({low:.1f} to {high:.1f})")
            continue
        own = [
            r["measured"]
            for r in rows
            if r["exercise"] == name and r["what"] == "solution" and r["measured"].get("ratio")
            and r["measured"]["reference"] == m["reference"]
        ]  # fmt: skip
        if own:
            apart = min(o["interval"][0] for o in own) > m["interval"][1]
            said.append(
                f"{name} against the library: {'told apart' if apart else 'not told apart'} from the solution"
            )
    return f"With a tenth more work: {'; '.join(said)}." if said else ""
