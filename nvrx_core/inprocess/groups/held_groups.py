"""The process groups of a function, referenced until the garbage of the iteration is collected.

A group that torch has registered is kept by torch, and a reference to it costs nothing. A group that the function has
destroyed would be freed without ours: those are kept up to `BUDGET`, the last ones, for a function that creates and
destroys many.

gloo's destructor takes some 10 ms, in which it waits for a thread. The groups are therefore released by threads of
their own, beside the next iteration.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

__all__ = ["HeldGroups", "bytes_of"]

BUDGET: Final = 8 << 20
"""Bytes of destroyed groups: some fifty of two ranks, eight of 64 ranks."""
BYTES_OF_GROUP: Final = 128 << 10
BYTES_OF_RANK: Final = 16 << 10
"""What a group of gloo takes: a thread with its stack, and a connection to each rank with its buffers."""
FIRST_LOOK: Final = 64
FEW: Final = 16
"""Groups that are released by one thread."""
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
        """Release all groups in the background."""
        self._releasing = [thread for thread in self._releasing if thread.is_alive()]
        held, self._held, self._look_at = self._held, [], FIRST_LOOK
        if held:
            self._releasing += _started(_release, held)

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


def _release(held: list[Any]) -> None:
    """Release the groups in this thread, many of them in further ones."""
    threads = THREADS if len(held) > FEW else 1
    shares = [held[first::threads] for first in range(threads)]
    held.clear()
    others = [thread for share in shares[1:] for thread in _started(list.clear, share)]
    shares[0].clear()
    for thread in others:
        thread.join()


def _started(release: Callable[[list[Any]], None], held: list[Any]) -> list[threading.Thread]:
    """Start a thread that releases the groups; without one, if the process has no threads left, this thread does it."""
    thread = threading.Thread(target=release, args=(held,), name="nvrx-release")
    try:
        thread.start()
    except RuntimeError:
        release(held)
        return []
    return [thread]


def bytes_of(ranks: int) -> int:
    """Return about how many bytes a group of so many ranks takes."""
    return BYTES_OF_GROUP + ranks * BYTES_OF_RANK
