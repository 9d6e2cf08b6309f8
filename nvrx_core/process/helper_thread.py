"""Threads whose end is noticed: an exception in one is reported to its owner, or ends the process.

A thread that ends by an exception leaves a process that looks alive and does nothing: a lease is no longer renewed, a
decision no longer read. So every helper thread of launchers, rendezvous, stores and monitors is a `HelperThread`. Its
owner says what follows from an exception: a launcher ends with a code and a line, an object in a user's process raises
it where the user waits. Without an owner the process ends.
"""

from __future__ import annotations

import copyreg
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nvrx_core import failpoint
from nvrx_core.errors import STORE_LOST
from nvrx_core.process.waiting import writable

__all__ = ["HelperThread", "HelperThreadError", "end_process"]

log = logging.getLogger("nvrx_core.process")
STDERR: Final = 2
WRITE_TIMEOUT: Final = 1.0
"""Seconds that the last line of a process waits for a reader that has stopped."""


class HelperThreadError(RuntimeError):
    """The exception by which a helper thread has ended; its text is one line with the thread's name."""

    def __init__(self, name: str, error: BaseException) -> None:
        text = (str(error).splitlines() or [""])[0]
        super().__init__(f"the thread {name} has failed: {type(error).__name__}{': ' if text else ''}{text}")
        self.__cause__ = error

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        # its text alone: `error` may be one that cannot be pickled
        return copyreg.__newobj__, (type(self), *self.args)  # type: ignore[attr-defined]


def end_process(error: BaseException) -> None:
    """End this process with code 75 and one line on stderr, from any thread and without cleaning up."""
    line = f"{error}; process {os.getpid()} ends with code {STORE_LOST}\n".encode()
    with suppress(OSError):
        if writable(STDERR, WRITE_TIMEOUT):
            os.write(STDERR, line)
    os._exit(STORE_LOST)


class HelperThread(threading.Thread):
    """A daemon thread that reports the exception of its body.

    Its first act is to hit the failpoint of its name, without a number at the end, in iteration -1.

    Args:
        body: runs in the thread.
        name: the name of the thread; one of `failpoint.THREAD_NAMES`, to which a rank may be appended.
        failed: called in the thread with the error, when `body` has raised.
    """

    def __init__(
        self, body: Callable[[], object], *, name: str, failed: Callable[[HelperThreadError], object] = end_process
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._body, self._failed = body, failed

    def run(self) -> None:
        """Run the body, and report its exception; called by `start`."""
        try:
            failpoint.hit(self.name.rstrip("-0123456789"), -1)
            self._body()
        except BaseException as error:  # boundary: the thread ends here, and its owner decides what follows
            log.debug("the thread %s has failed", self.name, exc_info=error)
            self._report(HelperThreadError(self.name, error))
        finally:
            del self._body, self._failed  # the objects of which they are methods own this thread

    def _report(self, failure: HelperThreadError) -> None:
        try:
            self._failed(failure)
        except BaseException:  # boundary: its owner cannot handle it, so the process ends
            end_process(failure)
