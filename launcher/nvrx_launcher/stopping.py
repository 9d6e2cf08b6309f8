"""The end of a node's workers: a signal, SIGKILL after a grace, and what survives that. Pure.

A worker that waits for a device or a file system in the kernel (state D) ends when that answers, if ever. Its node is
given up, so that another one can take its place.
"""

from __future__ import annotations

import enum
import math

__all__ = ["StopStep", "Stopping"]


class StopStep(enum.Enum):
    """What is due."""

    KILL = "kill"  # what is left is sent SIGKILL
    GIVE_UP = "give up"  # what is left has survived it


class Stopping:
    """The deadlines of workers that are being ended.

    Args:
        kill_timeout: seconds from SIGKILL after which what is left counts as unkillable.

    Attributes:
        kill_at, give_up_at: when the steps are due, monotonic seconds; `inf` for never.
    """

    def __init__(self, kill_timeout: float) -> None:
        self._kill_timeout = kill_timeout
        self.kill_at = self.give_up_at = math.inf

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min(self.kill_at, self.give_up_at)

    def signalled(self, grace: float, *, now: float) -> None:
        """Record that the workers were sent a signal; a further one never gives them more time.

        Args:
            grace: seconds until they are killed; `inf`: this was SIGKILL.
            now: monotonic seconds.
        """
        if math.isinf(grace):
            self._killed(now)
        elif math.isinf(self.give_up_at):
            self.kill_at = min(self.kill_at, now + grace)

    def ended(self) -> None:
        """Record that all workers have ended."""
        self.kill_at = self.give_up_at = math.inf

    def tick(self, *, now: float) -> StopStep | None:
        """Return what is due, once."""
        if now >= self.give_up_at:
            self.ended()
            return StopStep.GIVE_UP
        if now >= self.kill_at:
            self._killed(now)
            return StopStep.KILL
        return None

    def _killed(self, now: float) -> None:
        self.kill_at, self.give_up_at = math.inf, min(self.give_up_at, now + self._kill_timeout)
