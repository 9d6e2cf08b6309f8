"""The farewell of a simulated rank, which the shipped `Membership` and `KeyDeletion` carry out on its store."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from nvrx_core.rank_assignment.identity import InitialRank

from .virtual_ports import StorePort, VirtualRank
from .world import NOTHING, passes

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["StoredFarewell"]


class StoredFarewell(StorePort):
    """The store of a simulated rank.

    Args:
        rank: the rank.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.owner: VirtualRank = rank

    def mark_left(self, member: InitialRank, *, silent: bool = False) -> Awaitable[None]:
        rank = self.rank
        rank.call.membership.mark_left(member, silent=silent)
        if rank.call.hosting is not None:
            rank.call.poke()
        return passes(rank.world.delay())

    def count_out(self, iteration: int, living: int) -> Awaitable[None]:
        self.rank.call.deletion.count_out(iteration, living, self.rank.call.size)
        return passes(self.rank.world.delay())

    def delete_if_over(self) -> Awaitable[None]:
        self.rank.call.deletion.delete_if_over(self.rank.call.size)
        return NOTHING
