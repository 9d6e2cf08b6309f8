"""The leases of others, as an observer sees them that may itself stand still. Pure.

An observer that was stopped, or waited long for the store, has not seen the renewals of that time, and all others may
have stood still with it, as in a job that is suspended as a whole. So the time for which a look was late, or took, does
not count as silence of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.lease import LeaseTable

__all__ = ["ObservedLeases", "closed_and_not_moved", "not_moved"]


class ObservedLeases:
    """Leases that are looked at once a beat.

    Args:
        beat: seconds between two looks, and between two renewals.
        lost_after: beats without a renewal after which a holder is lost.

    Attributes:
        timeout: the same, seconds.
    """

    def __init__(self, beat: float, lost_after: int) -> None:
        self._beat, self.timeout = beat, beat * lost_after
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
