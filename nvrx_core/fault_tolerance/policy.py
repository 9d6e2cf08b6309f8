"""The policy of a rank monitor: when it waits, asks the other monitors, and ends its rank. Pure.

    watching --a limit has expired--> QueryPeers --nobody is behind--> TerminateRank --still there--> KillRank
                                          |
                                          a peer is behind: excused, asked again later

A rank that only waits for a slower peer is not ended: its peer's monitor does that, by the peer's own timeouts. The
excuse ends when the rank has been overdue for as long as its timeout. The second sample, after the question, must be
overdue as well: a sample that was taken in the middle of a change ends nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from nvrx_core.progress.limits import Limit, RankSample, earliest

__all__ = ["KillRank", "MonitorAction", "MonitorPolicy", "MonitorPolicyState", "QueryPeers", "TerminateRank"]

ASK_AGAIN: Final = 0.5
"""Seconds between two questions about peers that are behind, at most; a tenth of the timeout where that is shorter."""
FIRST_LOOK: Final = 1.0
"""Seconds for which a rank is excused that is overdue when a monitor first sees it: the machine may have paused, or a
monitor was lost. Half the timeout where that is shorter."""
KILL_AGAIN: Final = 1.0
"""Seconds between two attempts to kill a rank."""


@dataclass(frozen=True)
class QueryPeers:
    """Query whether a peer is behind this rank; answer with `peers_behind`, and evaluate a new sample."""

    limit: Limit


@dataclass(frozen=True)
class TerminateRank:
    """Wake the rank's process and send it the termination signal."""

    limit: Limit
    reason: str


@dataclass(frozen=True)
class KillRank:
    """Wake the rank's process and kill it."""

    reason: str


MonitorAction = QueryPeers | TerminateRank | KillRank


@dataclass(frozen=True)
class MonitorPolicyState:
    """Everything that later decisions depend on; times are relative to now, and infinite for what has not happened.

    Attributes:
        asked: the peers were queried, and none is behind.
        excused: time for which the rank is still excused.
        kills_in: time until the next SIGKILL to a rank that was sent its termination signal.
        seen: there was a sample.
    """

    asked: bool
    excused: float
    kills_in: float
    seen: bool


class MonitorPolicy:
    """Judges one rank from samples of its page.

    Args:
        interval: the maximum number of seconds until the next sample.
        grace: seconds after the termination signal until the process is killed.

    Attributes:
        deadline: when the next sample is due, monotonic seconds.
    """

    def __init__(self, interval: float, grace: float) -> None:
        self.interval, self.grace = interval, grace
        self.deadline = -math.inf
        self._nobody_behind = self._seen = False
        self._excused_until, self._kill_at = -math.inf, math.inf

    @classmethod
    def from_state(cls, interval: float, grace: float, state: MonitorPolicyState, *, now: float) -> MonitorPolicy:
        """Restore a policy from its state; its deadline is now."""
        policy = cls(interval, grace)
        policy.deadline, policy._nobody_behind = now, state.asked
        policy._excused_until, policy._kill_at = now + state.excused, now + state.kills_in
        policy._seen = state.seen
        return policy

    def state(self, *, now: float) -> MonitorPolicyState:
        """Return everything that later decisions depend on."""
        excused = self._excused_until - now if self._excused_until > now else -math.inf
        return MonitorPolicyState(self._nobody_behind, excused, self._kill_at - now, self._seen)

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold: a rank that was ended is not excused."""
        assert self._kill_at == math.inf or self._excused_until < self._kill_at

    def evaluate(self, sample: RankSample, *, now: float) -> tuple[MonitorAction, ...]:
        """Return the actions for one sample of the rank's page."""
        if self._kill_at < math.inf:
            return self._evaluate_terminated(now)
        limit, first, self._seen = earliest(sample), not self._seen, True
        if limit is None or now < limit.deadline:
            self._nobody_behind, self._excused_until = False, -math.inf
            self.deadline = min(limit.deadline if limit else math.inf, now + min(self.interval, sample.look_within))
            return ()
        if first:
            self._excused_until = now + min(FIRST_LOOK, limit.timeout / 2)
        if now < self._excused_until:
            self.deadline = self._excused_until
            return ()
        self.deadline = now
        if not self._nobody_behind:
            return (QueryPeers(limit),)
        self._kill_at = self.deadline = now + self.grace
        return (TerminateRank(limit, limit.reason(now=now)),)

    def peers_behind(self, limit: Limit, behind: bool, *, now: float) -> None:
        """Handle the answer to `QueryPeers`."""
        excusable_until = limit.deadline + limit.timeout
        self._nobody_behind = not behind or now >= excusable_until
        if not self._nobody_behind:
            self._excused_until = self.deadline = min(now + min(ASK_AGAIN, limit.timeout / 10), excusable_until)

    def _evaluate_terminated(self, now: float) -> tuple[MonitorAction, ...]:
        if now < self._kill_at:
            self.deadline = self._kill_at
            return ()
        self._kill_at = self.deadline = now + KILL_AGAIN
        return (KillRank(f"still there, more than {self.grace:g} s after the termination signal"),)
