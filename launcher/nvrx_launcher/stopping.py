"""The end of processes: a request, SIGKILL after a grace, and what survives that. Pure.

A worker that waits for a device or a file system in the kernel (state D) ends when that answers, if ever. Its node is
given up, so that another one can take its place. What the workers of a node have left when all of them are done may end
by itself, as helpers do whose pipe was closed; what does not is asked to, and has as long as a worker.
"""

from __future__ import annotations

import enum
import math
from typing import Final

__all__ = ["StopStep", "Stopping"]

ENDS_BY_ITSELF: Final = 1.0
"""Seconds until a process that was left is asked to end."""


class StopStep(enum.Enum):
    """What is due."""

    ASK = "ask"  # what is left is sent SIGTERM
    KILL = "kill"  # what is left is sent SIGKILL
    GIVE_UP = "give up"  # what is left has survived it


class Stopping:
    """The deadlines of processes that are being ended.

    Args:
        workers_kill_timeout: seconds from SIGKILL after which what is left counts as unkillable; `inf` for never.

    Attributes:
        kill_at, give_up_at: when the steps are due, monotonic seconds; `inf` for never.
    """

    def __init__(self, workers_kill_timeout: float = math.inf) -> None:
        self._kill_timeout, self._grace = workers_kill_timeout, math.inf
        self._ask_at = self.kill_at = self.give_up_at = math.inf

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min(self._ask_at, self.kill_at, self.give_up_at)

    def left(self, grace: float, *, now: float) -> None:
        """Record that processes are left that nobody has asked to end; they have `grace` seconds once they are."""
        self._ask_at, self._grace = now + ENDS_BY_ITSELF, grace

    def signalled(self, grace: float, *, now: float) -> None:
        """Record that the processes were sent a signal; a further one never gives them more time.

        Args:
            grace: seconds until they are killed; `inf`: this was SIGKILL.
            now: monotonic seconds.
        """
        if math.isinf(grace):
            self._killed(now)
        elif math.isinf(self.give_up_at):
            self.kill_at = min(self.kill_at, now + grace)

    def ended(self) -> None:
        """Record that all have ended."""
        self._ask_at = self.kill_at = self.give_up_at = math.inf

    def tick(self, *, now: float) -> StopStep | None:
        """Return what is due, once."""
        if now >= self.give_up_at:
            self.ended()
            return StopStep.GIVE_UP
        if now >= self.kill_at:
            self._killed(now)
            return StopStep.KILL
        if now >= self._ask_at:
            self._ask_at = math.inf
            self.signalled(self._grace, now=now)
            return StopStep.ASK
        return None

    def _killed(self, now: float) -> None:
        self.kill_at, self.give_up_at = math.inf, min(self.give_up_at, now + self._kill_timeout)
