"""bank_conflicts: how many wavefronts the learner's SMEM loads and stores take, against the fewest possible.

Also the observations that the report shows whatever the points: banks against lanes for each access.
"""

from __future__ import annotations

from typing import Any

from autograder.checks import CaseRun, Outcome, check, result, unless_run
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Grid, Verdict

BANKS, BANK_BYTES = 32, 4
FINDING = "smem.bank-conflict"
_DIGITS = "0123456789abcdefghijklmnopqrstuv"  # of lanes 0 to 31
_SHARED = ("ld.shared", "st.shared", "ldmatrix", "stmatrix", "ld.generic", "st.generic", "atom.", "red.")


@check
def bank_conflicts(check: Check, outcome: Outcome) -> CheckResult:
    """All or nothing for each kernel; it is judged once one of its cases is correct."""
    early = unless_run(check, outcome)
    if early is not None:
        return early
    allowed = check.times_ideal or 1.0
    count = len(outcome.exercise.kernels)
    good, took, fewest, evidence = 0, 0, 0, []
    for kernel in (outcome.of_kernel(number) for number in range(count)):
        name = kernel.exercise.builder.name
        run = next((run for run in kernel.runs if run.correct), None)
        if run is None:
            evidence.append(Evidence(kind="note", message=f"{name}: judged once a case of it is correct"))
            continue
        accesses = _shared(run)
        took += sum(access["passes"] for access in accesses)
        fewest += sum(access["ideal"] for access in accesses)
        if not accesses:
            message = f"{name}: no thread loads from SMEM or stores to it, so there is nothing to judge"
            evidence.append(Evidence(kind="note", message=message, locations=kernel.lines_on_output()))
            continue
        wasteful = [access for access in accesses if _wasteful(access, allowed)]
        good += not wasteful
        evidence += [_conflict(kernel, access) for access in wasteful]
    evidence.sort(key=lambda item: item.kind == "note")
    summary = f"{took} wavefronts per launch, {fewest} would do" if took else "nothing to judge"
    if good == count:
        return result(check, Verdict.PASS, check.points, summary)
    verdict = Verdict.PARTIAL if good else Verdict.FAIL
    return result(check, verdict, check.points * good / count, summary, evidence)


def observations(outcome: Outcome) -> list[Evidence]:
    """Banks against lanes for each access without a conflict, if the exercise judges them."""
    check = outcome.exercise.check("bank_conflicts")
    if check is None:
        return []
    notes = []
    for number in range(len(outcome.exercise.kernels)):
        kernel = outcome.of_kernel(number)
        judged = next((run for run in kernel.runs if run.correct), None)
        run = judged or next(iter(kernel.runs), None)
        for access in _shared(run) if run is not None else []:
            if judged is not None and _wasteful(access, check.times_ideal or 1.0):
                continue  # stands among what costs points
            place = kernel.diagnosis.location(access["file"], access["line"])
            message = f"{_what(kernel, access)}: {_per_request(access)}"
            notes.append(
                Evidence(
                    kind="note",
                    message=message,
                    locations=[place],
                    pictures=banks_against_lanes(access["pattern"]),
                )
            )
    return notes


def _shared(run: CaseRun) -> list[dict[str, Any]]:
    return [access for access in run.accesses if access["space"] == "shared"]


def _wasteful(access: dict[str, Any], allowed: float) -> bool:
    return bool(access["passes"] > allowed * access["ideal"])


def _what(kernel: Outcome, access: dict[str, Any]) -> str:
    """`ldmatrix of tile_in`: the instruction, and the buffers whose addresses the line takes, as the learner calls them."""
    found = [
        op
        for op in kernel.compiled[0].operations
        if (op["file"], op["line"]) == (access["file"], access["line"])
        and op["instruction"].startswith(_SHARED)
    ]
    verb = "stores" if access["write"] else "loads"
    instruction = next((op["instruction"] for op in found), f"SMEM {verb}")
    names = sorted({name for op in found for name in op["names"]})
    return f"{instruction} ({', '.join(names)})" if names else instruction


def _per_request(access: dict[str, Any]) -> str:
    took, fewest = (access[key] / access["requests"] for key in ("passes", "ideal"))
    if access["passes"] == access["ideal"]:
        return f"a warp's request takes {took:.3g} wavefronts, the fewest possible"
    return f"a warp's request takes {took:.3g} wavefronts, {fewest:.3g} would do"


