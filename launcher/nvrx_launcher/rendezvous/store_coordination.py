"""A node's way to a coordinator over a torch store; on the store's host, the coordinator as well."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Final

from nvrx_launcher.exit_codes import STORE_LOST
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.coordination import NodeEvents
from nvrx_launcher.rendezvous.coordinator_host import CoordinatorHost
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.lease import Lease
from nvrx_launcher.rendezvous.mailbox import Mailbox, handing_on
from nvrx_launcher.rendezvous.messages import Decision, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.store_threads import Follower, Link, Requests, Store
from nvrx_launcher.rendezvous_settings import RendezvousSettings
from nvrx_launcher.store_host import ControlStore

__all__ = ["StoreCoordination"]

SAYS_WITHIN: Final = 2.0
"""Seconds that a launcher takes at most to hand on its last message."""


class StoreCoordination:
    """Talks to the coordinator over the store.

    Args:
        connect: opens a connection to the store.
        keys: the job's.
        mailbox: hands on what threads find.
        node: told of it.
        describe: describes this node, anew for each cycle.
        store: the store of in-process restart.
        host: the coordinator, where this launcher runs it.
        settings: the rendezvous's.
    """

    def __init__(
        self,
        connect: Callable[[], Link],
        keys: RendezvousKeys,
        mailbox: Mailbox,
        node: NodeEvents,
        *,
        describe: Callable[[], NodeDescription],
        store: ControlStore,
        host: CoordinatorHost | None,
        settings: RendezvousSettings,
    ) -> None:
        self._keys, self._mailbox, self._describe = keys, mailbox, describe
        self._events, self._host, self._node, self._is_lost = node, host, -1, False
        self._lease = Lease(settings.beat, settings.lost_after)
        self.store = store
        self._requests = Requests(connect(), self._move_lease, settings.beat, failed=self.store_lost)
        found = handing_on(mailbox, Decision.from_text, node.decided)
        self._decisions = Follower(connect(), keys.decision, found=found, failed=self.store_lost)
        self._in_use = Follower(connect(), lambda _: keys.in_use, found=self._store_in_use, failed=self.store_lost)

    @property
    def deadline(self) -> float:
        """When it wants `tick`, monotonic seconds."""
        return min(self._lease.deadline, math.inf if self._host is None else self._host.deadline)

    def join(self) -> None:
        """Join the job."""
        if self._host is not None:
            self._host.start()
        self._requests.start()
        self._requests.ask(self._join)
        self._in_use.start("nvrx-store-in-use")

    def tell(self, kind: MessageKind, cycle: int, reason: str) -> None:
        """Tell the coordinator."""
        description = self._describe() if kind is MessageKind.READY else None
        text = json.dumps(Message(self._node, kind, cycle, reason, description).to_json())
        self._requests.ask(lambda store: self._tell(store, text))

    def tick(self) -> None:
        """Take the time."""
        if self._host is not None:
            self._host.tick()
        if self._lease.is_lost(now=time.monotonic()):
            self._lease.release()
            self._events.cut_off(f"the rendezvous store has not answered for {self._lease.ends_after:g} s")

    def store_lost(self, why: str) -> None:
        """Say that the store is lost; from any thread."""
        self._mailbox.post(lambda: self._end(f"the rendezvous store is lost: {why}"))

    def close(self, loop: EventLoop) -> None:
        """Hand on the last messages, and end."""
        self._decisions.stop()
        self._in_use.stop()
        self._requests.finish(SAYS_WITHIN)
        if self._host is not None:
            self._host.close(loop)

    def _end(self, reason: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._events.coordinator_lost(STORE_LOST, reason)

    def _tell(self, store: Store, text: str) -> None:
        key = self._keys.message(store.add(self._keys.inbox, 1))
        store.set(key, text)
        store.check([key])  # what is set over a connection that breaks may be lost; whatever breaks is made again

    def _join(self, store: Store) -> None:
        self._node = store.add(self._keys.nodes, 1) - 1
        self._move_lease(store)
        self._decisions.start("nvrx-decisions")
        self._mailbox.post(lambda: self._events.joined(self._node))

    def _store_in_use(self, _: int, __: bytes) -> None:
        self._in_use.stop()
        self._mailbox.post(self.store.prepare)

    def _move_lease(self, store: Store) -> None:
        """Move the lease, by a request that is answered: a node that is cut off must come to know it."""
        if self._node >= 0:
            begun = time.monotonic()
            store.add(self._keys.lease(self._node), 1)
            self._mailbox.post(lambda: self._lease.moved(begun=begun))
