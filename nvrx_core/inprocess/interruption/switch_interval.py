"""A shorter GIL switch interval while the function runs, and a still shorter one while a round ends.

A thread that requests the GIL from a busy thread gets it after the switch interval: 5 ms each time by default, and the
work between a fault and the restart acquires the GIL dozens of times. The interval is lowered for the call, and again
from a round's event to its decision; then the exact previous value is restored.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["STEADY", "FastGilSwitching"]

SHORT: Final = 200
"""Microseconds, while a round ends."""
STEADY: Final = 1000
"""Microseconds, while the function runs.

A waiting thread requests the GIL only when it was not released for a whole interval. A thread that releases it and
acquires it again within the default interval, as an event loop of short tasks does, is never asked: others starve.
"""


class FastGilSwitching:
    """A temporarily lowered switch interval; a value that other code sets meanwhile is kept.

    Args:
        microseconds: the lowered interval.
    """

    def __init__(self, microseconds: int = SHORT) -> None:
        self.microseconds = microseconds
        self._found: int | None = None

    def begin(self) -> None:
        """Lower the interval, unless it is already as short."""
        interval = _microseconds()
        if self._found is None and interval > self.microseconds:
            self._found = interval
            _set(self.microseconds)

    def end(self) -> None:
        """Restore the interval; do nothing without `begin`."""
        found, self._found = self._found, None
        if found is not None and _microseconds() == self.microseconds:
            _set(found)


def _microseconds() -> int:
    return round(sys.getswitchinterval() * 1e6)


def _set(microseconds: int) -> None:
    sys.setswitchinterval((microseconds + 0.5) * 1e-6)  # CPython truncates to whole microseconds
