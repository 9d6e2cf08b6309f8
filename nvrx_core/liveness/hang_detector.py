"""The hang detector of one rank: when the rank counts as hung, and what its watcher does about it. Pure.

The monitor process of a wrapped call and a rank monitor judge by the same machine:

    a limit has expired --> QueryPeers --no peer is behind--> SoftTimeout or TerminateRank --still there--> KillRank
                                |
                                a peer is behind: the rank is excused, and the peers are asked again later

`CallRules` and `RankMonitorRules` say what is watched, and what the watcher may do. A rank that only waits for a slower
peer is not hung: its peer's watcher finds that out. An excuse has an end. The question is followed by another sample: a
sample that was taken in the middle of a change ends nobody.
"""

from __future__ import annotations

import enum
import math
from typing import ClassVar, Final, NamedTuple, Self

from nvrx_core.progress.limits import Limit, LimitKind, ProgressSample
from nvrx_core.progress.stage import Stage
from nvrx_core.values import value

__all__ = [
    "CallRules",
    "DetectorAction",
    "Due",
    "Excuse",
    "HangDetector",
    "HangDetectorState",
    "KillRank",
    "QueryPeers",
    "RankMonitorRules",
    "SendSignal",
    "SoftTimeout",
    "TerminateRank",
]

ASK_AGAIN: Final = 0.5
"""Seconds between two questions of a rank monitor, at most; a tenth of the timeout where that is shorter."""
FIRST_SAMPLE_GRACE: Final = 1.0
"""Seconds for which a rank is excused that is overdue when a rank monitor first sees it: the machine may have paused,
or a monitor was lost. Half the timeout where that is shorter."""
COLLECTIVE_EXCUSES: Final = 2.0
"""Seconds for which a rank monitor excuses a rank that waits in a collective, at most; its timeout where that is
shorter. The rank that the others wait for has the same timeout as they, or hardly a longer one, and its monitor ends
it."""
SIGNAL_AFTER: Final = 0.05
"""Seconds for the rank's monitor thread to act on a soft timeout before the monitor process signals the main thread."""
KILL_AGAIN: Final = 1.0
"""Seconds between two attempts to kill a rank."""
NOT_NOTICED: Final = "no thread of the rank has noticed the end of its round"
_ENDED: Final = (Stage.LEFT, Stage.EXITED_ABNORMALLY)
_MAY_WAIT: Final = (Stage.OUTSIDE, Stage.WAITING, Stage.ARRIVED)


@value
class SoftTimeout:
    """Announce that the rank makes no progress."""

    reason: str


@value
class QueryPeers:
    """Find out whether the rank only waits for others; tell `answered`, and evaluate a new sample."""


@value
class SendSignal:
    """Send the interrupt signal from the monitor process."""

    reason: str


@value
class TerminateRank:
    """Send the termination signal, also to a stopped process."""

    reason: str


@value
class KillRank:
    """Send SIGKILL."""

    reason: str


DetectorAction = SoftTimeout | QueryPeers | SendSignal | TerminateRank | KillRank


class Excuse(enum.Enum):
    """Why a rank whose limit has expired only waits for another one."""

    PEER_BEHIND = "a peer that it may wait for is behind, or has died"
    IN_COLLECTIVE = "its main thread waits in a collective"


class Due(NamedTuple):
    """A limit in force.

    Attributes:
        limit: the limit.
        at: when it is judged: it has expired, and the last excuse is over.
        excusable_until: when an excuse counts no longer.
    """

    limit: Limit
    at: float
    excusable_until: dict[Excuse, float]


@value
class CallRules:
    """The rules of a wrapped call: soft and hard timeout, and the limits of the rank's heartbeats and sections.

    An expired limit restarts all ranks and ends none. The hard timeout ends the rank, whatever its peers do. It counts
    from the same sign of life as the soft timeout, and at the latest from the interruption, or from the first signal of
    the monitor process: a function that swallows the interruption keeps executing bytecode, and so does the handler of
    each signal in a rank whose monitor thread is dead. While the interruption waits for an import, it counts from the
    last module that was added. A rank that is being interrupted is not reported: its round has its event.

    In a stage in which a rank may wait indefinitely no progress is expected, and a rank whose process is stopped or
    whose GIL is held by another thread looks like a waiting one. There the hard timeout counts from the stop, and from
    the last time that the rank's watchdog thread ran.

    Attributes:
        soft, hard: the timeouts, seconds.
        grace: seconds between the termination signal and SIGKILL.
        interval: seconds between two samples, at most.
        stage: the stage in which the limits are in force.
        restarts: an expired limit restarts all ranks; otherwise it ends the process.
        excuse_is_life: an excuse counts as a sign of life; otherwise it ends when the rank moves.
        first_sample_grace: seconds for which a rank is excused that is overdue in the first sample, at most.
    """

    soft: float
    hard: float
    grace: float
    interval: float = math.inf
    stage: ClassVar[Stage] = Stage.RUNNING
    restarts: ClassVar[bool] = True
    excuse_is_life: ClassVar[bool] = True
    first_sample_grace: ClassVar[float] = 0.0

    @property
    def outlived(self) -> str:
        """Why a rank is killed."""
        return f"still there {self.grace:g} s after SIGTERM"

    def dues(self, sample: ProgressSample, excused_at: float) -> tuple[Due, ...]:
        """Return the limits in force. An excuse is a sign of life: each question costs the store a request."""
        silence, limit = Limit(LimitKind.PROGRESS, max(sample.alive_at, excused_at), self.soft), sample.limit
        soft = Due(silence, silence.deadline, {Excuse.PEER_BEHIND: sample.alive_at + self.hard})
        if limit is None:
            return (soft,)
        at, until = max(limit.since, excused_at) + limit.timeout, limit.deadline + self.hard
        return (soft, Due(limit, at, {Excuse.PEER_BEHIND: until}))


