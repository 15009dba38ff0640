"""The check itself: one access against what the shadow memory remembers.

An access selects granules of a shadow. Their states are read in one gather; the few distinct ones are checked
and replaced one by one (:meth:`ConflictChecker.step`); one scatter stores the new states.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulator.checks.events import PROXY_GMEM, PROXY_SMEM, TCGEN05, Event, kind_of
from emulator.checks.race_reports import Conflict
from emulator.checks.shadow import Chunks, Lanes, Region, Shadow, Span, Strided, TmemBlock

if TYPE_CHECKING:
    from emulator.checks.happens_before import ClusterOrder

Address = int | npt.NDArray[Any]

_PLANES = {"smem": PROXY_SMEM, "gmem": PROXY_GMEM, "tmem": TCGEN05}
_BARRIER = kind_of("mbarrier.init", "generic", "program")  # owner of the bytes of an mbarrier
_BYTES_COMPARED = 1 << 15  # up to here, comparing bytes is the fastest test for "all equal"
_RUNS = 24  # runs of equal states that are handled one by one
_TABLE = 1 << 18  # distinct states are found with a table up to this range, by sorting beyond


class ConflictChecker:
    """Checks the accesses of one cluster against its shadows and those of global memory."""

    def __init__(self, order: ClusterOrder) -> None:
        self.order = order
        self.detector = order.detector
        self._problems: list[tuple[str, Event, Event, int]] = []
        self._plane = PROXY_SMEM  # the fences that matter for the space being accessed
        self._write = False
        self._update = False  # a write that also reads (an accumulating MMA)

    # ---------------------------------------- what is touched

    def region(self, shadow: Shadow, region: Region, event: Event, write: bool, update: bool = False) -> None:
        """One event reads or writes a region."""
        if isinstance(region, Span):
            self.view(shadow, shadow.span(region.start, region.stop), event, write, update)
        elif isinstance(region, Chunks):
            log2 = max(0, (region.width >> shadow.shift).bit_length() - 1)
            self._rows(shadow, region.rows(shadow.shift + log2), log2, event, write, update)
        elif isinstance(region, TmemBlock):
            self.view(shadow, shadow.block(region), event, write, update)
        else:
            box = shadow.strided(region)
            if box is None:
                self._rows(shadow, _granules(region, shadow), 0, event, write, update)
            else:
                self.view(shadow, box, event, write, update)

    def lanes(
        self,
        shadow: Shadow,
        addr: Address,
        nbytes: int,
        lanes: Lanes,
        events: list[Event],
        write: bool,
        site: int,
    ) -> None:
        """One vector access: ``events[lanes.slot[i]]`` touches ``nbytes`` bytes at ``addr[i]``."""
        if not isinstance(addr, np.ndarray) or addr.ndim == 0:
            first, last = int(addr) >> shadow.shift, (int(addr) + nbytes - 1) >> shadow.shift
            view = shadow.ids[first : last + 1]
            for event in events:
                if event.site != site:
                    event.note(site, shadow, np.arange(first, last + 1), 0)
                self.view(shadow, view, event, write, False, site)
            return
        log2 = (nbytes >> shadow.shift).bit_length() - 1 if nbytes > shadow.granule else 0
        rows = addr >> (shadow.shift + log2)
        for event in events:
            if event.site != site:
                event.note(site, shadow, rows, log2)
        if len(events) == 1:
            self._rows(shadow, rows, log2, events[0], write, False, lanes, site)
            return
        self._several_warps(shadow, rows, log2, lanes, events, write, site)

    def _several_warps(
        self,
        shadow: Shadow,
        rows: npt.NDArray[Any],
        log2: int,
        lanes: Lanes,
        events: list[Event],
        write: bool,
        site: int,
    ) -> None:
        self._plane, self._write, self._update = _PLANES[shadow.kind], write, False
        view = shadow.rows_view(log2)
        taken = view.take(rows) if log2 < 3 else view.take(rows, axis=0)
        raw = taken.tobytes()
        out: npt.NDArray[Any]
        if raw[4:] == raw[:-4]:
            state = int.from_bytes(raw[:4], "little")
            new = np.array([self.step(state, e) for e in events], np.int32)
            if lanes.full:
                out = new.repeat(32 << log2)
            else:
                out = new[lanes.slot]
                out = out.repeat(1 << log2) if log2 else out
        else:
            out = self._step_warps(raw, lanes, events, log2)
        out = out.view(view.dtype) if log2 < 3 else out.reshape(-1, 1 << log2)
        view[rows] = out
        again = view.take(rows) if log2 < 3 else view.take(rows, axis=0)
        if again.tobytes() != out.tobytes():
            # Lanes of different warps share a granule: undo, then one warp after the other.
            self._problems.clear()
            view[rows] = taken
            for j, event in enumerate(events):
                mine = np.flatnonzero(lanes.slot == j)
                self._rows(shadow, rows[mine], log2, event, write, False, lanes.select(mine), site)
        elif self._problems:
            self._report_rows(shadow, rows, log2, taken, lanes, site)

    def _step_warps(self, raw: bytes, lanes: Lanes, events: list[Event], log2: int) -> npt.NDArray[np.int32]:
        """New ids, flat over (lanes, granules), where the lanes see different states ``raw``."""
        count = len(events)
        ids = np.frombuffer(raw, np.int32)
        if lanes.full:
            # Often every warp sees one state of its own.
            size = len(raw) // count
            parts = [raw[i : i + size] for i in range(0, len(raw), size)]
            if all(part[4:] == part[:-4] for part in parts):
                states = [int.from_bytes(part[:4], "little") for part in parts]
                new = [self.step(state, event) for state, event in zip(states, events, strict=True)]
                return np.array(new, np.int32).repeat(size // 4)
        slot = lanes.slot.repeat(1 << log2) if log2 else lanes.slot
        keys = ids.astype(np.intp) * count + slot

        def one(key: int) -> int:
            state, j = divmod(key, count)
            return self.step(state, events[j])

        return _mapped(keys, one)

    def _rows(
        self,
        shadow: Shadow,
        rows: npt.NDArray[Any],
        log2: int,
        event: Event,
        write: bool,
        update: bool = False,
        lanes: Lanes | None = None,
        site: int = -1,
    ) -> None:
        """One event touches the given rows of ``2**log2`` granules."""
        self._plane, self._write, self._update = _PLANES[shadow.kind], write, update
        view = shadow.rows_view(log2)
        taken = view.take(rows) if log2 < 3 else view.take(rows, axis=0)
        raw = taken.tobytes()
        if raw[4:] == raw[:-4]:
            state = int.from_bytes(raw[:4], "little")
            new = self.step(state, event)
            if new != state:
                shadow.fill_rows(view, rows, log2, new)
        else:
            ids = np.frombuffer(raw, np.int32)
            if write and not event.atomic:
                for state in _distinct(ids):
                    new = self.step(state, event)
                shadow.fill_rows(view, rows, log2, new)
            else:
                out = _mapped(ids, lambda state: self.step(state, event))
                view[rows] = out.view(view.dtype) if log2 < 3 else out.reshape(-1, 1 << log2)
        if self._problems:
            self._report_rows(shadow, rows, log2, taken, lanes, event.site if site < 0 else site)

    def view(
        self,
        shadow: Shadow,
        view: npt.NDArray[np.int32],
        event: Event,
        write: bool,
        update: bool = False,
        site: int = -1,
    ) -> None:
        """One event touches every granule of a view of the shadow's ids."""
        size = view.size
        if size == 0:
            return
        self._plane, self._write, self._update = _PLANES[shadow.kind], write, update
        state = view.item(0)
        if size == 1:
            uniform = True
        elif size <= _BYTES_COMPARED:
            raw = view.tobytes()
            uniform = raw[4:] == raw[:-4]
        else:
            uniform = bool((view == state).all())
        if uniform:
            new = self.step(state, event)
            if self._problems:
                self._report_view(shadow, view, None, event.site if site < 0 else site)
            if new != state:
                view[...] = new
            return
        ids = view.reshape(-1)
        if write and not event.atomic:
            for state in _distinct(ids):
                new = self.step(state, event)
            if self._problems:
                self._report_view(shadow, view, ids, event.site if site < 0 else site)
            view[...] = new
            return
        out = _mapped(ids, lambda state: self.step(state, event))
        if self._problems:
            self._report_view(shadow, view, ids, event.site if site < 0 else site)
        view[...] = out.reshape(view.shape)

    def quarters(
        self, shadow: Shadow, block: npt.NDArray[np.int32], events: list[Event], write: bool
    ) -> None:
        """Event ``i`` touches ``block[i]``, its TMEM lane quarter: tested as one when its state is one."""
        raw = block.tobytes()
        if raw[4:] == raw[:-4]:
            self._plane, self._write, self._update = TCGEN05, write, False
            state = block.item(0)
            new = [self.step(state, event) for event in events]
            if not self._problems:
                block[...] = np.array(new, np.int32)[:, None, None]
                return
            self._problems.clear()
        for view, event in zip(block, events, strict=True):
            self.view(shadow, view, event, write)

    # ---------------------------------------- one state

    def knows(self, other: Event, event: Event) -> bool:
        """Whether ``other`` happens before ``event``, which is happening now."""
        if other.cl is self.order:
            return other.epoch <= self.order.now[event.w].item(other.col) or other.col == event.fifo
        return self.order.grid.knows(other, event.w)

    def step(self, state: int, event: Event) -> int:
        """Check one access against one state; the state after it. Problems are collected."""
        last, others = self.detector.states[state]
        if self._write:
            return self._step_write(state, last, others, event)
        if last is not None and last is not event:
            if last is self.detector.unwritten:
                self._problems.append(("unwritten", last, event, state))
            elif not self.knows(last, event):
                if not (last.atomic and event.atomic):
                    self._problems.append(("write-read", last, event, state))
            elif self._plane == TCGEN05:
                if last.w != event.w:
                    self._check_tcgen05_fence(last, event, state)
            elif event.kind.proxy == "async" and last.kind.proxy == "generic":
                self._check_proxy(last, event, state)
        memo = event.memo
        if memo is None:
            memo = event.memo = {}
        new = memo.get(state)
        if new is None:
            kept = []
            for other in others:
                if other is event:
                    memo[state] = state
                    return state
                if not self.knows(other, event):
                    if other.writes and not event.atomic:
                        self._problems.append(("write-read", other, event, state))
                    kept.append(other)
            new = memo[state] = self._read_state(last, (*kept, event), memo)
        return new

    def _step_write(self, state: int, last: Event | None, others: tuple[Event, ...], event: Event) -> int:
        unordered_read = False
        for other in others:
            if other is event:
                continue
            if not self.knows(other, event):
                if not (other.atomic and event.atomic):
                    relation = "write-write" if other.writes else "read-write"
                    if last is self.detector.unwritten and not other.writes:
                        relation = "too-early"  # it has read what is written only now
                    self._problems.append((relation, other, event, state))
                    unordered_read = True
            elif self._plane == TCGEN05 and other.w != event.w:
                self._check_tcgen05_fence(other, event, state)
        if last is not None and last is not event:
            if last is self.detector.unwritten:
                if self._update:
                    self._problems.append(("unwritten", last, event, state))
            elif last.kind is _BARRIER:
                self._problems.append(("barrier", last, event, state))
            elif not self.knows(last, event):
                # An unordered reader of the same bytes tells the story better than the write it read.
                if not unordered_read and not (last.atomic and event.atomic):
                    self._problems.append(("write-write", last, event, state))
            elif self._plane == TCGEN05 and last.w != event.w:
                self._check_tcgen05_fence(last, event, state)
            if event.atomic and last.atomic:
                return self._atomic_state(event, last, others)
        return event.state if event.state >= 0 else self._write_state(event)

    def barrier_state(self, w: int, epoch: int, site: int) -> int:
        """The state of bytes that hold an mbarrier."""
        return self._write_state(Event(self.order, w, epoch, w, epoch, _BARRIER, site))

    def _write_state(self, event: Event) -> int:
        states = self.detector.states
        event.state = len(states)
        states.append((event, ()))
        return event.state

    def _read_state(self, last: Event | None, readers: tuple[Event, ...], memo: dict[Any, int]) -> int:
        key = (last, readers)
        new = memo.get(key)
        if new is None:
            states = self.detector.states
            new = memo[key] = len(states)
            states.append((last, readers))
        return new

    def _atomic_state(self, event: Event, last: Event, others: tuple[Event, ...]) -> int:
        """An atomic on top of unordered atomics: all of them stay on record for later plain accesses."""
        kept = tuple(e for e in (*others, last) if e.writes and e is not event and not self.knows(e, event))
        if not kept:
            return event.state if event.state >= 0 else self._write_state(event)
        if event.memo is None:
            event.memo = {}
        return self._read_state(event, kept[-8:], event.memo)

    def _check_proxy(self, last: Event, event: Event, state: int) -> None:
        """An async-proxy read of generic-proxy writes: is a fence.proxy.async on the path between them?"""
        order = self.order
        if last.cl is not order:
            return
        if order.rows[event.w].item(self._plane, last.col) < last.epoch:
            if not self._fenced_by_its_lanes(last, event):
                self._problems.append(("proxy", last, event, state))
            return
        if last.w == event.w or last.kind.via != "program":
            return
        fences = order.fences[last.w]
        at = bisect_left(fences, last.wepoch)
        if at == len(fences) or order.now[event.w].item(last.w) <= fences[at]:
            self._problems.append(("proxy-other", last, event, state))

    def _fenced_by_its_lanes(self, last: Event, event: Event) -> bool:
        """Whether the lanes that wrote ran fence.proxy.async, though other lanes of their warp did not."""
        known = self.order.now[event.w].item(last.w)
        return any(
            last.wepoch <= epoch and epoch < known and not last.mask & ~mask
            for epoch, mask in self.order.partial_fences[last.w]
        )

    def _check_tcgen05_fence(self, last: Event, event: Event, state: int) -> None:
        """tcgen05 operations of two threads, ordered by a thread synchronization, want the tcgen05 fences."""
        order = self.order
        if last.cl is not order or last.kind.via not in ("mma", "ld", "st"):
            return
        after = order.after_fence[event.w]
        if after is not None and last.col < len(after) and last.epoch <= after.item(last.col):
            return
        before = order.rows[event.w].item(TCGEN05, last.col) < last.epoch
        self._problems.append(("fence-before" if before else "fence-after", last, event, state))

    # ---------------------------------------- from problems to findings

    def _report_rows(
        self,
        shadow: Shadow,
        rows: npt.NDArray[Any],
        log2: int,
        taken: npt.NDArray[Any],
        lanes: Lanes | None,
        site: int,
    ) -> None:
        """``taken``: what the rows held before the access."""
        problems, self._problems = self._problems, []
        reporter = self.detector.reporter
        for relation, earlier, later, state in problems:
            if not reporter.wants(relation, earlier, later, site, shadow.kind):
                continue
            hits = np.flatnonzero(taken.reshape(-1).view(np.int32) == state)
            granules = (rows.reshape(-1)[hits >> log2] << log2) + (hits & ((1 << log2) - 1))
            hit_lanes: tuple[int, ...] = ()
            if lanes is not None and lanes.n > 1:
                where = hits >> log2
                mine = np.array(lanes.warps)[lanes.slot[where]] == later.w
                hit_lanes = tuple(sorted(set(lanes.lane[where[mine]].tolist())))
                granules = granules[mine]
            first, count = int(granules.min()), len(np.unique(granules))
            self._conflict(relation, earlier, later, site, shadow, first, count, hit_lanes)

    def _report_view(
        self, shadow: Shadow, view: npt.NDArray[np.int32], ids: npt.NDArray[np.int32] | None, site: int
    ) -> None:
        """``ids``: what the view held before the access, None when it was one state everywhere."""
        problems, self._problems = self._problems, []
        for relation, earlier, later, state in problems:
            if not self.detector.reporter.wants(relation, earlier, later, site, shadow.kind):
                continue
            hits = np.arange(view.size) if ids is None else np.flatnonzero(ids == state)
            position = np.unravel_index(int(hits[0]), view.shape)
            offset = sum(int(i) * stride for i, stride in zip(position, view.strides, strict=True))
            base = view.__array_interface__["data"][0] - shadow.ids.__array_interface__["data"][0]
            self._conflict(relation, earlier, later, site, shadow, (base + offset) // 4, len(hits), ())

    def _conflict(
        self,
        relation: str,
        earlier: Event,
        later: Event,
        site: int,
        shadow: Shadow,
        granule: int,
        count: int,
        lanes: tuple[int, ...],
    ) -> None:
        earlier_site = earlier.site_at(shadow, granule)
        if relation == "too-early":
            relation, earlier, later, earlier_site, site = "write-read", later, earlier, site, earlier_site
            lanes = ()
        self.detector.reporter.conflict(
            Conflict(self.order, relation, earlier, later, earlier_site, site, shadow, granule, count, lanes)
        )


def _distinct(ids: npt.NDArray[np.int32]) -> list[int]:
    """The distinct values, in no particular order."""
    cuts = np.flatnonzero(ids[1:] != ids[:-1])
    if len(cuts) <= _RUNS:
        return list({ids.item(0), *ids[cuts + 1].tolist()})
    low = int(ids.min())
    span = int(ids.max()) - low + 1
    if span > _TABLE:
        return [int(i) for i in np.unique(ids)]
    table = np.zeros(span, bool)
    table[np.subtract(ids, low, dtype=np.intp)] = True
    return [low + i for i in np.flatnonzero(table).tolist()]


def _mapped(keys: npt.NDArray[Any], new: Callable[[int], int]) -> npt.NDArray[np.int32]:
    """``new(key)`` of every key, called once per distinct key."""
    cuts = np.flatnonzero(keys[1:] != keys[:-1])
    if len(cuts) <= _RUNS:
        out = np.empty(len(keys), np.int32)
        table: dict[int, int] = {}
        start = 0
        for stop in [*(cuts + 1).tolist(), len(keys)]:
            key = keys.item(start)
            state = table.get(key)
            if state is None:
                state = table[key] = new(key)
            out[start:stop] = state
            start = stop
        return out
    low = int(keys.min())
    span = int(keys.max()) - low + 1
    if span > _TABLE:
        distinct, inverse = np.unique(keys, return_inverse=True)
        many: npt.NDArray[np.int32] = np.array([new(key) for key in distinct.tolist()], np.int32)
        return many[inverse.reshape(-1)]
    states = np.zeros(span, np.int32)
    offsets = np.subtract(keys, low, dtype=np.intp)
    states[offsets] = 1
    seen = np.flatnonzero(states)
    states[seen] = [new(low + i) for i in seen.tolist()]
    mapped: npt.NDArray[np.int32] = states.take(offsets)
    return mapped


def _granules(box: Strided, shadow: Shadow) -> npt.NDArray[np.intp]:
    """Granule indices a box touches, for boxes whose strides are no multiples of the granule."""
    starts = np.full((), box.start, np.intp)
    for extent, stride in zip(box.shape[:-1], box.strides[:-1], strict=True):
        starts = starts[..., None] + np.arange(extent, dtype=np.intp) * stride
    step = np.arange(0, box.shape[-1], shadow.granule, dtype=np.intp)
    last = np.full(1, box.shape[-1] - 1, dtype=np.intp)
    found: npt.NDArray[np.intp] = np.unique(
        (starts[..., None] + np.concatenate([step, last])) >> shadow.shift
    )
    return found
