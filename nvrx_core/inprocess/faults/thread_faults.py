"""Exceptions that end other threads than the main one, for `thread_exceptions="fault"`.

A thread belongs to the iteration that started it. A thread that outlives its iteration may fail at any later time: that
is not a fault of the iteration that runs then, and is only logged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from weakref import WeakSet

from nvrx_core.fault.exceptions import text_of

__all__ = ["ThreadFaults"]

log = logging.getLogger("nvrx_core.inprocess")


class ThreadFaults:
    """Python's hook for such exceptions.

    Args:
        failed: called in the failing thread with its exception and the iteration that has started the thread.
    """

    def __init__(self, failed: Callable[[BaseException, int], None]) -> None:
        self._failed = failed
        self._former, self._installed = threading.excepthook, False
        self._iteration = -1
        self._older = WeakSet[threading.Thread]()

    def install(self) -> None:
        """Install the hook."""
        self._former, self._installed = threading.excepthook, True
        threading.excepthook = self._hook

    def uninstall(self) -> None:
        """Restore the previous hook; a hook that the user has set meanwhile stays, and may call this one."""
        if self._installed and threading.excepthook == self._hook:
            threading.excepthook = self._former
        self._installed = False

    def begin(self, iteration: int) -> None:
        """Mark all existing threads as older: the function of this iteration is entered now."""
        if self._installed:
            self._older, self._iteration = WeakSet(threading.enumerate()), iteration

    def _hook(self, hook: threading.ExceptHookArgs) -> None:
        try:
            if self._installed and hook.exc_value is not None and not isinstance(hook.exc_value, SystemExit):
                self._tell(hook.exc_value, hook.thread)
        finally:
            self._former(hook)  # it reads source files: after the others know

    def _tell(self, error: BaseException, thread: threading.Thread | None) -> None:
        older, iteration = self._older, self._iteration
        if thread is None or thread not in older:
            self._failed(error, iteration)
        else:
            log.warning("%s is older than iteration %d, and no fault of it: %s", thread.name, iteration, text_of(error))
