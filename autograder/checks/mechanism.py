"""mechanism: the instructions that the exercise teaches were really executed, counted by the emulator."""

from __future__ import annotations

from autograder.checks import Breach, Outcome, breaches, check, result, unless_run
from autograder.course import Check
from autograder.report.model import CheckResult, Evidence, Location, Verdict
from emulator.counters import AMOUNTS, COUNTED_BY, OBSERVABLES

# How to find the lines behind a number that no instruction of the kernel decides.
DECIDED_BY = {"ctas": r"T\.cta_id\("}


@check
def mechanism(check: Check, outcome: Outcome) -> CheckResult:
    early = unless_run(check, outcome)
    if early is not None:
        return early
    found = breaches(check, outcome)
    if not found:
        if not outcome.does_something:
            return result(check, Verdict.FAIL, 0, "nothing is executed that the exercise teaches")
        return result(check, Verdict.PASS, check.points, _praise(check))
    several = len({run.kernel for run in outcome.runs}) > 1
    evidence = [
        Evidence(
            kind="counter",
            message=_message(breach, several),
            fix=check.fixes.get(breach.counter, ""),
            locations=_lines(breach.counter, outcome) or _instead(breach.counter, outcome),
            data={"counter": breach.counter, "seen": breach.seen, breach.kind: breach.bound},
        )
        for breach in found
    ]
    sides: dict[str, list[str]] = {"missing": [], "not reached": [], "too few": [], "too many": []}
    for breach in found:
        sides[_side(breach, outcome)].append(breach.counter)
    if sum(breach.kind == "at_least" for breach in found) == len(check.at_least) and not any(
        e.locations for e in evidence
    ):
        evidence[0].locations = outcome.lines_on_output()
    parts = [f"{word}: {', '.join(names)}" for word, names in sides.items() if names]
    return result(check, Verdict.FAIL, 0, "; ".join(parts), evidence)


def _side(breach: Breach, outcome: Outcome) -> str:
    """What is wrong with a counter, in two words."""
    if breach.kind == "at_most":
        return "too many"
    if breach.seen + breach.idle > 0:
        return "too few"
    return "not reached" if outcome.stands(breach.counter) else "missing"


def _praise(check: Check) -> str:
    if check.at_most:
        return "all required instructions are executed, and no others in their place"
    return "all required instructions are executed"


def _lines(counter: str, outcome: Outcome) -> list[Location]:
    """The learner's lines with the instructions that a counter counts, or that store the output without them."""
    if counter in DECIDED_BY:
        return outcome.lines_with(DECIDED_BY[counter])
    places = [place for name in COUNTED_BY.get(counter, (counter,)) for place in outcome.lines_of(name)]
    if not places and counter.endswith(".store"):
        places = outcome.lines_on_output()
    return list({(place.file, place.line): place for place in places}.values())


def _instead(counter: str, outcome: Outcome) -> list[Location]:
    """The lines that move the elements of a tensor in another way than by the TMA instruction that is missing."""
    if counter == "cp.async.bulk.tensor.store":
        return outcome.lines_on_output(("st.global",))
    if counter == "cp.async.bulk.tensor.load":
        inputs = [tensor.name for tensor in outcome.exercise.tensors if tensor.role == "input"]
        return [line for tensor in inputs for line in outcome.lines_on(tensor, ("ld.global", "cp.async"))]
    return []


def _message(breach: Breach, several: bool) -> str:
    """What was counted, against its bound; names the case where the bound depends on it."""
    name, seen = breach.counter, breach.seen
    where = f'in the launch "{breach.case}"' if several else "in a launch"
    needed = (
        f"at least {breach.bound} needed" if breach.kind == "at_least" else f"at most {breach.bound} allowed"
    )
    if name in OBSERVABLES:
        return f"{name} is {seen} {where}, {needed}: {OBSERVABLES[name]}"
    if name in AMOUNTS:
        return f"{name} is {seen} {where}, {needed}"
    if breach.idle:
        return (
            f"{name} is executed {seen + breach.idle} times {where}, but {breach.idle} of them do not count: the output is"
            f" made without them. It stays the same when they multiply other numbers; {needed}"
        )
    if seen == 0:
        return f"{name} is never executed" + (f" {where}" if several else "")
    return f"{name} is executed {seen} time{'s' if seen > 1 else ''} {where}, {needed}"
