"""What happened in a run, told by the lines its ranks wrote.

The journals tell of steps and of faults as they struck; the wrapper's events tell of restarts, and
`nvrx_core.events.timeline` says what each one cost. No clock and no files here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from demo_parts.journal import Line
from demo_parts.schedule import PlannedFault
from nvrx_core.events import timeline

__all__ = ["Again", "Point", "Restart", "Story", "Strike"]


@dataclass(frozen=True)
class Point:
    """One step: when it was done, and its loss."""

    wall: float
    step: int
    loss: float
    iteration: int


@dataclass(frozen=True)
class Strike:
    """A fault, as its victim told of it a moment before."""

    wall: float
    kind: str
    initial_rank: int
    step: int
    iteration: int

    def is_planned(self, fault: PlannedFault) -> bool:
        """Whether it is this fault of the schedule."""
        return (self.kind, self.initial_rank, self.step) == (fault.kind, fault.initial_rank, fault.step)


@dataclass(frozen=True)
class Restart:
    """A restart, with how many ranks there were before and after."""

    costs: timeline.Restart
    before: int
    after: int

    @property
    def interruption(self) -> str:
        """What the ranks were told had happened."""
        return str(self.costs.cause["interruption"])


@dataclass(frozen=True)
class Again:
    """The first step after a restart: `step`, where `reached` steps had been done before."""

    wall: float
    iteration: int
    step: int
    reached: int


@dataclass
class Story:
    """A run so far.

    Attributes:
        ranks: how many ranks it began with.
        points: the steps, those that were repeated, too.
        lost: the initial ranks that are lost, and when.
        finished: the initial ranks that came to the end.
        sample: what the model wrote at the end.
    """

    ranks: int
    points: list[Point] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    agains: list[Again] = field(default_factory=list)
    lost: dict[int, float] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    sample: str = ""
    _entries: dict[int, list[Line]] = field(default_factory=dict)

    def read(self, lines: Iterable[Line]) -> Iterator[Strike | Restart | Again]:
        """Takes in new lines; yields what a viewer wants to hear of."""
        for line in lines:
            event = line["event"]
            if event == "step":
                yield from self._step(Point(line["wall"], line["step"], line["loss"], line["iteration"]))
            elif event == "struck":
                yield self._struck(line)
            elif event == "restart":
                yield from self._entered(line)
            elif event == "finished":
                self.finished.add(line["initial_rank"])
                self.sample = line["sample"]

    @property
    def reached(self) -> int:
        """How many steps have been done at least once."""
        return max((point.step + 1 for point in self.points), default=0)

    def restart_after(self, strike: Strike) -> Restart | None:
        """The restart that answered a fault: the one that ended its iteration."""
        return next((restart for restart in self.restarts if restart.costs.ended_iteration == strike.iteration), None)

    def strike_before(self, iteration: int) -> Strike | None:
        """The fault of the schedule that led to an iteration, if it was one of the schedule."""
        return next((strike for strike in self.strikes if strike.iteration == iteration - 1), None)

    def again_after(self, restart: Restart) -> Again | None:
        """The first step after a restart."""
        return next((again for again in self.agains if again.iteration == restart.costs.iteration), None)

    def _struck(self, line: Line) -> Strike:
        self.strikes.append(Strike(line["wall"], line["kind"], line["initial_rank"], line["step"], line["iteration"]))
        return self.strikes[-1]

    def _step(self, point: Point) -> Iterator[Again]:
        if self.points and self.points[-1].iteration != point.iteration:
            self.agains.append(Again(point.wall, point.iteration, point.step, self.reached))
            yield self.agains[-1]
        self.points.append(point)

    def _entered(self, line: Line) -> Iterator[Restart]:
        """A restart is told of once all its ranks have entered."""
        entries = self._entries.setdefault(line["iteration"], [])
        entries.append(line)
        if len(entries) == line["world_size"]:
            (costs,) = timeline.restarts(entries)
            self.restarts.append(Restart(costs, before=self.ranks - len(self.lost), after=len(entries)))
            self.lost.update({rank: self._lost_at(rank, costs.iteration, line["wall"]) for rank in costs.lost})
            yield self.restarts[-1]

    def _lost_at(self, rank: int, iteration: int, entered: float) -> float:
        """When a rank was lost: by its own fault, or, when it had none, by the time the others went on."""
        strike = self.strike_before(iteration)
        return strike.wall if strike and strike.initial_rank == rank else entered
