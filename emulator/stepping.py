"""A run to step through: what the warps of one cluster, its barriers and its memories look like after each step.

A step is a warp that runs until it waits, or an asynchronous operation that completes. Recorded from the emulator's own scheduler
while a launch runs; of memory only what changed since the step before is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from emulator.machine.address import POOL_BASE
from emulator.machine.cta import Cta
from emulator.scheduler import AsyncOp, Machine, Strand

MOST_STEPS = 600
MOST_BYTES = 1_500_000  # of all steps as JSON
SHOWN = 8  # values of a buffer or a register, from its start
LANE_QUARTERS = 4
_INTERNAL = re.compile(r"^(t|m|ln|cse_v|tmp|args$|.*_ptr|blockIdx|desc|v)(_?\d.*)?$")


class Stepper:
    """Records a launch; use with :func:`recording`.

    Attributes:
        cluster: linear number of the cluster that is recorded.
        steps: what happened, as plain data; `left_out` counts the steps beyond MOST_STEPS.
    """

    def __init__(self, cluster: int = 0) -> None:
        self.cluster = cluster
        self.steps: list[dict[str, Any]] = []
        self.left_out = 0
        self._bytes = 0
        self._barriers: dict[tuple[int, str], dict[str, Any]] = {}
        self._smem: dict[tuple[int, str], bytes] = {}
        self._tmem: dict[tuple[int, int], bytes] = {}
        self._strands: list[Strand] = []

    def stepped(self, machine: Machine, strand: Strand) -> None:
        """A strand ran until it blocked or ended."""
        if strand.cta.cluster.index != self.cluster:
            return
        if strand not in self._strands:
            self._strands.append(strand)
        warps = _spell(strand.threads.warps)
        what = (
            f"{warps} runs to its end" if strand.done else f"{warps} runs to {self._where(machine, strand)}"
        )
        self._add(machine, strand.cta, what, "warp", strand.threads.site, strand)

    def completed(self, machine: Machine, op: AsyncOp) -> None:
        """An asynchronous operation took effect."""
        clusters = [c for c in machine.clusters if c.index == self.cluster]
        own = (
            not isinstance(op.chain, tuple) or not clusters or op.chain[0] in (clusters[0], *clusters[0].ctas)
        )
        if clusters and own:
            self._add(machine, clusters[0].ctas[0], f"{op.what} completes", "async", op.site)

    def _where(self, machine: Machine, strand: Strand) -> str:
        wait = strand.wait
        site = getattr(wait, "site", strand.threads.site)
        place = machine.location(site)
        line = f"line {place.line}" if place else "the next wait"
        return f"{line}: waits for {_wait(wait)}" if wait is not None else line

    def _add(
        self, machine: Machine, cta: Cta, what: str, kind: str, site: int, moved: Strand | None = None
    ) -> None:
        if len(self.steps) >= MOST_STEPS or self._bytes > MOST_BYTES:
            self.left_out += 1
            return
        place = machine.location(site)
        file = place.file if place else ""
        ctas = cta.cluster.ctas
        step = {
            "what": f"CTA {cta.linear}: {what}" if len(ctas) > 1 else what,
            "kind": kind,
            "file": file,
            "line": place.line if place else 0,
            "moved": [moved.cta.linear, moved.threads.warps[0]] if moved is not None else None,
            "warps": [self._warp(machine, strand) for strand in self._strands],
            "registers": [] if moved is None or moved.done else _registers(moved),
            "barriers": list(self._barrier_changes(ctas)),
            "smem": [change for c in ctas for change in self._smem_changes(machine, c)],
            "tmem": [change for c in ctas for change in self._tmem_changes(c)],
        }
        self._bytes += len(json.dumps(step))
        self.steps.append(step)

    def _barrier_changes(self, ctas: list[Cta]) -> Iterator[dict[str, Any]]:
        for cta in ctas:
            for bar in cta.mbarriers.values():
                now, key = _barrier(bar), (cta.linear, bar.name)
                if self._barriers.get(key) != now:
                    self._barriers[key] = now
                    yield now

    def _warp(self, machine: Machine, strand: Strand) -> dict[str, Any]:
        wait, site = strand.wait, strand.threads.site
        place = machine.location(getattr(wait, "site", site))
        state = "done" if strand.done else "waits" if wait is not None and not wait.ready() else "can run"
        return {
            "cta": strand.cta.linear,
            "warps": list(strand.threads.warps),
            "state": state,
            "line": place.line if place else 0,
            "waits": _wait(wait) if wait is not None else "",
        }

    def _smem_changes(self, machine: Machine, cta: Cta) -> Iterator[dict[str, Any]]:
        if not cta.smem.size:
            return
        for buffer in machine.smem_names:
            content = cta.smem[POOL_BASE + buffer.start : POOL_BASE + buffer.stop].tobytes()
            key = (cta.linear, f"{buffer.name}@{buffer.start}")
            before = self._smem.get(key)
            if content == before:
                continue
            self._smem[key] = content
            now = np.frombuffer(content, np.uint8)
            old = np.full(now.size, 0xFF, np.uint8) if before is None else np.frombuffer(before, np.uint8)
            if before is None and (now == 0xFF).all():
                continue
            where = np.flatnonzero(now != old) * 64 // max(64, now.size) if now.size > 64 else np.array([0])
            yield {
                "cta": cta.linear,
                "name": buffer.name,
                "shape": list(buffer.shape),
                "dtype": buffer.dtype,
                "changed": int((now != old).sum()),
                "bytes": now.size,
                "blocks": sorted({int(b) for b in where}),
                "values": _values(content, buffer.dtype),
            }

    def _tmem_changes(self, cta: Cta) -> Iterator[dict[str, Any]]:
        if not cta.has_tmem:
            return
        for base, (columns, _, name) in cta.tmem.allocations.items():
            content = cta.tmem.cells[:, base : base + columns]
            raw, key = content.tobytes(), (cta.linear, base)
            before = self._tmem.get(key)
            if raw == before:
                continue
            self._tmem[key] = raw
            old = (
                np.full(content.shape, 0xFFFFFFFF, np.uint32)
                if before is None
                else np.frombuffer(before, np.uint32).reshape(content.shape)
            )
            quarters = (content != old).reshape(LANE_QUARTERS, 32, columns).any(axis=1)
            touched = [[int(c) for c in np.flatnonzero(q)] for q in quarters]
            yield {
                "cta": cta.linear,
                "name": name,
                "column": base,
                "columns": columns,
                "written": [[q[0], q[-1]] if q else [] for q in touched],
                "values": [f"{v:.4g}" for v in content[0].view(np.float32)[:SHOWN].tolist()],
            }


def _spell(warps: list[int]) -> str:
    if len(warps) == 1:
        return f"warp {warps[0]}"
    return f"warps {warps[0]} to {warps[-1]}"


def _wait(wait: Any) -> str:
    """What a warp waits for, in a learner's words."""
    bar = getattr(wait, "barrier", None)
    if wait.kind == "mbarrier.wait" and bar is not None:
        return f"mbarrier {bar.name}, parity {wait.parity}"
    if wait.kind == "bar.sync" and bar is not None:
        return "cta_sync" if bar.index == 0 else f"named barrier {bar.index}"
    return {"barrier.cluster.wait": "the other CTAs of the cluster", "spin": "memory that it polls"}.get(
        wait.kind, str(wait.kind)
    )


