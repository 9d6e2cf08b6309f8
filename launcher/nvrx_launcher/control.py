"""What workers ask of their launcher, over its socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nvrx_core.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
from nvrx_core.fault_tolerance.wire import Connection, Listener, WireError, close_all
from nvrx_launcher.loop import EventLoop

__all__ = ["Control"]


class Control:
    """Listens for requests; whatever is wrong with one closes its connection only.

    Args:
        loop: where its descriptors are watched.
        path: where it listens.
        requested: called with the rank and its request.
    """

    def __init__(self, loop: EventLoop, path: Path, requested: Callable[[int, WorkloadControlRequest], object]) -> None:
        self._loop, self._listener, self._requested = loop, Listener(path), requested
        self._connections = dict[int, Connection]()
        loop.watch(self._listener.fileno(), self._accept)

    def environment(self) -> dict[str, str]:
        """Return what a worker finds its launcher by."""
        return {"FT_LAUNCHER_IPC_SOCKET": str(self._listener.path)}

    def close(self) -> None:
        """Listen no more."""
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        for fd in tuple(self._connections):
            self._drop(fd)

    def _accept(self) -> None:
        if (connection := self._listener.accept()) is not None:
            fd = connection.fileno()
            self._connections[fd] = connection
            self._loop.watch(fd, lambda: self._serve(fd))

    def _serve(self, fd: int) -> None:
        connection = self._connections[fd]
        try:
            message, descriptors = connection.receive()
            close_all(descriptors)
            action = WorkloadAction[str(message.get("action"))]
            request = WorkloadControlRequest(action, str(message.get("description", "")))
            connection.send({"type": "ok"})
            self._requested(int(message.get("rank", -1)), request)
        except (WireError, KeyError, ValueError, TypeError):
            pass
        self._drop(fd)

    def _drop(self, fd: int) -> None:
        self._loop.forget(fd)
        self._connections.pop(fd).close()
