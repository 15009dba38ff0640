"""SVG files with a title and a description, as the figures of the lessons have them."""

from __future__ import annotations

from xml.sax.saxutils import escape

INK, GREY, FAINT, PAPER = "#1f2933", "#52606d", "#9aa5b1", "#ffffff"


class Drawing:
    """A drawing of `width` by `height` pixels. `number`: how coordinates are written, a format specification."""

    def __init__(self, width: int, height: int, title: str, description: str, number: str = "g") -> None:
        self.number = number
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-labelledby="t d" font-family="Helvetica, Arial, sans-serif">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(description)}</desc>',
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        ]

    def _places(self, **values: float) -> str:
        return " ".join(f'{name}="{value:{self.number}}"' for name, value in values.items())

    def box(
        self, x: float, y: float, w: float, h: float, fill: str, stroke: str = INK, thick: float | None = None
    ) -> None:
        width = "" if thick is None else f' stroke-width="{thick:g}"'
        place = self._places(x=x, y=y, width=w, height=h)
        self.parts.append(f'<rect {place} fill="{fill}" stroke="{stroke}"{width}/>')

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
            f'<text {self._places(x=x, y=y)} font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = FAINT, dash: str = "") -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line {self._places(x1=x1, y1=y1, x2=x2, y2=y2)} stroke="{stroke}"{dashes}/>')

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"
