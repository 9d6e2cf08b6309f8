"""The stacks of all threads of a process, requested by another process.

A dedicated thread of the process answers the request. It holds the GIL while it writes, so no other thread runs
bytecode and the frames do not change. If it does not answer, a call holds the GIL. Then a signal is sent, which
faulthandler answers in C without the GIL, in the thread that the kernel selects. This may crash the process while
another thread runs bytecode, so it is the second choice.

The answer goes through a pipe to the requesting process. A stopped process does not answer.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from contextlib import suppress
from typing import Final

from nvrx_core.process.descriptors import notify
from nvrx_core.process.helper_thread import HelperThread, HelperThreadError
from nvrx_core.process.lifeline import send
from nvrx_core.process.signalled_stacks import PIPE, answer_requests, stack_pipe
from nvrx_core.process.waiting import readable

__all__ = ["Stacks", "show"]

log = logging.getLogger("nvrx_core.process")
THREAD_ANSWER_TIMEOUT: Final = 1.0
"""Seconds until the thread's first bytes: it may wait for a CPU and for the GIL on a busy machine."""
ANSWER_TIMEOUT: Final = 0.5
"""Seconds until the signal's first bytes, on a busy machine."""
QUIET: Final = 0.05
"""Seconds without a further byte after which the answer to the signal is complete: it has no end mark."""
END: Final = b"\0"
"""The end mark of the thread's answer."""


class Stacks:
    """The stacks of the creating process, for processes that it forks later.

    Attributes:
        descriptors: the descriptors that the requesting process must keep open.
        signum: the request signal, a real-time signal without a handler in the process; 0 if there is none.
    """

    def __init__(self) -> None:
        self._reader, self._writer = stack_pipe()
        self._request, self._ending = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2))
        self.descriptors = (self._reader, self._request)
        self._thread = HelperThread(self._serve, name="nvrx-stacks", failed=_fail)
        self.signum = answer_requests(self._writer)

    def start(self) -> None:
        """Start the thread that answers, after the requesting process was forked."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, unregister the signal and close the descriptors."""
        with suppress(OSError):  # other code has closed it: the thread cannot be told
            notify(self._ending)
            if self._thread.ident is not None:
                self._thread.join()
        if self.signum:
            faulthandler.unregister(self.signum)
        for fd in (*self.descriptors, self._writer, self._ending):
            os.close(fd)

    def take(self, pidfd: int, *, threads_run: bool = True) -> str:
        """Request the stacks; return what the process answers in time, "" for nothing.

        Args:
            pidfd: the process.
            threads_run: False when a call is known to hold the GIL, so that the thread is not waited for.
        """
        self._read()  # discard a late answer to an earlier request
        os.eventfd_write(self._request, 1)
        within = THREAD_ANSWER_TIMEOUT if threads_run else 0.0
        if readable([self._reader], within) or not self._claim():
            return self._answer(ANSWER_TIMEOUT)
        if not self.signum:
            return ""
        send(pidfd, [self.signum])
        return self._answer(QUIET)

    def _serve(self) -> None:
        """Answer requests until `close`."""
        while self._ending not in readable([self._request, self._ending]):
            if self._claim():
                faulthandler.dump_traceback(self._writer, all_threads=True)
                with suppress(BlockingIOError):
                    os.write(self._writer, END)

    def _claim(self) -> bool:
        """Take the request; one that the requesting process has taken back is not answered by the thread as well."""
        with suppress(BlockingIOError):
            return bool(os.eventfd_read(self._request))
        return False

    def _answer(self, pause: float) -> str:
        """Read up to the end mark, or until nothing arrives for `pause` seconds."""
        text, within = b"", ANSWER_TIMEOUT
        while not text.endswith(END) and readable([self._reader], within) and (part := self._read()):
            text, within = text + part, pause
        return text.removesuffix(END).decode(errors="replace")

    def _read(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self._reader, PIPE)
        return b""


def _fail(error: HelperThreadError) -> None:
    log.error("%s; the stacks of this process are taken by a signal", error)


def show(pid: int, text: str) -> None:
    """Write a text to the stderr of another process, where users expect it; ignore a failure.

    Nothing is written if this process was started without a stderr: then its parent has none either, and descriptor 2
    there may be any file.
    """
    if sys.__stderr__ is None:
        return
    with suppress(OSError):
        fd = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
