"""Liveness of a process of this host by its answers: it is asked now and then, and must answer in time. Pure.

A pidfd reports the end of a process. One that is stopped or frozen does not end, and does nothing.
"""

from __future__ import annotations

import enum

__all__ = ["AnswerWatch", "Demand"]


class Demand(enum.Enum):
    """What is due."""

    NOTHING = "nothing"
    ASK = "ask the process"
    REPLACE = "the process does not answer"


class AnswerWatch:
    """Decides when a process is asked, and when it counts as stopped.

    Read what it has answered before each `tick`: the observer may have been paused longer than the process.

    Args:
        every: seconds from an answer to the next question.
        within: seconds to answer; an observer that is late by more than that was paused, and waits once more.
        starts_within: seconds until the first question: the process starts.
        now: monotonic seconds.

    Attributes:
        deadline: when `tick` is due, monotonic seconds.
    """

    def __init__(self, every: float, within: float, *, starts_within: float = 0.0, now: float) -> None:
        self._every, self._within, self._is_asked = every, within, False
        self.deadline = now + max(every, starts_within)

    def answered(self, *, now: float) -> None:
        """Record an answer, or another sign of life."""
        self._is_asked, self.deadline = False, now + self._every

    def tick(self, *, now: float) -> Demand:
        """Return what is due."""
        if now < self.deadline:
            return Demand.NOTHING
        was_asked, is_late = self._is_asked, now > self.deadline + self._within
        self._is_asked, self.deadline = True, now + self._within
        if not was_asked:
            return Demand.ASK
        return Demand.NOTHING if is_late else Demand.REPLACE
