"""Which siblings a monitor process watches, and who of them is unresponsive. Pure.

The members form a ring in the order of their initial ranks, and each watches the one that follows it. When that one is
silent, its monitor process may have gone with a whole node, and nobody watches those that follow: so more are watched.

A member may be lost before its lease is there. All have claimed their places when the first process watches, and each
has `starts_within` to start its monitor process; from then on, a member without a lease is as silent as one whose lease
stands still. After the first barrier it is so at once.
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
"""How many members are watched for each one that is silent."""


class SiblingRing:
    """The siblings of one member.

    Args:
        member: its initial rank.
        timeout: seconds without a change of its lease after which a sibling is unresponsive; one that is silent for
            half of that counts as silent.
        starts_within: seconds from the first look until every sibling has a lease, or has given up.
    """

    def __init__(self, member: InitialRank, timeout: float, starts_within: float) -> None:
        self.member, self.starts_within = member, starts_within
        self.leases = LeaseTable[InitialRank](timeout)
        self._started_at = math.inf

    def watched(self, siblings: list[InitialRank], *, now: float) -> list[InitialRank]:
        """Return those whose leases to read; the others are forgotten.

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
        """Note the leases of those that are watched; returns the unresponsive ones.

        Args:
            watched: as `watched` has returned it.
            leases: what their leases say, of those that have one.
            all_have_arrived: in the first barrier.
            now: awake seconds.
        """
        self._started_at = min(self._started_at, now + self.starts_within)
        must_have_one = all_have_arrived or now >= self._started_at
        for member in watched:
            if member in leases or must_have_one:
                self.leases.observe(member, leases.get(member, ""), now=now)
        return self.leases.stale(now=now)
