"""Which launcher runs the coordinator, what it begins with, and that its predecessor can decide no more."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from nvrx_launcher.rendezvous import election
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.coordinator_state import CoordinatorState
from nvrx_launcher.rendezvous.election import Election
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.term import Checkpoint, Entry, Opening, Term
from nvrx_launcher.rendezvous_settings import RendezvousSettings

from nvrx_core.errors import ConfigurationError
from nvrx_core.store.endpoint import StoreConnectionError, StoreSilentError

KEYS = RendezvousKeys("job")
SETTINGS = RendezvousSettings(keep_alive_interval=0.05, keep_alive_max_attempt=2)


@pytest.fixture
def store():
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=5))
    for node in range(3):
        store.set(KEYS.lease(node), "1")
    return store


class Moving:
    """A store in which the lease of node 0 moves whenever it is looked at."""

    def __init__(self, store):
        self.store = store

    def multi_get(self, keys):
        if KEYS.lease(0) in keys:
            self.store.add(KEYS.lease(0), 1)
        return self.store.multi_get(keys)

    def __getattr__(self, name):
        return getattr(self.store, name)


def candidate(hosts_store=False):
    return Election(KEYS, SETTINGS, hosts_store=hosts_store)


def known():
    """What a coordinator knows that runs a cycle of two nodes."""
    made = Coordinator(Rules(2, 2, 0))
    made.start(now=0.0)
    for node in range(2):
        description = NodeDescription("host", "a", 1, 2)
        made.received(Message(node, MessageKind.READY, -1, "", description), now=0.0)
    return Checkpoint(made.state(now=1.0), 2)


def decide(store, term, number, *decisions, checkpoint=None):
    """Write a decision as the host of a coordinator does; returns whether it was the first at its number."""
    entry = Entry(term, decisions).to_text()
    store.set(KEYS.state(number, term), (checkpoint or known()).to_text())
    return store.compare_set(KEYS.decision(number), "", entry).decode() == entry


def test_the_first_one_that_comes_runs_the_coordinator(store):
    opening = candidate(hosts_store=True).enter(store, 0)
    assert opening == Opening(Term(1, 0, hosts_store=True, is_open=True), 1)
    assert candidate().enter(store, 1) == Opening(opening.term), "its store is there, so it is"


def test_a_store_that_none_of_the_launchers_hosts_has_a_coordinator_all_the_same(store):
    assert candidate().enter(store, 0).term == Term(1, 0, is_open=True)


def test_a_launcher_whose_lease_moves_stays(store):
    candidate().enter(store, 0)
    late = candidate()
    opening = late.enter(Moving(store), 1)
    assert opening.term.node == 0
    for _ in range(4):
        assert late.observe(Moving(store), 1, opening.term) == opening


def test_one_that_is_lost_is_replaced_and_can_decide_no_more(store):
    candidate().enter(store, 0)
    assert decide(store, 1, 2, Decision(DecisionKind.RUN, 0, "2 nodes"))
    opening = candidate().enter(store, 1)
    assert (opening.term.number, opening.term.node, opening.decided, opening.predecessor) == (2, 1, 3, 0)
    assert opening.checkpoint == known()
    assert not decide(store, 1, 3, Decision(DecisionKind.STOP, 0, "it does not know that it was replaced"))


def test_a_member_finds_that_it_is_lost_and_takes_over(store):
    first = candidate().enter(store, 0)
    member, opening = candidate(), first
    while opening.term.node == 0:
        opening = member.observe(store, 1, first.term)
    assert (opening.term.number, opening.checkpoint) == (2, None)
    assert candidate().observe(store, 1, opening.term) == Opening(opening.term)


def test_one_whose_connection_is_closed_is_replaced_long_before_its_lease_expires(store):
    member = Election(
        KEYS, RendezvousSettings(keep_alive_interval=0.01, keep_alive_max_attempt=1_000_000), hosts_store=False
    )
    first = candidate().enter(store, 0)
    opening = member.observe(store, 1, first.term)
    while opening.term.node == 0:
        assert member.observe(store, 1, first.term) == opening
        assert member.observe(store, 1, first.term, closed=7) == opening  # that was another term's
        opening = member.observe(store, 1, first.term, closed=first.term.number)
    assert (opening.term.number, opening.predecessor) == (2, 0)
    assert opening.reason == "the connection of node 0 was closed, and it has not moved its lease for 0.015 s since"


def test_one_that_renews_its_lease_is_not_replaced_for_a_closed_connection(store):
    member = candidate()
    first = candidate().enter(store, 0)
    for _ in range(4):
        assert member.observe(Moving(store), 1, first.term, closed=first.term.number) == Opening(first.term)


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(election, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def member_of(store):
    """A launcher with a beat of a second, in the job of node 0, which has renewed its lease just now."""
    term = Term(1, 0, is_open=True)
    store.set(KEYS.leader, term.to_text())
    store.set(KEYS.instance, "i")
    store.set(KEYS.decision(1), Entry(1, ()).to_text())
    store.set(KEYS.state(1, 1), "")
    member = Election(KEYS, RendezvousSettings(), hosts_store=False)
    assert member.observe(store, 1, term) == Opening(term)
    return member, term


def test_a_close_shortens_the_lease_only_until_it_moves(store, clock):
    """The launcher of the coordinator lives, and connections to it remain impossible."""
    member, term = member_of(store)
    clock.now = 1.0
    assert member.observe(store, 1, term, closed=1) == Opening(term)
    store.add(KEYS.lease(0), 1)
    for clock.now in (2.0, 3.0, 4.0, 5.0, 6.0):
        assert member.observe(store, 1, term, closed=1) == Opening(term)
    clock.now = 7.0
    opening = member.observe(store, 1, term, closed=1)
    assert (opening.term.node, opening.reason) == (1, "node 0 has not moved its lease for 5 s")


def test_a_launcher_that_stood_still_does_not_take_the_others_for_lost(store, clock):
    """As in a job that is suspended as a whole: its own silence is no sign of theirs."""
    member, term = member_of(store)
    clock.now = 60.0
    assert member.observe(store, 1, term) == Opening(term)
    for clock.now in (61.0, 62.0, 63.0):
        assert member.observe(store, 1, term) == Opening(term)
    clock.now = 65.0
    assert member.observe(store, 1, term).term.node == 1


def test_a_launcher_that_stands_still_in_a_request_does_not_take_the_others_for_lost(store, clock):
    class Stopping:
        """A connection on which the launcher is stopped for a minute."""

        def __init__(self):
            self.store = store

        def multi_get(self, keys):
            clock.now += 60.0
            return store.multi_get(keys)

        def __getattr__(self, name):
            return getattr(store, name)

    member, term = member_of(store)
    clock.now = 1.0
    assert member.observe(Stopping(), 1, term) == Opening(term)
    assert member.observe(store, 1, term) == Opening(term)


def test_a_launcher_that_comes_late_reads_the_end_of_a_job_whose_leases_are_deleted(store):
    """It learns of the end by the decisions, which remain; nothing of the job is missing."""
    first = candidate().enter(store, 0)
    member = candidate()
    member.enter(Moving(store), 1)
    store.set(KEYS.leader, replace(first.term, is_over=True).to_text())
    decide(store, 1, 2, Decision(DecisionKind.END, 0, "done"))
    for key in (KEYS.lease(0), KEYS.lease(1), KEYS.state(2, 1)):
        store.delete_key(key)
    assert member.observe(store, 1, first.term).term.since == 3


def test_a_term_of_a_node_without_a_lease_is_replaced_in_time(store, clock):
    member, term = member_of(store)
    other = Term(2, 2, is_open=True)
    store.set(KEYS.leader, other.to_text())
    store.delete_key(KEYS.lease(2))
    for clock.now in (1.0, 2.0, 3.0, 4.0, 5.0):
        assert member.observe(store, 1, term) == Opening(other)
    clock.now = 6.0
    assert member.observe(store, 1, term).term.node == 1


@pytest.mark.parametrize("last", [Entry(1, (Decision(DecisionKind.LOST, 0, "no lease", node=2),)), Entry(2, ())])
def test_a_job_has_ended_whatever_follows_its_end(store, last):
    """A loss that was noticed afterwards, or the fence of a claim that was given up; their states may be gone."""
    candidate().enter(store, 0)
    decide(store, 1, 2, Decision(DecisionKind.RUN, 0, "1 node"))
    decide(store, 1, 3, Decision(DecisionKind.END, 0, "done"))
    store.set(KEYS.decision(4), last.to_text())
    opening = candidate().enter(store, 1)
    assert (opening.term.since, opening.decided, opening.checkpoint) == (5, 5, None)


def test_a_loss_and_a_fence_alone_end_no_job(store):
    candidate().enter(store, 0)
    decide(store, 1, 2, Decision(DecisionKind.RUN, 0, "2 nodes"))
    decide(store, 1, 3, Decision(DecisionKind.LOST, 0, "no lease", node=2))
    opening = candidate().enter(store, 1)
    assert (opening.term.since, opening.decided, opening.checkpoint) == (1, 4, known())


def test_one_that_has_left_is_replaced_at_once(store):
    first = candidate().enter(store, 0)
    store.set(KEYS.leader, Term(1, 0, is_open=True, is_over=True).to_text())
    assert candidate().observe(store, 1, first.term).term.node == 1
    store.set(KEYS.leader, Term(5, 0, is_open=True, is_over=True).to_text())
    assert candidate().enter(store, 2).term.number == 6


def test_a_job_that_has_ended_begins_anew(store):
    candidate().enter(store, 0)
    decide(store, 1, 2, Decision(DecisionKind.END, 0, "done"))
    store.add(KEYS.inbox, 7)
    opening = candidate().enter(store, 1)
    assert (opening.term.since, opening.term.inbox, opening.checkpoint) == (3, 7, None)
    store.set(KEYS.leader, Term(2, 1, since=3, inbox=7, is_open=True, is_over=True).to_text())
    assert candidate().enter(store, 2).term.inbox == 7


def test_a_claim_whose_answer_was_lost_is_made_again(store):
    """The node finds its own term, and has not begun it."""
    store.set(KEYS.leader, Term(4, 1).to_text())
    assert candidate().enter(store, 1).term == Term(5, 1, is_open=True)
    store.set(KEYS.leader, Term(6, 1, is_open=True).to_text())
    assert candidate().observe(store, 1, Term(5, 1)).term.number == 7


class Replacing:
    """A store in which node 2 replaces whoever has just written a decision."""

    def __init__(self, store):
        self.store = store

    def compare_set(self, key, expected, desired):
        found = self.store.compare_set(key, expected, desired)
        if key.startswith(KEYS.decision(0)[:-1]):
            self.store.set(KEYS.leader, Term(9, 2, is_open=True).to_text())
        return found

    def __getattr__(self, name):
        return getattr(self.store, name)


def test_a_claim_that_stands_still_between_its_writes_does_not_undo_a_later_one(store):
    first = candidate().enter(store, 0)
    member, term = candidate(), first.term
    member.enter(Moving(store), 1)
    while term.number == 1:
        term = member.observe(Replacing(store), 1, first.term).term
        if Term.from_text(store.get(KEYS.leader)).number == 9:
            break
    assert Term.from_text(store.get(KEYS.leader)) == Term(9, 2, is_open=True)
    assert term.node == 0, "it has not got the term"


def test_a_claim_gives_up_when_a_later_term_has_decided(store):
    store.set(KEYS.decision(1), Entry(7, ()).to_text())
    assert candidate()._claim(store, "", 1) is None
    assert not store.check([KEYS.decision(2)])


def test_a_state_that_was_deleted_meanwhile_is_sought_at_the_next_decision(store):
    class Deciding:
        """A store whose coordinator decides once more when its last state is about to be read."""

        def get(self, key):
            if key == KEYS.state(2, 1):
                store.delete_key(key)
                decide(store, 1, 3, Decision(DecisionKind.STOP, 0, "x"))
                raise dist.DistStoreError
            return store.get(key)

        def __getattr__(self, name):
            return getattr(store, name)

    candidate().enter(store, 0)
    decide(store, 1, 2, Decision(DecisionKind.RUN, 0, "2 nodes"))
    assert candidate()._claim(Deciding(), store.get(KEYS.leader).decode(), 1).decided == 4


@pytest.mark.parametrize("lost", ["deleted", "another"])
def test_a_launcher_that_finds_the_keys_of_its_job_gone_says_why(store, lost):
    first = candidate().enter(store, 0)
    member = candidate()
    member.enter(Moving(store), 1)
    if lost == "deleted":
        store.delete_key(KEYS.leader)
    else:
        store.set(KEYS.instance, "of another job")
    with pytest.raises(StoreConnectionError, match=r"the keys of this job are gone: .* without its data, or no"):
        member.observe(store, 1, first.term)


def test_no_launcher_takes_over_a_coordinator_lost_with_its_store(store):
    term = Term(1, 0, hosts_store=True, is_open=True)
    assert candidate().observe(store, 1, term) == Opening(term)


def test_what_is_written_can_be_read():
    entry = Entry(3, (Decision(DecisionKind.LOST, 1, "x", node=2), Decision(DecisionKind.END, 1, "y", code=1)))
    assert Entry.from_text(entry.to_text()) == entry
    assert Checkpoint.from_text(known().to_text()) == known()
    term = Term(1, 2, 3, 4, is_open=True, endpoint="[fd00::2]:4321")
    assert Term.from_text(term.to_text()) == term


@pytest.mark.parametrize("kind", [Term, Entry, Checkpoint, CoordinatorState])
def test_a_malformed_value_is_refused(kind):
    with pytest.raises(ValueError):  # noqa: PT011
        kind.from_json({}) if kind is CoordinatorState else kind.from_text("{}")


def test_a_term_with_a_malformed_endpoint_is_refused():
    with pytest.raises(ValueError, match="not host:port"):
        Term.from_text(Term(1, 0, endpoint="nowhere").to_text())


def test_without_the_extra_the_error_names_it(monkeypatch):
    from nvrx_launcher.rendezvous.etcd_rendezvous import EtcdRendezvous

    monkeypatch.setitem(sys.modules, "etcd3gw", None)
    monkeypatch.delitem(sys.modules, "nvrx_core.store.etcd_client", raising=False)
    with pytest.raises(ConfigurationError, match=r"etcd-v2 needs etcd3gw, which is not .*; pip install 'nvrx\[etcd\]'"):
        EtcdRendezvous("", "job", SETTINGS)


@pytest.mark.parametrize("text", ["http://", "a:b", "a:1,b/c"])
def test_an_endpoint_of_etcd_that_is_none_is_named(text):
    from nvrx_launcher.rendezvous.etcd_rendezvous import EtcdRendezvous

    with pytest.raises(ConfigurationError, match=r"--rdzv-endpoint: endpoints: .* is not host, host:port"):
        EtcdRendezvous(text, "job", SETTINGS)


@pytest.mark.parametrize(("join_timeout", "is_reached"), [(60.0, True), (0.0, False)])
def test_an_etcd_that_accepts_and_is_silent_is_waited_for_until_the_join_timeout(monkeypatch, join_timeout, is_reached):
    from nvrx_launcher.rendezvous.etcd_rendezvous import EtcdRendezvous

    attempts = list[float]()

    def open_store(within):
        attempts.append(within)
        if len(attempts) < 3:
            raise StoreSilentError("no answer from etcd within 7 s")
        return "a store"

    found, deadline = EtcdRendezvous("", "job", SETTINGS), time.monotonic() + join_timeout
    monkeypatch.setattr(found, "_open", open_store)
    if is_reached:
        assert found._connect_again(deadline, threading.Event()) == "a store"
        assert attempts == sorted(attempts, reverse=True)
    else:
        with pytest.raises(StoreSilentError):
            found._connect_again(deadline, threading.Event())


def test_etcd_has_several_endpoints():
    from nvrx_launcher.rendezvous.etcd_rendezvous import EtcdRendezvous

    assert EtcdRendezvous("a:1, b:2", "job", SETTINGS).endpoint == ("a", 1)
    assert EtcdRendezvous("", "job", SETTINGS).endpoint == ("127.0.0.1", 2379)
