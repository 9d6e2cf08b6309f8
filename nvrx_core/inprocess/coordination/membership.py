"""Membership in the store: the members' leases, and the members that no longer need the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

from nvrx_core.inprocess.coordination.guarded_store import FOREVER, GuardedStore, batches
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.keys import StoreKeys

__all__ = ["LEFT", "RELEASED", "Membership"]

LEFT: Final = "1"
"""The mark of a member that left, or whose monitor process reported its death to the end."""
RELEASED: Final = "silent"
"""The mark of a silent member, written by another one."""


class Membership:
    """The members of a call. Each operation raises `StoreFailure` when the store fails.

    Args:
        store: the connection.
        keys: the keys of the call.
    """

    def __init__(self, store: GuardedStore, keys: StoreKeys) -> None:
        self.store, self.keys = store, keys

    def move_lease(self, member: InitialRank, before: str, lease: str) -> str:
        """Renew the member's lease, in one request; return the lease.

        Args:
            member: the member.
            before: its last value; if it is another one, nothing is written.
            lease: its new value.
        """
        found = self.store.replace(self.keys.lease(member), before, lease)
        if not found.isascii():  # no lease: somebody else has written it
            self.store.put(self.keys.lease(member), lease)
            return lease
        return found.decode()

    def leases(self, members: Iterable[InitialRank]) -> dict[InitialRank, str]:
        """Return the leases of those members that have one."""
        return dict(pair for part in batches(list(members)) for pair in self._leases(part))

    def _leases(self, members: list[InitialRank]) -> Iterator[tuple[InitialRank, str]]:
        keys = [self.keys.lease(member) for member in members]
        together = len(keys) > 1 and self.store.has(keys)
        values = self.store.read_all(keys) if together else map(self.store.try_get, keys)
        for member, value in zip(members, values, strict=True):
            if value is not None:
                yield member, value.decode(errors="replace")

    def mark_left(self, member: InitialRank, *, silent: bool = False) -> None:
        """Write that the member no longer needs the store; for a silent one, first that it may read late."""
        if silent:
            self.store.put(self.keys.kept(), "1")
        mark = RELEASED if silent else LEFT
        self.store.put_once(self.keys.left(member), mark)  # in one exchange: its host may close it at once

    def has_left(self, member: InitialRank) -> bool:
        """Whether the member has left, or the call is over and its keys are deleted: the claims before these marks."""
        return self.have_left([member]) or not self.store.has([self.keys.claim(member)])

    def have_left(self, members: Iterable[InitialRank]) -> bool:
        """Whether all of these members have left."""
        return self.store.has([self.keys.left(member) for member in members])

    def wait_left(self, members: Iterable[InitialRank], timeout: timedelta = FOREVER) -> None:
        """Block until all of these members have left."""
        keys = [self.keys.left(member) for member in members]
        if keys and not self.store.wait(keys, timeout):
            raise StoreFailure(f"not all of {len(keys)} members have left within {timeout}")
