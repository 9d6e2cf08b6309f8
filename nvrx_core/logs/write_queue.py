"""What a log server has accepted and not written yet, by file. Pure.

Chunks for one file are written together. A disk that is full, or a file system that does not answer, is tried again;
the chunks wait, and when the queue is full the server accepts no more: the nodes keep theirs. A file that cannot be
opened for another reason loses what it is sent.
"""

from __future__ import annotations

import errno
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from nvrx_core.values import value

__all__ = ["Write", "WriteQueue", "is_passing"]

Waiter = TypeVar("Waiter")
LIMIT: Final = 64 << 20
"""Bytes that wait for the disk."""
WRITE: Final = 4 << 20
"""Bytes of one write."""
MAX_FILES: Final = 256
"""Files without anything to write that are remembered."""
PAUSE: Final = 1.0
"""Seconds between two attempts to write to a file."""
PASSING: Final = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENOMEM,
    errno.EMFILE, errno.ENFILE,
})  # fmt: skip


def is_passing(number: int | None) -> bool:
    """Whether an attempt that has failed with this `errno` may succeed later."""
    return number in PASSING


@value
class Write:
    """What is to be appended to a file."""

    path: str
    data: bytes


@dataclass
class _File(Generic[Waiter]):
    parts: deque[bytes] = field(default_factory=deque)
    waiters: deque[tuple[int, Waiter]] = field(default_factory=deque)
    put: int = 0
    settled: int = 0
    not_before: float = -math.inf
    failure: str = ""


class WriteQueue(Generic[Waiter]):
    """The queues of all files, and who waits until what they have put is settled: written, or lost.

    Args:
        limit: bytes that may wait.

    Attributes:
        size: bytes that wait.
        lost: bytes that were given up.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit, self._files = limit, OrderedDict[str, _File[Waiter]]()
        self._settled = list[tuple[Waiter, str]]()
        self.size, self.lost = 0, 0

    @property
    def has_room(self) -> bool:
        """Whether more may be put."""
        return self.size < self._limit

    def put(self, path: str, data: bytes, waiter: Waiter) -> bool:
        """Append to the queue of a file; with b"", wait for what is there.

        Returns:
            Whether there is something to write for the file, and was nothing before: `deadline` may be earlier now.
        """
        file = self._files.get(path)
        if file is None:
            self._forget_idle()
            file = self._files[path] = _File()
        was_idle = not file.parts
        if data:
            file.parts.append(data)
            file.put += len(data)
            self.size += len(data)
        file.waiters.append((file.put, waiter))
        self._settle(file, 0)
        return was_idle and bool(data)

    def take_settled(self) -> list[tuple[Waiter, str]]:
        """Return whose data was settled since the last call, each with why it is lost; "" if it is written."""
        settled, self._settled = self._settled, []
        return settled

    def failure(self, path: str) -> str:
        """Return why a file could not be written last, "" if it could."""
        return self._files[path].failure if path in self._files else ""

    @property
    def deadline(self) -> float:
        """When there is something to write, monotonic seconds."""
        return min((file.not_before for file in self._files.values() if file.parts), default=math.inf)

    def take(self, *, now: float) -> Write | None:
        """Return what is to be written next; None: nothing now. Files take turns."""
        for path, file in self._files.items():
            if file.parts and now >= file.not_before:
                self._files.move_to_end(path)
                data, size = list[bytes](), 0
                for part in file.parts:
                    if data and size + len(part) > WRITE:
                        break
                    data.append(part)
                    size += len(part)
                return Write(path, b"".join(data))
        return None

    def wrote(self, path: str, count: int) -> None:
        """Record that so many bytes are in a file."""
        file = self._files[path]
        file.not_before, file.failure = -math.inf, ""
        self._settle(file, count)

    def failed(self, path: str, why: str, *, now: float, is_passing: bool) -> bool:
        """Record a failure; return whether it is to be said: a file's first one, until a write succeeds.

        Args:
            path: the file.
            why: the failure.
            now: monotonic seconds.
            is_passing: it is tried again; else what waits for the file is lost.
        """
        file = self._files[path]
        is_new, file.failure = not file.failure, why
        if is_passing:
            file.not_before = now + PAUSE
        else:
            self.lost += file.put - file.settled
            self._settle(file, file.put - file.settled)
        return is_new

    def _forget_idle(self) -> None:
        """Forget the file that was idle for longest, if there are many."""
        if len(self._files) >= MAX_FILES:
            idle = next((path for path, file in self._files.items() if not file.parts), None)
            if idle is not None:
                del self._files[idle]

    def _settle(self, file: _File[Waiter], count: int) -> None:
        file.settled += count
        self.size -= count
        while file.waiters and file.waiters[0][0] <= file.settled:
            self._settled.append((file.waiters.popleft()[1], file.failure))
        while count:
            part = file.parts.popleft()
            if count < len(part):
                file.parts.appendleft(part[count:])
            count -= min(count, len(part))
