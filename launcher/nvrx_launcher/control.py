"""The launcher's socket for messages of its workers and rank monitors.

A worker makes a request. A monitor reports why it ends its rank, and asks for the progress of the ranks of other nodes;
the answer to that may come later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from nvrx_core.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
from nvrx_core.fault_tolerance.peers import HANG_REPORT, PROGRESS, RECOVERED, HungRank, Progress
from nvrx_core.fault_tolerance.wire import Clients, Connection, Listener, WireError
from nvrx_core.parsing import integer
from nvrx_core.values import value
from nvrx_launcher.loop import EventLoop

__all__ = ["Control", "ControlEvents"]

REQUEST: Final = "workload_control"
MAX_CONNECTIONS: Final = 256
"""The oldest one is closed when there are more."""


class ControlEvents(Protocol):
    """The handlers of the messages."""

    def requested(self, rank: int, request: WorkloadControlRequest) -> None:
        """Handle the request of a rank."""

    def hung(self, report: HungRank, answer: Callable[[], None]) -> None:
        """Handle the report that a monitor is about to end its rank; answer when it may."""

    def recovered(self, rank: int) -> None:
        """Handle that a monitor does not end its rank, which goes on."""

    def asked_for_progress(self, answer: Callable[[Sequence[Progress]], None]) -> None:
        """Handle a monitor's question for the progress of the slowest ranks of other nodes."""


@value
class _AskForProgress:
    """Ask for the progress of the slowest ranks of other nodes."""


@value
class _Recovered:
    """Take back that a rank is ended."""

    rank: int


@value
class _ControlWorkload:
    """A request of a rank, -1 for one that does not know its number."""

    rank: int
    wish: WorkloadControlRequest


_Request = _AskForProgress | HungRank | _Recovered | _ControlWorkload


def _read(message: dict[str, Any]) -> _Request:
    """Return the request of a message.

    Raises:
        WireError, KeyError, ValueError: when it is malformed.
    """
    match message.get("type"):
        case kind if kind == PROGRESS:
            return _AskForProgress()
        case kind if kind == HANG_REPORT:
            return HungRank.from_json(message)
        case kind if kind == RECOVERED:
            return _Recovered(integer(message.get("rank"), 0))
        case kind if kind == REQUEST:
            action = WorkloadAction[str(message.get("action"))]
            wish = WorkloadControlRequest(action, str(message.get("description", "")))
            return _ControlWorkload(integer(message.get("rank", -1), -1), wish)
        case other:
            raise WireError(f"unknown type {other!r}")


class Control:
    """Listens; a malformed message closes only its own connection.

    Args:
        loop: the event loop that watches its descriptors.
        path: the path of its socket.
        events: handles the messages.
    """

    def __init__(self, loop: EventLoop, path: Path, events: ControlEvents) -> None:
        self._loop, self._listener, self._events = loop, Listener(path), events
        self._clients = Clients(
            self._listener, _read, self._take, most=MAX_CONNECTIONS, closed=loop.forget,
            opened=lambda fd: loop.watch(fd, lambda: self._clients.serve(fd)),
        )  # fmt: skip
        loop.watch(self._listener.fileno(), self._clients.accept)

    @property
    def path(self) -> Path:
        """Where it listens."""
        return self._listener.path

    def environment(self) -> dict[str, str]:
        """Return the variables by which a worker finds its launcher."""
        return {"FT_LAUNCHER_IPC_SOCKET": str(self._listener.path)}

    def catch_up(self) -> None:
        """Handle what has arrived already: a monitor reports why it ends its rank before the rank exits."""
        while self._clients.accept():
            pass
        for fd in self._clients.fds():
            self._clients.serve(fd)

    def close(self) -> None:
        """Stop listening."""
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        self._clients.close()

    def _take(self, connection: Connection, request: _Request) -> bool:
        """Handle a request; return whether its connection can be closed."""
        match request:
            case _AskForProgress():
                self._events.asked_for_progress(
                    lambda ranks: self._answer(connection, {"type": "ok", "ranks": [each.to_json() for each in ranks]})
                )
                return False
            case HungRank():
                self._events.hung(request, lambda: self._answer(connection, {"type": "ok"}))
                return False
            case _Recovered(rank):
                self._events.recovered(rank)
            case _ControlWorkload(rank, wish):
                connection.send({"type": "ok"})
                self._events.requested(rank, wish)
        return True

    def _answer(self, connection: Connection, message: dict[str, Any]) -> None:
        if self._clients.has(connection):
            with suppress(WireError):  # it has waited long enough
                connection.send(message)
            self._clients.drop(connection.fileno())
