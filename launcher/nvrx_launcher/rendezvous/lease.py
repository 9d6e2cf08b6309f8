"""What a node knows of its own lease. Pure.

The coordinator takes a node for lost some beats after it has last seen the lease move. The node counts from the
moment at which it began to move the lease, which is earlier, and ends its workers a beat before that.
"""

from __future__ import annotations

import math

__all__ = ["Lease"]


class Lease:
    """A node's lease.

    Args:
        beat: seconds between two moves.
        lost_after: beats without a move after which the node is lost.

    Attributes:
        ends_after: seconds from a move to the deadline.
        deadline: when the lease counts as lost here, monotonic seconds; `inf`: it is not held.
    """

    def __init__(self, beat: float, lost_after: int) -> None:
        self.ends_after = beat * (lost_after - 1)
        self.deadline = math.inf

    def moved(self, *, begun: float) -> None:
        """Take an answer to a move that was begun at this time."""
        self.deadline = begun + self.ends_after

    def release(self) -> None:
        """Hold it no more."""
        self.deadline = math.inf

    def is_lost(self, *, now: float) -> bool:
        """Return whether the others may take this node for lost."""
        return now >= self.deadline
