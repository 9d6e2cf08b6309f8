"""The event loop: descriptors with their callbacks, and one deadline."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Callable
from typing import Any

__all__ = ["EventLoop"]


class EventLoop:
    """Waits for many descriptors at a time; all callbacks run in the thread that turns it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, fd: int, readable: Callable[[], object]) -> None:
        """Call `readable` whenever a descriptor is readable, or at its end."""
        self._selector.register(fd, selectors.EVENT_READ, readable)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor, before it is closed; one that is not watched is no error."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def turn(self, deadline: float) -> float:
        """Wait until a descriptor is readable, or until a monotonic time; then call back.

        Args:
            deadline: monotonic seconds; `inf` waits for a descriptor.

        Returns:
            The time up to which everything that has arrived is handled: deadlines are compared with it. The callbacks
            may have taken long, and what has arrived meanwhile, such as a renewed lease, is handled in the next turn.
        """
        timeout = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        found = self._selector.select(timeout)
        now = time.monotonic()
        for key, _ in found:
            if self._selector.get_map().get(key.fd) is key:  # an earlier one may have ended it, and reused its number
                callback: Callable[[], Any] = key.data
                callback()
        return now

    def close(self) -> None:
        """Stop watching all descriptors."""
        self._selector.close()
