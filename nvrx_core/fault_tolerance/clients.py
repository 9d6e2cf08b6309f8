"""The connections to a listening socket, one message at a time; a malformed message closes only its own connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from nvrx_core.fault_tolerance.wire import Connection, Listener, WireError, close_all

__all__ = ["Clients"]

MALFORMED: Final = (WireError, KeyError, ValueError, TypeError)
Request = TypeVar("Request")


def _ignore(_: int) -> None:
    """Do nothing."""


class Clients(Generic[Request]):
    """Accepts connections and serves them; the caller waits for their descriptors.

    Args:
        listener: the socket that clients connect to.
        read: returns the request of a message. For a malformed one it raises `WireError`, `KeyError`, `ValueError` or
            `TypeError`, which closes the connection.
        answer: handles a request; returns whether its connection is to be closed. A connection to which it cannot send
            (`WireError`) is closed; every other exception of it is the caller's.
        most: the maximum number of connections; the oldest one is closed when there are more.
        opened: called with the descriptor of each new connection.
        closed: called with a descriptor before it is closed.
    """

    def __init__(
        self,
        listener: Listener,
        read: Callable[[dict[str, Any]], Request],
        answer: Callable[[Connection, Request], bool],
        *,
        most: int,
        opened: Callable[[int], object] = _ignore,
        closed: Callable[[int], object] = _ignore,
    ) -> None:
        self._listener, self._read, self._answer, self._most = listener, read, answer, most
        self._opened, self._closed = opened, closed
        self._connections = dict[int, Connection]()

    def __contains__(self, fd: object) -> bool:
        return fd in self._connections

    def fds(self) -> tuple[int, ...]:
        """Return the descriptors of all connections."""
        return tuple(self._connections)

    def has(self, connection: Connection) -> bool:
        """Return whether a connection is still open."""
        return connection in self._connections.values()

    def accept(self) -> bool:
        """Accept a connection; return whether one was waiting."""
        if (connection := self._listener.accept()) is None:
            return False
        while len(self._connections) >= self._most:
            self.drop(next(iter(self._connections)))
        self._connections[connection.fileno()] = connection
        self._opened(connection.fileno())
        return True

    def serve(self, fd: int) -> None:
        """Handle one message, if there is one."""
        connection = self._connections[fd]
        if not connection.has_message():
            return
        try:
            message, descriptors = connection.receive()
            close_all(descriptors)
            request = self._read(message)
        except MALFORMED:
            self.drop(fd)
            return
        try:
            is_over = self._answer(connection, request)
        except WireError:
            is_over = True
        if is_over and self.has(connection):
            self.drop(fd)

    def drop(self, fd: int) -> None:
        """Close a connection."""
        self._closed(fd)
        self._connections.pop(fd).close()

    def close(self) -> None:
        """Close all connections."""
        for fd in self.fds():
            self.drop(fd)
