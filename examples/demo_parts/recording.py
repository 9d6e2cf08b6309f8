"""The demo's terminal as an animated SVG: it plays the recording faster than it was, holds the end, and begins again.

Each line is drawn once and shown from its moment on; the bar below it is drawn once for each of its frames; the whole
scrolls as a terminal does. Where animations are off, the end is shown. The same recording makes the same file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from xml.sax.saxutils import escape

from demo_parts import svg
from demo_parts.terminal import Recording

__all__ = ["draw_terminal"]

COLUMNS = 100
LINE, CELL, SIZE = 17.0, 7.8, 13.0
LEFT, TOP, BOTTOM = 16.0, 44.0, 10.0
PLAYS, HOLDS = 22.0, 10.0
"""Seconds that the recording plays, and that its end stands."""
BAR_FRAMES = 110
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
STYLE = """
.card{fill:#0d1117;stroke:#30363d}text{fill:#e6edf3;white-space:pre}.faint{fill:#8d96a0}
.s1{font-weight:700}.s2{fill:#7d8590}.s31{fill:#ff7b72}.s32{fill:#56d364}.s33{fill:#e3b341}.s34{fill:#4493f8}
.dot{fill:#30363d}g{animation-timing-function:step-end;animation-iteration-count:infinite}.b{visibility:hidden}
@media (prefers-reduced-motion:reduce){g{animation:none!important}}
"""
SPAN = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m")


@dataclass(frozen=True)
class Film:
    """When and how fast the recording plays."""

    begin: float
    seconds: float

    @property
    def speed(self) -> float:
        """How many times as fast as it was."""
        return max(self.seconds / PLAYS, 1.0)

    @property
    def duration(self) -> float:
        """Seconds of the animation, with the end that stands."""
        return self.seconds / self.speed + HOLDS

    def percent(self, moment: float) -> str:
        """The part of the animation that is over at a moment, rounded down."""
        return f"{int(10_000 * (moment - self.begin) / self.speed / self.duration) / 100:g}"


def draw_terminal(recording: Recording, command: str, *, rows: int = 38) -> str:
    """The recording as the text of an SVG file.

    Args:
        recording: what was shown; it has a line.
        command: what was typed, for the title.
        rows: how many lines the terminal has.
    """
    times = [moment for moment, _ in (*recording.lines, *recording.bars)]
    film = Film(min(times), max(times) - min(times))
    rows = min(rows, len(recording.lines))
    width, height = 2 * LEFT + COLUMNS * CELL, TOP + rows * LINE + BOTTOM
    style, parts = [STYLE, f"g{{animation-duration:{film.duration:g}s}}"], []
    for number, (moment, lines) in enumerate(_by_moment(recording, film)):
        style.append(f"@keyframes l{number}{{0%{{visibility:hidden}}{moment}%{{visibility:visible}}}}")
        drawn = "".join(_line(TOP + LINE * (row + 0.75), text) for row, text in lines)
        parts.append(f'<g style="animation-name:l{number}">{drawn}</g>')
    style.append(f"@keyframes scroll{{{''.join(_scroll(recording, film, rows))}}}")
    for number, (shown, hidden, row, text) in enumerate(_bars(recording, film)):
        frames = f"0%{{visibility:hidden}}{shown}%{{visibility:visible}}{hidden}%{{visibility:hidden}}"
        style.append(f"@keyframes b{number}{{{frames}}}")
        parts.append(f'<g class="b" style="animation-name:b{number}">{_line(TOP + LINE * (row + 0.75), text)}</g>')
    last = -LINE * (len(recording.lines) - rows)
    view = [
        f'<svg y="{TOP:g}" width="{width:g}" height="{rows * LINE:g}" viewBox="0 {TOP:g} {width:g} {rows * LINE:g}">',
        f'<g style="animation-name:scroll;transform:translateY({last:g}px)">', *parts, "</g></svg>",
    ]  # fmt: skip
    title = [
        *(f'<circle class="dot" cx="{LEFT + 6 + 18 * place:g}" cy="20" r="6"/>' for place in range(3)),
        svg.text(width / 2, 25, f"$ {command}", "faint", anchor="middle", size=SIZE),
        svg.text(width - LEFT, 25, f"{film.speed:.0f} x speed", "faint", anchor="end", size=SIZE),
    ]
    return svg.document(width, height, "\n".join(style), [*title, *view], title=command, font=MONO)


def _by_moment(recording: Recording, film: Film) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """The lines with their rows, those that appear together in one."""
    numbered = [(film.percent(moment), row, text) for row, (moment, text) in enumerate(recording.lines)]
    for moment, group in groupby(numbered, key=lambda line: line[0]):
        yield moment, [(row, text) for _, row, text in group if text]


def _scroll(recording: Recording, film: Film, rows: int) -> Iterator[str]:
    """The bar, or the last line, stays within the rows."""
    places = {"0": 0.0}
    for count, (moment, _) in enumerate(recording.lines, start=1):
        bar = 1 if count < len(recording.lines) else 0
        places[film.percent(moment)] = -LINE * max(count + bar - rows, 0)
    for percent, place in places.items():
        yield f"{percent}%{{transform:translateY({place:g}px)}}"


def _bars(recording: Recording, film: Film) -> Iterator[tuple[str, str, int, str]]:
    """The bar's frames, as many as can be told apart: when each begins and ends, and in which row it stands."""
    frames: list[tuple[str, int, str | None]]
    frames = [(film.percent(moment), _rows_at(recording, moment), text) for moment, text in recording.bars]
    frames += [(film.percent(moment), row, None) for row, (moment, _) in enumerate(recording.lines, start=1)]
    frames.sort(key=lambda frame: (float(frame[0]), frame[1]))
    shown = _thinned(frames, film)
    for (begin, row, text), (end, _, _) in pairwise(shown):
        if text and begin != end:
            yield begin, end, row, text


def _thinned(frames: Sequence[tuple[str, int, str | None]], film: Film) -> list[tuple[str, int, str]]:
    """One frame for each row and each part of the animation; a line that comes moves the bar below it."""
    thin: list[tuple[str, int, str]] = []
    last, text = ("", -1), ""
    for moment, row, shown in frames:
        text = text if shown is None else shown
        place = (str(int(float(moment) / 100 * BAR_FRAMES)), row)
        if place != last or not text:
            thin.append((moment, row, text))
            last = place
    return thin


def _rows_at(recording: Recording, moment: float) -> int:
    return sum(at <= moment for at, _ in recording.lines)


def _line(y: float, text: str) -> str:
    """One line; each piece of a style begins in its own column, whatever the font."""
    return f'<text y="{y:.1f}" font-size="{SIZE:g}">{"".join(_spans(text))}</text>' if text else ""


def _spans(text: str) -> Iterator[str]:
    column = 0
    for style, content in _pieces(text):
        if content.strip():
            indent = len(content) - len(content.lstrip())
            shown = content.strip()
            place = f'x="{LEFT + CELL * (column + indent):.1f}" textLength="{CELL * len(shown):.1f}"'
            kind = f' class="s{style}"' if style else ""
            yield f"<tspan {place}{kind}>{escape(shown)}</tspan>"
        column += len(content)


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Style and content; gaps of two blanks or more part the pieces, so that columns stay in line."""
    place = 0
    for match in SPAN.finditer(text):
        yield from (("", part) for part in _parted(text[place : match.start()]))
        yield from ((match[1], part) for part in _parted(match[2]))
        place = match.end()
    yield from (("", part) for part in _parted(text[place:]))


def _parted(text: str) -> list[str]:
    return re.findall(r" *\S+(?: \S+)*| +", text)
