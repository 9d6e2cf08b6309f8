"""NCCL's service threads, woken so that the abort of a communicator does not wait for them.

Each communicator has two threads that wait in poll for 500 ms at a time, one for connections and one for datagrams, and
look between two calls whether they are to end; an abort joins them one after the other, which takes up to a second. A
connection, or an empty datagram, ends such a call. To a communicator that goes on it is a peer that says nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from nvrx_core.process.sockets import knock
from nvrx_core.process.system_calls import native_thread_ids, poll_of

__all__ = ["services_awake", "wake"]

WAITS: Final = 500
"""Milliseconds in the threads' call of poll, which identify them: NCCL gives them names only on request."""
TICK: Final = 0.002
SEARCH_EVERY: Final = 25
"""Ticks between two searches of all threads; meanwhile those that were found are woken."""


@contextmanager
def services_awake(within: float) -> Iterator[None]:
    """Return a context in which the service threads of this process wait for 2 ms at a time, for `within` seconds."""
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
    return poll is not None and poll.timeout == WAITS and any(knock(fd) for fd in poll.fds)
