"""A launcher that takes over the coordinator connects before its event loop hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from nvrx_launcher.rendezvous.keys import RendezvousKeys
from nvrx_launcher.rendezvous.leadership import Leadership
from nvrx_launcher.rendezvous.parameters import Rules
from nvrx_launcher.rendezvous.term import Term
from nvrx_launcher.rendezvous_settings import RendezvousSettings

from nvrx_core.store.endpoint import StoreConnectionError

KEYS = RendezvousKeys("job")


class Connection:
    """A connection to a store, or to one that is lost."""

    def __init__(self, store: dist.Store | None = None) -> None:
        self._store, self.is_cut = store, False

    def __call__(self, request: Callable[[dist.Store], Any]) -> Any:
        if self._store is None:
            raise OSError("lost")
        return request(self._store)

    def cut(self) -> None:
        self.is_cut = True


class Launcher:
    """Leadership over a store, with a mailbox that is not emptied."""

    def __init__(self, connections: list[Connection | StoreConnectionError]) -> None:
        self.left, self.posted = connections, list[Callable[[], object]]()
        listener: Any = SimpleNamespace(endpoint=str, serve=lambda _: None, stop=str, deadline=0.0)
        mailbox: Any = SimpleNamespace(post=self.posted.append)
        control: Any = SimpleNamespace(own_endpoint=str)
        self.leadership = Leadership(
            Rules(1, 1, 0), self.connect, KEYS, mailbox=mailbox, settings=RendezvousSettings(),
            control=control, hosts_store=True, listener=listener, evidence_received=print, failed=str,
        )  # type: ignore[arg-type]  # fmt: skip

    def connect(self) -> Connection:
        found = self.left.pop(0)
        if isinstance(found, StoreConnectionError):
            raise found
        return found


@pytest.fixture
def store() -> Iterator[dist.Store]:
    store = dist.HashStore()
    store.add(KEYS.lease(0), 1)
    return store


def test_the_connections_of_a_coordinator_are_opened_in_the_request_thread(store: dist.Store) -> None:
    """To connect may take minutes, in which the event loop would stand still."""
    ours = [Connection(store), Connection()]
    launcher = Launcher([*ours])
    assert launcher.leadership.enter(store, 0).node == 0  # type: ignore[arg-type]
    assert launcher.left == []
    (lead,) = launcher.posted
    lead()
    launcher.leadership.stop()
    launcher.leadership.release()
    assert [each.is_cut for each in ours] == [False, True]


def test_connections_of_which_the_event_loop_never_hears_are_closed(store: dist.Store) -> None:
    ours = [Connection(store), Connection(store)]
    launcher = Launcher([*ours])
    launcher.leadership.enter(store, 0)  # type: ignore[arg-type]
    launcher.leadership.release()
    assert [each.is_cut for each in ours] == [True, True]


def test_a_launcher_that_cannot_connect_leaves_the_term_to_another_one(store: dist.Store) -> None:
    first = Connection(store)
    launcher = Launcher([first, StoreConnectionError("nobody listens")])
    with pytest.raises(StoreConnectionError, match="nobody listens"):
        launcher.leadership.enter(store, 0)  # type: ignore[arg-type]
    assert launcher.posted == []
    assert first.is_cut
    assert Term.from_text(store.get(KEYS.leader)).is_over
