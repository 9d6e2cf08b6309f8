"""What a monitor process does about a rank that is not hung and yet does not go on. Pure.

A call of the rank holds the GIL (`GilStallPolicy`), its connections are silent (`UnheardRoundPolicy`), or it has
completed by `sys.exit(0)` and others wait for it (`CleanExitPolicy`).
"""

from __future__ import annotations

import enum
import math
from typing import Final

from nvrx_core.liveness.hang_detector import SendSignal, TerminateRank
from nvrx_core.progress.limits import ProgressSample
from nvrx_core.progress.stage import Stage
from nvrx_core.rank_assignment.identity import InitialRank
from nvrx_core.values import value

__all__ = [
    "CleanExitPolicy", "GilStallAction", "GilStallPolicy", "GilStallState", "MarkRoundOver",
    "QueryRoundEvent", "Question", "RenewConnections", "UnheardRoundPolicy",
]  # fmt: skip


QUERY_EVERY: Final = 0.25
"""Seconds between two queries of the store, while the watchdog thread is silent."""
SIGNAL_EVERY: Final = 0.1
"""Seconds between two signals."""
CONFIRM_AT_LEAST: Final = 10.0
"""Seconds that a main thread has to leave the function at least, whatever the timeouts are."""
HELD_UP: Final = "its round has ended, and a call holds the GIL"


@value
class QueryRoundEvent:
    """Ask the store whether the round has its event; if so, call `round_over`."""


@value
class MarkRoundOver:
    """Write on the page that the round is over."""


GilStallAction = QueryRoundEvent | MarkRoundOver | SendSignal


@value
class GilStallState:
    """The state of the policy; times are relative to now.

    Attributes:
        iteration: the round.
        query: time until the store may be queried again.
        signal: time until the signal may be sent again.
        over: time since the round is known to be over; infinite while it is not.
    """

    iteration: int
    query: float
    signal: float
    over: float


