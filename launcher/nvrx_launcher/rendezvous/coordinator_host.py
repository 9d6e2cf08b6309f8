"""Runs the coordinator of a job beside a launcher, over the rendezvous store."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Final

from nvrx_core.liveness.lease import LeaseTable
from nvrx_launcher.exit_codes import STORE_LOST
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.mailbox import Mailbox, handing_on
from nvrx_launcher.rendezvous.messages import Decision, Message
from nvrx_launcher.rendezvous.store_threads import Follower, Link, Requests, Store, multi_get
from nvrx_launcher.rendezvous_settings import RendezvousSettings

__all__ = ["CoordinatorHost"]

SAYS_WITHIN: Final = 2.0
"""Seconds that it takes at most to hand on its last decision."""


class CoordinatorHost:
    """Runs the coordinator in the launcher's event loop.

    Args:
        coordinator: decides.
        connect: opens a connection to the store.
        keys: the job's.
        mailbox: hands on what threads find.
        settings: the rendezvous's.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        connect: Callable[[], Link],
        keys: RendezvousKeys,
        mailbox: Mailbox,
        *,
        settings: RendezvousSettings,
    ) -> None:
        self._coordinator, self._keys, self._mailbox, self._settings = coordinator, keys, mailbox, settings
        self._decided = itertools.count(1)
        self._nodes = frozenset[int]()
        self._leases = LeaseTable(settings.beat * settings.lost_after)
        self._requests = Requests(connect(), self._watch_leases, settings.beat, failed=_ignore)
        found = handing_on(mailbox, Message.from_text, self._received)
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
        deadline = time.monotonic() + self._settings.close_timeout
        while self._coordinator.nodes and time.monotonic() < deadline:
            loop.turn(deadline)
        self._inbox.stop()
        self._requests.finish(SAYS_WITHIN)

    def _received(self, message: Message) -> None:
        self._publish(self._coordinator.received(message, now=time.monotonic()))

    def _lost(self, node: int) -> None:
        reason = f"node {node} has not moved its lease for {self._leases.timeout:g} s"
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


def _ignore(_: str) -> None:
    """The store is this launcher's own: when it is lost, so is this launcher."""
