"""layouts: the TileLayouts that the learner wrote, against the formulas of course.yaml, over the whole domain.

The learner's layout arrives as the plain numbers it consists of; both functions are evaluated here, where the
submission never ran.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from autograder.checks import Outcome, check, of_all, result, skipped, unless_run
from autograder.checks.layout_pictures import Index, picture
from autograder.course import Builder, Check, WantedLayout
from autograder.diagnosis import Diagnosis
from autograder.layouts import Shards, Table, differences, evaluate, read_shards, spell_stride
from autograder.report.model import CheckResult, Evidence, Fault, Grid, Location, Verdict

MOST_ITERS = 8  # of a layout whose strides are exchanged to see whether that repairs it


@check
def layouts(check: Check, outcome: Outcome) -> CheckResult:
    """Each layout has points of its own: all of them if every call's layout is equal, else none."""
    wanted = outcome.exercise.layouts
    if outcome.submission.untouched:
        return skipped(check, "no layout is written yet")
    if not outcome.layouts:
        early = unless_run(check, outcome)
        if early is not None and early.fault is not Fault.YOUR_CODE:
            return early
        return skipped(check, "the code does not run as far as the layouts")
    answers = iter(outcome.layouts)
    points, right, evidence = 0.0, 0, []
    for layout in wanted:
        calls = [(params, next(answers)) for params in layout.calls]
        problem = next((found for call in calls if (found := _problem(outcome, layout, *call))), None)
        if problem is None:
            points += layout.points
            right += 1
        else:
            evidence.append(problem)
    summary = of_all(right, len(wanted), "layout")
    if right == len(wanted):
        return result(check, Verdict.PASS, check.points, summary)
    evidence.sort(key=lambda item: item.kind == "note")  # what is not written yet comes last
    return result(check, Verdict.PARTIAL if right else Verdict.FAIL, points, summary, evidence)


def _problem(
    outcome: Outcome, wanted: WantedLayout, params: dict[str, int], answer: dict[str, Any]
) -> Evidence | None:
    """What is wrong with the layout of one call, None when it is equal to what is wanted."""
    call = f"{wanted.name}({', '.join(f'{name}={value}' for name, value in params.items())})"
    place = _return_line(outcome, wanted.name)
    if answer.get("kind") == "empty":
        message = f"{wanted.name}: not written yet ({wanted.title})"
        return Evidence(kind="note", message=message, locations=[place] if place else [])
    own = replace(
        outcome.diagnosis,
        exercise=outcome.exercise.model_copy(
            update={"builder": Builder(name=wanted.name, params=dict(params))}
        ),
    )
    if "kind" in answer:
        return _refused(own, wanted, answer)
    try:
        shards = read_shards(answer)
    except (ValueError, TypeError):
        return own.build_failure({}).evidence()
    compared = _Compared(wanted, params, shards)
    problem = compared.problem()
    if problem is None:
        return None
    message, fix, index = problem
    return Evidence(
        kind="mismatch",
        code=f"layout.{wanted.name}",
        message=f"{call} is {shards.spelled()}: {message}",
        fix=fix,
        locations=[place] if place else [],
        data={"layout": wanted.name, "params": params, "first": list(index), "differ": compared.differ},
        pictures=compared.pictures(index),
    )


def _refused(own: Diagnosis, wanted: WantedLayout, answer: dict[str, Any]) -> Evidence:
    evidence = own.build_failure(answer).evidence()
    evidence.fix = evidence.fix or "a layout is spelled TileLayout(S[(extents) : (strides)])"
    evidence.message = f"{wanted.name} ({wanted.title}): {evidence.message}"
    return evidence


def _return_line(outcome: Outcome, name: str) -> Location | None:
    """The last `return` of the function that makes a layout, or the line that defines it."""
    try:
        tree = ast.parse(outcome.submission.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            returns = [part.lineno for part in ast.walk(node) if isinstance(part, ast.Return)]
            return outcome.diagnosis.learner_line(max(returns, default=node.lineno))
    return None


# Comparing --------------------------------------------------------------------------------------


@dataclass
class _Compared:
    """A wanted layout and the learner's, over one domain."""

    wanted: WantedLayout
    params: dict[str, int]
    shards: Shards
    differ: int = 0

    def __post_init__(self) -> None:
        self.extents = list(self.wanted.extents(self.params).values())
        self.places: list[Index] = list(product(*(range(extent) for extent in self.extents)))
        self.right = self.wanted.table(self.params)
        self.mine: Table = {}

    def problem(self) -> tuple[str, str, Index] | None:
        """(what is wrong, what to do, the index of the first difference)."""
        start = (0,) * len(self.extents)
        if self.shards.size != len(self.places):
            sizes = " x ".join(str(extent) for extent in self.extents)
            return (
                f"its extents multiply to {self.shards.size}, but {sizes} is {len(self.places)} elements",
                "the extents of S[...], multiplied, must be the number of elements; unused places only make"
                " a stride larger",
                start,
            )
        if self.shards.copies > 1:
            return (
                f"R[...] puts every element in {self.shards.copies} places; here each has exactly one",
                "leave R out",
                start,
            )
        self.mine = evaluate(self.shards)
        wrong = differences(self.mine, self.right)
        self.differ = len(wrong)
        if not wrong:
            return None
        first = wrong[0]
        index = self.places[first]
        message = (
            f"it puts element {_spell(index)} at {self._at(self.mine, first)};"
            f" wanted is {self._at(self.right, first)}. {len(wrong)} of {len(self.places)} elements differ"
        )
        return (*self._explained(message), index)

    def _at(self, table: Table, n: int) -> str:
        """`laneid 5, m 1`, on the axes that are wanted and those that the learner uses."""
        axes = [axis for axis in dict.fromkeys([*self.right, *table]) if axis in table or axis in self.right]
        return ", ".join(f"{axis} {table[axis][n] if axis in table else 0}" for axis in axes)

    def _explained(self, message: str) -> tuple[str, str]:
        """The message with a meaning, where the difference has a simple one, and what to do."""
        unknown = [axis for axis in self.mine if axis not in self.right and any(self.mine[axis])]
        absent = [axis for axis in self.right if not any(self.mine.get(axis, [])) and any(self.right[axis])]
        if unknown and absent:
            return (
                f"{message}. The axis {', '.join(unknown)} is not asked for, {', '.join(absent)} is missing",
                f"put strides on {', '.join(self.right)}: a stride without an axis is on m",
            )
        if absent:
            return f"{message}. Nothing moves along {', '.join(absent)}", "give one of the strides that axis"
        moved = self._off_by()
        if moved:
            return f"{message}. {moved}", "add the offset behind S[...], on its axis: + 5 @ TCol"
        exchanged = self._exchanged()
        if exchanged:
            fix = "extents stand outermost first; the stride of each says how far one step in it goes"
            return f"{message}. {exchanged}", fix
        twice = self._collision()
        if twice:
            return f"{message}. {twice}", "two elements may not lie in the same place; look at the strides"
        good = [axis for axis in self.right if self.mine.get(axis) == self.right[axis]]
        fix = "follow one index at a time: what does one step more in it change in the wanted picture?"
        if good:
            bad = ", ".join(axis for axis in self.right if axis not in good)
            return f"{message}. {', '.join(good)} is right everywhere, {bad} is not", fix
        if sorted(self.mine.get("m", [])) == sorted(self.right.get("m", [])) and list(self.right) == ["m"]:
            return f"{message}. It fills the same places, in another order", fix
        return message, fix

    def _off_by(self) -> str:
        """Whether every element is off by the same distance on some axis."""
        found = []
        for axis, right in self.right.items():
            distances = {
                have - want for have, want in zip(self.mine.get(axis, [0] * len(right)), right, strict=True)
            }
            if len(distances) > 1:
                return ""
            distance = distances.pop()
            if distance:
                found.append(f"every element is off by {distance} on {axis}")
        text = ", ".join(found)
        return text[:1].upper() + text[1:]

    def _exchanged(self) -> str:
        """Whether two strides, or the two indices, only have to be exchanged."""
        shard = tuple(part for part in self.shards.shard if part[0] > 1)
        if len(shard) > MOST_ITERS:
            return ""
        for i, j in combinations(range(len(shard)), 2):
            parts = list(shard)
            parts[i], parts[j] = (shard[i][0], *shard[j][1:]), (shard[j][0], *shard[i][1:])
            if _same(evaluate(replace(self.shards, shard=tuple(parts))), self.right):
                one, other = (spell_stride(shard[n]) for n in (i, j))
                return f"Two strides are exchanged: {one} and {other}"
        if len(self.extents) == 2:
            rows, columns = self.extents
            order = [r * columns + c for c in range(columns) for r in range(rows)]
            if _same({axis: [values[n] for n in order] for axis, values in self.mine.items()}, self.right):
                return "It walks down the columns where the wanted layout walks along the rows"
        return ""

    def _collision(self) -> str:
        """Two elements of the learner's layout in one place."""
        seen: dict[tuple[int, ...], Index] = {}
        for place, spot in zip(self.places, zip(*self.mine.values(), strict=True), strict=True):
            if spot in seen:
                return f"Elements {_spell(seen[spot])} and {_spell(place)} lie in the same place"
            seen[spot] = place
        return ""

    # Pictures -----------------------------------------------------------------------------------

    def pictures(self, index: Index) -> list[Grid]:
        """What is wanted, beside what the learner's layout does, around the first difference."""
        grids = [picture("wanted", self.wanted, self.extents, self.right, index)]
        if self.mine:
            grids.append(picture("yours", self.wanted, self.extents, self.mine, index, self.right))
        return grids


def _same(one: Table, other: Table) -> bool:
    return not differences(one, other)


def _spell(index: Index) -> str:
    return f"({', '.join(str(i) for i in index)})"
