"""Waits between threads that stand a signal handler which raises, as a user's `sys.exit` on SIGTERM does.

A condition of `threading`, and so its events, is Python code: an exception between two of its lines leaves its lock
held, or released where its `with` releases it once more. Here, locks are only taken and released by C code, between
which and the body of a `with` no handler runs, and nothing has to be taken back after a wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

__all__ = ["SignalSafeCondition", "SignalSafeEvent"]


class SignalSafeCondition:
    """A condition.

    Attributes:
        lock: held while the state that the condition is about is read or written; not while a thread waits.
    """

    def __init__(self) -> None:
        self.lock, self._waiting = threading.RLock(), deque[threading.Lock]()

    def notify_all(self) -> None:
        """Let all waiting threads look at the state again."""
        with self.lock:
            for waiter in tuple(self._waiting):
                with suppress(RuntimeError):  # notified before, by a call that was cut short
                    waiter.release()
            self._waiting.clear()

    def wait_for(self, predicate: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until a predicate holds, for so many seconds; returns whether it holds. The lock must not be held.

        Args:
            predicate: called with the lock held.
            seconds: the time to wait.
        """
        deadline = time.monotonic() + seconds
        while True:
            with self.lock:
                left = deadline - time.monotonic()
                if predicate():
                    return True
                if left <= 0:
                    return False
                waiter = threading.Lock()
                waiter.acquire()
                self._waiting.append(waiter)
            if not waiter.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
                with self.lock, suppress(ValueError):
                    self._waiting.remove(waiter)


class SignalSafeEvent:
    """An event with the methods of `threading.Event`."""

    def __init__(self) -> None:
        self._condition, self._set = SignalSafeCondition(), False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it, and end all waits for it."""
        self._set = True
        self._condition.notify_all()

    def clear(self) -> None:
        """Let it be waited for again."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for so many seconds; returns whether it is set."""
        return self._condition.wait_for(self.is_set, math.inf if timeout is None else timeout)
