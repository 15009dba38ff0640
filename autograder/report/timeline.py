"""A modelled timeline as text, as a self-contained HTML page, and as a trace for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from autograder.errors import UsageError
from autograder.timeline import Timeline

WIDTH, ROW, LEFT = 1100, 20, 190
MOST_BOXES = 600  # of a lane; more are drawn pixel by pixel
_COLOURS = {  # fill, and a pattern letter in the box where there is room: shapes and words as well as colours
    "wait": ("#d0d7de", "wait"),
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


def page(t: Timeline, first: float | None = None, last: float | None = None) -> str:
    """A complete HTML document; the pictures are SVG and need no script and no network.

    Args:
        first, last: microseconds that the second picture shows; default: an eighth of the run, from the start of it.

    Raises:
        UsageError: there is nothing between first and last.
    """
    m = t.modelled
    end = max((i[2] for i in t.intervals), default=1.0)
    clock = m["clock_ghz"] * 1e3  # cycles per microsecond
    lo = 0.0 if first is None else first * clock
    hi = min(end, lo + end / 8) if last is None else last * clock
    if lo >= end:
        raise UsageError(f"--from {first:g}: the picture ends at {end / clock:.2f} us")
    if lo >= hi:
        raise UsageError(f"--to {last:g}: the close-up has to end after it begins")
    all_of_it = end > 0.99 * m["cycles"]
    shown = (
        "The whole run"
        if all_of_it
        else f"The first {end / clock:.1f} of {m['cycles'] / clock:.1f} microseconds"
    )
    rest = "" if all_of_it else " What follows goes on at the same pace."
    launch = m["microseconds"] - m["cycles"] / clock
    text = "".join(f"<p>{escape(line)}</p>" for line in summary(t) if line.strip())
    legend = "".join(
        f'<span><svg width="14" height="14"><rect width="14" height="14" fill="{colour}"/></svg> {escape(word)}</span> '
        for colour, word in [*_COLOURS.values(), _OTHER]
    )
    rows = "".join(
        f"<tr><td>{escape(role)}</td><td>{escape(what)}</td><td>{100 * share:.1f} %</td></tr>"
        for role, what, share in m["stalls"][:20]
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(t.exercise)}: modelled timeline</title><style>"
        "body { font-family: sans-serif; background: #ffffff; color: #1f2328; margin: 1.5em } "
        "svg text { fill: currentColor; font: 11px sans-serif } td, th { padding: 0 1em 0 0; text-align: left } "
        "@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } }"
        "</style></head><body>"
        f"<h1>{escape(t.exercise)}: modelled timeline</h1>{text}<p>{legend}</p>"
        f"<h2>{shown}</h2>{svg(t, 0.0, end)}<h2>{lo / clock:.2f} to {hi / clock:.2f} microseconds</h2>{svg(t, lo, hi)}"
        f"<h2>Who waits for what</h2><table><tr><th>role</th><th>waits for</th><th>share of their time</th></tr>{rows}</table>"
        "<p>All times are modelled, none is measured. One SM (or one cluster) is shown; the others are taken to do the same."
        f"{rest} The time of the kernel has {launch:.1f} us more for its launch, which is not drawn.</p>"
        "</body></html>\n"
    )


def svg(t: Timeline, lo: float, hi: float) -> str:
    """One picture of the cycles [lo, hi): a lane per engine and warp."""
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
        out.append(f'<text x="0" y="{y + 14}">{escape(t.lanes[lane])}</text>')
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
    for tick in range(9):
        x = LEFT + (WIDTH - LEFT) * tick / 8
        anchor = "end" if tick == 8 else "middle" if tick else "start"
        at = (lo + (hi - lo) * tick / 8) / clock
        out.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="{anchor}">{at:.2f} us</text>')
    return "".join(out) + "</svg>"


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
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": n, "args": {"name": t.lanes[n]}})
        events.append({"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": n, "args": {"sort_index": n}})
    name = f"{t.exercise}, modelled on {t.modelled['device']}"
    events.append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}})
    for lane, start, end, kind, line, what in t.intervals:
        title = f"wait: {what}" if kind == "wait" else _COLOURS.get(kind, (_OTHER[0], kind))[1]
        events.append(
            {"ph": "X", "pid": 1, "tid": lane, "ts": start / clock, "dur": (end - start) / clock, "name": title, "cat": kind, "args": {"line": line, "what": what}}
        )  # fmt: skip
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}) + "\n"


def _size(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} bytes"
