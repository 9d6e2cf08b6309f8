"""The connections by which the launchers of a job notice each other's end: each holds one to the coordinator's.

Nothing but the greetings is sent over such a connection: the coordinator's launcher says first what it is, the other
one names its job and its node. An end that is not greeted in time closes it. The kernel closes it with the process at
either end (`ConnectionWatch`). The record of the coordinator's term has the endpoint. A launcher that cannot connect,
because of a firewall, goes without.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import socket
import time
from contextlib import suppress
from typing import Final

from nvrx_core.backoff import Backoff
from nvrx_core.parsing import endpoint_text, integer, parse_endpoint, parse_object
from nvrx_core.process.file_limit import allow_more_files
from nvrx_core.process.sockets import probe_when_idle
from nvrx_core.store.endpoint import listener_at
from nvrx_launcher.loop import EventLoop
from nvrx_launcher.rendezvous.connection_watch import ConnectionWatch

__all__ = ["CoordinatorConnection", "NodeListener"]

log = logging.getLogger("nvrx_launcher")
GREETING: Final = "nvrx-coordinator 1"
CLOSED: Final = "closed"
LONGEST: Final = 4096
"""Bytes of a line."""
PAUSES: Final = Backoff(0.1, 10.0)
"""Between two attempts to connect."""
GREETING_TIMEOUT: Final = 10.0
"""Seconds from a connection, or the attempt to make one, to the greeting of the other end."""
MAX_PENDING: Final = 1024
"""Connections that have not greeted yet; further ones wait in the kernel."""
ACCEPTS_AGAIN: Final = 1.0
"""Seconds after which connections are accepted again when no descriptor was left, or too many have not greeted."""
OF_THE_CONNECTION: Final = (
    errno.EAGAIN, errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT,
    errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.EPERM,
)  # fmt: skip
"""Errors of accept(2) that are those of a connection which is gone; after others the listener stays readable."""


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

    def send_line(self, line: str) -> None:
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
        address: the address to listen at, in numbers, because another thread asks for the endpoint and a resolver may
            take long; empty: it cannot be used.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, loop: EventLoop, job: str, address: str) -> None:
        self._loop, self._job, self._address = loop, job, address
        self._listener: socket.socket | None = None
        self._watch: ConnectionWatch | None = None
        self._nodes = dict[_Channel, int]()
        self._pending = dict[_Channel, float]()
        self._accepts_at, self._is_short = math.inf, False

    def endpoint(self) -> str:
        """Return the endpoint, which listens from then on; empty if the address cannot be used."""
        if self._listener is None:
            if not self._address:
                return ""
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
        allow_more_files()  # one for each node
        self._watch = watch
        self._accept_again()

    @property
    def deadline(self) -> float:
        """When `tick` is due."""
        return min(self._accepts_at, *self._pending.values(), math.inf)

    def tick(self, *, now: float) -> None:
        """Handle that time has passed: close what has not greeted, and accept again."""
        for channel in [channel for channel, until in self._pending.items() if now >= until]:
            self._end(channel)
        if now >= self._accepts_at:
            self._accept_again()

    def stop(self) -> None:
        """End the connections in order: the other launchers do not connect again."""
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
        self._watch, self._accepts_at = None, math.inf
        for channel in [*self._nodes, *self._pending]:
            channel.send_line(CLOSED)
            self._end(channel)

    def close(self) -> None:
        """Stop to listen."""
        self.stop()
        if self._listener is not None:
            self._listener.close()

    def _accept(self) -> None:
        assert self._listener is not None
        if len(self._pending) >= MAX_PENDING:
            self._pause_accepting()
            return
        try:
            connection, _ = self._listener.accept()
            channel = _Channel(connection)
        except OSError as error:
            if error.errno not in OF_THE_CONNECTION:  # no descriptor is left
                if not self._is_short:
                    log.warning("no more launchers can connect to this one at the moment: %s", error)
                self._is_short = True
                self._pause_accepting()
            return
        self._is_short = False
        self._pending[channel] = time.monotonic() + GREETING_TIMEOUT
        self._loop.watch(channel.fileno(), lambda: self._read(channel))
        channel.send_line(GREETING)

    def _pause_accepting(self) -> None:
        """Accept later: the listener stays readable."""
        assert self._listener is not None
        self._loop.forget(self._listener.fileno())
        self._accepts_at = time.monotonic() + ACCEPTS_AGAIN

    def _accept_again(self) -> None:
        assert self._listener is not None
        self._accepts_at = math.inf
        self._loop.watch(self._listener.fileno(), self._accept)

    def _read(self, channel: _Channel) -> None:
        lines = channel.lines()
        if lines is None:
            self._end(channel)
            return
        for line in lines:
            if channel in self._nodes or (node := self._node(line)) is None:  # no launcher of this job
                self._end(channel)
                return
            del self._pending[channel]
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
        self._pending.pop(channel, None)
        node = self._nodes.pop(channel, None)
        if node is not None and self._watch is not None:
            self._watch.closed(node)


class CoordinatorConnection:
    """The end of any other launcher.

    Args:
        loop: the event loop that watches the descriptor.
        job: the job's name.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
        closed: the term whose launcher it was held to, and since when there is none, after there was one, monotonic
            seconds; else `inf`. Together, for another thread.
    """

    def __init__(self, loop: EventLoop, job: str) -> None:
        self._loop, self._job = loop, job
        self._target, self._is_held = (0, "", -1), False
        self._channel: _Channel | None = None
        self._failures, self.deadline, self.closed = 0, math.inf, (0, math.inf)

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
        self._target, self._failures = (term, endpoint, node), 0
        self.deadline, self.closed = math.inf, (term, math.inf)
        if endpoint:
            self._connect()

    def tick(self, *, now: float) -> None:
        """Handle that time has passed: connect, or give up what has not greeted."""
        if now < self.deadline:
            return
        if self._channel is None:
            self._connect()
        else:
            self._lose()

    def close(self) -> None:
        """Close it."""
        self.hold(0, "", -1)

    def _connect(self) -> None:
        host, port = parse_endpoint(self._target[1])
        self.deadline = time.monotonic() + GREETING_TIMEOUT
        try:
            connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            self._channel = _Channel(connection)
            failure = connection.connect_ex((host, port))
        except OSError as error:  # no descriptor is left, or this machine has no IPv6
            log.debug("this launcher cannot connect to %s: %s", self._target[1], error)
            self._lose()
            return
        if failure in (0, errno.EINPROGRESS):
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
                self._is_held, self._failures, self.deadline = True, 0, math.inf
                self.closed = self._target[0], math.inf
                self._channel.send_line(json.dumps({"job": self._job, "node": self._target[2]}))
            elif line == CLOSED:
                self._drop()
                self.deadline = math.inf
                return
            else:
                self._lose()
                return

    def _lose(self) -> None:
        """Connect again: at once after it was held, else after a pause."""
        now, was_held = time.monotonic(), self._is_held
        self._drop()
        self._failures = 0 if was_held else self._failures + 1
        self.deadline = now + PAUSES.pause(self._failures)
        if was_held:
            self.closed = self._target[0], now

    def _drop(self) -> None:
        if self._channel is not None:
            self._loop.forget(self._channel.fileno())
            self._channel.close()
        self._channel, self._is_held = None, False
