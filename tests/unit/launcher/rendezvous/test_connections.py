"""The connections of launchers to that of the coordinator, over real sockets: what closes them, and what does not."""

from __future__ import annotations

import errno
import math
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous import connections
from nvrx_launcher.rendezvous.connection_watch import ConnectionWatch
from nvrx_launcher.rendezvous.connections import LONGEST, CoordinatorConnection, NodeListener

from nvrx_core.parsing import endpoint_text, parse_endpoint
from nvrx_core.store.endpoint import listener_at


class Watch(ConnectionWatch):
    """Records what it is told."""

    def __init__(self) -> None:
        super().__init__(1.0, 1.5)
        self.heard = list[tuple[str, int]]()

    def connected(self, node: int) -> None:
        super().connected(node)
        self.heard.append(("connected", node))

    def closed(self, node: int) -> None:
        super().closed(node)
        self.heard.append(("closed", node))


class Ends:
    """Both ends, in one event loop."""

    def __init__(self, address: str) -> None:
        self.loop, self.watch = EventLoop(), Watch()
        self.listener = NodeListener(self.loop, "job", address)
        self.node = CoordinatorConnection(self.loop, "job")

    def turn(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10.0
        while not until():
            now = self.loop.turn(min(deadline, self.node.deadline, self.listener.deadline))
            self.node.tick(now=now)
            self.listener.tick(now=now)
            assert now < deadline

    def heard(self, count: int) -> list[tuple[str, int]]:
        self.turn(lambda: len(self.watch.heard) >= count)
        return self.watch.heard

    def close(self) -> None:
        self.node.close()
        self.listener.close()
        self.loop.close()


@pytest.fixture(params=["127.0.0.1", "::1"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    ends = Ends(request.param)
    yield ends
    ends.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_launcher_that_ends_is_heard_of(ends: Ends) -> None:
    endpoint = ends.listener.endpoint()
    assert ends.listener.endpoint() == endpoint
    ends.listener.serve(ends.watch)
    ends.node.hold(1, endpoint, 3)
    assert ends.heard(1) == [("connected", 3)]
    ends.node.close()
    assert ends.heard(2)[1:] == [("closed", 3)]


def test_a_node_that_joins_again_connects_under_its_new_number(ends: Ends) -> None:
    ends.listener.endpoint()
    ends.listener.serve(ends.watch)
    for node in (3, 3, 4):
        ends.node.hold(1, ends.listener.endpoint(), node)
        ends.heard(1)
    assert sorted(ends.heard(3)) == [("closed", 3), ("connected", 3), ("connected", 4)]


def test_a_connection_that_is_closed_on_its_way_is_made_again(ends: Ends) -> None:
    ends.node.hold(1, ends.listener.endpoint(), 3)
    ends.listener.serve(ends.watch)
    ends.heard(1)
    (channel,) = ends.listener._nodes
    ends.listener._end(channel)
    assert ends.heard(3) == [("connected", 3), ("closed", 3), ("connected", 3)]
    assert ends.node.closed[1] == math.inf


def test_the_end_of_the_coordinators_launcher_shows_until_another_one_runs_it(ends: Ends) -> None:
    ends.node.hold(1, ends.listener.endpoint(), 3)
    ends.listener.serve(ends.watch)
    ends.heard(1)
    assert ends.listener._listener is not None
    ends.loop.forget(ends.listener._listener.fileno())
    ends.listener._listener.close()
    (channel,) = ends.listener._nodes
    ends.listener._end(channel)
    ends.turn(lambda: ends.node.closed[1] < math.inf)
    since = ends.node.closed[1]
    ends.turn(lambda: ends.node._failures > 2)  # it has tried several times
    assert ends.node.closed[1] == since
    ends.node.hold(2, "", 3)
    assert (ends.node.closed[1], ends.node.deadline) == (math.inf, math.inf)
    ends.listener._listener = None


def test_a_coordinator_that_leaves_in_order_says_so(ends: Ends) -> None:
    ends.node.hold(1, ends.listener.endpoint(), 3)
    ends.listener.serve(ends.watch)
    ends.heard(1)
    ends.listener.stop()
    ends.turn(lambda: ends.node._channel is None)
    assert (ends.node.closed[1], ends.node.deadline) == (math.inf, math.inf)
    assert ends.watch.heard == [("connected", 3)]


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n", b'{"job": "another", "node": 3}\n', b'{"job": "job", "node": -1}\n',
        b"x" * (LONGEST + 1), b'{"job": "job", "node": 3}\n{"job": "job", "node": 4}\n',
    ],
)  # fmt: skip
def test_what_is_no_launcher_of_the_job_is_not_served(ends: Ends, said: bytes) -> None:
    endpoint = ends.listener.endpoint()
    ends.listener.serve(ends.watch)
    with socket.create_connection(parse_endpoint(endpoint), timeout=5.0) as stranger:
        stranger.sendall(said)
        ends.turn(lambda: bool(ends.listener._pending))
        ends.turn(lambda: not ends.listener._pending and not ends.listener._nodes)
    assert ("connected", 4) not in ends.watch.heard


def test_what_listens_where_the_coordinator_was_is_left_alone(ends: Ends) -> None:
    """Another program, on the same port; it may be a service that speaks first."""
    address = ends.listener._address
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as other:
        ends.node.hold(1, endpoint_text(address, other.getsockname()[1]), 3)
        connection, _ = other.accept()
        with connection:
            connection.sendall(b"220 mail\r\n")
            ends.turn(lambda: ends.node._channel is None)
            assert connection.recv(1) == b""
    assert ends.node.closed[1] == math.inf


def test_a_launcher_that_gets_no_socket_tries_again(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = ends.listener.endpoint()
    ends.listener.serve(ends.watch)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(connections.socket, "socket", fail)
        ends.node.hold(1, endpoint, 3)
        assert time.monotonic() < ends.node.deadline < math.inf
    assert ends.heard(1) == [("connected", 3)]


class Failing:
    """A listener whose first calls of accept(2) fail."""

    def __init__(self, listener: socket.socket, code: int, times: int) -> None:
        self._listener, self._code, self.times = listener, code, times

    def accept(self) -> object:
        if self.times:
            self.times -= 1
            raise OSError(self._code, os.strerror(self._code))
        return self._listener.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOBUFS, errno.EPROTO, errno.EHOSTUNREACH])
