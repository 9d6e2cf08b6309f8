"""Time as a port.

Decisions use `now`, which never jumps. `wall` only dates what people read; it is not compared with other hosts.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Return monotonic seconds, comparable between the processes of one host."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970 by the wall clock of this host."""
        ...


class SystemClock:
    """The clocks of the host."""

    def now(self) -> float:
        """Return monotonic seconds, comparable between the processes of one host."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since 1970 by the wall clock of this host."""
        return time.time()
