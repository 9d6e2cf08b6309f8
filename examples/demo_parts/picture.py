"""The picture of the runs, an SVG: steps done over time, what each fault cost, and the life of each process.

All runs begin at their first step. Where a line falls back, a run repeats the steps since its last checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from demo_parts import svg
from demo_parts.durations import duration
from demo_parts.run_history import Point, Recovery, RunHistory
from demo_parts.schedule import KINDS

__all__ = ["draw_runs"]

WIDTH, LEFT, RIGHT, TOP, PLOT_HEIGHT, LANE = 960, 90, 40, 92, 300, 20
MOST_TICKS = 10
LETTER = 6.8
TICKS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, math.inf)
STYLE = """
.card{fill:#fff;stroke:#d0d7de}.ink{fill:#1f2328}.faint{fill:#656d76}.grid{stroke:#d8dee4;fill:none}
text{paint-order:stroke;stroke:#fff;stroke-width:3px;stroke-linejoin:round}.bold{fill:#1f2328;font-weight:600}
polyline{fill:none;stroke-width:2.2;stroke-linejoin:round}.still{fill:none;stroke-width:2.2;stroke-dasharray:2 3}
.undisturbed{stroke:#8c959f}.nvrx{stroke:#0969da}.torchrun{stroke:#bc4c00}
text.undisturbed{fill:#656d76;stroke:#fff}text.nvrx{fill:#0969da;stroke:#fff}text.torchrun{fill:#bc4c00;stroke:#fff}
.trains{fill:#0969da}.reserve{fill:#d0d7de}.lost{stroke:#cf222e;stroke-width:3;fill:none}
.injected{fill:#cf222e;stroke:#fff;stroke-width:1.5}
@media (prefers-color-scheme:dark){
.card{fill:#0d1117;stroke:#30363d}.ink,.bold{fill:#e6edf3}.faint{fill:#8d96a0}.grid{stroke:#21262d}
text,text.undisturbed,text.nvrx,text.torchrun{stroke:#0d1117}
.undisturbed{stroke:#6e7681}.nvrx{stroke:#4493f8}.torchrun{stroke:#f0883e}
text.undisturbed{fill:#8d96a0}text.nvrx{fill:#4493f8}text.torchrun{fill:#f0883e}
.trains{fill:#4493f8}.reserve{fill:#30363d}.lost{stroke:#f85149}.injected{fill:#f85149;stroke:#0d1117}}
"""


@dataclass(frozen=True)
class Frame:
    """Where seconds since the first step, and steps, lie on the picture."""

    seconds: float
    steps: int

    def x(self, seconds: float) -> float:
        """The column of a moment."""
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.seconds

    def y(self, steps: float) -> float:
        """The row of a step."""
        return TOP + PLOT_HEIGHT * (1 - steps / self.steps)


def draw_runs(histories: Mapping[str, RunHistory]) -> str:
    """The picture of the runs that came to a first step, by name; `nvrx` is one of them."""
    histories = {name: history for name, history in histories.items() if history.points}
    nvrx = histories["nvrx"]
    frame = Frame(
        max(max(_seconds(history), 0.1) for history in histories.values()),
        max(history.reached for history in histories.values()),
    )
    lanes = TOP + PLOT_HEIGHT + 74
    height = lanes + LANE * (nvrx.ranks + nvrx.spares) + 16
    faults = len(nvrx.injections)
    title = f"The same training, the same {faults} faults: restarted by nvrx, and by torchrun"
    if "torchrun" not in histories:
        title = f"A training that nvrx restarts after {faults} faults"
    parts = [
        svg.text(LEFT - 66, 32, title, "bold", size=17),
        svg.text(LEFT - 66, 52, "Dotted: standing still after a fault, with how long, to the first step.", "faint"),
        *_axes(frame),
        *(part for name, history in histories.items() for part in _run(frame, name, history)),
        *(part for name, history in histories.items() for part in _labels(frame, name, history)),
        *_lanes(frame, nvrx, lanes),
    ]
    return svg.document(WIDTH, height, STYLE, parts, title=title)


def _seconds(history: RunHistory) -> float:
    return history.points[-1].at - history.points[0].at


def _axes(frame: Frame) -> Iterator[str]:
    for quarter in range(5):
        steps = frame.steps * quarter // 4
        yield svg.line(LEFT, frame.y(steps), WIDTH - RIGHT, frame.y(steps), kind="grid")
        yield svg.text(LEFT - 8, frame.y(steps) + 4, str(steps), "faint", anchor="end")
    yield svg.text(LEFT - 8, TOP - 14, "steps", "faint", anchor="end")
    tick = next(tick for tick in TICKS if frame.seconds / tick <= MOST_TICKS)
    for place in range(int(frame.seconds / tick) + 1):
        x, y = frame.x(place * tick), TOP + PLOT_HEIGHT + 18
        yield svg.text(x, y, f"{place * tick:g} s", "faint", anchor="middle")


def _run(frame: Frame, name: str, history: RunHistory) -> Iterator[str]:
    """One line for each iteration, and a dotted one from each fault to the first step after it."""
    begin = history.points[0].at
    for _, points in groupby(history.points, key=lambda point: point.iteration):
        yield svg.polyline(_thinned(frame, begin, list(points)), name)
    for recovery in history.recoveries:
        y, since = frame.y(recovery.reached), recovery.since - begin
        yield svg.line(frame.x(since), y, frame.x(since + recovery.resumed), y, kind=f"still {name}")


def _thinned(frame: Frame, begin: float, points: Sequence[Point]) -> Iterator[tuple[float, float]]:
    """The first, the last, and of the others one for each pixel column."""
    last = -math.inf
    for point in points:
        x = frame.x(point.at - begin)
        if x >= last + 1 or point is points[-1]:
            last = x
            yield x, frame.y(point.step + 1)


def _labels(frame: Frame, name: str, history: RunHistory) -> Iterator[str]:
    """What each fault cost, above the line of nvrx and below that of torchrun; and how long the run took."""
    begin, shift = history.points[0].at, -8 if history.protected else 17
    for recovery in history.recoveries:
        label, y = _label(history, recovery), frame.y(recovery.reached) + shift
        x = min(frame.x(recovery.since - begin) + 6, WIDTH - 10 - LETTER * len(label))
        yield svg.text(x, y, label, name)
    end, anchor = frame.x(_seconds(history)), "start" if name == "nvrx" else "end"
    yield svg.text(end, TOP - 14, f"{name} {_seconds(history):.0f} s", name, anchor=anchor, size=13)


def _label(history: RunHistory, recovery: Recovery) -> str:
    injection = recovery.injection
    fault = KINDS[injection.kind].name if injection else recovery.name
    killed = ", then killed" if injection in history.cut_off else ""
    return f"{fault}{killed}: {duration(recovery.resumed)}"


def _lanes(frame: Frame, history: RunHistory, top: float) -> Iterator[str]:
    """A bar for each process of nvrx, as long as it lived: faint in reserve, full while it trains."""
    begin = history.points[0].at
    text = "The processes under nvrx: one that fails lives on, a spare replaces one that is lost"
    yield svg.text(LEFT - 66, top - 14, text)
    for initial_rank in range(history.ranks + history.spares):
        y, end = top + LANE * initial_rank, history.lost.get(initial_rank, history.points[-1].at) - begin
        joined = 0.0 if initial_rank < history.ranks else _joined(history, initial_rank, end)
        name = "rank" if initial_rank < history.ranks else "spare"
        yield svg.text(LEFT - 8, y + 10, f"{name} {initial_rank}", "faint", anchor="end")
        yield svg.rectangle(frame.x(0), y, frame.x(joined) - frame.x(0), LANE - 8, kind="reserve", rounded=2)
        yield svg.rectangle(frame.x(joined), y, frame.x(end) - frame.x(joined), LANE - 8, kind="trains", rounded=2)
        for injection in history.injections:
            if injection.initial_rank == initial_rank:
                recovery, x = history.recovery_after(injection), frame.x(injection.at - begin)
                lost = recovery is not None and initial_rank in recovery.lost
                yield svg.mark(x, y + (LANE - 8) / 2, "lost" if lost else "injected", cross=lost)


def _joined(history: RunHistory, initial_rank: int, end: float) -> float:
    """When a process left the reserve, in seconds since the first step; `end` when it never did."""
    recovery = next((recovery for recovery in history.recoveries if initial_rank in recovery.took_over), None)
    return end if recovery is None else recovery.since + (recovery.entered or 0.0) - history.points[0].at
