"""The deadlock autopsy: who waits for what, what has been seen, and the usual cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emulator.checks.findings import Finding

if TYPE_CHECKING:
    from emulator.scheduler import Machine, Strand


def autopsy(machine: Machine) -> list[Finding]:
    """One finding per distinct wait of a launch in which nothing can run any more."""
    groups: dict[tuple[Any, ...], list[Strand]] = {}
    for strand in machine.live:
        groups.setdefault(_key(strand), []).append(strand)
    return [_explain(machine, strands) for strands in groups.values()]


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


def _verb(warps: tuple[int, ...]) -> str:
    return "waits" if len(warps) == 1 else "wait"


def plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _explain(machine: Machine, strands: list[Strand]) -> Finding:
    wait = strands[0].wait
    cta = strands[0].cta
    warps = _warps(strands)
    who = "warp " + str(warps[0]) if len(warps) == 1 else "warps " + ", ".join(map(str, warps))
    location = machine.location(wait.site) if wait is not None else None
    where = (location,) if location else ()
    if wait is None or wait.kind == "spin":
        return Finding(
            "deadlock", "error", f"{who} of CTA {cta.linear} polls memory for ever: nobody can change what it waits for",
            "check which thread should write the value, and that it runs at the same time", where, (),
            cta.linear, warps, (), {"waits": "memory"},
        )  # fmt: skip
    if wait.kind == "mbarrier.wait":
        return _mbarrier(machine, wait, cta, who, warps, where)
    if wait.kind == "bar.sync":
        b = wait.barrier  # type: ignore[attr-defined]
        needed = 32 * cta.live_warps if b.expected in (None, -1) else b.expected
        name = "cta_sync" if b.index == 0 else f"named barrier {b.index}"
        others = [s for s in machine.live if s.cta is cta and s not in strands]
        elsewhere = (
            ", ".join(sorted({_words(machine, s) for s in others}))
            or "every other warp has exited or never gets there"
        )
        return Finding(
            "deadlock", "error",
            f"{who} of CTA {cta.linear} {_verb(warps)} at {name}: {b.arrived} of {needed} threads have arrived; {elsewhere}",
            f"let every warp that {name} counts reach it, the same number of times; do not put it inside a branch that only some warps take",
            where, (name,), cta.linear, warps, (), {"waits": name, "arrived": b.arrived, "expected": needed},
        )  # fmt: skip
    if wait.kind == "barrier.cluster.wait":
        return Finding(
            "deadlock", "error", f"{who} of CTA {cta.linear} {_verb(warps)} at the cluster barrier, which not every warp of every CTA reaches",
            "all threads of all CTAs of the cluster must arrive", where, ("cluster barrier",), cta.linear,
            warps, (), {"waits": "cluster barrier"},
        )  # fmt: skip
    return Finding(
        "deadlock", "error", f"{who} of CTA {cta.linear} {_verb(warps)} for free TMEM columns for ever",
        "allocate TMEM once per CTA and free it before the kernel ends", where, (), cta.linear, warps, (),
        {"waits": "tcgen05.alloc"},
    )  # fmt: skip


def _words(machine: Machine, strand: Strand) -> str:
    wait = strand.wait
    warps = _warps([strand])
    who = "warp " + str(warps[0]) if len(warps) == 1 else "warps " + ", ".join(map(str, warps))
    if wait is None:
        return f"{who} is running"
    location = machine.location(wait.site)
    at = f" (line {location.line})" if location else ""
    name = getattr(getattr(wait, "barrier", None), "name", None)
    return f"{who} {_verb(warps)} in {wait.kind}{' on `' + name + '`' if name else ''}{at}"


def _mbarrier(
    machine: Machine, wait: Any, cta: Any, who: str, warps: tuple[int, ...], where: tuple[Any, ...]
) -> Finding:
    bar = wait.barrier
    state = bar.describe()
    seen = bar.expected - bar.pending
    parts = [
        f"{who} of CTA {cta.linear} {_verb(warps)} for ever on `{bar.name}` for the phase with parity {wait.parity}"
    ]
    parts.append(
        f"its current phase {bar.generation} (parity {bar.parity}) has seen {seen} of {plural(bar.expected, 'arrival')}"
    )
    if bar.tx:
        parts.append(
            f"and misses {plural(bar.tx, 'byte')}"
            if bar.tx > 0
            else f"and has received {plural(-bar.tx, 'byte')} more than were announced"
        )
    cause, fix = _cause(bar, wait)
    sites = [
        machine.location(s)
        for s in dict.fromkeys([a.site for a in bar.history + bar.last_history] + [bar.init_site])
        if s >= 0
    ]
    locations = where + tuple(s for s in dict.fromkeys(sites) if s is not None and s not in where)
    return Finding(
        "deadlock", "error", "; ".join([parts[0], " ".join(parts[1:])]) + f". {cause}", fix, locations, (bar.name,), cta.linear, warps, (),
        {"waits": "mbarrier", "parity_waited_for": wait.parity, **state},
    )  # fmt: skip


def _cause(bar: Any, wait: Any) -> tuple[str, str]:
    """The usual causes, most specific first: (sentence, fix)."""
    seen = bar.expected - bar.pending
    if bar.tx > 0 and bar.pending == 0:
        return (
            "All arrivals came, but fewer bytes were copied than expect_tx announced.",
            "make the byte count of expect_tx equal to the bytes that the TMA loads of this stage deliver (box elements times element size, all operands)",
        )
    if bar.tx < 0:
        return (
            "More bytes arrived than expect_tx announced, so the phase cannot complete.",
            "make the byte count of expect_tx equal to the bytes that the TMA loads of this stage deliver",
        )
    if seen == 0 and not bar.history and bar.generation == 0:
        return (
            "Nobody has ever arrived at it.",
            "signal it: tcgen05.commit after the MMA, mbarrier.arrive.expect_tx with the TMA loads, or mbarrier.arrive by the consumers",
        )
    if seen == 0 and bar.generation > 0 and bar.parity == wait.parity:
        return (
            f"It has completed {plural(bar.generation, 'phase')}; the wait asks for one more than anybody signals (a phase that does not match the rounds).",
            "start the phase at 0 and flip it after every completed wait on this barrier; a producer that waits for free stages starts with parity 1",
        )
    if seen:
        return (
            f"{plural(bar.pending, 'arrival')} {'is' if bar.pending == 1 else 'are'} missing.",
            "make the count given to mbarrier.init equal to the number of arrivals of one phase (threads that execute arrive, plus commits)",
        )
    return (
        "No arrival is under way.",
        "check the initial phase, the stage index and that every role executes the same number of rounds",
    )
