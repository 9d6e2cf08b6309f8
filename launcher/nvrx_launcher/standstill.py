"""The launcher's own pauses: while its loop does not turn, it notices nothing. Pure.

A process that is stopped, a machine that is suspended, or a file on a stalled file system hold up the loop. What was
due meanwhile is judged late, and not before what has arrived meanwhile is handled; the log names the pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nvrx_core.liveness.awake_clock import AwakeClock

__all__ = ["Pause", "Standstill"]

WORTH_A_LINE: Final = 2.0
"""Seconds of a pause that the log names."""


@dataclass(frozen=True)
class Pause:
    """A pause of the launcher.

    Attributes:
        length: seconds.
        doing: what took most of it; "" if unknown.
    """

    length: float
    doing: str

    @property
    def is_worth_a_line(self) -> bool:
        """Whether the log should name it."""
        return self.length >= WORTH_A_LINE

    def __str__(self) -> str:
        if self.doing:
            return f"this launcher stood still for {self.length:.0f} s, {self.doing}"
        return f"this launcher stood still for {self.length:.0f} s: it was stopped, or got no processor"


class Standstill:
    """Recognises pauses.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, *, now: float) -> None:
        self._clock, self._awake_at = AwakeClock(), now
        self._doing, self._longest = "", 0.0

    def did(self, what: str, seconds: float) -> None:
        """Record how long the launcher was busy with something."""
        if seconds > self._longest:
            self._doing, self._longest = what, seconds

    def turned(self, due: float, *, asked: float, now: float) -> Pause | None:
        """Record a turn of the loop; return the pause before it or in it, if there was one.

        Args:
            due: until when the loop intended to wait.
            asked: when it began to wait.
            now: when it was awake again.
        """
        length = self._clock.woke(self._awake_at, now=asked) + self._clock.woke(due, now=now)
        doing = self._doing if self._longest >= length / 2 else ""
        self._awake_at, self._doing, self._longest = now, "", 0.0
        return Pause(length, doing) if length else None
