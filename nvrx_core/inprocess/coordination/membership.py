"""Membership in the store: the members' leases, the progress that they show, and who no longer needs the store.

The rank that hosts the store exits last: it waits for its clients, the members that still need the store. A client that
no longer needs the store writes `left`, or its monitor process does. The lease of one that is lost with its monitor
process is not renewed: it is not waited for beyond the heartbeat timeout.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final

from nvrx_core.inprocess.coordination.guarded_store import BATCH, FOREVER, GuardedStore, batches, guard
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.liveness.awake_clock import AwakeClock
from nvrx_core.liveness.lease import LeaseTable
from nvrx_core.liveness.peer_progress import PeerProgress
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.store.keys import StoreKeys

__all__ = ["LEFT", "RELEASED", "Membership", "ProgressSurvey", "await_clients"]


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

    def delete_lease(self, member: InitialRank) -> None:
        """Delete the lease of a member that has left, if the store can."""
        self.store.delete([self.keys.lease(member)])

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


ENDS_WITHIN: Final = timedelta(seconds=2)
ATTEMPTS: Final = 3


class ProgressSurvey:
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


log = logging.getLogger("nvrx_core.inprocess")
SAID_AFTER: Final = 2.0
"""Seconds after which a wait is logged."""
TURN: Final = 0.5
"""Seconds between two questions to the store: a wait inside it would hold signals off, Ctrl-C among them."""


def await_clients(membership: Membership, members: Collection[InitialRank], heartbeat_timeout: float) -> None:
    """Wait until all members have left or are unresponsive.

    Args:
        membership: knows which clients have left.
        members: the clients.
        heartbeat_timeout: seconds without a renewal of its lease after which a client is unresponsive.

    Raises:
        StoreFailure: when the store is lost.
    """
    table, awaited, awake = LeaseTable[InitialRank](heartbeat_timeout), sorted(members), AwakeClock()
    pause, read_at, say_at = threading.Event(), 0.0, awake.at(time.monotonic()) + SAID_AFTER
    while not membership.have_left(awaited):
        now = awake.at(time.monotonic())
        if now >= say_at:
            log.warning("this rank hosts the control store and waits for its clients, the ranks that still run")
            say_at = math.inf
        if now >= read_at:
            read_at = now + heartbeat_timeout / 4
            leases = membership.leases(awaited)
            for member in awaited:
                table.observe(member, leases.get(member, ""), now=now)
            silent = table.stale(now=now)
            awaited = [member for member in awaited if member not in silent]
        meant = time.monotonic() + TURN
        pause.wait(TURN)
        awake.woke(meant, now=time.monotonic())
