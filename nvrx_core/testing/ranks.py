"""Execution of a rank assignment for all ranks of a job, in one process.

It repeats the steps of the wrapper between two iterations: each rank declares its keys, all get the same snapshot of
the round, and each computes its own rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import torch.distributed as dist

from nvrx_core.rank_assignment.base import AssignmentState, FrozenState, RankAssignment, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign, check, declare, snapshot
from nvrx_core.rank_assignment.snapshot import Column, columns_of
from nvrx_core.testing.fakes import MemoryStore

__all__ = ["FakeRanks"]


class FakeRanks:
    """The ranks of a job under a rank assignment; the constructor assigns the first iteration.

    Example:
        >>> ranks = FakeRanks(Compose(MaxActiveWorldSize(2), ShiftRanks()), world_size=3)
        >>> ranks.restart(lost={0})[2].active_rank
        1

    Args:
        assignment: the `rank_assignment` of a `Wrapper`; each rank gets a copy, because a `Tree` is stateful.
        world_size: how many ranks enter.

    Attributes:
        states: the states of the living ranks, by initial rank.
        left: the exceptions with which the other ranks left, by initial rank; None for those lost in `restart`.

    Raises:
        TypeError, ValueError: as a `Wrapper` raises for an invalid composition.
    """

    def __init__(self, assignment: RankAssignment, world_size: int) -> None:
        check(assignment)
        self._assignments = {rank: deepcopy(assignment) for rank in range(world_size)}
        self.left: dict[int, BaseException | None] = {}
        self._living = {rank: AssignmentState(rank, world_size) for rank in range(world_size)}
        self._ended = -1
        self._store = MemoryStore()
        self._round(world_size)

    @property
    def states(self) -> dict[int, FrozenState]:
        """The states of the living ranks, by initial rank."""
        return {initial_rank: state.freeze() for initial_rank, state in self._living.items()}

    def restart(self, lost: Iterable[int] = ()) -> dict[int, FrozenState]:
        """End the iteration and assign the next one.

        Args:
            lost: the initial ranks that are lost.

        Returns:
            `states`.
        """
        world_size = next(iter(self._living.values())).world_size
        for initial_rank in lost:
            del self._living[initial_rank]
            self.left[initial_rank] = None
        self._round(world_size)
        return self.states

    def _round(self, world_size: int) -> None:
        by_rank = sorted(self._living.values(), key=lambda state: state.rank)
        vacant = set(range(world_size)) - {state.rank for state in by_rank}
        columns = columns_of(declare(self._assignments[s.initial_rank], s, self._ended) for s in by_rank)
        store = dist.PrefixStore(str(self._ended), self._store)

        def place(state: AssignmentState) -> BaseException | None:
            return self._place(state, store, vacant, columns)

        with ThreadPoolExecutor(max(1, len(by_rank))) as threads:
            ends: dict[int, BaseException | None] = dict(
                zip((state.initial_rank for state in by_rank), threads.map(place, by_rank), strict=True)
            )
        self.left |= {initial_rank: error for initial_rank, error in ends.items() if error is not None}
        self._living = {number: state for number, state in self._living.items() if ends[number] is None}
        self._ended += 1

    def _place(
        self, state: AssignmentState, store: dist.Store, vacant: set[int], columns: tuple[Column, ...]
    ) -> BaseException | None:
        """Assign a rank; return the exception with which it leaves instead, if any."""
        try:
            own = self._assignments[state.initial_rank]
            facts = snapshot(own, state.freeze(), iteration=self._ended, terminated=vacant, columns=columns)
            assign(own, RankAssignmentCtx(state, store, set(vacant), facts))
        except BaseException as error:  # boundary: a user's rank assignment; on any exception the rank leaves
            return error
        if self._ended >= 0:
            state.advance()
        return None
