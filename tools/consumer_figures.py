"""Draw the figures of exercise 12, from an emulated run of its solution: python tools/consumer_figures.py [--check]

The figure of events shows an order, never times: the events of an emulated run, numbered as they happen.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import solution_figures
from ladder_figures import TILE_COLOURS, Event, build, run
from solution_figures import kernel_source
from svg import Drawing

EXERCISE = "exercise_12"
SEED = 0  # an order in which consumer 0 begins a tile while the accumulator of consumer 1 is still being read
TILES, K_TILES = 3, 4
CONSUMER_COLOURS = (TILE_COLOURS[0], TILE_COLOURS[2])
B_COLOUR = TILE_COLOURS[1]


def draw_consumers() -> Drawing:
    """Who holds and computes which part of the tile. A drawing, no run."""
    drawing = Drawing(
        860,
        375,
        "A tile of 512 by 256 for two consumers",
        "Four strips of 128 rows: strips 0 and 1 belong to consumer 0, strips 2 and 3 to consumer 1. Strips 0 and 2 are"
        " loaded, computed and written back in the CTA of rank 0, strips 1 and 3 in that of rank 1. B is staged once: rows"
        " 0 to 127 in the CTA of rank 0, rows 128 to 255 in that of rank 1. Both consumers read both halves.",
    )
    left, top, height, half = 190, 96, 66, 150
    for rank in range(2):
        x = left + rank * half
        drawing.box(x, 34, half - 4, 40, B_COLOUR)
        drawing.text(x + half / 2, 52, f"B, rows {128 * rank} to {128 * rank + 127}", 12, bold=True)
        drawing.text(x + half / 2, 67, f"in the CTA of rank {rank}", 11)
    for strip in range(4):
        consumer, rank = divmod(strip, 2)
        y = top + strip * height + consumer * 10
        rows = f"rows {128 * strip} to {128 * strip + 127}"
        drawing.box(20, y, 150, height - 4, CONSUMER_COLOURS[consumer])
        drawing.text(95, y + 22, f"A, {rows}", 12, bold=True)
        drawing.text(95, y + 38, f"A_smem[stage, {consumer}]", 11)
        drawing.text(95, y + 53, f"in the CTA of rank {rank}", 11)
        drawing.box(left, y, 2 * half - 4, height - 4, CONSUMER_COLOURS[consumer])
        columns = f"columns {256 * consumer} to {256 * consumer + 255}"
        drawing.text(left + half, y + 25, f"D, {rows}", 12, bold=True)
        drawing.text(left + half, y + 43, f"TMEM of rank {rank}, {columns}", 11)
    for consumer in range(2):
        y = top + consumer * (2 * height + 10)
        x = left + 2 * half + 14
        drawing.line(x, y + 2, x, y + 2 * height - 6)
        drawing.text(x + 12, y + 45, f"consumer {consumer}", 14, "start", bold=True)
        drawing.text(x + 12, y + 65, f"one MMA of 256 x 256 by both CTAs: warp {consumer}", 12, "start")
        drawing.text(x + 12, y + 83, f"write-back: warpgroup {consumer} of each CTA", 12, "start")
    drawing.text(left + half, 22, "one B for both consumers", 12)
    return drawing


@dataclass(frozen=True)
class Mark:
    """A place in the order of events: its row, tile and label."""

    row: str
    tile: int
    label: str


def marks(events: list[Event]) -> list[Mark]:
    """Loads, MMAs of a K tile, and when accumulators go to write-back and come back, in the order of the run."""
    out: list[Mark] = []
    counts: dict[str, int] = {}
    for event in events:
        row, per_tile = "", 1
        if event.kind == "load":
            row, per_tile = "load", 2 * K_TILES  # A of both consumers
        elif event.kind == "mma":
            row, per_tile = f"mma {event.number // 256}", 4 * K_TILES
        elif event.kind == "phase" and event.name.startswith("acc_"):
            row = event.name
        if not row:
            continue
        count = counts.get(row, 0)
        counts[row] = count + 1
        tile, inside = divmod(count, per_tile)
        step = per_tile // K_TILES  # instructions of one K tile
        if per_tile == 1:
            out.append(Mark(row, tile, ""))
        elif inside % step == 0:
            out.append(Mark(row, tile, str(inside // step)))
    return out


def overlaps(order: list[Mark]) -> bool:
    """Consumer 0 issues an MMA of another tile between acc_full[1] and acc_empty[1] of one."""
    for tile in range(TILES - 1):
        start, end = (order.index(Mark(name, tile, "")) for name in ("acc_full[1]", "acc_empty[1]"))
        if Mark("mma 0", tile + 1, "0") in order[start:end]:
            return True
    return False


def draw_events(order: list[Mark], width: int = 900) -> Drawing:
    """One row for the loads, one for the MMAs of each consumer, one for each accumulator in the hands of write-back."""
    rows = {
        "load": "TMA loads",
        "mma 0": "MMAs of consumer 0",
        "mma 1": "MMAs of consumer 1",
        "acc 0": "write-back has acc. 0",
        "acc 1": "write-back has acc. 1",
    }
    left, top, height = 150, 40, 40
    step = (width - left - 20) / len(order)
    names = {"load": "TMA load of K tile", "mma 0": "consumer 0, K tile", "mma 1": "consumer 1, K tile"}
    spoken = "; ".join(
        f"{names.get(mark.row, mark.row)} {mark.label}".strip() + f" of tile {mark.tile}" for mark in order
    )
    title = "Two consumers in one cluster, three tiles"
    drawing = Drawing(width, top + len(rows) * height + 40, title, f"In this order, in the leader: {spoken}.")
    for r, label in enumerate(rows.values()):
        y = top + r * height
        drawing.text(left - 10, y + 19, label, 11.5, "end", bold=True)
        drawing.line(left, y + 34, width - 20, y + 34)
    for i, mark in enumerate(order):
        x = left + i * step
        if mark.row in rows:
            y = top + list(rows).index(mark.row) * height
            drawing.box(x, y, step - 1, 28, TILE_COLOURS[mark.tile])
            drawing.text(x + step / 2, y + 18, mark.label, 9.5)
        elif mark.row.startswith("acc_full"):
            consumer = mark.row[-2]
            end = order.index(Mark(f"acc_empty[{consumer}]", mark.tile, ""))
            y = top + list(rows).index(f"acc {consumer}") * height
            drawing.box(x, y, (end - i + 1) * step - 1, 28, TILE_COLOURS[mark.tile])
    for tile in range(TILES):
        drawing.box(left + tile * 90, 10, 14, 14, TILE_COLOURS[tile])
        drawing.text(left + tile * 90 + 20, 22, f"tile {tile}", 12, "start")
    under = "order of events, from left to right; the numbers are K tiles"
    drawing.text(left + (width - left) / 2, top + len(rows) * height + 22, under, 12)
    return drawing


def figures(scratch: Path, seed: int = SEED) -> dict[str, Drawing]:
    """File name -> figure."""
    m, n, k = 512, 256 * TILES, 64 * K_TILES
    kernel = build(kernel_source(EXERCISE), scratch, M=m, N=n, K=k, SMS=2)
    order = marks(run(kernel, m, n, k, "random", seed))
    assert overlaps(order), "choose another SEED"
    return {"consumers.svg": draw_consumers(), "events.svg": draw_events(order)}


def main(argv: list[str] | None = None) -> int:
    """What `solution_figures.main` does, for the figures of this exercise."""
    return solution_figures.main(
        "consumer_figures.py",
        lambda scratch: {f"{EXERCISE}/{name}": drawing.svg() for name, drawing in figures(scratch).items()},
        argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
