"""Which clusters of a grid do how much, from records of a few of them.

Clusters of a grid do the same, or some have one tile more, or each has its own number of blocks, as in causal attention. What
a cluster does is recorded in full for a few that span the range (:data:`FULL`); where each of the others lies between these
comes from a probe of the warps that load (:mod:`emulator.timing.probe`), or, where a kernel cannot be probed, from bisection of
the grid. A cluster between two recorded ones counts as a mixture of both.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.errors import Unfinished
from emulator.timing.probe import probe, probed
from emulator.timing.record import ClusterTrace, Recorder

if TYPE_CHECKING:
    from emulator.kernel import Kernel

FULL = 5  # classes that are recorded in full; others are mixtures of two of them
GROUPS = 3  # clusters of so many different numbers of tiles are told apart
ORDERED = 2048  # of a grid with more clusters that all do the same, the order of loads is not looked at
PROBED_EVENTS = 1_200_000  # of all clusters together; a grid of more is probed in part
BISECTIONS = 40  # clusters recorded at most where there is no probe
PLACES = 6
GOLDEN = 0.6180339887
Class = tuple[ClusterTrace, float]  # a recorded cluster, and for how many it stands


@dataclass
class Grid:
    """Recorded clusters, and what share each has in each cluster of the grid.

    Attributes:
        traces: recorded clusters, the one with the least work first.
        shares: ``float[clusters, traces]``; rows add up to 1.
        probes: what the loading warps of every cluster do, where all of them were probed.
    """

    traces: list[ClusterTrace]
    shares: np.ndarray
    probes: dict[int, ClusterTrace] = field(default_factory=dict)

    @property
    def clusters(self) -> int:
        return len(self.shares)

    @property
    def classes(self) -> list[Class]:
        return [(t, float(n)) for t, n in zip(self.traces, self.shares.sum(axis=0), strict=True)]


def sample(kernel: Kernel, tensors: Sequence[Any], order: bool = True) -> Grid:
    """Record what is needed to know what every cluster of the launch does.

    Args:
        order: probe all clusters for what they load even where all do the same.

    Raises:
        ValueError: the kernel launches nothing, or does nothing that takes time.
        Unfinished: it hangs, or a fault ends it.
    """
    clusters = kernel.clusters_apart
    if clusters is None:
        recorder = Recorder(dry=True)
        _record(kernel, tensors, recorder)
        every = [recorder.clusters[i] for i in sorted(recorder.clusters)]
        if not every:
            raise ValueError("the kernel did nothing that could be timed")
        return Grid(every, np.eye(len(every)))
    if not clusters:
        grid = kernel.resources["grid"]
        raise ValueError(f"the grid of {' x '.join(map(str, grid))} CTAs is empty: nothing runs")
    known: dict[int, ClusterTrace] = {}

    def trace(index: int) -> ClusterTrace:
        if index not in known:
            recorder = Recorder(dry=True)
            _record(kernel, tensors, recorder, [index])
            known[index] = recorder.clusters.get(index) or ClusterTrace(index, 0)
        return known[index]

    if not trace(0).size:
        raise ValueError("the kernel did nothing that could be timed")
    if (not order or clusters > ORDERED) and len({trace(i).size for i in _places(clusters)}) == 1:
        return Grid([trace(0)], np.ones((clusters, 1)))
    found = _probes(kernel, tensors, trace(0), clusters)
    if found is None:
        return _between(trace, _bisected_work(trace, clusters))
    indices = sorted(found)
    work = np.interp(np.arange(clusters), indices, [found[i].size for i in indices])
    rounds = np.array([_rounds(found[i]) for i in indices])
    grid = _by_rounds(
        trace, work, rounds[np.abs(np.subtract.outer(np.arange(clusters), indices)).argmin(axis=1)]
    )
    if len(found) == clusters:
        grid.probes = found
    return grid


def _record(
    kernel: Kernel, tensors: Sequence[Any], recorder: Recorder, clusters: Sequence[int] | None = None
) -> None:
    """Raises Unfinished: what was recorded of a launch that hung is not what the kernel does."""
    stopped = kernel.record(*tensors, recorder=recorder, clusters=clusters)
    if stopped is not None:
        where = stopped.locations[0] if stopped.locations else None
        raise Unfinished(f"the kernel does not run to its end: {stopped.message}", where)


def _probes(
    kernel: Kernel, tensors: Sequence[Any], first: ClusterTrace, clusters: int
) -> dict[int, ClusterTrace] | None:
    """What the loading warps do: of each cluster, or of some along the grid when that is too much."""
    events = sum(len(s.events) for s in probed(first))
    if not events:
        return None
    many = min(clusters, max(64, PROBED_EVENTS // events))
    indices = np.unique(np.linspace(0, clusters - 1, many).round().astype(int))
    return probe(kernel, tensors, first, indices.tolist())


def _bisected_work(trace: Callable[[int], ClusterTrace], clusters: int) -> np.ndarray:
    """Events of each cluster: where two differ, those between them are looked at, as long as there are few.

    Work may go up and down along the grid, so the search begins with the ends and a few irregular places.
    """
    places = _places(clusters)
    seen = {i: trace(i).size for i in places}
    todo = list(itertools.pairwise(sorted(places)))
    while todo and len(seen) < BISECTIONS:
        first, last = todo.pop(0)
        if seen[first] == seen[last] or last - first == 1:
            continue
        middle = (first + last) // 2
        seen[middle] = trace(middle).size
        todo += [(first, middle), (middle, last)]
    indices = sorted(seen)
    return np.interp(np.arange(clusters), indices, [seen[i] for i in indices])


def _places(clusters: int) -> set[int]:
    """Both ends of the grid and a few irregular places: where all of these do the same, all clusters are taken to do so."""
    return {0, clusters - 1, *(int(clusters * (k * GOLDEN % 1)) for k in range(1, PLACES))}


def _rounds(probed: ClusterTrace) -> int:
    """How often the rarest of the loads was executed: of attention's queries, the tiles of a persistent CTA."""
    loads = Counter(e[1] for s in probed.strands for e in s.events if e[0] == "load")
    return min(loads.values(), default=0)


