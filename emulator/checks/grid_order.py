"""Order between clusters of one launch: only strong accesses to global memory create it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from emulator.checks.events import ORDER, BarrierOrder, Clock, Event, join, joined

if TYPE_CHECKING:
    from emulator.checks.happens_before import ClusterOrder

Clocks = dict["ClusterOrder", Clock]  # by cluster: what is known of it


class GridOrder:
    """What the warps of one cluster know of other clusters, and their releases and acquires in global memory.

    Locations keep the joined clocks of everything released to them; reading one acquires all of it. Barriers
    inside the cluster pass the knowledge on. Costs nothing until the first strong access.
    """

    def __init__(self, order: ClusterOrder, warps: int) -> None:
        self.order = order
        self.active = False
        self._known: list[Clocks] = [{} for _ in range(warps)]
        self._release_fence: list[Clocks | None] = [None] * warps
        self._acquire_pending: list[Clocks] = [{} for _ in range(warps)]

    def knows(self, event: Event, w: int) -> bool:
        """Whether an event of another cluster happens before what warp ``w`` does now."""
        clock = self._known[w].get(event.cl)
        return (
            clock is not None and event.col < clock.shape[1] and event.epoch <= clock.item(ORDER, event.col)
        )

    def access(self, w: int, key: Hashable, order: str) -> None:
        """A strong access of warp ``w`` to a location.

        ``order``: "acquire", "release", "acq_rel" or "relaxed". Relaxed accesses synchronize together with
        fence.acq_rel (PTX ISA, "Release and acquire patterns").
        """
        if order not in ("acquire", "release", "acq_rel", "relaxed"):
            raise ValueError(f"memory order {order!r}")
        self.active = True
        location = self.order.detector.locations.setdefault(key, {})
        if order in ("acquire", "acq_rel"):
            self.learn(w, location)
        elif order == "relaxed":
            merge(self._acquire_pending[w], location)
        if order in ("release", "acq_rel"):
            merge(location, self._all(w))
        elif order == "relaxed":
            merge(location, self._release_fence[w] or {})

    def fence(self, w: int) -> None:
        """fence.acq_rel or stronger: later relaxed writes release, earlier relaxed reads have acquired."""
        if self._acquire_pending[w]:
            self.learn(w, self._acquire_pending[w])
            self._acquire_pending[w] = {}
        self._release_fence[w] = {cluster: clock.copy() for cluster, clock in self._all(w).items()}

    def learn(self, w: int, clocks: Clocks) -> None:
        """Warp ``w`` acquires clocks."""
        for cluster, clock in clocks.items():
            if cluster is self.order:
                join(self.order.rows[w], clock)
            else:
                merge(self._known[w], {cluster: clock})

    def to_barrier(self, w: int, bar: BarrierOrder) -> None:
        """A release to an mbarrier carries what is known of other clusters."""
        if self._known[w]:
            bar.foreign = bar.foreign or {}
            merge(bar.foreign, self._known[w])

    def exchange(self, warps: Iterable[int]) -> None:
        """A barrier among warps: each learns what any of them knew."""
        total: Clocks = {}
        for w in warps:
            merge(total, self._known[w])
        if total:
            for w in warps:
                self._known[w] = {cluster: clock.copy() for cluster, clock in total.items()}

    def _all(self, w: int) -> Clocks:
        return {self.order: self.order.rows[w], **self._known[w]}


def merge(into: Clocks, other: Clocks) -> None:
    """Join clocks cluster by cluster; ``other`` is not aliased."""
    for cluster, clock in other.items():
        mine = into.get(cluster)
        into[cluster] = clock.copy() if mine is None else joined(mine, clock)
