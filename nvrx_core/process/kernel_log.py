"""The kernel's log, as /dev/kmsg has it; nothing where it cannot be read, as in most containers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["KERNEL_LOG", "NewRecords", "kernel_lines"]

KERNEL_LOG: Final = Path("/dev/kmsg")
MAX_LINES: Final = 1 << 17
LONGEST: Final = 1 << 13
"""Bytes of a record."""
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def kernel_lines(path: Path = KERNEL_LOG) -> Iterator[str]:
    """Yield the lines of the records, see Documentation/ABI/testing/dev-kmsg; does not wait for further ones.

    Args:
        path: of the log.
    """
    with suppress(OSError):
        fd = os.open(path, _FLAGS)
        try:
            yield from _lines(fd)
        finally:
            os.close(fd)


class NewRecords:
    """The records from now on.

    The kernel remembers how far the log was: its times drift from those of every clock that a process can read.

    Args:
        path: of the log.
    """

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        self._fd = -1
        with suppress(OSError):
            self._fd = os.open(path, _FLAGS)
        self.skip()

    def skip(self) -> None:
        """Leave out the records that were not read yet."""
        with suppress(OSError):
            os.lseek(self._fd, 0, os.SEEK_END)

    def texts(self) -> Iterator[str]:
        """Yield the texts of the records that were not read yet; does not wait for further ones."""
        with suppress(OSError):
            for line in _lines(self._fd):
                fields, _, text = line.partition(";")
                if text and not fields.startswith(" "):  # what else a record has
                    yield text

    def close(self) -> None:
        """Close the log, which has no records then."""
        fd, self._fd = self._fd, -1
        with suppress(OSError):
            os.close(fd)


def _lines(fd: int) -> Iterator[str]:
    for _ in range(MAX_LINES):
        try:
            record = os.read(fd, LONGEST)
        except BrokenPipeError:  # records were overwritten before they were read
            continue
        if not record:
            return
        yield from record.decode(errors="replace").splitlines()
