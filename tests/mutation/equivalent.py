"""Mutants that are no mistakes: the kernel is still legal by the PTX ISA and computes the same.

Each was judged by hand against the ISA, not by the emulator's silence; the benchmark leaves them out and prints the
reasons. A key may stand for several mutants: it is a mutant's id (see :mod:`mutation.mutants`) with ``*`` for any
subject or text.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from mutation.mutants import Mutant

EQUIVALENT: dict[str, str] = {}


def reason(mutant: Mutant) -> str | None:
    """Why a mutant is equivalent, or None."""
    for pattern, why in EQUIVALENT.items():
        if fnmatchcase(mutant.id, pattern.replace("[", "[[]")):
            return why
    return None
