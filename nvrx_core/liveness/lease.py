"""Liveness of other members by lease. Pure.

A lease is a counter in the store that a member's monitor process increments. The observer compares the counter with the
previous value and records *its own* monotonic time when the value changes. The clocks of two hosts are never compared,
so a clock that is an hour off has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Generic, Self, TypeVar

__all__ = ["LeaseState", "LeaseTable"]

Holder = TypeVar("Holder", bound=int)
LeaseState = tuple[tuple[Holder, str, float], ...]
"""For each observed member: the value of its lease, and the seconds since it changed."""


class LeaseTable(Generic[Holder]):
    """The time of the last lease renewal of each observed member.

    Args:
        timeout: seconds without a change after which a member counts as unresponsive.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._seen: dict[Holder, tuple[str, float]] = {}

    @classmethod
    def from_state(cls, timeout: float, state: LeaseState[Holder], *, now: float) -> Self:
        """Restore a table from its state."""
        table = cls(timeout)
        table._seen = {member: (lease, now - age) for member, lease, age in state}
        return table

    def state(self, *, now: float) -> LeaseState[Holder]:
        """Return everything that decides which leases are stale, relative to now."""
        return tuple((member, lease, now - at) for member, (lease, at) in sorted(self._seen.items()))

    def observe(self, member: Holder, lease: str, *, now: float) -> None:
        """Record the current value of a member's lease."""
        known = self._seen.get(member)
        if known is None or known[0] != lease:
            self._seen[member] = (lease, now)

    def keep(self, members: Iterable[Holder]) -> None:
        """Forget all but these members."""
        kept = set(members)
        if not self._seen.keys() <= kept:
            self._seen = {member: seen for member, seen in self._seen.items() if member in kept}

    def stale(self, *, now: float, share: float = 1.0) -> tuple[Holder, ...]:
        """Return the members whose lease has not changed for `share` of the timeout."""
        silence = self.timeout * share
        return tuple(sorted([member for member, (_, at) in self._seen.items() if now - at >= silence]))

    @property
    def deadline(self) -> float:
        """The time at which the next member becomes unresponsive, if no lease changes."""
        return min((at + self.timeout for _, at in self._seen.values()), default=math.inf)
