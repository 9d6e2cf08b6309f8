"""Leader election: one launcher runs the coordinator; when it is lost, another one takes over.

All operations run in the request thread, and may be repeated when a connection breaks.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

import torch.distributed as dist

from nvrx_core.store.connection import StoreConnection
from nvrx_core.store.endpoint import StoreConnectionError
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.lease import ObservedLeases, closed_and_not_moved, not_moved
from nvrx_launcher.rendezvous.messages import DecisionKind
from nvrx_launcher.rendezvous.progress import existing
from nvrx_launcher.rendezvous.store_threads import KEYS_GONE
from nvrx_launcher.rendezvous.term import Checkpoint, Entry, Opening, Term
from nvrx_launcher.rendezvous_settings import RendezvousSettings

__all__ = ["Election"]

log = logging.getLogger("nvrx_launcher")
PAUSE: Final = 0.1
HOST_FIRST: Final = timedelta(seconds=1)
"""How long the others leave it to the launcher that hosts the store to run the coordinator as well."""
WITHIN_A_JOB: Final = frozenset({DecisionKind.RUN, DecisionKind.STOP, DecisionKind.END})
"""The decisions that tell whether a job has ended: a fence, a loss and a note may be written before and after."""


class Election:
    """A launcher's participation in the election.

    Args:
        keys: the job's.
        settings: the settings of the rendezvous.
        hosts_store: this launcher hosts the store.
        endpoint: returns where other launchers connect to this one, if it runs the coordinator.
    """

    def __init__(
        self,
        keys: RendezvousKeys,
        settings: RendezvousSettings,
        *,
        hosts_store: bool,
        endpoint: Callable[[], str] = str,
    ) -> None:
        self._keys, self._settings, self._hosts_store, self._endpoint = keys, settings, hosts_store, endpoint
        self._leases = ObservedLeases(settings.keep_alive_interval, settings.lease_timeout)
        self._closed = 0, ""
        self._pause, self._instance = threading.Event(), ""

    def enter(self, store: StoreConnection, node: int) -> Opening:
        """Return the current term, or a new one of this node, once it is known whether a coordinator runs."""
        if not self._hosts_store:
            self._leave_it_to_the_host(store)
        self._instance = store.compare_set(self._keys.instance, "", uuid.uuid4().hex).decode()
        while True:
            found = existing(store, [self._keys.leader])
            known = "" if found is None else found[0].decode()
            term = Term.from_text(known) if known else None
            if term is None or term.node == node or not self._lives(store, term):
                why = "" if term is None else self._expired(term)
                if (opening := self._claim(store, known, node, why)) is not None:
                    return opening
            elif term.is_open:
                return Opening(term)
            self._pause.wait(PAUSE)

    def observe(self, store: StoreConnection, node: int, term: Term, *, closed: int = 0) -> Opening:
        """Return the current term, or a new one of this node if the coordinator is lost; called at each beat.

        Args:
            store: the store.
            node: this node.
            term: the last known term.
            closed: the term whose launcher has closed the connection, and there has been none for
                `closed_timeout` since; 0 for none.

        Raises:
            StoreConnectionError: when the keys of the job are gone.
        """
        if term.hosts_store:
            return Opening(term)
        self._leases.begin(now=time.monotonic())
        known, lease = self._still_known(store, term)
        present = Term.from_text(known)
        if present.node == node and present.number == term.number:
            return Opening(present)
        if present.is_over or present.node == node:
            return self._claim(store, known, node, self._expired(present)) or Opening(present)
        if present.node != term.node:
            lease = self._lease(store, present.node)
        self._leases.observe({present.node: lease}, now=time.monotonic())
        lost = self._why_lost(present, lease, closed)
        return (self._claim(store, known, node, lost) if lost else None) or Opening(present)

    def _why_lost(self, term: Term, lease: str, closed: int) -> str:
        """Return why the launcher of a term counts as lost; "" while it does not.

        A close shortens its lease, until it has moved since.
        """
        if closed != term.number:
            self._closed = 0, ""
        elif self._closed[0] != closed:
            self._closed = closed, lease
        now, within = time.monotonic(), self._settings.closed_timeout
        if self._leases.stale(now=now):
            return self._expired(term)
        if self._closed == (term.number, lease) and self._leases.stale(now=now, share=within / self._leases.timeout):
            return closed_and_not_moved(term.node, within)
        return ""

    def _expired(self, term: Term) -> str:
        if term.is_over:
            return f"the launcher of node {term.node} has left"
        return not_moved(term.node, self._leases.timeout)

    def _still_known(self, store: StoreConnection, term: Term) -> tuple[str, str]:
        """Return the current term, in the store in which this launcher has found one, and the lease of a known term.

        After the end of a job its leases are deleted.
        """
        keys = [self._keys.instance, self._keys.leader]
        found = existing(store, [*keys, self._keys.lease(term.node)]) or existing(store, keys)
        if found is not None:
            instance, known, *leases = (value.decode() for value in found)
            if self._instance in ("", instance):
                return known, "".join(leases)
        raise StoreConnectionError(KEYS_GONE)

    def _lease(self, store: StoreConnection, node: int) -> str:
        found = existing(store, [self._keys.lease(node)])
        return "" if found is None else found[0].decode()

    def _leave_it_to_the_host(self, store: StoreConnection) -> None:
        try:
            store.wait([self._keys.leader], HOST_FIRST)
        except dist.DistStoreError:
            log.info("the rendezvous store is hosted by none of the job's launchers: one of them runs the coordinator")

    def _lives(self, store: StoreConnection, term: Term) -> bool:
        """Return whether the launcher of a term runs; observe its lease until it is renewed or expires."""
        if term.hosts_store or term.is_over:
            return term.hosts_store
        leases, first = ObservedLeases(self._settings.keep_alive_interval, self._settings.lease_timeout), None
        while True:
            leases.begin(now=time.monotonic())
            lease = self._lease(store, term.node)
            leases.observe({term.node: lease}, now=time.monotonic())
            first = lease if first is None else first
            if lease != first:
                return True
            if leases.stale(now=time.monotonic()):
                return False
            self._pause.wait(PAUSE)

    def _claim(self, store: StoreConnection, known: str, node: int, why: str = "") -> Opening | None:
        """Start a term that replaces a known one, for a reason; return None if another node was faster."""
        last = Term.from_text(known) if known else Term(0, -1)
        mine = replace(last, number=last.number + 1, node=node, hosts_store=self._hosts_store, is_open=False)
        mine = replace(mine, is_over=False, endpoint=self._endpoint())
        if store.compare_set(self._keys.leader, known, mine.to_text()).decode() != mine.to_text():
            return None
        opening = self._opening(store, mine, last.node if last.node != node else -1)
        if opening is None:
            return None
        opening = replace(opening, reason=why)
        opened = opening.term.to_text()
        if store.compare_set(self._keys.leader, mine.to_text(), opened).decode() != opened:
            return None
        log.info("this launcher runs the coordinator, in term %d", mine.number)
        return opening

    def _opening(self, store: StoreConnection, mine: Term, predecessor: int) -> Opening | None:
        """Return the state that the term starts from, and write the next number, which fences the predecessor.

        Return None if the last decision is that of a later term: this launcher stood still, and was replaced.
        """
        missing = -1
        while True:
            try:
                found = self._after(store, replace(mine, is_open=True), predecessor)
            except dist.DistStoreError:  # the last coordinator has decided once more, and deleted the state before
                if missing == (missing := self._last(store, mine.since)):
                    raise
                continue
            if found is None:
                return None
            opening = replace(found, decided=found.decided + 1)
            entry = Entry(mine.number, ()).to_text()
            text = "" if found.checkpoint is None else found.checkpoint.to_text()
            store.set(self._keys.state(opening.decided, mine.number), text)
            if store.compare_set(self._keys.decision(opening.decided), "", entry).decode() == entry:
                return opening

    def _after(self, store: StoreConnection, mine: Term, predecessor: int) -> Opening | None:
        """Return the last decision and its state, unless the job has ended by it; None if a later term has made it."""
        decided = self._last(store, mine.since)
        if decided < mine.since:
            return Opening(mine, decided, None, predecessor)
        entry = Entry.from_text(store.get(self._keys.decision(decided)))
        if entry.term > mine.number:
            return None
        if self._has_ended(store, mine.since, decided, entry):
            anew = replace(mine, since=decided + 1, inbox=store.add(self._keys.inbox, 0))
            return Opening(anew, decided)
        state = store.get(self._keys.state(decided, entry.term))
        return Opening(mine, decided, Checkpoint.from_text(state) if state else None, predecessor)

    def _has_ended(self, store: StoreConnection, since: int, number: int, entry: Entry) -> bool:
        """Return whether the job has ended; the fence of a claim may follow its end, or a loss, and no cycle does."""
        while (kinds := {each.kind for each in entry.decisions}).isdisjoint(WITHIN_A_JOB) and number > since:
            number -= 1
            entry = Entry.from_text(store.get(self._keys.decision(number)))
        return DecisionKind.END in kinds

    def _last(self, store: StoreConnection, since: int) -> int:
        number = since
        while store.check([self._keys.decision(number)]):
            number += 1
        return number - 1
