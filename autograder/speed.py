"""How fast a kernel is: raw samples of a measurement, or a modelled time, against the tiers of course.yaml.

Runs where no kernel ran. Times are in microseconds, `ratio` is the kernel's speed relative to the reference's (1: equal,
0.5: takes twice as long).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from autograder.amounts import evaluate
from autograder.course import ITEM_BYTES, MEASURED_ON, MODELLED, Exercise, Goals, Tiers, Timing
from autograder.report.model import Fault, Goal, Measured, ModelledTime, RoofPoint, Tier, best_tier
from autograder.roofline import PEAKS, Roof, roof

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


def interval(kernel: Times, reference: Times | None = None, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap of median(reference) / median(kernel); pairs are drawn together, because they share the
    state of the machine. Without a reference, of 1 / median(kernel)."""
    random = np.random.default_rng(seed)
    picks = random.integers(0, len(kernel), (RESAMPLES, len(kernel)))
    other = 1.0 if reference is None else np.median(reference[picks], axis=1)
    ratios = other / np.median(kernel[picks], axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)


def goal(to: Any, tiers: Tiers, ratio: float, sure: tuple[float, float] | None = None) -> Goal:
    """How a ratio stands to its tiers; a boundary that lies inside of the interval counts as reached."""
    most = sure[1] if sure else ratio
    tier: Tier = "full" if most >= tiers.full else "partial" if most >= tiers.partial else "none"
    return Goal(to=to, ratio=ratio, interval=sure, full=tiers.full, partial=tiers.partial, tier=tier)


def against_the_roof(found: ModelledTime, timing: Timing, kernel: Exercise) -> ModelledTime:
    """A modelled time with its roof and, where course.yaml has some, its tiers."""
    bound = roof(kernel, "sm_100a", found.clock_ghz)
    goals = timing.tiers.get(MODELLED)
    tiers = goals.roofline if goals else None
    reached = [goal("roofline", tiers, bound.microseconds / found.microseconds)] if tiers else []
    update = {"roof": roof_point(bound, tiers), "goals": reached, "tier": best_tier(reached)}
    return found.model_copy(update=update)


def roof_point(bound: Roof, tiers: Tiers | None) -> RoofPoint:
    """A roof for a report, with what course.yaml knows of the reference solution."""
    return RoofPoint(
        microseconds=bound.microseconds,
        flop=bound.flop,
        nbytes=bound.nbytes,
        tflops=bound.tflops,
        tb_per_s=bound.tb_per_s,
        solution=tiers.solution if tiers else None,
    )


ALL_WORK = 0.99  # the model counts on representative clusters


def work_left_out(kernel: Exercise, timing: Timing, modelled: dict[str, Any]) -> str:
    """What a kernel that was built for the timed size does less than it has to; empty where nothing is missing.

    Its output is not computed, so the executed instructions are counted: the FLOP of its MMAs, the bytes that it loads and stores.
    """
    needed = roof(kernel, "sm_100a")
    stored = sum(_nbytes(t) for t in kernel.tensor_specs() if t["role"] == "output")
    loaded = max(needed.nbytes - stored, evaluate(timing.bytes_loaded, kernel.builder.params))
    for what, seen, wanted in (
        ("FLOP by MMAs", modelled["flops"], needed.flop if modelled["flops"] or _needs_mmas(kernel) else 0),
        ("bytes loaded", modelled["bytes_loaded"], loaded),
        ("bytes stored", modelled["bytes_stored"], stored),
        *_by_tma(kernel, modelled),
    ):
        if seen < ALL_WORK * wanted:
            return f"{seen} of {wanted} {what}"
    return ""


def _by_tma(kernel: Exercise, modelled: dict[str, Any]) -> list[tuple[str, int, int]]:
    """What the checks of kind mechanism ask of TMA loads, at the timed size: (what, seen, wanted)."""
    seen = modelled["bytes_loaded"] - modelled["bytes_loaded_plainly"]
    bounds = [c.at_least["bytes.tma.load"] for c in kernel.checks if "bytes.tma.load" in c.at_least]
    return [("bytes loaded by TMA", seen, evaluate(amount, kernel.builder.params)) for amount in bounds]


def _needs_mmas(kernel: Exercise) -> bool:
    """Whether the exercise demands MMAs, so that a kernel whose MMAs depend on its data cannot be timed without them."""
    return any("mma" in name.split(".") for check in kernel.checks for name in check.at_least)


def _nbytes(tensor: dict[str, Any]) -> int:
    return int(prod(tensor["shape"])) * ITEM_BYTES[tensor["dtype"]]


