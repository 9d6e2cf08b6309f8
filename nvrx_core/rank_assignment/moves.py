"""Moves: they renumber the surviving ranks of a round to 0 .. new world size - 1. Pure.

Invariant: over all survivors the new ranks are a permutation of range(new world size).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence

from nvrx_core.errors import RankAssignmentError, RankDiscarded
from nvrx_core.rank_assignment.base import AssignmentState, RankAssignment, RankAssignmentCtx

__all__ = ["FillGaps", "RankMove", "ShiftRanks", "require_known"]


def require_known(state: AssignmentState, terminated: Sequence[int]) -> None:
    """Check that all terminated ranks, given in ascending order, are less than the world size.

    Raises:
        RankAssignmentError: when one is out of range.
    """
    if terminated and not 0 <= terminated[0] <= terminated[-1] < state.world_size:
        raise RankAssignmentError(
            f"terminated ranks {list(terminated)} are not all among the ranks 0 to {state.world_size - 1}",
            rank=state.rank, world_size=state.world_size,
        )  # fmt: skip


class RankMove(RankAssignment):
    """A rank assignment that closes the gaps of the terminated ranks; it does not change which ranks are active."""

    @abstractmethod
    def place(self, rank: int, world_size: int, terminated: Sequence[int]) -> int:
        """Return the new rank of a surviving rank.

        Args:
            rank: its present rank.
            world_size: the present world size.
            terminated: the terminated ranks, ascending.
        """

    def leader(self, world_size: int, terminated: Sequence[int]) -> int | None:
        """Return the present rank of the next rank 0; None if all ranks are terminated.

        Args:
            world_size: the present world size.
            terminated: the terminated ranks, ascending.
        """
        gone, kept = set(terminated), world_size - len(terminated)
        lowest = (next((rank for rank in range(start, world_size) if rank not in gone), None) for start in (0, kept))
        found = (rank for rank in lowest if rank is not None and self.place(rank, world_size, terminated) == 0)
        return next(found, None)

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
    """A move that shifts the survivors down in order: each by the number of terminated ranks below it."""

    def place(self, rank: int, world_size: int, terminated: Sequence[int]) -> int:
        """See `RankMove.place`."""
        return rank - bisect_left(terminated, rank)


class FillGaps(RankMove):
    """A move that keeps every rank below the new world size and moves the others, in order, into the gaps.

    The i-th survivor at or above the new world size takes the i-th terminated rank below it. For 8 ranks without 1, 4
    and 5, ranks 0, 2 and 3 keep their number, 6 becomes 1 and 7 becomes 4.
    """

    def place(self, rank: int, world_size: int, terminated: Sequence[int]) -> int:
        """See `RankMove.place`."""
        kept = world_size - len(terminated)
        if rank < kept:
            return rank
        gone_between = bisect_left(terminated, rank) - bisect_left(terminated, kept)
        return terminated[rank - kept - gone_between]