@value
class RankMonitorRules:
    """The rules of a rank monitor: the limits of the rank's heartbeats and sections, outside of a call.

    Attributes:
        interval: seconds between two samples, at most.
        grace: seconds between the termination signal and SIGKILL.
        stage, restarts, excuse_is_life, first_sample_grace: as of `CallRules`.
        hard: no silence ends the rank without a question.
    """

    interval: float
    grace: float
    stage: ClassVar[Stage] = Stage.OUTSIDE
    restarts: ClassVar[bool] = False
    excuse_is_life: ClassVar[bool] = False
    first_sample_grace: ClassVar[float] = FIRST_SAMPLE_GRACE
    hard: ClassVar[float] = math.inf

    @property
    def outlived(self) -> str:
        """Why a rank is killed."""
        return f"still there, more than {self.grace:g} s after the termination signal"

    def dues(self, sample: ProgressSample, excused_at: float) -> tuple[Due, ...]:
        """Return the limit in force. Questions cost a message on this host: they are repeated soon."""
        limit = sample.limit
        if limit is None:
            return ()
        until = limit.deadline + limit.timeout
        again = min(excused_at + min(ASK_AGAIN, limit.timeout / 10), until)
        excuses = {
            Excuse.PEER_BEHIND: until,
            Excuse.IN_COLLECTIVE: limit.deadline + min(COLLECTIVE_EXCUSES, limit.timeout),
        }
        return (Due(limit, max(limit.deadline, again), excuses),)


@value
class HangDetectorState:
    """The state of a hang detector between two turns; times are relative to now, infinite for what has not happened.

    Attributes:
        iteration: the round.
        reported: its soft timeout was announced.
        nobody_behind: the peers were asked, and the rank waits for none.
        seen: time since the first sample, if a limit had expired by then and the rank has not moved.
        excused: time since the rank was last excused, if it has not moved.
        signal: time until the main thread is signalled.
        interrupted: time since the interruption of the main thread began.
        stopped: time since the process was first seen to be stopped, in a stage in which it may wait.
        kill: time until the next SIGKILL to a rank that was sent its termination signal.
    """

    iteration: int
    reported: bool
    nobody_behind: bool
    seen: float
    excused: float
    signal: float
    interrupted: float
    stopped: float
    kill: float


