"""Waits for descriptors of any number: `select` accepts none above 1023, and a rank may have more open files."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Protocol, TypeVar

__all__ = ["readable", "writable"]


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


File = TypeVar("File", bound=int | _HasFileno)


def readable(files: Iterable[File], timeout: float | None = None) -> list[File]:
    """Wait until files are readable or at end of file, and return them; return none after `timeout` seconds."""
    by_number = {file if isinstance(file, int) else file.fileno(): file for file in files}
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)]


def writable(fd: int, timeout: float) -> bool:
    """Wait until a descriptor is writable or broken; return whether it is within `timeout` seconds."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(timeout * 1000))
