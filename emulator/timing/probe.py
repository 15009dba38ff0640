"""What some warps of every cluster do, without running the others: how much work each cluster has, and what it loads.

A warp that loads tiles decides by itself what comes next: it only waits for others. In a probe no wait waits: every
mbarrier phase is complete, and every barrier of warps is passed as soon as the probed warps have come. So one warp of a thousand
CTAs is run in the time that all warps of a few take. It is right as long as nothing that the other warps write reaches the
probed warps; :func:`probe` compares one cluster with its full record, and gives up when they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from emulator.errors import EmulatorError
from emulator.machine.cta import Cta, NamedBarrier
from emulator.machine.mbarrier import Mbarrier
from emulator.timing.record import Barrier, ClusterTrace, Recorder, StrandTrace

if TYPE_CHECKING:
    from emulator.kernel import Kernel


class _OpenMbarrier(Mbarrier):
    """Every phase has completed, whoever asks."""

    def test(self, parity: int) -> bool:
        return True

    def update(self, arrivals: int = 0, tx: int = 0, *, site: int = -1, warp: int = -1) -> bool:
        return False


class _OpenNamedBarrier(NamedBarrier):
    """Complete as soon as one warp comes."""

    __slots__ = ()

    @property
    def arrived(self) -> int:
        return 1 << 20

    @arrived.setter
    def arrived(self, value: int) -> None:
        pass


class _OpenMbarriers(dict[int, Mbarrier]):
    """An mbarrier wherever one is looked for: the warp that initialises it may not run."""

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        self.cta = cta

    def get(self, offset: int, default: Any = None) -> Any:
        if offset not in self:
            super().__setitem__(offset, _OpenMbarrier(self.cta, offset, 1, 1, -1))
        return self[offset]

    def __setitem__(self, offset: int, bar: Mbarrier) -> None:
        super().__setitem__(
            offset, _OpenMbarrier(self.cta, offset, bar.expected, bar.expected, bar.init_site)
        )


class _Probe(Recorder):
    """Runs the given strands only: (rank, warps)."""

    def __init__(self, strands: Sequence[StrandTrace]) -> None:
        super().__init__(dry=True)
        self.chosen: dict[int, list[list[int]]] = {}
        for s in strands:
            self.chosen.setdefault(s.rank, []).append(list(s.warps))

    def attach(self, machine: Any) -> None:
        super().attach(machine)
        machine.partition = self._open

    def _open(self, cta: Cta) -> list[list[int]]:
        """The strands of a CTA that run; all that they could wait for is there."""
        chosen = self.chosen.get(cta.rank, [])
        run = {w for warps in chosen for w in warps}
        cta.mbarriers = _OpenMbarriers(cta)
        cta.named = {k: _OpenNamedBarrier(k) for k in range(16)}
        cta.exited_warps = set(range(cta.num_warps)) - run
        cta.live_warps = len(run)
        return [list(warps) for warps in chosen]

    def barrier(self, machine: Any, bar: Any) -> Barrier:
        return (bar.cta.rank, bar.offset)  # names are not needed


def probed(full: ClusterTrace) -> list[StrandTrace]:
    """The strands of a recorded cluster that are worth a probe: those that load tiles and do little else."""
    return [s for s in full.strands if "load" in s.kinds and "tmem" not in s.kinds]


def probe(
    kernel: Kernel, tensors: Sequence[Any], full: ClusterTrace, clusters: Sequence[int]
) -> dict[int, ClusterTrace] | None:
    """What the loading strands of ``clusters`` do; None where a probe of this kernel is not possible.

    Args:
        full: the full record of one cluster, which is probed as well to see that the probe is right.
    """
    strands = probed(full)
    if not strands:
        return None
    first = _run(kernel, tensors, strands, [full.index])
    found = first.get(full.index)
    if found is None or [s.events for s in found.strands] != [s.events for s in strands]:
        return None
    first |= _run(kernel, tensors, strands, [c for c in clusters if c != full.index])
    return first if all(c in first for c in clusters) else None


def _run(
    kernel: Kernel, tensors: Sequence[Any], strands: list[StrandTrace], clusters: list[int]
) -> dict[int, ClusterTrace]:
    recorder = _Probe(strands)
    try:
        kernel.record(*tensors, recorder=recorder, clusters=clusters)
    except EmulatorError:
        return {}
    return recorder.clusters


__all__ = ["probe", "probed"]
