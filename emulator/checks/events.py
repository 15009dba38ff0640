"""The records of the race detector: accesses, mbarriers and asynchronous queues as it sees them.

Time is a vector clock per cluster. A column of the clock is an *agent*: a warp, an mbarrier (whose time is
its number of completed phases), or one queue of asynchronous operations of a thread or warp (whose time is
the number of batches that are done). An access is a pair (column, epoch); a warp knows that it is complete
when its clock holds at least that epoch in that column.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from emulator.checks.happens_before import ClusterOrder
    from emulator.checks.shadow import Shadow

Clock = npt.NDArray[np.int32]  # (planes, columns)

# Planes of a clock. ORDER is happens-before itself. The others hold the part of it that a fence somewhere on
# the path separates from its writer: proxy fences (PTX ISA, memory consistency model, "proxy-preserved base
# causality order") for SMEM and for GMEM, and tcgen05.fence::before_thread_sync for TMEM.
ORDER, PROXY_SMEM, PROXY_GMEM, TCGEN05 = 0, 1, 2, 3
PLANES = 4

ALL_LANES = 0xFFFFFFFF

Via = Literal["program", "mbarrier", "bulk_read", "bulk_write", "mma", "ld", "st", "cp.async", "wgmma"]

_SITES_PER_EVENT = 64


@dataclass(frozen=True, eq=False)
class Kind:
    """What sort of access an event is; made by :func:`kind_of` only, so that identity is equality.

    Attributes:
        name: the instruction, as in PTX.
        proxy: the proxy that performs it.
        via: how its completion becomes known: by program order, or by waiting on something.
        strength: 0 weak, 1 a strong read, 2 a strong write or read-modify-write (atom, red, st.release...).
    """

    name: str
    proxy: Literal["generic", "async"]
    via: Via
    strength: int = 0

    @property
    def fifo(self) -> bool:
        """Operations of one queue take effect in the order of their issue."""
        return self.via in ("mma", "ld", "st")


@cache
def kind_of(name: str, proxy: Literal["generic", "async"], via: Via, strength: int = 0) -> Kind:
    """The interned kind."""
    return Kind(name, proxy, via, strength)


class Event:
    """What one agent does between two of its synchronizations, or one asynchronous operation.

    Attributes:
        cl: the cluster it belongs to.
        col, epoch: known to a clock ``c`` when ``c[ORDER, col] >= epoch``.
        w, wepoch: the issuing warp and that warp's own time at issue.
        kind: what it is. fifo: its column when its queue is in order, else -1.
        atomic: a strong access. writes: a strong access that writes.
        site: the statement; ``log`` holds the places of further statements that share the event.
        bar: the mbarrier that reports its completion, if any.
        mask: lanes that take part, as bits.
        state, memo: interned shadow states that end with this event.
    """

    __slots__ = (
        "atomic", "bar", "cl", "col", "epoch", "fifo", "kind", "log", "mask", "memo", "site", "state", "w",
        "wepoch", "writes",
    )  # fmt: skip

    def __init__(
        self,
        cl: ClusterOrder,
        col: int,
        epoch: int,
        w: int,
        wepoch: int,
        kind: Kind,
        site: int,
        bar: BarrierOrder | None = None,
        fifo: int = -1,
    ) -> None:
        self.cl = cl
        self.col = col
        self.epoch = epoch
        self.w = w
        self.wepoch = wepoch
        self.kind = kind
        self.site = site
        self.bar = bar
        self.atomic = kind.strength > 0
        self.writes = kind.strength > 1
        self.fifo = fifo
        self.state = -1
        self.memo: dict[Any, int] | None = None
        self.log: list[tuple[int, Shadow, npt.NDArray[Any], int]] | None = None
        self.mask = ALL_LANES

    def note(self, site: int, shadow: Shadow, rows: npt.NDArray[Any], log2: int) -> None:
        """Remember where a further statement touched (``rows`` of ``2**log2`` granules)."""
        if self.log is None:
            self.log = []
        if len(self.log) < _SITES_PER_EVENT:
            self.log.append((site, shadow, rows, log2))

    def site_at(self, shadow: Shadow, granule: int) -> int:
        """The latest statement of this event that touched a granule."""
        for site, where, rows, log2 in reversed(self.log if self.log is not None else []):
            if where is shadow and bool((rows == granule >> log2).any()):
                return int(site)
        return self.site


# A shadow state: the last write (None: the host's), and the reads since that a later write must still follow.
State = tuple[Event | None, tuple[Event, ...]]


class BarrierOrder:
    """An mbarrier as the race detector sees it.

    Attributes:
        cta, offset: CTA rank in the cluster and byte offset of the object.
        col: its clock column; its time is ``completed``, the number of completed phases.
        pending: clock of the arrivals so far, and of the copies that signal it (cumulative over phases).
        history: clock that a wait for completed phase ``n`` acquires, the most recent phases only.
        init_warp, init_epoch, fence_epoch: its initializer, when, and that warp's next fence (-1: none).
        visible, async_visible: warps whose (asynchronous) uses were checked against the init, as bits.
        fenced_for: warps that learnt of the fenced init through barrier.cluster, as bits.
        arriver: the only warp that arrived in this phase, -1 nobody yet, -2 several or a commit.
        committer: queue of the tcgen05.commit that is the only arrival of this phase, if it is one, and its number there.
        arrive_sites: latest arrive statement of each warp. last_site: of anybody, commits included.
        executed: what each warp knew when it executed cp.async.mbarrier.arrive: this comes before the arrival, though the
            arrival releases nothing but the copies.
        waits: per warp (completed phases that its latest wait proved, its time then, statement, its open cp.async batch).
    """

    __slots__ = (
        "arrive_sites", "arriver", "async_visible", "cl", "col", "committer", "completed", "cta", "executed", "fence_epoch", "fenced_for", "foreign",
        "history", "init_epoch", "init_site", "init_warp", "last_site", "offset", "pending", "visible",
        "waits",
    )  # fmt: skip

    def __init__(
        self, cl: ClusterOrder, cta: int, offset: int, col: int, warp: int, epoch: int, site: int
    ) -> None:
        self.cl = cl
        self.cta = cta
        self.offset = offset
        self.col = col
        self.completed = 0
        self.pending: Clock = np.zeros((PLANES, cl.columns), np.int32)
        self.history: dict[int, Clock] = {}
        self.init_warp = warp
        self.init_epoch = epoch
        self.fence_epoch = -1
        self.init_site = site
        self.visible = 1 << warp
        self.async_visible = 0
        self.fenced_for = 0
        self.foreign: dict[Any, Clock] | None = None
        self.arriver = -1
        self.committer: tuple[Queue, int] | None = None
        self.executed: dict[int, npt.NDArray[np.int32]] = {}
        self.arrive_sites: dict[int, int] = {}
        self.last_site = site
        self.waits: dict[int, tuple[int, int, int, int]] = {}


class Queue:
    """Asynchronous operations of one thread or warp that complete in batches.

    Nobody can tell operations of one batch apart, so they share an epoch: the number of the batch. A batch
    ends with what makes it observable (commit, commit_group, wait::ld).

    Attributes:
        col: clock column of their completion. col2: of the second completion (bulk stores: writes made).
        epoch: number of the open batch. open: whether it has operations.
        groups: last batch of every group. commits: (last batch, barrier, phase) of the latest commits.
        issued: how many commits there were. landed: (phase, number of the commit) that commits of this queue have completed alone,
            by the barrier's clock column.
        event: the latest event, reused while nothing distinguishes the next one from it.
    """

    __slots__ = ("col", "col2", "commits", "epoch", "event", "groups", "issued", "landed", "open")

    def __init__(self, col: int, col2: int = -1) -> None:
        self.col = col
        self.col2 = col2
        self.epoch = 1
        self.open = False
        self.groups: list[int] = []
        self.commits: deque[tuple[int, BarrierOrder, int]] = deque(maxlen=64)
        self.issued = 0
        self.landed: dict[int, tuple[int, int]] = {}
        self.event: Event | None = None

    def issue(self, cl: ClusterOrder, w: int, kind: Kind, site: int) -> Event:
        """The event of the operation that warp ``w`` issues now."""
        self.open = True
        wepoch = cl.now[w].item(w)
        event = self.event
        if (
            event is None
            or event.epoch != self.epoch
            or event.site != site
            or event.wepoch != wepoch
            or event.kind is not kind
        ):
            fifo = self.col if kind.fifo else -1
            event = Event(cl, self.col, self.epoch, w, wepoch, kind, site, fifo=fifo)
            self.event = event
        return event

    def close(self) -> int:
        """End the open batch, if it has operations; the number of the last batch that ended."""
        if self.open:
            self.open = False
            self.epoch += 1
        return self.epoch - 1


def join(into: Clock, other: Clock) -> None:
    """``into = max(into, other)`` in place. ``other`` may be older, with fewer columns (the rest is zero)."""
    b = other.shape[1]
    if into.shape[1] == b:
        np.maximum(into, other, out=into)
    else:
        np.maximum(into[:, :b], other, out=into[:, :b])


def joined(a: Clock, b: Clock) -> Clock:
    """``max(a, b)``: ``a`` updated in place when it is wide enough, else a new clock."""
    if a.shape[1] < b.shape[1]:
        a, b = b.copy(), a
    join(a, b)
    return a
