"""The policy for a rank whose threads do not run when a round ends, because a call holds the GIL. Pure.

The monitor thread of such a rank cannot receive the round's event, so the main thread is not interrupted, and all other
ranks wait for it. The rank's watchdog thread is silent for the same reason. After a short silence the monitor process
asks the store whether the round has its event, records that on the page and sends the interrupt signal: many calls
check for signals from time to time, and the handler reads the page. A main thread that the signal does not reach has as
long to leave the function as one that is interrupted after its own soft timeout.
"""

from __future__ import annotations

import math
from typing import Final

from nvrx_core.liveness.hang_detector import ProgressSample, SendSignal
from nvrx_core.progress.stage import Stage
from nvrx_core.values import value

__all__ = [
    "GilStallAction",
    "GilStallPolicy",
    "GilStallState",
    "MarkRoundOver",
    "QueryRoundEvent",
]

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
    """The policy for one rank.

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
