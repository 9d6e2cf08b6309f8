"""What the host of a coordinator writes to the store, and what it leaves to a successor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous import coordinator_host
from nvrx_launcher.rendezvous.coordinator import Coordinator
from nvrx_launcher.rendezvous.coordinator_host import CoordinatorHost, DecisionLog
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.term import Checkpoint, Entry, Opening, Term
from nvrx_launcher.rendezvous_settings import RendezvousSettings

KEYS = RendezvousKeys("job")
SETTINGS = RendezvousSettings(keep_alive_interval=60.0)
TERM = Term(1, 0, is_open=True)
STOP = Entry(1, (Decision(DecisionKind.STOP, 0, "a worker has failed"),))
NOW = Checkpoint(Coordinator(Rules(1, 1, 0)).state(now=0.0), 0)


def gone(_: object) -> None:
    raise RuntimeError("nothing is read from the store")


def test_a_coordinator_that_cannot_hand_on_a_decision_leaves_the_next_ones_to_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its launcher ends, and takes a while; meanwhile it finds that its own node is lost."""
    store, loop = dist.HashStore(), EventLoop()
    host = hosted(store)
    store.set(KEYS.leader, TERM.to_text())
    host._requests.start()

    def fail(*_: object) -> None:
        raise OSError("no thread")

    monkeypatch.setattr(coordinator_host, "failpoint", SimpleNamespace(hit=fail))
    host._received(1, ready(0))
    with pytest.raises(OSError, match="no thread"):
        host._received(2, ready(1))
    monkeypatch.undo()
    host._lost(0, "node 0 has not moved its lease for 5 s")
    host.close(loop, 0)
    assert Term.from_text(store.get(KEYS.leader)).is_over
    assert not store.check([KEYS.decision(2)])
    loop.close()


def test_a_coordinator_that_stood_still_does_not_take_its_nodes_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a job that is suspended as a whole."""
    store, posted, clock = dist.HashStore(), list[object](), SimpleNamespace(now=0.0)
    monkeypatch.setattr(coordinator_host, "time", SimpleNamespace(monotonic=lambda: clock.now))
    host = hosted(store, mailbox=SimpleNamespace(post=posted.append), settings=RendezvousSettings())
    host._nodes = frozenset({0})
    store.add(KEYS.lease(0), 1)
    for clock.now in (0.0, 1.0, 61.0, 62.0, 63.0):
        host._watch_leases(store)  # type: ignore[arg-type]
    assert posted == []
    clock.now = 64.0
    host._watch_leases(store)  # type: ignore[arg-type]
    assert len(posted) == 1


def test_what_nodes_say_of_a_hang_is_handed_on_to_all_and_evidence_to_this_launcher() -> None:
    store, evidence = dist.HashStore(), list[tuple[int, str]]()
    host = hosted(store, evidence_received=lambda *given: evidence.append(given))
    host._requests.start()
    host._received(1, Message(1, MessageKind.HANG_SUSPECTED, 0, "name"))
    host._received(2, Message(1, MessageKind.HANG_EVIDENCE, 0, "name"))
    host._received(3, Message(0, MessageKind.HANG_JUDGED, 0, "verdict"))
    host._requests.finish(10.0)
    assert store.check([KEYS.decision(2), KEYS.decision(3)])
    told = [Entry.from_text(store.get(KEYS.decision(number))).decisions for number in (2, 3)]
    assert told == [
        (Decision(DecisionKind.HANG_SUSPECTED, 0, "name", node=1),),
        (Decision(DecisionKind.HANG_JUDGED, 0, "verdict", node=0),),
    ]
    assert evidence == [(0, "name")]
    assert not store.check([KEYS.decision(4)])


def test_a_refused_write_cancels_all_later_ones_of_its_term() -> None:
    """Two decisions are queued when another launcher takes over; the second one's number is free."""
    store, log = dist.HashStore(), DecisionLog(KEYS, TERM)
    assert log.write(store, 1, STOP, NOW)
    store.set(KEYS.decision(2), Entry(2, ()).to_text())
    assert [log.write(store, number, STOP, NOW) for number in (2, 3)] == [False, False]
    assert log.is_fenced
    assert not store.check([KEYS.decision(3)])


def test_a_write_whose_answer_was_lost_is_repeated() -> None:
    store, log = dist.HashStore(), DecisionLog(KEYS, TERM)
    assert [log.write(store, 1, STOP, NOW) for _ in range(2)] == [True, True]


def test_a_coordinator_that_was_replaced_neither_resigns_nor_clears_the_job() -> None:
    store, log, deleted = dist.HashStore(), DecisionLog(KEYS, TERM), list[str]()
    successor = Term(2, 1, is_open=True).to_text()
    store.set(KEYS.leader, successor)
    store.set(KEYS.decision(1), Entry(2, ()).to_text())
    log.write(store, 1, STOP, NOW)
    log.resign(store)
    log.clear(Forgetting(store, deleted), 1)  # type: ignore[arg-type]
    assert (store.get(KEYS.leader).decode(), deleted) == (successor, [])


def test_the_end_of_a_job_stays_for_those_that_have_yet_to_read_it() -> None:
    store, kept = dist.HashStore(), list[str]()
    store.set(KEYS.leader, TERM.to_text())
    DecisionLog(KEYS, TERM).clear(Forgetting(store, kept), 2)  # type: ignore[arg-type]
    assert Term.from_text(store.get(KEYS.leader)).is_over
    assert {KEYS.leader, KEYS.instance, KEYS.decision(1), KEYS.decision(2)} <= set(kept)


class Forgetting:
    """A connection to a store that can delete many keys."""

    def __init__(self, store: dist.Store, kept: list[str]) -> None:
        self.store, self._store, self._kept = self, store, kept

    def forget_except(self, prefix: str, keys: list[str]) -> None:
        assert prefix == ""
        self._kept += keys

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def hosted(
    store: dist.Store, *, mailbox: Any = None, settings: RendezvousSettings = SETTINGS, evidence_received: Any = print
) -> CoordinatorHost:
    """Return the host of a job of two nodes, that begins in a store which none of its launchers hosts."""
    link: Any = lambda request: request(store)  # noqa: E731
    return CoordinatorHost(
        Rules(2, 2, 1), Opening(TERM, 1), KEYS, link=link, inbox_link=gone,  # type: ignore[arg-type]
        mailbox=mailbox or SimpleNamespace(), settings=settings, control=str,
        listener=SimpleNamespace(serve=print, stop=lambda: None), replaced=lambda: None, failed=print,  # type: ignore[arg-type]
        evidence_received=evidence_received,
    )  # fmt: skip


def ready(node: int) -> Message:
    return Message(node, MessageKind.READY, -1, "", NodeDescription(f"host{node}", "a", 1, 2))
