"""The control store of one call on one connection, in parts: each caller gets the part that it needs.

Used by a rank and by its monitor process alike. Every failure of the store is raised as `StoreFailure`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from nvrx_core.flow import operation
from nvrx_core.inprocess.coordination.guarded_store import FOREVER, GuardedStore
from nvrx_core.inprocess.coordination.hang_reports import HangReports
from nvrx_core.inprocess.coordination.housekeeping import KeyDeletion
from nvrx_core.inprocess.coordination.membership import Membership, ProgressSurvey
from nvrx_core.inprocess.coordination.round_operations import RoundOperations, StoreOfRounds
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


class CallStore(StoreOfRounds):
    """The store of a flow that also leaves the call.

    Args:
        control_store: returns the control store, on the flow's connection.
        size: the initial number of members.
        decided_within: bound of a wait for a decision.
    """

    def __init__(
        self, control_store: Callable[[], ControlStore], size: int, decided_within: timedelta = FOREVER
    ) -> None:
        super().__init__(lambda: control_store().rounds, decided_within)
        self._control_store, self._size = control_store, size

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
