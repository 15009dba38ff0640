"""Draw the figures of exercise 15, from one emulated run of its solution: python tools/attention_figures.py [--check]

`tmem_map.svg` and `roles.svg` show when things happen in that run, in cycles of the timing model; `barriers.svg` shows who
arrived at which barrier and who waited there.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

COURSE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(COURSE), str(COURSE / "tools")]

import solution_figures  # noqa: E402
from solution_figures import kernel_source, run_source  # noqa: E402
from svg import GREY, INK, Drawing  # noqa: E402

import emulator  # noqa: E402
from emulator.instructions import tcgen05  # noqa: E402
from emulator.timing.model import shared_memory_system  # noqa: E402
from emulator.timing.parameters import load  # noqa: E402
from emulator.timing.record import ClusterTrace, Recorder  # noqa: E402
from emulator.timing.simulate import Interval, Node  # noqa: E402

EXERCISE = "exercise_15"
TILES, BLOCKS, ROWS = (
    2,
    3,
    128,
)  # tiles of the CTA, blocks of keys of each, rows of a Q tile and keys of a block
LOUD = 1  # the block, in the order of the run, with larger scores: O is rescaled there
GRANULE = 8  # columns of TMEM that the map tells apart
O_COLUMN = 256  # where both O begin
ROLES = {
    **dict.fromkeys(range(4), "softmax 0"),
    **dict.fromkeys(range(4, 8), "softmax 1"),
    **dict.fromkeys(range(8, 12), "correction"),
    12: "MMA",
    13: "load",
    14: "store",
}
S_COLOURS, P_COLOURS, O_COLOURS = ("#bfdbfe", "#3b82f6"), ("#bbf7d0", "#22c55e"), ("#fde68a", "#f59e0b")
Q_COLOURS = ("#c7d2fe", "#fed7aa")
RESCALE, IDLE = "#fca5a5", "#e5e7eb"


@dataclass(frozen=True)
class Columns:
    """What an instruction touches in TMEM: columns [first, first + count) of an operand."""

    first: int
    count: int
    write: bool
    fresh: bool  # a write that keeps nothing of what was there


@dataclass
class ColumnRecorder(Recorder):
    """Also notes, for each MMA and each tcgen05.ld and .st of a warp in program order, which columns of TMEM it touches."""

    touched: dict[tuple[int, str], list[tuple[Columns, ...]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    now: tuple[Columns, ...] = ()

    def __post_init__(self) -> None:
        super().__init__(dry=False)

    def add(self, machine: Any, kind: str, site: int, *data: Any) -> None:
        super().add(machine, kind, site, *data)
        if kind in ("mma", "tmem"):
            self.touched[self._of(machine)[0].warps[0], kind].append(self.now)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this lasts, TMEM operands of the emulator's instructions are seen."""
        check_mma, ldst = tcgen05._check_mma, tcgen05._hb_ldst

        def on_mma(t: Any, op: Any, warp: int) -> None:
            check_mma(t, op, warp)
            d = Columns(op.d & 0xFFFF, op.plan.columns, True, not op.enable)
            a = (
                ()
                if op.a_tmem is None
                else (Columns(op.a_tmem & 0xFFFF, op.plan.idesc.k // 2, False, False),)
            )
            self.now = (d, *a)

        def on_ldst(t: Any, column: int, columns: int, *rest: Any) -> None:
            ldst(t, column, columns, *rest)
            self.now = (Columns(column, columns, bool(rest[-1]), bool(rest[-1])),)

        tcgen05._check_mma, tcgen05._hb_ldst = on_mma, on_ldst  # type: ignore[assignment]
        try:
            yield
        finally:
            tcgen05._check_mma, tcgen05._hb_ldst = check_mma, ldst


@dataclass(frozen=True)
class Touch:
    """An instruction at the columns of one operand, from `start` to `end` (cycles)."""

    columns: Columns
    start: float
    end: float
    warp: int


@dataclass
class Recorded:
    """A run: its events, what was done when, and the names of the named barriers."""

    trace: ClusterTrace
    intervals: list[Interval]
    touched: dict[tuple[int, str], list[tuple[Columns, ...]]]
    named: dict[int, str]
    begin: float = 0.0
    end: float = 0.0

    def lane(self, *lane: Any) -> list[Interval]:
        return sorted((i for i in self.intervals if i.lane == lane), key=lambda i: (i.start, i.end))

    def warp(self, warp: int) -> list[Interval]:
        return self.lane("warp", 0, 0, warp)

    def engine(self, name: str) -> list[Interval]:
        return self.lane("engine", 0, name)

    def mmas(self) -> list[tuple[Interval, tuple[Columns, ...]]]:
        return list(zip(self.engine("tensor core"), self.touched[12, "mma"], strict=True))

    def ldst(self, warp: int) -> list[tuple[Interval, tuple[Columns, ...]]]:
        found = [i for i in self.warp(warp) if i.kind == "tmem"]
        return list(zip(found, self.touched[warp, "tmem"], strict=True))

    def touches(self) -> list[Touch]:
        """What happens in TMEM, with the first warp of each warpgroup for all four."""
        every = [(12, i, c) for i, cs in self.mmas() for c in cs]
        every += [(w, i, c) for w in (0, 4, 8) for i, cs in self.ldst(w) for c in cs]
        return sorted((Touch(c, i.start, i.end, w) for w, i, c in every), key=lambda t: (t.start, t.end))


def build(scratch: Path) -> tuple[emulator.Kernel, dict[str, Any]]:
    """The solution for one CTA with two tiles, ready to run, and its module."""
    namespace = run_source(kernel_source(EXERCISE), scratch)
    sizes = {"SQ": TILES * 2 * ROWS, "SKV": BLOCKS * ROWS}
    return emulator.compile(
        namespace["build_attention"](B=1, HQ=1, HKV=1, causal=0, SMS=1, **sizes)
    ), namespace


def tensors() -> list[np.ndarray]:
    """Random Q, K, V, and room for O; blocks are taken from the last one down."""
    random = np.random.default_rng(0)
    sizes = (TILES * 2 * ROWS, BLOCKS * ROWS, BLOCKS * ROWS)
    q, k, v = (random.standard_normal((1, n, 1, 128)).astype(np.float16) for n in sizes)
    first = (BLOCKS - 1 - LOUD) * ROWS
    k[:, first : first + ROWS] *= 4
    return [q, k, v, np.empty_like(q)]


def recorded(scratch: Path) -> Recorded:
    """Run the solution, on data and with all checks, then once more for its events, and give these times."""
    kernel, module = build(scratch)
    assert kernel.run(*tensors()).findings == ()
    recorder = ColumnRecorder()
    with recorder.listening():
        kernel.record(*tensors(), recorder=recorder)
    trace = recorder.clusters[0]
    p = load("sm_100a")
    memory = shared_memory_system(p, 1, trace.loaded, trace.stored, sum(trace.tensors.values()))
    node = Node(p, memory, intervals=True)
    node.run([trace])
    named = {
        module[name] + s: f"named {module[name] + s} ({name})" for name in ("FACTOR", "SUM") for s in (0, 1)
    }
    found = Recorded(trace, node.intervals, dict(recorder.touched), named)
    found.begin = min(i.start for i in found.engine("TMA load")) - 150
    found.end = max(i.end for i in found.intervals) + 50
    return found


# ------------------------------------------------------------------------------------------ the TMEM map


@dataclass(frozen=True)
class Life:
    """From the first write of something in TMEM to the last time that it is read. `what`: S, P or O."""

    what: str
    start: float
    end: float


def lives(touches: Sequence[Touch], granule: int) -> list[Life]:
    """Of the columns from `granule * GRANULE` on."""
    found: list[Life] = []
    column = granule * GRANULE
    for t in touches:
        if not t.columns.first <= column < t.columns.first + t.columns.count:
            continue
        if not t.columns.write or not t.columns.fresh or t.warp == 8:
            found[-1] = Life(found[-1].what, found[-1].start, t.end)
        else:
            what = "O" if column >= O_COLUMN else "S" if t.warp == 12 else "P"
            found.append(Life(what, t.start, t.end))
    return found


class Axis:
    """Cycles from left to right, with numbers."""

    def __init__(self, run: Recorded, left: float, right: float) -> None:
        self.begin, self.left = run.begin, left
        self.scale = (right - left) / (run.end - run.begin)
        self.cycles = run.end - run.begin

    def __call__(self, time: float) -> float:
        return round(self.left + (time - self.begin) * self.scale, 1)

    def draw(self, drawing: Drawing, top: float, bottom: float) -> None:
        for cycles in range(0, int(self.cycles), 1000):
            x = self(self.begin + cycles)
            drawing.line(x, top, x, bottom, "#d1d5db")
            if cycles % 2000 == 0:
                drawing.text(x, bottom + 15, f"{cycles:,}", 11, fill=GREY)
        drawing.text(self(self.begin + self.cycles / 2), bottom + 31, "modelled cycles", 12)


def merged(intervals: Iterable[tuple[Any, float, float]], gap: float = 1.0) -> list[tuple[Any, float, float]]:
    """Neighbours with the same key and less than `gap` cycles between them are one."""
    out: list[tuple[Any, float, float]] = []
    for key, start, end in intervals:
        if out and out[-1][0] == key and start - out[-1][2] < gap:
            out[-1] = (key, out[-1][1], max(end, out[-1][2]))
        else:
            out.append((key, start, end))
    return out


def products(run: Recorded) -> list[tuple[str, int, int, float, float]]:
    """(S or O, Q tile, block from the start of the run, start, end) of the products of the tensor core, part by part."""
    out: list[tuple[str, int, int, float, float]] = []
    counts: Counter[int] = Counter()
    flat = []
    for i, columns in run.mmas():
        d = columns[0].first
        flat.append(((d, counts[d] // 8), i.start, i.end))
        counts[d] += 1
    for (d, block), start, end in merged(flat):
        out.append(("O" if d >= O_COLUMN else "S", d % O_COLUMN // ROWS, block, start, end))
    return out


def rescales(run: Recorded) -> list[tuple[int, float, float]]:
    """(Q tile, start, end) of the times when warp 8 multiplies its rows of O."""
    stores = [
        ((c.first - O_COLUMN) // ROWS, i.start, i.end)
        for i, (c,) in run.ldst(8)
        if c.write and c.first >= O_COLUMN
    ]
    return merged(stores, 400)


def draw_tmem(run: Recorded, width: int = 960) -> Drawing:
    left, top, high = 150, 56, 0.75
    at = Axis(run, left, width - 16)
    bottom = top + 512 * high
    drawing = Drawing(
        width,
        int(bottom) + 44,
        "The TMEM map over time",
        f"512 columns from top to bottom, time from left to right, {TILES} tiles of {BLOCKS} blocks. Columns 0 to 127 hold S of Q tile 0,"
        " and P in the first 64 of them after that, until P V has read it; columns 128 to 255 the same for Q tile 1. O of Q tile 0"
        " is in columns 256 to 383, O of Q tile 1 in 384 to 511, from the first P V of a tile until correction has read it.",
    )
    at.draw(drawing, top, bottom)
    colours = {"S": S_COLOURS, "P": P_COLOURS, "O": O_COLOURS}
    touches = run.touches()
    boxes: dict[tuple[str, float, float], list[int]] = defaultdict(list)
    for granule in range(512 // GRANULE):
        for life in lives(touches, granule):
            boxes[life.what, at(life.start), at(life.end)].append(granule)
    for (what, x0, x1), granules in boxes.items():
        for first, count in ranges(granules):
            y = top + first * GRANULE * high
            drawing.box(x0, y, x1 - x0, count * GRANULE * high, colours[what][0], colours[what][0], 0.4)
    for what, s, block, start, end in products(run):
        y = top + (O_COLUMN * (what == "O") + s * ROWS) * high
        drawing.box(at(start), y, at(end) - at(start), ROWS * high, colours[what][1], colours[what][1], 0.4)
        if what == "S":
            drawing.text(
                (at(start) + at(end)) / 2,
                y + 64 * high + 5,
                str(block % BLOCKS),
                12,
                fill="#ffffff",
                bold=True,
            )
    for s, start, end in rescales(run):
        y = top + (O_COLUMN + s * ROWS) * high
        drawing.box(at(start), y, max(3.0, at(end) - at(start)), ROWS * high, "#dc2626", "#dc2626", 0.4)
    for row, label in enumerate(("S and P, Q tile 0", "S and P, Q tile 1", "O, Q tile 0", "O, Q tile 1")):
        y = top + row * ROWS * high
        drawing.line(left, y, width - 16, y, GREY)
        drawing.text(left - 10, y + ROWS * high / 2, label, 12.5, "end", bold=True)
        drawing.text(
            left - 10, y + ROWS * high / 2 + 16, f"columns {row * ROWS} to {row * ROWS + 127}", 10.5, "end"
        )
    drawing.line(left, bottom, width - 16, bottom, GREY)
    legend(
        drawing,
        left,
        [
            (S_COLOURS[1], "MMA writes S of a block"),
            (S_COLOURS[0], "S, not yet read"),
            (P_COLOURS[0], "P, not yet read"),
            (O_COLOURS[1], "MMA adds to O"),
            (O_COLOURS[0], "O"),
            ("#dc2626", "O is rescaled"),
        ],
    )
    return drawing


def ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """(first, count) of the runs of consecutive numbers."""
    out: list[tuple[int, int]] = []
    for n in sorted(numbers):
        if out and sum(out[-1]) == n:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((n, 1))
    return out


def legend(drawing: Drawing, x: float, entries: Sequence[tuple[str, str]], step: float = 0) -> None:
    for colour, text in entries:
        drawing.box(x, 16, 14, 14, colour)
        drawing.text(x + 20, 28, text, 12, "start")
        x += 42 + 6.2 * len(text)


# ------------------------------------------------------------------------------------------ the roles


def loads(run: Recorded) -> list[tuple[str, float, float]]:
    """(Q, K or V, start, end) of the TMA loads."""
    boxes = next(s.boxes for s in run.trace.strands if s.boxes)
    order = sorted(run.trace.tensors)  # the kernel's parameters: Q, K, V
    names = ["QKV"[order.index(tensor)] for tensor, _ in boxes]
    return [(n, i.start, i.end) for n, i in zip(names, run.engine("TMA load"), strict=True)]


def together(found: Sequence[tuple[str, float, float]], gap: float = 150) -> list[tuple[str, float, float]]:
    """Loads with less than `gap` cycles between them, with their names one after the other."""
    out: list[tuple[str, float, float]] = []
    for name, start, end in found:
        if out and start - out[-1][2] < gap:
            out[-1] = (f"{out[-1][0]} {name}", out[-1][1], end)
        else:
            out.append((name, start, end))
    return out


def busy(run: Recorded, warp: int) -> list[list[Interval]]:
    """What a warp does between two waits."""
    out: list[list[Interval]] = [[]]
    for i in run.warp(warp):
        if i.kind == "wait":
            out.append([])
        elif i.start >= run.begin:
            out[-1].append(i)
    return [piece for piece in out if piece]


def softmaxes(run: Recorded, warp: int) -> list[tuple[int, float, float]]:
    """(block from the start of the run, start, end): from the first load of its scores to the next wait."""
    columns = {id(i): c for i, (c,) in run.ldst(warp)}
    out: list[tuple[int, float, float]] = []
    count = 0
    for piece in busy(run, warp):
        before = len(out)
        for i in piece:
            c = columns.get(id(i))
            if c is not None and not c.write:
                if count % (ROWS // c.count) == 0:
                    out.append((len(out), i.start, i.end))
                count += 1
            elif len(out) > before:
                out[-1] = (out[-1][0], out[-1][1], max(out[-1][2], i.end))
    return out


def corrections(run: Recorded) -> list[tuple[str, int, float, float]]:
    """(rescale or write, Q tile, start, end) of what warp 8 does with O."""
    loaded = [((c.first - O_COLUMN) // ROWS, i.start, i.end) for i, (c,) in run.ldst(8) if not c.write]
    stored = rescales(run)
    out = []
    for s, start, end in merged(loaded, 600):
        again = [e for q, b, e in stored if q == s and start <= b <= end + 400]
        out.append(("rescale" if again else "write", s, start, max([end, *again])))
    return out


def draw_roles(run: Recorded, width: int = 960) -> Drawing:
    rows = ("TMA load", "tensor core", "softmax 0", "softmax 1", "correction", "TMA store")
    left, top, height = 110, 50, 48
    at = Axis(run, left, width - 16)
    bottom = top + len(rows) * height
    drawing = Drawing(
        width,
        bottom + 44,
        "The roles over time",
        f"{TILES} tiles of {BLOCKS} blocks in one CTA. The tensor core computes scores and P V of Q tile 0 and 1 in turns; while it works"
        " for one, the softmax warpgroup of the other one works. Correction rescales O in one block of each tile, and writes O back"
        " at the end of the tile, while the scores of the next tile are computed.",
    )
    at.draw(drawing, top, bottom)
    for r, label in enumerate(rows):
        drawing.text(left - 10, top + r * height + 30, label, 12.5, "end", bold=True)
        drawing.line(left, top + r * height + 43, width - 16, top + r * height + 43)

    def bar(row: str, start: float, end: float, text: str, fill: str) -> None:
        x, w, y = at(start), max(2.0, at(end) - at(start)), top + rows.index(row) * height + 13
        drawing.box(x, y, w, 26, fill, INK, 0.7)
        if text:
            drawing.text(x + w / 2, y + 17, text, 8.5 if w < 24 else 11)

    def above(row: str, start: float, end: float, text: str) -> None:
        drawing.text((at(start) + at(end)) / 2, top + rows.index(row) * height + 9, text, 10)

    for _, start, end in loads(run):
        bar("TMA load", start, end, "", IDLE)
    for names, start, end in together(loads(run)):
        above("TMA load", start, end, names)
    parts: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for what, s, block, start, end in products(run):
        parts[what, s, block].append((start, end))
    for (what, s, block), times in parts.items():
        label = f"{what}{block % BLOCKS}"
        for start, end in times:
            bar("tensor core", start, end, label if len(times) == 1 else "", Q_COLOURS[s])
        if len(times) > 1:
            above("tensor core", times[0][0], times[-1][1], label)
    for s in (0, 1):
        for block, start, end in softmaxes(run, 4 * s):
            bar(f"softmax {s}", start, end, str(block % BLOCKS), Q_COLOURS[s])
    for what, s, start, end in corrections(run):
        bar("correction", start, end, str(s), RESCALE if what == "rescale" else Q_COLOURS[s])
    for s, i in enumerate(run.engine("TMA store")):
        bar("TMA store", i.start, i.end, str(s % 2), Q_COLOURS[s % 2])
    legend(
        drawing,
        left,
        [
            (Q_COLOURS[0], "for Q tile 0"),
            (Q_COLOURS[1], "for Q tile 1"),
            (RESCALE, "O is rescaled"),
            (IDLE, "loads"),
        ],
    )
    drawing.text(left + 440, 28, "S1: scores of block 1, O1: P V of block 1", 12, "start")
    return drawing


# ------------------------------------------------------------------------------------------ the barriers


@dataclass
class Barrier:
    """What a barrier saw. `arrivals`: role -> warp -> of one arrival; `expected`: of a phase; `nbytes`: of a TMA load that it
    counts; `waits`: roles that waited."""

    expected: int = 0
    arrivals: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    nbytes: int = 0
    waits: set[str] = field(default_factory=set)


def barriers(run: Recorded) -> dict[str, Barrier]:
    """Name -> what happened there, without the barrier of the whole CTA."""
    found: dict[str, Barrier] = defaultdict(Barrier)
    names = run.trace.names
    for strand in run.trace.strands:
        warp = strand.warps[0]
        role = ROLES.get(warp, "")
        for kind, _, *data in strand.events:
            if kind == "init":
                found[names[data[0]]].expected = data[1]
            elif kind == "arrive":
                found[names[data[0]]].arrivals[role][warp] = data[1]
            elif kind == "commit":
                for name in data[0]:
                    found[names[name]].arrivals[role][warp] = 1
            elif kind == "load":
                for name, nbytes in data[2]:
                    found[names[name]].nbytes = nbytes
            elif kind == "wait":
                found[names[data[0]]].waits.add(role)
            elif kind == "bar" and data[0] in run.named:
                bar = found[run.named[data[0]]]
                bar.expected = data[2]
                bar.arrivals[role][warp] = 32 * data[1]
                if data[3]:
                    bar.waits.add(role)
    for name, bar in found.items():
        assert sum(sum(of_role.values()) for of_role in bar.arrivals.values()) == bar.expected, name
    return dict(found)


def edges(found: dict[str, Barrier]) -> dict[tuple[str, str], list[str]]:
    """(who arrives, who waits) -> barriers with what of it arrives per phase, not with the sum, which the exercise asks for."""
    groups: dict[tuple[str, str], dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, bar in found.items():
        base, _, index = name.partition("[")
        for role, of_role in bar.arrivals.items():
            share = str(sum(of_role.values()))
            if bar.nbytes:
                share += f" + {bar.nbytes // 1024} KiB"
            for waiter in sorted(bar.waits - {role}):
                groups[role, waiter][base, share].append(index.rstrip("]"))
    return {
        pair: [
            base + (f"[{', '.join(indices)}]" if indices != [""] else "") + f": {share}"
            for (base, share), indices in of_pair.items()
        ]
        for pair, of_pair in groups.items()
    }


PLACES = {
    "load": (150, 50),
    "MMA": (150, 310),
    "softmax 0": (520, 100),
    "softmax 1": (520, 520),
    "correction": (900, 310),
    "store": (900, 50),
}
WHO = {
    "load": "1 thread, TMA",
    "MMA": "1 thread, tensor core",
    "softmax 0": "warpgroup 0",
    "softmax 1": "warpgroup 1",
    "correction": "warpgroup 2",
    "store": "1 thread",
}
NODE = (132, 52)


def way_out(direction: tuple[float, float], beside: tuple[float, float]) -> float:
    """From a point `beside` the middle of a node: how far it is in this direction to 4 pixels outside of its box."""
    ways = []
    for d, o, size in zip(direction, beside, NODE, strict=True):
        if abs(d) > 1e-9:
            ways.append((size / 2 + 4 - o * np.sign(d)) / abs(d))
    return float(min(ways))


def draw_barriers(found: dict[str, Barrier], width: int = 1050, height: int = 570) -> Drawing:
    graph = edges(found)
    spoken = "; ".join(f"{a} to {b}: {', '.join(labels)}" for (a, b), labels in graph.items())
    drawing = Drawing(
        width, height, "Who arrives, who waits", f"Barriers with arrivals per phase. {spoken}.", ".1f"
    )
    for (source, target), labels in graph.items():
        a, b = PLACES[source], PLACES[target]
        length = float(np.hypot(b[0] - a[0], b[1] - a[1]))
        ux, uy = (b[0] - a[0]) / length, (b[1] - a[1]) / length
        nx, ny = uy * 9, -ux * 9  # each direction on its left side
        there, back = way_out((ux, uy), (nx, ny)), way_out((-ux, -uy), (nx, ny))
        x1, y1 = a[0] + nx + there * ux, a[1] + ny + there * uy
        x2, y2 = b[0] + nx - back * ux, b[1] + ny - back * uy
        drawing.line(x1, y1, x2 - 6 * ux, y2 - 6 * uy, GREY)
        tip = [
            (x2, y2),
            (x2 - 10 * ux + 4 * uy, y2 - 10 * uy - 4 * ux),
            (x2 - 10 * ux - 4 * uy, y2 - 10 * uy + 4 * ux),
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in tip)
        drawing.parts.append(f'<polygon points="{points}" fill="{GREY}"/>')
        anchor = "middle" if abs(nx) < 1 else "start" if nx > 0 else "end"
        near = 0.5  # how far along the arrow its text stands: there is room at the nodes in the outer rows
        for side, share in ((source, 0.38), (target, 0.62)):
            if side not in ("MMA", "correction"):
                near = share if "softmax" in side else abs(share - 0.15 * np.sign(0.5 - share))
        x, y = x1 + near * (x2 - x1) + nx * 0.8, y1 + near * (y2 - y1) + ny * 0.8
        if abs(nx) < 1:
            first = y - 14 * (len(labels) - 1) if ny < 0 else y + 8
        else:
            first = y + 4 - 7 * (len(labels) - 1) + ny * 0.8
        for k, label in enumerate(labels):
            drawing.text(x, first + 14 * k, label, 11, anchor)
    for role, (x, y) in PLACES.items():
        colour = Q_COLOURS[int(role[-1])] if role[-1].isdigit() else IDLE
        drawing.box(x - NODE[0] / 2, y - NODE[1] / 2, NODE[0], NODE[1], colour)
        drawing.text(x, y - 3, role, 14, bold=True)
        drawing.text(x, y + 14, WHO[role], 11)
    return drawing


# ------------------------------------------------------------------------------------------ all of them


def figures(scratch: Path) -> dict[str, Drawing]:
    """File name -> figure."""
    run = recorded(scratch)
    return {
        "tmem_map.svg": draw_tmem(run),
        "roles.svg": draw_roles(run),
        "barriers.svg": draw_barriers(barriers(run)),
    }


def main(argv: list[str] | None = None) -> int:
    """What `solution_figures.main` does, for the figures of this exercise."""
    return solution_figures.main(
        "attention_figures.py",
        lambda scratch: {f"{EXERCISE}/{name}": drawing.svg() for name, drawing in figures(scratch).items()},
        argv,
    )


if __name__ == "__main__":
    raise SystemExit(main())
