"""The schedule by which a monitor process uses the store. Pure."""

from __future__ import annotations

import enum
import math

__all__ = ["StoreSchedule", "StoreTask"]


class StoreTask(enum.Enum):
    """The tasks that use the store."""

    MOVE_LEASE = enum.auto()
    PROBE = enum.auto()
    """Ask anything, to learn whether the store answers."""
    WATCH_SIBLINGS = enum.auto()


class StoreSchedule:
    """The schedule of one process; monotonic seconds.

    Args:
        heartbeat: between two renewals of the lease.
        probe: between two uses of the store, at most.
        siblings: the minimum between two observations of the siblings' leases; one follows a use of the store.

    Attributes:
        deadline: when the next task is due.
    """

    def __init__(self, *, heartbeat: float, probe: float, siblings: float) -> None:
        self.heartbeat, self.probe, self.siblings = heartbeat, probe, siblings
        self.deadline = self._lease_at = self._siblings_at = -math.inf

    def due(self, *, now: float) -> tuple[StoreTask, ...]:
        """Return the tasks that are due, in order; they count as done."""
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
