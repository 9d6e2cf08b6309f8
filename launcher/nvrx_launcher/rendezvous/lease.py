"""A node's view of its own lease. Pure.

The coordinator considers a node lost some beats after the last renewal that it has seen. The node counts from the
moment at which it began the renewal, which is earlier, and ends its workers a beat before that. A pause of the launcher
itself is no silence of the store: it has another beat after it.
"""

from __future__ import annotations

import math

__all__ = ["Lease"]


class Lease:
    """A node's lease.

    Args:
        beat: seconds between two renewals.
        lost_after: beats without a renewal after which the node is lost.

    Attributes:
        ends_after: seconds from a renewal to the deadline.
        deadline: when the lease counts as lost here, monotonic seconds; `inf`: it is not held.
    """

    def __init__(self, beat: float, lost_after: int) -> None:
        self._beat, self.ends_after = beat, beat * (lost_after - 1)
        self.deadline, self._paused_until = math.inf, -math.inf
        self._released = -math.inf

    def moved(self, *, begun: float) -> None:
        """Record the answer to a renewal that was begun at this time.

        One that was begun before the lease was released says nothing: it was under way when the node was cut off.
        """
        if begun >= self._released:
            self.deadline = max(begun + self.ends_after, self._paused_until)

    def paused(self, *, now: float) -> None:
        """Record that this launcher has stood still until now: whether it has lost the lease is not known yet.

        It has a beat to renew the lease, or to read that it counts as lost.
        """
        self._paused_until = now + self._beat
        self.deadline = max(self.deadline, self._paused_until)

    def release(self, *, now: float) -> None:
        """Release the lease; the next renewal that is begun holds it again."""
        self.deadline, self._released = math.inf, now

    def is_lost(self, *, now: float) -> bool:
        """Return whether the others may consider this node lost."""
        return now >= self.deadline
