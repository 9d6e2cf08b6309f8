"""The stacks of all threads of a process, asked for from outside.

A process that hangs cannot tell where: its interpreter's lock may be held by the call that hangs. So faulthandler
answers a signal in C, in whichever thread the kernel picks, and without the lock, into a pipe that the asking process
reads. A process that is stopped does not answer.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
from contextlib import suppress
from typing import Final

from nvrx_core.process.lifeline import catches, send
from nvrx_core.process.waiting import readable

__all__ = ["Stacks", "show"]

ANSWERS_WITHIN: Final = 0.5
"""Seconds until the first bytes, on a busy machine."""
QUIET: Final = 0.05
"""Seconds without a further byte after which the answer is complete: it has no end mark."""
PIPE: Final = 1 << 20
"""Bytes: a hundred threads, which is as many as faulthandler shows."""


class Stacks:
    """The stacks of the process that makes this, for those that it forks later.

    Attributes:
        reader: the descriptor that the asking process must keep.
        signum: the signal that asks; a real-time signal that nobody else in the process uses. None: there is none.
    """

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with suppress(OSError):
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, PIPE)
        free = (n for n in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if not catches(os.getpid(), n))
        self.signum = next(free, None)
        if self.signum is not None:
            faulthandler.register(self.signum, file=self._writer, all_threads=True, chain=False)

    def close(self) -> None:
        """Give signal and descriptors back."""
        if self.signum is not None:
            faulthandler.unregister(self.signum)
        os.close(self._writer)
        os.close(self.reader)

    def take(self, pidfd: int) -> str:
        """Ask the process, and return what it answers in time; "" for nothing."""
        if self.signum is None:
            return ""
        send(pidfd, [self.signum])
        parts, within = list[bytes](), ANSWERS_WITHIN
        while readable([self.reader], within) and (part := self._read()):
            parts.append(part)
            within = QUIET
        return b"".join(parts).decode(errors="replace")

    def _read(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self.reader, PIPE)
        return b""


def show(pid: int, text: str) -> None:
    """Write the text to the stderr of another process, where people look for it; nothing happens where that fails.

    A process that was started without a stderr may have anything else in its place; those that it forks know.
    """
    if sys.__stderr__ is None:
        return
    with suppress(OSError):
        fd = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