class HangDetector:
    """The hang detector of one rank.

    Args:
        rules: of the layer.

    Attributes:
        deadline: when the next sample is due.
        no_progress_since: if the hard timeout expired in a stage in which the rank may wait, the time from which it
            showed no sign of life.
    """

    def __init__(self, rules: CallRules | RankMonitorRules) -> None:
        self.rules, self.deadline = rules, -math.inf
        self.no_progress_since: float | None = None
        self._iteration, self._reported, self._nobody_behind = -2, False, False
        self._seen_at, self._excused_at = math.inf, -math.inf
        self._excusable_until = dict[Excuse, float]()
        self._signal_at = self._interrupted_at = self._stopped_at = self._kill_at = math.inf

    @classmethod
    def from_state(cls, rules: CallRules | RankMonitorRules, state: HangDetectorState, *, now: float) -> Self:
        """Restore a detector from its state; its deadline is now."""
        detector = cls(rules)
        detector.deadline, detector._iteration, detector._reported = now, state.iteration, state.reported
        detector._nobody_behind, detector._seen_at = state.nobody_behind, now - state.seen
        detector._excused_at, detector._signal_at = now - state.excused, now + state.signal
        detector._interrupted_at, detector._stopped_at = now - state.interrupted, now - state.stopped
        detector._kill_at = now + state.kill
        return detector

    def state(self, *, now: float) -> HangDetectorState:
        """Return everything that later decisions depend on; the next `evaluate` recomputes the deadline."""
        return HangDetectorState(
            iteration=self._iteration, reported=self._reported, nobody_behind=self._nobody_behind,
            seen=now - self._seen_at, excused=now - self._excused_at, signal=self._signal_at - now,
            interrupted=now - self._interrupted_at, stopped=now - self._stopped_at, kill=self._kill_at - now,
        )  # fmt: skip

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold.

        Only a rank of a call is reported, only a reported one is signalled, and none is excused after its termination.
        """
        assert self._reported or self._signal_at == math.inf
        assert not self._reported or (self.rules.restarts and self._iteration >= -1)
        assert self._kill_at == math.inf or self._excused_at < self._kill_at

    def evaluate(self, sample: ProgressSample, *, now: float) -> tuple[DetectorAction, ...]:
        """Return the actions for one sample; `deadline` is the latest time for the next one."""
        self.deadline = now + min(self.rules.interval, sample.max_sample_interval)
        if self._kill_at < math.inf:
            return self._evaluate_terminated(now)
        if sample.iteration != self._iteration:
            self._begin(sample.iteration)
        self._seen_at = min(self._seen_at, now)
        if not sample.protected or sample.stage in _ENDED:
            return ()
        return self._evaluate_hard(sample, now) or self._evaluate_limits(sample, now)

    def answered(self, excuse: Excuse | None, *, now: float) -> bool:
        """Take the answer to `QueryPeers`, None for no excuse; return whether the rank is excused."""
        excused = excuse is not None and now < self._excusable_until.get(excuse, -math.inf)
        self._nobody_behind = not excused
        if excused:
            self._excused_at = now
        return excused

    def terminate(self, reason: str, *, now: float) -> TerminateRank:
        """Return the termination of the rank for this reason; `evaluate` kills it when the grace period is over."""
        self._kill_at = self.deadline = now + self.rules.grace
        return TerminateRank(reason)

    def _begin(self, iteration: int) -> None:
        self._iteration, self._reported, self._nobody_behind = iteration, False, False
        self._excused_at, self._signal_at, self._interrupted_at = -math.inf, math.inf, math.inf

    def _evaluate_terminated(self, now: float) -> tuple[DetectorAction, ...]:
        actions: tuple[DetectorAction, ...] = ()
        if now >= self._kill_at:
            self._kill_at, actions = now + KILL_AGAIN, (KillRank(self.rules.outlived),)
        self.deadline = self._kill_at
        return actions

    def _evaluate_hard(self, sample: ProgressSample, now: float) -> tuple[DetectorAction, ...]:
        hard, may_wait, out_by = self.rules.hard, sample.stage in _MAY_WAIT, math.inf
        if may_wait:
            self._stopped_at = min(self._stopped_at, now) if sample.stopped else math.inf
            since = min(self._stopped_at, sample.watchdog_alive_at)
        else:
            since = max(sample.alive_at, self._excused_at)
        if sample.stage is Stage.RUNNING:
            self._interrupted_at = min(self._interrupted_at, now) if sample.interrupting else self._interrupted_at
            since, out_by = min(since, max(self._interrupted_at, sample.imported_at)), sample.out_by
        due = min(since + hard, out_by)
        if now < due:
            self.deadline = min(self.deadline, due)
            return ()
        self.no_progress_since = since if may_wait else None
        reason = f"no progress for {now - since:.3g} s (hard_timeout {hard:g} s)"
        if due == out_by:
            reason = "the round is over, and no signal gets the main thread out of a call that holds the GIL"
        return (self.terminate(reason, now=now),)

    def _evaluate_limits(self, sample: ProgressSample, now: float) -> tuple[DetectorAction, ...]:
        if sample.stage is not self.rules.stage or sample.interrupting:
            return ()
        if self._reported:
            return self._signal(sample, now)
        dues = self.rules.dues(sample, self._excused_at)
        expires_at = min((due.limit.deadline for due in dues), default=math.inf)
        if now < expires_at:  # the rank moves
            self._nobody_behind, self._seen_at = False, -math.inf
            if not self.rules.excuse_is_life:
                self._excused_at = -math.inf
            self.deadline = min(self.deadline, expires_at)
            return ()
        limit, at, self._excusable_until = min(dues, key=lambda due: due.at)
        at = max(at, self._seen_at + min(self.rules.first_sample_grace, limit.timeout / 2))
        if now < at:
            self.deadline = min(self.deadline, at)
            return ()
        return self._conclude(limit, now)

    def _conclude(self, limit: Limit, now: float) -> tuple[DetectorAction, ...]:
        """Return what follows from an expired limit without an excuse."""
        if not self._nobody_behind:
            self.deadline = now
            return (QueryPeers(),)
        reason = limit.reason(now=now)
        if not self.rules.restarts:
            return (self.terminate(reason, now=now),)
        self._reported, self._signal_at = True, now + SIGNAL_AFTER
        self.deadline = min(self.deadline, self._signal_at)
        return (SoftTimeout(reason),)

    def _signal(self, sample: ProgressSample, now: float) -> tuple[DetectorAction, ...]:
        if sample.noticed:
            return ()
        actions: tuple[DetectorAction, ...] = ()
        if now >= self._signal_at:
            self._signal_at, self._interrupted_at = now + 2 * SIGNAL_AFTER, min(self._interrupted_at, now)
            actions = (SendSignal(NOT_NOTICED),)
        self.deadline = min(self.deadline, self._signal_at)
        return actions
