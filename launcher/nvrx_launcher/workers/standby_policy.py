"""Policy for starting standby workers: one at a time, not while workers start, and only with enough memory. Pure.

A local rank has at most one standby. After it has become a worker, another one is started.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["BYTES_OF_A_WORKER", "StandbyPolicy", "StartStandby"]

SETTLES: Final = 5.0
"""Seconds for workers to start before standbys use the CPUs."""
SETTLES_WARM: Final = 1.0
"""The same if all workers were standbys: they import nothing, and no other standby is left for the next restart."""
LOOKS_AGAIN: Final = 30.0
"""Seconds between two checks of free memory."""
MAX_LOSSES: Final = 3
"""Consecutive standbys that may exit before they are ready; after these no more are started."""
BYTES_OF_A_WORKER: Final = 4 << 30
"""Free memory that `auto` requires."""


@dataclass(frozen=True)
class StartStandby:
    """Start a standby for a local rank."""

    local_rank: int

    @property
    def reason(self) -> str:
        """The reason as text, for the log."""
        return f"local rank {self.local_rank} has no standby"


class StandbyPolicy:
    """Decides about the standbys of one node.

    Args:
        workers: how many workers the node has.
        why_none: why there are no standbys; "" if there are any.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
        reason: why no more are started, "" while they are.
    """

    def __init__(self, workers: int, why_none: str = "") -> None:
        self._workers, self._missing = workers, set(range(workers))
        self._warm = 0
        self._starting: int | None = None
        self._losses = 0
        self.deadline, self.reason = math.inf, why_none

    def settle(self, *, now: float) -> None:
        """Handle that workers are being started or awaited: standbys are started after them."""
        if not self.reason:
            self.deadline = now + (SETTLES_WARM if self._warm == self._workers else SETTLES)
        self._warm = 0

    def pause(self) -> None:
        """Handle that workers are being stopped."""
        self.deadline = math.inf

    def tick(self, *, now: float, has_room: bool) -> tuple[StartStandby, ...]:
        """Handle the passing of time, given whether there is enough memory."""
        if now < self.deadline:
            return ()
        self.deadline = math.inf
        if self.reason or self._starting is not None or not self._missing:
            return ()
        if not has_room:
            self.deadline = now + LOOKS_AGAIN
            return ()
        self._starting = min(self._missing)
        self._missing.remove(self._starting)
        return (StartStandby(self._starting),)

    def ready(self, local_rank: int, *, now: float) -> None:
        """Handle that a standby has completed its imports."""
        self._losses = 0
        self._done(local_rank, now)

    def taken(self, local_rank: int, *, runs: bool) -> None:
        """Handle that a standby is used up, and whether it runs as a worker; `settle` schedules the next one."""
        self._missing.add(local_rank)
        self._warm += runs

    def lost(self, local_rank: int, why: str, *, now: float) -> None:
        """Handle that a standby has exited."""
        self._missing.add(local_rank)
        if local_rank == self._starting:
            self._losses += 1
        if self._losses >= MAX_LOSSES:
            self.reason = f"{MAX_LOSSES} standby workers have ended before they were ready: {why}"
        self._done(local_rank, now)

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        assert self._starting is None or self._starting not in self._missing

    def _done(self, local_rank: int, now: float) -> None:
        if local_rank == self._starting:
            self._starting = None
        if self.deadline == math.inf:
            self.deadline = now
