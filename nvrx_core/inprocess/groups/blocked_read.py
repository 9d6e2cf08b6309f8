"""The connection that the main thread reads from, where no signal gets it out.

A client of a store that was made before the call is such a connection: nobody knows of it. What the main thread waits
for, the kernel tells. It is cut when the wait is no short one: the rank would be ended at the hard timeout otherwise.
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
"""Seconds that a read may take though signals arrive, before its connection is cut."""


class BlockedRead:
    """What one thread reads from.

    Args:
        thread: its number in the kernel.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._inode = 0
        self._since = 0.0

    def cut(self, *, now: float) -> int:
        """Shut down the connection that the thread has been reading from for `PATIENCE`; how many were shut down."""
        found = self._connection()
        if found is None or found.inode != self._inode:
            self._inode, self._since = (0 if found is None else found.inode), now
        if found is None or now < self._since + PATIENCE:
            return 0
        log.warning(
            "the main thread reads from a connection to port %d, and no signal gets it out: the connection is cut; "
            "a store that is made inside the function is cut at once, and made anew in the next iteration",
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
