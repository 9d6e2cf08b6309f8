"""The rate at which equal failures are logged: the first ones at once, then one line a second. Pure.

Restarts that follow each other within milliseconds would otherwise write hundreds of equal lines a second.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

__all__ = ["LogRate"]

AT_ONCE: Final = 2
"""Equal failures in a row that are all logged."""
EVERY: Final = 1.0
"""Seconds between two further lines."""


class LogRate:
    """The lines about the failures of one call."""

    def __init__(self) -> None:
        self._last: Hashable = None
        self._times = self._left_out = 0
        self._next = 0.0

    def line(self, failure: Hashable, *, now: float) -> int | None:
        """Return how many lines were left out before this one, or None for one that is left out itself.

        Args:
            failure: what equal failures have in common.
            now: monotonic seconds.
        """
        if failure != self._last:
            self._last, self._times, self._left_out = failure, 0, 0
        self._times += 1
        if self._times > AT_ONCE and now < self._next:
            self._left_out += 1
            return None
        left_out, self._left_out, self._next = self._left_out, 0, now + EVERY
        return left_out
