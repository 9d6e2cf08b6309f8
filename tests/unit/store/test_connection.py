"""A connection to the store that breaks while the store lives, and the one that follows."""

import socket
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.store import StoreConnectionError
from nvrx_core.process.sockets import is_whole, shut_down, tcp_sockets
from nvrx_core.store.connection import StoreConnection

SOON = timedelta(seconds=5)


@pytest.fixture
def server():
    """A store's server, and its own client."""
    held = SimpleNamespace(store=dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    yield held
    vars(held).clear()


@pytest.fixture
def connection(server):
    held = StoreConnection(server.store.clone, dist.TCPStore, {})
    yield held
    vars(held).clear()


def end(connection):
    """The client's end of the connection that is open now."""
    port = connection.store.port
    (found,) = [each for each in tcp_sockets() if each.inode in connection.inodes and each.peer_port == port]
    return found


def refuse():
    raise StoreConnectionError("nobody listens")


def broken(connection):
    """Break the connection as a reset does; a look at it finds that out."""
    shut_down(end(connection))
    return connection


def test_what_may_be_asked_twice_is(server, connection):
    server.store.set("there", "1")
    assert broken(connection).check(["there"])
    assert broken(connection).get("there") == b"1"
    assert broken(connection).multi_get(["there"]) == [b"1"]
    assert broken(connection).compare_set("new", "", "x") == b"x"
    broken(connection).wait(["there"], SOON)


def test_what_counts_goes_out_on_a_connection_that_is_whole(server, connection):
    assert broken(connection).add("count", 1) == 1
    broken(connection).set("key", "value")
    assert connection.add("count", 1) == 2
    assert server.store.get("key") == b"value"


def test_what_breaks_while_it_counts_is_a_failure(connection, monkeypatch):
    monkeypatch.setattr("nvrx_core.store.connection.is_whole", lambda found: True)
    with pytest.raises(dist.DistNetworkError):
        broken(connection).add("count", 1)


def test_one_that_has_broken_beside_another_is_asked_first(server, connection):
    other = StoreConnection(server.store.clone, dist.TCPStore, {}, beside=connection)
    before = connection.store
    assert not broken(other).check(["any"])
    shut_down(end(connection))
    assert connection.add("count", 1) == 1
    assert connection.store is not before


def test_one_that_is_closed_stays_closed(connection):
    broken(connection).closed = True
    with pytest.raises(dist.DistNetworkError):
        connection.check(["any"])


def test_one_whose_store_is_gone_stays_broken(server, connection):
    del server.store
    with pytest.raises(dist.DistNetworkError):
        connection.check(["any"])
    with pytest.raises(dist.DistNetworkError):
        connection.add("count", 1)


def test_a_store_without_sockets_is_as_it_is():
    connection = StoreConnection(dist.HashStore, dist.HashStore, {})
    assert connection.add("count", 1) == 1
    assert not connection.check(["any"])
    assert connection.num_keys() == 1


def test_its_client_end_is_kept_alive(connection):
    with socket.fromfd(end(connection).fd, socket.AF_INET, socket.SOCK_STREAM) as found:
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, every, count = (
            found.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
    assert idle + every * count <= 10


class Unsafe(dist.Store):
    """A store in Python that must not be used by two threads at once."""

    def __init__(self):
        super().__init__()
        self.inside, self.met = threading.Lock(), 0

    def set(self, key, value):
        if not self.inside.acquire(blocking=False):
            self.met += 1
            return
        threading.Event().wait(0.01)
        self.inside.release()


def test_a_store_is_asked_by_one_thread_at_a_time():
    held = StoreConnection(Unsafe, Unsafe, {})
    threads = [threading.Thread(target=held.set, args=("key", str(number))) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held.store.met == 0


def test_a_server_that_ends_between_check_and_connection_does_not_block(server, monkeypatch):
    """torch's clone tries again for as long as its original may wait: five minutes."""
    monkeypatch.setattr("nvrx_core.store.connection.await_listener", lambda *_, **__: vars(server).clear())
    connection = StoreConnection(server.store.clone, refuse, {})
    broken(connection)

    def ask():
        with pytest.raises(RuntimeError):
            connection.check(["any"])

    asked = threading.Thread(target=ask, daemon=True)
    asked.start()
    asked.join(30.0)
    assert not asked.is_alive()


def test_another_connection_may_wait_as_long_as_the_first(connection):
    connection.store.set_timeout(SOON)
    assert not broken(connection).check(["any"])
    assert connection.store.timeout == SOON


def test_a_socket_that_another_thread_opens_meanwhile_is_none_of_its_own(server):
    listener = socket.create_server(("127.0.0.1", 0))
    opened = []

    def connect():
        opened.append(socket.create_connection(listener.getsockname()))
        return server.store.clone()

    connection = StoreConnection(connect, dist.TCPStore, {})
    with listener, opened[0]:
        of_other = {each.inode for each in tcp_sockets() if each.peer_port == listener.getsockname()[1]}
        assert of_other
        assert not of_other & connection.inodes
        assert end(connection)
    vars(connection).clear()


class Slow(dist.TCPStore):
    """A store whose `add` begins when the test lets it."""

    def add(self, key, amount):
        self.entered.set()
        assert self.goes_on.wait(5.0)
        return super().add(key, amount)


@pytest.fixture
def slow(server):
    """A connection in which another thread is about to count; that thread, and where its outcome is put."""

    def count():
        try:
            found.outcomes.append(found.connection.add("count", 1))
        except dist.DistNetworkError as error:
            found.outcomes.append(type(error))

    def make():
        return Slow("127.0.0.1", server.store.port, is_master=False)

    connection = StoreConnection(make, dist.TCPStore, {})
    store = connection.store
    store.entered, store.goes_on = threading.Event(), threading.Event()
    found = SimpleNamespace(connection=connection, store=store, thread=threading.Thread(target=count), outcomes=[])
    found.thread.start()
    assert store.entered.wait(5.0)
    yield found
    store.goes_on.set()
    found.thread.join(5.0)
    vars(found).clear()


def test_a_silent_connection_is_broken_behind_the_operation_that_is_under_way(slow):
    breaking = threading.Thread(target=slow.connection.break_silent, args=(5.0, 0.0))
    breaking.start()
    breaking.join(0.1)
    assert is_whole(end(slow.connection))
    slow.store.goes_on.set()
    breaking.join(5.0)
    slow.thread.join(5.0)
    assert slow.outcomes == [1]
    assert slow.connection.add("count", 1) == 2
    assert slow.connection.store is not slow.store


def test_an_addition_has_more_time_than_what_is_repeated(slow):
    """It cannot be repeated, so a rank whose store is only slow would end with the connection."""
    breaking = threading.Thread(target=slow.connection.break_silent, args=(0.0, 5.0))
    breaking.start()
    breaking.join(0.1)
    assert is_whole(end(slow.connection))
    slow.store.goes_on.set()
    breaking.join(5.0)
    slow.thread.join(5.0)
    assert slow.outcomes == [1]


def test_an_addition_that_hears_nothing_either_fails(slow):
    assert slow.connection.break_silent(0.01, 0.01)
    slow.store.goes_on.set()
    slow.thread.join(5.0)
    assert slow.outcomes == [dist.DistNetworkError]


def test_a_store_without_a_socket_has_nothing_to_break():
    assert not StoreConnection(dist.HashStore, dist.HashStore, {}).break_silent(0.0, 0.0)
