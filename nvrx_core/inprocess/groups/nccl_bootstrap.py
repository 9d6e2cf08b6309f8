"""The listeners at which a rank waits for its peers while NCCL creates a communicator.

The first operation of a group creates its communicator, and waits in NCCL for all ranks of the group. No abort of NCCL
reaches it: torch does not have the communicator yet. The thread tries again and again to accept a connection; it fails
when its listener is shut down. NCCL's listeners of that time are those that no thread waits for.
"""

from __future__ import annotations

import threading

from nvrx_core.process.bounded import cuda_device
from nvrx_core.process.sockets import TcpSocket, shut_down, tcp_sockets
from nvrx_core.process.system_calls import awaited, is_busy

__all__ = ["NcclBootstrap"]


class NcclBootstrap:
    """The creation of communicators by the thread that creates this object."""

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._unwaited = frozenset[int]()

    def cut(self, older: frozenset[int]) -> int:
        """Let the thread's creation of a communicator fail, if it has been in one for two calls.

        A thread that serves a listener may be busy with a request in one of them.

        Args:
            older: the inodes of sockets of before the function.

        Returns:
            How many listeners were shut down.
        """
        found = _unwaited(older) if cuda_device() is not None and is_busy(self._thread) else []
        before, self._unwaited = self._unwaited, frozenset(each.inode for each in found)
        return sum(shut_down(each) for each in found if each.inode in before)


def _unwaited(older: frozenset[int]) -> list[TcpSocket]:
    """Return the listeners that no thread waits for."""
    listeners = [each for each in tcp_sockets(lambda inode: inode not in older) if each.listening]
    waited_for = awaited() if listeners else set()
    return [each for each in listeners if each.fd not in waited_for]
