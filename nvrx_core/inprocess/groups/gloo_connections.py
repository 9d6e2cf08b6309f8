"""gloo's connections in this process: known by gloo's threads, and ended so that blocked operations fail.

Each group has one thread of gloo's, `gloo_tcp_loop`, which sleeps in epoll for the group's listener and all of its
connections. What is registered there is gloo's and nobody else's; the kernel is asked at the abort, and nothing is done
while a group is made. Listeners are never touched: gloo ends the process (`std::terminate`) when accepting fails.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Final

from nvrx_core.process.sockets import TcpSocket, describe, keep_open, wait_quiet
from nvrx_core.process.system_calls import EpollWait, epoll_wait_of, registered, thread_names

__all__ = ["GlooConnections"]

LOOP: Final = "gloo_tcp_loop"
LOOP_WAITS: Final = (64, 10)
"""Events and milliseconds of gloo's call of epoll_wait: the mark of its threads where they have no name."""
LOOP_WITHIN: Final = 0.05
"""Seconds within which a thread of gloo's that is busy goes to sleep again."""
TICK: Final = 0.001
QUIET_WITHIN: Final = 0.05
"""Seconds that collectives of living ranks have to come to rest before the connections are cut."""
KEPT_FOR: Final = 1.0
"""Seconds after the abort, within which a round is decided as a rule."""
OFFER_WITHIN: Final = 1.0


class GlooConnections:
    """Ends gloo's connections, and keeps a duplicate of each until the round is decided."""

    def __init__(self) -> None:
        self._kept: dict[int, socket.socket] = {}
        self._offered: dict[int, list[socket.socket]] = {}
        self._closing: threading.Timer | None = None

    def cut(self) -> int:
        """End what blocks in gloo in this process: let it read the end of the stream on all its connections.

        Each rank does this for itself, and no rank sees another one's connections end: they are kept open until the
        round is decided. For gloo loses a send that it could not hand to the kernel at once when the connection ends,
        and the operation, with it the main thread, waits for ever (`Pair::signalException` passes over the unbound
        buffers in `tx_`). So the cut waits until nothing travels any more, and only reading is shut.

        Returns:
            How many connections were cut.
        """
        ours = [found for found in _sockets() if found.peer_port and found.inode not in self._kept]
        kept = {found.inode: connection for found in ours if (connection := keep_open(found)) is not None}
        self._kept |= kept
        wait_quiet(kept.values(), QUIET_WITHIN)
        return sum(map(_shut_reading, kept.values()))

    def close_when_late(self) -> None:
        """Let the others see this rank's end if the round is not decided in `KEPT_FOR`.

        A rank in an atomic section is not interrupted, and may wait in a collective for ranks that have left theirs.
        """
        if self._kept and self._closing is None:
            self._closing = threading.Timer(KEPT_FOR, self._close_kept)
            self._closing.name, self._closing.daemon = "nvrx-late-decision", True
            with suppress(RuntimeError):  # no further thread is to be had
                self._closing.start()

    def offer(self, size: int) -> int:
        """Free a main thread that waits, in the making of a group, for a peer that will never connect.

        gloo's listener reads a number from each connection, and hands it to the pair that waits under this number. The
        group made last that has not been tried gets a connection for each number; the next `cut` ends them.

        Args:
            size: the number of ranks, which bounds the numbers.

        Returns:
            How many connections were offered.
        """
        listeners = [found for found in _sockets() if found.listening and found.inode not in self._offered]
        offered = _connect_to(listeners[-1], size) if listeners else []
        if listeners:
            self._offered[listeners[-1].inode] = offered
        return len(offered)

    def release(self) -> None:
        """Close what was kept."""
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.cancel()
        self._close_kept()
        while self._offered:
            for connection in self._offered.popitem()[1]:
                connection.close()

    def _close_kept(self) -> None:
        with suppress(KeyError):  # two threads may close
            while True:
                self._kept.popitem()[1].close()


def _sockets() -> list[TcpSocket]:
    """The TCP sockets of gloo, those of the group that was made last at the end."""
    return [
        found
        for wait in _waits()
        for each in registered(wait.fd)
        if (found := describe(each.fd, each.inode)) is not None
    ]


def _waits() -> list[EpollWait]:
    """The waits of gloo's threads, in the order of their numbers; one that is busy is looked at until it sleeps."""
    names = thread_names()
    threads = sorted(tid for tid, name in names.items() if name == LOOP)
    if not threads:
        return _unnamed_waits(names)
    deadline = time.monotonic() + LOOP_WITHIN
    waits: dict[int, EpollWait] = {}
    while True:
        waits |= {tid: wait for tid in threads if tid not in waits and (wait := epoll_wait_of(tid)) is not None}
        if len(waits) == len(threads) or time.monotonic() >= deadline:
            return [waits[tid] for tid in threads if tid in waits]
        select.select([], [], [], TICK)


def _unnamed_waits(names: dict[int, str]) -> list[EpollWait]:
    """The same where gloo does not name its threads, as in older versions of torch."""
    native = sorted(names.keys() - {thread.native_id for thread in threading.enumerate()})
    waits = [wait for tid in native if (wait := epoll_wait_of(tid)) is not None]
    return [wait for wait in waits if (wait.most, wait.timeout) == LOOP_WAITS]


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
