"""The bytes that wait for a destination, within a limit. Pure.

Output of workers is read no faster than the destination takes it, so a slow one loses nothing. A destination that takes
nothing at all for `STALLED_AFTER` has stalled: a lossy one, such as a terminal, then loses output, so that the workers
are not held up; the log files are complete, and hold the workers up that write to them, as files that they opened
themselves do. The launcher's own lines never wait: they have some room that output of workers does not take.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

__all__ = ["STALLED_AFTER", "Backlog", "LostOutput"]

STALLED_AFTER: Final = 1.0
"""Seconds without progress after which a destination has stalled."""


@dataclass(frozen=True)
class LostOutput:
    """Output that was lost.

    Attributes:
        count: bytes.
        stood: the longest time for which the destination took nothing meanwhile, seconds; 0: less than a second.
    """

    count: int
    stood: float


class Backlog:
    """The bytes that wait for one destination.

    Args:
        limit: bytes that may wait.
        reserve: further bytes, for lines of the launcher.
        is_lossy: the destination loses output when it has stalled.

    Attributes:
        size: bytes that wait, with those that are being written.
    """

    def __init__(self, limit: int, *, reserve: int = 0, is_lossy: bool = True) -> None:
        self._limit, self._reserve, self._is_lossy = limit, reserve, is_lossy
        self._chunks, self.size = deque[bytes](), 0
        self._lost, self._stood, self._moved_at = 0, 0.0, 0.0
        self._is_over = False

    def put(self, data: bytes, *, now: float, is_own: bool = False) -> None:
        """Append bytes; they are lost if there is no room.

        Args:
            data: the bytes; any number if nothing waits.
            now: monotonic seconds.
            is_own: a line of the launcher.
        """
        if self._is_over:
            return
        if self.size and self.size + len(data) > self._limit + (self._reserve if is_own else 0):
            self._lost += len(data)
            return
        if not self.size:
            self._moved_at = now
        self._chunks.append(data)
        self.size += len(data)

    def peek(self, most: int) -> bytes:
        """Return what is to be written next: `most` bytes or fewer; b"" if nothing waits."""
        found, size = list[bytes](), 0
        for chunk in self._chunks:
            found.append(chunk[: most - size])
            size += len(found[-1])
            if size >= most:
                break
        return b"".join(found)

    def wrote(self, count: int, *, now: float) -> None:
        """Record that the destination has taken so many bytes."""
        if now - self._moved_at >= STALLED_AFTER:
            self._stood = max(self._stood, now - self._moved_at)
        self._moved_at = now
        self._remove(count)

    def failed(self, count: int, *, now: float) -> None:
        """Record that the destination has refused so many bytes: they are lost."""
        self._moved_at = now
        self._lost += count
        self._remove(count)

    def must_wait(self, *, now: float) -> bool:
        """Return whether no more output of workers should be read until there is room, or the destination stalls."""
        return self.size >= self._limit // 2 and now < self.stalls_at

    @property
    def stalls_at(self) -> float:
        """When the destination will have stalled, monotonic seconds; `inf`: output waits for it however long."""
        return self._moved_at + STALLED_AFTER if self._is_lossy else math.inf

    @property
    def has_room(self) -> bool:
        """Whether reading may continue after `must_wait`."""
        return self.size <= self._limit // 4

    def take_loss(self, *, is_final: bool = False) -> LostOutput | None:
        """Return what was lost, once, when the destination has caught up; None: nothing, or not yet.

        Args:
            is_final: nothing more will be written: what waits is lost as well, and what is put later is ignored.
        """
        if is_final:
            self._is_over = True
            self._lost += self.size
            self._chunks.clear()
            self.size = 0
        if not self._lost or not self.has_room:
            return None
        loss, self._lost, self._stood = LostOutput(self._lost, self._stood), 0, 0.0
        return loss

    def _remove(self, count: int) -> None:
        if self._is_over:  # it has been counted as lost
            return
        self.size -= count
        while count:
            chunk = self._chunks.popleft()
            if count < len(chunk):
                self._chunks.appendleft(chunk[count:])
            count -= min(count, len(chunk))
