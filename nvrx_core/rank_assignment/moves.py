"""Moves renumber the survivors of a round to 0 .. new world size - 1. Pure.

Invariant: over all survivors the new ranks are a permutation of range(new world size).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence

from nvrx_core.errors import RankAssignmentError, RankDiscarded
from nvrx_core.rank_assignment.base import RankAssignment, RankAssignmentCtx, State

__all__ = ["FillGaps", "RankMove", "ShiftRanks", "require_known"]


def require_known(state: State, terminated: Sequence[int]) -> None:
    """Check that all terminated ranks, ascending, are ranks.

    Raises:
        RankAssignmentError: when one is not.
    """
    if terminated and not 0 <= terminated[0] <= terminated[-1] < state.world_size:
        raise RankAssignmentError(
            f"terminated ranks {list(terminated)} are not all among the ranks 0 to {state.world_size - 1}",
            rank=state.rank, world_size=state.world_size,
        )  # fmt: skip


class RankMove(RankAssignment):
    """A rank assignment that closes the gaps of the terminated ranks; a move leaves alone who is active."""

    @abstractmethod
    def place(self, rank: int, world_size: int, terminated: Sequence[int]) -> int:
        """The new rank of a survivor.

        Args:
            rank: its rank so far.
            world_size: the world size so far.
            terminated: the ranks that are gone, ascending.
        """

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign, see `RankAssignment`."""
        state, terminated = ctx.state, sorted(ctx.terminated_ranks)
        require_known(state, terminated)
        if state.rank in ctx.terminated_ranks:
            raise RankDiscarded(
                f"rank {state.rank} is among the terminated ranks {terminated}", rank=state.rank, terminated=terminated
            )
        if ctx.snapshot is not None:
            ctx.snapshot = ctx.snapshot.renumbered(lambda: self._places(state.world_size, terminated))
        state.rank = self.place(state.rank, state.world_size, terminated)
        state.world_size -= len(terminated)
        ctx.terminated_ranks = set()
        return ctx

    def _places(self, world_size: int, terminated: Sequence[int]) -> dict[int, int]:
        survivors = set(range(world_size)).difference(terminated)
        return {rank: self.place(rank, world_size, terminated) for rank in survivors}


class ShiftRanks(RankMove):
    """Shifts survivors to the left, in their order: each rank goes down by the number of terminated ranks below it."""

    def place(self, rank: int, world_size: int, terminated: Sequence[int]) -> int:
        """See `RankMove.place`."""
        return rank - bisect_left(terminated, rank)


class FillGaps(RankMove):
    """Keeps every rank below the new world size and moves the others, in their order, into the gaps.

    The i-th survivor at or above the new world size takes the i-th terminated rank below it. Of 8 ranks without 1, 4
    and 5, ranks 0, 2 and 3 stay, 6 becomes 1 and 7 becomes 4.
    """

    def place(self, rank: int, world_size: int, terminated: Sequence[int]) -> int:
        """See `RankMove.place`."""
        kept = world_size - len(terminated)
        if rank < kept:
            return rank
        gone_between = bisect_left(terminated, rank) - bisect_left(terminated, kept)
        return terminated[rank - kept - gone_between]
