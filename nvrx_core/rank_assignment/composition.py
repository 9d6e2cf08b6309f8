"""The user's composition of rank assignments: validated once, applied and completed in every round. Pure.

Invariant of a settled state: 0 <= rank < world_size, 0 < active_world_size <= world_size, and the rank is either active
with 0 <= active_rank < active_world_size, or inactive with active_rank None.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from nvrx_core.errors import ParameterError, RankAssignmentError, RankDiscarded, RestartAbort, require_type
from nvrx_core.rank_assignment.base import (
    AssignmentState,
    FrozenState,
    Mode,
    RankAssignment,
    RankAssignmentCtx,
    RankFilter,
)
from nvrx_core.rank_assignment.filters import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    MaxActiveWorldSize,
    activate,
)
from nvrx_core.rank_assignment.groups import FilterCountGroupedByKey
from nvrx_core.rank_assignment.keys import Keyed
from nvrx_core.rank_assignment.moves import FillGaps, RankMove, ShiftRanks
from nvrx_core.rank_assignment.snapshot import Column, Snapshot, spread
from nvrx_core.rank_assignment.tree import Tree

__all__ = ["assign", "check", "declare", "settle", "snapshot", "sole_move"]

_PLAIN: Final = (ShiftRanks, FillGaps, ActivateAllRanks, ActiveWorldSizeDivisibleBy, MaxActiveWorldSize)
"""Stages that depend only on the terminated ranks, so that the assignment of all ranks follows from these."""


def check(assignment: object) -> None:
    """Validate the Wrapper's `rank_assignment` before the first iteration.

    Raises:
        TypeError: when it is not a `RankAssignment`; for a tuple the error mentions the trailing comma.
        ValueError: when a built-in move runs after a filter, whose choice of active ranks it would invalidate; when no
            stage removes the ranks that are lost, or that a filter terminates; when a `Tree` is composed with another
            stage.
    """
    require_type("rank_assignment", assignment, RankAssignment)
    stages = list(_stages(assignment))
    if len(stages) > 1 and any(isinstance(stage, Tree) for stage in stages):
        raise ParameterError("rank_assignment", assignment, "a Tree alone: it decides all that the others decide")
    if all(isinstance(stage, RankFilter) and _is_built_in(stage) for stage in stages):
        rule = "composed with ShiftRanks() or FillGaps(), which removes the ranks that are lost"
        raise ParameterError("rank_assignment", assignment, rule, _listed([*stages[::-1], ShiftRanks()]))
    filtered = terminating = None
    for stage in stages:
        if isinstance(stage, RankFilter):
            filtered = filtered or stage
        elif isinstance(stage, FilterCountGroupedByKey):
            terminating = stage
        else:
            terminating = None
            if isinstance(stage, RankMove) and filtered is not None:
                names = type(stage).__name__, type(filtered).__name__
                rule = "composed so that {0} runs before {1}: list {0} after {1}".format(*names)
                raise ParameterError("rank_assignment", assignment, rule, _moves_last(stages))
    if terminating is not None:
        name = type(terminating).__name__
        rule = f"composed so that ShiftRanks or FillGaps runs after {name} and removes the terminated ranks: list "
        raise ParameterError("rank_assignment", assignment, f"{rule}{name} after it")


def _moves_last(stages: Sequence[object]) -> str:
    """The same stages, listed so that the moves run first."""
    listed = stages[::-1]
    moves = [stage for stage in listed if isinstance(stage, RankMove)]
    return _listed([*(stage for stage in listed if stage not in moves), *moves])


def _listed(stages: Iterable[object]) -> str:
    return f"rank_assignment=Compose({', '.join(map(repr, stages))})"


def declare(assignment: RankAssignment, state: AssignmentState, iteration: int) -> tuple[str, ...]:
    """Return this rank's keys, which the composition needs at the end of `iteration`.

    Raises:
        BaseException: any exception of a user's key function.
    """
    frozen = state.freeze()
    return tuple(key(frozen) for stage in _declaring(assignment) for key in stage.key_functions(iteration))


def snapshot(
    assignment: RankAssignment,
    state: FrozenState,
    *,
    iteration: int,
    terminated: Collection[int],
    columns: tuple[Column, ...],
) -> Snapshot:
    """Return the snapshot of the round's decision for the stages of the composition.

    Args:
        assignment: the composition.
        state: this rank's state in the ended iteration.
        iteration: the round that ended.
        terminated: the ranks without a living process.
        columns: the keys of the living ranks.

    Raises:
        RankAssignmentError: when the keys differ from those that this rank's composition declares.
    """
    stages = {stage: len(stage.key_functions(iteration)) for stage in _declaring(assignment)}
    if sum(stages.values()) != len(columns):
        raise _error(state, f"the ranks declare other keys than this one, which declares {sum(stages.values())}")
    vacant = frozenset(terminated)
    keys = iter([spread(column, state.world_size, vacant) for column in columns])
    return Snapshot(iteration, {stage: tuple(next(keys) for _ in range(n)) for stage, n in stages.items() if n})


def sole_move(assignment: RankAssignment) -> RankMove | None:
    """Return the move by which alone the ranks are assigned; None if another stage may change them."""
    stages = list(_stages(assignment))
    if any(type(stage) not in _PLAIN for stage in stages):
        return None
    return next((stage for stage in stages if isinstance(stage, RankMove)), None)


def assign(assignment: RankAssignment, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
    """Compute the assignment of a round: clear the active fields, apply the composition, complete the result.

    Raises:
        RankDiscarded: when this rank is excluded from the next iteration.
        RestartAbort: when no rank is active.
        RankAssignmentError: when the composition left no valid result.
    """
    ctx.state.unassign()
    result = assignment(ctx)
    if not isinstance(result, RankAssignmentCtx):
        raise _error(ctx.state, f"rank_assignment returned {result!r}", "let every RankAssignment return its ctx")
    return settle(result)


def settle(ctx: RankAssignmentCtx) -> RankAssignmentCtx:
    """Complete and check the result of a composition: if the mode is still INITIALIZED, activate all ranks.

    Raises:
        RankDiscarded, RestartAbort, RankAssignmentError: see `assign`.
    """
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
        raise RestartAbort(
            f"rank_assignment leaves none of {state.world_size} ranks active",
            advice="let MaxActiveWorldSize, ActiveWorldSizeDivisibleBy or a filter of yours leave at least one",
        )
    return ctx


def _stages(assignment: object) -> Iterator[object]:
    """Yield the stages of a composition in the order in which they run."""
    instances = getattr(assignment, "instances", None)
    if isinstance(instances, tuple) and _is_built_in(assignment):
        for instance in reversed(instances):
            yield from _stages(instance)
    else:
        yield assignment


def _declaring(assignment: object) -> tuple[Keyed, ...]:
    """Return the stages whose keys are sent with the barrier: those before any user stage, which may renumber."""
    ahead, behind = list[Keyed](), list[Keyed]()
    seen = ahead
    for stage in _stages(assignment):
        if not _is_built_in(stage):
            seen = behind
        elif isinstance(stage, Keyed):
            seen.append(stage)
    return tuple(dict.fromkeys(stage for stage in ahead if stage not in behind))


def _is_built_in(stage: object) -> bool:
    return getattr(type(stage).__call__, "__module__", "").startswith("nvrx_core.")


def _valid(state: AssignmentState) -> bool:
    size = state.active_world_size
    if size is None or not 0 <= size <= state.world_size or not 0 <= state.rank < state.world_size:
        return False
    if state.mode is Mode.INACTIVE:
        return state.active_rank is None
    return state.active_rank is not None and 0 <= state.active_rank < size


def _error(state: AssignmentState | FrozenState, message: str, advice: str | None = None) -> RankAssignmentError:
    return RankAssignmentError(message, rank=state.rank, world_size=state.world_size, advice=advice)
