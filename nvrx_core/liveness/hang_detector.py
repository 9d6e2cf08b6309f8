"""The hang detector of one rank: when the rank counts as hung, and when its process is terminated. Pure.

The soft timeout restarts all ranks and terminates none. The hard timeout terminates the rank. Both count from the
oldest sign of life in use: executed bytecode (always), `ping`, and a growing `progress` counter. The hard timeout
counts from the interruption as well, and from the first signal of the monitor process: a function that swallows the
interruption keeps executing bytecode, and so does the handler of each signal in a rank whose monitor thread is dead.
While the interruption waits for an import, it counts from the last module that was added.

A rank that waits for another rank is not hung. Before a rank is reported, the leases of its peers are read; while a
peer that is behind it makes progress, the rank is excused, at most for the hard timeout. A rank that is being
interrupted is not reported: its round has its event.

In a stage in which a rank may wait indefinitely no progress is expected, and a rank whose process is stopped or whose
GIL is held by another thread looks like a waiting one. There the hard timeout counts from the stop, and from the last
time that the rank's watchdog thread ran.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Self

from nvrx_core.progress.limits import Limit
from nvrx_core.progress.stage import Stage
from nvrx_core.values import value

__all__ = [
    "HangAction",
    "HangDetector",
    "HangDetectorState",
    "KillRank",
    "ProgressSample",
    "QueryPeers",
    "SendSignal",
    "SoftTimeout",
    "TerminateRank",
]

SIGNAL_AFTER: Final = 0.05
"""Seconds for the rank's monitor thread to act on a soft timeout before the monitor process signals the main thread."""
NOT_NOTICED: Final = "no thread of the rank has noticed the end of its round"
_ENDED: Final = (Stage.LEFT, Stage.EXITED_ABNORMALLY)
_MAY_WAIT: Final = (Stage.OUTSIDE, Stage.WAITING, Stage.ARRIVED)


class ProgressSample(NamedTuple):
    """One sample of the progress page; times in seconds.

    Attributes:
        iteration: the round.
        stage: the stage of the main thread.
        alive_at: the oldest sign of life in use.
        watchdog_alive_at: when the rank's watchdog thread last ran; `inf` when there is none.
        stopped: the process is stopped, as by SIGSTOP.
        protected: False while the user has switched hang protection off.
        noticed: the monitor thread has seen this round's event.
        interrupting: the round has ended, and the main thread is being interrupted.
        imported_at: when an import for which the interruption waits last added a module; `-inf`: none has.
        out_by: when a main thread that holds the GIL must have left the function after its round has ended; `inf` in
            an atomic section, which only the hard timeout ends.
        limit: the limit of a rank's heartbeats and sections that expires first; None for a rank that has none.
    """

    iteration: int
    stage: Stage
    alive_at: float
    watchdog_alive_at: float = math.inf
    stopped: bool = False
    protected: bool = True
    noticed: bool = False
    interrupting: bool = False
    imported_at: float = -math.inf
    out_by: float = math.inf
    limit: Limit | None = None


@value
class SoftTimeout:
    """Announce that the rank makes no progress."""

    reason: str


@value
class QueryPeers:
    """Find out whether a peer that this rank may wait for makes progress; answer with `peers_progressing`."""


@value
class SendSignal:
    """Send the interrupt signal from the monitor process."""

    reason: str


@value
class TerminateRank:
    """Send SIGTERM, also to a stopped process."""

    reason: str


@value
class KillRank:
    """Send SIGKILL."""

    reason: str


HangAction = SoftTimeout | QueryPeers | SendSignal | TerminateRank | KillRank


class _Due(NamedTuple):
    """When a rank that shows no sign of life is reported; until when a peer that makes progress excuses it; why."""

    at: float
    excusable_until: float
    reason: str


@value
class HangDetectorState:
    """The full state of a hang detector; times are relative to now, and infinite for what has not happened.

    Attributes:
        iteration: the round.
        reported: its soft timeout was announced.
        no_peer_progressing: no peer that the rank may wait for makes progress.
        excused: time since the rank was last excused because a peer makes progress.
        signal: time until the main thread is signalled.
        interrupted: time since the interruption of the main thread began.
        stopped: time since the process was first seen to be stopped, in a stage in which it may wait.
        terminated: time since the rank was sent SIGTERM.
    """

    iteration: int
    reported: bool
    no_peer_progressing: bool
    excused: float
    signal: float
    interrupted: float
    stopped: float
    terminated: float


