"""functions: the learner's integer functions, equal to their references at every argument of the domain.

Where the submission ran, the functions were only turned into tables of integers; the references run here.
"""

from __future__ import annotations

import ast

from autograder.checks import Outcome, check, of_all, result, skipped
from autograder.course import Check, Function
from autograder.report.model import CheckResult, Evidence, Fault, Location, Verdict
from autograder.swizzles import SWIZZLES


@check
def functions(check: Check, outcome: Outcome) -> CheckResult:
    """Each function is worth the same, all or nothing."""
    wanted = outcome.exercise.functions
    failure = outcome.failure
    if not outcome.tables:
        if failure is not None and failure.fault is not Fault.YOUR_CODE:
            return skipped(check, f"not graded, because {failure.fault} failed", failure.fault)
        return skipped(check, "your code does not run that far")
    evidence = [found for function in wanted if (found := _problem(function, outcome)) is not None]
    right = len(wanted) - len(evidence)
    summary = of_all(right, len(wanted), "function")
    if not evidence:
        return result(check, Verdict.PASS, check.points, summary)
    verdict = Verdict.PARTIAL if right else Verdict.FAIL
    return result(check, verdict, check.points * right / len(wanted), summary, evidence)


def _problem(function: Function, outcome: Outcome) -> Evidence | None:
    """Why a function loses its points, None if it does not."""
    table = outcome.tables.get(function.name)
    if table is None:
        return Evidence(kind="error", message=f"{function.name}: the code ended before it was computed")
    if table.failure is not None:
        return table.failure.evidence()
    reference = SWIZZLES[function.reference]
    wrong = [n for n, value in enumerate(table.values) if value != reference(n)]
    if not wrong:
        return None
    first = wrong[0]
    message = (
        f"{function.name}: {len(wrong)} of {len(table.values)} offsets are wrong;"
        f" first {function.name}({first}): expected {reference(first)}, got {table.values[first]}"
    )
    data = {"function": function.name, "wrong": len(wrong), "first": first}
    return Evidence(
        kind="mismatch",
        message=message,
        fix=reference.explain(table.values),
        locations=_returns(function.name, outcome),
        data=data,
        pictures=reference.picture(table.values),
    )


def _returns(name: str, outcome: Outcome) -> list[Location]:
    """The lines that compute what a function of the submission returns: its assignments and its `return`."""
    definitions = [
        node for node in outcome.statements() if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if not definitions:
        return []
    node = definitions[-1]
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)
    lines = sorted({part.lineno for part in ast.walk(node) if isinstance(part, kinds)})
    return [outcome.diagnosis.learner_line(line) for line in lines[-3:] or [node.lineno]]
