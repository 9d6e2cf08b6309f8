"""What a rank monitor does about its rank: wait, ask the other monitors, end the process. Pure.

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


@dataclass(frozen=True)
class QueryPeers:
    """Find out whether a peer is behind this rank; answer with `peers_behind`, and evaluate a new sample."""

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
        asked: time since the peers were asked whether they are behind, and were not.
        excused: time for which the rank is still excused.
        terminated: time since the rank was sent its signal.
    """

    asked: bool
    excused: float
    terminated: float


class MonitorPolicy:
    """Judges one rank from samples of its page.

    Args:
        interval: seconds after which it wants the next sample at the latest.
        grace: seconds after the termination signal until the process is killed.

    Attributes:
        deadline: when it wants the next sample, monotonic seconds.
    """

    def __init__(self, interval: float, grace: float) -> None:
        self.interval, self.grace = interval, grace
        self.deadline = -math.inf
        self._nobody_behind = False
        self._excused_until = self._terminated_at = -math.inf

    @classmethod
    def from_state(cls, interval: float, grace: float, state: MonitorPolicyState, *, now: float) -> MonitorPolicy:
        """Restore a policy from its state; its deadline is now."""
        policy = cls(interval, grace)
        policy.deadline, policy._nobody_behind = now, state.asked
        policy._excused_until, policy._terminated_at = now + state.excused, now - state.terminated
        return policy

    def state(self, *, now: float) -> MonitorPolicyState:
        """Return everything that later decisions depend on."""
        return MonitorPolicyState(self._nobody_behind, self._excused_until - now, now - self._terminated_at)

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold: a rank that was ended is not excused."""
        assert self._terminated_at == -math.inf or self._excused_until <= self._terminated_at

    def evaluate(self, sample: RankSample, *, now: float) -> tuple[MonitorAction, ...]:
        """Return what to do about the rank, by a sample of its page."""
        if self._terminated_at > -math.inf:
            return self._evaluate_terminated(now)
        limit = earliest(sample)
        if limit is None or now < limit.deadline:
            self._nobody_behind, self._excused_until = False, -math.inf
            self.deadline = min(
                limit.deadline if limit else math.inf, now + min(self.interval, sample.shortest_timeout)
            )
            return ()
        if now < self._excused_until:
            self.deadline = self._excused_until
            return ()
        self.deadline = now
        if not self._nobody_behind and now < limit.deadline + limit.timeout:
            return (QueryPeers(limit),)
        self._terminated_at, self.deadline = now, now + self.grace
        return (TerminateRank(limit, limit.reason(now=now)),)

    def peers_behind(self, limit: Limit, behind: bool, *, now: float) -> None:
        """Take the answer to `QueryPeers`."""
        self._nobody_behind = not behind
        if behind:
            until = min(now + min(ASK_AGAIN, limit.timeout / 10), limit.deadline + limit.timeout)
            self._excused_until = self.deadline = until

    def _evaluate_terminated(self, now: float) -> tuple[MonitorAction, ...]:
        if now < self._terminated_at + self.grace:
            return ()
        self.deadline = now + 1.0
        return (KillRank(f"still there {now - self._terminated_at:.3g} s after the termination signal"),)
