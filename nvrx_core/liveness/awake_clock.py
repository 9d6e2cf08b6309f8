"""The time for which an observer has been awake, as a pure machine.

Whoever judges others by their silence must not count what it has slept through itself: its process was stopped, or the
whole machine was. It knows when it meant to wake; if it wakes much later, the time between was a pause of its own. Its
awake time is the monotonic time without these pauses, and silence is measured in it. The others may have slept through
the same pause or not: a silence that goes on is judged, later by the pause.
"""

from __future__ import annotations

from typing import Final

__all__ = ["AwakeClock"]

SLACK: Final = 1.0
"""Seconds that an observer may wake late without a pause: a busy machine is no sleeping one."""
KEPT: Final = 64
"""How many pauses are told apart; older ones lie before every moment that is asked for."""


class AwakeClock:
    """The awake time of one observer; seconds.

    Attributes:
        paused: how long all pauses were together.
    """

    def __init__(self) -> None:
        self.paused = 0.0
        self._pauses: list[tuple[float, float]] = []
        self._woken_at = 0.0

    def woke(self, meant: float, *, now: float) -> float:
        """Note that the observer is awake, and when it had meant to be; returns how long it has paused.

        Args:
            meant: monotonic time at which it wanted to be woken at the latest.
            now: monotonic time.
        """
        begin, self._woken_at = max(meant, self._woken_at), now
        if now < begin + SLACK:
            return 0.0
        self._pauses = [*self._pauses, (begin, now)][-KEPT:]
        self.paused += now - begin
        return now - begin

    def at(self, moment: float) -> float:
        """The awake time at a monotonic moment; it stands still during a pause."""
        return moment - self.paused + sum(end - max(begin, moment) for begin, end in self._pauses if moment < end)

    def when(self, awake: float) -> float:
        """The monotonic time at which the awake time will be that, if no pause is to come."""
        return awake + self.paused
