"""The TCP sockets of this process, by inode.

A library that blocks in C++ on a socket does not react to signals; shutting the socket down ends the wait within a
millisecond. Other threads may reuse file descriptor numbers at any moment, so a socket is identified by its inode, and
every operation works on a duplicate.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from select import POLLRDHUP, poll, select
from typing import Final

from nvrx_core.process.waiting import readable
from nvrx_core.values import value

__all__ = [
    "TcpSocket",
    "blocking_pair",
    "bound_reading",
    "describe",
    "is_whole",
    "keep_alive",
    "keep_open",
    "of_descriptor",
    "probe_when_idle",
    "put_in_place",
    "shut_down",
    "socket_inodes",
    "tcp_sockets",
    "wait_closed",
    "wait_quiet",
    "wake_poll",
]

QUIET: Final = 0.001
"""Seconds without traffic after which a connection counts as quiet."""
KEEP_ALIVE: Final = {socket.TCP_KEEPIDLE: 6, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 2}
"""A connection that is idle for 6 s is probed twice, 2 s apart: one whose peer is lost fails within 10 s."""
UNANSWERED: Final = 10_000
"""Milliseconds that sent data may stay unacknowledged."""
TCP_INFO_BYTES: Final = 136
TCP_INFO_TRAFFIC: Final = slice(120, 136)
"""tcpi_bytes_acked and tcpi_bytes_received."""


@value
class TcpSocket:
    """One TCP socket of this process.

    Attributes:
        fd: the file descriptor at the time of listing.
        inode: the identity of the socket; unique while the socket exists.
        listening: whether it accepts connections.
        local_port: the local port.
        peer_port: the port of the peer, 0 when it is not connected.
    """

    fd: int
    inode: int
    listening: bool
    local_port: int
    peer_port: int


def socket_inodes() -> frozenset[int]:
    """Return the inodes of all sockets of this process."""
    return frozenset(inode for _, inode in _sockets())


def tcp_sockets(wanted: Callable[[int], bool] = bool) -> list[TcpSocket]:
    """Return the TCP sockets of this process; only those whose inode is `wanted`, and these alone are looked into."""
    return [each for fd, inode in _sockets() if wanted(inode) and (each := describe(fd, inode)) is not None]


def shut_down(found: TcpSocket) -> bool:
    """Shut a connected socket down in both directions, if it still exists; its descriptor stays open."""
    with _duplicate(found.fd) as duplicate:
        if duplicate is None or os.fstat(duplicate.fileno()).st_ino != found.inode:
            return False
        try:
            duplicate.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True


def wake_poll(fd: int) -> bool:
    """Wake who waits for a socket: connect to a listener, and close; send a datagram's socket an empty one.

    Returns:
        Whether the socket takes connections or datagrams.
    """
    with _duplicate(fd) as waited_for, suppress(OSError):
        if waited_for is None:
            return False
        kind = waited_for.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
        if kind == socket.SOCK_DGRAM or waited_for.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            with socket.socket(waited_for.family, kind | socket.SOCK_NONBLOCK) as caller:
                caller.connect_ex(waited_for.getsockname())
                if kind == socket.SOCK_DGRAM:
                    caller.send(b"")
            return True
    return False


def bound_reading(found: TcpSocket, seconds: int) -> None:
    """Let a blocking read fail after `seconds` without a byte (SO_RCVTIMEO of socket(7)); `poll` is not affected."""
    with _duplicate(found.fd) as duplicate:
        if duplicate is not None and os.fstat(duplicate.fileno()).st_ino == found.inode:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


def keep_alive(found: TcpSocket) -> None:
    """Let a listed connection be probed when it is idle."""
    with _duplicate(found.fd) as duplicate:
        if duplicate is not None and os.fstat(duplicate.fileno()).st_ino == found.inode:
            probe_when_idle(duplicate)


def probe_when_idle(connection: socket.socket) -> None:
    """Let a connection fail within 10 s when its peer is lost without closing it (tcp(7))."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in KEEP_ALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED)


