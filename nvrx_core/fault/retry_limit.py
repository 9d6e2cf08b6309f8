"""The limit on restarts without progress: a job that fails repeatedly in the same way gives up. Pure.

An iteration counts when it was short, ended with the same exception type at the same origin as the previous one, which
is the user's line and the line that raised, and no rank's step exceeded the highest step reported so far. A higher step
is progress and resets the count to zero, as does an iteration that does not count; a job that reports no steps makes no
progress. With a limit of 3, a job without steps gives up after 3 equal failures, and a job with steps after 3 equal
failures without a new highest step. Where a training goes on behind its last step, without what has failed there,
steps are no progress: each short iteration with an equal failure counts. From the third one on, restarts back off: an
error in the script must not restart hundreds of times in a second.

Invariant: the count is never negative, and only an iteration without progress raises it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from nvrx_core.backoff import Backoff
from nvrx_core.errors import InternalError, require

__all__ = ["LONG", "NoProgressLimit", "NoProgressState", "RetryDecision"]

LONG: Final = 60.0
"""Seconds after which the end of an iteration is not one of an endless loop of restarts."""
BACK_OFF_FROM: Final = 3
"""Equal failures in a row."""
PAUSES: Final = Backoff(0.1, 5.0)
"""Before a restart, from then on."""
LONGEST_TEXT: Final = 200
"""Characters of a message's first line in the reason."""


@dataclass(frozen=True)
class NoProgressState:
    """The state of the limit.

    Attributes:
        error_type: the exception type that ended the last iteration; None before the first.
        origin: the user's file and line that led to it.
        raised_at: the file and line that raised it.
        highest: the highest step reported so far.
        count: the number of consecutive iterations that ended this way without progress.
    """

    error_type: str | None = None
    origin: str = ""
    raised_at: str = ""
    highest: int | None = None
    count: int = 0


@dataclass(frozen=True)
class RetryDecision:
    """The decision whether to give up.

    Attributes:
        reached: whether the limit is reached.
        count: the number of consecutive iterations that ended alike without progress.
        culprit: the initial rank that failed last, None when it is not known.
        reason: the explanation for people.
        pause: seconds to wait before the restart.
    """

    reached: bool
    count: int
    culprit: int | None
    reason: str
    pause: float = 0.0


class NoProgressLimit:
    """The counter of failures without progress; every rank reaches the same decision.

    Args:
        limit: how many consecutive iterations may end alike without progress; None for no limit.

    Raises:
        ValueError: when the limit is below 1.
    """

    def __init__(self, limit: int | None) -> None:
        require(limit is None or limit >= 1, "no_progress_limit", limit, "at least 1, or None for no limit")
        self.limit = limit
        self._state = NoProgressState()

    @classmethod
    def from_state(cls, limit: int | None, state: NoProgressState) -> Self:
        """Restore a limit from its state."""
        machine = cls(limit)
        machine._state = state
        return machine

    def state(self) -> NoProgressState:
        """Return the state of the limit."""
        return self._state

    def check(self) -> None:
        """Check the invariant.

        Raises:
            InternalError: when it is broken.
        """
        if self._state.count < 0 or (self._state.count > 0 and self._state.error_type is None):
            raise InternalError(f"impossible count of failures: {self._state}")

    def iteration_ended(
        self,
        *,
        error_type: str,
        origin: str,
        raised_at: str = "",
        step: int | None,
        culprit: int | None,
        counts: bool = True,
        message: str = "",
        behind_step: bool = False,
    ) -> RetryDecision:
        """Record the end of an iteration and decide whether to give up.

        Args:
            error_type: the exception's type name, or the kind of interruption if there was no exception.
            origin: the user's file and line that led to it, or "".
            raised_at: the file and line that raised it, or "".
            step: the highest step that any rank has reported in the call, None when none was reported.
            culprit: the initial rank that failed, None when it is not known.
            counts: it was short, and the rank that failed can fail again.
            message: the text of this failure, for people; failures that differ in it are alike.
            behind_step: a restart leaves out what has failed, and the steps go on without it.
        """
        before = self._state
        kind = error_type, origin, raised_at
        alike = kind == (before.error_type, before.origin, before.raised_at)
        rises = step is not None and (before.highest is None or step > before.highest)
        progressed = rises and not behind_step
        count = 0 if progressed or not counts else before.count + 1 if alike else 1
        highest = step if rises else before.highest
        self._state = NoProgressState(*kind, highest, count)
        reached = self.limit is not None and count >= self.limit
        reason = self._reason(message, culprit, progressed, behind_step)
        pause = 0.0 if self.limit is None else PAUSES.pause(count - BACK_OFF_FROM + 1)
        return RetryDecision(reached, count, culprit, reason, pause)

    def _reason(self, message: str, culprit: int | None, progressed: bool, behind_step: bool) -> str:
        state, first = self._state, message.strip().partition("\n")[0]
        failure = first if len(first) <= LONGEST_TEXT else f"{first[:LONGEST_TEXT]}..."
        failure = f"{failure or state.error_type}{f' at {state.origin}' if state.origin else ''}"
        rank = "" if culprit is None else f" on initial rank {culprit}"
        if state.count == 0:
            return f"{failure}{rank} after {f'progress to step {state.highest}' if progressed else 'a long iteration'}"
        beyond = "with no step reported" if state.highest is None else f"without a step beyond {state.highest}"
        if behind_step:
            beyond = "behind a commit, where a restart does not do it again"
        of = "no_progress_limit is off" if self.limit is None else f"no_progress_limit={self.limit}, None for no limit"
        return f"{failure}{rank}: {state.count} in a row {beyond} ({of})"