def test_an_error_of_accepting_is_no_end_of_it(
    ends: Ends, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "ACCEPTS_AGAIN", 0.02)
    endpoint = ends.listener.endpoint()
    assert ends.listener._listener is not None
    ends.listener._listener = Failing(ends.listener._listener, code, 3)  # type: ignore[assignment]
    ends.listener.serve(ends.watch)
    ends.node.hold(1, endpoint, 3)
    assert ends.heard(1) == [("connected", 3)]
    assert len(caplog.records) == (code in (errno.EMFILE, errno.ENOBUFS))


def test_what_does_not_greet_is_closed_at_both_ends(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GREETING_TIMEOUT", 0.1)
    endpoint = ends.listener.endpoint()
    ends.listener.serve(ends.watch)
    with socket.create_connection(parse_endpoint(endpoint), timeout=5.0) as stranger:
        ends.turn(lambda: bool(ends.listener._pending))
        ends.turn(lambda: not ends.listener._pending)
        assert stranger.recv(4096).startswith(b"nvrx-coordinator")
        assert stranger.recv(1) == b""
    with listener_at(ends.listener._address, 0) as silent:
        ends.node.hold(2, endpoint_text(*silent.getsockname()[:2]), 3)
        assert ends.node._channel is not None
        ends.turn(lambda: ends.node._channel is None)
    assert ends.node.closed[1] == math.inf
    assert ends.watch.heard == []


def test_strangers_are_bounded_and_make_room_for_launchers(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GREETING_TIMEOUT", 0.2)
    monkeypatch.setattr(connections, "ACCEPTS_AGAIN", 0.02)
    monkeypatch.setattr(connections, "MAX_PENDING", 2)
    endpoint = ends.listener.endpoint()
    ends.listener.serve(ends.watch)
    with ExitStack() as strangers:
        for _ in range(4):
            strangers.enter_context(socket.create_connection(parse_endpoint(endpoint), timeout=5.0))
        ends.turn(lambda: ends.listener._accepts_at < math.inf)
        assert len(ends.listener._pending) == 2
        ends.node.hold(1, endpoint, 3)
        assert ends.heard(1) == [("connected", 3)]


def test_an_address_of_another_machine_is_no_endpoint() -> None:
    loop = EventLoop()
    assert NodeListener(loop, "job", "").endpoint() == ""
    listener = NodeListener(loop, "job", "192.0.2.1")
    assert listener.endpoint() == ""
    listener.serve(Watch())
    listener.close()
    loop.close()
