"""How the processes are ended that the workers of a node have left when all of them are done. Pure.

They may end by themselves, as helpers do whose pipe was closed. Those that do not are sent SIGTERM, and have as long as
a worker.
"""

from __future__ import annotations

import enum
import math
from typing import Final

__all__ = ["Ending", "LeftPolicy"]

ENDS_BY_ITSELF: Final = 1.0
"""Seconds until a process that was left is asked to end."""


class Ending(enum.Enum):
    """What is due."""

    NOTHING = "nothing"
    ASK = "ask what is left to end"
    KILL = "kill what is left"


class LeftPolicy:
    """Decides about the processes that workers have left.

    Args:
        grace: seconds from the request to end until they are killed.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, grace: float) -> None:
        self._grace, self._is_asked, self.deadline = grace, False, math.inf

    def left(self, *, now: float) -> None:
        """Handle that all workers are done and processes are left."""
        self._is_asked, self.deadline = False, now + ENDS_BY_ITSELF

    def gone(self) -> None:
        """Handle that none is left."""
        self.deadline = math.inf

    def tick(self, *, now: float) -> Ending:
        """Return what is due."""
        if now < self.deadline:
            return Ending.NOTHING
        if self._is_asked:
            self.deadline = math.inf
            return Ending.KILL
        self._is_asked, self.deadline = True, now + self._grace
        return Ending.ASK
