"""A bench for single instructions: real CTAs and memory, a scheduler that only queues."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import emulator.kernel  # noqa: F401 - registers every instruction and imports TVM without PyTorch
from emulator.instructions import REGISTRY, Mods
from emulator.machine.address import POOL_BASE, SHARED_TAG
from emulator.machine.cta import Cluster, Cta
from emulator.machine.memory import GlobalMemory
from emulator.threads import Threads

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def silent_floats():
    """As in a run: floating-point warnings are off."""
    with np.errstate(all="ignore"):
        yield


def table_entry(name: str) -> Any:
    from tvm.backend.cuda.ptx.table import TABLE

    return TABLE[name]


def mods(name: str, *tokens: str) -> Mods:
    """Modifiers of a PTX entry; omitted optional tokens may be left out."""
    from tvm.backend.cuda.ptx.table import mods as table_mods

    slots = table_entry(name).slots
    if len(tokens) != len(slots):
        rest, full = list(tokens), []
        for slot in slots:
            full.append(rest.pop(0) if rest and rest[0] in slot.choices else "")
        assert not rest, f"{name}: no place for {rest}"
        tokens = tuple(full)
    return Mods(tuple(tokens), dict(table_mods(table_entry(name), tokens)))


def op(name: str, *tokens: str) -> Any:
    """The operation of ``ptx.<name>`` with these modifiers."""
    return REGISTRY[f"tirx.ptx.{name}"].bind(mods(name, *tokens))


class Machine(SimpleNamespace):
    """What instructions ask of the scheduler: asynchronous work waits until the test completes it."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(
            counters={}, progress=0, smem_bytes=65536, static_smem=0, memory=GlobalMemory(), numerics="fast", reports=[], pending=[],
            idle_rounds=0, grid=(1, 1, 1), num_threads=128, num_warps=4, written={}, next_cluster=1, num_clusters=1, cancelled=set(),
            printed=[], ids=0, statistics=None, checker=None, schedule="eager", trace=None, tile_record=None, poison=None,
        )  # fmt: skip
        self.__dict__.update(fields)

    def count(self, name: str, n: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + n

    def report(self, code: str, strength: str, *rest: Any, **more: Any) -> None:
        self.reports.append((code, strength))

    def issue(self, chain: Any, complete: Any, what: str, site: int, payload: Any = None) -> None:
        self.pending.append((chain, complete))

    def complete_chain(self, chain: Any, keep: int = 0) -> None:
        mine = [p for p in self.pending if p[0] == chain]
        for entry in mine[: len(mine) - keep]:
            self.pending.remove(entry)
            entry[1]()

    def finish(self) -> None:
        while self.pending:
            self.pending.pop(0)[1]()

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    def print(self, text: str) -> None:
        self.printed.append(text)

    def name_of_shared(self, offset: int) -> str:
        return f"byte {offset - POOL_BASE}"

    def location(self, site: int) -> None:
        return None

    def cluster_origin(self, index: int) -> tuple[int, int, int]:
        return (index * len(self.cluster.ctas), 0, 0)


class Bench:
    """One cluster of CTAs with ``warps`` warps each; ``self.t`` are all threads of CTA 0 in lockstep."""

    def __init__(self, warps: int = 4, ctas: int = 1, **fields: Any) -> None:
        self.machine = Machine(num_warps=warps, num_threads=32 * warps, **fields)
        self.cluster = self.machine.cluster = Cluster(self.machine, (ctas, 1, 1), 0)
        for rank in range(ctas):
            self.cluster.ctas.append(Cta(self.cluster, rank, (rank, 0, 0), rank, warps))
        self.cta = self.cluster.ctas[0]
        self.t = Threads(self.cta, list(range(warps)))

    def threads(self, *warps: int, mask: Any = None, lane: int | None = None, rank: int = 0) -> Threads:
        t = Threads(self.cluster.ctas[rank], list(warps))
        if lane is not None:
            return t.single(lane)
        return t if mask is None else t.masked(np.asarray(mask))

    def shared(self, offset: Any, rank: int = 0) -> Any:
        """Window address of a byte of the dynamic pool."""
        return (rank << 24) + POOL_BASE + offset

    def pointer(self, offset: int, rank: int = 0) -> int:
        return SHARED_TAG | self.shared(offset, rank)

    def smem(self, dtype: Any, rank: int = 0) -> np.ndarray:
        return self.cluster.ctas[rank].smem[POOL_BASE : POOL_BASE + 65536].view(dtype)

    def barrier(self, offset: int, count: int, rank: int = 0) -> Any:
        op_ = REGISTRY["tirx.ptx.mbarrier_init"].bind(Mods(("init", "shared", "b64")))
        op_(self.threads(0, lane=0, rank=rank), self.shared(offset, rank), count)
        return self.cluster.ctas[rank].mbarriers[POOL_BASE + offset]

    def run(self, generator: Any) -> tuple[Any, list[Any]]:
        """Drive a blocking instruction to its end: (result, what it waited for)."""
        waits = []
        while True:
            try:
                waits.append(next(generator))
            except StopIteration as stop:
                return stop.value, waits
            if len(waits) > 1000:
                raise AssertionError("the instruction waits for ever")


@pytest.fixture
def bench() -> type[Bench]:
    return Bench


def h200(name: str) -> Any:
    """Recorded results of an H200 (see h200/README.md)."""
    path = HERE / "h200" / name
    return json.loads(path.read_text()) if path.suffix == ".json" else np.load(path)
