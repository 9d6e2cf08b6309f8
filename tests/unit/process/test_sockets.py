"""The TCP sockets of this process: found by inode, shut down without being closed."""

import os
import socket

import pytest

from nvrx_core.process.sockets import (
    TcpSocket,
    blocking_pair,
    bound_reading,
    describe,
    is_whole,
    keep_open,
    shut_down,
    socket_inodes,
    tcp_sockets,
)
from nvrx_core.store.endpoint import listen


@pytest.fixture
def pair():
    """A listener, a client and the end that the listener accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with client, accepted:
            yield listener, client, accepted


def find(wanted):
    (found,) = [s for s in tcp_sockets() if s.fd == wanted.fileno()]
    return found


def test_sockets_are_described(pair):
    listener, client, accepted = pair
    port, client_port = listener.getsockname()[1], client.getsockname()[1]
    assert (find(listener).listening, find(listener).local_port, find(listener).peer_port) == (True, port, 0)
    assert (find(client).listening, find(client).local_port, find(client).peer_port) == (False, client_port, port)
    assert (find(accepted).local_port, find(accepted).peer_port) == (port, client_port)
    assert {find(each).inode for each in pair} <= socket_inodes()


@pytest.fixture
def default_timeout():
    """What libraries that fetch files set for the whole process."""
    socket.setdefaulttimeout(5.0)
    yield
    socket.setdefaulttimeout(None)


def test_a_default_timeout_does_not_make_a_socket_non_blocking_that_is_looked_at(pair, default_timeout):
    for each in pair:
        each.setblocking(True)
        find(each)
        with keep_open(find(each)):
            assert os.get_blocking(each.fileno())
    shut_down(find(pair[1]))
    assert os.get_blocking(pair[1].fileno())


def test_a_default_timeout_is_none_of_our_own_connections(default_timeout):
    ours, theirs = blocking_pair(socket.SOCK_SEQPACKET)
    with ours, theirs, listen("127.0.0.1", 0) as listener:
        assert [each.gettimeout() for each in (ours, theirs, listener)] == [None] * 3
        assert all(os.get_blocking(each.fileno()) for each in (ours, theirs, listener))


def test_a_read_that_is_bounded_fails_in_time(pair):
    client = pair[1]
    client.setblocking(True)
    bound_reading(find(client), 1)
    with pytest.raises(BlockingIOError):
        client.recv(1)


def test_other_sockets_are_no_tcp_sockets():
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, socket.socket() as loose:
        fds = {found.fd for found in tcp_sockets()}
        assert not fds & {ours.fileno(), theirs.fileno(), datagrams.fileno()}
        assert find(loose).peer_port == 0


def test_a_descriptor_of_something_else_is_no_socket():
    with open(os.devnull, "rb") as other:
        assert describe(other.fileno(), os.fstat(other.fileno()).st_ino) is None
        assert keep_open(TcpSocket(other.fileno(), 0, listening=False, local_port=0, peer_port=0)) is None


def test_who_waits_on_a_socket_that_is_shut_down_is_woken(pair):
    _, client, accepted = pair
    assert shut_down(find(accepted))
    assert client.recv(1) == b""
    assert accepted.recv(1) == b""
    assert accepted.fileno() >= 0


def test_a_socket_with_a_reused_descriptor_is_not_shut_down(pair):
    _, client, accepted = pair
    stranger = TcpSocket(find(accepted).fd, find(client).inode, listening=False, local_port=1, peer_port=1)
    assert not shut_down(stranger)
    client.send(b"x")
    assert accepted.recv(1) == b"x"


def test_a_socket_that_is_gone_or_not_connected_is_not_shut_down(pair):
    _, client, _ = pair
    gone = find(client)
    client.close()
    assert not shut_down(gone)
    with socket.socket() as loose:
        assert not shut_down(find(loose))


def test_a_connection_closed_by_its_peer_is_not_whole(pair):
    _, client, accepted = pair
    accepted.send(b"x")
    assert is_whole(find(client))
    accepted.close()
    assert not is_whole(find(client))


def test_a_closed_or_reused_descriptor_is_not_whole(pair):
    _, client, accepted = pair
    assert not is_whole(TcpSocket(find(accepted).fd, find(client).inode, listening=False, local_port=1, peer_port=1))
    gone = find(client)
    client.close()
    assert not is_whole(gone)
