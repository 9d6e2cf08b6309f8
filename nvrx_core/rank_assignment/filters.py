"""Filters: they choose which living ranks call the wrapped function, always the lowest ones. Pure.

The filters of a composition form a chain: each starts from the active world size of its predecessor. The first filter
of a round starts from the world size, because `composition.assign` clears the active fields. A job with reserve ranks
therefore stays at its limit, and a stale value cannot shrink it permanently.
"""

from __future__ import annotations

from nvrx_core.errors import require, require_type
from nvrx_core.rank_assignment.base import AssignmentState, Mode, RankAssignmentCtx, RankFilter

__all__ = ["ActivateAllRanks", "ActiveWorldSizeDivisibleBy", "MaxActiveWorldSize", "activate"]


def activate(state: AssignmentState, active_world_size: int) -> None:
    """Make the ranks below `active_world_size` active and the others inactive."""
    active = state.rank < active_world_size
    state.mode = Mode.ACTIVE if active else Mode.INACTIVE
    state.active_rank = state.rank if active else None
    state.active_world_size = active_world_size


class ActivateAllRanks(RankFilter):
    """A filter that activates every rank, whatever an earlier filter chose."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign, see `RankAssignment`."""
        activate(ctx.state, ctx.state.world_size)
        return ctx


class MaxActiveWorldSize(RankFilter):
    """A filter that limits the number of active ranks.

    Args:
        max_active_world_size: the limit; None for no limit.

    Raises:
        TypeError: when the limit is no int.
        ValueError: when it is negative.
    """

    def __init__(self, max_active_world_size: int | None = None) -> None:
        limit = max_active_world_size
        if limit is not None:
            require_type("max_active_world_size", limit, int)
        require(limit is None or limit >= 0, "max_active_world_size", limit, "at least 0, or None for no limit")
        self.max_active_world_size = limit

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign, see `RankAssignment`."""
        size = _active_world_size(ctx.state)
        limit = self.max_active_world_size
        activate(ctx.state, size if limit is None else min(size, limit))
        return ctx


class ActiveWorldSizeDivisibleBy(RankFilter):
    """A filter that makes the active world size a multiple of a divisor.

    Args:
        divisor: the divisor.

    Raises:
        TypeError: when the divisor is no int.
        ValueError: when it is below 1.
    """

    def __init__(self, divisor: int = 1) -> None:
        require_type("divisor", divisor, int)
        require(divisor >= 1, "divisor", divisor, "at least 1")
        self.divisor = divisor

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign, see `RankAssignment`."""
        size = _active_world_size(ctx.state)
        activate(ctx.state, size - size % self.divisor)
        return ctx


def _active_world_size(state: AssignmentState) -> int:
    """Return the active world size of the previous filter, or the world size if there is none."""
    chosen = state.active_world_size
    return state.world_size if chosen is None else min(state.world_size, chosen)