def _by_rounds(trace: Callable[[int], ClusterTrace], work: np.ndarray, rounds: np.ndarray) -> Grid:
    """As :func:`_between`, apart for clusters of one tile, of two, and so on: two short tiles are not one long tile."""
    values = np.unique(rounds)
    if len(values) > GROUPS:
        return _between(trace, work)
    each = max(2, FULL // len(values))
    parts = [
        (rounds == value, _between(trace, work[rounds == value], each, np.flatnonzero(rounds == value)))
        for value in values
    ]
    shares = np.zeros((len(work), sum(len(grid.traces) for _, grid in parts)))
    first = 0
    for mine, grid in parts:
        shares[mine, first : first + len(grid.traces)] = grid.shares
        first += len(grid.traces)
    traces = [t for _, grid in parts for t in grid.traces]
    order = sorted(range(len(traces)), key=lambda i: traces[i].size)
    return Grid([traces[i] for i in order], shares[:, order])


def _between(
    trace: Callable[[int], ClusterTrace],
    work: np.ndarray,
    full: int = FULL,
    numbers: np.ndarray | None = None,
) -> Grid:
    """Records of at most ``full`` clusters that span the range of work, and every cluster as a mixture of the two nearest.

    ``numbers``: of the clusters in the grid; None: 0, 1, 2 and so on.
    """
    amounts, where = np.unique(work, return_index=True)
    if len(amounts) > full:
        wanted = np.linspace(amounts[0], amounts[-1], full)
        chosen = np.unique([int(np.abs(amounts - w).argmin()) for w in wanted])
        amounts, where = amounts[chosen], where[chosen]
    traces = [trace(int(i if numbers is None else numbers[i])) for i in where]
    position = np.interp(work, amounts, np.arange(len(amounts)))
    low = np.minimum(position.astype(int), max(0, len(amounts) - 2))
    shares = np.zeros((len(work), len(amounts)))
    rows = np.arange(len(work))
    if len(amounts) == 1:
        shares[:, 0] = 1.0
    else:
        shares[rows, low] = 1 - (position - low)
        shares[rows, low + 1] = position - low
    return Grid(traces, shares)


__all__ = ["Class", "Grid", "sample"]
