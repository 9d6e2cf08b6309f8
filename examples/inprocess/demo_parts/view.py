"""A run while it goes on: its bar, each fault as it strikes, and what the restart cost, phase by phase."""

from __future__ import annotations

from itertools import takewhile

from demo_parts.schedule import KINDS
from demo_parts.story import Again, Restart, Story, Strike
from demo_parts.terminal import Style, Terminal

__all__ = ["View"]

BAR_CELLS = 24
LINES_WITHOUT_BAR = 10
"""How often progress is told where no bar can be redrawn."""
RATE_OVER = 2.0
"""Seconds that the steps per second are taken over."""


class View:
    """Shows one run.

    Args:
        terminal: where it is shown.
        story: the run.
        steps: how many steps it has to take.
    """

    def __init__(self, terminal: Terminal, story: Story, steps: int) -> None:
        self._terminal = terminal
        self._story = story
        self._steps = steps
        self._tenths_told = 0

    def show(self, happening: Strike | Restart | Again) -> None:
        """Says what has just happened."""
        match happening:
            case Strike():
                self._strike(happening)
            case Restart():
                self._restart(happening)
            case Again():
                self._again(happening)

    def progress(self) -> None:
        """Moves the bar; without one, says now and then how far the run is."""
        if self._terminal.interactive:
            self._terminal.bar(self._line())
            return
        tenths = self._story.reached * LINES_WITHOUT_BAR // self._steps
        if tenths > self._tenths_told:
            self._tenths_told = tenths
            self._terminal.say(self._line())

    def end(self) -> None:
        """Lets the bar stand as it is."""
        if self._terminal.interactive:
            self._terminal.end_bar()
            self._terminal.say(self._line())

    def _line(self) -> str:
        if not self._story.points:
            return self._terminal.styled(f"  {self._story.ranks} processes are starting ...", Style.DIM)
        last = self._story.points[-1]
        step = f"step {last.step + 1:>{len(str(self._steps))}}/{self._steps}"
        return (
            f"  {self._bar(last.step + 1)} {step}  loss {last.loss:.3f}  {self._rate():4.1f} steps/s  {self._lights()}"
        )

    def _bar(self, steps: int) -> str:
        cells = BAR_CELLS * steps // self._steps
        styled = self._terminal.styled
        return styled("█" * cells, Style.BLUE) + styled("░" * (BAR_CELLS - cells), Style.DIM)

    def _rate(self) -> float:
        """Steps per second of late, repeated ones included."""
        points = self._story.points
        late = list(takewhile(lambda point: point.wall > points[-1].wall - RATE_OVER, reversed(points)))
        spent = late[0].wall - late[-1].wall
        return (len(late) - 1) / spent if spent else 0.0

    def _lights(self) -> str:
        """One sign a rank, by initial rank: there or lost."""
        there, lost = self._terminal.styled("●", Style.GREEN), self._terminal.styled("✗", Style.RED)
        return "ranks " + "".join(lost if rank in self._story.lost else there for rank in range(self._story.ranks))

    def _strike(self, strike: Strike) -> None:
        self._terminal.say(f"  ✗ step {strike.step}, rank {strike.initial_rank}: {KINDS[strike.kind].text}", Style.RED)

    def _restart(self, restart: Restart) -> None:
        costs = restart.costs
        phases = " · ".join(f"{phase} {1000 * seconds:.1f}" for phase, seconds in costs.phases.items())
        ranks = f"{restart.before} → {restart.after} ranks"
        cost = f"{1000 * costs.total:.1f} ms"
        self._terminal.say(f"  ↻ restart {costs.iteration} ({restart.interruption}, {ranks}): {cost}", Style.YELLOW)
        self._terminal.say(f"    {phases}", Style.DIM)

    def _again(self, again: Again) -> None:
        strike = self._story.strike_before(again.iteration)
        after = f" {1000 * (again.wall - strike.wall):.0f} ms after the fault" if strike else ""
        self._terminal.say(f"  ✓ first step{after}; it goes on from the checkpoint of step {again.step}", Style.GREEN)