def is_whole(found: TcpSocket) -> bool:
    """Return whether the connection is open at both ends, as far as this end knows; nothing is read."""
    with _duplicate(found.fd) as duplicate:
        if duplicate is None or os.fstat(duplicate.fileno()).st_ino != found.inode:
            return False
        pending = poll()
        pending.register(duplicate, POLLRDHUP)
        return not pending.poll(0)


def keep_open(found: TcpSocket) -> socket.socket | None:
    """Return a duplicate of the socket that keeps the connection open; None when the socket no longer exists."""
    duplicate = _try_duplicate(found.fd)
    if duplicate is None:
        return None
    if os.fstat(duplicate.fileno()).st_ino == found.inode:
        return duplicate
    duplicate.close()
    return None


def put_in_place(found: TcpSocket, other: TcpSocket) -> bool:
    """Let the descriptor of `other` refer to the socket `found`, which keeps its own as well.

    Returns:
        False when one of them was closed meanwhile; then nothing is changed.
    """
    with _duplicate(found.fd) as duplicate, _duplicate(other.fd) as former:
        if duplicate is None or former is None:
            return False
        if (os.fstat(duplicate.fileno()).st_ino, os.fstat(former.fileno()).st_ino) != (found.inode, other.inode):
            return False
        os.dup2(duplicate.fileno(), other.fd, inheritable=False)
    return True


def wait_quiet(kept: Iterable[socket.socket], timeout: float) -> None:
    """Wait until there is no traffic on the connections; `timeout` in seconds."""
    watched = list(kept)
    deadline = time.monotonic() + timeout
    before = None
    while (now := [_traffic(each) for each in watched]) != before and time.monotonic() < deadline:
        before = now
        select([], [], [], QUIET)


def _traffic(connection: socket.socket) -> bytes:
    """Return the acknowledged and received byte counts from `struct tcp_info` (tcp(7)) and the unsent byte count."""
    try:
        counters = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)[TCP_INFO_TRAFFIC]
        return counters + fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))
    except OSError:
        return b""


def wait_closed(found: Iterable[TcpSocket], timeout: float) -> None:
    """Wait until the peer of each connected socket has closed it or sent data; `timeout` in seconds."""
    deadline = time.monotonic() + timeout
    for each in found:
        with _duplicate(each.fd) as duplicate:
            if duplicate is not None and each.peer_port:
                readable([duplicate], deadline - time.monotonic())


def _sockets() -> Iterator[tuple[int, int]]:
    """Yield descriptor and inode of each; `fstat` costs a third of what reading the link in /proc does."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(fd)
        except OSError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            yield fd, status.st_ino


def describe(fd: int, inode: int) -> TcpSocket | None:
    """Return the TCP socket of a descriptor, None when it is not a TCP socket or is closed."""
    with _duplicate(fd) as duplicate:
        if (
            duplicate is None
            or duplicate.family not in (socket.AF_INET, socket.AF_INET6)
            or duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != socket.SOCK_STREAM
        ):
            return None
        listening = bool(duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        try:
            peer_port = 0 if listening else duplicate.getpeername()[1]
        except OSError:
            peer_port = 0
        return TcpSocket(fd, inode, listening, duplicate.getsockname()[1], peer_port)


@contextmanager
def _duplicate(fd: int) -> Iterator[socket.socket | None]:
    duplicate = _try_duplicate(fd)
    if duplicate is None:
        yield None
        return
    with duplicate:
        yield duplicate


def _try_duplicate(fd: int) -> socket.socket | None:
    """Return a duplicate of a socket; None when the descriptor is closed or is not a socket."""
    try:
        second = os.dup(fd)
    except OSError:
        return None
    try:
        return of_descriptor(second)
    except OSError:
        os.close(second)
        return None


def of_descriptor(fd: int) -> socket.socket:
    """Return an object for a TCP socket, and leave the socket in the blocking mode that it has.

    Without SOCK_NONBLOCK, `socket.setdefaulttimeout` would apply: it makes the socket non-blocking, and so all its
    duplicates, from which torch reads as from a blocking one.

    Raises:
        OSError: when the descriptor is no socket.
    """
    return socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=fd)


def blocking_pair(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """Return a pair of local sockets that wait without a timeout, whatever `socket.setdefaulttimeout` says."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    ours.settimeout(None)
    theirs.settimeout(None)
    return ours, theirs
