"""The roofline of a kernel as SVG: the physical roof of a GPU, the kernel, and what to compare it with.

A kernel with arithmetic stands in the usual plot, FLOP per byte against TFLOPS, both logarithmic; each tensor counts as moved once.
One that only moves bytes has no such place: it gets bars of TB/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2

from autograder.report.model import RoofPoint

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 320, 70, 30, 200, 44
BAR = 26


@dataclass(frozen=True)
class Mark:
    """A time in the picture. `shape`: circle, diamond or square, so that colour is not needed."""

    name: str
    microseconds: float
    shape: str
    colour: str


def marks(microseconds: float, point: RoofPoint, library_us: float | None = None) -> list[Mark]:
    """The kernel, the reference solution where its speed is known, and PyTorch where it was measured beside it."""
    found = [Mark("your kernel", microseconds, "circle", "#1f6feb")]
    if point.solution:
        found.append(Mark("reference solution", point.microseconds / point.solution, "diamond", "#bf3989"))
    if library_us:
        found.append(Mark("PyTorch", library_us, "square", "#9a6700"))
    return found


def svg(found: list[Mark], point: RoofPoint, how: str, device: str) -> str:
    """One picture; `how` is measured or modelled."""
    words = f"Roofline, {how} on {device}: " + "; ".join(
        f"{mark.name} {_speed(mark, point)}, {100 * point.microseconds / mark.microseconds:.0f} % of the roof"
        for mark in found
    )
    body, height = _plot(found, point) if point.flop > point.nbytes else _bars(found, point)
    return (
        f'<svg role="img" aria-label="{escape(words)}" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        f' style="max-width: 100%; height: auto; font: 11px sans-serif" fill="currentColor">{body}</svg>'
    )


def _speed(mark: Mark, point: RoofPoint) -> str:
    if point.flop > point.nbytes:
        return f"{point.flop / mark.microseconds / 1e6:.0f} TFLOPS"
    return f"{point.nbytes / mark.microseconds / 1e6:.2f} TB/s"


def _plot(found: list[Mark], point: RoofPoint) -> tuple[str, int]:
    intensity, ridge = point.flop / point.nbytes, point.tflops / point.tb_per_s
    speeds = [point.flop / mark.microseconds / 1e6 for mark in found]
    x0, x1 = floor(log2(min(intensity, ridge))) - 2, ceil(log2(max(intensity, ridge))) + 2
    y0, y1 = floor(log2(min([*speeds, point.tflops / 4]))) - 1, ceil(log2(point.tflops)) + 1

    def x(value: float) -> float:
        return LEFT + (log2(value) - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (y1 - log2(value)) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    out = []
    for k in range(x0, x1 + 1, max(1, (x1 - x0) // 6)):
        out.append(_line(x(2.0**k), y(2.0**y0), x(2.0**k), y(2.0**y1), "opacity: 0.15"))
        out.append(_text(x(2.0**k), HEIGHT - BOTTOM + 15, f"{2.0**k:g}", "middle"))
    for k in range(y0, y1 + 1, max(1, (y1 - y0) // 6)):
        out.append(_line(x(2.0**x0), y(2.0**k), x(2.0**x1), y(2.0**k), "opacity: 0.15"))
        out.append(_text(LEFT - 6, y(2.0**k) + 4, f"{2.0**k:g}", "end"))
    out.append(
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "FLOP per byte, each tensor moved once", "middle")
    )
    out.append(_text(LEFT, TOP - 12, "TFLOPS", "end"))
    roof = [(2.0**x0, 2.0**x0 * point.tb_per_s), (ridge, point.tflops), (2.0**x1, point.tflops)]
    path = " ".join(f"{x(a):.1f},{y(max(b, 2.0**y0)):.1f}" for a, b in roof)
    out.append(f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="2"/>')
    out.append(_text(x(2.0**x1) + 6, y(point.tflops) + 4, "the roof", "start"))
    out.append(
        _text(
            x(ridge) - 8,
            y(point.tflops) - 8,
            f"{point.tb_per_s:.2f} TB/s, then {point.tflops:.0f} TFLOPS",
            "middle",
        )
    )
    labels: list[float] = [y(point.tflops) + 4]
    for mark, speed in sorted(zip(found, speeds, strict=True), key=lambda pair: (-pair[1], pair[0].name)):
        out.append(_shape(mark, x(intensity), y(speed)))
        at = max(y(speed) + 4, labels[-1] + 15)
        labels.append(at)
        share = f"{100 * point.microseconds / mark.microseconds:.0f} %"
        out.append(_line(x(intensity) + 7, y(speed), x(2.0**x1) + 3, at - 4, "opacity: 0.4"))
        out.append(_text(x(2.0**x1) + 6, at, f"{mark.name}: {speed:.0f}, {share}", "start"))
    return "".join(out), HEIGHT


def _bars(found: list[Mark], point: RoofPoint) -> tuple[str, int]:
    rows = [("roof", point.tb_per_s, "none", "roof")]
    rows += [(m.name, point.nbytes / m.microseconds / 1e6, m.colour, m.shape) for m in found]
    scale = (WIDTH - 130 - RIGHT) / point.tb_per_s
    out = []
    for n, (name, speed, colour, shape) in enumerate(rows):
        top = TOP + n * BAR
        out.append(_text(122, top + 14, name, "end"))
        edge = "currentColor" if shape == "roof" else colour
        out.append(
            f'<rect x="130" y="{top}" width="{speed * scale:.1f}" height="{BAR - 8}" fill="{colour}" stroke="{edge}" stroke-width="1.5"/>'
        )
        share = "" if shape == "roof" else f", {100 * speed / point.tb_per_s:.0f} %"
        out.append(_text(136 + speed * scale, top + 14, f"{speed:.2f} TB/s{share}", "start"))
    return "".join(out), TOP + BAR * len(rows) + 6


def _shape(mark: Mark, x: float, y: float) -> str:
    if mark.shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{mark.colour}"/>'
    if mark.shape == "diamond":  # hollow, so that a kernel of the same speed shows inside
        path = f"M{x:.1f} {y - 10:.1f} l10 10 l-10 10 l-10 -10 z"
        return f'<path d="{path}" fill="none" stroke="{mark.colour}" stroke-width="2"/>'
    return f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="{mark.colour}"/>'


def _line(x0: float, y0: float, x1: float, y1: float, style: str) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="currentColor" style="{style}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
