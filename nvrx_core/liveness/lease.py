"""Liveness of other members by lease, as a pure machine.

A lease is a counter in the store that a member's monitor process moves on. The observer compares the counter with the
one it saw before and notes *its own* monotonic time when it changed: the clocks of two hosts are never compared, and a
clock that is an hour off
changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Self

__all__ = ["LeaseState", "LeaseTable"]

LeaseState = tuple[tuple[int, str, float], ...]
"""For each observed member: what its lease says, and for how long it has said so."""


class LeaseTable:
    """When each observed member was last seen to live.

    Args:
        timeout: seconds without a change after which a member counts as unresponsive.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._seen: dict[int, tuple[str, float]] = {}

    @classmethod
    def from_state(cls, timeout: float, state: LeaseState, *, now: float) -> Self:
        """The table that had this state."""
        table = cls(timeout)
        table._seen = {member: (lease, now - age) for member, lease, age in state}
        return table

    def state(self, *, now: float) -> LeaseState:
        """All that decides who is stale, relative to now."""
        return tuple((member, lease, now - at) for member, (lease, at) in sorted(self._seen.items()))

    def observe(self, member: int, lease: str, *, now: float) -> None:
        """Note what the member's lease says now."""
        known = self._seen.get(member)
        if known is None or known[0] != lease:
            self._seen[member] = (lease, now)

    def keep(self, members: Iterable[int]) -> None:
        """Forget all but these members."""
        kept = set(members)
        self._seen = {member: seen for member, seen in self._seen.items() if member in kept}

    def stale(self, *, now: float, share: float = 1.0) -> tuple[int, ...]:
        """The members whose lease has not changed for `share` of the timeout."""
        return tuple(sorted(m for m, (_, at) in self._seen.items() if now - at >= self.timeout * share))

    @property
    def deadline(self) -> float:
        """When the next member becomes unresponsive, if nothing changes."""
        return min((at + self.timeout for _, at in self._seen.values()), default=math.inf)
