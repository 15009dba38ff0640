"""Which TMA loads of a grid find their bytes in L2: the boxes that the clusters load, in the order in which they do.

Clusters that run side by side are taken to go at the same pace: their k-th loads happen together. A load of a box that
nobody asked for before comes from DRAM, and so does, at the same time and without moving more bytes, a load of a box that somebody
else has just asked for. L2 keeps the boxes that were used last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from emulator.timing.record import ClusterTrace, Event

JUST = 2  # loads of a strand between the first request for a box and its arrival in L2, about


@dataclass
class Replay:
    """What a replay found.

    Attributes:
        loaded, from_dram: bytes.
        late: cluster -> per strand that loads, per load: whether it waits for DRAM.
    """

    loaded: int
    from_dram: int
    late: dict[int, list[list[bool]]]


def replay(clusters: dict[int, ClusterTrace], side_by_side: int, capacity: float) -> Replay:
    """Go through the loads of all clusters; ``side_by_side`` of them run at a time, in the order of their numbers."""
    longest = max((len(s.boxes) for c in clusters.values() for s in c.strands), default=0)
    steps: dict[int, list[tuple[int, int, int]]] = {}
    late: dict[int, list[list[bool]]] = {}
    strands = {}
    for index, cluster in clusters.items():
        strands[index] = [(s.boxes, _sizes(s.events)) for s in cluster.strands if s.boxes]
        late[index] = [[False] * len(boxes) for boxes, _ in strands[index]]
        for j, (boxes, _) in enumerate(strands[index]):
            first = index // side_by_side * longest
            for k in range(len(boxes)):
                steps.setdefault(first + k, []).append((index, j, k))
    kept: OrderedDict[tuple[int, Hashable], tuple[int, int]] = OrderedDict()  # box -> when it came, bytes
    full = loaded = from_dram = 0
    for now in sorted(steps):
        for index, j, k in steps[now]:
            boxes, sizes = strands[index][j]
            box, nbytes = boxes[k], sizes[k]
            loaded += nbytes
            found = kept.get(box)
            if found is None:
                from_dram += nbytes
                full += nbytes
                kept[box] = (now, nbytes)
                late[index][j][k] = True
                while full > capacity:
                    full -= kept.popitem(last=False)[1][1]
            else:
                kept.move_to_end(box)
                late[index][j][k] = now - found[0] <= JUST
    return Replay(loaded, from_dram, late)


def _sizes(events: list[Event]) -> list[int]:
    return [e[2] for e in events if e[0] == "load"]


__all__ = ["Replay", "replay"]
