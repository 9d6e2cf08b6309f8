"""A filter that keeps or terminates the ranks of a group together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from nvrx_core.errors import ParameterTypeError, RestartAbort, require, require_type
from nvrx_core.rank_assignment.base import RankAssignmentCtx
from nvrx_core.rank_assignment.keys import Keyed, KeyFunction, KeyOrFn

__all__ = ["FilterCountGroupedByKey", "FilterGroupedByKey"]


class FilterCountGroupedByKey(Keyed):
    """A filter that terminates all ranks of each group whose number of living ranks does not meet a condition.

    The filter does not remove the terminated ranks: an assignment that renumbers the others, such as `ShiftRanks`, must
    run after it.

    Args:
        key_or_fn: the group of a rank: a constant, a function of the rank's state, or the older f(rank, world_size),
            all hashable; two groups are equal if their keys have the same text. It is evaluated at the end of an
            iteration.
        condition: returns whether a group with so many living ranks may stay; must return the same on all ranks.
        timeout: how long to wait for the keys of other ranks if they cannot be sent with the barrier.

    Raises:
        TypeError: when a parameter has the wrong type.
        ValueError: when the function takes neither one argument nor two, or the timeout is not positive.
    """

    def __init__(
        self, key_or_fn: KeyOrFn, condition: Callable[[int], object], timeout: timedelta = timedelta(seconds=60)
    ) -> None:
        if not callable(condition):
            raise ParameterTypeError("condition", condition, "Callable")
        require_type("timeout", timeout, timedelta)
        require(timeout > timedelta(0), "timeout", timeout, "positive")
        self.key_or_fn, self.condition, self.timeout = key_or_fn, condition, timeout
        self._key = KeyFunction(key_or_fn)

    def key_functions(self, iteration: int) -> tuple[KeyFunction, ...]:
        """See `Keyed`."""
        return (self._key,)

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """Assign, see `RankAssignment`.

        Raises:
            RestartAbort: when no group meets the condition.
        """
        (keys,) = self.columns(ctx, self.timeout)
        living = [rank for rank in range(ctx.state.world_size) if rank not in ctx.terminated_ranks]
        counts = Counter(keys[rank] for rank in living)
        staying = {key for key, count in counts.items() if self.condition(count)}
        if not staying:
            raise RestartAbort(f"{type(self).__name__} leaves no rank: its groups have {dict(counts)} living ranks")
        if len(staying) < len(counts):
            ctx.terminated_ranks = ctx.terminated_ranks.union(rank for rank in living if keys[rank] not in staying)
        return ctx


FilterGroupedByKey = FilterCountGroupedByKey
"""The older name of `FilterCountGroupedByKey`."""
