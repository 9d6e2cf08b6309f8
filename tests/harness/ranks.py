"""All ranks of a job in one process: each has its own assignment and state, and all get the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nvrx_core.errors import RankDiscarded
from nvrx_core.inprocess.protocol.decision import Arrival, ArrivalStatus, RoundDecision, decide
from nvrx_core.rank_assignment.base import AssignmentState, Mode, RankAssignment, RankAssignmentCtx
from nvrx_core.rank_assignment.composition import assign, check, declare, snapshot


class NoStore:
    """A store for the built-in assignments, which do not use it."""

    def set(self, key, value, /):
        raise AssertionError(key)

    def get(self, key, /):
        raise AssertionError(key)

    def add(self, key, amount, /):
        raise AssertionError(key)

    def wait(self, keys, timeout, /):
        raise AssertionError(keys)


class Ranks:
    """A job of `size` ranks; `make` makes each rank's assignment."""

    def __init__(self, make: Callable[[], RankAssignment], size: int) -> None:
        self.make = make
        self.assignments = {member: make() for member in range(size)}
        self.size = size
        check(self.assignments[0])
        self.enter()

    def enter(self) -> None:
        """Begin a call with the current assignments."""
        self.iteration = -1
        self.states = {member: AssignmentState(member, self.size) for member in range(self.size)}
        self.discarded: dict[int, RankDiscarded] = {}

    def round(self, *dead: int) -> dict[int, AssignmentState]:
        """Run a round in which these initial ranks die; check and return the states of the survivors."""
        decision = RoundDecision.decode(decide(self.iteration, self._arrivals(dead), None).encode())
        self.states = {member: state for member, state in self.states.items() if member not in decision.lost}
        self.discarded = {}
        for member, state in self.states.items():
            self._take_place(member, state, decision)
        self.iteration += 1
        survivors = {member: state for member, state in self.states.items() if member not in self.discarded}
        assert_world(survivors.values())
        return survivors

    def _arrivals(self, dead: Iterable[int]) -> dict[int, Arrival]:
        arrivals = {}
        for member, state in self.states.items():
            status = ArrivalStatus.LEAVING if member in self.discarded else ArrivalStatus.ALIVE
            keys = declare(self.assignments[member], state, self.iteration) if status is ArrivalStatus.ALIVE else ()
            arrivals[member] = Arrival.decode(
                Arrival(
                    initial_rank=member, rank=state.rank, status=status, world_size=state.world_size, keys=keys
                ).encode()
            )
        for member in dead:
            arrivals[member] = Arrival(initial_rank=member, rank=-1, status=ArrivalStatus.DEAD)
        return arrivals

    def _take_place(self, member: int, state: AssignmentState, decision: RoundDecision) -> None:
        assignment, terminated = self.assignments[member], set(decision.terminated)
        facts = snapshot(
            assignment, state.freeze(), iteration=self.iteration, terminated=terminated, columns=decision.keys
        )
        try:
            assign(assignment, RankAssignmentCtx(state, NoStore(), terminated, facts))
        except RankDiscarded as error:
            self.discarded[member] = error
            return
        if self.iteration >= 0:
            state.advance()

    def places(self) -> dict[int, int]:
        """The initial rank of each active rank's holder, by active rank."""
        held = {state.active_rank: member for member, state in self.states.items() if member not in self.discarded}
        return {rank: held[rank] for rank in sorted(held.keys() - {None})}


def assert_world(states: Iterable[AssignmentState]) -> None:
    """The survivors have the ranks 0 to W-1, the active ones 0 to A-1, and all know W and A."""
    survivors = list(states)
    assert sorted(state.rank for state in survivors) == list(range(len(survivors)))
    assert {state.world_size for state in survivors} <= {len(survivors)}
    active = [state for state in survivors if state.mode is Mode.ACTIVE]
    assert sorted(state.active_rank for state in active) == list(range(len(active)))
    assert {state.active_world_size for state in survivors} <= {len(active)}
    assert all(state.mode is Mode.INACTIVE and state.active_rank is None for state in survivors if state not in active)
