"""Descriptors that are given up in place: replaced by /dev/null, for another owner may close them later.

Were one closed, its number would be reused, and the late close would hit a stranger's file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["give_up"]


def give_up(fds: Iterable[int]) -> None:
    """Replace these descriptors by /dev/null, those of them that are open."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        with suppress(OSError):
            os.fstat(fd)
            os.dup2(null, fd, inheritable=False)
    os.close(null)
