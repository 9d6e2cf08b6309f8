"""The leases by which the nodes of a job are known to be alive: a node's own, and those of others. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.lease import LeaseTable

__all__ = ["Lease", "ObservedLeases", "closed_and_not_moved", "not_moved"]


class Lease:
    """A node's view of its own lease.

    The coordinator considers a node lost some beats after the last renewal that it has seen. The node counts from the
    moment at which it began the renewal, which is earlier, and ends its workers a beat before that. A pause of the
    launcher itself is no silence of the store: it has another beat after it.

    Args:
        beat: seconds between two renewals.
        timeout: seconds from a renewal after which the node considers itself lost.

    Attributes:
        timeout: the same.
        deadline: when the lease counts as lost here, monotonic seconds; `inf`: it is not held.
    """

    def __init__(self, beat: float, timeout: float) -> None:
        self._beat, self.timeout, self.deadline = beat, timeout, math.inf
        self._paused_until = self._released = -math.inf

    def moved(self, *, begun: float) -> None:
        """Record the answer to a renewal that was begun at this time.

        One that was begun before the lease was released says nothing: it was under way when the node was cut off.
        """
        if begun >= self._released:
            self.deadline = max(begun + self.timeout, self._paused_until)

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


class ObservedLeases:
    """The leases of others, looked at once a beat by an observer that may itself stand still.

    An observer that was stopped, or waited long for the store, has not seen the renewals of that time, and all others
    may have stood still with it, as in a job that is suspended as a whole. So the time for which a look was late, or
    took, does not count as silence of the others.

    Args:
        beat: seconds between two looks, and between two renewals.
        timeout: seconds without a renewal after which a holder is lost.

    Attributes:
        timeout: the same.
    """

    def __init__(self, beat: float, timeout: float) -> None:
        self._beat, self.timeout = beat, timeout
        self._clock, self._table = AwakeClock(slack=beat), LeaseTable[int](self.timeout)
        self._due = math.inf

    def begin(self, *, now: float) -> None:
        """Record that a look begins: the store is asked."""
        self._clock.woke(self._due, now=now)
        self._due = now

    def observe(self, leases: Mapping[int, str], *, now: float) -> None:
        """Record what the store has answered; holders that are not among these are forgotten."""
        self._clock.woke(self._due, now=now)
        self._due = now + self._beat
        self._table.keep(leases)
        for holder, lease in leases.items():
            self._table.observe(holder, lease, now=self._clock.at(now))

    def stale(self, *, now: float, share: float = 1.0) -> tuple[int, ...]:
        """Return the holders whose lease has not changed for `share` of the timeout."""
        return self._table.stale(now=self._clock.at(now), share=share)


def not_moved(node: int, seconds: float) -> str:
    """Return why a node counts as lost whose lease has expired."""
    return f"node {node} has not moved its lease for {seconds:g} s"


def closed_and_not_moved(node: int, seconds: float) -> str:
    """Return the same of one whose lease was shortened."""
    return f"the connection of node {node} was closed, and it has not moved its lease for {seconds:g} s since"
