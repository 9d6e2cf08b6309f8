"""A call's connections to the control store."""

import os
import resource
import socket
from datetime import timedelta

import pytest
import torch.distributed as dist

from nvrx_core.inprocess.coordination.connections import Connections
from nvrx_core.inprocess.protocol.ports import StoreFailure
from nvrx_core.process.sockets import tcp_sockets
from nvrx_core.store.connection import StoreConnectionError
from nvrx_core.store.keys import StoreKeys


@pytest.fixture
def served():
    """The port of a store."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield server.port
    del server


class Named(dist.TCPStore):
    """A store that is reached by a name."""

    def __init__(self, port):
        super().__init__("localhost", port, is_master=False, wait_for_workers=False)
        self.endpoint = ("localhost", port)


def test_a_restart_asks_no_name_server(served, monkeypatch):
    looked_up, look_up = [], socket.getaddrinfo

    def getaddrinfo(host, *arguments, **named):
        looked_up.append(host)
        return look_up(host, *arguments, **named)

    links = Connections(Named, {"port": served}, StoreKeys("job", 0, 0), timedelta(seconds=1))
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    place = links.host_rendezvous()
    host, port = place.rsplit(":", 1)
    assert host == "127.0.0.1", "a number, whatever the store is called"
    assert looked_up == []
    assert dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False).port == int(port)


def test_a_lack_of_descriptors_is_named_with_its_limit(served, monkeypatch):
    links = Connections(Named, {"port": served}, StoreKeys("job", 0, 0), timedelta(seconds=1))

    def none_left(*arguments, master_listen_fd, **named):
        os.close(master_listen_fd)
        raise dist.DistStoreError("Failed to init uv loop\nand more")

    monkeypatch.setattr(dist, "TCPStore", none_left)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with pytest.raises(StoreConnectionError, match=rf"Failed to init uv loop; are all {limit} file descriptors in use"):
        links.host_rendezvous()
    links.close()


@pytest.mark.parametrize("closes", [True, False])
def test_a_rendezvous_that_cannot_be_hosted_leaves_no_descriptor(served, monkeypatch, closes):
    """torch has closed the listener or not, by where it failed; its number may be another file's by then."""
    links, taken = Connections(Named, {"port": served}, StoreKeys("job", 0, 0), timedelta(seconds=1)), []

    def failing(*arguments, master_listen_fd, **named):
        if closes:
            os.close(master_listen_fd)
            taken.append(os.open(os.devnull, os.O_RDONLY))
            assert taken == [master_listen_fd]
        raise dist.DistStoreError("Failed to init uv loop")

    links.offer_rendezvous()
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(dist, "TCPStore", failing)
    with pytest.raises(StoreConnectionError):
        links.host_rendezvous()
    assert len(before) - len(os.listdir("/proc/self/fd")) == (0 if closes else 1)
    for fd in taken:
        os.close(fd)
    links.close()


def test_closed_connections_fail_for_all_that_hold_them(served):
    servers_own = connected(served)
    links = Connections(Named, {"port": served}, StoreKeys("job", 0, 0), timedelta(seconds=1))
    held = [links.main_store, links.waiting_store]
    hosted = int(links.host_rendezvous().rpartition(":")[2])
    offered = int(links.offer_rendezvous().rpartition(":")[2])
    assert len(connected(served)) == len(servers_own) + 2
    links.close()
    assert connected(served) == servers_own
    assert not [each for each in tcp_sockets() if each.listening and each.local_port in (hosted, offered)]
    for store in held:
        with pytest.raises(StoreFailure):
            store.try_get("a key")
    with pytest.raises(StoreConnectionError, match="the call is over"):
        links.another_store()


class Cut(Named):
    """A store that ends its waits itself."""

    def cut(self):
        pass


@pytest.mark.parametrize("kind", [Named, Cut])
def test_silent_connections_are_opened_again_unless_the_store_sees_to_that_itself(served, kind):
    links = Connections(kind, {"port": served}, StoreKeys("job", 0, 0), timedelta(seconds=1))
    before = [links._main.store, links._waiting.store]
    assert links.renew() == (kind is Named)
    for store in (links.main_store, links.waiting_store):
        assert store.try_get("a key") is None
    after = [links._main.store, links._waiting.store]
    assert [old is not new for old, new in zip(before, after, strict=True)] == [kind is Named] * 2
    links.close()


def connected(port):
    return [each for each in tcp_sockets() if each.peer_port == port]
