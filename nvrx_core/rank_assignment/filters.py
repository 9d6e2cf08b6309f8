"""Filters choose which of the living ranks call the wrapped function: always the lowest ones. Pure.

Filters of one composition chain: each starts from the active world size that the one before left. Rounds do not: the
first filter of a round starts from the world size, because `composition.assign` clears the active fields. So a job that
has reserve ranks left stays at its limit, and no stale value shrinks it for ever.
"""

from __future__ import annotations

from nvrx_core.errors import require
from nvrx_core.rank_assignment.base import Mode, RankAssignmentCtx, RankFilter, State

__all__ = ["ActivateAllRanks", "MaxActiveWorldSize", "activate"]


def activate(state: State, active_world_size: int) -> None:
    """Make the ranks below `active_world_size` active and the others inactive."""
    active = state.rank < active_world_size
    state.mode = Mode.ACTIVE if active else Mode.INACTIVE
    state.active_rank = state.rank if active else None
    state.active_world_size = active_world_size


class ActivateAllRanks(RankFilter):
    """Every rank is active, whatever a filter before it chose."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign, see `RankAssignment`."""
        activate(ctx.state, ctx.state.world_size)
        return ctx


class MaxActiveWorldSize(RankFilter):
    """At most so many ranks are active.

    Args:
        max_active_world_size: the limit; None for no limit.

    Raises:
        ValueError: when the limit is negative.
    """

    def __init__(self, max_active_world_size: int | None = None) -> None:
        limit = max_active_world_size
        require(limit is None or limit >= 0, "max_active_world_size", limit, "at least 0, or None for no limit")
        self.max_active_world_size = limit

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign, see `RankAssignment`."""
        bounds = (ctx.state.world_size, ctx.state.active_world_size, self.max_active_world_size)
        activate(ctx.state, min(bound for bound in bounds if bound is not None))
        return ctx
