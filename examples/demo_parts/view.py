"""A run while it goes on: its bar, each fault as it is injected, and how the run went on after it."""

from __future__ import annotations

from itertools import takewhile

from demo_parts.durations import after_timeout, duration
from demo_parts.run_history import Began, Happening, Injection, Recovery, RunHistory, is_timeout
from demo_parts.schedule import HARD_TIMEOUT, KINDS, SOFT_TIMEOUT
from demo_parts.terminal import Style, Terminal

__all__ = ["View", "measured"]

BAR_CELLS = 24
LINES_WITHOUT_BAR = 4
"""How often progress is told where no bar can be redrawn."""
RATE_OVER = 2.0
"""Seconds that the steps per second are taken over."""


class View:
    """Shows one run.

    Args:
        terminal: where it is shown.
        history: the run.
        steps: how many steps it has to take; None when it has no end.
    """

    def __init__(self, terminal: Terminal, history: RunHistory, steps: int | None) -> None:
        self._terminal = terminal
        self._history = history
        self._steps = steps
        self._parts_told = 0

    def show(self, happening: Happening) -> None:
        """Says what has just happened."""
        match happening:
            case Began():
                pass
            case Injection():
                self._injected(happening)
            case Recovery():
                self._recovery(happening)

    def cut_off(self, injection: Injection, seconds: float) -> None:
        """Says that the demo had to end a process."""
        text = f"    still hung after {duration(seconds)}: the demo ends process {injection.pid}, as an operator would"
        self._terminal.say(text, Style.YELLOW)

    def progress(self) -> None:
        """Moves the bar; without one, says now and then how far the run is."""
        self._terminal.bar(self._line())
        if self._steps is not None:
            parts = self._history.reached * LINES_WITHOUT_BAR // self._steps
            if self._parts_told < parts < LINES_WITHOUT_BAR:
                self._parts_told = parts
                self._terminal.instead_of_bar(self._line())

    def end(self) -> None:
        """Lets the bar stand as it is."""
        self._terminal.end_bar()
        self._terminal.say(self._line())

    def _line(self) -> str:
        history, styled = self._history, self._terminal.styled
        if not history.points:
            spares = f", {history.spares} in reserve" if history.spares else ""
            return styled(f"  {history.ranks} ranks{spares} are starting ...", Style.DIM)
        last = history.points[-1]
        if self._steps is None:
            step = f"step {last.step + 1}"
        else:
            done = f"{last.step + 1:>{len(str(self._steps))}}/{self._steps}"
            step = f"{self._bar(last.step + 1, self._steps)} step {done}"
        return f"  {step}  loss {last.loss:.3f}  {self._rate():4.1f} steps/s  {self._lights()}"

    def _bar(self, done: int, steps: int) -> str:
        cells = BAR_CELLS * done // steps
        styled = self._terminal.styled
        return styled("█" * cells, Style.BLUE) + styled("░" * (BAR_CELLS - cells), Style.DIM)

    def _rate(self) -> float:
        """Steps per second of late, repeated ones included."""
        points = self._history.points
        late = list(takewhile(lambda point: point.at > points[-1].at - RATE_OVER, reversed(points)))
        spent = late[0].at - late[-1].at
        return (len(late) - 1) / spent if spent else 0.0

    def _lights(self) -> str:
        """One sign a process, by initial rank: it trains, waits in reserve, or is lost."""
        return "".join(self._light(rank) for rank in range(self._history.ranks + self._history.spares))

    def _light(self, initial_rank: int) -> str:
        styled = self._terminal.styled
        if initial_rank in self._history.lost:
            return styled("✗", Style.RED)
        return styled("●", Style.GREEN) if initial_rank in self._history.places else styled("○", Style.DIM)

    def _injected(self, injection: Injection) -> None:
        self._terminal.say(f"  ✗ step {injection.step}, rank {injection.rank}: {KINDS[injection.kind].text}", Style.RED)

    def _recovery(self, recovery: Recovery) -> None:
        if recovery.noticed is None or recovery.entered is None:
            resumed = f"first step after {duration(recovery.resumed)}, {_resumed(recovery)}"
            self._terminal.say(f"  ✓ {resumed}", Style.GREEN)
            return
        if recovery.injection is None:
            cause = recovery.cause
            message = str(cause["message"]).strip(" :")
            self._terminal.say(f"  ✗ process {cause['initial_rank']}: {message}", Style.RED)
        entered, resumed = (measured(seconds, recovery) for seconds in (recovery.entered, recovery.resumed))
        self._terminal.say(f"  ✓ {_noticed(recovery)}, all back in the function after {entered}", Style.GREEN)
        self._terminal.say(f"    first step after {resumed}, {_resumed(recovery)}{_changes(recovery)}", Style.DIM)


def measured(seconds: float, recovery: Recovery) -> str:
    """A duration of a recovery; where a timeout ended a hang, apart from it."""
    return after_timeout(seconds) if is_timeout(recovery.cause) else duration(seconds)


def _noticed(recovery: Recovery) -> str:
    """How the fault was noticed: at once, or by which timeout."""
    assert recovery.noticed is not None
    noticed, interruption = recovery.noticed, recovery.cause.get("interruption")
    for name, timeout, what in (("SOFT_TIMEOUT", SOFT_TIMEOUT, "soft"), ("HARD_TIMEOUT", HARD_TIMEOUT, "hard")):
        if interruption == name and noticed >= timeout:
            return f"noticed {duration(noticed - timeout)} after the {timeout:g} s {what} timeout"
    return f"noticed after {duration(noticed)}"


def _resumed(recovery: Recovery) -> str:
    return f"{recovery.world_size} ranks, {recovery.repeated} step{'' if recovery.repeated == 1 else 's'} repeated"


def _changes(recovery: Recovery) -> str:
    """Who is lost, and who has taken whose place."""
    lost = [f"process {rank} is lost" for rank in recovery.lost]
    took_over = [f"spare {spare} is rank {rank}" for spare, rank in recovery.took_over.items()]
    return "".join(f"; {change}" for change in (*lost, *took_over))
