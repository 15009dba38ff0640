"""A CTA and a cluster of CTAs: shared memory, tensor memory and barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.errors import DeviceFault
from emulator.machine.address import OFFSET_MASK, POOL_BASE, RANK_SHIFT, SHARED_TAG, STATIC_BASE, WINDOW_BYTES
from emulator.machine.mbarrier import Mbarrier
from emulator.observables import LoadsBesideMma

if TYPE_CHECKING:
    from emulator.scheduler import Machine

POISON_BYTE = 0xFF  # NaN in every float format, -1 as an integer
TMEM_LANES, TMEM_COLUMNS = 128, 512


class Twice:
    """A round of a named barrier in which warps arrived twice.

    Attributes:
        count: threads that the barrier waited for. warps: who came twice. site: where, the second time.
        sites: where the barrier was used before. present: warps that took part in the round.
    """

    __slots__ = ("count", "warps", "site", "sites", "present")

    def __init__(self, count: int, warps: tuple[int, ...], site: int, sites: tuple[int, ...]) -> None:
        self.count = count
        self.warps = warps
        self.site = site
        self.sites = sites
        self.present: set[int] = set()


class NamedBarrier:
    """One of the sixteen hardware barriers of a CTA (``bar.sync``/``bar.arrive``)."""

    __slots__ = (
        "again", "arrived", "doubtful", "expected", "generation", "index", "present", "site", "users", "warps",
    )  # fmt: skip

    def __init__(self, index: int) -> None:
        self.index = index
        self.expected: int | None = None
        self.arrived = 0
        self.generation = 0
        self.warps: list[int] = []
        self.site = -1
        self.present: set[int] = set()  # warps that have arrived in this round
        self.users: dict[int, set[int]] = {}  # statement -> warps that ever arrived there
        self.again: Twice | None = None  # this round
        self.doubtful: Twice | None = None  # an earlier round: wrong when a warp comes that was not there


class TensorMemory:
    """128 lanes x 512 columns of 32-bit cells and their allocation (PTX ISA, "Tensor Memory").

    ``cells[lane, column]`` is uint32; unwritten cells hold poison.
    """

    def __init__(self) -> None:
        self.cells = np.full((TMEM_LANES, TMEM_COLUMNS), 0xFFFFFFFF, dtype=np.uint32)
        self.f32 = self.cells.view(np.float32)
        self.allocations: dict[
            int, tuple[int, int, str]
        ] = {}  # base -> (columns, site, name of the SMEM slot)
        self.relinquished = False
        self.freed: list[tuple[int, int, int]] = []  # (base, columns, site of tcgen05.dealloc)

    def find(self, columns: int) -> int | None:
        """First free base for ``columns`` (aligned to its size), None when it does not fit now."""
        for base in range(0, TMEM_COLUMNS - columns + 1, columns):
            if all(base + columns <= b or b + n <= base for b, (n, _, _) in self.allocations.items()):
                return base
        return None

    def allocated(self, first: int, last: int) -> bool:
        """Whether columns [first, last) lie inside allocations."""
        column = first
        while column < last:
            for base, (n, _, _) in self.allocations.items():
                if base <= column < base + n:
                    column = base + n
                    break
            else:
                return False
        return True


class Cta:
    """One CTA.

    Attributes:
        rank: rank in its cluster; block_idx: (x, y, z) in CTAs, vectors in a slab; linear: linear CTA index in the grid.
        smem: the 256 KiB shared window as bytes.
    """

    def __init__(
        self, cluster: Cluster, rank: int, block_idx: tuple[Any, Any, Any], linear: int, warps: int
    ) -> None:
        self.cluster = cluster
        self.machine: Machine = cluster.machine
        self.rank: int = rank
        self.block_idx: tuple[Any, Any, Any] = block_idx
        self.linear: int = linear
        self.num_warps: int = warps
        self.live_warps = warps
        self.shared_tag = SHARED_TAG | (rank << RANK_SHIFT)
        self.smem = np.full(WINDOW_BYTES, POISON_BYTE, dtype=np.uint8)
        if self.machine.poison is not None:
            self.smem.view(np.uint32)[...] = self.machine.poison
        self.views: dict[np.dtype, np.ndarray] = {}
        self.dyn_bytes = self.machine.smem_bytes
        self.static_bytes = self.machine.static_smem
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named: dict[int, NamedBarrier] = {}
        self._tmem: TensorMemory | None = None
        self.exited_warps: set[int] = set()
        self.bulk: dict[int, Any] = {}  # per thread: its bulk groups
        self.cp_async: dict[int, Any] = {}  # per warp: its cp.async groups
        self.wgmma: dict[int, Any] = {}  # per warp: its wgmma groups
        self.registers: dict[int, int] = {}  # per warp: registers per thread that setmaxnreg gave it
        self.votes: dict[
            tuple[int, int], list[int]
        ] = {}  # per (barrier, generation): (true, all) threads of bar.red

    @property
    def tmem(self) -> TensorMemory:
        if self._tmem is None:
            self._tmem = TensorMemory()
        return self._tmem

    @property
    def has_tmem(self) -> bool:
        return self._tmem is not None

    @property
    def cluster_idx(self) -> tuple[int, int, int]:
        return self.cluster.rank_to_idx(self.rank)

    def view(self, dtype: np.dtype) -> np.ndarray:
        v = self.views.get(dtype)
        if v is None:
            v = self.views[dtype] = self.smem.view(dtype)
        return v

    def check_shared(self, lo: int, hi: int, what: str) -> None:
        """Bytes [lo, hi) of the window must lie in the dynamic or the static allocation."""
        if POOL_BASE <= lo and hi <= POOL_BASE + self.dyn_bytes:
            return
        if self.static_bytes and STATIC_BASE <= lo and hi <= STATIC_BASE + self.static_bytes:
            return
        raise DeviceFault(
            "smem.out-of-bounds",
            f"{what} of shared-memory bytes {lo - POOL_BASE} to {hi - POOL_BASE - 1}, but the CTA allocated {self.dyn_bytes}",
            "check the index; call pool.commit() after the last pool.alloc()",
        )

    def name_of_shared(self, offset: int) -> str:
        """``A_smem[byte 128]``-like name of a window offset."""
        return self.machine.name_of_shared(offset)

    def named_barrier(self, index: int) -> NamedBarrier:
        b = self.named.get(index)
        if b is None:
            b = self.named[index] = NamedBarrier(index)
        return b


class Cluster:
    """CTAs that run together and reach each other's shared memory."""

    def __init__(self, machine: Machine, shape: tuple[int, int, int], index: int) -> None:
        self.machine = machine
        self.shape = shape
        self.index = index
        self.ctas: list[Cta] = []
        self.barrier_generation = 0
        self.barrier_count = 0  # warps that arrived in this generation
        self.barrier_arrived: dict[tuple[int, int], int] = {}
        self.done = False
        self.clc_denied = False  # a try_cancel of this cluster found no cluster left
        self.hb: Any = None
        self.beside_mma = LoadsBesideMma(machine) if machine.schedule == "late" else None

    def rank_to_idx(self, rank: int) -> tuple[int, int, int]:
        x, y, _ = self.shape
        return rank % x, rank // x % y, rank // (x * y)

    def resolve(self, address: int, what: str = "access") -> tuple[Cta, int]:
        """(CTA, window offset) of a shared window address or generic shared pointer."""
        rank = (address & 0xFFFFFFFF) >> RANK_SHIFT
        if rank >= len(self.ctas):
            raise DeviceFault(
                "smem.illegal-address",
                f"{what} names CTA rank {rank} of a cluster of {len(self.ctas)}",
                "check the rank given to mapa",
            )
        return self.ctas[rank], address & OFFSET_MASK

    def barrier_at(self, address: int, what: str) -> Mbarrier:
        """The initialised mbarrier at a shared address.

        Raises:
            DeviceFault: no barrier was initialised there.
        """
        cta, offset = self.resolve(address, what)
        bar = cta.mbarriers.get(offset)
        if bar is None:
            name = cta.name_of_shared(offset)
            raise DeviceFault(
                "mbarrier.not-initialized",
                f"{what} on `{name}`, which no thread has initialised with mbarrier.init",
                "initialise the barrier in one thread, then fence.mbarrier_init and synchronise before using it",
                name=name,
            )
        return bar


def poison_float(dtype: str) -> Any:
    return {"float16": np.float16, "float32": np.float32, "float64": np.float64}[dtype]("nan")
