"""The stacks of all threads of a process, asked for from outside.

A thread of the process's own answers, and does nothing else: while it writes, it holds the interpreter's lock, so no
other thread runs bytecode and the frames that it walks do not change. Where it does not answer, a call holds the lock,
and the process cannot tell where it hangs. Then faulthandler answers a signal, in C, in whichever thread the kernel
picks, and without the lock. Beside a thread that runs bytecode it may crash the process, so it comes second.

The answer goes into a pipe that the asking process reads. A process that is stopped does not answer.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Final

from nvrx_core.process.lifeline import catches, send
from nvrx_core.process.waiting import readable

__all__ = ["Stacks", "show"]

THREAD_ANSWERS_WITHIN: Final = 1.0
"""Seconds until the thread's first bytes: as long as it may wait for a CPU and for the lock on a busy machine."""
ANSWERS_WITHIN: Final = 0.5
"""Seconds until the signal's first bytes, on a busy machine."""
QUIET: Final = 0.05
"""Seconds without a further byte after which the answer to the signal is complete: it has no end mark."""
PIPE: Final = 1 << 20
"""Bytes: a hundred threads, which is as many as faulthandler shows."""
END: Final = b"\0"
"""After the thread's answer."""


class Stacks:
    """The stacks of the process that makes this, for those that it forks later.

    Attributes:
        descriptors: those that the asking process must keep.
        signum: the signal that asks; a real-time signal that nobody else in the process uses. None: there is none.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with suppress(OSError):
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, PIPE)
        self._asked, self._ending = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2))
        self.descriptors = (self._reader, self._asked)
        self._thread = threading.Thread(target=self._serve, name="nvrx-stacks", daemon=True)
        free = (n for n in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if not catches(os.getpid(), n))
        self.signum = next(free, None)
        if self.signum is not None:
            faulthandler.register(self.signum, file=self._writer, all_threads=True, chain=False)

    def start(self) -> None:
        """Start the thread that answers; after the asking process was forked."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, give signal and descriptors back."""
        os.eventfd_write(self._ending, 1)
        if self._thread.ident is not None:
            self._thread.join()
        if self.signum is not None:
            faulthandler.unregister(self.signum)
        for fd in (*self.descriptors, self._writer, self._ending):
            os.close(fd)

    def take(self, pidfd: int) -> str:
        """Ask the process, and return what it answers in time; "" for nothing."""
        self._read()  # what came too late for an earlier question
        os.eventfd_write(self._asked, 1)
        if readable([self._reader], THREAD_ANSWERS_WITHIN) or not self._claim():
            return self._answer(ANSWERS_WITHIN)
        if self.signum is None:
            return ""
        send(pidfd, [self.signum])
        return self._answer(QUIET)

    def _serve(self) -> None:
        """Answer until `close`."""
        while self._ending not in readable([self._asked, self._ending]):
            if self._claim():
                faulthandler.dump_traceback(self._writer, all_threads=True)
                with suppress(BlockingIOError):
                    os.write(self._writer, END)

    def _claim(self) -> bool:
        """Take the question: what the asking process has taken back, the thread does not answer beside the signal."""
        with suppress(BlockingIOError):
            return bool(os.eventfd_read(self._asked))
        return False

    def _answer(self, pause: float) -> str:
        """Read up to the end mark, or until there was nothing for so many seconds."""
        text, within = b"", ANSWERS_WITHIN
        while not text.endswith(END) and readable([self._reader], within) and (part := self._read()):
            text, within = text + part, pause
        return text.removesuffix(END).decode(errors="replace")

    def _read(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self._reader, PIPE)
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
