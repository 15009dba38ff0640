"""Search over schedules: run one small kernel under many legal orders and report what differs.

The race detector already proves races from a single run; exploring adds the values: which seed shows a wrong result or
a hang, reproducible with ``kernel.run(..., schedule="random", seed=seed)``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.checks.findings import Finding
from emulator.kernel import Kernel, Run, compile


@dataclass(frozen=True)
class Exploration:
    """What a search over schedules saw.

    Attributes:
        schedules: how many runs.
        findings: every distinct finding of any run, worst first.
        failing: (schedule, seed) of each run with an error or race, in the order they were tried.
        outputs: distinct results (all tensors together) and the (schedule, seed) that first gave each.
    """

    schedules: int
    findings: tuple[Finding, ...]
    failing: tuple[tuple[str, int], ...]
    outputs: dict[str, tuple[str, int]]

    @property
    def ok(self) -> bool:
        """No run failed and every run gave the same bytes."""
        return not self.failing and len(self.outputs) <= 1


_ORDER = {"error": 0, "race": 1, "lint": 2}


def explore(
    kernel: Any, *tensors: Any, schedules: int = 100, seed: int = 0, stop: bool = False, arch: str = "sm_100a"
) -> Exploration:
    """Run ``kernel`` under ``schedules`` schedules: late, eager, then random ones with seeds ``seed``, ``seed + 1`` ...

    Args:
        kernel: a PrimFunc or a compiled :class:`emulator.Kernel`.
        tensors: as for :meth:`emulator.Kernel.run`; they are left as they were.
        stop: stop at the first run with an error or race.

    Raises:
        LoweringError, UnsupportedInstruction, LaunchError: as ``compile`` and ``run``.
    """
    compiled = kernel if isinstance(kernel, Kernel) else compile(kernel, arch)
    plan = [("late", seed), ("eager", seed)] + [("random", seed + k) for k in range(max(0, schedules - 2))]
    found: dict[tuple[Any, ...], Finding] = {}
    failing: list[tuple[str, int]] = []
    outputs: dict[str, tuple[str, int]] = {}
    count = 0
    for schedule, s in plan[:schedules]:
        copies = [t.copy() if isinstance(t, np.ndarray) else t for t in tensors]
        run: Run = compiled.run(*copies, schedule=schedule, seed=s)
        count += 1
        digest = hashlib.sha256()
        for c in copies:
            if isinstance(c, np.ndarray):
                digest.update(c.tobytes())
        outputs.setdefault(digest.hexdigest(), (schedule, s))
        for f in run.findings:
            found.setdefault((f.code, f.locations, f.names), f)
        if not run.ok:
            failing.append((schedule, s))
            if stop:
                break
    findings = tuple(sorted(found.values(), key=lambda f: _ORDER[f.strength]))
    return Exploration(count, findings, tuple(failing), outputs)
