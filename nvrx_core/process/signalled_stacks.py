"""The stacks of another process, which it has allowed to be asked for by a signal.

The process gets the writing end of a pipe and registers a signal with faulthandler, which writes the stacks of all
threads there, in C and without the GIL. The process with the reading end sends the signal and awaits the text beside
its other descriptors. A stopped process does not answer.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import threading
from contextlib import suppress
from typing import Final

from nvrx_core.process.lifeline import catches, send

__all__ = ["PIPE", "StackRequest", "answer_requests", "answer_requests_no_more", "stack_pipe"]

PIPE: Final = 1 << 20
"""Bytes: enough for a hundred threads, the maximum that faulthandler writes."""
ANSWER_TIMEOUT: Final = 0.3
"""Seconds until the first bytes."""
QUIET: Final = 0.05
"""Seconds without a further byte after which the answer is complete: it has no end mark."""


def stack_pipe() -> tuple[int, int]:
    """Return a pipe for stacks, of which neither end blocks: what does not fit is lost."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    with suppress(OSError):
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE)
    return reader, writer


def answer_requests(writer: int) -> int:
    """Have this process write its stacks to a pipe on a signal that has no handler; return the signal, 0 for none."""
    signum = next((n for n in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if not catches(os.getpid(), n)), 0)
    if signum:
        faulthandler.register(signum, file=writer, all_threads=True, chain=False)
    return signum


def answer_requests_no_more(signum: int) -> bool:
    """Ignore the signal from now on: a late one must not end the process.

    Returns:
        Whether the pipe can be closed. A thread that is not the main one can change no handler: the process goes on
        answering.
    """
    if signum and threading.current_thread() is not threading.main_thread():
        return False
    if signum:
        faulthandler.unregister(signum)
        signal.signal(signum, signal.SIG_IGN)
    return True


class StackRequest:
    """One request.

    Args:
        reader: the reading end.
        pidfd: the process.
        signum: the signal that it has registered.
        now: monotonic seconds.

    Attributes:
        deadline: when to go on with what there is.
    """

    def __init__(self, reader: int, pidfd: int, signum: int, *, now: float) -> None:
        self.reader, self._parts = reader, list[bytes]()
        self.receive(now=now)
        self._parts.clear()  # a late answer to an earlier request
        self.deadline = now + ANSWER_TIMEOUT
        send(pidfd, [signum])

    @property
    def text(self) -> str:
        """What the process has written so far."""
        return b"".join(self._parts).decode(errors="replace")

    def is_complete(self, *, now: float) -> bool:
        """Whether there is nothing more to wait for."""
        return now >= self.deadline

    def receive(self, *, now: float) -> None:
        """Take what there is to be read."""
        with suppress(BlockingIOError):
            while part := os.read(self.reader, PIPE):
                self._parts.append(part)
        self.deadline = now + QUIET
