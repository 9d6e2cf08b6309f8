"""A blocking read of the main thread that no signal ends.

An example is a read on a store client that was created before the call, so that the wrapper does not know of it. The
kernel reports the descriptor that the main thread reads from. The connection of a store is shut down at once, and
another one is put in its place before the next iteration: the store goes on serving. Any other connection is shut down
when the read takes longer than `PATIENCE`; otherwise the rank would be terminated at the hard timeout.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Final

import torch.distributed as dist

from nvrx_core.inprocess.groups.store_in_use import store_in_use
from nvrx_core.process.sockets import TcpSocket, describe, put_in_place, shut_down, socket_inodes, tcp_sockets
from nvrx_core.process.system_calls import waits_on
from nvrx_core.store.connection import reconnect
from nvrx_core.store.endpoint import StoreConnectionError

__all__ = ["BlockedRead"]

log = logging.getLogger("nvrx_core.inprocess")
PATIENCE: Final = 1.0
"""Seconds that a read may take in spite of signals before its connection is shut down."""


class BlockedRead:
    """The connection that the thread which creates this object reads from."""

    def __init__(self) -> None:
        self._thread, self._ident = threading.get_native_id(), threading.get_ident()
        self._inode = 0
        self._since = 0.0
        self._cut: list[tuple[TcpSocket, dist.TCPStore]] = []

    def cut(self, *, now: float) -> int:
        """Shut down the connection that the thread reads from, unless it may yet answer; return how many (0 or 1)."""
        found = self._connection()
        if found is None or found.inode != self._inode:
            self._inode, self._since = (0 if found is None else found.inode), now
            if found is not None and (store := store_in_use(self._ident, found.peer_port)) is not None:
                self._cut.append((found, store))
                return int(shut_down(found))
        if found is None or now < self._since + PATIENCE:
            return 0
        log.warning(
            "the main thread blocks in a read from port %d that no signal ends: the connection is shut down",
            found.peer_port,
        )
        return int(shut_down(found))

    def restore(self) -> None:
        """Connect the stores again whose connection was shut down, before the function is entered."""
        self._inode = 0
        while self._cut:
            _restore(*self._cut.pop())

    def _connection(self) -> TcpSocket | None:
        fd = waits_on(self._thread)
        try:
            found = None if fd is None else describe(fd, os.fstat(fd).st_ino)
        except OSError:
            return None
        return found if found is not None and found.peer_port else None


def _restore(cut: TcpSocket, store: dist.TCPStore) -> None:
    """Put a new connection in the place of one that was shut down: torch's client connects only once."""
    before = socket_inodes()
    try:
        fresh = reconnect(store, _no_clone, {})
        new = tcp_sockets(lambda inode: inode not in before)
        (found,) = [each for each in new if each.peer_port == cut.peer_port]
        put_in_place(found, cut)
        del fresh
    except (StoreConnectionError, RuntimeError, OSError, ValueError):
        log.warning(
            "the store on %s:%d, made before the call, does not answer: it cannot be used any more. Make it in the "
            "function, or host it in a process that is no rank", store.host, store.port,
        )  # fmt: skip


def _no_clone(**kwargs: Any) -> dist.Store:
    raise StoreConnectionError("this version of torch opens no second connection of a store")
