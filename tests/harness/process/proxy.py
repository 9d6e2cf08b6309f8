"""A network between a rank and the store: a TCP proxy that can be slow, or cut off and healed.

A proxy that is cut off keeps its connections open and forwards nothing, like a network whose other end has vanished. It
can also reset its connections, or drop them silently, like a machine that was power-cycled.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["Proxy"]

CHUNK = 1 << 16
TCP_REPAIR = 19  # a connection closed in repair mode sends no FIN or RST; see linux/tcp.h


class Proxy:
    """Forwards connections to `endpoint` while it is entered as a context.

    Args:
        endpoint: `host:port` of the store.
        delay: seconds that each piece of data takes, either way.
    """

    def __init__(self, endpoint: str, delay: float = 0.0) -> None:
        host, _, port = endpoint.rpartition(":")
        self._target, self._delay = (host, int(port)), delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake = os.eventfd(0)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._travelling: deque[tuple[float, socket.socket, bytes]] = deque()
        self._cut = self._ending = False
        self._order, self._done = "", threading.Event()
        self._made: list[socket.socket] = []
        self._muted: set[socket.socket] = set()
        self._mutes_later = False
        self._thread = threading.Thread(target=self._run, name="proxy")

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for each in [self._listener, *self._others]:
            each.close()
        self._selector.close()
        os.close(self._wake)

    @property
    def connections(self) -> int:
        """How many it forwards."""
        return len(self._others) // 2

    def cut(self) -> None:
        """Stop forwarding."""
        self._cut = True
        os.eventfd_write(self._wake, 1)

    def heal(self) -> None:
        """Forward the delayed data, and all that follows."""
        self._cut = False
        os.eventfd_write(self._wake, 1)

    def connections_of(self, pid: int) -> list[socket.socket]:
        """The connections that a process holds."""
        held = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd") if os.path.lexists(entry.path)}
        inodes = _inodes()
        return [ours for ours in self._made if f"socket:[{inodes.get(_ports(ours))}]" in held]

    def connections_beside(self, pid: int) -> list[socket.socket]:
        """The open connections of other processes."""
        inodes, held = _inodes(), self.connections_of(pid)
        return [ours for ours in self._made if inodes.get(_ports(ours), "0") != "0" and ours not in held]

    def mute(self, pid: int, *, later: bool = False) -> None:
        """Keep the answers on the connections of a process, or on all that are made later as well.

        What is sent to the store still arrives, and everything is acknowledged, as by a proxy that is stuck.
        """
        self._muted |= set(self.connections_of(pid))
        self._mutes_later = later

    def refuse(self) -> None:
        """Accept no further connection; the current ones go on."""
        self._carry_out("refuse")

    def reset(self) -> None:
        """Reset the current connections; new ones are accepted."""
        self._carry_out("reset")

    def forget(self) -> None:
        """Drop the current connections without notifying their peers; new ones are accepted."""
        self._carry_out("forget")

    def _carry_out(self, order: str) -> None:
        self._done.clear()
        self._order = order
        os.eventfd_write(self._wake, 1)
        if not self._done.wait(20):
            raise AssertionError(f"the proxy does not {order}")

    def _refuse(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()
        self._order = ""
        self._done.set()

    def _end_connections(self) -> None:
        for each in self._others:
            with suppress(KeyError):
                self._selector.unregister(each)
            with suppress(OSError):
                if self._order == "forget":
                    each.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
                else:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
        self._others.clear()
        self._travelling.clear()
        self._order = ""
        self._done.set()

    def _run(self) -> None:
        while not self._ending:
            if self._order == "refuse":
                self._refuse()
            elif self._order:
                self._end_connections()
            if not self._cut:
                self._deliver()
            due = self._travelling[0][0] - time.monotonic() if self._travelling and not self._cut else None
            ready = self._selector.select(None if due is None else max(0.0, due))
            for key, _ in ready:
                self._read(key.fileobj)

    def _deliver(self) -> None:
        while self._travelling and self._travelling[0][0] <= time.monotonic():
            _, to, data = self._travelling.popleft()
            with suppress(OSError):
                if data:
                    to.sendall(data)
                else:
                    to.shutdown(socket.SHUT_WR)

    def _read(self, source: object) -> None:
        if source == self._wake:
            os.eventfd_read(self._wake)
        elif source is self._listener:
            self._accept()
        elif isinstance(source, socket.socket) and source in self._others:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(source)
            if data and self._others[source] in self._muted:
                return
            self._travelling.append((time.monotonic() + self._delay, self._others[source], data))

    def _accept(self) -> None:
        ours, _ = self._listener.accept()
        theirs = socket.create_connection(self._target)
        self._made.append(ours)
        if self._mutes_later:
            self._muted.add(ours)
        for one, other in ((ours, theirs), (theirs, ours)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)


def _inodes() -> dict[tuple[int, int], str]:
    """The inode of each TCP socket on this host, by its port and its peer's: one port has many peers, and a past."""
    tables = [Path("/proc/net", name).read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {(_port(row[1]), _port(row[2])): row[9] for row in rows}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _ports(ours: socket.socket) -> tuple[int, int]:
    """The ports of the other end of a connection: its own, and ours."""
    try:
        return int(ours.getpeername()[1]), int(ours.getsockname()[1])
    except OSError:
        return 0, 0
