"""The control store of one call on one connection, in parts: each caller gets the part that it needs.

Used by a rank and by its monitor process alike. Every failure of the store is raised as `StoreFailure`.
"""

from __future__ import annotations

from nvrx_core.inprocess.coordination.guarded_store import GuardedStore
from nvrx_core.inprocess.coordination.key_deletion import KeyDeletion
from nvrx_core.inprocess.coordination.membership import Membership
from nvrx_core.inprocess.coordination.round_operations import RoundOperations
from nvrx_core.inprocess.coordination.survey import Survey
from nvrx_core.store.keys import StoreKeys

__all__ = ["ControlStore"]


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
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys = store, keys
        self.rounds, self.membership = RoundOperations(store, keys), Membership(store, keys)
        self.survey, self.deletion = Survey(store, keys, self.membership), KeyDeletion(store, keys)
