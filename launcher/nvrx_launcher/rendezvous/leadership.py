"""Leadership of a job: this launcher takes part in the election, and runs the coordinator in the terms that it wins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from nvrx_core import failpoint
from nvrx_core.store.connection import StoreConnection
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.connections import NodeListener
from nvrx_launcher.rendezvous.coordinator_host import CoordinatorHost, DecisionLog
from nvrx_launcher.rendezvous.election import Election
from nvrx_launcher.rendezvous.failure_reports import CycleFailures
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.mailbox import Mailbox
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.store_threads import LOST, Link
from nvrx_launcher.rendezvous.term import Opening, Term
from nvrx_launcher.rendezvous_settings import RendezvousSettings
from nvrx_launcher.store_host import StoreHost

__all__ = ["Leadership"]

END_TIMEOUT: Final = 2.0
"""Seconds that a thread has to end."""


class Leadership:
    """The coordinator, while this launcher runs it.

    `enter` and `observe` are called in the request thread, all other methods in that of the event loop. What may wait
    for the store is done in the request thread.

    Args:
        rules: the parameters of the decisions.
        connect: opens a connection to the store.
        keys: the job's.
        mailbox: delivers the results of threads to the event loop.
        settings: the settings of the rendezvous.
        control: the store of in-process restart.
        hosts_store: this launcher hosts the store of the rendezvous.
        listener: the connections of the other launchers.
        evidence_received: as of `CoordinatorHost`.
        failed: called with the reason, in a thread of the coordinator's that has ended by a failure.

    Attributes:
        term: the current one, as far as this launcher knows; read in any thread.
    """

    def __init__(  # noqa: PLR0913
        self, rules: Rules, connect: Callable[[], Link], keys: RendezvousKeys, *,
        mailbox: Mailbox, settings: RendezvousSettings, control: StoreHost, hosts_store: bool,
        listener: NodeListener, evidence_received: Callable[[int, str], object], failed: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._rules, self._connect, self._keys, self._mailbox = rules, connect, keys, mailbox
        self._settings, self._control, self._listener, self._failed = settings, control, listener, failed
        self._evidence_received = evidence_received
        self._election = Election(keys, settings, hosts_store=hosts_store, endpoint=listener.endpoint)
        self.term = Term(0, -1)
        self._host: CoordinatorHost | None = None
        self._links: tuple[Link, Link] | None = None

    @property
    def deadline(self) -> float:
        """When `tick` is due, monotonic seconds."""
        return math.inf if self._host is None else min(self._host.deadline, self._listener.deadline)

    def enter(self, store: StoreConnection, node: int) -> Term:
        """Return the current term, once there is a coordinator; run the coordinator if it is this node's term."""
        opening = self._election.enter(store, node)
        self._take(store, opening, node)
        return opening.term

    def observe(self, store: StoreConnection, node: int, *, closed: int) -> None:
        """Take over from a coordinator whose launcher is lost; `closed`: as of `Election.observe`."""
        opening = self._election.observe(store, node, self.term, closed=closed)
        if opening.term.number != self.term.number:
            self._take(store, opening, node)
        self.term = opening.term

    def tick(self, *, now: float) -> None:
        """Handle that time has passed."""
        if self._host is not None:
            self._host.tick(now=now)
            self._listener.tick(now=now)

    def store_in_use(self) -> None:
        """Announce to all nodes that a rank uses this launcher's store of in-process restart."""
        if self._host is not None:
            self._host.store_in_use()

    @property
    def is_here(self) -> bool:
        """Whether this launcher runs the coordinator."""
        return self._host is not None

    def failures(self, cycle: int) -> CycleFailures | None:
        """Return what nodes have reported of the failures of a cycle; None: another launcher runs the coordinator."""
        return None if self._host is None else self._host.reports.of(cycle)

    def close(self, loop: EventLoop, node: int) -> None:
        """Leave the job with this node: the job ends, or another launcher takes over."""
        if self._host is not None:
            self._host.close(loop, node)

    def stop(self) -> None:
        """Make no further decisions: the store is lost, or another launcher has taken over."""
        if self._host is not None:
            self._host.stop()

    def release(self) -> None:
        """End the threads that wait, once it is closed."""
        if self._host is not None:
            self._host.inbox.end(END_TIMEOUT)
        for link in self._links or ():
            link.cut()

    def _take(self, store: StoreConnection, opening: Opening, node: int) -> None:
        """Run the coordinator if it is this node's term; without connections for it, another launcher runs it."""
        if opening.term.node == node:
            try:
                links = self._links = self._connect_twice()
            except LOST:
                DecisionLog(self._keys, opening.term).resign(store)
                raise
            self._mailbox.post(lambda: self._lead(opening, links))
        self.term = opening.term

    def _connect_twice(self) -> tuple[Link, Link]:
        first = self._connect()
        try:
            return first, self._connect()
        except LOST:
            first.cut()
            raise

    def _lead(self, opening: Opening, links: tuple[Link, Link]) -> None:
        """Run the coordinator."""
        failpoint.hit("coordinator-lead", -1)
        self.stop()
        if self._links is links:
            self._links = None
        self._host = CoordinatorHost(
            self._rules, opening, self._keys, link=links[0], inbox_link=links[1], mailbox=self._mailbox,
            settings=self._settings,
            control=self._control.own_endpoint, listener=self._listener, evidence_received=self._evidence_received,
            replaced=self._replaced, failed=self._failed,
        )  # fmt: skip
        self._host.start()

    def _replaced(self) -> None:
        self.stop()
        self._host = None
