"""Draw the figures of exercises 09 to 11, most of them from emulated runs of their solutions: python tools/ladder_figures.py [--check]

Each figure shows an order of events, never times: the events of an emulated run, numbered as they happen.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

COURSE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(COURSE), str(COURSE / "tools")]

import solution_figures  # noqa: E402
from solution_figures import kernel_source, run_source  # noqa: E402
from svg import FAINT, INK, Drawing  # noqa: E402

import emulator  # noqa: E402
import emulator.lowering  # noqa: E402  before kernels are built: barriers keep their names
from emulator.machine.mbarrier import Mbarrier  # noqa: E402
from emulator.scheduler import Machine  # noqa: E402
from emulator.tile_record import TileRecord  # noqa: E402

RED = "#b91c1c"
SEED_10 = 35  # an order in which all three roles are at work side by side
SEED_11 = 13  # the CTAs' loads take turns, and the MMAs of the second tile begin before the first one is read
TILE_COLOURS = ("#dbeafe", "#dcfce7", "#ffedd5", "#ede9fe")


@dataclass(frozen=True)
class Event:
    """Something that happened in a CTA. `kind`: load, mma, phase, ld, store; `name`: barrier or nothing.

    `number`: column of A's box for a load, parity of the completed phase, TMEM column for mma and ld.
    """

    kind: str
    name: str
    number: int
    cta: int = 0


@contextmanager
def recording(events: list[Event]) -> Iterator[None]:
    """Append what happens in all CTAs to `events` while the context lasts."""
    load, mma, read_back = TileRecord.load, TileRecord.mma, TileRecord.read_back
    update, issue, start = Mbarrier.update, Machine.issue, Machine.run

    def on_load(
        self: TileRecord, cta: Any, warp: int, tensor: int, corner: tuple[int, ...], nbytes: int
    ) -> None:
        load(self, cta, warp, tensor, corner, nbytes)
        if tensor == 0:
            events.append(Event("load", "", corner[0], cta.linear))

    def on_mma(
        self: TileRecord, cta: Any, warp: int, column: int, columns: int, cells: int, overwrites: bool
    ) -> None:
        mma(self, cta, warp, column, columns, cells, overwrites)
        events.append(Event("mma", "", column, cta.linear))

    def on_read_back(
        self: TileRecord, cta: Any, warps: list[int], column: int, columns: int, lanes: int
    ) -> None:
        read_back(self, cta, warps, column, columns, lanes)
        if 0 in warps:
            events.append(Event("ld", "", column, cta.linear))

    def on_update(self: Mbarrier, arrivals: int = 0, tx: int = 0, *, site: int = -1, warp: int = -1) -> bool:
        done = update(self, arrivals, tx, site=site, warp=warp)
        if done:
            events.append(Event("phase", self.name, 1 - self.parity, self.cta.linear))
        return done

    def on_issue(
        self: Machine, chain: Any, complete: Callable[[], None], what: str, site: int, payload: Any = None
    ) -> None:
        if what == "TMA store" and self.running is not None:
            events.append(Event("store", "", 0, self.running.cta.linear))
        issue(self, chain, complete, what, site, payload)

    def on_start(self: Machine) -> None:
        self.tile_record = TileRecord()  # under every schedule
        start(self)

    hooks: list[tuple[Any, str, Any]] = [
        (Machine, "run", on_start),
        (TileRecord, "load", on_load),
        (TileRecord, "mma", on_mma),
        (TileRecord, "read_back", on_read_back),
        (Mbarrier, "update", on_update),
        (Machine, "issue", on_issue),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in hooks]
    for owner, name, hook in hooks:
        setattr(owner, name, hook)
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def build(source: str, folder: Path, **params: Any) -> emulator.Kernel:
    """The kernel that a solution builds, ready to run."""
    return emulator.compile(run_source(source, folder)["build_kernel"](dtype="float16", **params))


def run(
    kernel: emulator.Kernel, m: int, n: int, k: int, schedule: str = "late", seed: int = 0, ctas: int = 1
) -> list[Event]:
    """The events of the first `ctas` CTAs."""
    events: list[Event] = []
    a, b = np.ones((m, k), np.float16), np.ones((n, k), np.float16)
    with recording(events):
        result = kernel.run(a, b, np.empty((m, n), np.float16), schedule=schedule, seed=seed)
    assert result.findings == ()
    return [event for event in events if event.cta < ctas]


# ------------------------------------------------------------------------------------------ exercise 09


def first_wave(kernel: emulator.Kernel, m: int, n: int, k: int) -> set[tuple[int, int]]:
    """(row, column) of the first tile of every CTA, from the corners of its first loads."""
    first: dict[int, dict[int, int]] = {}
    load = TileRecord.load

    def on_load(
        self: TileRecord, cta: Any, warp: int, tensor: int, corner: tuple[int, ...], nbytes: int
    ) -> None:
        load(self, cta, warp, tensor, corner, nbytes)
        first.setdefault(cta.linear, {}).setdefault(tensor, corner[1] // 128)

    TileRecord.load = on_load  # type: ignore[method-assign]
    try:
        kernel.run(np.ones((m, k), np.float16), np.ones((n, k), np.float16), np.empty((m, n), np.float16))
    finally:
        TileRecord.load = load  # type: ignore[method-assign]
    return {(place[0], place[1]) for place in first.values()}


def draw_order(source: str, scratch: Path) -> Drawing:
    rows, columns, ctas, cell = 8, 12, 16, 26
    drawing = Drawing(
        820,
        330,
        "The first wave, row by row and in groups",
        "8 by 12 tiles on 16 CTAs. Row by row, the first wave is the first row of tiles and four tiles of the second: it"
        " reads 2 slices of A and 12 of B. In groups of 8 rows it is the first two columns of tiles: 8 slices of A and 2 of B.",
    )
    for index, (group, what) in enumerate(((1, "row by row"), (8, "GROUP = 8, column by column"))):
        changed = re.sub(r"(?m)^GROUP = \d+", f"GROUP = {group}", source)
        kernel = build(changed, scratch, M=128 * rows, N=128 * columns, K=64, SMS=ctas)
        wave = first_wave(kernel, 128 * rows, 128 * columns, 64)
        a, b = {m for m, _ in wave}, {n for _, n in wave}
        left, top = 50 + index * 410, 62
        drawing.text(left + columns * cell / 2, 24, what, 14, bold=True)
        for n in b:
            drawing.box(left + n * cell, top - 22, cell - 2, 14, TILE_COLOURS[2])
        for m in a:
            drawing.box(left - 22, top + m * cell, 14, cell - 2, TILE_COLOURS[0])
        for m in range(rows):
            for n in range(columns):
                inside = (m, n) in wave
                fill = TILE_COLOURS[1] if inside else "#ffffff"
                drawing.box(
                    left + n * cell, top + m * cell, cell - 2, cell - 2, fill, INK if inside else FAINT
                )
        drawing.text(left - 15, top + rows * cell + 14, "A", 12)
        drawing.text(left + columns * cell + 10, top - 10, "B", 12)
        summary = f"{len(a)} + {len(b)} = {len(a) + len(b)} slices for {len(wave)} tiles"
        drawing.text(left + columns * cell / 2, top + rows * cell + 26, summary, 13)
    return drawing


def draw_phases(events: list[Event], k_tiles: int, stages: int) -> Drawing:
    """Loads of two tiles in the ring, by the phases that `full` completed."""
    done = [e for e in events if e.kind == "phase" and e.name.startswith("full[")][: 2 * k_tiles]
    step, left, top = 70, 100, 50
    drawing = Drawing(
        left + len(done) * step + 20,
        top + stages * 44 + 40,
        "Stages and parities of two tiles",
        f"Two tiles of {k_tiles} K tiles in {stages} stages, in the order of the completed phases of full: "
        + "; ".join(
            f"tile {i // k_tiles} K tile {i % k_tiles} in stage {e.name[5:-1]}, parity {e.number}"
            for i, e in enumerate(done)
        )
        + ".",
    )
    for s in range(stages):
        y = top + s * 44
        drawing.text(left - 14, y + 22, f"stage {s}", 13, "end", bold=True)
        drawing.line(left, y + 40, left + len(done) * step, y + 40)
    for i, event in enumerate(done):
        stage = int(event.name[5:-1])
        x, y = left + i * step, top + stage * 44
        drawing.box(x + 2, y, step - 4, 36, TILE_COLOURS[i // k_tiles])
        drawing.text(x + step / 2, y + 15, f"K tile {i % k_tiles}", 11)
        drawing.text(x + step / 2, y + 30, f"parity {event.number}", 11, fill=RED)
    for tile in range(2):
        middle = left + (tile + 0.5) * k_tiles * step
        drawing.text(middle, 28, f"tile {tile}", 14, bold=True)
    edge = left + k_tiles * step
    drawing.line(edge, 34, edge, top + stages * 44, RED, "4 3")
    drawing.text(
        left + len(done) * step / 2, top + stages * 44 + 24, "order of the loads, from left to right", 12
    )
    return drawing


def draw_events(events: list[Event], title: str, k_tiles: int, tiles: int, width: int) -> Drawing:
    """One row per role; tiles in colours. MMAs of one K tile (4 instructions) are one box."""
    rows = {
        "load": "TMA loads",
        "mma": "tcgen05.mma",
        "phase": "accumulator ready",
        "ld": "tcgen05.ld, warp 0",
        "store": "TMA store",
    }
    ready = ("acc_ready", "acc_full")
    counts = dict.fromkeys(rows, 0)
    per_tile: dict[str, int] = {"load": k_tiles, "mma": 4 * k_tiles, "phase": 1}
    per_tile |= {
        kind: sum(e.kind == kind for e in events) * k_tiles // sum(e.kind == "load" for e in events)
        for kind in ("ld", "store")
    }
    shown: list[tuple[str, int, int]] = []  # row, tile, number inside of the tile
    for event in events:
        if event.kind == "phase" and not event.name.startswith(ready):
            continue
        count = counts[event.kind]
        counts[event.kind] += 1
        tile, inside = divmod(count, per_tile[event.kind])
        if tile >= tiles or (event.kind == "mma" and inside % 4):
            continue
        number = inside // 4 if event.kind == "mma" else inside
        shown.append((event.kind, tile, number))
    left, top, height = 140, 40, 40
    step = (width - left - 20) / len(shown)
    words = {kind: "K tile" for kind in ("load", "mma")}
    spoken = "; ".join(
        f"{rows[kind]} tile {tile} {words.get(kind, '')} {number}".replace("  ", " ")
        for kind, tile, number in shown
    )
    drawing = Drawing(width, top + len(rows) * height + 40, title, f"In this order: {spoken}.")
    for r, label in enumerate(rows.values()):
        y = top + r * height
        drawing.text(left - 12, y + 20, label, 12, "end", bold=True)
        drawing.line(left, y + 34, width - 20, y + 34)
    for i, (kind, tile, number) in enumerate(shown):
        x, y = left + i * step, top + list(rows).index(kind) * height
        drawing.box(x, y, step - 1, 28, TILE_COLOURS[tile])
        if kind in ("load", "mma"):
            drawing.text(x + step / 2, y + 18, str(number), 9.5)
    for tile in range(tiles):
        drawing.box(left + tile * 90, 10, 14, 14, TILE_COLOURS[tile])
        drawing.text(left + tile * 90 + 20, 22, f"tile {tile}", 12, "start")
    under = "order of events, from left to right; the numbers are K tiles"
    drawing.text(left + (width - left) / 2, top + len(rows) * height + 22, under, 12)
    return drawing


def exercise_09(scratch: Path) -> dict[str, Drawing]:
    source = kernel_source("exercise_09")
    m, n, k = 384, 128, 320
    events = run(build(source, scratch, M=m, N=n, K=k, SMS=1), m, n, k)
    return {
        "order.svg": draw_order(source, scratch),
        "phases.svg": draw_phases(events, 5, 4),
        "events.svg": draw_events(events, "One CTA, two tiles", 5, 2, 900),
    }


# ------------------------------------------------------------------------------------------ exercise 10


def draw_roles() -> Drawing:
    """The three roles, the two rings between them, and who completes which barrier. A drawing, no run."""
    drawing = Drawing(
        900,
        250,
        "Three roles, two rings, four barriers",
        "The producer fills the ring of four stages, the MMA role empties it; the MMA role fills the ring of two"
        " accumulators, write-back empties it. full: completed by the producer's arrival and the bytes of TMA, waited for"
        " by MMA. empty: completed by a commit, waited for by the producer. acc_full: completed by a commit, waited for"
        " by write-back. acc_empty: completed by 128 arrivals of write-back, waited for by MMA.",
    )
    roles = (("producer", "1 thread", 20), ("MMA", "1 thread", 385), ("write-back", "128 threads", 750))
    for name, who, x in roles:
        drawing.box(x, 85, 130, 70, TILE_COLOURS[0])
        drawing.text(x + 65, 115, name, 15, bold=True)
        drawing.text(x + 65, 136, who, 12)
    rings = (
        (205, 4, "stages in SMEM", "full", "arrival + bytes of TMA", "empty", "tcgen05.commit"),
        (570, 2, "accumulators in TMEM", "acc_full", "tcgen05.commit", "acc_empty", "128 arrivals"),
    )
    for x, depth, what, full, full_by, empty, empty_by in rings:
        width = 120 / depth
        for s in range(depth):
            drawing.box(x + s * width, 100, width - 4, 40, TILE_COLOURS[2 + (depth == 2)])
            drawing.text(x + s * width + (width - 4) / 2, 125, str(s), 12)
        drawing.text(x + 58, 162, what, 12)
        for y, label, by, sign in ((62, full, full_by, 1), (200, empty, empty_by, -1)):
            left, right = x - 40, x + 160
            drawing.line(left, y, right, y, RED)
            tip = right if sign > 0 else left
            drawing.line(tip, y, tip - 8 * sign, y - 5, RED)
            drawing.line(tip, y, tip - 8 * sign, y + 5, RED)
            drawing.text(x + 60, y - 8, label, 13, fill=RED, bold=True)
            drawing.text(x + 60, y + 17, by, 11, fill=RED)
    drawing.text(450, 240, "a red arrow leads from who completes the phase to who waits for it", 12)
    return drawing


def exercise_10(scratch: Path) -> dict[str, Drawing]:
    source = kernel_source("exercise_10")
    m, n, k = 384, 256, 192
    events = run(build(source, scratch, M=m, N=n, K=k, SMS=1), m, n, k, "random", SEED_10)
    title = "Three roles in one CTA, three tiles"
    return {"roles.svg": draw_roles(), "events.svg": draw_events(events, title, 3, 3, 900)}


# ------------------------------------------------------------------------------------------ exercise 11


def draw_pair() -> Drawing:
    """Which rows of A, B and D each CTA of the pair holds. A drawing, no run."""
    drawing = Drawing(
        900,
        330,
        "A tile of two CTAs",
        "The tile of D is 256 by 256. The CTA of rank 0 holds rows 0 to 127 of A, rows 0 to 127 of B and rows 0 to 127 of"
        " the accumulator, with all 256 columns. The CTA of rank 1 holds rows 128 to 255 of A, of B and of the"
        " accumulator. The tensor core of each CTA multiplies its own rows of A by B from both CTAs.",
    )
    colours = (TILE_COLOURS[0], TILE_COLOURS[2])
    x0, y0, half = 250, 96, 100
    for rank in range(2):
        y, b = y0 + rank * half, x0 + rank * half
        drawing.box(x0 - 90, y, 60, half - 4, colours[rank])
        drawing.text(x0 - 60, y + 42, "A", 15, bold=True)
        drawing.text(x0 - 60, y + 62, f"{128 * rank} to {128 * rank + 127}", 10.5)
        drawing.box(b, y0 - 62, half - 4, 40, colours[rank])
        drawing.text(b + 48, y0 - 44, "B", 15, bold=True)
        drawing.text(b + 48, y0 - 28, f"{128 * rank} to {128 * rank + 127}", 10.5)
        drawing.box(x0, y, 2 * half - 4, half - 4, colours[rank])
        drawing.text(x0 + half, y + 46, f"accumulator of rank {rank}", 13, bold=True)
        drawing.text(x0 + half, y + 66, "128 lanes, 256 columns of TMEM", 10.5)
        card = y0 + rank * half
        drawing.box(540, card, 330, half - 12, colours[rank])
        role = "the leader" if rank == 0 else "its peer"
        drawing.text(705, card + 20, f"CTA of rank {rank}, {role}", 13, bold=True)
        drawing.text(705, card + 42, f"loads rows {128 * rank} to {128 * rank + 127} of A and of B", 12)
        who = (
            "issues every MMA, for both" if rank == 0 else "issues no MMA; its tensor core works all the same"
        )
        drawing.text(705, card + 62, who, 12)
    drawing.text(20, 24, "one K tile, one tile of D; colours: which CTA holds it", 12, "start")
    drawing.text(x0 + half, y0 + 2 * half + 22, "the tile of D, 256 x 256", 12)
    return drawing


def phases_by_cta(events: list[Event]) -> dict[tuple[str, int], int]:
    """(barrier, CTA) -> phases that were completed there."""
    counts: dict[tuple[str, int], int] = {}
    for event in events:
        if event.kind == "phase":
            key = (event.name.split("[")[0], event.cta)
            counts[key] = counts.get(key, 0) + 1
    return counts


def draw_barriers(events: list[Event], k_tiles: int, tiles: int) -> Drawing:
    """Who signals which barrier where; the phases are counted in the run."""
    counts = phases_by_cta(events)
    rows = (
        ("full", "one arrival in rank 0, TMA bytes of both CTAs", "MMA"),
        ("empty", "one commit, to both", "producers"),
        ("acc_full", "one commit, to both", "write-back"),
        ("acc_empty", "128 + 128 threads", "MMA"),
    )
    phases = "; ".join(
        f"{name}: {counts.get((name, 0), 0)} in rank 0, {counts.get((name, 1), 0)} in rank 1"
        for name, _, _ in rows
    )
    drawing = Drawing(
        900,
        350,
        "Four barriers in two CTAs",
        f"Completed phases in an emulated run of {tiles} tiles with {k_tiles} K tiles each. {phases}. Signals that cross"
        " from one CTA to the other: TMA bytes and arrivals of write-back from rank 1 to rank 0, commits from rank 0 to"
        " rank 1.",
    )
    for rank, x in enumerate((20, 610)):
        drawing.box(x, 40, 270, 264, TILE_COLOURS[0] if rank == 0 else TILE_COLOURS[2])
        drawing.text(
            x + 135, 30, f"CTA of rank {rank}" + (", the leader" if rank == 0 else ""), 14, bold=True
        )
    for r, (name, by, waits) in enumerate(rows):
        y = 54 + r * 62
        for rank, x in enumerate((34, 624)):
            done = counts.get((name, rank), 0)
            drawing.box(x, y, 242, 46, "#ffffff" if done else "#f1f5f9", INK if done else FAINT)
            fill = INK if done else FAINT
            drawing.text(x + 10, y + 20, name, 13, "start", fill, bold=True)
            what = f"{done} phases, awaited by {waits}" if done else "0 phases: initialised, not used"
            if done and waits == "producers":
                what = f"{done} phases, awaited by the producer"
            drawing.text(x + 10, y + 37, what, 10.5, "start", fill)
        to_leader = counts.get((name, 1), 0) == 0
        tip, tail, sign = (290, 610, -1) if to_leader else (610, 290, 1)
        middle = y + 26
        drawing.line(tail, middle, tip, middle, RED)
        for side in (-5, 5):
            drawing.line(tip, middle, tip - 8 * sign, middle + side, RED)
        drawing.text(450, middle - 8, by, 12, fill=RED)
        drawing.text(
            450, middle + 16, "from rank 1 to rank 0" if to_leader else "from rank 0 to rank 1", 10.5
        )
    under = f"phases: completed in an emulated run of {tiles} tiles with {k_tiles} K tiles each"
    drawing.text(450, 332, under, 12)
    return drawing


def draw_pair_events(events: list[Event], k_tiles: int, width: int) -> Drawing:
    """A row per CTA and kind; one commit that arrives in both CTAs is one column, and so are the MMAs of a K tile."""
    kinds = ("load", "full", "mma", "empty", "acc_full", "ld", "acc_empty")
    labels = {
        "load": "TMA loads",
        "full": "full",
        "mma": "tcgen05.mma",
        "empty": "empty",
        "acc_full": "acc_full",
        "ld": "tcgen05.ld, warp 0",
        "acc_empty": "acc_empty",
    }
    counts: dict[tuple[str, int], int] = {}
    columns: list[tuple[str, dict[int, int]]] = []  # kind, CTA -> how many of this kind came before
    for event in events:
        kind = event.name.split("[")[0] if event.kind == "phase" else event.kind
        number = counts.get((kind, event.cta), 0)
        counts[kind, event.cta] = number + 1
        if kind not in kinds or (kind == "mma" and number % 4):
            continue
        if kind in ("empty", "acc_full") and event.cta == 1 and columns[-1][0] == kind:
            columns[-1][1][1] = number  # the other half of the same commit
            continue
        columns.append((kind, {event.cta: number // 4 if kind == "mma" else number}))
    rows = [(kind, cta) for cta in range(2) for kind in kinds if (kind, cta) in counts]
    left, top, height = 190, 44, 26
    step = (width - left - 16) / len(columns)
    per_tile = {"load": k_tiles, "full": k_tiles, "mma": k_tiles, "empty": k_tiles, "ld": 4}
    spoken = "; ".join(
        f"{labels[kind]} {number % per_tile.get(kind, 1)} of tile {number // per_tile.get(kind, 1)} in"
        f" {'both CTAs' if len(at) == 2 else f'rank {min(at)}'}"
        for kind, at in columns
        for number in [min(at.values())]
    )
    total = top + len(rows) * height + 22
    drawing = Drawing(
        width, total + 34, "Two CTAs, two tiles", f"In this order (numbers count from 0): {spoken}."
    )
    place = {row: top + i * height + (12 if row[1] else 0) for i, row in enumerate(rows)}
    for (kind, cta), y in place.items():
        drawing.text(left - 10, y + 15, f"rank {cta}: {labels[kind]}", 11, "end", bold=True)
        drawing.line(left, y + 22, width - 16, y + 22, "#e5e7eb")
    for i, (kind, at) in enumerate(columns):
        x = left + i * step
        if len(at) == 2:
            drawing.line(x + step / 2, place[kind, 0] + 20, x + step / 2, place[kind, 1], RED)
        for cta, number in at.items():
            tile, inside = divmod(number, per_tile.get(kind, 1))
            y = place[kind, cta]
            drawing.box(x, y, step - 1, 20, TILE_COLOURS[tile])
            if kind in per_tile:
                drawing.text(x + (step - 1) / 2, y + 14, str(inside), 9)
    for tile in range(2):
        drawing.box(left + tile * 90, 12, 14, 14, TILE_COLOURS[tile])
        drawing.text(left + tile * 90 + 20, 24, f"tile {tile}", 12, "start")
    drawing.line(left + 190, 12, left + 190, 28, RED)
    drawing.text(left + 200, 24, "one commit that arrives in both CTAs", 12, "start")
    under = "order of events, from left to right; the numbers are K tiles, and slices of 64 columns for tcgen05.ld"
    drawing.text(left + (width - left) / 2, total + 18, under, 12)
    return drawing


def exercise_11(scratch: Path) -> dict[str, Drawing]:
    m, n, k = 512, 256, 256
    kernel = build(kernel_source("exercise_11"), scratch, M=m, N=n, K=k, SMS=2)
    events = run(kernel, m, n, k, "random", SEED_11, ctas=2)
    return {
        "pair.svg": draw_pair(),
        "barriers.svg": draw_barriers(events, 4, 2),
        "events.svg": draw_pair_events(events, 4, 960),
    }


EXERCISES: dict[str, Callable[[Path], dict[str, Drawing]]] = {
    "exercise_09": exercise_09,
    "exercise_10": exercise_10,
    "exercise_11": exercise_11,
}


def figures(scratch: Path) -> Iterator[tuple[str, str]]:
    """File below solutions/, text."""
    for exercise, draw in EXERCISES.items():
        for name, drawing in draw(scratch).items():
            yield f"{exercise}/{name}", drawing.svg()


def main(argv: list[str] | None = None) -> int:
    """What `solution_figures.main` does, for the figures of exercises 09 to 11."""
    return solution_figures.main("ladder_figures.py", lambda scratch: dict(figures(scratch)), argv)


if __name__ == "__main__":
    raise SystemExit(main())
