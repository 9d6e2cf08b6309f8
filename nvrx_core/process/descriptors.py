"""Release of descriptors that another owner may close later: each is replaced by /dev/null.

If it were closed instead, its number could be reused, and the later close would close an unrelated file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["give_up"]


def give_up(fds: Iterable[int]) -> None:
    """Replace those of the descriptors that are open by /dev/null."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        with suppress(OSError):
            os.fstat(fd)
            os.dup2(null, fd, inheritable=False)
    os.close(null)
