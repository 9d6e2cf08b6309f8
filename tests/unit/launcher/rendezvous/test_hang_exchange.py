"""What nodes write of a hang to the store: one message for all that suspect it, and one request for all evidence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.messages import Message, MessageKind
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.store_coordination import StoreCoordination
from nvrx_launcher.rendezvous_settings import RendezvousSettings

KEYS = RendezvousKeys("job")


class Node(StoreCoordination):
    """A node that has joined, and whose requests are made when it is asked to."""

    def __init__(self, store: dist.Store, number: int) -> None:
        def link(request: Any) -> Any:
            return request(store)

        rendezvous: Any = SimpleNamespace(connect=lambda: link, is_hosted=True)
        mailbox: Any = SimpleNamespace(post=lambda call: call())
        events: Any = SimpleNamespace(progress=lambda: (-1, ()), evidence_received=print)
        others: Any = SimpleNamespace(endpoint="")
        super().__init__(
            rendezvous, KEYS, mailbox, events, describe=print, control=others, rules=Rules(2, 2, 0),  # type: ignore[arg-type]
            settings=RendezvousSettings(), listener=others, connection=others,
        )  # fmt: skip
        self._node = number

    def work(self) -> None:
        """Make all requests."""
        self._requests.finish(10.0)


@pytest.fixture
def store() -> dist.Store:
    found = dist.HashStore()
    for node in range(3):
        found.set(KEYS.evidence(node), "-")
    return found


def messages(store: dist.Store) -> list[Message]:
    return [Message.from_text(store.get(KEYS.message(1 + n))) for n in range(store.add(KEYS.inbox, 0))]


def nodes(store: dist.Store, count: int = 3) -> list[Node]:
    found = [Node(store, number) for number in range(count)]
    for node in found:
        node._requests.start()
    return found


def test_of_all_nodes_that_suspect_a_hang_one_tells_the_coordinator(store: dist.Store) -> None:
    suspecting = nodes(store)
    for number, node in enumerate(suspecting):
        node.tell(MessageKind.HANG_SUSPECTED, 0, f"0:{number}:1.5")
    for node in suspecting:
        node.work()
    (told,) = messages(store)
    assert told.reason == f"0:{told.node}:1.5"


def test_the_next_hang_is_told_by_whoever_knows_of_the_last_one(store: dist.Store) -> None:
    first, second = nodes(store, 2)
    first.tell(MessageKind.HANG_SUSPECTED, 0, "0:0:1.5")
    first.work()
    for name in ("0:1:1.5", "0:1:7.5"):
        second.tell(MessageKind.HANG_SUSPECTED, 0, name)
    second.work()
    assert [message.reason for message in messages(store)] == ["0:0:1.5", "0:1:7.5"]


def test_a_node_that_has_joined_since_the_last_hang_tells_of_one(store: dist.Store) -> None:
    store.set(KEYS.last_hang, "3:0:1.5")
    (node,) = nodes(store, 1)
    node.tell(MessageKind.HANG_SUSPECTED, 4, "4:0:9.5")
    node.work()
    assert [message.reason for message in messages(store)] == ["4:0:9.5"]


def test_the_last_node_that_has_written_says_so_and_what_all_have_written_is_read(store: dist.Store) -> None:
    found = list[list[bytes]]()
    for number, node in enumerate(nodes(store)):
        node.gather_evidence([0, 1, 2], list, found.append)
        node.share_evidence(4, "4:0:9.5", f"4:0:9.5 of {number}", 3)
        node.work()
        assert [(each.kind, each.cycle, each.reason) for each in messages(store)] == (
            [] if number < 2 else [(MessageKind.HANG_EVIDENCE, 4, "4:0:9.5")]
        )
    assert found[2] == [b"4:0:9.5 of 0", b"4:0:9.5 of 1", b"-"]


def test_without_a_value_of_all_nodes_nothing_is_read(store: dist.Store) -> None:
    found = list[list[bytes]]()
    (node,) = nodes(store, 1)
    node.gather_evidence([0, 7], list, found.append)
    node.work()
    assert found == [[]]


def test_a_node_that_joins_has_a_value(store: dist.Store) -> None:
    (node,) = nodes(store, 1)
    node._events = SimpleNamespace(joined=print)  # type: ignore[assignment]
    store.add(KEYS.nodes, 8)
    node._join_again(store)  # type: ignore[arg-type]
    assert store.get(KEYS.evidence(8)) == b"-"
    node.work()
