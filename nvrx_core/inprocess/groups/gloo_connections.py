"""gloo's connections in this process: found through gloo's threads, and shut down so that blocked operations fail.

gloo runs one thread per group, `gloo_tcp_loop`, which waits in epoll for the group's listener and all of its
connections. The descriptors registered there belong to gloo alone. They are read from the kernel at the abort; nothing
is done while a group is created. Listeners are never touched: gloo calls `std::terminate` when accepting fails.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from select import select
from typing import Final

from nvrx_core.process.sockets import TcpSocket, describe, keep_open, wait_quiet
from nvrx_core.process.system_calls import EpollWait, epoll_wait_of, native_thread_ids, registered, thread_names

__all__ = ["GlooConnections"]

LOOP: Final = "gloo_tcp_loop"
LOOP_WAITS: Final = (64, 10)
"""Events and milliseconds in gloo's call of epoll_wait, which identify its threads where they have no name."""
LOOP_WITHIN: Final = 0.05
"""Seconds within which a busy gloo thread returns to epoll_wait."""
TICK: Final = 0.001
QUIET_WITHIN: Final = 0.05
"""Seconds for collectives of living ranks to become quiet before the connections are shut down."""
KEPT_FOR: Final = 1.0
"""Seconds after the abort within which a round is normally decided."""
OFFER_WITHIN: Final = 1.0


class GlooConnections:
    """The shutdown of gloo's connections; a duplicate of each is kept until the round is decided."""

    def __init__(self) -> None:
        self._kept: dict[int, socket.socket] = {}
        self._tried = set[int]()
        self._offered = list[socket.socket]()
        self._closing: threading.Timer | None = None

    def cut(self) -> int:
        """Fail the blocked gloo operations of this process: let gloo read end of file on all its connections.

        Each rank shuts down only its own side. The duplicates keep the connections open until the round is decided, so
        no rank sees the connections of another one close. When a connection closes, gloo loses a send that it could not
        pass to the kernel at once, and the operation waits for ever, and with it the main thread
        (`Pair::signalException` skips the unbound buffers in `tx_`). Therefore `cut` waits until there is no traffic,
        and shuts down only reading.

        Returns:
            How many connections were shut down.
        """
        ours = [found for found in _sockets() if found.peer_port and found.inode not in self._kept]
        kept = {found.inode: connection for found in ours if (connection := keep_open(found)) is not None}
        self._kept |= kept
        wait_quiet(kept.values(), QUIET_WITHIN)
        return sum(map(_shut_reading, kept.values()))

    def close_when_late(self) -> None:
        """Close the duplicates after `KEPT_FOR` unless the round is decided, so that peers see the connections close.

        A rank in an atomic section is not interrupted, and may wait in a collective for ranks that have aborted it.
        """
        if self._kept and self._closing is None:
            self._closing = threading.Timer(KEPT_FOR, self._close_kept)
            self._closing.name, self._closing.daemon = "nvrx-late-decision", True
            with suppress(RuntimeError):  # the process has no threads left
                self._closing.start()

    def offer(self, size: int, older: frozenset[int] = frozenset()) -> int:
        """Unblock a main thread that waits, while it creates a group, for a peer that will never connect.

        gloo's listener reads a number from each connection and passes the connection to the pair that waits under this
        number; it keeps connections that no pair waits for. The last created group that has not been tried gets one
        connection per number; the next `cut` shuts them down.

        Args:
            size: the number of ranks, which bounds the numbers.
            older: the inodes of sockets of before the function, whose groups nobody creates.

        Returns:
            How many connections were made.
        """
        listeners = [found for found in _sockets() if found.listening]
        self._tried.intersection_update(found.inode for found in listeners)
        untried = [found for found in listeners if found.inode not in self._tried | older]
        if not untried:
            return 0
        offered = _connect_to(untried[-1], size)
        self._tried.add(untried[-1].inode)
        self._offered += offered
        return len(offered)

    def release(self) -> None:
        """Close all kept connections."""
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.cancel()
        self._close_kept()
        while self._offered:
            self._offered.pop().close()

    def _close_kept(self) -> None:
        with suppress(KeyError):  # two threads may close
            while True:
                self._kept.popitem()[1].close()


def _sockets() -> list[TcpSocket]:
    """Return the TCP sockets of gloo, those of the last created group at the end."""
    return [
        found
        for wait in _waits()
        for each in registered(wait.fd)
        if (found := describe(each.fd, each.inode)) is not None
    ]


def _waits() -> list[EpollWait]:
    """Return the epoll_wait calls of gloo's threads, by thread id; a busy thread is sampled until it waits."""
    names = thread_names()
    threads = sorted(tid for tid, name in names.items() if name == LOOP)
    if not threads:  # of an older version of torch, where gloo does not name them
        found = [wait for tid in sorted(native_thread_ids()) if (wait := epoll_wait_of(tid)) is not None]
        return [wait for wait in found if (wait.max_events, wait.timeout) == LOOP_WAITS]
    deadline = time.monotonic() + LOOP_WITHIN
    waits: dict[int, EpollWait] = {}
    while True:
        waits |= {tid: wait for tid in threads if tid not in waits and (wait := epoll_wait_of(tid)) is not None}
        if len(waits) == len(threads) or time.monotonic() >= deadline:
            return [waits[tid] for tid in threads if tid in waits]
        select([], [], [], TICK)


def _connect_to(listener: TcpSocket, size: int) -> list[socket.socket]:
    offered: list[socket.socket] = []
    kept = keep_open(listener)
    if kept is not None:
        with kept, suppress(OSError):
            address = kept.getsockname()[:2]
            for number in range(size):
                offered.append(socket.create_connection(address, timeout=OFFER_WITHIN))
                offered[-1].sendall(struct.pack("=q", number))
    return offered


def _shut_reading(connection: socket.socket) -> bool:
    try:
        connection.shutdown(socket.SHUT_RD)
    except OSError:
        return False
    return True
