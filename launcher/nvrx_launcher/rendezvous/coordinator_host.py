"""Runs the coordinator of a job beside a launcher, over the rendezvous store."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from nvrx_core import failpoint
from nvrx_core.store.connection import StoreConnection
from nvrx_launcher.exit_codes import STORE_LOST
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.connection_watch import ConnectionWatch
from nvrx_launcher.rendezvous.connections import NodeListener
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.failure_reports import FailureReports
from nvrx_launcher.rendezvous.hang_relay import HangRelay
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.lease import ObservedLeases, closed_and_not_moved, not_moved
from nvrx_launcher.rendezvous.mailbox import Mailbox, handing_on
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Message, MessageKind
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.progress import ProgressSummary
from nvrx_launcher.rendezvous.roll_call import RollCall
from nvrx_launcher.rendezvous.store_threads import Follower, Link, Requests, multi_get
from nvrx_launcher.rendezvous.term import Checkpoint, Entry, Opening, Term
from nvrx_launcher.rendezvous_settings import RendezvousSettings

__all__ = ["CoordinatorHost", "DecisionLog"]

log = logging.getLogger("nvrx_launcher")
WARNINGS: Final = 8
"""Lines at a time about other nodes."""
LAST_MESSAGE_TIMEOUT: Final = 2.0
"""Seconds that it takes at most to hand on its last decision."""


class CoordinatorHost:
    """Runs the coordinator in the launcher's event loop, for a term.

    Args:
        rules: what the coordinator decides by.
        opening: the term, and the state that the coordinator starts from.
        keys: the job's.
        link, inbox_link: two connections to the store.
        mailbox: delivers the results of threads to the event loop.
        settings: the settings of the rendezvous.
        control: returns where this launcher hosts the store of in-process restart; another place after its loss.
        listener: the connections of the other launchers.
        evidence_received: called with a cycle and a hang of which all nodes have written what their ranks show.
        replaced: called when another launcher runs the coordinator.
        failed: called with the reason, in a thread that has ended by a failure.

    Attributes:
        inbox: follows the messages.
        reports: what nodes have reported of failures in this term.
    """

    def __init__(  # noqa: PLR0913
        self,
        rules: Rules,
        opening: Opening,
        keys: RendezvousKeys,
        *,
        link: Link,
        inbox_link: Link,
        mailbox: Mailbox,
        settings: RendezvousSettings,
        control: Callable[[], str],
        listener: NodeListener,
        evidence_received: Callable[[int, str], object],
        replaced: Callable[[], object],
        failed: Callable[[str], object],
    ) -> None:
        self._opening, self._keys, self._mailbox, self._settings = opening, keys, mailbox, settings
        self._control, self._listener, self._replaced = control, listener, replaced
        self._evidence_received, self._hangs = evidence_received, HangRelay()
        self._connections = ConnectionWatch(settings.keep_alive_interval, settings.closed_timeout)
        self._progress = ProgressSummary(keys.progress)
        self._term, self._decided, checkpoint = opening.term, opening.decided, opening.checkpoint
        self._log = DecisionLog(keys, opening.term)
        self._handled = opening.term.inbox if checkpoint is None else checkpoint.handled
        self._coordinator = Coordinator(rules)
        if checkpoint is not None:
            self._coordinator = Coordinator.from_state(rules, checkpoint.state, now=time.monotonic())
        self._roll_call = RollCall(self._coordinator)
        self._nodes = self._coordinator.nodes
        self.reports = FailureReports({node: each.host for node, each in self._coordinator.descriptions.items()})
        self._is_ahead = False  # the coordinator has decided what was not handed on
        self._leases = ObservedLeases(settings.keep_alive_interval, settings.lease_timeout)
        self._requests = Requests(
            link, self._watch_leases, settings.keep_alive_interval, name="nvrx-coordinator", failed=failed
        )
        self.inbox = Follower(
            inbox_link, keys.message, name="nvrx-inbox",
            found=handing_on(mailbox, Message.from_text, self._received), failed=failed,
            first=self._handled + 1, count=lambda store: store.add(keys.inbox, 0),
        )  # fmt: skip

    def start(self) -> None:
        """Start to gather nodes, or continue where the predecessor stopped."""
        self._requests.start()
        self.inbox.start()
        self._listener.serve(self._connections)
        if self._opening.checkpoint is None:
            self._coordinator.start(now=time.monotonic())
        elif self._opening.predecessor >= 0:
            self._lost(self._opening.predecessor, self._opening.reason)

    def store_in_use(self) -> None:
        """Announce to all nodes that a rank uses the store of in-process restart."""
        keys, control = self._keys, self._control()
        self._requests.ask(lambda store: store.set(keys.in_use(store.add(keys.in_uses, 1)), control))

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return min(self._coordinator.deadline, self._roll_call.deadline, self._connections.deadline)

    def tick(self, *, now: float) -> None:
        """Handle that time has passed."""
        self._roll_call.tick(now=now)
        self._doubt(self._connections.tick(now=now))
        self._publish(self._coordinator.tick(now=now))

    def close(self, loop: EventLoop, node: int) -> None:
        """Stop with this node's launcher: the job ends if it hosts the store, else another launcher takes over."""
        if self._term.hosts_store:
            self._is_ahead = False  # nobody takes over: all that counts is that the job ends
            self._publish(self._coordinator.abandon(STORE_LOST, "the launcher that hosts the rendezvous has ended"))
        deadline = time.monotonic() + self._settings.close_timeout
        while self._waits_for(node) and time.monotonic() < deadline:
            loop.turn(deadline)
        if not self._term.hosts_store:
            is_over = self._coordinator.is_over and not self._is_ahead
            decided = self._decided
            self._requests.ask((lambda store: self._log.clear(store, decided)) if is_over else self._log.resign)
        self.stop()

    def stop(self) -> None:
        """Make no further decisions."""
        self._listener.stop()
        self.inbox.stop()
        self._requests.finish(LAST_MESSAGE_TIMEOUT)

    def _waits_for(self, node: int) -> bool:
        """Whether a node has yet to read the end of the job or, if the job continues, that this node has left."""
        if self._is_ahead:
            return False
        return bool(self._coordinator.nodes) if self._coordinator.is_over else node in self._coordinator.nodes

    def _received(self, number: int, message: Message) -> None:
        self._handled = number
        if message.kind is MessageKind.HANG_EVIDENCE:
            self._evidence_received(message.cycle, message.reason)
        self.reports.received(message)
        now = time.monotonic()
        decisions = self._hangs.received(message, cycle=self._coordinator.cycle, judge=self._term.node, now=now)
        decisions += self._coordinator.received(message, now=now)
        if message.kind is MessageKind.READY:
            self._roll_call.joined(message.node, now=now)
        self._publish(decisions)

    def _lost(self, node: int, reason: str) -> None:
        self._publish(self._coordinator.lost(node, reason, now=time.monotonic()))

    def _doubt(self, closed: tuple[int, ...]) -> None:
        """Read the leases of nodes without a connection; a node that is not in the job has nothing to lose."""
        nodes = [node for node in closed if node in self._nodes]
        for node in set(closed).difference(nodes):
            self._connections.forget(node)
        if nodes:
            self._requests.ask(lambda store: self._read_leases(store, nodes))

    def _read_leases(self, store: StoreConnection, nodes: list[int]) -> None:
        leases = dict(zip(nodes, multi_get(store, map(self._keys.lease, nodes)), strict=True))
        now, within = time.monotonic(), self._connections.timeout

        def judge() -> None:
            for node in self._connections.observed(leases, now=now):
                self._lost(node, closed_and_not_moved(node, within))

        self._mailbox.post(judge)

    def _publish(self, decisions: tuple[Decision, ...]) -> None:
        """Publish the decisions to all nodes, and the nodes of the job to the request thread.

        If that fails, the launcher exits and the coordinator makes no further decisions: they would depend on one that
        no other node knows. A successor starts from the last published decision.
        """
        self._nodes = self._coordinator.nodes
        decisions = self._roll_call.decided(decisions, now=time.monotonic())
        self._log_warnings(decisions)
        if decisions and not self._is_ahead:
            self._is_ahead = True
            failpoint.hit("decision-write", decisions[0].cycle)
            self._decided += 1
            number, control = self._decided, self._control
            named = tuple(
                replace(each, store=control()) if each.kind is DecisionKind.RUN else each for each in decisions
            )
            checkpoint = Checkpoint(self._coordinator.state(now=time.monotonic()), self._handled)
            entry = Entry(self._term.number, named)
            self._requests.ask(lambda store: self._write(store, number, entry, checkpoint))
            self._is_ahead = False

    def _log_warnings(self, decisions: tuple[Decision, ...]) -> None:
        """Log here as well what is wrong with other nodes; these log it themselves."""
        texts = [
            each.reason
            for each in decisions
            if each.kind is DecisionKind.WARNING and self._term.node not in {member.node for member in each.members}
        ]
        for text in texts[:WARNINGS]:
            log.warning("%s", text)
        if len(texts) > WARNINGS:
            log.warning("the logs of %d more nodes have such lines", len(texts) - WARNINGS)

    def _write(self, store: StoreConnection, number: int, entry: Entry, checkpoint: Checkpoint) -> None:
        if not self._log.write(store, number, entry, checkpoint):
            self._mailbox.post(self._replaced)

    def _watch_leases(self, store: StoreConnection) -> None:
        """Observe which leases were renewed, and collect the progress; runs in the request thread."""
        nodes = sorted(self._nodes)
        self._leases.begin(now=time.monotonic())
        self._progress.collect(store, nodes)
        found = multi_get(store, map(self._keys.lease, nodes))
        self._leases.observe(dict(zip(nodes, found, strict=True)), now=time.monotonic())
        for node in self._leases.stale(now=time.monotonic()):
            self._mailbox.post(functools.partial(self._lost, node, not_moved(node, self._leases.timeout)))


