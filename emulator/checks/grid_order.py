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
        self._at_signal: dict[int, Clock] = {}  # what warps knew of their cluster at their last strong access

    def knows(self, event: Event, w: int) -> bool:
        """Whether an event of another cluster happens before what warp ``w`` does now."""
        clock = self._known[w].get(event.cl)
        return clock is not None and _covers(clock, event)

    def gap(self, event: Event, w: int) -> str:
        """What is missing between an event of another cluster and warp ``w``, as far as strong accesses show it.

        "signal": there are none on one of the sides; "meet before": who signalled had not met who wrote; "release": it had,
        but its signal released nothing; "acquire": nobody of this cluster acquired what was released; "meet after": somebody
        did, and has not met ``w``.
        """
        theirs = event.cl.grid
        if not theirs.active or not self.active:
            return "signal"
        released = [clocks.get(event.cl) for clocks in self.order.detector.locations.values()]
        if any(clock is not None and _covers(clock, event) for clock in released):
            acquired = any(self.knows(event, other) for other in range(len(self._known)))
            return "meet after" if acquired else "acquire"
        return (
            "release" if any(_covers(clock, event) for clock in theirs._at_signal.values()) else "meet before"
        )

    def access(self, w: int, key: Hashable, order: str) -> None:
        """A strong access of warp ``w`` to a location.

        ``order``: "acquire", "release", "acq_rel" or "relaxed". Relaxed accesses synchronize together with
        fence.acq_rel (PTX ISA, "Release and acquire patterns").
        """
        if order not in ("acquire", "release", "acq_rel", "relaxed"):
            raise ValueError(f"memory order {order!r}")
        self.active = True
        self._at_signal[w] = self.order.rows[w].copy()
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


def _covers(clock: Clock, event: Event) -> bool:
    return event.col < clock.shape[1] and bool(event.epoch <= clock.item(ORDER, event.col))


def merge(into: Clocks, other: Clocks) -> None:
    """Join clocks cluster by cluster; ``other`` is not aliased."""
    for cluster, clock in other.items():
        mine = into.get(cluster)
        into[cluster] = clock.copy() if mine is None else joined(mine, clock)
