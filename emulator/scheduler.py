"""Who runs next, when asynchronous work completes, and when nothing can ever run again.

Strands (warps in lockstep) run until they block.  Asynchronous operations (TMA, tcgen05.mma, commits ...) wait in
FIFO chains; one chain is one hardware queue whose operations complete in order.  The completion mode decides when:

``late``    an operation completes only when no strand can run: the longest delay that the program's own waiting allows;
``eager``   it completes when it is issued;
``random``  seeded: at every step either a strand runs or some chain's oldest operation completes.

A hang is "no strand can run, nothing is pending, no further CTA can start": never a timer.
"""

from __future__ import annotations

import bisect
import random
from collections import deque
from collections.abc import Callable, Generator, Hashable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.checks.findings import Finding, FindingLog, Problem, SourceLocation
from emulator.checks.views import Views
from emulator.errors import DeviceFault
from emulator.machine.address import POOL_BASE, STATIC_BASE
from emulator.machine.cta import Cluster, Cta
from emulator.machine.memory import GlobalMemory
from emulator.threads import Threads
from emulator.tile_record import TileRecord

if TYPE_CHECKING:
    from emulator.translate import Program


SLAB_LANES = 8192


class Wait:
    """Something a strand waits for at statement ``site``; ``ready`` says whether it may continue."""

    __slots__ = ("site",)
    kind = "wait"
    site: int
    polls = False  # it may look again although nothing has happened

    def ready(self) -> bool:
        raise NotImplementedError  # pragma: no cover - every subclass defines it


class NeedsFinerStrands(Exception):
    """Warps of one strand took different blocking paths: the launch restarts with one strand per warp."""


class Strand:
    """Some warps of a CTA in lockstep and the generator that executes them."""

    __slots__ = ("threads", "generator", "wait", "done", "cta")

    def __init__(self, threads: Threads, generator: Generator[Wait, None, None]) -> None:
        self.threads = threads
        self.cta = threads.cta
        self.generator = generator
        self.wait: Wait | None = None
        self.done = False


class AsyncOp:
    """An issued asynchronous operation; ``complete`` performs it."""

    __slots__ = ("chain", "complete", "what", "site", "payload")

    def __init__(
        self, chain: Hashable, complete: Callable[[], None], what: str, site: int, payload: Any = None
    ) -> None:
        self.payload = payload
        self.chain = chain
        self.complete: Callable[[], None] | None = complete
        self.what = what
        self.site = site