class HangDetector:
    """The hang detector of one rank.

    Args:
        soft: soft timeout, seconds.
        hard: hard timeout, seconds.
        grace: seconds between SIGTERM and SIGKILL.

    Attributes:
        no_progress_since: if the hard timeout expired in a stage in which the rank may wait, the time from which it
            showed no sign of life.
    """

    def __init__(self, soft: float, hard: float, grace: float) -> None:
        self.soft, self.hard, self.grace = soft, hard, grace
        self.deadline = math.inf
        self._iteration = -2
        self._reported = False
        self._excused_at = -math.inf
        self._no_peer_progressing = False
        self._signal_at = math.inf
        self._interrupted_at = math.inf
        self._stopped_at = math.inf
        self._terminated_at = math.inf
        self.no_progress_since: float | None = None

    @classmethod
    def from_state(cls, soft: float, hard: float, grace: float, state: HangDetectorState, *, now: float) -> Self:
        """Restore a detector from its state; its deadline is now."""
        detector = cls(soft, hard, grace)
        detector.deadline = now
        detector._iteration, detector._reported = state.iteration, state.reported
        detector._no_peer_progressing = state.no_peer_progressing
        detector._excused_at, detector._signal_at = now - state.excused, now + state.signal
        detector._interrupted_at, detector._stopped_at = now - state.interrupted, now - state.stopped
        detector._terminated_at = now - state.terminated
        return detector

    def state(self, *, now: float) -> HangDetectorState:
        """Return everything that later decisions depend on; the next `evaluate` recomputes the deadline."""
        return HangDetectorState(
            iteration=self._iteration, reported=self._reported, no_peer_progressing=self._no_peer_progressing,
            excused=now - self._excused_at, signal=self._signal_at - now,
            interrupted=now - self._interrupted_at, stopped=now - self._stopped_at,
            terminated=now - self._terminated_at,
        )  # fmt: skip

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold: only a reported rank is signalled."""
        assert self._reported or self._signal_at == math.inf
        assert not self._reported or self._iteration >= -1

    def evaluate(self, sample: ProgressSample, *, now: float) -> tuple[HangAction, ...]:
        """Return the actions for one sample; `deadline` is the latest time for the next one."""
        self.deadline = math.inf
        if self._terminated_at < math.inf:
            return self._evaluate_terminated(now)
        if sample.iteration != self._iteration:
            self._begin(sample.iteration)
        if not sample.protected or sample.stage in _ENDED:
            return ()
        if sample.stage in _MAY_WAIT:
            return self._evaluate_waiting(sample, now)
        alive_at = max(sample.alive_at, self._excused_at)
        if sample.stage is Stage.RUNNING:
            if sample.interrupting:
                self._interrupted_at = min(self._interrupted_at, now)
            alive_at = min(alive_at, max(self._interrupted_at, sample.imported_at))
        out_by = sample.out_by if sample.stage is Stage.RUNNING else math.inf
        return self._hard(alive_at, now, out_by) or self._soft(sample, alive_at, now)

    def peers_progressing(self, progressing: bool, *, now: float) -> None:
        """Take the answer to `QueryPeers`; to wait for a peer that makes progress counts as a sign of life."""
        if progressing:
            self._excused_at = now
        self._no_peer_progressing = not progressing

    def terminate(self, reason: str, *, now: float) -> TerminateRank:
        """Return the termination of the rank for another reason; `evaluate` kills it when the grace period is over."""
        self._terminated_at, self.deadline = now, now + self.grace
        return TerminateRank(reason)

    def _begin(self, iteration: int) -> None:
        self._iteration, self._reported, self._no_peer_progressing = iteration, False, False
        self._excused_at, self._signal_at, self._interrupted_at = -math.inf, math.inf, math.inf

    def _evaluate_waiting(self, sample: ProgressSample, now: float) -> tuple[HangAction, ...]:
        self._stopped_at = min(self._stopped_at, now) if sample.stopped else math.inf
        since = min(self._stopped_at, sample.watchdog_alive_at)
        actions = self._hard(since, now)
        self.no_progress_since = since if actions else None
        return actions

    def _hard(self, alive_at: float, now: float, out_by: float = math.inf) -> tuple[HangAction, ...]:
        due = min(alive_at + self.hard, out_by)
        if now < due:
            self.deadline = due
            return ()
        self._terminated_at, self.deadline = now, now + self.grace
        if due == out_by:
            return (
                TerminateRank("the round is over, and no signal gets the main thread out of a call that holds the GIL"),
            )
        return (TerminateRank(f"no progress for {now - alive_at:.3g} s (hard_timeout {self.hard:g} s)"),)

    def _evaluate_terminated(self, now: float) -> tuple[HangAction, ...]:
        self.deadline = max(
            self._terminated_at + self.grace, now + 1.0 if now >= self._terminated_at + self.grace else now
        )
        if now < self._terminated_at + self.grace:
            return ()
        return (KillRank(f"still there {self.grace:g} s after SIGTERM"),)

    def _soft(self, sample: ProgressSample, alive_at: float, now: float) -> tuple[HangAction, ...]:
        if sample.stage is not Stage.RUNNING or sample.interrupting:
            return ()
        if self._reported:
            return self._signal(sample, now)
        due = self._due(sample, alive_at, now)
        if now < due.at:
            self.deadline = min(self.deadline, due.at)
            return ()
        if not self._no_peer_progressing and now < due.excusable_until:
            return (QueryPeers(),)
        self._reported, self._signal_at = True, now + SIGNAL_AFTER
        self.deadline = min(self.deadline, self._signal_at)
        return (SoftTimeout(due.reason),)

    def _due(self, sample: ProgressSample, alive_at: float, now: float) -> _Due:
        """When the rank is reported: by its soft timeout, or by a limit of its own that expires before."""
        reason = f"no progress for {now - alive_at:.3g} s (soft_timeout {self.soft:g} s)"
        soft = _Due(alive_at + self.soft, sample.alive_at + self.hard, reason)
        limit = sample.limit
        if limit is None:
            return soft
        expires_at = max(limit.since, self._excused_at) + limit.timeout
        return min(soft, _Due(expires_at, limit.deadline + self.hard, limit.reason(now=now)))

    def _signal(self, sample: ProgressSample, now: float) -> tuple[HangAction, ...]:
        if sample.noticed:
            return ()
        actions: tuple[HangAction, ...] = ()
        if now >= self._signal_at:
            self._signal_at, self._interrupted_at = now + 2 * SIGNAL_AFTER, min(self._interrupted_at, now)
            actions = (SendSignal(NOT_NOTICED),)
        self.deadline = min(self.deadline, self._signal_at)
        return actions
