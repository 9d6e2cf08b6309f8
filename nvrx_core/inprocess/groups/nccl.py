"""Where NCCL makes a restart wait: the service threads of a communicator, and the creation of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from nvrx_core.process.bounded import cuda_device
from nvrx_core.process.sockets import TcpSocket, shut_down, tcp_sockets, wake_poll
from nvrx_core.process.system_calls import awaited, is_busy, native_thread_ids, poll_of

__all__ = ["NcclBootstrap", "services_awake", "wake"]


WAITS: Final = 500
"""Milliseconds in the threads' call of poll, which identify them: NCCL gives them names only on request."""
TICK: Final = 0.002
SEARCH_EVERY: Final = 25
"""Ticks between two searches of all threads; meanwhile those that were found are woken."""


@contextmanager
def services_awake(within: float) -> Iterator[None]:
    """Return a context in which the service threads of this process wait for 2 ms at a time, for `within` seconds.

    Each communicator has two threads that wait in poll for 500 ms at a time, one for connections and one for datagrams,
    and look between two calls whether they are to end; an abort joins them one after the other, which takes up to a
    second. A connection, or an empty datagram, ends such a call. To a communicator that goes on it is a peer that says
    nothing.
    """
    over = threading.Event()
    waking = threading.Thread(target=_wake_until, args=(over, within), name="nvrx-nccl-services", daemon=True)
    with suppress(RuntimeError):  # the process has no threads left
        waking.start()
    try:
        yield
    finally:
        over.set()


def _wake_until(over: threading.Event, within: float) -> None:
    services = set[int]()
    for tick in range(int(within / TICK)):
        for tid in services if tick % SEARCH_EVERY else native_thread_ids():
            if over.is_set():
                return
            if wake(tid):
                services.add(tid)
        if over.wait(TICK):
            return


def wake(tid: int) -> bool:
    """Wake a thread that waits as a service thread does; return whether it did."""
    poll = poll_of(tid)
    return poll is not None and poll.timeout == WAITS and any(wake_poll(fd) for fd in poll.fds)


AGAIN_AFTER, AGAIN_WITHIN = 0.005, 2.0
"""Seconds between two calls that count as succeeding one another."""


class NcclBootstrap:
    """The creation of communicators by the thread that creates this object.

    The first operation of a group creates its communicator, and waits in NCCL for all ranks of the group. No abort of
    NCCL reaches it: torch does not have the communicator yet. The thread tries again and again to accept a connection;
    it fails when its listener is shut down. NCCL's listeners of that time are those that no thread waits for.
    """

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
