"""The connections by which the launchers of a job notice each other's end: each holds one to the coordinator's.

Nothing but the greetings is sent over such a connection: the coordinator's launcher says first what it is, the other
one names its job and its node. The kernel closes it with the process at either end (`ConnectionWatch`). The record of
the coordinator's term has the endpoint. A launcher that cannot connect, because of a firewall, goes without.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nvrx_core.parsing import endpoint_text, integer, parse_endpoint, parse_object
from nvrx_core.process.sockets import probe_when_idle
from nvrx_core.store.endpoint import listener_at
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.connection_watch import ConnectionWatch

__all__ = ["CoordinatorConnection", "NodeListener"]

log = logging.getLogger("nvrx_launcher")
GREETING: Final = "nvrx-coordinator 1"
FAREWELL: Final = "closed"
LONGEST: Final = 4096
"""Bytes of a line."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
"""Seconds between two attempts to connect; each pause is twice as long as the one before."""


class _Channel:
    """One end of a connection, which does not block: lines in, lines out."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._rest = connection, b""
        connection.setblocking(False)
        probe_when_idle(connection)  # which also keeps it known to firewalls and address translation on its way

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._connection.fileno()

    def lines(self) -> list[str] | None:
        """Return what the other end has said since the last call; None when the connection is closed."""
        try:
            data = self._connection.recv(LONGEST)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._rest += data
        if not data or len(self._rest) > LONGEST:
            return None
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def say(self, line: str) -> None:
        """Send a line; one that does not fit, or comes too late, is not sent."""
        with suppress(OSError):
            self._connection.send(f"{line}\n".encode())

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


class NodeListener:
    """The end of the coordinator's launcher: one connection of each other launcher.

    Args:
        loop: the event loop that watches the descriptors.
        job: the job's name.
        address: the address to listen at.
    """

    def __init__(self, loop: EventLoop, job: str, address: str) -> None:
        self._loop, self._job, self._address = loop, job, address
        self._listener: socket.socket | None = None
        self._watch: ConnectionWatch | None = None
        self._nodes = dict[_Channel, int | None]()

    def endpoint(self) -> str:
        """Return the endpoint, which listens from then on; empty if the address cannot be used."""
        if self._listener is None:
            try:
                self._listener = listener_at(self._address, 0)
            except OSError as error:
                log.debug("no other launcher can connect to this one at %s: %s", self._address, error)
                return ""
            self._listener.setblocking(False)
        return endpoint_text(*self._listener.getsockname()[:2])

    def serve(self, watch: ConnectionWatch) -> None:
        """Accept connections, and report them and their ends to `watch`."""
        if self._listener is None:
            return
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one descriptor for each node
        self._watch = watch
        self._loop.watch(self._listener.fileno(), self._accept)

    def stop(self) -> None:
        """End the connections in order: the other launchers do not connect again."""
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
        self._watch = None
        for channel in list(self._nodes):
            channel.say(FAREWELL)
            self._end(channel)

    def close(self) -> None:
        """Stop to listen."""
        self.stop()
        if self._listener is not None:
            self._listener.close()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # no descriptor is left: the listener would stay readable
            log.warning("no more launchers can connect to this one, whose loss is noticed by their leases: %s", error)
            self._loop.forget(self._listener.fileno())
            return
        channel = _Channel(connection)
        self._nodes[channel] = None
        self._loop.watch(channel.fileno(), lambda: self._read(channel))
        channel.say(GREETING)

    def _read(self, channel: _Channel) -> None:
        lines = channel.lines()
        if lines is None:
            self._end(channel)
            return
        for line in lines:
            if self._nodes[channel] is not None or (node := self._node(line)) is None:  # no launcher of this job
                self._end(channel)
                return
            self._nodes[channel] = node
            if self._watch is not None:
                self._watch.connected(node)

    def _node(self, line: str) -> int | None:
        with suppress(ValueError):
            data = parse_object(line)
            if data.get("job") == self._job:
                return integer(data.get("node"), 0)
        return None

    def _end(self, channel: _Channel) -> None:
        self._loop.forget(channel.fileno())
        channel.close()
        node = self._nodes.pop(channel)
        if node is not None and self._watch is not None:
            self._watch.closed(node)


class CoordinatorConnection:
    """The end of any other launcher.

    Args:
        loop: the event loop that watches the descriptor.
        job: the job's name.
        closed: called when the connection was closed, and not in order.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
        closed: the term whose launcher it was held to, and since when there is none, after there was one, monotonic
            seconds; else `inf`. Together, for another thread.
    """

    def __init__(self, loop: EventLoop, job: str, closed: Callable[[], object] = bool) -> None:
        self._loop, self._job, self._report = loop, job, closed
        self._target, self._is_held = (0, "", -1), False
        self._channel: _Channel | None = None
        self._pause, self.deadline, self.closed = FIRST_PAUSE, math.inf, (0, math.inf)

    def hold(self, term: int, endpoint: str, node: int) -> None:
        """Hold a connection to the coordinator.

        Args:
            term: the number of its term.
            endpoint: where its launcher listens; empty: nowhere, or it is this one.
            node: this node.
        """
        if (term, endpoint, node) == self._target:
            return
        self._drop()
        self._target, self._pause = (term, endpoint, node), FIRST_PAUSE
        self.deadline, self.closed = math.inf, (term, math.inf)
        if endpoint:
            self._connect()

    def tick(self, *, now: float) -> None:
        """Handle that time has passed."""
        if now >= self.deadline:
            self._connect()

    def close(self) -> None:
        """Close it."""
        self.hold(0, "", -1)

    def _connect(self) -> None:
        self.deadline = math.inf
        host, port = parse_endpoint(self._target[1])
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self._channel = _Channel(connection)
        if connection.connect_ex((host, port)) in (0, errno.EINPROGRESS):
            self._loop.watch(self._channel.fileno(), self._read)
        else:
            self._lose()

    def _read(self) -> None:
        assert self._channel is not None
        lines = self._channel.lines()
        if lines is None:
            self._lose()
            return
        for line in lines:
            if line == GREETING and not self._is_held:
                self._is_held, self._pause, self.closed = True, FIRST_PAUSE, (self._target[0], math.inf)
                self._channel.say(json.dumps({"job": self._job, "node": self._target[2]}))
            elif line == FAREWELL:
                self._drop()
                return
            else:
                self._lose()
                return

    def _lose(self) -> None:
        """Connect again: at once after it was held, else after a pause."""
        now, was_held = time.monotonic(), self._is_held
        self._drop()
        self.deadline = now if was_held else now + self._pause
        if was_held:
            self.closed = self._target[0], now
            self._report()
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _drop(self) -> None:
        if self._channel is not None:
            self._loop.forget(self._channel.fileno())
            self._channel.close()
        self._channel, self._is_held = None, False
