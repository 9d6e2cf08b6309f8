"""Which connections are gloo's, and what becomes of them. Both ends are in this process: two groups of two ranks."""

import socket
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from nvrx_core.inprocess.groups import gloo_connections
from nvrx_core.inprocess.groups.gloo_connections import GlooConnections
from nvrx_core.process.sockets import socket_inodes

LONG = timedelta(seconds=60)


@contextmanager
def group_of_two():
    """Both ranks of a group; the collectives of the second run in another thread."""
    store, made = dist.HashStore(), {}

    def make(rank):
        made[rank] = dist.ProcessGroupGloo(store, rank, 2, LONG)

    other = threading.Thread(target=make, args=(1,))
    other.start()
    make(0)
    other.join()
    yield made
    made.clear()


@pytest.fixture
def connections():
    connections = GlooConnections()
    yield connections
    connections.release()


def cut_all(connections):
    """A thread that is busy is cut the next time."""
    return sum(connections.cut() for _ in range(20))


@pytest.mark.parametrize("named", [True, False], ids=["named", "older torch"])
def test_a_blocked_operation_fails_and_other_sockets_stay_open(connections, named, monkeypatch):
    if not named:
        monkeypatch.setattr(gloo_connections, "LOOP", "a name that no thread has")
    with socket.create_server(("127.0.0.1", 0)) as listener, group_of_two() as group:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with client, accepted:
            work = group[0].allreduce([torch.ones(4)])
            assert cut_all(connections) == 2, "the two ends of one connection"
            with pytest.raises(RuntimeError, match="Connection closed"):
                work.wait()
            client.send(b"x")
            assert accepted.recv(1) == b"x"
            assert socket.create_connection(listener.getsockname()).close() is None
        assert connections.cut() == 0, "each is cut once"


def test_nothing_is_cut_where_gloo_is_not_used(connections):
    assert connections.cut() == 0
    assert connections.offer(2) == 0


def test_the_sockets_of_a_store_are_not_gloos(connections):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with group_of_two():
        assert connections.cut() == 2
        store.set("a", "b")
        assert store.get("a") == b"b"


class TwoGroups(dist.Store):
    """The store of a group whose rank 0 is told, as its peer, a rank of another group: it will never connect."""

    def __init__(self, peer):
        super().__init__()
        self.peer, self.told = peer, {}

    def set(self, key, value):
        self.told[key] = value

    def get(self, key):
        return self.told.get(key, self.peer)

    def wait(self, keys, timeout=None):
        pass


class Listening(dist.Store):
    """Notes what each rank tells about itself."""

    def __init__(self):
        super().__init__()
        self.told, self.changed = {}, threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.told[key] = value
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            self.changed.wait_for(lambda: key in self.told, 30)
            return self.told[key]

    def wait(self, keys, timeout=None):
        for key in keys:
            self.get(key)


def make(store, rank, made):
    with suppress(RuntimeError):
        made[rank] = dist.ProcessGroupGloo(store, rank, 2, LONG)


def in_thread(target, *arguments):
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    return thread


def test_the_creation_of_a_group_whose_peer_never_connects_is_unblocked(connections):
    told, made = Listening(), {}
    for thread in [in_thread(make, told, rank, made) for rank in range(2)]:
        thread.join()
    (peer,) = (value for key, value in told.told.items() if key.endswith("1"))
    waiting = []
    while not waiting:  # which of two ranks waits for the other depends on their ports
        thread = in_thread(make, TwoGroups(peer), 0, {})
        thread.join(0.3)
        waiting = [thread] if thread.is_alive() else []
    offered = 0
    while waiting[0].is_alive():
        offered += 0 if connections.cut() else connections.offer(2)
        waiting[0].join(0.02)
    assert offered


def test_a_group_is_offered_connections_once(connections):
    before = socket_inodes()
    with group_of_two():
        assert connections.offer(3, older=socket_inodes()) == 0, "nobody creates it"
        assert [connections.offer(3, older=before) for _ in range(3)] == [3, 3, 0], "one listener for each rank"
        connections.release()
        assert connections.offer(3) == 0
