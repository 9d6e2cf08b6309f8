"""When to give up on a job that fails again and again in the same way. Pure.

An iteration counts when it ended by the same exception type at the same origin as the one before it, and no rank's step
passed the highest step that was reported before. A step beyond that is progress and starts the count at zero; a job
that reports no steps has none. So with a limit of 3, a job without steps gives up after 3 equal failures, and one with
steps after 3 that reached nothing new.

Invariant: the count is never negative, and only an iteration without progress raises it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from nvrx_core.errors import InternalError, require

__all__ = ["NoProgressLimit", "NoProgressState", "Verdict"]


@dataclass(frozen=True)
class NoProgressState:
    """What the limit remembers.

    Attributes:
        error_type: the exception type that ended the last iteration; None before the first.
        origin: where it was raised.
        highest: the highest step reported so far.
        count: how many iterations in a row ended so without progress.
    """

    error_type: str | None = None
    origin: str = ""
    highest: int | None = None
    count: int = 0


@dataclass(frozen=True)
class Verdict:
    """Whether to give up.

    Attributes:
        reached: whether the limit is reached.
        count: how many iterations in a row ended alike without progress.
        culprit: the initial rank that failed last, None when it is not known.
        reason: why, for people.
    """

    reached: bool
    count: int
    culprit: int | None
    reason: str


class NoProgressLimit:
    """Is told how each iteration ended, and answers whether the job should go on: on every rank the same.

    Args:
        limit: how many iterations in a row may end alike without progress; None for any number.

    Raises:
        ValueError: when the limit is below 1.
    """

    def __init__(self, limit: int | None) -> None:
        require(limit is None or limit >= 1, "no_progress_limit", limit, "at least 1, or None for no limit")
        self.limit = limit
        self._state = NoProgressState()

    @classmethod
    def from_state(cls, limit: int | None, state: NoProgressState) -> Self:
        """The limit that had this state."""
        machine = cls(limit)
        machine._state = state
        return machine

    def state(self) -> NoProgressState:
        """What the limit remembers."""
        return self._state

    def check(self) -> None:
        """Check the invariant.

        Raises:
            InternalError: when it is broken.
        """
        if self._state.count < 0 or (self._state.count > 0 and self._state.error_type is None):
            raise InternalError(f"impossible count of failures: {self._state}")

    def iteration_ended(self, *, error_type: str, origin: str, step: int | None, culprit: int | None) -> Verdict:
        """Take note of how an iteration ended.

        Args:
            error_type: the exception's type name, or the kind of interruption where there was no exception.
            origin: file and line where it was raised, or "".
            step: the highest step that any rank has reported in the call, None when none was reported.
            culprit: the initial rank that failed, None when it is not known.
        """
        before = self._state
        alike = (error_type, origin) == (before.error_type, before.origin)
        progressed = step is not None and (before.highest is None or step > before.highest)
        count = 0 if progressed else before.count + 1 if alike else 1
        highest = step if progressed else before.highest
        self._state = replace(before, error_type=error_type, origin=origin, highest=highest, count=count)
        reached = self.limit is not None and count >= self.limit
        return Verdict(reached, count, culprit, self._reason(culprit))

    def _reason(self, culprit: int | None) -> str:
        state = self._state
        failure = f"{state.error_type}{f' at {state.origin}' if state.origin else ''}"
        who = "" if culprit is None else f" on initial rank {culprit}"
        if state.count == 0:
            return f"{failure}{who} after progress to step {state.highest}"
        beyond = "with no step reported" if state.highest is None else f"without a step beyond {state.highest}"
        of = "no_progress_limit is off" if self.limit is None else f"no_progress_limit={self.limit}"
        return f"{failure}{who}: {state.count} in a row {beyond} ({of})"
