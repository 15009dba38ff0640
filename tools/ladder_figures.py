"""Draw the figures of exercises 09 to 11, most of them from emulated runs of their solutions: python tools/ladder_figures.py [--check]

Each figure shows an order of events, never times: the events of an emulated run, numbered as they happen.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

COURSE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(COURSE))

import emulator  # noqa: E402
import emulator.lowering  # noqa: E402  before kernels are built: barriers keep their names
from emulator.machine.mbarrier import Mbarrier  # noqa: E402
from emulator.scheduler import Machine  # noqa: E402
from emulator.tile_record import TileRecord  # noqa: E402

INK, FAINT, RED = "#1f2933", "#9aa5b1", "#b91c1c"
SEED_10 = 35  # an order in which all three roles are at work side by side
TILE_COLOURS = ("#dbeafe", "#dcfce7", "#ffedd5", "#ede9fe")


@dataclass(frozen=True)
class Event:
    """Something that happened in CTA 0. `kind`: load, mma, phase, ld, store; `name`: barrier or nothing.

    `number`: column of A's box for a load, parity of the completed phase, TMEM column for mma and ld.
    """

    kind: str
    name: str
    number: int


@contextmanager
def recording(events: list[Event]) -> Iterator[None]:
    """Append what CTA 0 does to `events` while the context lasts."""
    load, mma, read_back = TileRecord.load, TileRecord.mma, TileRecord.read_back
    update, issue, start = Mbarrier.update, Machine.issue, Machine.run

    def on_load(
        self: TileRecord, cta: Any, warp: int, tensor: int, corner: tuple[int, ...], nbytes: int
    ) -> None:
        load(self, cta, warp, tensor, corner, nbytes)
        if cta.linear == 0 and tensor == 0:
            events.append(Event("load", "", corner[0]))

    def on_mma(
        self: TileRecord, cta: Any, warp: int, column: int, columns: int, cells: int, overwrites: bool
    ) -> None:
        mma(self, cta, warp, column, columns, cells, overwrites)
        if cta.linear == 0:
            events.append(Event("mma", "", column))

    def on_read_back(
        self: TileRecord, cta: Any, warps: list[int], column: int, columns: int, lanes: int
    ) -> None:
        read_back(self, cta, warps, column, columns, lanes)
        if cta.linear == 0 and 0 in warps:
            events.append(Event("ld", "", column))

    def on_update(self: Mbarrier, arrivals: int = 0, tx: int = 0, *, site: int = -1, warp: int = -1) -> bool:
        done = update(self, arrivals, tx, site=site, warp=warp)
        if done and self.cta.linear == 0:
            events.append(Event("phase", self.name, 1 - self.parity))
        return done

    def on_issue(
        self: Machine, chain: Any, complete: Callable[[], None], what: str, site: int, payload: Any = None
    ) -> None:
        if what == "TMA store" and self.running is not None and self.running.cta.linear == 0:
            events.append(Event("store", "", 0))
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


def kernel_source(exercise: str) -> str:
    """The solution cell."""
    notebook = json.loads((COURSE / "solutions" / exercise / f"{exercise}.ipynb").read_text(encoding="utf-8"))
    return next("".join(c["source"]) for c in notebook["cells"] if c["id"] == "kernel")


def build(source: str, folder: Path, **params: Any) -> emulator.Kernel:
    """The kernel that a solution builds, ready to run. TVM reads the source from a file."""
    path = folder / "kernel.py"
    path.write_text(source, encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), namespace)
    return emulator.compile(namespace["build_kernel"](dtype="float16", **params))


def run(
    kernel: emulator.Kernel, m: int, n: int, k: int, schedule: str = "late", seed: int = 0
) -> list[Event]:
    """The events of CTA 0."""
    events: list[Event] = []
    a, b = np.ones((m, k), np.float16), np.ones((n, k), np.float16)
    with recording(events):
        result = kernel.run(a, b, np.empty((m, n), np.float16), schedule=schedule, seed=seed)
    assert result.findings == ()
    return events


# ------------------------------------------------------------------------------------------ drawing


class Drawing:
    """An SVG file with a title and a description."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" aria-labelledby="t d" font-family="Helvetica, Arial, sans-serif">\n'
            f'<title id="t">{title}</title>\n<desc id="d">{description}</desc>\n'
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        )
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str, stroke: str = INK) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" stroke="{stroke}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 11,
        anchor: str = "middle",
        fill: str = INK,
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{weight}>{text}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = FAINT, dash: str = "") -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}"{dashes}/>'
        )

    def svg(self) -> str:
        return self.head + "\n".join(self.parts) + "\n</svg>\n"


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
    """What each CTA of a pair holds, and who signals which barrier across the pair. A drawing, no run."""
    drawing = Drawing(
        900,
        330,
        "A pair of CTAs and its barriers",
        "CTA 0, the leader, holds rows 0 to 127 of A, rows 0 to 127 of B and rows 0 to 127 of the accumulator; CTA 1 holds"
        " rows 128 to 255 of each. One tcgen05.mma, issued in CTA 0, reads A and B of both and writes both accumulators."
        " The loads of CTA 1 signal full in CTA 0, and its write-back arrives at acc_empty in CTA 0; commits in CTA 0 arrive"
        " at empty and acc_full in both CTAs.",
    )
    for rank, x in ((0, 30), (1, 560)):
        drawing.box(x, 40, 310, 250, "#ffffff")
        name = f"CTA of rank {rank}" + (", the leader" if rank == 0 else "")
        drawing.text(x + 155, 28, name, 14, bold=True)
        rows = f"rows {128 * rank} to {128 * rank + 127}"
        for y, what, fill in ((56, "A", 0), (104, "B", 2), (152, "accumulator, 256 columns", 1)):
            drawing.box(x + 20, y, 270, 36, TILE_COLOURS[fill])
            drawing.text(x + 155, y + 23, f"{what}: {rows}", 12)
        barriers = ("full", "empty", "acc_full", "acc_empty")
        for b, barrier in enumerate(barriers):
            used = rank == 0 or barrier in ("empty", "acc_full")
            drawing.box(
                x + 20 + b * 69, 226, 63, 30, TILE_COLOURS[3] if used else "#ffffff", INK if used else FAINT
            )
            drawing.text(x + 51 + b * 69, 245, barrier, 11, fill=INK if used else FAINT)
        drawing.text(x + 155, 276, "barriers; pale ones are not used", 11)
    arrows = (
        (76, "one tcgen05.mma reads and writes both", 0),
        (216, "bytes of loads: to full", -1),
        (246, "arrivals of write-back: to acc_empty", -1),
        (186, "commits: to empty and acc_full of both", 1),
    )
    for y, label, sign in arrows:
        drawing.line(346, y, 554, y, RED)
        for tip, back in ((554, -8), (346, 8)):
            if sign == 0 or (sign > 0) == (tip == 554):
                drawing.line(tip, y, tip + back, y - 5, RED)
                drawing.line(tip, y, tip + back, y + 5, RED)
        drawing.text(450, y - 7, label, 11, fill=RED)
    return drawing


def exercise_11(scratch: Path) -> dict[str, Drawing]:
    return {"pair.svg": draw_pair()}


EXERCISES: dict[str, Callable[[Path], dict[str, Drawing]]] = {
    "exercise_09": exercise_09,
    "exercise_10": exercise_10,
    "exercise_11": exercise_11,
}


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: drawn, or up to date; 1: `--check` found a figure that the emulator draws differently now."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only; write nothing")
    check = parser.parse_args(argv).check
    stale = 0
    with tempfile.TemporaryDirectory() as folder:
        for exercise, draw in EXERCISES.items():
            for name, drawing in draw(Path(folder)).items():
                path = COURSE / "solutions" / exercise / "figures" / name
                if path.is_file() and path.read_text(encoding="utf-8") == drawing.svg():
                    continue
                if check:
                    print(
                        f"{path.relative_to(COURSE)} is not what the emulator draws; run: python tools/ladder_figures.py"
                    )
                    stale += 1
                    continue
                path.parent.mkdir(exist_ok=True)
                path.write_text(drawing.svg(), encoding="utf-8")
                print(f"drawn: {path.relative_to(COURSE)}")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
