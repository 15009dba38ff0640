"""Seeded mistakes in kernels that are right: how many the emulator catches, and on which line.

    python benchmarks/mutation_benchmark.py                            # everything, a table on standard output
    python benchmarks/mutation_benchmark.py --subjects step1 step4     # some kernels
    python benchmarks/mutation_benchmark.py --all                      # every mutant, not a draw
    python benchmarks/mutation_benchmark.py --jobs 2 --json out.json --markdown out.md

Kernels, operators, the meaning of "the right line" and the list of equivalent mutants are in tests/mutation. A mutant
counts as caught when a run under one of five schedules (late, eager, three random ones) reports an error or a race, or
gives another output than the unchanged kernel.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import queue
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from mutation.equivalent import reason  # noqa: E402
from mutation.mutants import Mutant, all_mutants, draw  # noqa: E402
from mutation.runner import SCHEDULES, Outcome, Workers  # noqa: E402
from mutation.subjects import SUBJECTS  # noqa: E402

Results = list[tuple[Mutant, Outcome]]

# What a report must speak of, where a mistake is a mistake in one concept.
CONCEPTS = {
    "drop_wait": r"\bwait",
    "drop_sync": r"cta_sync|cluster_sync|warp_sync|bar\.warp\.sync|cluster barrier|named barrier|\bbarrier",
    "drop_fence": r"fence",
    "drop_arrive": r"arriv|signal|announce|expect_tx",
    "drop_commit": r"commit",
    "drop_advance": r"phase|parity|stage",
    "flip_phase": r"phase|parity",
    "change_count": r"arrival|count|threads|wait_group",
    "change_bytes": r"bytes",
    "change_stage": r"stage|phase|parity",
}
ALARM_SEEDS = 30


def run(mutants: Sequence[Mutant], jobs: int, timeout: float) -> Results:
    """Every mutant, in ``jobs`` worker processes; results in the order of the mutants."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(mutants)):
        todo.put(index)
    outcomes: list[Outcome | None] = [None] * len(mutants)

    def work() -> None:
        with Workers(timeout) as workers:
            while True:
                try:
                    index = todo.get_nowait()
                except queue.Empty:
                    return
                mutant = mutants[index]
                outcomes[index] = workers.run(mutant.subject, mutant.text)
                done = sum(o is not None for o in outcomes)
                print(f"\r{done} of {len(mutants)} mutants", end="", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(file=sys.stderr)
    return [(m, o) for m, o in zip(mutants, outcomes, strict=True) if o is not None]


def false_alarms(names: Iterable[str], timeout: float) -> dict[str, Outcome]:
    """Every unchanged kernel under late, eager and random schedules."""
    schedules = [("late", 0), ("eager", 0), *(("random", seed) for seed in range(ALARM_SEEDS))]
    with Workers(10 * timeout) as workers:
        return {name: workers.run(name, SUBJECTS[name].text, schedules) for name in names}


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "0 of 0"


class Summary:
    """Results sorted into classes."""

    def __init__(self, results: Results) -> None:
        self.rejected = [(m, o) for m, o in results if o.rejected]
        built = [(m, o) for m, o in results if not o.rejected]
        self.equivalent = [(m, o) for m, o in built if reason(m) is not None]
        real = [(m, o) for m, o in built if reason(m) is None]
        self.letter = [(m, o) for m, o in real if o.letter]
        self.mistakes = [(m, o) for m, o in real if not o.letter]
        self.caught = [(m, o) for m, o in self.mistakes if o.caught]
        self.escaped = [(m, o) for m, o in self.mistakes if not o.caught]
        self.reported = [(m, o) for m, o in self.caught if o.strong]
        self.located = [(m, o) for m, o in self.reported if o.located(m)]
        self.first = [(m, o) for m, o in self.reported if o.located(m, first_only=True)]
        self.crashed = [(m, o) for m, o in results if o.crashed]

    def by_chance(self) -> tuple[float, float]:
        """Share of reports of *other* mutants of the same kernel that would count as the right line.

        (any report, the first report): what a report of that kernel is worth that knows nothing of the mistake.
        """
        hits = firsts = pairs = 0
        for mutant, _ in self.reported:
            for other, outcome in self.reported:
                if other is not mutant and other.subject == mutant.subject:
                    pairs += 1
                    hits += outcome.located(mutant)
                    firsts += outcome.located(mutant, first_only=True)
        return (100 * hits / pairs, 100 * firsts / pairs) if pairs else (0.0, 0.0)

    @property
    def explained(self) -> Results:
        """Reported mutants of :data:`CONCEPTS`."""
        return [(m, o) for m, o in self.reported if m.operator in CONCEPTS]

    @property
    def unexplained(self) -> Results:
        """Those of them with no report that speaks of the concept."""
        return [
            (m, o)
            for m, o in self.explained
            if not any(re.search(CONCEPTS[m.operator], f"{r.message} {r.fix}") for r in o.strong)
        ]

    @property
    def named(self) -> int:
        """Reported mutants with a report on a line of the changed statement itself."""
        return sum(any(m.changed & set(r.lines) for r in o.strong) for m, o in self.reported)

    def row(self) -> list[str]:
        """Counts for a table: mistakes, caught, with a report, right line, only as lint, equivalent, rejected."""
        return [
            str(len(x))
            for x in (
                self.mistakes, self.caught, self.reported, self.located, self.letter, self.equivalent, self.rejected,
            )
        ]  # fmt: skip


_COLUMNS = "mistakes | caught | with a report | on the right line | lint only | equivalent | not built"


def table(title: str, groups: dict[str, Results]) -> list[str]:
    lines = [f"| {title} | {_COLUMNS} |", "|---" * (_COLUMNS.count("|") + 2) + "|"]
    lines += [f"| {name} | {' | '.join(Summary(results).row())} |" for name, results in groups.items()]
    return lines


def grouped(results: Results, key: Any) -> dict[str, Results]:
    out: dict[str, Results] = {}
    for m, o in results:
        out.setdefault(key(m), []).append((m, o))
    return out


def report(results: Results, alarms: dict[str, Outcome], command: str, seconds: float) -> str:
    """The whole result in Markdown."""
    s = Summary(results)
    chance, chance_first = s.by_chance()
    both = len(s.mistakes) + len(s.letter)
    alarm_runs = len(alarms) * (2 + ALARM_SEEDS)
    strong = sum(len(o.strong) + len(o.wrong) for o in alarms.values())
    lints = sum(len(o.reports) - len(o.strong) for o in alarms.values())
    lines = [
        f"`{command}`, {datetime.date.today().isoformat()}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {seconds:.0f} s.",
        "",
        f"* {len(results)} mutants of {len(alarms)} kernels: {len(s.mistakes)} mistakes; {len(s.letter)} only against "
        f"the letter of the ISA (no error, race or wrong output, but a lint that says so); {len(s.equivalent)} equivalent; "
        f"{len(s.rejected)} that TVM or the launch refuses.",
        f"* caught by an error, a race or a wrong output: {share(len(s.caught), len(s.mistakes))}; of mistakes and "
        f"letter together {share(len(s.caught), both)}",
        f"* with an error or race report: {share(len(s.reported), len(s.caught))} of those caught; the others show as "
        "a wrong output only",
        f"* right line in a report: {share(len(s.located), len(s.reported))}, {chance:.0f} % by chance; in the first "
        f"report: {share(len(s.first), len(s.reported))}, {chance_first:.0f} % by chance; on the changed statement "
        f"itself: {share(s.named, len(s.reported))}",
        f"* names the concept (operators that change one concept): "
        f"{share(len(s.explained) - len(s.unexplained), len(s.explained))}",
        f"* false alarms: {strong} errors, races or wrong outputs and {lints} lints in {alarm_runs} runs of the "
        "unchanged kernels",
        "",
        *table("kernel", grouped(results, lambda m: m.subject)),
        "",
        *table("operator", grouped(results, lambda m: m.operator)),
        "",
        "| schedule | mistakes caught under it |",
        "|---|---|",
    ]
    by_schedule = Counter(name for _, o in s.caught for name in o.caught_by)
    for schedule, seed in SCHEDULES:
        name = schedule if schedule != "random" else f"random {seed}"
        lines.append(f"| {name} | {share(by_schedule[name], len(s.mistakes))} |")
    for title, part in (("Escaped", s.escaped), ("Crashed the emulator", s.crashed)):
        if part:
            lines += ["", f"{title}:", ""] + [f"* `{m.id}`, line {m.line}" for m, _ in part]
    missed = [m for m, o in s.reported if not o.located(m)]
    if missed:
        lines += ["", "Reported on other lines:", ""] + [f"* `{m.id}`, line {m.line}" for m in missed]
    if s.unexplained:
        lines += ["", "Reported without the concept:", ""] + [
            f"* `{m.id}`, line {m.line}" for m, _ in s.unexplained
        ]
    if s.equivalent:
        lines += ["", "Equivalent:", ""]
        why: dict[str, list[str]] = {}
        for m, _ in s.equivalent:
            why.setdefault(str(reason(m)), []).append(m.id)
        for text, ids in why.items():
            lines += [f"* {text}", *(f"  * `{i}`" for i in ids)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--subjects", nargs="+", default=list(SUBJECTS), choices=list(SUBJECTS), metavar="KERNEL"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--all", action="store_true", help="every mutant instead of a draw")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds per mutant")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    start = time.perf_counter()
    if arguments.all:
        mutants = [m for name in arguments.subjects for m in all_mutants(SUBJECTS[name])]
    else:
        mutants = draw(arguments.subjects, arguments.seed)
    results = run(mutants, arguments.jobs, arguments.timeout)
    alarms = false_alarms(arguments.subjects, arguments.timeout)
    command = " ".join(["python", "benchmarks/mutation_benchmark.py", *sys.argv[1:]])
    text = report(results, alarms, command, time.perf_counter() - start)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    if arguments.json:
        rows = [
            {
                "id": m.id, "line": m.line, "what": m.what, "equivalent": reason(m), "located": o.located(m), **asdict(o),
            }
            for m, o in results
        ]  # fmt: skip
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    summary = Summary(results)
    return 1 if summary.escaped or summary.crashed else 0


if __name__ == "__main__":
    sys.exit(main())
