"""The few elements of SVG that the pictures are made of. Colours are classes: a picture has a light and a dark look."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

__all__ = ["document", "line", "mark", "polyline", "rectangle", "text"]

SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


def document(width: float, height: float, style: str, parts: Iterable[str], *, title: str, font: str = SANS) -> str:
    """A whole file, on a card with round corners."""
    size = f'viewBox="0 0 {width:g} {height:g}" font-family="{font}" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    card = rectangle(0.5, 0.5, width - 1, height - 1, kind="card", rounded=8)
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{style}</style>", card, *parts, "</svg>\n"])


def text(x: float, y: float, content: str, kind: str = "ink", *, anchor: str = "start", size: float = 12) -> str:
    """One line of text; `anchor` says which of its ends is at `x`."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}"'
    return f'<text class="{kind}" {place}>{escape(content)}</text>'


def rectangle(x: float, y: float, width: float, height: float, *, kind: str, rounded: float = 0) -> str:
    """A filled box."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{rounded:g}"'
    return f'<rect class="{kind}" {place}/>'


def line(x: float, y: float, to_x: float, to_y: float, *, kind: str) -> str:
    """A straight line."""
    return f'<path class="{kind}" d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"/>'


def polyline(points: Iterable[tuple[float, float]], kind: str) -> str:
    """A line through points."""
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def mark(x: float, y: float, kind: str, *, cross: bool) -> str:
    """A cross or a dot."""
    if cross:
        return f'<path class="{kind}" d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"/>'
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
