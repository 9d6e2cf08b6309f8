"""Release of descriptors that have, or have had, another owner.

One that another owner may close later is replaced by /dev/null: if it were closed instead, its number could be reused,
and the later close would close an unrelated file. One that another owner may have closed is closed only if it is still
the same file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["close_if_left", "give_up"]


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
