"""The picture of a run, an SVG: loss over time with the faults on it, an undisturbed run, and the life of each rank.

Both runs begin at their first step. Where a run repeats steps after a restart, its line begins again a little higher.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

from demo_parts.story import Point, Story, Strike

__all__ = ["draw"]

WIDTH, LEFT, RIGHT, TOP, PLOT_HEIGHT, LANE = 1100, 70, 30, 128, 330, 26
RUN, CALM, FAULT, REPEAT, INK, FAINT = "#2563eb", "#94a3b8", "#dc2626", "#f59e0b", "#1e293b", "#e2e8f0"
STYLE = "<style>text{paint-order:stroke;stroke:white;stroke-width:4px;stroke-linejoin:round}</style>"
FONT = "system-ui, DejaVu Sans, sans-serif"
SMOOTHING = 0.9
MOST_TICKS = 12
LABEL_ROWS, LABEL_ADVANCE = 3, 7.3
LOSS_TICKS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)


@dataclass(frozen=True)
class Frame:
    """Where seconds and losses lie on the picture; losses on a logarithmic scale."""

    begin: float
    seconds: float
    least: float
    most: float

    def x(self, wall: float) -> float:
        """The column of a moment."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (wall - self.begin) / self.seconds

    def y(self, loss: float) -> float:
        """The row of a loss."""
        height = math.log(loss / self.least) / math.log(self.most / self.least)
        return TOP + PLOT_HEIGHT * (1 - height)