class GilStallPolicy:
    """The policy for a rank whose threads do not run when a round ends, because a call holds the GIL.

    The monitor thread of such a rank cannot receive the round's event, so the main thread is not interrupted, and all
    other ranks wait for it. The rank's watchdog thread is silent for the same reason. After a short silence the monitor
    process asks the store whether the round has its event, records that on the page and sends the interrupt signal:
    many calls check for signals from time to time, and the handler reads the page. A main thread that the signal does
    not reach has as long to leave the function as one that is interrupted after its own soft timeout.

    Args:
        silent: seconds without a heartbeat of the watchdog thread after which the rank's threads count as stalled.
        confirm: seconds from the first signal within which the main thread must leave the function.

    Attributes:
        deadline: when to evaluate again at the latest.
    """

    def __init__(self, silent: float, confirm: float) -> None:
        self.silent, self.confirm = silent, max(confirm, CONFIRM_AT_LEAST)
        self.deadline = math.inf
        self._iteration = -2
        self._query_at = self._signal_at = -math.inf
        self._over_at = math.inf

    @property
    def out_by(self) -> float:
        """When the main thread must have left the function; `inf` while no rank waits for it."""
        return self._over_at + self.confirm

    def state(self, *, now: float) -> GilStallState:
        """Everything that later decisions depend on."""
        return GilStallState(self._iteration, self._query_at - now, self._signal_at - now, now - self._over_at)

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold: a signal follows the end of the round."""
        assert self._signal_at == -math.inf or self._over_at < math.inf

    def evaluate(self, sample: ProgressSample, *, now: float) -> tuple[GilStallAction, ...]:
        """Return the actions for one sample.

        Args:
            sample: the rank's progress.
            now: seconds, of the sample's clock.
        """
        busy, silent_at = sample.stage is Stage.RUNNING, sample.watchdog_alive_at + self.silent
        silent = busy and now >= silent_at
        if sample.iteration != self._iteration or not silent:
            self._iteration = sample.iteration
            self._query_at = self._signal_at = -math.inf
            self._over_at = math.inf
        if not silent:
            self.deadline = silent_at if busy else math.inf
            return ()
        if self._over_at == math.inf:
            return self.round_over(now=now) if sample.noticed else self._query(now)  # held up since it has noticed
        return self._signal(now)

    def round_over(self, *, now: float) -> tuple[GilStallAction, ...]:
        """Record that the round has its event; return the actions."""
        self._over_at = now
        return (MarkRoundOver(), *self._signal(now))

    def _query(self, now: float) -> tuple[GilStallAction, ...]:
        due = now >= self._query_at
        self._query_at = now + QUERY_EVERY if due else self._query_at
        self.deadline = self._query_at
        return (QueryRoundEvent(),) if due else ()

    def _signal(self, now: float) -> tuple[GilStallAction, ...]:
        due = now >= self._signal_at
        self._signal_at = now + SIGNAL_EVERY if due else self._signal_at
        self.deadline = self._signal_at
        return (SendSignal(HELD_UP),) if due else ()


_LISTENS_FOR_EVENT: Final = (Stage.RUNNING, Stage.WAITING)


class Question(enum.Enum):
    """What the rank would hear next of its round."""

    EVENT = enum.auto()
    DECISION = enum.auto()


@value
class RenewConnections:
    """Make the rank open its connections to the store again."""

    reason: str


class UnheardRoundPolicy:
    """The policy for a rank that does not hear of the end of its round, although its threads run.

    Its connections may be silent while they look alive, as behind a proxy that acknowledges what it does not pass on.
    The connection of its monitor process is another one: it asks the store now and then whether the round goes on
    without the rank. If so, the rank is first made to open its connections again, and ended if that does not help, both
    within the hard timeout of the end of the round.

    A rank whose threads do not run is left to `GilStallPolicy` and to the hang detector.

    Args:
        every: seconds between two questions to the store; `inf` to ask nothing.
        renews_after: seconds from an answer that the round is over until the rank opens its connections again.
        ends_after: seconds from that answer until the rank is ended.

    Attributes:
        deadline: when to evaluate again at the latest.
    """

    def __init__(self, *, every: float, renews_after: float, ends_after: float) -> None:
        self.every, self.renews_after, self.ends_after = every, renews_after, ends_after
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

    def actions(self, sample: ProgressSample, *, now: float) -> tuple[RenewConnections | TerminateRank, ...]:
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
        return (TerminateRank(f"{what} for {now - self._over_at:.3g} s, its connections are silent"),)

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


CHECK_EVERY: Final = 1.0
"""Seconds between two checks, at first."""
SHARE: Final = 0.1
"""Of the time since the exit: a later check may be that much later."""


class CleanExitPolicy:
    """The policy for a rank that has completed by `sys.exit(0)`: when to check which ranks wait for it.

    Its process groups are aborted, so a rank that waits for it in a collective fails at once. A rank that waits for it
    in a rendezvous has no connection that could break, and would wait until its soft timeout. The monitor process of
    the exited rank checks this, not those of the waiting ranks: an ordinary slow rendezvous costs no request.

    Attributes:
        deadline: when the next check is due at the latest.
    """

    def __init__(self) -> None:
        self.deadline = math.inf
        self._iteration, self._since = -1, math.inf

    def due(self, iteration: int | None, *, now: float) -> bool:
        """Whether to read the others' leases for waiting ranks; answer with `waiting`.

        Args:
            iteration: the iteration that the rank has completed by exit and that continues; None for none.
            now: monotonic seconds.
        """
        if iteration is None:
            self.deadline, self._iteration = math.inf, -1
            return False
        if iteration != self._iteration:
            self._iteration, self._since, self.deadline = iteration, now, now + CHECK_EVERY
        if now < self.deadline:
            return False
        self.deadline = now + max(CHECK_EVERY, SHARE * (now - self._since))
        return True

    def waiting(self, members: tuple[InitialRank, ...]) -> str | None:
        """Return what to announce, once, if these ranks wait for the rank and no other rank runs; None for nothing."""
        if not members:
            return None
        self.deadline = math.inf
        return f"exited with code 0, and initial ranks {list(members)} wait for it in a rendezvous"
