"""Words for what the race detector finds: which access, which bytes, and the concept that is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from emulator.checks.events import ORDER, BarrierOrder, Event
from emulator.checks.findings import Finding, FindingLog, SourceLocation, Strength, base_name, words
from emulator.checks.shadow import Shadow

if TYPE_CHECKING:
    from emulator.checks.happens_before import ClusterOrder

_REPEATS = 32  # reports of one pair of statements that are spelled out (their buffers may differ)
_PAIRS = 1024  # the same, of pairs of warps
_STATES = 400  # states of a shadow that are searched for other writes of a buffer

_CHECK_PHASE = " Check its initial phase and when it flips."
# Between CTAs of a grid that no cluster joins, by what is missing (see GridOrder.gap).
_GRID_FIX = {
    "signal": "CTAs of one launch run in any order: give each its own elements, or order them with a release and an "
    "acquire at gpu scope.",
    "meet before": "Put a cta_sync between the writes and the signal to the other CTAs, so that the thread that signals "
    "does it after all writes of its CTA.",
    "release": "Execute fence.acq_rel.gpu after the writes (and the cta_sync behind them) and before the relaxed signal, "
    "or signal with .release.gpu: a relaxed signal alone releases nothing.",
    "acquire": "Execute fence.acq_rel.gpu after the relaxed read that has seen the signal, or read it with .acquire.gpu, "
    "before the data is read.",
    "meet after": "Put a cta_sync between the acquire of the signal and the reads of the other threads of this CTA.",
}
Uninitialised = Strength | str | Mapping[str, Strength | str]
_SPACE = {"smem": "SMEM", "tmem": "TMEM", "gmem": "global memory"}


class Group:
    """Conflicts that are one mistake: of the same two lines, in the same buffer.

    Attributes:
        earlier, later: (CTA, warp) of everybody who took part.
        granule, count: of the conflict at the lowest place.
    """

    def __init__(self) -> None:
        self.earlier: set[tuple[int, int]] = set()
        self.later: set[tuple[int, int]] = set()
        self.granule = -1
        self.count = 0

    def add(self, c: Conflict) -> None:
        self.earlier.add(_cta_and_warp(c.earlier))
        self.later.add(_cta_and_warp(c.later))
        if self.granule < 0 or c.granule < self.granule:
            self.granule, self.count = c.granule, c.count


@dataclass(frozen=True)
class Conflict:
    """Two accesses that are not ordered as they should be.

    Attributes:
        relation: "write-read", "read-write", "write-write" (first word: the earlier access), "unwritten",
            "barrier", "proxy", "proxy-other", "fence-before" or "fence-after".
        earlier_site, later_site: the two statements.
        granule, count: first shadow cell and number of cells concerned.
        lanes: lanes of the later access concerned, empty when all or not known.
    """

    cluster: ClusterOrder
    relation: str
    earlier: Event
    later: Event
    earlier_site: int
    later_site: int
    shadow: Shadow
    granule: int
    count: int
    lanes: tuple[int, ...]
    group: Group = field(default_factory=Group)


class Reporter:
    """Builds findings. ``sites``: source line of each site number. ``name_of``: see RaceDetector."""

    def __init__(
        self,
        log: FindingLog,
        sites: Sequence[SourceLocation | None],
        name_of: Callable[[str, int, int], str],
        uninitialised: Uninitialised,
    ) -> None:
        self.log = log
        self.sites = sites
        self.name_of = name_of
        self._uninitialised: Mapping[str, Strength | str] = (
            {"program": uninitialised} if isinstance(uninitialised, str) else uninitialised
        )
        self.reported: set[tuple[ClusterOrder, int]] = (
            set()
        )  # (cluster, column) of asynchronous accesses in a race
        self._seen: dict[tuple[Any, ...], int] = {}
        self._pairs: dict[tuple[Any, ...], set[tuple[int, int]]] = {}
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._written_by: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def wants(self, relation: str, earlier: Event, later: Event, site: int, space: str) -> bool:
        """Whether another report of this pair of statements would add anything."""
        if relation == "unwritten" and self._strength_unwritten(later) == "off":
            return False
        key = (relation, earlier.site, earlier.kind, site, later.kind, space)
        count = self._seen.get(key, 0)
        self._seen[key] = count + 1
        pairs = self._pairs.setdefault(key, set())
        if (earlier.w, later.w) not in pairs and len(pairs) < _PAIRS:
            pairs.add((earlier.w, later.w))
            return True
        return count < _REPEATS

    # ---------------------------------------- conflicts

    def conflict(self, c: Conflict) -> None:
        """Report one conflict, together with those of the same lines and buffer so far."""
        kinds = (c.earlier.kind.name, c.earlier.kind.via, c.later.kind.name, c.later.kind.via)
        lines = (self.sites[c.earlier_site], self.sites[c.later_site])
        key = (c.relation, *kinds, *lines, base_name(self._place(c)[1]), c.earlier.cl is c.cluster)
        group = self._groups.setdefault(key, Group())
        group.add(c)
        c = replace(c, group=group, granule=group.granule, count=group.count)
        if c.relation == "unwritten":
            self._unwritten(c)
        elif c.relation == "proxy":
            self._proxy(c)
        elif c.relation == "proxy-other":
            self._proxy_other(c)
        elif c.relation == "barrier":
            self._barrier_overwritten(c)
        elif c.relation in ("fence-before", "fence-after"):
            # fence::after_thread_sync orders *asynchronous* tcgen05 instructions; tcgen05.dealloc is not one
            # (PTX ISA, "tcgen05.fence"), so a fence::before_thread_sync of the last user is enough for it.
            if c.relation == "fence-before" or c.later.kind.name != "tcgen05.dealloc":
                self._tcgen05_fence(c)
        else:
            self._race(c)

    def _race(self, c: Conflict) -> None:
        earlier, later = c.earlier, c.later
        via = earlier.kind.via
        if via in ("ld", "st") and _issue_known(c) and (via == "ld" or earlier.w == later.w):
            self._missing_tmem_wait(c)
            return
        place, name = self._place(c)
        first, second = self._first(c), self._second(c)
        if c.relation == "write-read":
            message = (
                f"{_upper(second)} reads {place}, and nothing makes it wait for {first}, which writes there."
            )
        elif later.kind.name == "tcgen05.dealloc":
            message = f"{_upper(second)} frees {place} while {first} may still be using it."
        elif c.relation == "read-write":
            message = f"{_upper(second)} overwrites {place} while {first} may still be reading it."
        else:
            message = f"{_upper(second)} and {first} both write {place}, and nothing orders the two writes."
        missing, fix, barrier = self._missing_order(c)
        self.reported.add((earlier.cl, earlier.col))
        self._add(c, f"race.{c.shadow.kind}.{c.relation}", "race", message, fix, (name, barrier), missing)

    def _missing_tmem_wait(self, c: Conflict) -> None:
        via = c.earlier.kind.via
        place, name = self._place(c)
        message = (
            f"{_upper(self._second(c))} touches {place} after {self._first(c)}, "
            f"without a tcgen05.wait::{via} between them; the ISA requires it, today's hardware keeps "
            "them in order."
        )
        fix = (
            f"Execute tcgen05.wait::{via}.sync.aligned after the tcgen05.{via} and before signalling others."
        )
        self._add(c, f"tcgen05.missing-wait-{via}", "lint", message, fix, (name, ""), f"tcgen05.wait::{via}")

    def _strength_unwritten(self, reader: Event) -> str:
        table = self._uninitialised
        strength = table.get(reader.kind.via, table.get("program", "error"))
        if len(table) == 1 and strength == "error" and reader.kind.name.startswith("ld.shared"):
            # Kernels that ship read rows beyond the tensor and drop them; where it matters, the poison spoils the output.
            return "lint"
        return strength

    def _unwritten(self, c: Conflict) -> None:
        place, name = self._place(c)
        who = _upper(self._second(c))
        writers = self._writers(c, base_name(name))
        if c.shadow.kind == "tmem" and c.later.kind.via == "mma":
            message = f"{who} accumulates into {place}, which nothing has written."
            fix = "Let the first MMA of a tile overwrite D (enable_input_d = 0, accum=False)."
        else:
            message = f"{who} reads {place}, which nothing has written."
            if writers:
                at = ", ".join(
                    dict.fromkeys(self._at(site).removeprefix(" at ") or "another line" for site in writers)
                )
                message = message[:-1] + f"; {base_name(name)} is written at {at}, but not there."
                fix = "Check the stage index, the coordinates and the shape of that write and of this read."
            elif c.shadow.kind == "tmem":
                fix = "Issue the MMA or tcgen05.st that fills it before, and check the TMEM address."
            else:
                fix = "Issue the copy that fills it first and wait for it, or check the address and the stage index."
        strength = cast(Strength, self._strength_unwritten(c.later))
        if self._idle_lanes(c):
            strength = "lint"
        code = f"uninitialised.{c.shadow.kind}"
        self._add(c, code, strength, message, fix, (name, ""), "write", alone=True, also=writers)

    @staticmethod
    def _idle_lanes(c: Conflict) -> bool:
        """tcgen05.ld of all 32 lanes where an accumulator fills 16 of them (M = 64, layouts C and F).

        Kernels that ship load with .32x32b and drop the values of the idle lanes; where one is used, its poison spoils the
        output.
        """
        if c.shadow.kind != "tmem" or c.later.kind.via != "ld":
            return False
        beside = c.cluster.detector.states[c.shadow.ids.item(c.granule ^ 1)][0]
        return beside is not None and beside is not c.cluster.detector.unwritten

    def _writers(self, c: Conflict, name: str) -> tuple[int, ...]:
        """Statements that have written other parts of a buffer, a few."""
        key = (c.cluster, c.shadow.kind, c.shadow.index, name)
        known = self._written_by.get(key)
        if known is not None:
            return known
        sites: dict[int, None] = {}
        index = c.cluster.cta_ids[c.shadow.index]
        values, first = np.unique(c.shadow.ids, return_index=True)
        for state, granule in list(zip(values.tolist(), first.tolist(), strict=True))[:_STATES]:
            event = c.cluster.detector.states[state][0]
            if event is not None and event.epoch > 0 and event.kind.name != "mbarrier.init":
                byte = c.shadow.byte_of(granule)
                if base_name(self.name_of(c.shadow.kind, index, byte)) == name:
                    sites[event.site_at(c.shadow, granule)] = None
        found = tuple(site for site in sites if site)[:3]
        if found:
            self._written_by[key] = found
        return found

    def _barrier_overwritten(self, c: Conflict) -> None:
        place, name = self._place(c)
        message = f"{_upper(self._second(c))} overwrites {place}, which holds an mbarrier."
        fix = "Check the address and the size of the write; memory of a barrier is free after mbarrier.inval."
        finding = self._add(c, "mbarrier.overwritten", "lint", message, fix, (name, ""), "address")
        first = c.shadow.byte_of(c.granule)
        for bar in c.cluster.barriers:
            if bar.cta == c.shadow.index and first - 8 < bar.offset < first + c.count * c.shadow.granule:
                c.cluster.overwritten[bar.cta, bar.offset] = finding

    def _proxy(self, c: Conflict) -> None:
        place, name = self._place(c)
        first, second = self._first(c), self._second(c)
        what = "global memory" if c.shadow.kind == "gmem" else "SMEM"
        message = (
            f"{_upper(second)} reads {place} through the async proxy, {first} wrote it through the "
            "generic proxy, and "
            f"no fence.proxy.async lies between them: the ISA lets the read see old bytes. "
        )
        if c.later.kind.name == "tcgen05.mma" or c.later.kind.via == "wgmma":
            message += (
                "Hardware often forgives it here, because a barrier usually drains the writes before "
                "the tensor core fetches its operands; the ISA does not promise that."
            )
        else:
            message += f"The copy engine does not wait for {what} writes of the generic proxy by itself."
        scope = "" if c.shadow.kind == "gmem" else ".shared::cta"
        fix = (
            f"Execute fence.proxy.async{scope} in every thread that wrote, after its writes and before "
            "the barrier "
            "that precedes the asynchronous read."
        )
        self._add(c, "proxy.missing-fence", "race", message, fix, (name, ""), "fence.proxy.async")

    def _proxy_other(self, c: Conflict) -> None:
        place, name = self._place(c)
        first, second = self._first(c), self._second(c)
        message = (
            f"{_upper(second)} reads {place} through the async proxy; {first} wrote it, but the "
            "fence.proxy.async "
            "between them is executed by another thread, after the barrier."
        )
        fix = "The usual form is fence.proxy.async in the writing threads, before the barrier."
        self._add(c, "proxy.fence-by-another-thread", "lint", message, fix, (name, ""), "fence.proxy.async")

    def _tcgen05_fence(self, c: Conflict) -> None:
        which = "before" if c.relation == "fence-before" else "after"
        place, name = self._place(c)
        first, second = self._first(c), self._second(c)
        message = (
            f"{_upper(second)} touches {place} after {first} of another thread; the synchronization "
            "between them "
            f"has no tcgen05.fence::{which}_thread_sync, which the ISA asks for. Today's hardware keeps "
            "the order."
        )
        if which == "before":
            fix = "Execute tcgen05.fence::before_thread_sync after the first operation, before the barrier."
        else:
            fix = (
                "Execute tcgen05.fence::after_thread_sync after the wait, before the next tcgen05 operation."
            )
        missing = f"tcgen05.fence::{which}_thread_sync"
        self._add(c, "tcgen05.missing-fence", "lint", message, fix, (name, ""), missing)

    # ---------------------------------------- what is missing

    def _missing_order(self, c: Conflict) -> tuple[str, str, str]:
        """(concept, fix sentence, name of the barrier concerned or "")."""
        earlier, cluster = c.earlier, c.cluster
        apart = (
            earlier.cl is not cluster
            or cluster.apart
            and cluster.cta_of(earlier.w) != cluster.cta_of(c.later.w)
        )
        if c.relation == "write-write" and c.shadow.kind == "gmem" and self._one_statement(c):
            who = "CTAs" if apart or cluster.cta_of(earlier.w) != cluster.cta_of(c.later.w) else "threads"
            fix = (
                f"Two {who} own the same element here: compute the index (or the tile's coordinates) so that every "
                "element belongs to exactly one of them, and mask those that have none."
            )
            return "one owner per element", fix, ""
        if apart:
            gap = cluster.grid.gap(earlier, c.later.w) if earlier.cl is not cluster else "signal"
            fix = _GRID_FIX[gap]
            return "grid synchronization", fix, ""
        via = earlier.kind.via
        if via == "mbarrier" and earlier.bar is not None:
            return self._wait_on(c, earlier.bar, earlier.epoch - 1)
        if via == "mma":
            early = self._mma_came_early(c)
            if early is not None:
                return early
            queue = cluster.queues[("mma", earlier.w, 0)]
            for covered, bar, phase in queue.commits:
                if covered >= earlier.epoch:
                    return self._wait_on(c, bar, phase)
            fix = (
                "Execute tcgen05.commit to an mbarrier after the MMA and wait on that mbarrier "
                "before this access."
            )
            return "tcgen05.commit", fix, ""
        owner_knows = cluster.now[earlier.w].item(earlier.col) >= earlier.epoch
        if via in ("bulk_read", "bulk_write") and not owner_knows:
            return self._bulk_wait(c)
        if via in ("ld", "st") and not owner_knows and _issue_known(c):
            return (
                f"tcgen05.wait::{via}",
                f"Execute tcgen05.wait::{via} before signalling that the access is done.",
                "",
            )
        if via == "cp.async" and not owner_knows:
            fix = (
                "Execute cp.async.commit_group and cp.async.wait_group in the copying threads, then "
                "a barrier."
            )
            return "cp.async.wait_group", fix, ""
        if via == "wgmma" and not owner_knows:
            return (
                "wgmma.wait_group",
                "Execute wgmma.commit_group and wgmma.wait_group before this access.",
                "",
            )
        return self._barrier_between(c)

    def _mma_came_early(self, c: Conflict) -> tuple[str, str, str] | None:
        """tcgen05.ld of a warp that has waited for the accumulator before: the MMA, not the wait, may be what is wrong.

        None when it has seen no MMA of this thread complete, when a wait of it returns at once, or when it is not clear on
        which barrier it hands the accumulator back.
        """
        cluster, reader, issuer = c.cluster, c.later.w, c.earlier.w
        if c.relation != "write-read" or c.later.kind.name != "tcgen05.ld":
            return None
        if cluster.now[reader].item(c.earlier.col) <= 0 or any(w == reader for w, _ in cluster.idle_waits):
            return None
        handed = [b for b in cluster.barriers if reader in b.arrive_sites and issuer not in b.arrive_sites]
        names = {base_name(self.barrier_name(b)) for b in handed}
        if len(names) != 1:
            return None
        name = names.pop()
        fix = (
            "This warp has waited for MMAs of that thread, but not for this one. If it waits once per tile, for the "
            "accumulator that it reads, and the commit follows the last MMA of the tile, then this MMA came too early: look "
            f"at who arrives at mbarrier {name} and when, and at the MMA's wait for it."
        )
        return "mbarrier wait", fix, name

    def _one_statement(self, c: Conflict) -> bool:
        """Whether both accesses are made by the same line and instruction."""
        same = c.earlier_site == c.later_site or self.sites[c.earlier_site] == self.sites[c.later_site]
        return same and c.earlier.kind is c.later.kind

    def _wait_on(self, c: Conflict, bar: BarrierOrder, phase: int) -> tuple[str, str, str]:
        name = self.barrier_name(bar)
        fix = f"Wait on mbarrier {name} with parity {phase & 1} before this access."
        idle = c.cluster.idle_waits.get((c.later.w, bar))
        if idle is not None:
            fix = f"{self._idle_hint(name, *idle)} Wait for parity {phase & 1}."
        return "mbarrier wait", fix, name

    def _idle_hint(self, name: str, site: int, parity: int) -> str:
        return (
            f"The wait on mbarrier {name}{self._at(site)} uses parity {parity}, which an earlier phase "
            "already "
            "satisfies: it returns at once."
        )

    def _bulk_wait(self, c: Conflict) -> tuple[str, str, str]:
        suffix = ".read" if c.earlier.kind.via == "bulk_read" else ""
        queue = next((q for q in c.cluster.queues.values() if c.earlier.col in (q.col, q.col2)), None)
        if queue is not None and queue.open and queue.epoch == c.earlier.epoch:
            fix = (
                f"Close the store's group with cp.async.bulk.commit_group and wait for it with "
                f"cp.async.bulk.wait_group{suffix} 0 in the same thread, then a barrier."
            )
        else:
            fix = (
                f"Execute cp.async.bulk.wait_group{suffix} in the thread that issued the store, then "
                "a barrier."
            )
        for site, warp in c.cluster.stray_bulk_waits:
            fix += (
                f" The wait_group{self._at(site)} runs in warp {warp % c.cluster.warps_per_cta} by "
                "threads that issued "
                "no store: only the issuing thread's own groups count."
            )
            break
        return f"wait_group{suffix}", fix, ""

    def _barrier_between(self, c: Conflict) -> tuple[str, str, str]:
        earlier, later, cluster = c.earlier, c.later, c.cluster
        if cluster.cta_of(earlier.w) != cluster.cta_of(later.w):
            fix = (
                "The two CTAs need a cluster barrier (arrive.release, wait.acquire) or an arrive on a "
                "remote mbarrier "
                "and a wait between the two accesses."
            )
            return "cluster synchronization", fix, ""
        if c.relation != "write-read" and later.kind.via == "mbarrier":
            for (w, bar), idle in cluster.idle_waits.items():
                if w == later.w and earlier.w in bar.arrive_sites:
                    name = self.barrier_name(bar)
                    return "mbarrier wait", self._idle_hint(name, *idle) + _CHECK_PHASE, name
            fix = (
                "Before issuing the load again, wait on an mbarrier on which the reader arrives when "
                "it is done with "
                "this stage."
            )
            return "mbarrier wait", fix, ""
        for (w, bar), idle in cluster.idle_waits.items():
            if w == later.w and earlier.w in bar.arrive_sites and bar.completed:
                name = self.barrier_name(bar)
                return "mbarrier wait", self._idle_hint(name, *idle) + _CHECK_PHASE, name
        if c.shadow.kind == "gmem":
            fix = "Put a cta_sync between the two accesses, or let each thread touch only its own elements."
        else:
            fix = "Put a cta_sync, a named barrier, or an mbarrier arrive and wait between the two accesses."
        return "barrier", fix, ""

    # ---------------------------------------- barriers and exit

    def init_not_visible(self, cl: ClusterOrder, bar: BarrierOrder, w: int, site: int, what: str) -> None:
        """A warp uses an mbarrier whose init does not precede the use."""
        name = self.barrier_name(bar)
        remote = cl.cta_of(w) != bar.cta
        message = (
            f"{what} by {self._warp(w, cl)} uses mbarrier {name}, but nothing orders its mbarrier.init by "
            f"{self._warp(bar.init_warp, cl)} before it."
        )
        if remote:
            fix = "Put fence.mbarrier_init and a cluster_sync between the init and the first remote use."
        else:
            fix = "Put fence.mbarrier_init and a cta_sync between the init and the first use."
        self._plain(
            "mbarrier.init-not-visible", "race", message, fix, (site, bar.init_site), (name,), cl, w,
            {"missing": "cluster_sync" if remote else "cta_sync"},
        )  # fmt: skip

    def init_not_fenced(self, cl: ClusterOrder, bar: BarrierOrder, w: int, site: int, what: str) -> None:
        """An asynchronous operation signals an mbarrier whose init no fence made visible to the async "
        "proxy."""
        name = self.barrier_name(bar)
        message = (
            f"{what} signals mbarrier {name} through the async proxy, and no fence.mbarrier_init (or "
            "fence.proxy.async) follows its mbarrier.init. The ISA asks for one; a barrier alone works "
            "in practice."
        )
        fix = "Execute fence.mbarrier_init.release.cluster after the inits, before the barrier."
        self._plain(
            "mbarrier.init-not-fenced", "lint", message, fix, (site, bar.init_site), (name,), cl, w,
            {"missing": "fence.mbarrier_init"},
        )  # fmt: skip

    def alloc_not_visible(
        self, cl: ClusterOrder, w: int, site: int, what: str, owner: int, alloc_site: int
    ) -> None:
        """A warp uses TMEM, and nothing orders its allocation before."""
        remote = cl.cta_of(w) != cl.cta_of(owner)
        message = (
            f"{what} by {self._warp(w, cl)} uses TMEM, and nothing orders the tcgen05.alloc of "
            f"{self._warp(owner, cl)}{self._at(alloc_site)} before it."
        )
        fix = f"Put a {'cluster_sync' if remote else 'cta_sync'} between the allocation and the first use."
        self._plain(
            "tmem.alloc-not-visible", "race", message, fix, (site, alloc_site), (), cl, w,
            {"missing": "cluster_sync" if remote else "cta_sync"},
        )  # fmt: skip

    def stale_phase(
        self, cl: ClusterOrder, bar: BarrierOrder, w: int, site: int, parity: int, known: int
    ) -> None:
        """A wait returns for a phase that may be two phases old: its parity cannot tell them apart."""
        name = self.barrier_name(bar)
        message = (
            f"The wait of {self._warp(w, cl)} on mbarrier {name} with parity {parity} returns although "
            f"{bar.completed} phases are complete, of which this warp has seen {known}: the parity is the "
            "same again two phases later."
        )
        fix = (
            "Wait once for every phase, and let nobody arrive for the next phase before this warp has seen "
            "the current one; check the initial phase and when it flips."
        )
        data = {"missing": "mbarrier wait", "completed": bar.completed, "seen": known, "parity": parity}
        self._plain("mbarrier.stale-phase", "race", message, fix, (site,), (name,), cl, w, data)

    def phase_overrun(self, cl: ClusterOrder, bar: BarrierOrder, w: int, site: int) -> None:
        """A phase completes that nothing holds back until a warp has seen the phase before it."""
        name = self.barrier_name(bar)
        before = bar.completed - 2
        waited = f"waited for phase {before}" if before >= 0 else "passed its wait for the phase before it"
        message = (
            f"Phase {bar.completed - 1} of mbarrier {name} can complete before {self._warp(w, cl)} has "
            f"{waited}{self._at(site)}: its wait would then hang or take the wrong phase."
        )
        fix = (
            "Arrive (or commit) once per round, and for the next phase only after everybody who waits for "
            "the current one has signalled that, or make the arrival count cover all arrivals of a round; check that "
            "the wait names the right barrier."
        )
        data = {"missing": "barrier", "phase": bar.completed - 1}
        sites = (bar.last_site, site)
        self._plain("mbarrier.phase-overrun", "race", message, fix, sites, (name,), cl, w, data)

    def never_waited_ld(self, cl: ClusterOrder, w: int, site: int) -> None:
        """A warp exits with tcgen05.ld results it never waited for."""
        message = (
            f"tcgen05.ld by {self._warp(w, cl)} is never followed by tcgen05.wait::ld: its registers "
            "are undefined "
            "until then. Today's hardware waits by itself."
        )
        fix = "Execute tcgen05.wait::ld.sync.aligned before the registers are used."
        self._plain(
            "tcgen05.missing-wait-ld",
            "lint",
            message,
            fix,
            (site,),
            (),
            cl,
            w,
            {"missing": "tcgen05.wait::ld"},
        )

    def pending_at_exit(self, cl: ClusterOrder, cta: int, event: Event, site: int) -> None:
        """A CTA is gone while an asynchronous operation still uses its SMEM or TMEM."""
        via = event.kind.via
        names: tuple[str, ...] = ()
        code, fix = {
            "bulk_read": (
                "exit.bulk-store-pending",
                "Execute cp.async.bulk.wait_group.read 0 (after commit_group) in the issuing thread "
                "before it returns.",
            ),
            "mbarrier": ("exit.load-pending", "Wait on the mbarrier of every copy before the CTA returns."),
        }.get(
            via,
            ("exit.mma-pending", "Wait on the mbarrier of the last tcgen05.commit before the CTA returns."),
        )
        if event.bar is not None:
            names = (self.barrier_name(event.bar),)
        message = (
            f"CTA {cl.cta_ids[cta]} returns while {self._who(event, event.site, cl)} may still use its "
            f"{'SMEM' if via != 'mma' else 'SMEM or TMEM'}; the next CTA on this SM gets the same memory."
        )
        self._plain(
            code,
            # Kernels ship that leave their last stores, or all, to themselves: the ISA does not ask for the wait, and the hardware
            # finishes them. CUDA's guide waits, so that is the advice.
            "lint" if code == "exit.bulk-store-pending" else "race",
            message,
            fix,
            (event.site,),
            names,
            cl,
            event.w,
            {"missing": "wait before exit"},
        )

    def remote_after_exit(
        self, cl: ClusterOrder, cta: int, w: int, site: int, what: str, late: bool = False
    ) -> None:
        """A warp uses the shared memory of another CTA that need not be alive any more.

        ``late``: that CTA returned only after it had heard from another warp of the user's CTA, which got there after
        the use: a teardown between single warps, as kernels that ship have it, leaves no order but much time.
        """
        message = (
            f"{what} by {self._warp(w, cl)} reaches the shared memory of CTA {cl.cta_ids[cta]}, and nothing "
            "keeps that CTA from returning first."
        )
        fix = "Put a cluster_sync (arrive and wait by all threads of both CTAs) before the CTAs return."
        data = {"missing": "cluster synchronization"}
        self._plain("exit.remote-use", "lint" if late else "race", message, fix, (site,), (), cl, w, data)

    def lanes_not_ordered(
        self, cl: ClusterOrder, w: int, shadow: Shadow, granule: int, count: int, what: str,
        readers: Sequence[int], writers: Sequence[int], site: int, write_site: int,
    ) -> None:  # fmt: skip
        """Lanes read what other lanes of their warp have stored, and nothing orders the lanes."""
        name = self.name_of("smem", cl.cta_ids[shadow.index], shadow.byte_of(granule))
        who = words(writers, "lane", "lanes") if writers else "other lanes"
        reads = (
            f"{words(readers, 'lane', 'lanes')} of {self._warp(w, cl)}"
            if what == "ld.shared"
            else self._warp(w, cl)
        )
        message = (
            f"{what} by {reads} reads {count * shadow.granule} bytes of {name}, which {who} of the same warp stored"
            f"{self._at(write_site)}, and nothing orders the lanes: the compiler and the hardware may run them apart."
        )
        fix = "Execute bar.warp.sync (T.cuda.warp_sync()) by all lanes of the warp between the store and the load."
        finding = Finding(
            "race.smem.within-warp", "race", message, fix, self._locations(site, write_site), (name,),
            cl.cta_ids[cl.cta_of(w)], (w % cl.warps_per_cta,), tuple(readers), {"missing": "bar.warp.sync"},
        )  # fmt: skip
        self.log.add(finding)

    # ---------------------------------------- words

    def barrier_name(self, bar: BarrierOrder) -> str:
        """The learner's name of an mbarrier."""
        return self.name_of("smem", bar.cl.cta_ids[bar.cta], bar.offset)

    def _at(self, site: int) -> str:
        location = self.sites[site]
        return f" at line {location.line}" if location is not None else ""

    def _warp(self, w: int, cl: ClusterOrder) -> str:
        text = f"warp {w % cl.warps_per_cta}"
        return text if cl.ctas == 1 else f"{text} of CTA {cl.cta_ids[cl.cta_of(w)]}"

    def _first(self, c: Conflict) -> str:
        return self._who(c.earlier, c.earlier_site, c.cluster, c.group.earlier)

    def _second(self, c: Conflict) -> str:
        return self._who(c.later, c.later_site, c.cluster, c.group.later)

    def _who(
        self, event: Event, site: int, view: ClusterOrder, all_of_them: Iterable[tuple[int, int]] = ()
    ) -> str:
        """The access in words, e.g. "the TMA load issued by warp 2 at line 41"."""
        cl = event.cl
        who = set(all_of_them) | {_cta_and_warp(event)}
        warp = words((w for _, w in who), "warp", "warps")
        if cl.ctas > 1 or cl is not view:
            warp += " of " + words((cta for cta, _ in who), "CTA", "CTAs")
        via, name = event.kind.via, event.kind.name
        if via == "mbarrier" and name.startswith("cp.async.bulk.tensor"):
            name, verb = "the TMA load", "issued by"
        elif via in ("bulk_read", "bulk_write") and "tensor" in name:
            name, verb = "the TMA store", "issued by"
        else:
            verb = "by" if via in ("program", "ld", "st") else "issued by"
        return f"{name} {verb} {warp}{self._at(site)}"

    def _place(self, c: Conflict) -> tuple[str, str]:
        """(words for the bytes concerned, the buffer's name)."""
        kind = c.shadow.kind
        index = c.shadow.index if kind == "gmem" else c.cluster.cta_ids[c.shadow.index]
        byte = c.shadow.byte_of(c.granule)
        name = self.name_of(kind, index, byte)
        if kind == "tmem":
            return f"{name} (TMEM from column {byte & 0xFFFF}, lane {byte >> 16})", name
        nbytes = c.count * c.shadow.granule
        where = f" ({_SPACE[kind]}, from byte {byte})" if kind == "gmem" or "byte" in name else ""
        return f"{nbytes} byte{'s' if nbytes > 1 else ''} of {name}{where}", name

    def _add(
        self, c: Conflict, code: str, strength: Strength, message: str, fix: str, names: tuple[str, str],
            missing: str,
        alone: bool = False, also: tuple[int, ...] = (),
    ) -> Finding:  # fmt: skip
        events = (c.later,) if alone else (c.later, c.earlier)
        data = {
            "missing": missing,
            "space": c.shadow.kind,
            "first_byte": c.shadow.byte_of(c.granule),
            "bytes": c.count * c.shadow.granule,
            "accesses": [
                {
                    "instruction": e.kind.name,
                    "warp": e.w % e.cl.warps_per_cta,
                    "cta": e.cl.cta_ids[e.cl.cta_of(e.w)],
                }
                for e in events
            ],
        }
        cta = c.cluster.cta_ids[c.cluster.cta_of(c.later.w)]
        parts = [c.group.later] if alone else [c.group.later, c.group.earlier]
        warps = tuple(dict.fromkeys(w for part in parts for w in sorted({warp for _, warp in part})))
        locations = self._locations(*((c.later_site,) if alone else (c.later_site, c.earlier_site)), *also)
        kept = tuple(n for n in dict.fromkeys(names) if n)
        finding = Finding(code, strength, message, fix, locations, kept, cta, warps, c.lanes, data)
        self.log.add(finding, covers=True)
        return finding

    def _plain(
        self, code: str, strength: Strength, message: str, fix: str, sites: tuple[int, ...], names: tuple[str,
            ...],
        cl: ClusterOrder, w: int, data: dict[str, Any],
    ) -> None:  # fmt: skip
        cta = cl.cta_ids[cl.cta_of(w)]
        warp = w % cl.warps_per_cta
        self.log.add(
            Finding(code, strength, message, fix, self._locations(*sites), names, cta, (warp,), (), data)
        )

    def _locations(self, *sites: int) -> tuple[SourceLocation, ...]:
        found = (self.sites[site] for site in sites)
        return tuple(dict.fromkeys(location for location in found if location is not None))


def _cta_and_warp(event: Event) -> tuple[int, int]:
    cl = event.cl
    if event.epoch == 0:  # the event that stands for "never written"
        return 0, 0
    return cl.cta_ids[cl.cta_of(event.w)], event.w % cl.warps_per_cta


def _issue_known(c: Conflict) -> bool:
    """Whether the issue of the earlier access, though not its completion, is ordered before the later one."""
    if c.earlier.cl is not c.cluster:
        return False
    return bool(c.cluster.rows[c.later.w].item(ORDER, c.earlier.w) >= c.earlier.wepoch)


def _upper(text: str) -> str:
    return "The " + text[4:] if text.startswith("the ") else text
