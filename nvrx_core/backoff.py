"""Pauses between the tries of something that may fail again: each is twice as long as the one before. Pure.

The number of failures in a row is counted by whoever tries, and is part of its state where that is handed on.
"""

from __future__ import annotations

import math
from typing import Final

from nvrx_core.values import value

__all__ = ["Backoff", "RestartBackoff"]

MAX_DOUBLINGS: Final = 64
"""More of them change nothing, and a float has no room for any number."""


@value
class Backoff:
    """Pauses that double up to a limit.

    Attributes:
        first: seconds after the first failure.
        longest: seconds after many.
    """

    first: float
    longest: float

    def pause(self, failures: int) -> float:
        """Return how many seconds to wait before the next try, after so many failures in a row; 0 after none."""
        return min(self.longest, self.first * 2.0 ** min(failures - 1, MAX_DOUBLINGS)) if failures > 0 else 0.0


class RestartBackoff:
    """When a process is started again that may be lost at once each time: at once, then after 1, 2, 4 ... 60 s.

    One that has run for `STABLE` seconds is started at once again.
    """

    STABLE: Final = 10.0
    PAUSES: Final = Backoff(1.0, 60.0)

    def __init__(self) -> None:
        self._started, self._failures = math.inf, 0

    def started(self, *, now: float) -> None:
        """Record that it has started."""
        self._started = now

    def failed(self, *, now: float) -> float:
        """Record that it was lost, or could not be started; return the seconds until the next start."""
        self._failures = 1 if now >= self._started + self.STABLE else self._failures + 1
        self._started = math.inf
        return self.PAUSES.pause(self._failures - 1)
