"""The progress of the slowest members, read from the leases: by each member that needs it, or by one for many."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from nvrx_core.inprocess.coordination.guarded_store import BATCH, GuardedStore, guard
from nvrx_core.inprocess.coordination.membership import Membership
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.liveness.peer_progress import PeerProgress
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.keys import StoreKeys

__all__ = ["Survey"]

ENDS_WITHIN: Final = timedelta(seconds=2)
ATTEMPTS: Final = 3


class Survey:
    """Surveys of the members' leases.

    Args:
        store: the connection.
        keys: the keys of the call.
        membership: reads the leases.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys, membership: Membership) -> None:
        self.store, self.keys, self.membership = store, keys, membership

    def slowest(self, members: frozenset[InitialRank], asking: int) -> PeerProgress:
        """Return the progress of the slowest members.

        When thousands ask at the same time, as when all wait for one rank, one of them reads all leases for the others:
        each uses the first survey that ends after its request.

        Args:
            members: the members whose leases are read.
            asking: the requesting member.

        Raises:
            StoreFailure: when the store fails, or no survey ends in time.
        """
        if len(members) <= BATCH:
            return PeerProgress.of(self.membership.leases(members))
        late: str | None = None
        with guard():
            for _ in range(ATTEMPTS):
                last = self._last()
                number = int((last or "0").partition("/")[0])
                if last in (None, late) or self.store.has([self.keys.survey(number)]):
                    number += 1
                    mine = f"{number}/{asking}"
                    if self.store.replace(self.keys.survey(), last or "", mine) == mine.encode():
                        return self._make(number, members)
                if self.store.wait([self.keys.survey(number)], ENDS_WITHIN):
                    return PeerProgress.decode((self.store.try_get(self.keys.survey(number)) or b"").decode())
                late = self._last()
        raise StoreFailure("nobody ends a survey")

    def _last(self) -> str | None:
        """Return the number of the last survey that was started, and the member that started it."""
        last = self.store.try_get(self.keys.survey())
        return None if last is None else last.decode()

    def _make(self, number: int, members: frozenset[InitialRank]) -> PeerProgress:
        found = PeerProgress.of(self.membership.leases(members))
        self.store.put(self.keys.survey(number), found.encode())
        self.store.delete([self.keys.survey(number - 2)])
        return found

    def holders(self, iteration: int, members: frozenset[InitialRank], asking: int) -> Mapping[int, int]:
        """Return the members in an atomic section of this round, with the beats of their leases.

        None if the store does not have the leases.
        """
        try:
            return self.slowest(members - {asking}, asking).holding(iteration)
        except StoreFailure:
            return {}
