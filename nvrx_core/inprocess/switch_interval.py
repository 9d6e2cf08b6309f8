"""Shorter turns of the interpreter's lock while a round ends.

A thread that wants the lock from a busy one gets it after the switch interval: 5 ms each time by default, and the work
between a fault and its restart takes the lock dozens of times. So the interval is lowered from a round's event to its
decision, and given back exactly as it was found.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["ShortTurns"]

SHORT: Final = 200
"""Microseconds."""


class ShortTurns:
    """The switch interval lowered for a while; whoever sets it meanwhile wins."""

    def __init__(self) -> None:
        self._found: int | None = None

    def begin(self) -> None:
        """Lower the interval, unless it is as short already."""
        interval = _microseconds()
        if self._found is None and interval > SHORT:
            self._found = interval
            _set(SHORT)

    def end(self) -> None:
        """Give the interval back; does nothing without `begin`."""
        found, self._found = self._found, None
        if found is not None and _microseconds() == SHORT:
            _set(found)


def _microseconds() -> int:
    return round(sys.getswitchinterval() * 1e6)


def _set(microseconds: int) -> None:
    sys.setswitchinterval((microseconds + 0.5) * 1e-6)  # cut off to whole microseconds
