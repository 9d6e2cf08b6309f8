"""The farewell of a simulated rank, which the shipped `Membership` and `KeyDeletion` carry out on its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvrx_core.rank_assignment.identity import InitialRank

from .virtual_ports import StorePort, VirtualRank
from .world import passes

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

    async def mark_left(self, member: InitialRank, *, silent: bool = False) -> None:
        rank = self.rank
        rank.call.membership.mark_left(member, silent=silent)
        if rank.call.hosting is not None:
            rank.call.poke()
        await passes(rank.world.delay())

    async def count_out(self, iteration: int, living: int) -> None:
        self.rank.call.deletion.count_out(iteration, living, self.rank.call.size)
        await passes(self.rank.world.delay())

    async def delete_if_over(self) -> None:
        self.rank.call.deletion.delete_if_over(self.rank.call.size)
