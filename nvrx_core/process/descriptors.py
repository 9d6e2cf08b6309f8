"""Release of descriptors that have, or have had, another owner.

Other code in this process may close all descriptors from 3 on, as code for daemons does, and open files that get their
numbers. So nothing is written to a number that has become another file.

One that another owner may close later is replaced by /dev/null: if it were closed instead, its number could be reused,
and the later close would close an unrelated file. One that another owner may have closed is closed only if it is still
the same file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

__all__ = ["close_if_left", "give_up", "identity", "notify", "open_standard_descriptors"]

STDERR: Final = 2


def open_standard_descriptors() -> None:
    """Open /dev/null in the place of those that are closed: other files would get numbers that libraries print to."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(fd)


def identity(fd: int) -> tuple[int, int] | None:
    """Return what tells the file of a descriptor from others; None when it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def notify(fd: int) -> None:
    """Add one to an eventfd.

    Raises:
        OSError: when it has been closed, or is another file: an eventfd has no type of file.
    """
    try:
        is_eventfd = not stat.S_IFMT(os.fstat(fd).st_mode)
    except OSError:
        is_eventfd = False
    if not is_eventfd:
        raise OSError(errno.EBADF, f"other code in this process has closed descriptor {fd}, which is nvrx's")
    os.eventfd_write(fd, 1)


def give_up(fds: Iterable[int]) -> None:
    """Replace those of the descriptors that are open by /dev/null."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        with suppress(OSError):
            os.fstat(fd)
            os.dup2(null, fd, inheritable=False)
    os.close(null)


def close_if_left(fd: int, inode: int) -> None:
    """Close a descriptor whose owner has failed, unless that owner has closed it."""
    with suppress(OSError):
        if os.fstat(fd).st_ino == inode:
            os.close(fd)
