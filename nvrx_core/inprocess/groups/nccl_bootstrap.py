"""The listeners at which a rank waits for its peers while NCCL creates a communicator.

The first operation of a group creates its communicator, and waits in NCCL for all ranks of the group. No abort of NCCL
reaches it: torch does not have the communicator yet. The thread tries again and again to accept a connection; it fails
when its listener is shut down. NCCL's listeners of that time are those that no thread waits for.
"""

from __future__ import annotations

import threading
import time

from nvrx_core.process.bounded import cuda_device
from nvrx_core.process.sockets import TcpSocket, shut_down, tcp_sockets
from nvrx_core.process.system_calls import awaited, is_busy

__all__ = ["NcclBootstrap"]

AGAIN_AFTER, AGAIN_WITHIN = 0.005, 2.0
"""Seconds between two calls that count as succeeding one another."""


class NcclBootstrap:
    """The creation of communicators by the thread that creates this object."""

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._looked_at, self._unwaited = 0.0, frozenset[int]()

    def cut(self, older: frozenset[int]) -> int:
        """Let the thread's creation of a communicator fail, if it was in one at two calls in succession.

        A thread that serves a listener may be busy with a request at one of them.

        Args:
            older: the inodes of sockets of before the function.

        Returns:
            How many listeners were shut down.
        """
        now = time.monotonic()
        found = _unwaited(older) if cuda_device() is not None and is_busy(self._thread) else []
        before = self._unwaited if AGAIN_AFTER <= now - self._looked_at <= AGAIN_WITHIN else frozenset()
        if now - self._looked_at >= AGAIN_AFTER:
            self._looked_at, self._unwaited = now, frozenset(each.inode for each in found)
        return sum(shut_down(each) for each in found if each.inode in before)


def _unwaited(older: frozenset[int]) -> list[TcpSocket]:
    """Return the listeners that no thread waits for, by any of their descriptors."""
    listeners = [each for each in tcp_sockets(lambda inode: inode not in older) if each.listening]
    waited_for = awaited() if listeners else None
    if waited_for is None:
        return []
    held = {each.inode for each in listeners if each.fd in waited_for}
    return [each for each in listeners if each.inode not in held]
