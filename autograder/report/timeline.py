"""A modelled timeline as text, as a self-contained HTML page, and as a trace for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from autograder.errors import UsageError
from autograder.report import roofline
from autograder.timeline import Timeline

WIDTH, ROW, LEFT = 1100, 20, 210
MOST_BOXES = 600  # of a lane; more are drawn pixel by pixel
CLOSE_UP_BOXES = 240  # of all lanes together in the close-up, unless it is chosen
MOST_ARROWS = 160  # in one picture; more would only hide it
_ARROWS = {
    "tensor core": "#0a58ca",
    "TMA load": "#1a7f37",
}  # by the engine that signals; warps: the colour of text
_COLOURS = {  # fill, and a pattern letter in the box where there is room: shapes and words as well as colours
    "wait": ("#ffd8a8", "wait"),
    "tensor core": ("#1f6feb", "MMA"),
    "TMA load": ("#2da44e", "load"),
    "TMA store": ("#bf8700", "store"),
    "mma": ("#54aeff", "issue MMA"),
    "load": ("#6fdd8b", "issue load"),
    "store": ("#eac54f", "issue store"),
    "tmem": ("#c297ff", "tcgen05.ld/st"),
    "tmem_wait": ("#a475f9", "tcgen05.wait, convert"),
    "smem": ("#ff8182", "SMEM"),
    "gmem": ("#fa4549", "global memory"),
}
_OTHER = ("#8c959f", "other")


def summary(t: Timeline) -> Iterator[str]:
    """Lines for the terminal."""
    m = t.modelled
    size = ", ".join(f"{name} = {value}" for name, value in t.params.items())
    yield f"{t.exercise}  {t.title}"
    yield f"{t.source}, {size}"
    yield ""
    speed = f", {m['tflops']:.0f} TFLOPS" if m["flops"] else ""
    yield f"modelled on {m['device']} at {m['clock_ghz']:g} GHz: {m['microseconds']:.1f} us{speed}"
    moved = f"{_size(m['bytes_loaded'])} loaded, {_size(m['bytes_stored'])} stored, of these at least {_size(m['bytes_dram'])} by DRAM"
    yield f"  {moved}"
    busy = ", ".join(
        f"{name} {100 * share:.0f} %" for name, share in sorted(m["busy"].items(), key=lambda x: -x[1])
    )
    if busy:
        yield f"  busy: {busy}"
    for role, what, share in m["stalls"][:4]:
        yield f"  {role} warps wait for {what}: {100 * share:.0f} % of their time"
    yield f"  {m['bottleneck']}"
    for place in t.waits_at:
        yield f"    at {place}"


def page(t: Timeline, first: float | None = None, last: float | None = None) -> str:
    """A complete HTML document; the pictures are SVG and need no script and no network.

    Args:
        first, last: microseconds that the second picture shows; default: a short part of the middle.

    Raises:
        UsageError: there is nothing between first and last.
    """
    m = t.modelled
    end = max((i[2] for i in t.intervals), default=1.0)
    clock = m["clock_ghz"] * 1e3  # cycles per microsecond
    lo, hi = _part(t, first, last, end)
    all_of_it = end > 0.99 * m["cycles"]
    shown = (
        "The whole run"
        if all_of_it
        else f"The first {end / clock:.1f} of {m['cycles'] / clock:.1f} microseconds"
    )
    rest = "" if all_of_it else " What follows goes on at the same pace."
    launch = m["microseconds"] - m["cycles"] / clock
    title, *text = [line.strip() for line in summary(t) if line.strip()]
    places = [f"at {place}" for place in t.waits_at]
    why = "<br>".join(escape(line) for line in [m["bottleneck"], *places])
    facts = "".join(f"<li>{escape(line)}</li>" for line in text if line not in [m["bottleneck"], *places])
    words = f"<p><strong>{why}</strong></p><ul>{facts}</ul>"
    rows = "".join(
        f"<tr><td>{escape(role)}</td><td>{escape(what)}</td><td>{100 * share:.1f} %</td></tr>"
        for role, what, share in m["stalls"][:20]
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(t.exercise)}: modelled timeline</title><style>"
        "body { font-family: sans-serif; background: #ffffff; color: #1f2328; margin: 1.5em } "
        "svg text { fill: currentColor; font: 11px sans-serif } td, th { padding: 0 1em 0 0; text-align: left } "
        "@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } }"
        "</style></head><body>"
        f"<h1>{escape(title)}: modelled timeline</h1>{words}{_roofline(t)}<p>{_legend(t)}</p>"
        f"<h2>{shown}</h2>{svg(t, 0.0, end)}"
        f"<h2>{lo / clock:.2f} to {hi / clock:.2f} microseconds</h2>{svg(t, lo, hi, arrows=True)}<p>{_of_arrows(t, lo, hi)}</p>"
        f"<h2>Who waits for what</h2><table><tr><th>role</th><th>waits for</th><th>share of their time</th></tr>{rows}</table>"
        "<p>All times are modelled, none is measured. One SM (or one cluster) is shown; the others are taken to do the same."
        f"{rest} The time of the kernel has {launch:.1f} us more for its launch, which is not drawn.</p>"
        "</body></html>\n"
    )


def _part(t: Timeline, first: float | None, last: float | None, end: float) -> tuple[float, float]:
    """The cycles of the close-up. By default it begins after a third of the run, where no warp starts or ends any more, and
    is short enough to show single waits."""
    clock = t.modelled["clock_ghz"] * 1e3
    lo = (end / 3 if last is None else 0.0) if first is None else first * clock
    if lo >= end:
        raise UsageError(f"--from {first:g}: the picture ends at {end / clock:.2f} us")
    if last is not None:
        if lo >= last * clock:
            raise UsageError(f"--to {last:g}: the close-up has to end after it begins")
        return lo, last * clock
    following = sorted(i[1] for i in t.intervals if i[1] >= lo)
    hi = min(end, lo + end / 8)
    if first is None and len(following) > CLOSE_UP_BOXES:
        hi = min(hi, max(following[CLOSE_UP_BOXES], lo + end / 1000))
    return lo, hi


def _legend(t: Timeline) -> str:
    kinds = {i[3] for i in t.intervals}
    shown = [entry for kind, entry in _COLOURS.items() if kind in kinds]
    if kinds - set(_COLOURS):
        shown.append(_OTHER)
    return "".join(
        f'<span><svg width="14" height="14" aria-hidden="true"><rect width="14" height="14" fill="{colour}"/></svg> {escape(word)}</span> '
        for colour, word in shown
    )


def _roofline(t: Timeline) -> str:
    """The kernel under the roof of the GPU."""
    if t.roof is None:
        return ""
    m = t.modelled
    found = roofline.marks(m["microseconds"], t.roof)
    picture = roofline.svg(found, t.roof, "modelled", m["device"])
    return f"<h2>Under the roof: {escape(m['device'])} at {m['clock_ghz']:g} GHz</h2>{picture}"


def _of_arrows(t: Timeline, lo: float, hi: float) -> str:
    count = len(_arrows_in(t, lo, hi))
    if count > MOST_ARROWS:
        return f"{count} signals of barriers are left out here; a shorter part (--from, --to) shows them as arrows."
    return "An arrow goes from who signalled a barrier last to the warp that had waited for it; point at it for the barrier's name."


def svg(t: Timeline, lo: float, hi: float, arrows: bool = False) -> str:
    """One picture of the cycles [lo, hi): a lane per engine and warp, and arrows from signals to the warps that waited for them."""
    lanes = _used(t)
    height = ROW * len(lanes) + 26
    scale = (WIDTH - LEFT) / max(1.0, hi - lo)
    clock = t.modelled["clock_ghz"] * 1e3
    label = f"Modelled timeline of {t.exercise}: {len(lanes)} lanes, {lo / clock:.2f} to {hi / clock:.2f} microseconds"
    out = [
        f'<svg role="img" aria-label="{escape(label)}" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
    ]
    for row, lane in enumerate(lanes):
        y = row * ROW
        out.append(f'<text x="0" y="{y + 14}">{escape(_lane_name(t, lane))}</text>')
        for x, width, kind, title, words in _boxes(t, lane, lo, hi, scale):
            colour = _COLOURS.get(kind, _OTHER)[0]
            out.append(
                f'<rect x="{LEFT + x:.1f}" y="{y + 2}" width="{max(width, 0.3):.1f}" height="{ROW - 4}" fill="{colour}">'
                f"<title>{escape(title)}</title></rect>"
            )
            if width > 7 * len(words) + 4:
                out.append(
                    f'<text x="{LEFT + x + 3:.1f}" y="{y + 14}" style="fill: #1f2328">{escape(words)}</text>'
                )
    if arrows:
        out += _drawn_arrows(t, lanes, lo, hi, scale)
    for tick in range(9):
        x = LEFT + (WIDTH - LEFT) * tick / 8
        anchor = "end" if tick == 8 else "middle" if tick else "start"
        at = (lo + (hi - lo) * tick / 8) / clock
        out.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="{anchor}">{at:.2f} us</text>')
    return "".join(out) + "</svg>"


def _lane_name(t: Timeline, lane: int) -> str:
    """`CTA 0: warp 1, MMA`: a warp with what it does."""
    name = t.lanes[lane]
    if "warp" not in name:
        return name
    kinds = {i[3] for i in t.intervals if i[0] == lane}
    roles = [
        role
        for kind, role in (("mma", "MMA"), ("load", "load"), ("tmem", "write-back"), ("store", "store"))
        if kind in kinds
    ]
    return f"{name}, {' and '.join(roles[:2])}" if roles else name


def _arrows_in(t: Timeline, lo: float, hi: float) -> list[tuple[int, float, int, float, str]]:
    return [arrow for arrow in t.arrows if arrow[3] > lo and arrow[1] < hi]


def _drawn_arrows(t: Timeline, lanes: list[int], lo: float, hi: float, scale: float) -> Iterator[str]:
    shown = _arrows_in(t, lo, hi)
    if len(shown) > MOST_ARROWS:
        return
    row = {lane: n for n, lane in enumerate(lanes)}
    clock = t.modelled["clock_ghz"] * 1e3
    for source, start, target, end, what in shown:
        if source not in row or target not in row:
            continue
        colour = next(
            (c for engine, c in _ARROWS.items() if t.lanes[source].endswith(engine)), "currentColor"
        )
        x0, x1 = (LEFT + min(max(at - lo, 0.0), hi - lo) * scale for at in (start, end))
        y0, y1 = row[source] * ROW + ROW / 2, row[target] * ROW + ROW / 2
        back = 5 if y1 > y0 else -5
        title = f"{what or 'barrier'}: {t.lanes[source]} signals at {start / clock:.3f} us, {t.lanes[target]} goes on"
        yield (
            f'<g stroke="{colour}" fill="{colour}" opacity="0.85"><title>{escape(title)}</title>'
            f'<path d="M{x0:.1f} {y0:.1f} L{x1:.1f} {y1 - back:.1f}" fill="none" stroke-width="1.3"/>'
            f'<path d="M{x1:.1f} {y1:.1f} l-3.5 {-2 * back} h7 z" stroke="none"/></g>'
        )


def _used(t: Timeline) -> list[int]:
    """Lanes with something in them."""
    used = {i[0] for i in t.intervals}
    return [n for n in range(len(t.lanes)) if n in used]


Box = tuple[float, float, str, str, str]  # x, width, kind, title, words


def _boxes(t: Timeline, lane: int, lo: float, hi: float, scale: float) -> list[Box]:
    """What a lane shows. Where there is more than pixels can tell apart, each pixel shows what takes most of it."""
    mine = [i for i in t.intervals if i[0] == lane and i[2] > lo and i[1] < hi]
    clock = t.modelled["clock_ghz"] * 1e3
    if len(mine) > MOST_BOXES:
        return list(_pixels(mine, lo, hi, scale, clock))
    boxes = []
    for _, start, end, kind, line, what in mine:
        words = f"wait: {what}" if kind == "wait" else _COLOURS.get(kind, _OTHER)[1]
        detail = "" if kind == "wait" or not what else f" {what}"
        at = f", line {line}" if line else ""
        title = f"{words}{detail}{at}: {start / clock:.3f} to {end / clock:.3f} us"
        boxes.append(
            ((max(start, lo) - lo) * scale, (min(end, hi) - max(start, lo)) * scale, kind, title, words)
        )
    return boxes


def _pixels(mine: list[Any], lo: float, hi: float, scale: float, clock: float) -> Iterator[Box]:
    """One box per run of pixels with the same kind."""
    count = max(1, round((hi - lo) * scale))
    time: list[dict[str, float]] = [{} for _ in range(count)]
    for _, start, end, kind, _, _ in mine:
        first, last = (start - lo) * scale, (end - lo) * scale
        for k in range(max(0, int(first)), min(count - 1, int(last)) + 1):
            time[k][kind] = time[k].get(kind, 0.0) + min(last, k + 1) - max(first, k)
    shown = [max(spent, key=lambda kind: spent[kind]) if spent else "" for spent in time]
    k = 0
    while k < count:
        end = k
        while end < count and shown[end] == shown[k]:
            end += 1
        if shown[k]:
            words = "wait" if shown[k] == "wait" else _COLOURS.get(shown[k], _OTHER)[1]
            title = f"mostly {words}: {(lo + k / scale) / clock:.3f} to {(lo + end / scale) / clock:.3f} us"
            yield float(k), float(end - k), shown[k], title, words
        k = end


def trace(t: Timeline) -> str:
    """The timeline in the Trace Event Format (JSON), which Perfetto and chrome://tracing open. Times in microseconds."""
    clock = t.modelled["clock_ghz"] * 1e3
    events: list[dict[str, Any]] = []
    for n in _used(t):
        events.append(
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": n, "args": {"name": _lane_name(t, n)}}
        )
        events.append({"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": n, "args": {"sort_index": n}})
    name = f"{t.exercise}, modelled on {t.modelled['device']}"
    events.append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}})
    for lane, start, end, kind, line, what in t.intervals:
        title = f"wait: {what}" if kind == "wait" else _COLOURS.get(kind, (_OTHER[0], kind))[1]
        events.append(
            {"ph": "X", "pid": 1, "tid": lane, "ts": start / clock, "dur": (end - start) / clock, "name": title, "cat": kind, "args": {"line": line, "what": what}}
        )  # fmt: skip
    for number, (source, start, target, end, what) in enumerate(t.arrows):
        shared = {"pid": 1, "id": number, "name": what or "barrier", "cat": "barrier"}
        events.append({"ph": "s", "tid": source, "ts": start / clock, **shared})
        events.append({"ph": "f", "bp": "e", "tid": target, "ts": end / clock, **shared})
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}) + "\n"


def _size(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} bytes"
