"""The control store of one call on one connection, in parts: each caller gets the part that it needs.

Used by a rank and by its monitor process alike. Every failure of the store is raised as `StoreFailure`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar

from nvrx_core.flow import operation
from nvrx_core.inprocess.coordination.arrivals import RoundOperations
from nvrx_core.inprocess.coordination.guarded_store import FOREVER, GuardedStore
from nvrx_core.inprocess.coordination.hang_reports import HangReports
from nvrx_core.inprocess.coordination.housekeeping import KeyDeletion
from nvrx_core.inprocess.coordination.membership import Membership, ProgressSurvey
from nvrx_core.inprocess.protocol.decision import RoundDecision
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.keys import StoreKeys

__all__ = ["CallStore", "ControlStore"]


class ControlStore:
    """The operations of a call on its store.

    Args:
        store: the connection.
        keys: the call's keys, in the generation that the ranks have agreed on.

    Attributes:
        rounds: the operations of a round.
        membership: the leases, and the members that have left.
        survey: the progress of the slowest members.
        deletion: the deletion of keys.
        hangs: the reports of hangs.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys = store, keys
        self.rounds, self.membership = RoundOperations(store, keys), Membership(store, keys)
        self.survey, self.deletion = ProgressSurvey(store, keys, self.membership), KeyDeletion(store, keys)
        self.hangs = HangReports(store, keys)


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _of_round(
    method: Callable[Concatenate[RoundOperations, Parameters], Result],
) -> Callable[Concatenate[CallStore, Parameters], Awaitable[Result]]:
    """Return an operation of a round as a flow awaits it; the connection is that of the moment when it is done."""

    def carry_out(self: CallStore, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return method(self._control_store().rounds, *args, **kwargs)

    return operation(carry_out)


class CallStore:
    """The control store as the port of a flow, a `CallStorePort`.

    Args:
        control_store: returns the control store, on the flow's connection.
        size: the initial number of members.
        decided_within: bound of a wait for a decision.
    """

    def __init__(
        self, control_store: Callable[[], ControlStore], size: int, decided_within: timedelta = FOREVER
    ) -> None:
        self._control_store, self._size, self._decided_within = control_store, size, decided_within

    announce = _of_round(RoundOperations.announce)
    count_completion = _of_round(RoundOperations.count_completion)
    close_completed = _of_round(RoundOperations.close_completed)
    read_event = _of_round(RoundOperations.read_event)
    put_arrival = _of_round(RoundOperations.put_arrival)
    count_arrival = _of_round(RoundOperations.count_arrival)
    read_arrivals = _of_round(RoundOperations.read_arrivals)
    publish = _of_round(RoundOperations.publish)
    read_decision = _of_round(RoundOperations.read_decision)
    await_event = _of_round(RoundOperations.await_event)
    set_rendezvous = _of_round(RoundOperations.set_rendezvous)
    await_rendezvous = _of_round(RoundOperations.await_rendezvous)
    has_event = _of_round(RoundOperations.has_event)
    has_decision = _of_round(RoundOperations.has_decision)

    @operation
    def await_decision(self, iteration: int) -> RoundDecision:
        """Wait for the round's decision; return it."""
        return self._control_store().rounds.await_decision(iteration, self._decided_within)

    @operation
    def mark_left(self, member: InitialRank, *, silent: bool = False) -> None:
        """Write that a member no longer needs the store; a silent one that is lost may still read its decision."""
        self._control_store().membership.mark_left(member, silent=silent)

    @operation
    def count_out(self, iteration: int, living: int) -> None:
        """Count this member out of the completed call; the last of `living` deletes its keys, if all have left."""
        self._control_store().deletion.count_out(iteration, living, self._size)

    @operation
    def delete_if_over(self) -> None:
        """Delete the call's keys if it is completed and all other members have left."""
        self._control_store().deletion.delete_if_over(self._size)