def floor_us(facts: dict[str, Any]) -> float | None:
    """The least time that the call's bytes need: inputs come from DRAM, of the output L2 may keep its own size.

    None where the peak bandwidth is unknown.
    """
    peak = facts.get("peak_bytes_per_s")
    if not peak:
        return None
    written = max(0, facts["output_bytes"] - facts["l2_bytes"])
    return float((facts["input_bytes"] + written) / peak * 1e6)


def judge(samples: dict[str, Any], timing: Timing, kernel: Exercise, arch: str, seed: int = 0) -> Measured:
    """The verdict on one measurement of `kernel` (narrowed to what is timed) on a GPU of an architecture.

    fast: surely as fast as `full` of one of the yardsticks asks for; slow: surely slower than all of them; inconclusive: the
    interval holds `full`. error: the samples say nothing, with whose fault that is.
    """
    times, reference = (np.array(samples[name], np.float64) for name in ("kernel", "reference"))
    facts = samples["facts"]
    clocks = _clocks(samples["clocks"])
    bound = _roof(kernel, arch, clocks, facts)
    head: dict[str, Any] = {
        "builder": kernel.builder.name,
        "params": dict(timing.params),
        "reference": timing.reference,
        "device": str(facts["device"]),
        "pairs": len(times),
        "bytes_moved": int(facts["input_bytes"] + facts["output_bytes"]),
        "roof": roof_point(bound, timing.goals(arch).roofline) if bound else None,
        "floor_us": floor_us(facts),
        "clocks": clocks,
    }
    for call, wrong in samples["wrong"].items():
        message = f"the output of timed call {call} is wrong ({wrong}); a time of a wrong kernel says nothing"
        return Measured(**head, verdict="error", fault=Fault.YOUR_CODE, message=message)
    if len(times) > 0:
        low, high = interval(times, reference, seed)
        head |= {"kernel_us": float(np.median(times)), "reference_us": float(np.median(reference))}
        ratio = head["reference_us"] / head["kernel_us"]
        head |= {"ratio": ratio, "interval": (low, high), "repeatability": (high - low) / 2 / ratio}
    trouble = _trouble(samples, times)
    if trouble:
        return Measured(**head, verdict="error", fault=Fault.MACHINE, message=trouble)
    fastest, floor = float(min(times.min(), reference.min())), head["floor_us"]
    if floor is not None and fastest < floor:
        message = f"a call of {fastest:.1f} µs is faster than its bytes allow ({floor:.1f} µs): the measurement is wrong"
        return Measured(**head, verdict="error", fault=Fault.GRADER, message=message)
    goals = _goals(timing.goals(arch), head, times, seed)
    if not goals:
        message = f"course.yaml has no tiers for {MEASURED_ON.get(arch, arch)}"
        return Measured(**head, verdict="inconclusive", message=message)
    sure = any((g.interval or (g.ratio, 0))[0] >= g.full for g in goals)
    verdict: Any = "fast" if sure else "inconclusive" if any(g.tier == "full" for g in goals) else "slow"
    return Measured(**head, verdict=verdict, goals=goals, tier=best_tier(goals))


def _roof(kernel: Exercise, arch: str, clocks: dict[str, list[int]], facts: dict[str, Any]) -> Roof | None:
    """The roof at the highest SM clock that was logged, and at the bandwidth that the driver tells."""
    if arch not in PEAKS:
        return None
    mhz = max(clocks.get("sm_mhz", [0]))
    return roof(kernel, arch, mhz / 1e3 if mhz else None, facts.get("peak_bytes_per_s"))


def _goals(tiers: Goals, head: dict[str, Any], times: Times, seed: int) -> list[Goal]:
    found = []
    if tiers.library:
        found.append(goal("library", tiers.library, head["ratio"], head["interval"]))
    if tiers.roofline and head["roof"]:
        least = head["roof"].microseconds
        low, high = (least * x for x in interval(times, seed=seed))
        found.append(goal("roofline", tiers.roofline, least / head["kernel_us"], (low, high)))
    return found


def _trouble(samples: dict[str, Any], kernel: Times) -> str:
    """Why these samples say nothing about the kernel: what the machine did meanwhile."""
    if samples.get("neighbours"):
        return f"{samples['neighbours']} other process(es) use this GPU; measure when it is free"
    together = [entry["processes"] for entry in samples["clocks"] if entry.get("processes")]
    if together and np.median(together) > 1:  # one of them is the measurement itself
        return f"{int(np.median(together)) - 1} other process(es) used this GPU while measuring; measure when it is free"
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
