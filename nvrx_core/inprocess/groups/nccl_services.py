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
from nvrx_core.process.system_calls import poll_of, thread_names

__all__ = ["services_awake", "wake"]

WAITS: Final = 500
"""Milliseconds in the threads' call of poll, which identify them: NCCL gives them names only on request."""
TICK: Final = 0.002


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
    for _ in range(int(within / TICK)):
        if over.wait(TICK):
            return
        wake()


def wake() -> int:
    """Wake those that wait; return how many."""
    native = thread_names().keys() - {thread.native_id for thread in threading.enumerate()}
    polls = [poll for tid in native if (poll := poll_of(tid)) is not None and poll.timeout == WAITS]
    return sum(knock(fd) for poll in polls for fd in poll.fds)
