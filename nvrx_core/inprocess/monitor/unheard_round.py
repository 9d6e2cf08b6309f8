"""The policy for a rank that does not hear of the end of its round, although its threads run. Pure.

Its connections may be silent while they look alive, as behind a proxy that acknowledges what it does not pass on. The
connection of its monitor process is another one: it asks the store now and then whether the round goes on without the
rank. If so, the rank is first made to open its connections again, and ended if that does not help, both within the hard
timeout of the end of the round.

A rank whose threads do not run is left to `GilStallPolicy` and to the hang detector.
"""

from __future__ import annotations

import enum
import math
from typing import Final

from nvrx_core.liveness.hang_detector import ProgressSample
from nvrx_core.progress.stage import Stage
from nvrx_core.values import value

__all__ = ["EndRank", "Question", "RenewConnections", "UnheardRoundPolicy"]

_LISTENS_FOR_EVENT: Final = (Stage.RUNNING, Stage.WAITING)


class Question(enum.Enum):
    """What the rank would hear next of its round."""

    EVENT = enum.auto()
    DECISION = enum.auto()


@value
class RenewConnections:
    """Make the rank open its connections to the store again."""

    reason: str


@value
class EndRank:
    """Terminate the rank."""

    reason: str


class UnheardRoundPolicy:
    """The policy for one rank.

    Args:
        hard: hard timeout, seconds; `inf` to ask nothing.

    Attributes:
        deadline: when to evaluate again at the latest.
    """

    def __init__(self, hard: float) -> None:
        self.every, self.renews_after, self.ends_after = hard / 4, hard / 8, hard / 2
        self.deadline = math.inf
        self._waits: tuple[int, Question] | None = None
        self._ask_at = self._over_at = math.inf
        self._renewed = self._ended = False

    def question(self, sample: ProgressSample, *, now: float) -> Question | None:
        """Return what to ask the store of the round; if it is there, call `is_over`.

        Args:
            sample: the rank's progress.
            now: seconds, of the sample's clock.
        """
        waits = self._waits_for(sample, now)
        if waits != self._waits:
            self._waits, self._ask_at, self._over_at = waits, now + self.every, math.inf
            self._renewed = self._ended = False
        self.deadline = self._ask_at if waits is not None else math.inf
        if waits is None or self._over_at < math.inf or now < self._ask_at:
            return None
        self._ask_at = self.deadline = now + self.every
        return waits[1]

    def is_over(self, *, now: float) -> None:
        """Record that the store has what the rank has not heard of."""
        self._over_at = now

    def actions(self, sample: ProgressSample, *, now: float) -> tuple[RenewConnections | EndRank, ...]:
        """Return what is due about a rank that has not heard; follows `question`."""
        if self._over_at == math.inf or self._waits is None:
            return ()
        if not self._renewed:
            self.deadline = self._over_at + self.renews_after
            if now < self.deadline:
                return ()
            self._renewed, self.deadline = True, self._over_at + self.ends_after
            return (RenewConnections(f"{self._unheard(*self._waits)} for {now - self._over_at:.3g} s"),)
        self.deadline = math.inf if self._ended else self._over_at + self.ends_after
        if now < self.deadline:
            return ()
        if not sample.protected:
            self.deadline = now + self.every
            return ()
        self._ended, self.deadline = True, math.inf
        what = self._unheard(*self._waits)
        return (EndRank(f"{what} for {now - self._over_at:.3g} s, its connections are silent"),)

    @staticmethod
    def _unheard(iteration: int, question: Question) -> str:
        return f"the {question.name.lower()} of iteration {iteration} has not reached the rank"

    def _waits_for(self, sample: ProgressSample, now: float) -> tuple[int, Question] | None:
        """Return what the rank listens for, None if it is busy, or no thread of it runs."""
        if now - sample.watchdog_alive_at >= self.every:
            return None
        if sample.stage is Stage.ARRIVED:
            return sample.iteration, Question.DECISION
        listens = sample.stage in _LISTENS_FOR_EVENT and sample.iteration >= 0 and not sample.noticed
        return (sample.iteration, Question.EVENT) if listens else None
