"""The race detector against a slow, obvious model: an explicit happens-before graph searched by hand.

Random programs are executed by a random scheduler. The model keeps every access with a start and an end node
and decides by reachability; the detector must report nothing before the first unordered pair, and must report
then.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.checks.findings import FindingLog, SourceLocation
from emulator.checks.happens_before import BarrierOrder, ClusterOrder, Lanes, RaceDetector, Span

WARPS = 4
BARRIERS = 3
CELLS = 6


@dataclass
class Access:
    start: int
    end: int
    write: bool


@dataclass
class Model:
    """Nodes are integers in order of creation; edges always go forward."""

    before: list[set[int]] = field(default_factory=list)  # direct predecessors
    last: dict[object, int] = field(default_factory=dict)  # latest node of every actor
    cells: dict[int, list[Access]] = field(default_factory=dict)

    def node(self, *predecessors: int | None) -> int:
        self.before.append({p for p in predecessors if p is not None})
        return len(self.before) - 1

    def step(self, actor: object, *others: int | None) -> int:
        """The next node of an actor, after its previous one and after ``others``."""
        n = self.node(self.last.get(actor), *others)
        self.last[actor] = n
        return n

    def reaches(self, a: int, b: int) -> bool:
        seen, todo = set(), [b]
        while todo:
            n = todo.pop()
            if n == a:
                return True
            if n > a and n not in seen:
                seen.add(n)
                todo += self.before[n]
        return False

    def access(self, cell: int, start: int, end: int, write: bool) -> bool:
        """Record an access; True when it conflicts with an unordered earlier one."""
        earlier = self.cells.setdefault(cell, [])
        race = any((write or e.write) and not self.reaches(e.end, start) for e in earlier)
        earlier.append(Access(start, end, write))
        return race


class Run:
    """Executes operations on the detector and on the model at the same time."""

    def __init__(self) -> None:
        self.log = FindingLog()
        detector = RaceDetector(self.log, uninitialised="off")
        self.site = detector.site(SourceLocation("k.py", 1))
        self.cl: ClusterOrder = detector.start_cluster(1, WARPS, 4096)
        self.model = Model()
        self.raced = False
        self.bars: list[BarrierOrder] = []
        for b in range(BARRIERS):
            self.bars.append(self.cl.mbarrier_init(0, 0, 8 * b))
        self.cl.fence_mbarrier_init((0,))
        self.cl.cta_sync(0)
        for w in range(WARPS):
            self.model.step(w)
        self.phases: list[list[int]] = [[] for _ in range(BARRIERS)]  # completion nodes
        self.pending: list[set[int]] = [set() for _ in range(BARRIERS)]  # nodes the current phase comes after
        self.uncommitted: dict[int, list[int]] = {}  # end nodes of MMAs since the last commit, per warp
        self.stores: dict[int, list[list[int]]] = {}  # end nodes of bulk stores per group, the last one open
        self.bar_arrivals: list[int] = []
        self.groups: dict[int, int] = {}

    def _touch(self, cell: int, start: int, end: int, write: bool) -> None:
        self.raced |= self.model.access(cell, start, end, write)

    def generic(self, w: int, cell: int, write: bool) -> None:
        n = self.model.step(w)
        self._touch(cell, n, n, write)
        (self.cl.smem_write if write else self.cl.smem_read)(Lanes.one(w), 0, 1024 + 16 * cell, 16, self.site)

    def load(self, w: int, bar: int, cell: int) -> None:
        start = self.model.step(w)
        end = self.model.node(start)
        self.pending[bar].add(end)
        self._touch(cell, start, end, True)
        self.cl.tma_load(w, self.bars[bar], self.site, [(0, Span(1024 + 16 * cell, 1040 + 16 * cell))])

    def mma(self, w: int, cell: int) -> None:
        issue = self.model.step(w)
        start = self.model.step(("mma", w), issue)  # in order behind the warp's earlier ones
        self.uncommitted.setdefault(w, []).append(start)
        self._touch(cell, start, start, False)
        self.cl.mma(w, self.site, [(0, Span(1024 + 16 * cell, 1040 + 16 * cell))])

    def commit(self, w: int, bar: int) -> None:
        n = self.model.step(w)
        self.pending[bar] |= {n, *self.uncommitted.get(w, [])}
        self.cl.tcgen05_commit(w, [self.bars[bar]], self.site)
        self.bars[
            bar
        ].committer = None  # the model knows nothing of the order of commits, see the test at the end

    def store(self, w: int, cell: int) -> None:
        start = self.model.step(w)
        end = self.model.node(start)
        self.stores.setdefault(w, [[]])[-1].append(end)
        self._touch(cell, start, end, False)
        self.cl.tma_store(w, 0, self.site, [(0, Span(1024 + 16 * cell, 1040 + 16 * cell))])

    def commit_group(self, w: int) -> None:
        if w in self.stores:
            self.stores[w].append([])
        self.cl.bulk_commit_group(w, 0)

    def wait_group(self, w: int, n: int) -> None:
        groups = self.stores.get(w, [[]])
        closed = groups[: len(groups) - 1]
        done = closed[: max(0, len(closed) - n)]
        self.model.step(w, *(end for group in done for end in group))
        self.cl.bulk_wait_group(w, 0, n, True)

    def arrive(self, w: int, bar: int) -> None:
        self.pending[bar].add(self.model.step(w))
        self.cl.mbarrier_arrive((w,), self.bars[bar], self.site)

    def complete(self, bar: int) -> None:
        previous = self.phases[bar][-1:]
        self.phases[bar].append(self.model.node(*self.pending[bar], *previous))
        self.pending[bar] = set()
        sole = self.bars[bar].arriver
        self.cl.mbarrier_complete(self.bars[bar])
        if sole >= 0 and not self.bars[bar].async_visible:
            self.model.step(sole, self.phases[bar][-1])

    def wait(self, w: int, bar: int, parity: int) -> None:
        phases = self.phases[bar]
        if (len(phases) & 1) == parity:
            return  # the wait would block
        here = self.model.last[w]
        known = 0
        while known < len(phases) and self.model.reaches(phases[known], here):
            known += 1
        if known & 1 == parity and known < len(phases):
            self.model.step(w, phases[known])
        self.cl.mbarrier_wait((w,), self.bars[bar], parity, self.site)

    def bar_arrive(self, w: int) -> None:
        self.bar_arrivals.append(self.model.step(w))
        self.cl.bar_arrive((w,), 0, 5)

    def bar_sync(self, warps: tuple[int, ...]) -> None:
        meeting = self.model.node(*(self.model.last[w] for w in warps), *self.bar_arrivals)
        self.bar_arrivals = []
        for w in warps:
            self.model.step(w, meeting)
        self.cl.bar_sync(warps, 0, 5)

    def reported(self) -> bool:
        return any(f.code.startswith("race.") for f in self.log.findings)


def execute(seed: int, steps: int, calm: float) -> tuple[int | None, int | None]:
    """(step of the first race in the model, step of the first report). ``calm``: share of synchronization."""
    rng = random.Random(seed)
    run = Run()
    first_model = first_report = None
    for step in range(steps):
        w, cell, bar = rng.randrange(WARPS), rng.randrange(CELLS), rng.randrange(BARRIERS)
        if rng.random() < calm:
            kind = rng.choice(
                ["arrive", "complete", "wait", "wait", "wait", "sync", "commit", "close", "drain", "part"]
            )
        else:
            kind = rng.choice(["read", "read", "write", "load", "mma", "store"])
        if kind in ("read", "write"):
            run.generic(w, cell, kind == "write")
        elif kind == "load":
            run.load(w, bar, cell)
        elif kind == "mma":
            run.mma(w, cell)
        elif kind == "store":
            run.store(w, cell)
        elif kind == "arrive":
            run.arrive(w, bar)
        elif kind == "complete":
            run.complete(bar)
        elif kind == "wait":
            run.wait(w, bar, rng.randrange(2))
        elif kind == "commit":
            run.commit(w, bar)
        elif kind == "close":
            run.commit_group(w)
        elif kind == "drain":
            run.wait_group(w, rng.randrange(2))
        elif kind == "part":
            run.bar_arrive(w)
        else:
            run.bar_sync(tuple(sorted(rng.sample(range(WARPS), rng.randrange(2, WARPS + 1)))))
        if run.raced and first_model is None:
            first_model = step
        if run.reported() and first_report is None:
            first_report = step
        if first_model is not None or first_report is not None:
            break
    return first_model, first_report


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_the_first_race_is_reported_when_it_happens_and_never_before(seed: int, calm: float) -> None:
    model, report = execute(seed, 150, calm)
    assert model == report


@pytest.mark.parametrize("calm", [0.9, 0.97])
def test_the_random_programs_are_not_trivial(calm: float) -> None:
    lengths = [execute(seed, 300, calm)[0] for seed in range(40)]
    late = [n for n in lengths if n is None or n > 20]
    assert len(late) >= 10


@pytest.mark.parametrize(("first", "second", "ordered"), [(0, 1, True), (1, 0, False)])
def test_a_commit_proves_what_earlier_commits_of_its_thread_completed(
    first: int, second: int, ordered: bool
) -> None:
    """A load signals barrier 0, and so does a commit; whoever waits for barrier 1 knows of it where that commit is the later one."""
    run = Run()
    cl, bars, span = run.cl, run.bars, Span(1024, 1040)
    cl.tma_load(0, bars[0], run.site, [(0, span)])
    for bar in (first, second):
        cl.tcgen05_commit(0, [bars[bar]], run.site)
    cl.mbarrier_complete(bars[0])
    cl.mbarrier_complete(bars[1])
    cl.mbarrier_wait((1,), bars[1], 0, run.site)
    cl.smem_read(Lanes.one(1), 0, 1024, 16, run.site)
    assert run.reported() != ordered
