"""The time for which an observer has been awake. Pure.

An observer that measures the silence of others must not count the time for which it was paused itself, because its
process was stopped or the machine was suspended. The observer knows when it intended to wake. If it wakes much later,
the time in between counts as its own pause. The awake time is the monotonic time without these pauses, and timeouts of
others are measured in it. A silence that outlasts a pause is still detected, later by the length of the pause.
"""

from __future__ import annotations

from typing import Final

__all__ = ["AwakeClock"]

SLACK: Final = 1.0
"""Seconds by which an observer may wake late without counting as paused: a busy machine delays it too. The default."""
MAX_PAUSES: Final = 64
"""How many pauses are kept; older ones precede every moment that is queried."""


class AwakeClock:
    """The awake time of one observer; seconds.

    Args:
        slack: by how much it may wake late without counting as paused.

    Attributes:
        paused: the total length of all pauses.
    """

    def __init__(self, slack: float = SLACK) -> None:
        self.paused, self._slack = 0.0, slack
        self._pauses: list[tuple[float, float]] = []
        self._woken_at = 0.0

    def woke(self, due: float, *, now: float) -> float:
        """Record that the observer is awake; return how long it was paused.

        Args:
            due: the latest monotonic time at which it intended to wake.
            now: monotonic time.
        """
        begin, self._woken_at = max(due, self._woken_at), now
        if now < begin + self._slack:
            return 0.0
        self._pauses = [*self._pauses, (begin, now)][-MAX_PAUSES:]
        self.paused += now - begin
        return now - begin

    def at(self, moment: float) -> float:
        """Return the awake time at a monotonic moment; it does not advance during a pause."""
        if not self._pauses:
            return moment
        return moment - self.paused + sum(end - max(begin, moment) for begin, end in self._pauses if moment < end)

    def when(self, awake: float) -> float:
        """Return the monotonic time at which the awake time will reach `awake`, if no further pause occurs."""
        return awake + self.paused
