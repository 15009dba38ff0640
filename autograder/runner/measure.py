"""The loop of a measurement: which call is timed when, on which inputs, and what is looked at in between.

It knows neither PyTorch nor a GPU: everything that touches a device is behind `Bench`, so that the loop is tested with
a device that is not there. Raw samples leave the process; no statistic is computed where the kernel ran.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

WARM_UP_PAIRS = 8
WARM_UP_SECONDS = 0.3
CLOCKS_EVERY = 8
KERNEL, REFERENCE = "kernel", "reference"


class Sample(NamedTuple):
    """One timed call. `covered`: the device was still busy when the whole interval had been enqueued, so that no
    time of the host is in it."""

    microseconds: float
    covered: bool


class Bench(Protocol):
    """A kernel and a library call on one device, ready to be timed."""

    def prepare(self, number: int) -> None:
        """Fresh inputs, the same for both calls, and an output that holds nothing usable."""

    def call(self, which: str) -> Sample:
        """Flush L2, call `kernel` or `reference` once between two events, wait."""

    def verify(self) -> str:
        """What is wrong with the output of the kernel's last call or with its inputs; empty when nothing is."""

    def clocks(self) -> dict[str, Any]:
        """Clocks in MHz and what limits them now."""

    def facts(self) -> dict[str, Any]:
        """Device, bytes that one call must move, size of L2 and of the flush."""


def measure(
    bench: Bench, pairs: int, seed: int, seconds: float, now: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Time `pairs` pairs of calls, in random order within a pair, every call on inputs never seen before.

    Warm-up pairs are made and verified like all others and left out of the samples, so that nothing distinguishes
    them. Ends early when `seconds` have passed.

    Returns: "kernel" and "reference" (microseconds, index by index a pair), "covered" (per pair), "wrong" (number of
    the call -> what was wrong), "clocks" (log), "facts".
    """
    order = random.Random(seed)
    result: dict[str, Any] = {KERNEL: [], REFERENCE: [], "covered": [], "wrong": {}, "clocks": []}
    started = now()
    number, measured = 0, 0
    while measured < pairs and now() - started < seconds:
        warm = number >= WARM_UP_PAIRS and now() - started >= WARM_UP_SECONDS
        bench.prepare(number)
        pair: dict[str, Sample] = {}
        for which in order.sample([KERNEL, REFERENCE], 2):
            pair[which] = bench.call(which)
            if which == KERNEL:
                wrong = bench.verify()
                if wrong:
                    result["wrong"][str(number)] = wrong
        if warm:
            if measured % CLOCKS_EVERY == 0:
                result["clocks"].append(bench.clocks())
            result[KERNEL].append(pair[KERNEL].microseconds)
            result[REFERENCE].append(pair[REFERENCE].microseconds)
            result["covered"].append(pair[KERNEL].covered and pair[REFERENCE].covered)
            measured += 1
        number += 1
        if result["wrong"]:
            break
    result["clocks"].append(bench.clocks())
    result["calls"] = number
    result["facts"] = bench.facts()
    return result