class DecisionLog:
    """The numbered decisions of a job in the store, as the coordinator of one term writes them.

    All writes are made in the request thread, and may be repeated when a connection breaks. Each number is written
    once, by the first writer. A coordinator whose number was written by somebody else is replaced: everything that it
    has decided since then is void, so none of its later writes is carried out, nor is anything else that it does for
    the job.

    Args:
        keys: the job's.
        term: the coordinator's.

    Attributes:
        term: as given.
        is_fenced: another coordinator has replaced this one.
    """

    def __init__(self, keys: RendezvousKeys, term: Term) -> None:
        self._keys, self.term, self.is_fenced = keys, term, False

    def write(self, store: StoreConnection, number: int, entry: Entry, checkpoint: Checkpoint) -> bool:
        """Write a decision and the state after it; return whether it is the job's."""
        if self.is_fenced:
            return False
        keys, term, text = self._keys, self.term, entry.to_text()
        if not term.hosts_store:  # nobody takes over from a coordinator that is lost with its store
            store.set(keys.state(number, term.number), checkpoint.to_text())
        self.is_fenced = store.compare_set(keys.decision(number), "", text).decode() != text
        if not self.is_fenced and not term.hosts_store:
            store.delete_key(keys.state(number - 1, term.number))
        return not self.is_fenced

    def resign(self, store: StoreConnection) -> None:
        """End the term, so that another launcher takes over at once; one that has replaced it keeps its term."""
        over = replace(self.term, is_over=True).to_text()
        store.compare_set(self._keys.leader, self.term.to_text(), over)

    def clear(self, store: StoreConnection, last: int) -> None:
        """End the job in a store that outlives it: its name can be used again.

        What a launcher needs that has yet to read the end stays, until the keys expire: the decisions, and what the
        next job of this name goes on from.

        Args:
            store: the store.
            last: the number of the last decision.
        """
        self.resign(store)
        forget, keys = getattr(store.store, "forget_except", None), self._keys
        if forget is not None and not self.is_fenced:
            decisions = [keys.decision(number) for number in range(self.term.since, last + 1)]
            forget("", [keys.leader, keys.instance, keys.nodes, keys.inbox, *decisions])
