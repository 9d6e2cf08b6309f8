"""Waits: for descriptors of any number, and for events of `multiprocessing`.

`select` accepts no descriptor above 1023, and a rank may have more open files.

`poll` is the interpreter's own, also where a library that makes waits cooperative has replaced or deleted it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from multiprocessing.synchronize import Event
from select import POLLIN, POLLOUT, poll
from typing import Protocol, TypeVar

__all__ = ["readable", "wait_for_mp_events", "writable"]


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


File = TypeVar("File", bound=int | _HasFileno)


def readable(files: Iterable[File], timeout: float | None = None) -> list[File]:
    """Wait until files are readable or at end of file, and return them; return none after `timeout` seconds."""
    by_number = {file if isinstance(file, int) else file.fileno(): file for file in files}
    waiting = poll()
    for number in by_number:
        waiting.register(number, POLLIN)
    return [by_number[number] for number, _ in waiting.poll(None if timeout is None else max(0.0, timeout) * 1000)]


def writable(fd: int, timeout: float) -> bool:
    """Wait until a descriptor is writable or broken; return whether it is within `timeout` seconds."""
    waiting = poll()
    waiting.register(fd, POLLOUT)
    return bool(waiting.poll(timeout * 1000))


def wait_for_mp_events(events: Iterable[Event], timeout: float = 60.0) -> bool:
    """Wait until all events are set, by which processes that are started say that they are ready.

    Args:
        events: the events.
        timeout: seconds for all of them.

    Returns:
        Whether all are set; False when the time is up.
    """
    deadline = time.monotonic() + timeout
    return all(event.wait(max(0.0, deadline - time.monotonic())) for event in events)
