"""How the wrapper uses what the user composed: checked once at the start, carried out and settled in every round. Pure.

Invariant of a settled state: 0 <= rank < world_size, 0 < active_world_size <= world_size, and the rank is either active
with 0 <= active_rank < active_world_size, or inactive with active_rank None.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvrx_core.errors import ParameterError, RankAssignmentError, RankDiscarded, RestartAbort, require_type
from nvrx_core.rank_assignment.base import Mode, RankAssignment, RankAssignmentCtx, RankFilter, State
from nvrx_core.rank_assignment.filters import activate
from nvrx_core.rank_assignment.moves import RankMove

__all__ = ["assign", "check", "settle"]


def check(assignment: object) -> None:
    """Check the Wrapper's `rank_assignment` before anything starts.

    Raises:
        TypeError: when it is no `RankAssignment`; for a tuple the error names the trailing comma.
        ValueError: when one of our moves runs after a filter, whose choice of active ranks it would make wrong.
    """
    require_type("rank_assignment", assignment, RankAssignment)
    filtered = None
    for stage in _stages(assignment):
        if isinstance(stage, RankFilter):
            filtered = filtered or stage
        elif isinstance(stage, RankMove) and filtered is not None:
            names = type(stage).__name__, type(filtered).__name__
            raise ParameterError(
                "rank_assignment", assignment, "composed so that {0} runs before {1}: list {0} after {1}".format(*names)
            )


def assign(assignment: RankAssignment, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
    """One round's assignment: a fresh start, the user's composition, and what it leaves open.

    Raises:
        RankDiscarded: when this rank has no place in the next iteration.
        RestartAbort: when no rank is active.
        RankAssignmentError: when the composition left no valid answer.
    """
    ctx.state.unassign()
    answer = assignment(ctx)
    if not isinstance(answer, RankAssignmentCtx):
        raise _error(ctx.state, f"rank_assignment returned {answer!r}", "let every RankAssignment return its ctx")
    return settle(answer)


def settle(ctx: RankAssignmentCtx) -> RankAssignmentCtx:
    """Complete what a composition left: a mode still INITIALIZED activates all ranks. Raises as `assign` does."""
    state = ctx.state
    if ctx.terminated_ranks:
        raise _error(
            state, f"ranks {sorted(ctx.terminated_ranks)} are terminated and no assignment removed them",
            "list ShiftRanks() or FillGaps() in the Compose before the filter, so that it runs after it",
        )  # fmt: skip
    if state.mode is Mode.TERMINATED:
        raise RankDiscarded(f"rank {state.rank} was terminated by rank_assignment", rank=state.rank)
    if state.mode is Mode.INITIALIZED:
        activate(state, state.world_size)
    if not _valid(state):
        raise _error(state, f"rank_assignment left an impossible state: {state}")
    if state.active_world_size == 0:
        raise RestartAbort(f"rank_assignment leaves none of {state.world_size} ranks active")
    return ctx


def _stages(assignment: object) -> Iterator[object]:
    """The stages of a composition, in the order in which they run."""
    instances = getattr(assignment, "instances", None)
    if isinstance(instances, tuple):
        for instance in reversed(instances):
            yield from _stages(instance)
    else:
        yield assignment


def _valid(state: State) -> bool:
    size = state.active_world_size
    if size is None or not 0 <= size <= state.world_size or not 0 <= state.rank < state.world_size:
        return False
    if state.mode is Mode.INACTIVE:
        return state.active_rank is None
    return state.active_rank is not None and 0 <= state.active_rank < size


def _error(state: State, message: str, advice: str | None = None) -> RankAssignmentError:
    return RankAssignmentError(message, rank=state.rank, world_size=state.world_size, advice=advice)
