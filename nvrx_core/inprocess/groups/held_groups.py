"""The process groups of a function, referenced until the round is decided.

A group that torch has registered is kept by torch, and a reference to it costs nothing. A group that the function has
destroyed would be freed without ours: those are kept up to `BUDGET`, the last ones, for a function that creates and
destroys many.

gloo's destructor takes some 10 ms, in which it waits for a thread. Hundreds of groups are therefore released by threads
of their own: the monitor thread goes on to watch the next round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

__all__ = ["HeldGroups", "bytes_of"]

BUDGET: Final = 8 << 20
"""Bytes of destroyed groups: some fifty of two ranks, eight of 64 ranks."""
BYTES_OF_GROUP: Final = 128 << 10
BYTES_OF_RANK: Final = 16 << 10
"""What a group of gloo takes: a thread with its stack, and a connection to each rank with its buffers."""
FIRST_LOOK: Final = 64
FEW: Final = 16
"""Groups that are released in the calling thread."""
THREADS: Final = 8


class HeldGroups:
    """References to groups; adding one takes constant time on average.

    Args:
        is_registered: whether torch has registered a group.
    """

    def __init__(self, is_registered: Callable[[Any], bool]) -> None:
        self._is_registered = is_registered
        self._held = list[tuple[Any, int]]()
        self._look_at = FIRST_LOOK
        self._releasing = list[threading.Thread]()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, created: Any, ranks: int) -> None:
        """Refer to what torch has returned for a new group.

        Args:
            created: the group, and what belongs to it.
            ranks: how many ranks the group has.
        """
        self._held.append((created, bytes_of(ranks)))
        if len(self._held) >= self._look_at:
            self._held = self._within_budget()
            self._look_at = max(FIRST_LOOK, 2 * len(self._held))

    def clear(self) -> None:
        """Release all groups, many of them in the background."""
        self.wait()
        held, self._held, self._look_at = self._held, [], FIRST_LOOK
        if len(held) > FEW:
            shares = [held[first::THREADS] for first in range(THREADS)]
            held.clear()
            for share in shares:
                thread = threading.Thread(target=share.clear, name="nvrx-release")
                with suppress(RuntimeError):  # the process has no threads left: the share is released here
                    thread.start()
                    self._releasing.append(thread)

    def wait(self) -> None:
        """Wait until the groups that were released in the background are gone."""
        while self._releasing:
            self._releasing.pop().join()

    def _within_budget(self) -> list[tuple[Any, int]]:
        left, kept = BUDGET, list[tuple[Any, int]]()
        for created, size in reversed(self._held):
            registered = self._is_registered(created[0])
            left -= 0 if registered else size
            if registered or left >= 0:
                kept.append((created, size))
        return kept[::-1]


def bytes_of(ranks: int) -> int:
    """Return about how many bytes a group of so many ranks takes."""
    return BYTES_OF_GROUP + ranks * BYTES_OF_RANK
