"""The mutants of all subjects: every draft of every operator, and a seeded draw of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from mutation.operators import OPERATORS, Draft
from mutation.source import Kernel
from mutation.subjects import SUBJECTS, Subject


@dataclass(frozen=True)
class Mutant:
    """One mistake in one kernel.

    Attributes:
        id: subject, operator, statement, variant; it survives edits elsewhere in the file.
        text: the module's source with the mistake.
        line: where the mistake is (in the unchanged source).
        changed, partners: lines of ``text`` that a report may name, see :mod:`mutation.operators`.
    """

    id: str
    subject: str
    operator: str
    what: str
    line: int
    text: str
    changed: frozenset[int]
    partners: frozenset[int]


def _label(draft: Draft) -> tuple[str, str]:
    return draft.statement.text[:60], f" ({draft.variant})" if draft.variant else ""


def _mutant(subject: Subject, draft: Draft, count: int) -> Mutant:
    label, variant = _label(draft)
    number = f"#{count}" if count else ""
    edited = draft.edited
    partners = {line for s in draft.partners for line in edited.lines_of(s)}
    return Mutant(
        f"{subject.name}: {draft.operator}: {label}{number}{variant}",
        subject.name,
        draft.operator,
        draft.what,
        draft.statement.node.lineno,
        edited.text,
        frozenset(edited.lines_of(draft.statement) | edited.added),
        frozenset(partners),
    )


def all_mutants(subject: Subject) -> list[Mutant]:
    """Every mutant of a subject, in the order of operators and source."""
    return list(_all_mutants(subject.name))


@cache
def _all_mutants(name: str) -> tuple[Mutant, ...]:
    subject = SUBJECTS[name]
    kernel = Kernel(subject.text, subject.function)
    found = []
    for name, operator in OPERATORS.items():
        seen: dict[tuple[str, str], int] = {}
        for draft in operator(kernel):
            assert draft.operator == name
            count = seen.get(_label(draft), 0)
            seen[_label(draft)] = count + 1
            found.append(_mutant(subject, draft, count))
    return tuple(found)


def draw(subjects: Iterable[str] = SUBJECTS, seed: int = 0, per_operator: int | None = None) -> list[Mutant]:
    """A seeded draw: of each subject and operator at most ``per_operator`` (the subject's own number) mutants."""
    drawn = []
    for name in subjects:
        subject = SUBJECTS[name]
        by_operator: dict[str, list[Mutant]] = {}
        for mutant in all_mutants(subject):
            by_operator.setdefault(mutant.operator, []).append(mutant)
        for operator, mutants in by_operator.items():
            rng = random.Random(f"{seed} {name} {operator}")
            count = per_operator or subject.per_operator
            drawn += rng.sample(mutants, min(count, len(mutants)))
    return drawn
