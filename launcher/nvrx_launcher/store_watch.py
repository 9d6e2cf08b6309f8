"""Whether the program of the store of in-process restart works, by its signs of life. Pure.

The program gives a sign of life each second, once it serves. One that a signal has stopped is given up after
`STOPPED_AFTER` seconds without one, any other after `SILENT_AFTER`: before the ranks do, which wait for 10 s, so that
they are restarted with a new store. The time for which the launcher itself was paused does not count.
"""

from __future__ import annotations

from typing import Final

from nvrx_core.liveness.awake_clock import AwakeClock

__all__ = ["SILENT_AFTER", "START_TIMEOUT", "STOPPED_AFTER", "StoreWatch"]

START_TIMEOUT: Final = 60.0
"""Seconds to the first sign of life: it imports torch before."""
STOPPED_AFTER: Final = 4.0
SILENT_AFTER: Final = 7.0
LOOKS_AFTER: Final = 3.0
LOOKS_EVERY: Final = 1.0


class StoreWatch:
    """Observes one program.

    Args:
        now: when it was started, monotonic seconds.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, *, now: float) -> None:
        self._clock, self._heard, self._serves = AwakeClock(), now, False
        self.deadline = now + LOOKS_AFTER

    def heard(self, *, now: float) -> None:
        """Record a sign of life."""
        self._heard, self._serves = now, True
        self.deadline = now + LOOKS_AFTER

    def tick(self, *, now: float, is_stopped: bool) -> str:
        """Handle that the deadline has passed; return why the program is given up, "" if it is not.

        Args:
            now: monotonic seconds.
            is_stopped: a signal has stopped the program.
        """
        self._clock.woke(self.deadline, now=now)
        silent = self._clock.at(now) - self._clock.at(self._heard)
        self.deadline = now + LOOKS_EVERY
        if is_stopped:
            return f"is stopped by a signal, since {silent:.0f} s" if silent >= STOPPED_AFTER else ""
        if self._serves:
            return f"has not answered for {silent:.0f} s" if silent >= SILENT_AFTER else ""
        return f"has not started within {silent:.0f} s" if silent >= START_TIMEOUT else ""
