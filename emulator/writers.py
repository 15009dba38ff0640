"""Who wrote which part of a tensor: for every warp of the launch the boxes that it wrote last.

Read off the race detector's shadow when the launch is over, so it costs nothing while it runs. What an asynchronous copy
wrote belongs to the warp that issued it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from emulator.checks.happens_before import RaceDetector

MOST_GRANULES = 1 << 20  # sorting more would be felt


@dataclass(frozen=True)
class Writer:
    """A warp and the smallest box around what it wrote between two synchronizations, in a tensor of shape (rows, columns).

    Attributes:
        cta, warp: linear index of the CTA, and the warp in it.
        instruction: e.g. ``st.global`` or ``cp.async.bulk.tensor``.
        rows, columns: first and last index.
    """

    cta: int
    warp: int
    instruction: str
    rows: tuple[int, int]
    columns: tuple[int, int]


def writers(checker: RaceDetector, buffer: int, array: Any) -> list[Writer]:
    """The writers of a C-contiguous tensor, in order of CTA and warp, one for each of a warp's boxes; none where the detector does not follow the tensor.

    Tensors of more than two dimensions count as matrices of their last one.
    """
    shadow = checker.buffers[buffer]
    if shadow is None or array.ndim == 0 or shadow.ids.size > MOST_GRANULES:
        return []
    count = -(-array.nbytes // shadow.granule)
    order = np.argsort(shadow.ids[:count], kind="stable")
    ids = shadow.ids[:count][order]
    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    width = array.shape[-1]
    boxes: dict[Key, list[Box]] = {}
    for number, state in enumerate(ids[starts].tolist()):
        event = checker.states[state][0]
        if state < 2 or event is None:
            continue
        stop = starts[number + 1] if number + 1 < starts.size else ids.size
        first = order[starts[number] : stop].astype(np.int64) * shadow.granule // array.itemsize
        last = np.minimum(first + max(1, shadow.granule // array.itemsize), array.size) - 1
        columns = np.concatenate((first % width, last % width))
        rank, warp = divmod(event.w, event.cl.warps_per_cta)
        box = (int(first.min()) // width, int(last.max()) // width, int(columns.min()), int(columns.max()))
        boxes.setdefault((event.cl.cta_ids[rank], warp, event.kind.name), []).append(box)
    return [
        Writer(*key, (box[0], box[1]), (box[2], box[3]))
        for key in sorted(boxes)
        for box in _joined(_joined(boxes[key], 0), 2)
    ]


Key = tuple[int, int, str]  # CTA, warp, instruction
Box = tuple[int, int, int, int]  # first and last row, first and last column


def _joined(boxes: list[Box], same: int) -> list[Box]:
    """Boxes that touch are one box, where they have the same rows (same = 0) or the same columns (same = 2)."""
    other = 2 - same
    out: list[Box] = []
    for box in sorted(set(boxes), key=lambda b: (b[same : same + 2], b[other])):
        last = out[-1] if out else None
        if last and last[same : same + 2] == box[same : same + 2] and box[other] <= last[other + 1] + 1:
            low, high = last[other], max(last[other + 1], box[other + 1])
            out[-1] = (*box[:2], low, high) if same == 0 else (low, high, *box[2:])
        else:
            out.append(box)
    return out
