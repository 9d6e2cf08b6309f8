"""Shorter turns of the interpreter's lock while the function runs, and shorter still while a round ends.

A thread that wants the lock from a busy one gets it after the switch interval: 5 ms each time by default, and the work
between a fault and its restart takes the lock dozens of times. So the interval is lowered for the call, once more from
a round's event to its decision, and given back exactly as it was found.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["STEADY", "ShortTurns"]

SHORT: Final = 200
"""Microseconds, while a round ends."""
STEADY: Final = 1000
"""Microseconds, while the function runs.

A thread that waits for the lock asks for it when nobody has given it up for a whole interval. One that gives it up and
takes it again within the default interval, as an event loop of short tasks does, is never asked: the others starve.
"""


class ShortTurns:
    """The switch interval lowered for a while; whoever sets it meanwhile wins.

    Args:
        microseconds: what it is lowered to.
    """

    def __init__(self, microseconds: int = SHORT) -> None:
        self.microseconds = microseconds
        self._found: int | None = None

    def begin(self) -> None:
        """Lower the interval, unless it is as short already."""
        interval = _microseconds()
        if self._found is None and interval > self.microseconds:
            self._found = interval
            _set(self.microseconds)

    def end(self) -> None:
        """Give the interval back; does nothing without `begin`."""
        found, self._found = self._found, None
        if found is not None and _microseconds() == self.microseconds:
            _set(found)


def _microseconds() -> int:
    return round(sys.getswitchinterval() * 1e6)


def _set(microseconds: int) -> None:
    sys.setswitchinterval((microseconds + 0.5) * 1e-6)  # cut off to whole microseconds
