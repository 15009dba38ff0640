"""Raw samples of a measurement -> how fast the kernel is, how sure that is, or why nothing can be said.

Runs where no kernel ran. Times are in microseconds, `ratio` is the kernel's speed relative to the reference's (1: equal,
0.5: takes twice as long).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autograder.course import Timing
from autograder.report.model import Fault, Measured, Tier

RESAMPLES = 2000
CONFIDENCE = 0.95
FEWEST_PAIRS = 20
MOST_UNCOVERED = 0.2  # share of samples that may hold time of the host
MOST_CLOCK_DROP = 0.1  # of the SM clock while measuring, before the machine counts as throttled
# Clock event reasons that say the GPU protects itself (NVML: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown,
# HwPowerBrakeSlowdown). A software power cap is how the GPU always works under load.
THROTTLING = {
    0x8: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "thermal slowdown",
    0x80: "power brake",
}

Times = npt.NDArray[np.float64]


def interval(kernel: Times, reference: Times, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap of median(reference) / median(kernel); pairs are drawn together, because they share the
    state of the machine."""
    random = np.random.default_rng(seed)
    picks = random.integers(0, len(kernel), (RESAMPLES, len(kernel)))
    ratios = np.median(reference[picks], axis=1) / np.median(kernel[picks], axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)


def floor_us(facts: dict[str, Any]) -> float | None:
    """The least time that the call's bytes need: inputs come from DRAM, of the output L2 may keep its own size.

    None where the peak bandwidth is unknown.
    """
    peak = facts.get("peak_bytes_per_s")
    if not peak:
        return None
    written = max(0, facts["output_bytes"] - facts["l2_bytes"])
    return float((facts["input_bytes"] + written) / peak * 1e6)


def judge(samples: dict[str, Any], timing: Timing, builder: str, seed: int = 0) -> Measured:
    """The verdict on one measurement.

    fast: surely at least `tiers.full` of the reference's speed; slow: surely less; inconclusive: the interval holds it.
    error: the samples say nothing, with whose fault that is.
    """
    kernel, reference = (np.array(samples[name], np.float64) for name in ("kernel", "reference"))
    facts = samples["facts"]
    head: dict[str, Any] = {
        "builder": builder,
        "params": dict(timing.params),
        "reference": timing.reference,
        "device": str(facts["device"]),
        "pairs": len(kernel),
        "wanted": timing.tiers.full,
        "bytes_moved": int(facts["input_bytes"] + facts["output_bytes"]),
        "floor_us": floor_us(facts),
        "clocks": _clocks(samples["clocks"]),
    }
    for call, wrong in samples["wrong"].items():
        message = f"the output of timed call {call} is wrong ({wrong}); a time of a wrong kernel says nothing"
        return Measured(**head, verdict="error", fault=Fault.YOUR_CODE, message=message)
    if len(kernel) > 0:
        low, high = interval(kernel, reference, seed)
        head |= {"kernel_us": float(np.median(kernel)), "reference_us": float(np.median(reference))}
        ratio = head["reference_us"] / head["kernel_us"]
        head |= {"ratio": ratio, "interval": (low, high), "repeatability": (high - low) / 2 / ratio}
    trouble = _trouble(samples, kernel)
    if trouble:
        return Measured(**head, verdict="error", fault=Fault.MACHINE, message=trouble)
    fastest, floor = float(min(kernel.min(), reference.min())), head["floor_us"]
    if floor is not None and fastest < floor:
        message = f"a call of {fastest:.1f} µs is faster than its bytes allow ({floor:.1f} µs): the measurement is wrong"
        return Measured(**head, verdict="error", fault=Fault.GRADER, message=message)
    tier: Tier = "full" if low >= timing.tiers.full else "partial" if low >= timing.tiers.partial else "none"
    if low >= timing.tiers.full:
        return Measured(**head, verdict="fast", tier=tier)
    return Measured(**head, verdict="slow" if high < timing.tiers.full else "inconclusive", tier=tier)


def _trouble(samples: dict[str, Any], kernel: Times) -> str:
    """Why these samples say nothing about the kernel: what the machine did meanwhile."""
    if samples.get("neighbours"):
        return f"{samples['neighbours']} other process(es) use this GPU; measure when it is free"
    if len(kernel) < FEWEST_PAIRS:
        return (
            f"only {len(kernel)} pairs were measured in the time allowed, at least {FEWEST_PAIRS} are needed"
        )
    uncovered = 1 - sum(samples["covered"]) / len(samples["covered"])
    if uncovered > MOST_UNCOVERED:
        return f"in {uncovered:.0%} of the calls the host was slower than the GPU; the times hold some of its own"
    for entry in samples["clocks"]:
        for bit, name in THROTTLING.items():
            if int(entry.get("reasons") or 0) & bit:
                return f"the GPU lowered its clocks while measuring ({name})"
    clocks = [entry["sm_mhz"] for entry in samples["clocks"] if entry.get("sm_mhz")]
    if clocks and min(clocks) < (1 - MOST_CLOCK_DROP) * max(clocks):
        return f"the SM clock moved between {min(clocks)} and {max(clocks)} MHz while measuring"
    return ""


def _clocks(log: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Lowest and highest of each value that was logged."""
    names = [name for name in ("sm_mhz", "memory_mhz", "celsius", "watts") if any(name in e for e in log)]
    return {n: [f(int(e[n]) for e in log if n in e) for f in (min, max)] for n in names}
