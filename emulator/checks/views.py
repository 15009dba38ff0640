"""Accesses that leave the buffer they name: they hit whatever lies next to it in shared memory.

What a statement names is known from the translated program, by source line: an access through ``full`` and one
through ``empty`` in the same line may touch either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from emulator.checks.findings import Problem, SourceLocation
from emulator.checks.memory_safety import view_bounds


class Range(Protocol):
    """A declared shared-memory buffer: bytes ``[start, stop)`` of the dynamic pool."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


class Views:
    """The declared buffers of a kernel, and which of them each source line names."""

    def __init__(
        self, ranges: Sequence[Range], named: Iterable[tuple[SourceLocation, Sequence[str]]]
    ) -> None:
        """``named``: (line, names of buffers that it touches), any number of times per line."""
        self._ranges = ranges
        self._inside: set[tuple[int, int]] = set()  # what straddles() has found right
        by_name: dict[str, list[Range]] = {}
        for r in ranges:
            by_name.setdefault(r.name, []).append(r)
        self._by_line: dict[SourceLocation, list[Range]] = {}
        for location, names in named:
            mine = self._by_line.setdefault(location, [])
            mine += [r for name in names for r in by_name.get(name, ()) if r not in mine]

    def outside(self, location: SourceLocation | None, first: int, last: int, what: str) -> Problem | None:
        """Bytes ``[first, last)`` of the pool, accessed by a line through the buffers that it names."""
        views = self._by_line.get(location) if location is not None else None
        if not views or any(r.start <= first and last <= r.stop for r in views):
            return None
        nearest = min(views, key=lambda r: max(r.start - first, last - r.stop))
        beyond = first if first < nearest.start else max(first, nearest.stop)
        return self._problem(nearest, beyond, last, what)

    def straddles(self, first: int, last: int, what: str) -> Problem | None:
        """Bytes ``[first, last)`` of the pool that begin in a declared buffer and end beyond it."""
        if (first, last) in self._inside:
            return None
        around = [r for r in self._ranges if r.start <= first < r.stop]
        if not around or any(last <= r.stop for r in around):
            self._inside.add((first, last))
            return None
        widest = max(around, key=lambda r: r.stop)
        return self._problem(widest, widest.stop, last, what)

    def _problem(self, view: Range, first: int, last: int, what: str) -> Problem | None:
        problem = view_bounds(first, max(1, last - first), (view.name, view.start, view.stop), what)
        neighbour = next((r.name for r in self._ranges if r.start <= first < r.stop and r is not view), None)
        if problem is None:
            return None
        data: Mapping[str, object] = {**problem.data, "name": view.name, "neighbour": neighbour}
        message = problem.message
        if neighbour is not None:
            message = message.replace("another buffer", f"`{neighbour}`")
        return Problem(problem.code, problem.strength, message, problem.fix, data)
