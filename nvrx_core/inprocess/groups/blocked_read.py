"""A blocking read of the main thread that no signal ends.

An example is a read on a store client that was created before the call, so that the wrapper does not know of it. The
kernel reports the descriptor that the main thread reads from. The connection is shut down when the read takes longer
than `PATIENCE`; otherwise the rank would be terminated at the hard timeout.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from nvrx_core.process.sockets import TcpSocket, describe, shut_down
from nvrx_core.process.system_calls import waits_on

__all__ = ["BlockedRead"]

log = logging.getLogger("nvrx_core.inprocess")
PATIENCE: Final = 1.0
"""Seconds that a read may take in spite of signals before its connection is shut down."""


class BlockedRead:
    """The connection that one thread reads from.

    Args:
        thread: the kernel thread id.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._inode = 0
        self._since = 0.0

    def cut(self, *, now: float) -> int:
        """Shut down the connection that the thread has been reading from for `PATIENCE`; return how many (0 or 1)."""
        found = self._connection()
        if found is None or found.inode != self._inode:
            self._inode, self._since = (0 if found is None else found.inode), now
        if found is None or now < self._since + PATIENCE:
            return 0
        log.warning(
            "the main thread blocks in a read from port %d that no signal ends: the connection is shut down; "
            "the connection of a store created inside the function is shut down without this delay",
            found.peer_port,
        )
        return int(shut_down(found))

    def _connection(self) -> TcpSocket | None:
        fd = waits_on(self._thread)
        try:
            found = None if fd is None else describe(fd, os.fstat(fd).st_ino)
        except OSError:
            return None
        return found if found is not None and found.peer_port else None
