"""Calls that other threads hand to the event loop."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from nvrx_launcher.loop import EventLoop

__all__ = ["Mailbox", "handing_on"]

Value = TypeVar("Value")


class Mailbox:
    """Calls that threads request and the event loop makes.

    Args:
        loop: the loop.
    """

    def __init__(self, loop: EventLoop) -> None:
        self._loop, self._calls = loop, SimpleQueue[Callable[[], object]]()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._wake).atexit = False  # a thread may write to it after `close`
        loop.watch(self._wake, self._deliver)

    def post(self, call: Callable[[], object]) -> None:
        """Make this call in the loop's thread; may be called from any thread."""
        self._calls.put(call)
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Stop delivering; what threads still post has no effect."""
        self._loop.forget(self._wake)

    def _deliver(self) -> None:
        os.eventfd_read(self._wake)
        with suppress(Empty):
            while True:
                self._calls.get_nowait()()


def handing_on(
    mailbox: Mailbox, read: Callable[[bytes], Value], take: Callable[[int, Value], object]
) -> Callable[[int, bytes], None]:
    """Return a function that parses a value in a thread and delivers it to the loop; a malformed one is ignored."""

    def found(number: int, text: bytes) -> None:
        with suppress(ValueError):
            value = read(text)
            mailbox.post(lambda: take(number, value))

    return found