def draw(story: Story, undisturbed: Story | None, title: str) -> str:
    """The picture as the text of an SVG file."""
    stories = [story, *([undisturbed] if undisturbed else [])]
    frame = _frame(stories)
    height = TOP + PLOT_HEIGHT + 40 + LANE * story.ranks + 50
    parts = [
        *_axes(frame),
        *(_curve(frame, undisturbed, CALM, shift=_begin(story) - _begin(undisturbed)) if undisturbed else ()),
        *_faults(frame, story),
        *_curve(frame, story, RUN),
        *_lanes(frame, story),
        *_seconds_axis(frame, TOP + PLOT_HEIGHT + 40 + LANE * story.ranks),
        *_legend(story, undisturbed),
        _text(LEFT, 34, title, size=19, weight="bold"),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}">'
    return "\n".join([head, STYLE, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>\n"])


def _begin(story: Story) -> float:
    return story.points[0].wall


def _frame(stories: Sequence[Story]) -> Frame:
    losses = [loss for story in stories for _, loss in _smooth(story.points)]
    seconds = max(story.points[-1].wall - _begin(story) for story in stories)
    return Frame(_begin(stories[0]), max(seconds, 0.1) * 1.01, min(losses) * 0.97, max(losses) * 1.03)


def _smooth(points: Iterable[Point]) -> Iterator[tuple[Point, float]]:
    """Each point with the moving average of its loss; a repeated step goes on from the average of the step before."""
    averages: dict[int, float] = {}
    for point in points:
        before = averages.get(point.step - 1, point.loss)
        averages[point.step] = SMOOTHING * before + (1 - SMOOTHING) * point.loss
        yield point, averages[point.step]


def _curve(frame: Frame, story: Story, colour: str, shift: float = 0.0) -> Iterator[str]:
    """One line for each iteration: between them nothing was trained."""
    for _, points in groupby(_smooth(story.points), key=lambda pair: pair[0].iteration):
        path = " ".join(f"{frame.x(point.wall + shift):.1f},{frame.y(loss):.1f}" for point, loss in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'


def _faults(frame: Frame, story: Story) -> Iterator[str]:
    """What each fault cost, and on top of that its name."""
    places = list(_label_places(frame, story))
    for strike, (_, y) in zip(story.strikes, places, strict=True):
        yield from _standstill(frame, story, strike)
        yield _stroke(f"M{frame.x(strike.wall):.1f} {y + 4}V{TOP + PLOT_HEIGHT}", FAULT, dashes="2 3")
    for strike, (x, y) in zip(story.strikes, places, strict=True):
        yield _text(x, y, _label(story, strike), colour=FAULT, weight="bold")


def _label_places(frame: Frame, story: Story) -> Iterator[tuple[float, float]]:
    """Where each fault's label begins: at its moment, in the lowest row that is free there."""
    ends = [-math.inf] * LABEL_ROWS
    for strike in story.strikes:
        width = LABEL_ADVANCE * len(_label(story, strike))
        x = min(frame.x(strike.wall), WIDTH - RIGHT - width)
        row = next((row for row, end in enumerate(ends) if end < x), LABEL_ROWS - 1)
        ends[row] = x + width
        yield x, TOP - 12 - 18 * row


def _label(story: Story, strike: Strike) -> str:
    restart = story.restart_after(strike)
    cost = f"restart {1000 * restart.costs.total:.0f} ms" if restart else "no restart"
    return f"{strike.kind}, rank {strike.initial_rank}: {cost}"


def _standstill(frame: Frame, story: Story, strike: Strike) -> Iterator[str]:
    """Red from the fault to the next step, amber until the repeated steps are done."""
    again = next((again for again in story.agains if again.wall > strike.wall), None)
    if again is None:
        return
    caught_up = next(
        (point.wall for point in story.points if point.wall > again.wall and point.step >= again.reached), again.wall
    )
    yield _band(frame, strike.wall, again.wall, FAULT)
    yield _band(frame, again.wall, caught_up, REPEAT)


def _band(frame: Frame, begin: float, end: float, colour: str) -> str:
    x, width = frame.x(begin), max(frame.x(end) - frame.x(begin), 1.0)
    return _box(x, TOP, width, PLOT_HEIGHT, colour=colour, opacity=0.16)


def _box(
    x: float, y: float, width: float, height: float, *, colour: str, opacity: float = 1.0, round_by: int = 0
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round_by}"'
    return f'<rect {place} fill="{colour}" fill-opacity="{opacity}"/>'


def _lanes(frame: Frame, story: Story) -> Iterator[str]:
    """A bar for each rank, as long as it lived, with the faults that struck it."""
    for rank in range(story.ranks):
        top = TOP + PLOT_HEIGHT + 40 + LANE * rank
        middle, end = top + (LANE - 10) / 2, frame.x(story.lost.get(rank, story.points[-1].wall))
        yield _text(LEFT - 10, top + 12, f"rank {rank}", anchor="end")
        yield _box(LEFT, top, end - LEFT, LANE - 10, colour=RUN, opacity=0.75, round_by=3)
        yield from (_dot(frame.x(strike.wall), middle) for strike in story.strikes if _survived(story, strike, rank))
        if rank in story.lost:
            yield _cross(end, middle)


def _survived(story: Story, strike: Strike, rank: int) -> bool:
    return strike.initial_rank == rank and strike.wall != story.lost.get(rank)


def _cross(x: float, y: float) -> str:
    return _stroke(f"M{x - 6:.1f} {y - 6}l12 12m0 -12l-12 12", FAULT, width=3.5)


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="5.5" fill="{FAULT}" stroke="white" stroke-width="1.5"/>'


def _axes(frame: Frame) -> Iterator[str]:
    for loss in LOSS_TICKS:
        if frame.least <= loss <= frame.most:
            y = frame.y(loss)
            yield _stroke(f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", FAINT)
            yield _text(LEFT - 10, y + 4, f"{loss:g}", anchor="end")
    middle = TOP + PLOT_HEIGHT / 2
    yield f'<g transform="rotate(-90 22 {middle})">{_text(22, middle, "loss (nats a byte)", anchor="middle")}</g>'


def _seconds_axis(frame: Frame, y: float) -> Iterator[str]:
    step = next(
        step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, math.inf) if frame.seconds / step <= MOST_TICKS
    )
    for place in range(int(frame.seconds / step) + 1):
        yield _text(frame.x(frame.begin + place * step), y + 14, f"{place * step:g}", anchor="middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, y + 36, "seconds since the first step", anchor="middle")


def _legend(story: Story, undisturbed: Story | None) -> Iterator[str]:
    entries = [(RUN, 1.0, f"with {len(story.strikes)} faults")]
    entries += [(CALM, 1.0, "undisturbed")] if undisturbed else []
    entries += [(FAULT, 0.35, "standing still"), (REPEAT, 0.35, "repeating steps since the last checkpoint")]
    x = float(LEFT)
    for colour, opacity, text in entries:
        yield _box(x, 51, 22, 10, colour=colour, opacity=opacity, round_by=2)
        yield _text(x + 28, 60, text)
        x += 60 + 6.6 * len(text)


def _stroke(path: str, colour: str, *, width: float = 1, dashes: str = "none") -> str:
    return f'<path d="{path}" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes}" fill="none"/>'


def _text(
    x: float, y: float, text: str, *, size: int = 12, weight: str = "normal", anchor: str = "start", colour: str = INK
) -> str:
    font = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {font}>{escape(text)}</text>'
