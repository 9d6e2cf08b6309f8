"""A node's connection to the coordinator over a store."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from nvrx_core.fault_tolerance.peers import Progress
from nvrx_core.parsing import count_in
from nvrx_core.store.connection import StoreConnection
from nvrx_launcher.exit_codes import STORE_LOST
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.connections import CoordinatorConnection, NodeListener
from nvrx_launcher.rendezvous.coordination import NodeEvents
from nvrx_launcher.rendezvous.failure_reports import CycleFailures
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.leadership import Leadership
from nvrx_launcher.rendezvous.lease import Lease
from nvrx_launcher.rendezvous.mailbox import Mailbox, handing_on
from nvrx_launcher.rendezvous.messages import DecisionKind, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.progress import ProgressBoard, existing
from nvrx_launcher.rendezvous.store_threads import Follower, Link, Requests
from nvrx_launcher.rendezvous.term import Entry
from nvrx_launcher.rendezvous_settings import RendezvousSettings
from nvrx_launcher.store_host import StoreHost

__all__ = ["RendezvousStore", "StoreCoordination"]

Value = TypeVar("Value")
log = logging.getLogger("nvrx_launcher")
LEVELS: Final = {DecisionKind.NOTE: logging.INFO, DecisionKind.WARNING: logging.WARNING}
"""Of what is only for people."""
NO_EVIDENCE: Final = "-"
"""Of a node on any hang: all nodes have a value, so that those of all are read by one request."""
LAST_MESSAGE_TIMEOUT: Final = 2.0
"""Seconds that a launcher takes at most to hand on its last message."""


class RendezvousStore(Protocol):
    """The store of a rendezvous, of any kind."""

    @property
    def is_hosted(self) -> bool:
        """Whether this launcher hosts it."""

    @property
    def endpoint(self) -> tuple[str, int]:
        """Its endpoint."""

    def connect(self) -> Link:
        """Open a connection."""


class StoreCoordination:
    """The connection of a node to the coordinator over the store.

    Args:
        store: the store of the rendezvous.
        keys: the job's.
        mailbox: delivers the results of threads to the event loop.
        node: handles the events.
        describe: describes this node, anew for each cycle.
        control: the store of in-process restart.
        rules: the parameters of the decisions.
        settings: the settings of the rendezvous.
        listener: the connections of the other launchers, if this one runs the coordinator.
        connection: that to the coordinator's launcher, if another one runs it.
    """

    def __init__(  # noqa: PLR0913
        self,
        store: RendezvousStore,
        keys: RendezvousKeys,
        mailbox: Mailbox,
        node: NodeEvents,
        *,
        describe: Callable[[], NodeDescription],
        control: StoreHost,
        rules: Rules,
        settings: RendezvousSettings,
        listener: NodeListener,
        connection: CoordinatorConnection,
    ) -> None:
        self._connect, self._keys, self._mailbox, self._describe = store.connect, keys, mailbox, describe
        self._events, self.store = node, control
        self._decisions: Follower | None = None
        self._node, self._is_over, self._is_lost = -1, False, False
        self.hosts_store = store.is_hosted
        self._board = ProgressBoard(keys.progress, node.progress)
        self._shared, self._last_hang = (-1, ""), ""
        self._lease = Lease(settings.keep_alive_interval, settings.own_lease_timeout)
        self._connection, self._closed_timeout = connection, settings.closed_timeout
        self._leadership = Leadership(
            rules,
            self._connect,
            keys,
            mailbox=mailbox,
            settings=settings,
            control=control,
            hosts_store=store.is_hosted,
            listener=listener,
            evidence_received=node.evidence_received,
            failed=self._failed,
        )
        self._requests = Requests(
            self._connect(), self._beat, settings.keep_alive_interval, name="nvrx-node", failed=self._failed
        )
        self._in_use = Follower(
            self._connect(), keys.in_use, name="nvrx-store-in-use",
            found=handing_on(mailbox, bytes.decode, lambda _, endpoint: control.used_by_a_rank(endpoint)),
            failed=self._failed, count=lambda store: store.add(keys.in_uses, 0),
        )  # fmt: skip

    def open_store(self) -> object:
        """Return torch's store, on a connection of its own."""
        return self._connect().store

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min(self._lease.deadline, self._leadership.deadline, self._connection.deadline)

    def join(self) -> None:
        """Join the job."""
        self._requests.start()
        self._requests.ask(self._join)
        self._in_use.start()

    def join_again(self) -> None:
        """Join the job under another number, as soon as the store answers."""
        self._requests.ask(self._join_again)

    def tell(self, kind: MessageKind, cycle: int, reason: str, records: tuple[str, ...] = ()) -> None:
        """Send a message to the coordinator."""
        description = self._describe() if kind is MessageKind.READY else None
        text = json.dumps(Message(self._node, kind, cycle, reason, description, records).to_json())
        if kind is MessageKind.HANG_SUSPECTED:
            self._requests.ask(lambda store: self._suspect(store, cycle, reason, text))
            return
        self._requests.ask(lambda store: self._send(store, text))

    def ask_progress(self, answer: Callable[[Sequence[Progress]], object]) -> None:
        """Read the progress of the slowest ranks of other nodes."""

        def ask(store: StoreConnection) -> None:
            found = self._board.read(store)
            self._mailbox.post(lambda: answer(found))

        self._requests.ask(ask)

    def share_pace(self, text: str, nodes: Sequence[int], answer: Callable[[Sequence[bytes]], object]) -> None:
        """Publish the section times of this node, and read those of others if this launcher runs the coordinator.

        It takes one request of a node if they have changed, and one or two more of the coordinator's launcher.
        """
        keys, is_coordinator = list(map(self._keys.pace, nodes)), self._leadership.is_here

        def share(store: StoreConnection) -> None:
            if self._node in nodes and self._shared != (written := (self._node, text)):
                store.set(self._keys.pace(self._node), text)
                self._shared = written
            found = existing(store, keys) if is_coordinator else None
            self._mailbox.post(lambda: answer(found or ()))

        self._requests.ask(share)

    @property
    def runs_coordinator(self) -> bool:
        """Whether this launcher runs the coordinator."""
        return self._leadership.is_here

    @property
    def coordinator(self) -> int:
        """The node whose launcher runs the coordinator, as far as this one knows; -1 before it does."""
        return self._leadership.term.node

    def share_evidence(self, cycle: int, hang: str, text: str, nodes: int) -> None:
        """Write what the ranks of this node show of a hang; the last one of so many nodes tells the coordinator."""

        def share(store: StoreConnection) -> None:
            store.set(self._keys.evidence(self._node), text)
            if store.add(self._keys.evidence_count(hang), 1) == nodes:
                message = Message(self._node, MessageKind.HANG_EVIDENCE, cycle, hang)
                self._send(store, json.dumps(message.to_json()))

        self._requests.ask(share)

    def gather_evidence(
        self, nodes: Sequence[int], judged: Callable[[Sequence[bytes]], Value], answer: Callable[[Value], object]
    ) -> None:
        """Read what the ranks of nodes show of a hang, and judge, in the request thread."""
        keys = list(map(self._keys.evidence, nodes))

        def gather(store: StoreConnection) -> None:
            found = judged(existing(store, keys) or ())
            self._mailbox.post(lambda: answer(found))

        self._requests.ask(gather)

    def tick(self, *, now: float) -> None:
        """Handle that time has passed."""
        self._leadership.tick(now=now)
        term, node = self._leadership.term, self._node
        if not self._is_over:
            self._connection.hold(term.number, "" if term.node == node else term.endpoint, node)
        self._connection.tick(now=now)
        if self._lease.is_lost(now=now):
            self._lease.release(now=now)
            self._events.lease_expired(f"the rendezvous store has not answered for {self._lease.timeout:g} s")

    def paused(self, *, now: float) -> None:
        """Handle that this launcher has stood still until now."""
        self._lease.paused(now=now)

    def store_used(self) -> None:
        """Announce to all nodes that a rank has connected to this launcher's store of in-process restart."""
        self._leadership.store_in_use()

    def failures(self, cycle: int) -> CycleFailures | None:
        """Return what nodes have reported of the failures of a cycle; None: another launcher runs the coordinator."""
        return self._leadership.failures(cycle)

    def close(self, loop: EventLoop) -> None:
        """Send the last messages, and close the connection."""
        self._is_over = True
        self._in_use.stop()
        if self._decisions is not None:
            self._decisions.stop()
        self._requests.finish(LAST_MESSAGE_TIMEOUT)
        self._connection.close()
        if self._is_lost:
            self._leadership.stop()
        else:
            self._leadership.close(loop, self._node)

    def release(self) -> None:
        """End all threads after `close`, in a process that continues."""
        for each in filter(None, [self._in_use, self._decisions]):
            each.end(LAST_MESSAGE_TIMEOUT)
        self._leadership.release()

    def _failed(self, reason: str) -> None:
        """Handle that a thread has ended, in that thread: the store is lost, or it has raised an exception."""
        self._mailbox.post(lambda: self._end(reason))

    def _end(self, reason: str) -> None:
        if not self._is_over:
            self._is_over = self._is_lost = True
            self._events.coordinator_lost(STORE_LOST, reason)

    def _send(self, store: StoreConnection, text: str) -> None:
        key = self._keys.message(store.add(self._keys.inbox, 1))
        store.set(key, text)
        store.check([key])  # what is set over a connection that breaks may be lost; whatever breaks is made again

    def _suspect(self, store: StoreConnection, cycle: int, hang: str, text: str) -> None:
        """Tell the coordinator of a hang, unless another node has: all may be about to, at the same time."""
        expected = self._last_hang
        while (found := store.compare_set(self._keys.last_hang, expected, hang).decode()) != hang:
            self._last_hang = found
            if found == expected or count_in(found.partition(":")[0]) >= cycle:
                return
            expected = found  # that of an earlier cycle, in which this node has taken no part
        self._last_hang = hang
        self._send(store, text)

    def _join(self, store: StoreConnection) -> None:
        if self._node < 0:
            self._node = store.add(self._keys.nodes, 1) - 1
        store.set(self._keys.evidence(self._node), NO_EVIDENCE)
        store.add(self._keys.lease(self._node), 1)  # for the others; here it counts once an election is over
        term = self._leadership.enter(store, self._node)
        self._decisions = Follower(
            self._connect(), self._keys.decision, name="nvrx-decisions",
            found=handing_on(self._mailbox, Entry.from_text, self._decided), failed=self._failed, first=term.since,
        )  # fmt: skip
        self._decisions.start()
        self._move_lease(store)
        self._mailbox.post(lambda: self._events.joined(self._node))

    def _join_again(self, store: StoreConnection) -> None:
        node = store.add(self._keys.nodes, 1) - 1
        self._node = node
        store.set(self._keys.evidence(node), NO_EVIDENCE)
        self._move_lease(store)
        self._mailbox.post(lambda: self._events.joined(node))

    def _beat(self, store: StoreConnection) -> None:
        """Renew this node's lease, and check that the coordinator is alive."""
        if self._node >= 0:
            self._move_lease(store)
        if self._decisions is not None and not self._is_over:
            term, since = self._connection.closed
            is_closed = time.monotonic() - since >= self._closed_timeout
            self._leadership.observe(store, self._node, closed=term if is_closed else 0)

    def _move_lease(self, store: StoreConnection) -> None:
        """Renew the lease, by a request that is answered: a node that is cut off must detect it."""
        begun = time.monotonic()
        self._board.write(store, self._node)
        store.add(self._keys.lease(self._node), 1)
        self._mailbox.post(lambda: self._lease.moved(begun=begun))

    def _decided(self, _: int, entry: Entry) -> None:
        for decision in entry.decisions:
            if decision.kind in LEVELS:
                if self._node in {member.node for member in decision.members}:
                    log.log(LEVELS[decision.kind], "%s", decision.reason)
                continue
            self._is_over = self._is_over or decision.kind is DecisionKind.END
            self._events.decided(decision)
