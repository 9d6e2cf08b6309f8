"""What the host of a coordinator writes to the store, and what it leaves to a successor."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous import coordinator_host
from nvrx_launcher.rendezvous.coordinator_host import CoordinatorHost
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.messages import Message, MessageKind, NodeDescription
from nvrx_launcher.rendezvous.rules import Rules
from nvrx_launcher.rendezvous.term import Opening, Term
from nvrx_launcher.rendezvous_settings import RendezvousSettings

KEYS = RendezvousKeys("job")
SETTINGS = RendezvousSettings(beat=60.0)


def gone(_: object) -> None:
    raise RuntimeError("nothing is read from the store")


def test_a_coordinator_that_cannot_hand_on_a_decision_leaves_the_next_ones_to_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its launcher ends, and takes a while; meanwhile it finds that its own node is lost."""
    store, loop = dist.HashStore(), EventLoop()
    host = hosted(store)
    host._requests.start()

    def fail(*_: object) -> None:
        raise OSError("no thread")

    monkeypatch.setattr(coordinator_host, "failpoint", SimpleNamespace(hit=fail))
    host._received(1, ready(0))
    with pytest.raises(OSError, match="no thread"):
        host._received(2, ready(1))
    monkeypatch.undo()
    host._lost(0)
    host.close(loop, 0)
    assert Term.from_text(store.get(KEYS.leader)).is_over
    assert not store.check([KEYS.decision(2)])
    loop.close()


def hosted(store: dist.Store) -> CoordinatorHost:
    """Return the host of a job of two nodes, that begins in a store which none of its launchers hosts."""
    connections: list[Callable[..., object]] = [lambda request: request(store), gone]
    return CoordinatorHost(
        Rules(2, 2, 1), Opening(Term(1, 0, is_open=True), 1), iter(connections).__next__,  # type: ignore[arg-type]
        KEYS, mailbox=SimpleNamespace(), settings=SETTINGS, control=str, replaced=lambda: None, failed=print,  # type: ignore[arg-type]
    )  # fmt: skip


def ready(node: int) -> Message:
    return Message(node, MessageKind.READY, -1, "", NodeDescription(f"host{node}", "a", 1, 2))
