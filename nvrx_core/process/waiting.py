"""Waits for descriptors of any number: `select` accepts none above 1023, and a rank may have more open files.

`poll` is the interpreter's own, also where a library that makes waits cooperative has replaced or deleted it.
"""

from __future__ import annotations

from collections.abc import Iterable
from select import POLLIN, POLLOUT, poll
from typing import Protocol, TypeVar

__all__ = ["readable", "writable"]


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
