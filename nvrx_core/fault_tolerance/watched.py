"""The process that a rank monitor monitors."""

from __future__ import annotations

import os
from typing import Self

from nvrx_core.process.lifeline import open_pidfd
from nvrx_core.process.proc import read_stat
from nvrx_core.process.waiting import readable
from nvrx_core.progress.page import Page, ProgressField

__all__ = ["WatchedRank", "runs", "start_time"]


class WatchedRank:
    """A process, by pidfd; its start time distinguishes it from another one with the same pid.

    Attributes:
        pid: its pid.
        pidfd: becomes readable when it has exited.
    """

    def __init__(self, pid: int, pidfd: int, start: int) -> None:
        self.pid, self.pidfd, self._start = pid, pidfd, start

    @classmethod
    def of_page(cls, page: Page) -> Self | None:
        """Return the process that the page names; None if there is none, or it has exited."""
        if not page[ProgressField.ATTACHED_AT]:
            return None
        pid, start = page[ProgressField.ATTACHED_PID], page[ProgressField.ATTACHED_START]
        try:
            pidfd = open_pidfd(pid)
        except (OSError, OverflowError):
            return None
        if start_time(pid) == start:
            return cls(pid, pidfd, start)
        os.close(pidfd)
        return None

    def is_on(self, page: Page) -> bool:
        """Whether the page still names this process."""
        named = page[ProgressField.ATTACHED_PID], page[ProgressField.ATTACHED_START]
        return bool(page[ProgressField.ATTACHED_AT]) and named == (self.pid, self._start)

    def has_exited(self) -> bool:
        """Whether the process has exited."""
        return bool(readable([self.pidfd], 0))

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self.pidfd)


def start_time(pid: int) -> int:
    """Return when a process was started, clock ticks; -1 when there is no such process."""
    stat = read_stat(pid)
    return -1 if stat is None else stat.start


def runs(pid: int, start: int) -> bool:
    """Return whether the process that was started then is there, and not dead and unreaped."""
    stat = read_stat(pid)
    return stat is not None and stat.start == start and stat.state not in ("Z", "X")