class Machine:
    """One kernel launch on the virtual GPU."""

    stepper: Any = None  # a emulator.stepping.Stepper

    def __init__(
        self,
        program: Program,
        grid: tuple[int, int, int],
        cluster_shape: tuple[int, int, int],
        threads: int,
        smem_bytes: int,
        args: tuple[Any, ...],
        memory: GlobalMemory,
        log: FindingLog,
        *,
        schedule: str = "late",
        seed: int = 0,
        checker: Any = None,
        fine: bool = False,
        smem_names: list[Any] | None = None,
        tmem_names: list[Any] | None = None,
        resident: int = 148,
        numerics: str = "fast",
        poison: int | None = None,
        doubled: frozenset[int] = frozenset(),
    ) -> None:
        """``poison``: 32-bit word that fresh shared memory holds instead of the usual one. ``doubled``: see :meth:`Kernel.run`."""
        self.program = program
        self.poison = poison
        self.doubled = doubled
        self.mmas: dict[int, int] = {}  # statement -> tcgen05.mma that it executed
        self.grid = grid
        self.cluster_shape = cluster_shape
        self.num_warps = (threads + 31) // 32
        self.num_threads = threads
        self.smem_bytes = smem_bytes
        self.static_smem = program.static_smem
        self.args = args
        self.memory = memory
        self.log = log
        self.schedule = schedule
        self.rng = random.Random(seed)
        self.speeds: dict[Any, float] = {}
        self.seed = seed
        self.checker = checker
        self.fine = fine
        self.numerics = numerics
        self.smem_names = smem_names or []
        self.tmem_names = tmem_names or []
        self.views = Views(self.smem_names, [(op.location, op.names) for op in program.operations])
        self.counters: dict[str, int] = {}
        self.tile_record = TileRecord() if schedule == "late" else None
        self.chains: dict[Hashable, deque[AsyncOp]] = {}
        self.order: deque[AsyncOp] = deque()
        self.progress = 0
        self.live: list[Strand] = []
        cx, cy, cz = cluster_shape
        self.cluster_grid = (grid[0] // cx, grid[1] // cy, grid[2] // cz)
        self.num_clusters = self.cluster_grid[0] * self.cluster_grid[1] * self.cluster_grid[2]
        # Kernels whose threads are independent run many CTAs in one strand: a slab.
        self.slab = 0
        if program.grid_lanes and cluster_shape == (1, 1, 1) and schedule == "late":
            self.slab = max(1, SLAB_LANES // (32 * self.num_warps))
            self.num_clusters = -(-self.num_clusters // self.slab)
        self.next_cluster = 0
        self.cancelled: set[int] = set()
        self.max_live_clusters = max(1, resident // (cx * cy * cz))
        self.clusters: list[Cluster] = []
        self.rd_sites: list[int] = []
        self.trace: Any = None  # a emulator.timing.record.Recorder
        self.chosen: list[int] | None = None  # clusters that are to run, in place of the whole grid
        self.steps = 0
        self.running: Strand | None = None
        self.written: dict[int, bool] = {}
        self.statistics: Any = None  # AccessStatistics when the launch is profiled
        self.partitions: dict[Any, list[list[int]]] = {}
        self.idle_rounds = 0  # rounds in which polling strands ran although nothing had happened
        self.idle_since = -1  # progress at the first of these rounds
        self.idle_start = 0
        self.grid_generation = 0  # completed grid barriers
        self.grid_arrived = 0  # warps that arrived at the current one
        self.printed: list[str] = []  # what the kernel's printf wrote
        self._ids = 0
        self.tmem_columns = 0  # most columns any CTA held
        self.checked_barriers: set[tuple[int, int]] = (
            set()
        )  # (statement, address) of uses within the declared buffer
        self.cta_group: tuple[int, int] | None = None  # of the first tcgen05 instruction, and its statement
        if checker is not None:
            unknown = 0
            for location, _ in program.sites:
                self.rd_sites.append(checker.site(location) if location is not None else unknown)

    # ------------------------------------------------------------------------------------------ names and reports

    def name_of_shared(self, offset: int) -> str:
        """The declared buffer that contains a window offset, with the index of the element or of the tile.

        Dimensions before the last two number whole tiles (the stages of a ring), whatever the layout of a tile is.
        """
        byte = offset - POOL_BASE
        if offset >= STATIC_BASE:
            return f"static shared memory[byte {offset - STATIC_BASE}]"
        best = None
        for r in self.smem_names:
            if r.start <= byte < r.stop and (best is None or r.stop - r.start <= best.stop - best.start):
                best = r
        if best is None:
            return f"shared memory[byte {byte}]"
        shape = best.shape
        if len(shape) == 2 or not all(shape):
            return best.name  # rows and columns may be swizzled
        outer = shape if len(shape) == 1 else shape[:-2]  # an element, or a stage of a ring
        index = (byte - best.start) * prod(outer) // (best.stop - best.start)
        if prod(outer) == 1:
            return best.name
        digits = []
        for extent in reversed(outer):
            index, digit = divmod(index, extent)
            digits.append(str(digit))
        return f"{best.name}[{', '.join(reversed(digits))}]"

    def name_of(self, space: str, index: int, byte: int) -> str:
        """Resolver for the race detector: names in the learner's words."""
        if space == "smem":
            return self.name_of_shared(byte)
        if space == "tmem":
            column = byte & 0xFFFF
            for name, first, columns in self.tmem_names:
                if first is None or first <= column < first + columns:
                    return name
            return f"TMEM column {column}"
        return self.memory.segments[index].name

    def location(self, site: int) -> SourceLocation | None:
        return self.program.sites[site][0] if 0 <= site < len(self.program.sites) else None

    def rd_site(self, site: int) -> int:
        return self.rd_sites[site] if 0 <= site < len(self.rd_sites) else 0

    def report(
        self,
        code: str,
        strength: str,
        message: str,
        fix: str,
        t: Threads | None = None,
        *,
        names: tuple[str, ...] = (),
        sites: tuple[int, ...] = (),
        data: dict[str, Any] | None = None,
        lanes: tuple[int, ...] = (),
    ) -> None:
        """Add a finding at the statement that ``t`` executes (and at further ``sites``)."""
        where = [self.location(t.site)] if t is not None else []
        where += [self.location(s) for s in sites]
        locations = tuple(dict.fromkeys(x for x in where if x is not None))
        self.log.add(
            Finding(
                code, strength, message, fix, locations, names,  # type: ignore[arg-type]
                t.cta.linear if t is not None else None,
                tuple(t.active_warps()) if t is not None else (), lanes, data or {},
            )
        )  # fmt: skip

    def check_view(self, t: Threads, first: int, last: int, what: str, strength: str = "error") -> None:
        """Report an access to window bytes ``[first, last)`` that leaves the buffers its statement names."""
        if first < STATIC_BASE:
            problem = self.views.outside(self.location(t.site), first - POOL_BASE, last - POOL_BASE, what)
            self._view_problem(t, problem, strength)

    def check_tile(self, t: Threads, first: int, last: int, what: str) -> None:
        """Report a tile at window bytes ``[first, last)`` that begins in a declared buffer and ends beyond it."""
        if first < STATIC_BASE:
            self._view_problem(t, self.views.straddles(first - POOL_BASE, last - POOL_BASE, what), "error")

    def _view_problem(self, t: Threads, problem: Problem | None, strength: str) -> None:
        if problem is not None:
            names = (str(problem.data["name"]),)
            self.report(
                problem.code, strength, problem.message, problem.fix, t, names=names, data=dict(problem.data)
            )

    # ------------------------------------------------------------------------------------------ asynchronous work

    def issue(
        self, chain: Hashable, complete: Callable[[], None], what: str, site: int, payload: Any = None
    ) -> None:
        """Queue an asynchronous operation on a FIFO chain; ``payload`` lets a later operation join this one."""
        if self.schedule == "eager":
            complete()
            self.progress += 1
            return
        op = AsyncOp(chain, complete, what, site, payload)
        queue = self.chains.get(chain)
        if queue is None:
            queue = self.chains[chain] = deque()
        queue.append(op)
        self.order.append(op)

    def next_id(self) -> int:
        """A fresh chain number: operations without order among themselves."""
        self._ids += 1
        return self._ids

    def complete_chain(self, chain: Hashable, keep: int = 0) -> None:
        """Complete the oldest operations of a chain until ``keep`` remain (``wait_group``)."""
        queue = self.chains.get(chain)
        while queue and len(queue) > keep:
            op = queue.popleft()
            self._finish(op)

    def _finish(self, op: AsyncOp) -> None:
        complete, op.complete = op.complete, None
        assert complete is not None
        self.progress += 1
        complete()
        if self.stepper is not None:
            self.stepper.completed(self, op)

    def complete_one(self) -> bool:
        """Complete the oldest pending operation of any chain (it is the head of its chain)."""
        while self.order:
            op = self.order.popleft()
            if op.complete is None:
                continue
            queue = self.chains[op.chain]
            head = queue.popleft()
            assert head is op
            if not queue:
                del self.chains[op.chain]
            self._finish(op)
            return True
        return False

    def complete_head(self, chain: Hashable) -> None:
        """Complete the oldest operation of one chain."""
        op = self.chains[chain].popleft()
        if not self.chains[chain]:
            del self.chains[chain]
        self._finish(op)
        if len(self.order) > 64 and self.order[0].complete is None:
            self.order = deque(op for op in self.order if op.complete is not None)

    # ------------------------------------------------------------------------------------------ launching CTAs

    def start_cluster(self) -> bool:
        """Start the next cluster of the grid (or of those that were chosen); False when none is left."""
        if self.chosen is not None:
            if not self.chosen:
                return False
            self.launch_cluster(self.chosen.pop(0))
            return True
        while self.next_cluster < self.num_clusters and self.next_cluster in self.cancelled:
            self.next_cluster += 1
        if self.next_cluster >= self.num_clusters:
            return False
        index = self.next_cluster
        self.next_cluster += 1
        self.launch_cluster(index)
        return True

    def cluster_origin(self, index: int) -> tuple[int, int, int]:
        gx, gy, _ = self.cluster_grid
        cx, cy, cz = self.cluster_shape
        return (index % gx) * cx, (index // gx % gy) * cy, (index // (gx * gy)) * cz

    def launch_slab(self, index: int) -> None:
        """Many independent CTAs as lanes of one strand."""
        gx, gy, gz = self.grid
        first = index * self.slab
        linear = np.arange(first, min(first + self.slab, gx * gy * gz))
        cluster = Cluster(self, (1, 1, 1), index)
        lanes = 32 * self.num_warps
        per_lane = np.repeat(linear, lanes)
        block = (per_lane % gx, per_lane // gx % gy, per_lane // (gx * gy))
        cta = Cta(cluster, 0, block, int(linear[0]), self.num_warps * len(linear))
        cluster.ctas.append(cta)
        if self.checker is not None:
            cluster.hb = self.checker.start_cluster(
                ctas=len(linear),
                warps_per_cta=self.num_warps,
                smem_bytes=16,
                cta_ids=tuple(linear.tolist()),
                apart=True,
            )
        self.clusters.append(cluster)
        self.count("ctas", len(linear))
        t = Threads(cta, list(range(cta.num_warps)))
        t.tid = np.tile(np.arange(lanes, dtype=np.int64), len(linear))
        strand = Strand(t, None)  # type: ignore[arg-type]
        t.strand = strand
        strand.generator = self.program.main(t, self.args)
        self.live.append(strand)

    def launch_cluster(self, index: int) -> None:
        if self.slab:
            self.launch_slab(index)
            return
        cluster = Cluster(self, self.cluster_shape, index)
        cx, cy, cz = self.cluster_shape
        ox, oy, oz = self.cluster_origin(index)
        ids = []
        for rank in range(cx * cy * cz):
            dx, dy, dz = cluster.rank_to_idx(rank)
            block = (ox + dx, oy + dy, oz + dz)
            linear = block[0] + self.grid[0] * (block[1] + self.grid[1] * block[2])
            ids.append(linear)
            cluster.ctas.append(Cta(cluster, rank, block, linear, self.num_warps))
        if self.checker is not None:
            cluster.hb = self.checker.start_cluster(
                ctas=len(ids),
                warps_per_cta=self.num_warps,
                smem_bytes=STATIC_BASE + self.static_smem,
                cta_ids=tuple(ids),
            )
        self.clusters.append(cluster)
        self.count("ctas", len(ids))
        for cta in cluster.ctas:
            for warps in self.partition(cta):
                t = Threads(cta, warps)
                strand = Strand(t, None)  # type: ignore[arg-type]
                t.strand = strand
                strand.generator = self.program.main(t, self.args)
                self.live.append(strand)

    def partition(self, cta: Cta) -> list[list[int]]:
        """Warps that may run in lockstep: those that take the same blocking paths."""
        warps = list(range(self.num_warps))
        if self.fine:
            return [[w] for w in warps]
        if self.program.role_key is None:
            return [warps]
        on_block, on_rank = self.program.role_depends
        cached = (cta.block_idx if on_block else None, cta.cluster_idx if on_rank else None)
        if cached not in self.partitions:
            tid = np.arange(self.num_warps * 32, dtype=np.int64)
            rows = self.program.role_key(tid, cta.block_idx, cta.cluster_idx, self.args)
            per_warp = [np.asarray(r, dtype=np.int64).reshape(-1, 32) for r in rows]
            low, high = [r.min(axis=1) for r in per_warp], [r.max(axis=1) for r in per_warp]
            groups: dict[tuple[int, ...], list[int]] = {}
            for w in warps:
                groups.setdefault((*(int(r[w]) for r in low), *(int(r[w]) for r in high)), []).append(w)
            self.partitions[cached] = list(groups.values())
        return self.partitions[cached]

    # ------------------------------------------------------------------------------------------ the main loop

    def run(self) -> None:
        """Run the whole grid.

        Raises:
            NeedsFinerStrands: retry with ``fine=True``.
            DeviceFault: the kernel did something that stops a GPU.
        """
        self.start_cluster()
        step = self._random_pass if self.schedule == "random" else self._pass
        while True:
            if step():
                continue
            if self.live and self.complete_one():
                continue
            if len({id(s.cta.cluster) for s in self.live}) < self.max_live_clusters and self.start_cluster():
                continue
            if not self.live:
                if self.complete_one():
                    continue
                return
            if self.poll_again():
                continue
            if not self.fine and any(len(s.threads.warps) > 1 for s in self.live):
                raise NeedsFinerStrands
            self.hang()
            return

    def poll_again(self) -> bool:
        """Nothing can happen by itself: let the strands that poll memory look again, a limited number of times.

        A loop that merely looks like a poll gets on this way, and ``mbarrier.try_wait`` reaches its time limit.
        """
        polling = sum(1 for s in self.live if s.wait is not None and s.wait.polls)
        if not polling:
            return False
        if self.progress != self.idle_since:
            self.idle_since, self.idle_start = self.progress, self.idle_rounds
        if self.idle_rounds - self.idle_start > max(50, 20_000 // polling):
            return False
        self.idle_rounds += 1
        return True

    def _pass(self) -> bool:
        """Let every strand that can run do so once; False when none could or only spinning happened."""
        before = self.progress
        moved = False
        for strand in list(self.live):
            if strand.wait is None or strand.wait.ready():
                spinning = strand.wait is not None and strand.wait.kind == "spin"
                self.step(strand)
                if not (
                    spinning and strand.wait is not None and strand.wait.kind == "spin" and not strand.done
                ):
                    moved = True
        return moved or self.progress != before

    def _random_pass(self) -> bool:
        """One random step: some strand that can run, or some hardware queue, moves.

        Every strand and queue has a random speed, heavy-tailed and redrawn now and then, so that some seeds let one
        warp or one queue lag far behind all others (the idea of probabilistic concurrency testing).
        """
        ready = [s for s in self.live if s.wait is None or s.wait.ready()]
        chains = [c for c, q in self.chains.items() if q]
        if not ready and not chains:
            return False
        if self.rng.random() < 0.01:
            self.speeds.clear()
        total = 0.0
        steps: list[float] = []
        for item in (*ready, *chains):
            key = item if isinstance(item, Strand) else item[:2] if isinstance(item, tuple) else item
            speed = self.speeds.get(key)
            if speed is None:
                speed = self.speeds[key] = 10.0 ** self.rng.uniform(-2.0, 0.0)
            total += speed
            steps.append(total)
        k = bisect.bisect_left(steps, self.rng.random() * total)
        if k >= len(ready):
            self.complete_head(chains[min(k, len(steps) - 1) - len(ready)])
            return True
        strand = ready[k]
        spinning = strand.wait is not None and strand.wait.kind == "spin"
        before = self.progress
        self.step(strand)
        still = strand.wait is not None and strand.wait.kind == "spin" and not strand.done
        if spinning and still and self.progress == before and len(ready) == 1:
            if not chains:
                return False
            self.complete_head(chains[self.rng.randrange(len(chains))])
        return True

    def step(self, strand: Strand) -> None:
        """Run one strand until it blocks or ends."""
        self.steps += 1
        self.running = strand
        try:
            strand.wait = next(strand.generator)
        except StopIteration:
            strand.done = True
            strand.wait = None
            self.live.remove(strand)
            if self.stepper is not None:
                self.stepper.stepped(self, strand)
            self.exit_warps(strand.threads)
            return
        if self.stepper is not None:
            self.stepper.stepped(self, strand)

    def exit_warps(self, t: Threads) -> None:
        cta = t.cta
        cta.exited_warps.update(t.warps)
        cta.live_warps -= len(t.warps)
        self.progress += 1
        hb = cta.cluster.hb
        if hb is not None:
            hb.exit(tuple(cta.rank * self.num_warps + w for w in t.warps), self.rd_site(t.site))
        from emulator.instructions.barrier import recheck_after_exit

        recheck_after_exit(cta)
        if cta.live_warps == 0:
            self.check_exit(cta)
            if all(c.live_warps == 0 for c in cta.cluster.ctas):
                self.retire(cta.cluster)

    def retire(self, cluster: Cluster) -> None:
        """All CTAs of a cluster exited: drain what they issued and free their memory."""
        cluster.done = True
        for chain in [c for c, q in self.chains.items() if q and isinstance(c, tuple) and c[0] is cluster]:
            self.complete_chain(chain)
        for chain in [c for c in self.chains if isinstance(c, tuple) and c[0] is cluster]:
            self.chains.pop(chain, None)
        if cluster.hb is not None:
            cluster.hb.finish()
        for cta in cluster.ctas:
            cta.views.clear()
            cta.smem = np.empty(0, dtype=np.uint8)
            cta._tmem = None
        self.clusters.remove(cluster)

    def check_exit(self, cta: Cta) -> None:
        """What a CTA must not leave behind."""
        if cta.has_tmem and cta.tmem.allocations:
            for base, (columns, site, name) in cta.tmem.allocations.items():
                where = self.location(site)
                self.log.add(
                    Finding(
                        "tmem.leak", "error",
                        f"the CTA exits with {columns} TMEM columns (from column {base}) still allocated",
                        "the warp that allocated them must execute tcgen05.dealloc before the kernel ends; otherwise the next CTA on this SM hangs",
                        (where,) if where else (), (name,), cta.linear, (), (), {"columns": columns, "base": base},
                    )
                )  # fmt: skip
            cta.tmem.allocations.clear()

    def hang(self) -> None:
        from emulator.checks.deadlock import autopsy

        # Causes first: the log keeps the first finding of a statement, and in another CTA the same wait may only follow.
        for finding in sorted(autopsy(self), key=lambda found: "consequence" in found.data):
            self.log.add(finding)

    # ------------------------------------------------------------------------------------------ output

    def print(self, text: str) -> None:
        """Keep a line that the kernel printed; far more than a person reads is dropped."""
        if len(self.printed) < 10_000:
            self.printed.append(text)

    # ------------------------------------------------------------------------------------------ counters

    def count(self, name: str, n: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + n


__all__ = ["AsyncOp", "DeviceFault", "Machine", "NeedsFinerStrands", "Strand", "Wait"]
