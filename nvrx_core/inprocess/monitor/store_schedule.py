"""When a monitor process uses the store, and for what. Pure."""

from __future__ import annotations

import enum
import math

__all__ = ["StoreSchedule", "StoreTask"]


class StoreTask(enum.Enum):
    """What the store is used for."""

    MOVE_LEASE = enum.auto()
    PROBE = enum.auto()
    """Ask anything, to learn whether the store answers."""
    WATCH_SIBLINGS = enum.auto()


class StoreSchedule:
    """The tasks of one process; seconds of the monotonic clock.

    Args:
        heartbeat: between two moves of the lease.
        probe: between two uses of the store, at most.
        siblings: between two looks at the siblings' leases, at least; a look follows a use of the store.

    Attributes:
        deadline: when the next task is due.
    """

    def __init__(self, *, heartbeat: float, probe: float, siblings: float) -> None:
        self.heartbeat, self.probe, self.siblings = heartbeat, probe, siblings
        self.deadline = self._lease_at = self._siblings_at = -math.inf

    def due(self, *, now: float) -> tuple[StoreTask, ...]:
        """Return the tasks to do now, in order; they count as done."""
        if now < self.deadline:
            return ()
        moves, watches = now >= self._lease_at, now >= self._siblings_at
        if moves:
            self._lease_at = now + self.heartbeat
        if watches:
            self._siblings_at = now + self.siblings
        self.deadline = min(self._lease_at, now + self.probe)
        first = StoreTask.MOVE_LEASE if moves else StoreTask.PROBE
        return (first, StoreTask.WATCH_SIBLINGS) if watches else (first,)
