"""Time as a port.

Decisions use `now`, which never jumps. `wall` only dates what people read, and is compared with no other host's.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What tells the time."""

    def now(self) -> float:
        """Monotonic seconds; comparable between the processes of one host."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, as this host believes."""
        ...


class SystemClock:
    """The host's own clock."""

    def now(self) -> float:
        """Monotonic seconds; comparable between the processes of one host."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970, as this host believes."""
        return time.time()
