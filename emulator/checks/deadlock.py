"""The deadlock autopsy: who waits for what, what has been seen, who holds it up, and the usual cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emulator.checks.findings import Finding, SourceLocation, base_name, words
from emulator.checks.rehearsal import Stuck, all_holders, rehearse

if TYPE_CHECKING:
    from emulator.scheduler import Machine, Strand

_ARRIVALS = ("mbarrier.arrive", "mbarrier.arrive.expect_tx", "tcgen05.commit", "cp.async.mbarrier.arrive")

_IN_A_CLUSTER = (
    "mbarrier.wait",
    "bar.sync",
    "barrier.cluster.wait",
)  # who signals is in the waiter's cluster


def autopsy(machine: Machine) -> list[Finding]:
    """One finding per distinct wait of a launch in which nothing can run any more, in one of the clusters that hang.

    Waits that others hold up say so and have ``data["consequence"]``.
    """
    groups: dict[tuple[Any, ...], list[Strand]] = {}
    for strand in _of_one_cluster(machine.live):
        groups.setdefault(_key(strand), []).append(strand)
    waits = [Stuck(strands, strands[0].wait) for strands in groups.values()]
    for stuck in waits:
        stuck.overtaken = _phase_that_is_over(stuck) is not None
    states = [_state(stuck) for stuck in waits]  # the rehearsal changes them
    for stuck, state in zip(waits, states, strict=True):
        stuck.astray = bool(state.get("astray"))
    rehearse(machine, waits)
    return [_explain(machine, stuck, state) for stuck, state in zip(waits, states, strict=True)]


def _of_one_cluster(live: list[Strand]) -> list[Strand]:
    """The strands of the first cluster that hangs, where no strand can wait for another cluster."""
    if any(strand.wait is None or strand.wait.kind not in _IN_A_CLUSTER for strand in live):
        return live
    first = min(strand.cta.cluster.index for strand in live)
    return [strand for strand in live if strand.cta.cluster.index == first]


def _key(strand: Strand) -> tuple[Any, ...]:
    wait = strand.wait
    if wait is None:
        return ("running",)
    target = getattr(wait, "barrier", None) or getattr(wait, "cluster", None)
    return wait.kind, id(target), wait.site, getattr(wait, "parity", None)


def _warps(strands: list[Strand]) -> tuple[int, ...]:
    out: list[int] = []
    for s in strands:
        out += list(getattr(s.wait, "warps", None) or s.threads.warps)
    return tuple(sorted(set(out)))


def _who(stuck: Stuck) -> str:
    """``Warps 0 to 3 of CTA 1``."""
    cta = stuck.strands[0].cta
    text = words(_warps(stuck.strands), "warp", "warps")
    alone = cta.machine.num_clusters * len(cta.cluster.ctas) == 1
    return text if alone else f"{text} of CTA {cta.linear}"


def _verb(stuck: Stuck) -> str:
    return "waits" if len(_warps(stuck.strands)) == 1 else "wait"


def plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _line(location: SourceLocation | None) -> str:
    return f" (line {location.line})" if location is not None else ""


def _target(stuck: Stuck) -> str:
    """What it waits for, as the learner wrote it."""
    if stuck.kind == "mbarrier.wait":
        return f"mbarrier {stuck.wait.barrier.name}"
    if stuck.kind == "bar.sync":
        return "cta_sync" if stuck.wait.barrier.index == 0 else f"named barrier {stuck.wait.barrier.index}"
    if stuck.kind == "barrier.cluster.wait":
        return "the cluster barrier"
    return {"tcgen05.alloc": "free TMEM columns", "setmaxnreg": "setmaxnreg.inc"}.get(
        stuck.kind, "a value in memory"
    )


# ---------------------------------------------------------------------------------------------- one wait


def _state(stuck: Stuck) -> dict[str, Any]:
    """What the report needs to know of a barrier as it was when everything stopped."""
    cta = stuck.strands[0].cta
    if stuck.kind == "mbarrier.wait":
        bar = stuck.wait.barrier
        siblings = [
            b
            for b in bar.cta.mbarriers.values()
            if b is not bar and base_name(b.name) == base_name(bar.name) and b.generation > bar.generation
        ]
        return {
            **bar.describe(),
            "history": list(bar.history),
            "last": list(bar.last_history),
            "ahead": [b.name for b in siblings],
            "astray": _astray(bar),
            "over": _phase_that_is_over(stuck),
            "idle": _idle_waits(stuck),
            "returned": _returned(bar),
            "passed": bool(bar.returned),
            "same": all(
                bar.returned.get(w) == (stuck.wait.site, stuck.wait.parity) for w in _warps(stuck.strands)
            ),
        }
    if stuck.kind == "bar.sync":
        b = stuck.wait.barrier
        needed = 32 * cta.live_warps if b.expected in (None, -1) else b.expected
        used = set().union(*b.users.values()) if b.generation and b.index else set(range(cta.num_warps))
        exited = sorted(cta.exited_warps & used)
        return {
            "arrived": b.arrived,
            "expected": needed,
            "exited": exited,
            "sites": list(b.users),
            "shared": _warpgroups_that_share(b, needed),
        }
    return {}


def _warpgroups_that_share(barrier: Any, needed: int) -> int:
    """How many warpgroups use a named barrier for the threads of one, 0 where it is not so."""
    warpgroups = {warp // 4 for warps in barrier.users.values() for warp in warps}
    return len(warpgroups) if barrier.index and needed == 128 and len(warpgroups) > 1 else 0


def _phase_that_is_over(stuck: Stuck) -> int | None:
    """The phase that a wait asks for, when it and the next one are over: then its parity is that of a later phase.

    Known from the race detector's clocks, None without them.
    """
    if stuck.kind != "mbarrier.wait" or stuck.wait.barrier.hb is None:
        return None
    bar, parity = stuck.wait.barrier, stuck.wait.parity
    cta = stuck.strands[0].cta
    hb = cta.cluster.hb
    if hb is None:
        return None
    seen = min(hb.now[cta.rank * cta.num_warps + w].item(bar.hb.col) for w in _warps(stuck.strands))
    asked = seen if seen & 1 == parity else seen - 1
    return asked if bar.hb.completed > seen and asked >= 0 else None


def _idle_waits(stuck: Stuck) -> list[tuple[str, int, int]]:
    """(mbarrier, race detector's statement, parity) of waits of those who arrive here that an old phase lets through."""
    bar = stuck.wait.barrier.hb
    hb = stuck.strands[0].cta.cluster.hb
    if bar is None or hb is None:
        return []
    return [
        (hb.detector.reporter.barrier_name(other), site, parity)
        for (w, other), (site, parity) in hb.idle_waits.items()
        if w in bar.arrive_sites and hb.now[w].item(other.col) > 0
    ]


def _returned(bar: Any) -> list[int]:
    """The warps that arrived in the phase before, when all of them have returned (in every CTA of the cluster)."""
    warps = {a.warp for a in bar.last_history if a.count > 0}
    if not warps or -1 in warps:
        return []
    return sorted(warps) if all(warps <= cta.exited_warps for cta in bar.cta.cluster.ctas) else []


def _astray(bar: Any) -> list[tuple[int, list[int], str]]:
    """(CTA, statements, what): the barrier at the same place in other CTAs that got what this one misses.

    A part of the arrivals counts only when it is just what is missing here, and nobody waits there.
    """
    found = []
    awaited = {id(getattr(strand.wait, "barrier", None)) for strand in bar.cta.machine.live}
    for cta in bar.cta.cluster.ctas:
        other = cta.mbarriers.get(bar.offset)
        if other is None or other is bar:
            continue
        unannounced = bar.tx > 0 and other.tx < 0
        ahead = bar.pending == bar.expected and not bar.tx and other.generation > bar.generation
        there = other.expected - other.pending
        rest = 0 < bar.pending < bar.expected and there == bar.pending and id(other) not in awaited
        if unannounced or ahead or rest:
            sites = dict.fromkeys(a.site for a in other.history + other.last_history if a.site >= 0)
            what = (
                "bytes that it did not expect" if unannounced
                else "the arrivals" if ahead
                else f"the other {plural(there, 'arrival')}, and nobody waits for {'it' if there == 1 else 'them'} there"
            )  # fmt: skip
            found.append((cta.linear, list(sites), what))
    return found


def _explain(machine: Machine, stuck: Stuck, state: dict[str, Any]) -> Finding:
    cta = stuck.strands[0].cta
    here = machine.location(stuck.wait.site) if stuck.wait is not None else None
    who = _who(stuck)
    who = who[0].upper() + who[1:]
    names: tuple[str, ...] = ()
    sites: list[int] = []
    also: list[SourceLocation | None] = []
    data: dict[str, Any] = {"waits": "memory"}
    if stuck.kind == "mbarrier.wait":
        bar, parity = stuck.wait.barrier, stuck.wait.parity
        names = (bar.name,)
        now, before = state.pop("history"), state.pop("last")
        history = now + before
        if state["over"] is not None and machine.checker is not None:
            also = [machine.checker.sites[site] for _, site, _ in state["idle"][:1]]
        astray = [site for _, places, _ in state["astray"] for site in places]
        sites = [*dict.fromkeys(a.site for a in history), *astray, bar.init_site]
        what, cause, fix = _mbarrier(machine, stuck, state, now, bool(before))
        message = f"{who} {_verb(stuck)} for ever on mbarrier {bar.name} for parity {parity}: {what}. {cause}"
        data = {"waits": "mbarrier", "parity_waited_for": parity, **state}
        if stuck.signals and not history:
            sites = [*stuck.signals, *sites]
    elif stuck.kind == "bar.sync":
        name = _target(stuck)
        index = stuck.wait.barrier.index
        names = (f"named barrier[{index}]" if index else name,)
        message = (
            f"{who} {_verb(stuck)} for ever at {name}: {state['arrived']} of {state['expected']} threads "
            f"have arrived{_elsewhere(stuck, state)}."
        )
        fix = (
            f"Let every warp that {name} counts reach it, equally often; keep it out of branches that only "
            "some warps take."
        )
        data = {"waits": name, "arrived": state["arrived"], "expected": state["expected"]}
        if index:
            sites = state["sites"]
        if state["shared"]:
            message += f" Warps of {plural(state['shared'], 'warpgroup')} use {name}."
            fix = "Give each warpgroup its own number: at one barrier, threads of one count for the other."
    elif stuck.kind == "barrier.cluster.wait":
        names = ("cluster barrier",)
        message = f"{who} {_verb(stuck)} for ever at the cluster barrier{_elsewhere(stuck, state)}."
        fix = "All threads of all CTAs of the cluster must arrive, equally often."
        data = {"waits": "cluster barrier"}
    elif stuck.kind == "tcgen05.alloc":
        message = f"{who} {_verb(stuck)} for ever for free TMEM columns."
        fix = "Allocate TMEM once per CTA and free it before the kernel ends."
        data = {"waits": "tcgen05.alloc"}
    elif stuck.kind == "setmaxnreg" and (problem := stuck.wait.problem()) is not None:
        return problem.at([here], (), cta.linear, _warps(stuck.strands))
    else:
        message = f"{who} polls memory for ever: nobody can change what it waits for."
        fix = "Check which thread should write the value, and that it runs at the same time."
    if stuck.follows:
        data["consequence"] = True
        holder = next((h for h in all_holders(stuck) if not h.follows), stuck.holders[0])
        place = machine.location(holder.wait.site) if holder.wait is not None else None
        gets = "gets" if len(_warps(holder.strands)) == 1 else "get"
        message = (
            f"{who} {_verb(stuck)}, too, at {_target(stuck)}: that comes only after {_who(holder)} {gets} past "
            f"{_target(holder)}{_line(place)}."
        )
        fix = "Look at that wait first."
    found = [here, *also] + [machine.location(site) for site in sites if site >= 0]
    locations = tuple(dict.fromkeys(x for x in found if x is not None))
    return Finding(
        "deadlock", "error", message, fix, locations, names, cta.linear, _warps(stuck.strands), (), data
    )


def _elsewhere(stuck: Stuck, state: dict[str, Any]) -> str:
    """Where those are that have not arrived."""
    parts = []
    for holder in stuck.holders:
        if holder.wait is not None:
            place = holder.strands[0].cta.machine.location(holder.wait.site)
            parts.append(f"{_who(holder)} {_verb(holder)} at {_target(holder)}{_line(place)}")
    if state.get("exited"):
        parts.append(
            f"{words(state['exited'], 'warp', 'warps')} {'has' if len(state['exited']) == 1 else 'have'} returned"
        )
    return "; " + ", ".join(parts) if parts else ""


# ---------------------------------------------------------------------------------------------- mbarriers


def _mbarrier(
    machine: Machine, stuck: Stuck, state: dict[str, Any], history: list[Any], used: bool
) -> tuple[str, str, str]:
    """(what it has seen, the usual cause, the fix) in sentences; most specific causes first.

    ``history``: arrivals and bytes of the current phase. ``used``: there were phases before it.
    """
    name, parity = stuck.wait.barrier.name, stuck.wait.parity
    seen, expected, tx = state["arrivals_seen"], state["arrivals_expected"], state["bytes_outstanding"]
    generation = state["generation"]
    ahead, astray = state.pop("ahead"), state.pop("astray")
    over, idle, returned = state.pop("over"), state.pop("idle"), state.pop("returned")
    passed, same = state.pop("passed"), state.pop("same")
    what = f"phase {generation} has seen {seen} of {plural(expected, 'arrival')}"
    announced = sum(a.tx for a in history if a.tx > 0)
    delivered = -sum(a.tx for a in history if a.tx < 0)
    if tx > 0:
        what += f" and misses {tx} bytes"
    elif tx < 0:
        what += f" and has {-tx} bytes more than announced"
    if astray:
        ctas = words((cta for cta, _, _ in astray), "CTA", "CTAs")
        return (
            what,
            f"Mbarrier {name} of {ctas} has got {astray[0][2]}.",
            "Signal the barrier of the CTA that waits: check the rank given to mapa or remote_view, the CTA mask and "
            "cta_group.",
        )
    if tx < 0 and seen == expected:
        copies = _many_copies(machine, history)
        if copies:
            return what, *copies
        return (
            what,
            f"The copies delivered {delivered} bytes, expect_tx announced {announced}.",
            f"Announce what the copies of this stage deliver: {delivered} bytes.",
        )
    if tx > 0 and seen == expected:
        return (
            what,
            f"expect_tx announced {announced} bytes, the copies delivered {delivered}.",
            "Announce what the copies of this stage deliver (box elements times element size, all operands), "
            "and issue all of them.",
        )
    if tx < 0 and not seen:
        return (
            what,
            "No thread has announced the bytes.",
            "Execute mbarrier.arrive.expect_tx with the bytes of the copies, once per phase, in the thread that "
            "issues them.",
        )
    if over is not None and same:
        return (
            what,
            f"Phase {over}, which it waits for, is over. In the round before, it waited for parity {parity}, too: the "
            "phase has not flipped in between.",
            "Flip the phase after every round: phase ^= 1 behind the wait, or advance() of the PipelineState, in every "
            "thread that waits.",
        )
    if over is not None:
        cause = (
            f"Phase {over}, which it waits for, is over, and so is the next one, which has the other parity: somebody "
            "arrives twice in a round, or does not wait for the others."
        )
        for other, site, other_parity in idle[:1]:
            place = machine.checker.sites[site] if machine.checker is not None else None
            cause += (
                f" The wait on mbarrier {other}{_line(place)} uses parity {other_parity}, which an earlier phase already "
                "satisfies: it returns at once."
            )
        return (
            what,
            cause,
            "Arrive once per round, at the stage of this round, and flip the phase of every wait after each round; the "
            "count given to mbarrier.init must be all arrivals of a round.",
        )
    if returned and not seen and not history:
        who = words(returned, "warp", "warps")
        has = "has" if len(returned) == 1 else "have"
        return (
            what,
            f"{who[0].upper()}{who[1:]}, which signalled the phase before, {has} returned.",
            "Let all roles run the same number of rounds: this wait belongs to a round that the others do not have.",
        )
    if stuck.holds_itself and not history and not used and not passed:
        where = ", ".join(sorted({_line(machine.location(s)).strip(" ()") for s in stuck.signals}))
        return (
            what,
            f"Its arrival{f' ({where})' if where else ''} comes only after this wait has returned.",
            f"If it waits for a place that nobody has used yet, let the first round pass: a fresh mbarrier lets a wait "
            f"for parity 1 through, so start this phase with {1 - parity}. Else signal first, and wait then.",
        )
    if ahead and not seen:
        return (
            what,
            f"{' and '.join(ahead)} {'has' if len(ahead) == 1 else 'have'} completed more phases than {name}.",
            "Use the same stage index in the wait and in what signals it, advance it once per round, and let it live as "
            "long as the barriers: a PipelineState that begins anew with each tile loses its place.",
        )
    if not seen and not history and not used:
        nobody = _nobody(machine, name)
        return (
            what,
            "No statement of the kernel arrives at it." if nobody else "Nobody has arrived at it.",
            "Signal it: tcgen05.commit after the MMA, mbarrier.arrive.expect_tx with the TMA loads, or "
            "mbarrier.arrive by the consumers"
            + ("." if nobody else "; check who should, the stage index and the initial phase."),
        )
    if not seen:
        return (
            what,
            f"It has completed {plural(generation, 'phase')}; the wait asks for one more than anybody signals.",
            "Flip the phase after every round, start it right (0 for who waits for data, 1 for who waits for a "
            "free stage), and let all roles run the same number of rounds.",
        )
    return (
        what,
        f"{plural(expected - seen, 'arrival')} {'is' if expected - seen == 1 else 'are'} missing{_arrived(machine, history)}.",
        "Let everybody arrive who has to, in every round. If these are all, the count given to mbarrier.init is wrong: it "
        f"is the arrivals of one phase (here {seen}), threads that execute arrive plus commits.",
    )


def _arrived(machine: Machine, history: list[Any]) -> str:
    """Whose arrivals the current phase has seen."""
    arrivals = [a for a in history if a.count > 0]
    warps = {a.warp for a in arrivals}
    if not warps or -1 in warps:
        return ""
    has = "has" if len(warps) == 1 else "have"
    return f": only {words(warps, 'warp', 'warps')} {has} arrived{_line(machine.location(arrivals[0].site))}"


def _nobody(machine: Machine, name: str) -> bool:
    """Whether no statement arrives at a barrier of this name; False when some statement's barrier is not known."""
    arrivals = [op for op in machine.program.operations if op.instruction in _ARRIVALS]
    return all(op.names and base_name(name) not in op.names for op in arrivals)


def _many_copies(machine: Machine, history: list[Any]) -> tuple[str, str] | None:
    """(cause, fix) when many threads issued the same copy."""
    counts: dict[int, int] = {}
    for a in history:
        if a.tx < 0:
            counts[a.site] = counts.get(a.site, 0) + 1
    for site, n in counts.items():
        if n >= 32:
            return (
                f"{n} copies were issued{_line(machine.location(site)).replace('(', 'at ').replace(')', '')}, one by "
                "each thread that reaches it.",
                "Issue the copy and its expect_tx from one thread: put them under `if T.cuda.elect_sync():` in one "
                "warp.",
            )
    return None
