"""A node's way to a coordinator over a torch store; on the store's host, the coordinator as well."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from nvrx_core.liveness.lease import LeaseTable
from nvrx_launcher.exit_codes import STORE_LOST
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.coordination import NodeEvents
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.messages import Decision, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.store_threads import Follower, Requests, Store, multi_get
from nvrx_launcher.store_host import ControlStore

__all__ = ["CoordinatorHost", "StoreCoordination"]

Value = TypeVar("Value")
LEASE_TIMEOUT: Final = 5.0
"""Seconds without a move of its lease after which a node is lost."""
HEARD_WITHIN: Final = 5.0
"""Seconds that the coordinator's launcher waits at most until all nodes have left."""
SAYS_WITHIN: Final = 2.0
"""Seconds that a launcher takes at most to hand on its last message."""


class CoordinatorHost:
    """Runs the coordinator beside a launcher, in the launcher's event loop.

    Args:
        coordinator: decides.
        connect: opens a connection to the store.
        keys: the job's.
        mailbox: hands on what threads find.
    """

    def __init__(
        self, coordinator: Coordinator, connect: Callable[[], Store], keys: RendezvousKeys, mailbox: Mailbox
    ) -> None:
        self._coordinator, self._keys, self._mailbox = coordinator, keys, mailbox
        self._decided = itertools.count(1)
        self._leases, self._nodes = LeaseTable(LEASE_TIMEOUT), frozenset[int]()
        self._requests = Requests(connect(), self._watch_leases, _ignore)
        found = _handing_on(mailbox, Message.from_text, self._received)
        self._inbox = Follower(
            connect(), keys.message, found=found, failed=_ignore, count=lambda store: store.add(keys.inbox, 0)
        )

    def store_in_use(self) -> None:
        """Let all nodes know that a rank uses the store of in-process restart."""
        self._requests.ask(lambda store: store.set(self._keys.in_use, "1"))

    def start(self) -> None:
        """Begin to gather nodes."""
        self._coordinator.start(now=time.monotonic())
        self._requests.start()
        self._inbox.start("nvrx-inbox")

    @property
    def deadline(self) -> float:
        """When it wants `tick`, monotonic seconds."""
        return self._coordinator.deadline

    def tick(self) -> None:
        """Take the time."""
        self._publish(self._coordinator.tick(now=time.monotonic()))

    def close(self, loop: EventLoop) -> None:
        """End the job if it goes on, and wait until all nodes know of it."""
        self._publish(self._coordinator.abandon(STORE_LOST, "the launcher that hosts the rendezvous has ended"))
        deadline = time.monotonic() + HEARD_WITHIN
        while self._coordinator.nodes and time.monotonic() < deadline:
            loop.turn(deadline)
        self._inbox.stop()
        self._requests.finish(SAYS_WITHIN)

    def _received(self, message: Message) -> None:
        self._publish(self._coordinator.received(message, now=time.monotonic()))

    def _lost(self, node: int) -> None:
        reason = f"node {node} has not moved its lease for {LEASE_TIMEOUT:g} s"
        self._publish(self._coordinator.lost(node, reason, now=time.monotonic()))

    def _publish(self, decisions: tuple[Decision, ...]) -> None:
        """Let all nodes know of what was decided, and the other thread of who is in the job."""
        self._nodes = self._coordinator.nodes
        for decision in decisions:
            key, text = self._keys.decision(next(self._decided)), json.dumps(decision.to_json())
            self._requests.ask(lambda store, key=key, text=text: store.set(key, text))  # type: ignore[misc]

    def _watch_leases(self, store: Store) -> None:
        """In the thread of requests: see whose lease has moved."""
        nodes = sorted(self._nodes)
        self._leases.keep(nodes)
        for node, lease in zip(nodes, multi_get(store, map(self._keys.lease, nodes)), strict=True):
            self._leases.observe(node, lease, now=time.monotonic())
        for node in self._leases.stale(now=time.monotonic()):
            self._mailbox.post(lambda node=node: self._lost(node))  # type: ignore[misc]


def _handing_on(
    mailbox: Mailbox, read: Callable[[bytes], Value], take: Callable[[Value], object]
) -> Callable[[bytes], None]:
    """Return what reads a value in a thread, and has the loop take it; nobody of ours has written a malformed one."""

    def found(text: bytes) -> None:
        with suppress(ValueError):
            value = read(text)
            mailbox.post(lambda: take(value))

    return found


def _ignore(_: str) -> None:
    """The store is this launcher's own: when it is lost, so is this launcher."""


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
    """

    def __init__(
        self,
        connect: Callable[[], Store],
        keys: RendezvousKeys,
        mailbox: Mailbox,
        node: NodeEvents,
        *,
        describe: Callable[[], NodeDescription],
        store: ControlStore,
        host: CoordinatorHost | None,
    ) -> None:
        self._keys, self._mailbox, self._describe = keys, mailbox, describe
        self._events, self._host, self._node = node, host, -1
        self._beats = itertools.count(1)
        self.store = store
        self._requests = Requests(connect(), self._move_lease, self.store_lost)
        found = _handing_on(mailbox, Decision.from_text, node.decided)
        self._decisions = Follower(connect(), keys.decision, found=found, failed=self.store_lost)
        self._in_use = Follower(connect(), lambda _: keys.in_use, found=self._store_in_use, failed=self.store_lost)

    @property
    def deadline(self) -> float:
        """When it wants `tick`, monotonic seconds."""
        return math.inf if self._host is None else self._host.deadline

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
        self._requests.ask(lambda store: store.set(self._keys.message(store.add(self._keys.inbox, 1)), text))

    def tick(self) -> None:
        """Take the time."""
        if self._host is not None:
            self._host.tick()

    def store_lost(self, why: str) -> None:
        """Say that the store is lost; from any thread."""
        self._mailbox.post(lambda: self._events.coordinator_lost(STORE_LOST, f"the rendezvous store is lost: {why}"))

    def close(self, loop: EventLoop) -> None:
        """Hand on the last messages, and end."""
        self._decisions.stop()
        self._in_use.stop()
        self._requests.finish(SAYS_WITHIN)
        if self._host is not None:
            self._host.close(loop)

    def _join(self, store: Store) -> None:
        self._node = store.add(self._keys.nodes, 1) - 1
        self._move_lease(store)
        self._decisions.start("nvrx-decisions")
        self._mailbox.post(lambda: self._events.joined(self._node))

    def _store_in_use(self, _: bytes) -> None:
        self._in_use.stop()
        self._mailbox.post(self.store.prepare)

    def _move_lease(self, store: Store) -> None:
        if self._node >= 0:
            store.set(self._keys.lease(self._node), str(next(self._beats)))
