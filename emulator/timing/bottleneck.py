"""What holds a simulated kernel back, in one sentence, and what removes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from emulator.timing.parameters import Parameters
from emulator.timing.record import Barrier, ClusterTrace, Event, StrandTrace
from emulator.timing.simulate import Simulated, base

CORE_IS_BUSY, DRAM_IS_BUSY, WAY_IS_BUSY = (
    0.85,
    0.80,
    0.85,
)  # shares of the time from which on an engine is the limit
RING_IS_FULL = 1.5  # so many stages of a ring may rest: the one that the tensor core reads, and what is on its way to be reloaded
WORKING = 0.4  # share of their time that warps wait, up to which they are late because they work
LONG = 0.2  # share of its time from which on a wait of the loading warp explains that it loads late
RESERVED_SMEM = 1024  # bytes per CTA that the system takes
NO_NAME = "an mbarrier"

Stall = tuple[str, str, float]  # role, what its warps wait for, share of their time


@dataclass(frozen=True)
class Bottleneck:
    """One sentence, the statements at which the waits happen that it is about, and all waits, worst first."""

    sentence: str
    statements: tuple[int, ...]
    stalls: tuple[Stall, ...]


def explain(
    p: Parameters,
    simulated: Simulated,
    trace: ClusterTrace,
    dram: int,
    microseconds: float,
    resources: dict[str, Any],
) -> Bottleneck:
    """``dram``: bytes that pass DRAM; ``microseconds``: of the whole kernel; ``resources``: of one CTA."""
    stalls = _shares(simulated)
    core = simulated.busy[0].get("tensor core", 0.0) / simulated.cycles
    roof = dram / (p.dram_tb_per_s * 1e6) / microseconds
    if core >= CORE_IS_BUSY:
        what = f"The tensor core works {_percent(core)} of the time: what is left is the start, the end and whole waves of tiles."
        return Bottleneck(what, (), stalls)
    if roof >= DRAM_IS_BUSY:
        what = f"DRAM moves bytes {_percent(roof)} of the time: only fewer bytes would make it faster."
        return Bottleneck(what, (), stalls)
    feeding = [stall for stall in stalls if stall[0] == "MMA"] if core else []
    if not stalls:
        return Bottleneck("Nothing waits: issuing instructions takes the time.", (), stalls)
    role, what, share = (feeding or stalls)[0]
    if feeding:
        start = (
            f"The tensor core works {_percent(core)} of the time; the warp that feeds it waits {_percent(share)} of its time"
            f" for {what}"
        )
    else:
        warps = "Warps" if role == "other" else f"The {role} warps"
        start = f"{warps} wait {_percent(share)} of their time for {what}"
    remedy, also = _Remedy(p, simulated, trace, resources, stalls).of(role, what)
    places = [_worst_place(simulated, *key) for key in [(role, what), *also]]
    return Bottleneck(f"{start}{remedy}.", tuple(dict.fromkeys(s for s in places if s >= 0)), stalls)


@dataclass(frozen=True)
class _Remedy:
    """Looks for what ends a wait, and for how to wait less for that."""

    p: Parameters
    simulated: Simulated
    trace: ClusterTrace
    resources: dict[str, Any]
    stalls: tuple[Stall, ...]

    def of(self, role: str, what: str) -> tuple[str, list[tuple[str, str]]]:
        """(the rest of the sentence, other waits that it names: role and what for)."""
        if what == "global memory":
            return ", since threads copy the tiles: let TMA load them, ahead of their use", []
        if what == "bulk stores":
            return ": let the stores of one chunk go on while the next is made", []
        bars = {bar for bar, name in self.trace.names.items() if _named(name) == what}
        kinds = {kind for kind, _ in _completions(self.trace, bars)}
        if "load" in kinds:
            return self._loads(role, what, bars)
        if "commit" in kinds:
            return ", which the tensor core completes: give it the next MMAs before these are done", []
        if "arrive" in kinds:
            return self._arrivals(role, bars)
        return "", []

    def _arrivals(self, role: str, bars: set[Barrier]) -> tuple[str, list[tuple[str, str]]]:
        """Whether the warps that arrive are late because they work, or because they wait as well."""
        arrivers = [
            s for s in self.trace.strands if any(e[0] == "arrive" and e[2] in bars and e[3] for e in s.events)
        ]
        who = next((_role_of(s) for s in arrivers if _role_of(s) != role), role)
        start = f", which {'other' if who in ('other', role) else 'the ' + who} warps complete"
        theirs = [s for s in self.stalls if s[0] == who]
        waiting = sum(share for _, _, share in theirs)
        if who == role or not theirs or waiting < WORKING:
            works = f" ({_percent(1 - waiting)} of their time is work)" if who != role else ""
            return f"{start}{works}: let them arrive earlier, or give them less to do per phase", []
        _, what, share = theirs[0]
        return (
            f"{start}; these wait {_percent(share)} of their time for {what}: what they wait for and what they do"
            " follow one another, so give this warp other work meanwhile, such as a second tile",
            [(who, what)],
        )

    def _loads(self, role: str, what: str, bars: set[Barrier]) -> tuple[str, list[tuple[str, str]]]:
        """Deeper prefetch helps only where neither the way of the bytes is busy nor the ring is full already."""
        way = self.simulated.from_l2 / self.simulated.cycles
        tma = self.simulated.busy[0].get("TMA load", 0.0) / self.simulated.cycles
        if max(way, tma) >= WAY_IS_BUSY:
            engine = "the way from L2 into SMEM" if way >= tma else "TMA"
            cure = (
                "load fewer bytes per MMA, with larger tiles or with operands that the CTAs of a cluster share"
                if way >= tma
                else "move more bytes per line of a box"
            )
            return (
                f", which TMA completes, and {engine} is busy {_percent(max(way, tma))} of the time: more stages do not help, {cure}",
                [],
            )
        stages = len(bars) if self.trace.ctas == 1 else len({offset for _, offset in bars})
        weighted, spent = self.simulated.ahead.get((role, what), (0.0, 0.0))
        if self._phases(bars) <= stages * self.trace.ctas and not self._runs_again(bars):
            return (
                ", which TMA completes, once: only another CTA on the same SM, or another tile of the same CTA, could work meanwhile",
                [],
            )
        if stages == 1 or not spent:
            return ", which TMA completes: load further ahead, into more stages", []
        loading = weighted / spent
        if loading < stages - RING_IS_FULL:
            return self._late_loads(loading, stages, bars)
        if self._stage_bytes(bars) <= self.p.smem_per_sm - RESERVED_SMEM - self.resources["smem_bytes"]:
            cure = "add stages, SMEM has room for them"
        else:
            cure = "and SMEM has no room for more: let each stage feed more MMAs, with larger tiles or operands that are shared"
        return f", which TMA completes, while the loads of all {stages} stages are on their way: {cure}", []

    def _late_loads(
        self, loading: float, stages: int, bars: set[Barrier]
    ) -> tuple[str, list[tuple[str, str]]]:
        """The ring has empty stages, and nobody fills them: who loads waits for something else."""
        loaders = {_role_of(s) for s in self.trace.strands for e in s.events if _signals(e, bars)}
        own = {_named(self.trace.names[bar]) for bar in bars}
        theirs = next((s for s in self.stalls if s[0] in loaders and s[1] not in own), None)
        start = f", which TMA completes, but only {loading:.0f} of {stages} stages are being loaded meanwhile"
        if theirs is None or theirs[2] < LONG:
            return f"{start}: ask for them earlier", []
        who, what, share = theirs
        return (
            f"{start}: the warp that loads waits {_percent(share)} of its time for {what}; let it wait for the stage that comes"
            " next, not for the one that it has just loaded",
            [(who, what)],
        )

    def _stage_bytes(self, bars: set[Barrier]) -> float:
        """Bytes that one phase brings into one CTA."""
        nbytes = sum(e[2] for s in self.trace.strands for e in s.events if _signals(e, bars))
        return float(nbytes / self.trace.ctas / max(1, self._phases(bars)))

    def _phases(self, bars: set[Barrier]) -> int:
        """How many times bytes are announced at these mbarriers."""
        return sum(
            e[0] == "arrive" and e[2] in bars and e[4] > 0 for s in self.trace.strands for e in s.events
        )

    def _runs_again(self, bars: set[Barrier]) -> bool:
        """Whether a warp waits for a second phase of one of these mbarriers."""
        return any(
            e[0] == "wait" and e[2] in bars and e[3] == 1 for s in self.trace.strands for e in s.events
        )


def _completions(trace: ClusterTrace, bars: set[Barrier]) -> Iterator[tuple[str, Event]]:
    """The events that signal one of these mbarriers: (load, commit or arrive, event)."""
    for strand in trace.strands:
        for e in strand.events:
            if _signals(e, bars):
                yield "load", e
            elif e[0] == "commit" and bars.intersection(e[2]):
                yield "commit", e
            elif e[0] == "arrive" and e[2] in bars and e[3]:
                yield "arrive", e


def _signals(e: Event, bars: set[Barrier]) -> bool:
    """Whether an event is a TMA load that one of these mbarriers hears of."""
    return e[0] == "load" and any(bar in bars for bar, _ in e[4])


def _role_of(strand: StrandTrace) -> str:
    """As the simulation calls it."""
    if "mma" in strand.kinds:
        return "MMA"
    if "load" in strand.kinds:
        return "load"
    return "write-back" if strand.kinds & {"tmem", "store"} else "other"


def _worst_place(simulated: Simulated, role: str, what: str) -> int:
    """The statement at which most of a wait happens; -1 where none is known."""
    together: dict[int, float] = {}
    for (who, name), places in simulated.places.items():
        if who == role and _named(name) == what:
            for site, cycles in places.items():
                together[site] = together.get(site, 0.0) + cycles
    return max(together, key=lambda site: together[site], default=-1)


def _shares(simulated: Simulated) -> tuple[Stall, ...]:
    together: dict[tuple[str, str], float] = {}
    for (role, what), cycles in simulated.stalls.items():
        if simulated.lifetimes.get(role):
            key = (role, _named(what))
            together[key] = together.get(key, 0.0) + cycles / simulated.lifetimes[role]
    rows = [(role, what, share) for (role, what), share in together.items()]
    return tuple(sorted(rows, key=lambda r: -r[2]))


def _named(name: str) -> str:
    """The base name of an mbarrier; words where the learner gave it none."""
    stem = base(name)
    return stem if stem.strip("[]") else NO_NAME


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
