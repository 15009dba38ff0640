"""Parameters of the timing model: one YAML file per GPU, each number with its source and grade."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

FILES = {"sm_100a": "b200.yaml", "sm_90a": "h200.yaml"}


@dataclass(frozen=True)
class Source:
    """Where a number comes from, and how far it can be trusted (A to D, F: fitted)."""

    text: str
    grade: str


@dataclass(frozen=True)
class Parameters:
    """Numbers of one GPU; cycles unless the name says otherwise. See the YAML files for what each one means."""

    device: str
    arch: str
    values: dict[str, float]
    sources: dict[str, Source] = field(default_factory=dict)

    def __getattr__(self, name: str) -> float:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(f"{self.device} has no timing parameter {name!r}") from None

    def with_values(self, **values: float) -> Parameters:
        """The same GPU with other numbers (a clock, a fit)."""
        unknown = set(values) - set(self.values)
        if unknown:
            raise ValueError(f"no such timing parameter: {', '.join(sorted(unknown))}")
        return replace(self, values={**self.values, **values})

    # ------------------------------------------------------------------------------------------ tensor core

    def mma_interval(self, group: int, m: int, n: int, a_in_tmem: bool) -> float:
        """Cycles from one tcgen05.mma to the next of the same queue.

        Fitted to SemiAnalysisAI/microbench-blackwell ``umma_throughput``; each element format takes the same cycles, since
        one instruction always consumes 32 bytes of K. An SM fetches operands from SMEM at 128 bytes a cycle.
        """
        if group == 1 and m <= 64:
            return max(n / 2, 0 if a_in_tmem else self.values["mma_m64_base"] + n / 16)
        if group == 1:
            return n / 2 if a_in_tmem else max(n / 2, 32 + n / 4)
        if m <= 128:
            return max(n / 4, 18) if a_in_tmem else max(n / 4, 17 + n / 8)
        return n / 2 if a_in_tmem else max(n / 2, 36.5 + 0.133 * n)

    def wgmma_interval(self, n: int, a_in_registers: bool) -> float:
        """Cycles from one wgmma of 64 x n to the next: n / 2, or what SMEM needs to deliver its operands at 128 bytes a cycle.

        Measured on an H200 for this course (tests/hardware/timings.json): 32.9, 64.9 and 128.9 for n = 64, 128, 256.
        """
        operands = (0 if a_in_registers else 64 * 32) + 32 * n
        return max(n / 2, operands / 128) + self.values["wgmma_gap"]

    def mma_latency(self, group: int, m: int, n: int, a_in_tmem: bool) -> float:
        """Cycles from the issue of one tcgen05.mma to a commit's arrival that a waiting warp has seen.

        Fitted to ``umma_latency`` of the same benchmarks.
        """
        if group == 1:
            base = (104 if a_in_tmem else 120) if m <= 64 else (104 if a_in_tmem else 136)
            return base + n / 2
        if m <= 128:
            return 146 + n / 4 if a_in_tmem else (149 + 3 * n / 8 if n <= 128 else 165 + n / 4)
        return (138 if a_in_tmem else 170) + n / 2


@cache
def load(arch: str = "sm_100a") -> Parameters:
    """The parameters of a GPU.

    Raises:
        ValueError: there is no model for that architecture.
    """
    import yaml

    if arch not in FILES:
        raise ValueError(f"there is no timing model for {arch}; there is one for {', '.join(FILES)}")
    data: dict[str, Any] = yaml.safe_load((Path(__file__).parent / FILES[arch]).read_text(encoding="utf-8"))
    device, name = data.pop("device"), data.pop("arch")
    values = {key: float(entry["value"]) for key, entry in data.items()}
    sources = {key: Source(entry["source"], entry["grade"]) for key, entry in data.items()}
    return Parameters(device, name, values, sources)
