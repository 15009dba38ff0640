"""The records of the race detector: accesses, mbarriers and asynchronous queues as it sees them.

Time is a vector clock per cluster. A column of the clock is an *agent*: a warp, an mbarrier (whose time is
its number of completed phases), or one asynchronous queue of one thread or warp (whose time is the number of
operations done). An access is the pair (column, epoch); a warp knows of its completion when its clock holds
at least that epoch.
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

Clock = npt.NDArray[np.int32]  # (planes, columns)

# Planes of a clock. ORDER is happens-before itself. The others hold the part of it that is separated from its
# writer by a fence somewhere on the path: proxy fences (PTX ISA, memory consistency model, "proxy-preserved
# base causality order") for SMEM and GMEM, and tcgen05.fence::before_thread_sync.
ORDER, PROXY_SMEM, PROXY_GMEM, TCGEN05 = 0, 1, 2, 3
PLANES = 4

Via = Literal["program", "mbarrier", "bulk_read", "bulk_write", "mma", "ld", "st", "cp.async", "wgmma"]


@dataclass(frozen=True)
class Kind:
    """What sort of access an event is.

    Attributes:
        name: the instruction, as in PTX.
        proxy: the proxy that performs it.
        via: how its completion becomes known: by program order, or by waiting on something.
    """

    name: str
    proxy: Literal["generic", "async"]
    via: Via


@cache
def kind_of(name: str, proxy: Literal["generic", "async"], via: Via) -> Kind:
    """The interned kind."""
    return Kind(name, proxy, via)


class Event:
    """One access by one agent.

    Attributes:
        cl: the cluster it belongs to.
        col, epoch: known to a clock ``c`` when ``c[ORDER, col] >= epoch``.
        w, wepoch: the issuing warp and its own time at issue.
        kind, site, atomic: what and where.
        bar: the mbarrier that reports its completion, if any.
        state, memo: interned shadow states that end with this event.
    """

    __slots__ = ("atomic", "bar", "cl", "col", "epoch", "kind", "memo", "site", "state", "w", "wepoch")

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
        atomic: bool = False,
    ) -> None:
        self.cl = cl
        self.col = col
        self.epoch = epoch
        self.w = w
        self.wepoch = wepoch
        self.kind = kind
        self.site = site
        self.bar = bar
        self.atomic = atomic
        self.state = -1
        self.memo: dict[Any, int] | None = None


State = tuple[
    Event | None, tuple[Event, ...]
]  # last write (None: the host's), reads since that are still relevant


class BarrierOrder:
    """An mbarrier as the race detector sees it.

    Attributes:
        cta, offset: CTA rank in the cluster and byte offset of the object.
        col: its clock column; its time is ``completed``, the number of completed phases.
        pending: clock that the arrivals so far have released (cumulative over phases).
        history: clock that a wait for completed phase ``n`` acquires, the most recent phases only.
    """

    __slots__ = (
        "arrive_sites",
        "arriver",
        "async_visible",
        "cl",
        "col",
        "completed",
        "cta",
        "fence_epoch",
        "foreign",
        "history",
        "init_epoch",
        "init_site",
        "init_warp",
        "offset",
        "pending",
        "visible",
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
        self.foreign: dict[Any, Clock] | None = None
        self.arriver = -1  # the only warp that arrived in this phase, -1 none, -2 several
        self.arrive_sites: dict[int, int] = {}


class Queue:
    """Operations of one thread or warp that complete in order, and their groups.

    Attributes:
        col: clock column of their completion; ``col2``: of the second completion (bulk stores: writes made).
        issued: operations so far. groups: ``issued`` at each commit_group.
        committed: operations waited for (ld, st) or covered by a tcgen05.commit (mma) so far.
        commits: (operations covered, barrier, phase) of the latest commits. site: of the latest operation.
    """

    __slots__ = ("col", "col2", "commits", "committed", "groups", "issued", "site")

    def __init__(self, col: int, col2: int = -1) -> None:
        self.col = col
        self.col2 = col2
        self.issued = 0
        self.groups: list[int] = []
        self.committed = 0
        self.commits: deque[tuple[int, BarrierOrder, int]] = deque(maxlen=64)
        self.site = 0


def join(into: Clock, other: Clock) -> None:
    """``into = max(into, other)`` in place.

    ``other`` may be older and have fewer columns (the rest is zero).
    """
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