def _barrier(bar: Any) -> dict[str, Any]:
    return {
        "cta": bar.cta.linear,
        "name": bar.name,
        "parity": bar.parity,
        "phases": bar.generation,
        "pending": bar.pending,
        "expected": bar.expected,
        "bytes": bar.tx,
    }


def _values(content: bytes, dtype: str) -> list[str]:
    """The first values of a buffer as they lie in memory."""
    if dtype == "bfloat16":
        import ml_dtypes

        kind: Any = np.dtype(ml_dtypes.bfloat16)
    else:
        try:
            kind = np.dtype(dtype)
        except TypeError:
            kind = np.dtype(np.uint8)
    count = min(SHOWN, len(content) // kind.itemsize)
    values = np.frombuffer(content[: count * kind.itemsize], kind)
    return [
        f"{v:.4g}" if kind.kind not in "iu" else str(v)
        for v in values.astype(np.float64 if kind.kind not in "iu" else kind)
    ]


def _registers(strand: Strand) -> list[list[str]]:
    """[name, values of the first lanes] of the variables that the learner named; arrays in registers by their first values."""
    frame = getattr(strand.generator, "gi_frame", None)
    if frame is None:
        return []
    found: dict[str, list[str]] = {}
    floats: set[str] = set()
    for name, value in frame.f_locals.items():
        if _INTERNAL.match(name) or callable(value):
            continue
        shown = re.sub(r"_\d+$|_\d+_(float\d+|uint\d+|int\d+|bfloat16)$", "", name)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iufb":
            if shown in floats and value.dtype.kind != "f":
                continue  # the same registers, looked at as integers
            if value.dtype.kind == "f":
                floats.add(shown)
            found[shown] = [f"{float(v):.4g}" for v in value.reshape(-1)[:SHOWN].tolist()]
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**40:
            found[shown] = [f"{value:g}" if isinstance(value, float) else str(value)]
    return [[name, ", ".join(values)] for name, values in list(found.items())[:24]]


@contextmanager
def recording(stepper: Stepper) -> Iterator[Stepper]:
    """Every machine that runs meanwhile in this process tells the stepper what happens."""
    Machine.stepper = stepper
    try:
        yield stepper
    finally:
        Machine.stepper = None