def _conflict(kernel: Outcome, access: dict[str, Any]) -> Evidence:
    worst = max(_groups(access["pattern"]), key=lambda group: group.degree)
    banks = worst.crowded
    message = (
        f"{_what(kernel, access)}: {worst.degree}-way bank conflict: lanes {_list(worst.lanes_in(banks[0]))} want"
        f" different words of bank{'s' if len(banks) > 1 else ''} {_list(banks)}; {_per_request(access)}"
    )
    place = kernel.diagnosis.location(access["file"], access["line"])
    data = {key: access[key] for key in ("requests", "passes", "ideal", "write", "pattern")}
    data |= {"degree": worst.degree, "banks": banks, "lanes": worst.lanes_in(banks[0])}
    fix = (
        "let lanes that are served together reach different banks; a swizzle does that for one chunk of eight rows, if the"
        " layout and every address have it"
    )
    return Evidence(
        kind="counter",
        code=FINDING,
        message=message,
        fix=fix,
        locations=[place],
        data=data,
        pictures=banks_against_lanes(access["pattern"]),
    )


# Banks against lanes ----------------------------------------------------------------------------


class _Group:
    """The lanes of one request that are served together.

    wavefronts: for each (lane, bank) that is reached, the wavefront that serves it; lanes that want the same word share
    one.
    """

    def __init__(self, pattern: dict[str, Any], positions: list[int]) -> None:
        self.lanes = [pattern["lanes"][i] for i in positions]
        self.nbytes = pattern["bytes"]
        queues: dict[int, list[int]] = {}
        self.wavefronts: dict[tuple[int, int], int] = {}
        for i in positions:
            first, last = pattern["addresses"][i], pattern["addresses"][i] + pattern["bytes"] - 1
            for word in range(first // BANK_BYTES, last // BANK_BYTES + 1):
                queue = queues.setdefault(word % BANKS, [])
                if word not in queue:
                    queue.append(word)
                self.wavefronts[pattern["lanes"][i], word % BANKS] = queue.index(word) + 1
        self.queues = queues

    @property
    def degree(self) -> int:
        return max(len(queue) for queue in self.queues.values())

    @property
    def crowded(self) -> list[int]:
        """The banks with the most words."""
        return sorted(bank for bank, queue in self.queues.items() if len(queue) == self.degree)

    def lanes_in(self, bank: int) -> list[int]:
        return sorted(lane for lane, reached in self.wavefronts if reached == bank)


def _groups(pattern: dict[str, Any]) -> list[_Group]:
    return [_Group(pattern, positions) for positions in pattern["groups"]]


def banks_against_lanes(pattern: dict[str, Any] | None) -> list[Grid]:
    """A picture of the group of lanes with the worst conflict in one request.

    pattern: its lanes, their byte addresses, the bytes of each, and groups: positions in `lanes` served together.
    """
    if pattern is None:
        return []
    groups = _groups(pattern)
    group = max(groups, key=lambda one: one.degree)
    cells = [["" for _ in range(BANKS)] for _ in group.lanes]
    late = []
    for (lane, bank), wavefront in group.wavefronts.items():
        row = group.lanes.index(lane)
        cells[row][bank] = str(wavefront)
        if wavefront > 1:
            late.append((row, bank))
    share = "" if len(groups) == 1 else f" (1 of {len(groups)} groups that are served one by one)"
    title = f"lanes {_list(group.lanes)}, {group.nbytes} bytes each{share}"
    return [
        Grid(
            title=title,
            cells=cells,
            colours=[[int(cell) - 1 if cell else -1 for cell in row] for row in cells],
            rows=[str(lane) for lane in group.lanes],
            columns=[str(bank) for bank in range(BANKS)],
            row_axis="lane",
            column_axis="bank",
            marked=sorted(late),
            note="in each cell: the wavefront that serves it",
            text=[title, *_text(group)],
        )
    ]


def _text(group: _Group) -> list[str]:
    """One line per wavefront: which lane each bank serves."""
    lines = [f"{'bank':<13}" + "".join(f"{bank:<8}" for bank in range(0, BANKS, 8)).rstrip()]
    for wavefront in range(1, group.degree + 1):
        served = {
            bank: lane
            for (lane, bank), when in sorted(group.wavefronts.items(), reverse=True)
            if when == wavefront
        }
        row = "".join(_DIGITS[served[bank]] if bank in served else "." for bank in range(BANKS))
        lines.append(f"{f'wavefront {wavefront}':<13}{row}")
    if any(lane > 9 for lane in group.lanes):
        lines.append(f"{'':<13}a to v: lanes 10 to 31")
    return lines


def _list(numbers: list[int]) -> str:
    """`0 to 7`, or `0, 4, 8 and 12`."""
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    if len(numbers) > 8:
        return ", ".join(map(str, numbers[:8])) + f", ... ({len(numbers)} of them)"
    return " and ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))
