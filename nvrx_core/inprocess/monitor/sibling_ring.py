"""The siblings that a monitor process observes, and which of them are unresponsive. Pure.

The members form a ring in the order of their initial ranks, and each observes the next one. If that one is silent, its
monitor process may be lost with a whole node, and no process observes the members after it: so more are observed.

A member may be lost before it has a lease. All have claimed their places when the first process observes them, and each
has `starts_within` to start its monitor process; from then on, a member without a lease counts as silent. After the
first barrier it does so at once.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from typing import Final

from nvrx_core.liveness.lease import LeaseTable
from nvrx_core.rank_assignment.identity import InitialRank

__all__ = ["SiblingRing"]

WATCHED_PER_SILENT: Final = 64
"""How many members are observed for each silent one."""


class SiblingRing:
    """The siblings of one member.

    Args:
        member: its initial rank.
        timeout: seconds without a change of its lease after which a sibling is unresponsive; one that is silent for
            half of that counts as silent.
        starts_within: seconds from the first observation until every sibling has a lease, or has given up.
    """

    def __init__(self, member: InitialRank, timeout: float, starts_within: float) -> None:
        self.member, self.starts_within = member, starts_within
        self.leases: LeaseTable[InitialRank] = LeaseTable(timeout)
        self._started_at = math.inf

    def watched(self, siblings: list[InitialRank], *, now: float) -> list[InitialRank]:
        """Return the siblings whose leases to read; the others are forgotten.

        Args:
            siblings: the other members that are not lost, in order.
            now: awake seconds.
        """
        first, silent = bisect(siblings, self.member), self.leases.stale(now=now, share=0.5)
        watched = (siblings[first:] + siblings[:first])[: max(1, WATCHED_PER_SILENT * len(silent))]
        self.leases.keep(watched)
        return watched

    def observe(
        self, watched: list[InitialRank], leases: Mapping[InitialRank, str], *, all_have_arrived: bool, now: float
    ) -> tuple[InitialRank, ...]:
        """Record the leases of the observed siblings; return the unresponsive ones.

        Args:
            watched: the result of `watched`.
            leases: the leases of those that have one.
            all_have_arrived: in the first barrier.
            now: awake seconds.
        """
        self._started_at = min(self._started_at, now + self.starts_within)
        must_have_one = all_have_arrived or now >= self._started_at
        for member in watched:
            if member in leases or must_have_one:
                self.leases.observe(member, leases.get(member, ""), now=now)
        return self.leases.stale(now=now)
