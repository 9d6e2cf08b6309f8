"""When a fork that has failed is tried again. Pure.

A limit of processes, or a lack of memory, may last for a moment only. The time is that of the pauses between the tries:
one for which the machine is paused does not count.
"""

from __future__ import annotations

import errno
from typing import Final

__all__ = ["ForkRetry"]

TRANSIENT: Final = frozenset({errno.EAGAIN, errno.ENOMEM})
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0


class ForkRetry:
    """The tries of one fork.

    Args:
        within: seconds of pauses after which it is given up.
    """

    def __init__(self, within: float) -> None:
        self._left, self._pause = within, FIRST_PAUSE

    def failed(self, code: int | None) -> float | None:
        """Return after how many seconds to try again; None: not again.

        Args:
            code: the `errno` of the failure.
        """
        if code not in TRANSIENT or self._left <= 0:
            return None
        pause = min(self._pause, self._left)
        self._left, self._pause = self._left - pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause
