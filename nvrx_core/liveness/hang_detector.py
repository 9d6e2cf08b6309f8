"""A rank's own progress, as a pure machine: when it counts as hung, and when it is ended.

Soft timeout: restarts everyone and ends nobody. Hard timeout: ends the rank, after it had the time to confirm an
interruption by leaving the function. Both count from the oldest of the rank's signs of life that are in use: bytecode
run (always), `ping`, and a growing `progress` counter; the hard one also from the interruption, for a function that
swallows it runs bytecode all the while. A rank that waits for another one is not hung: before it is reported, the
others' leases are looked at, and it is excused while one that is behind it is alive, for the hard timeout at most.
Where a rank may wait for any time no progress is expected, and one whose process is stopped, or whose interpreter is
held by another thread, looks like one that waits: there the hard timeout counts from the stop, and from the last time
that the rank's own watchdog thread ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

from nvrx_core.progress.stage import Stage

__all__ = [
    "HangDetector",
    "HangDetectorState",
    "Kill",
    "Poke",
    "ProgressSample",
    "QueryPeers",
    "SoftTimeout",
    "Terminate",
]

POKE_AFTER: Final = 0.05
"""Seconds that the rank's monitor thread has to act on a soft timeout before the main thread is poked from outside."""


@dataclass(frozen=True)
class ProgressSample:
    """What the progress page says, in seconds.

    Attributes:
        iteration: the round.
        stage: what the main thread is about.
        alive_at: the oldest sign of life in use.
        breathing_at: when the rank's watchdog thread last ran; `inf` when it is not there.
        stopped: the process is stopped, as by SIGSTOP.
        protected: False while the user has switched hang protection off.
        noticed: the monitor thread has seen this round's event.
        interrupting: the round has ended, and the main thread is being interrupted.
        out_by: when a main thread that keeps the interpreter's lock has to be out of a round that is over; `inf` in an
            atomic section, which is only ended by the hard timeout.
    """

    iteration: int
    stage: Stage
    alive_at: float
    breathing_at: float = math.inf
    stopped: bool = False
    protected: bool = True
    noticed: bool = False
    interrupting: bool = False
    out_by: float = math.inf


@dataclass(frozen=True)
class SoftTimeout:
    """Announce that the rank makes no progress."""

    reason: str


@dataclass(frozen=True)
class QueryPeers:
    """Find out whether a member that this one may wait for is still on the way; answer with `peers_progressing`."""


@dataclass(frozen=True)
class Poke:
    """Send the interrupt signal from outside: the rank's own threads do not run."""


@dataclass(frozen=True)
class Terminate:
    """SIGCONT and SIGTERM."""

    reason: str


@dataclass(frozen=True)
class Kill:
    """SIGCONT, SIGTERM and SIGKILL."""

    reason: str


WatchAction = SoftTimeout | QueryPeers | Poke | Terminate | Kill


@dataclass(frozen=True)
class HangDetectorState:
    """What decides a watch's future; times are relative to now, and infinite for what has not happened.

    Attributes:
        iteration: the round that is judged.
        reported: its soft timeout was announced.
        to_blame: no other member is on the way.
        excused: since one was.
        poke: until the main thread is poked.
        interrupted: since the main thread is being interrupted.
        stopped: since the process was seen to be stopped, while it may wait.
        terminated: since the rank was told to end.
    """

    iteration: int
    reported: bool
    to_blame: bool
    excused: float
    poke: float
    interrupted: float
    stopped: float
    terminated: float


class HangDetector:
    """Judges one rank.

    Args:
        soft: soft timeout, seconds.
        hard: hard timeout, seconds.
        grace: seconds between SIGTERM and SIGKILL.

    Attributes:
        stood_still_since: from when on a rank that may wait had shown no life, when that has ended it.
    """

    def __init__(self, soft: float, hard: float, grace: float) -> None:
        self.soft, self.hard, self.grace = soft, hard, grace
        self.deadline = math.inf
        self._iteration = -2
        self._reported = False
        self._excused_at = -math.inf
        self._to_blame = False
        self._poke_at = math.inf
        self._interrupted_at = math.inf
        self._stopped_at = math.inf
        self._terminated_at = math.inf
        self.stood_still_since: float | None = None

    @classmethod
    def from_state(cls, soft: float, hard: float, grace: float, state: HangDetectorState, *, now: float) -> Self:
        """The watch that had this state; it wants to look at once."""
        watch = cls(soft, hard, grace)
        watch.deadline = now
        watch._iteration, watch._reported, watch._to_blame = state.iteration, state.reported, state.to_blame
        watch._excused_at, watch._poke_at = now - state.excused, now + state.poke
        watch._interrupted_at, watch._stopped_at = now - state.interrupted, now - state.stopped
        watch._terminated_at = now - state.terminated
        return watch

    def state(self, *, now: float) -> HangDetectorState:
        """All that decides what it says next; its deadline follows from the next look."""
        return HangDetectorState(
            iteration=self._iteration, reported=self._reported, to_blame=self._to_blame,
            excused=now - self._excused_at, poke=self._poke_at - now,
            interrupted=now - self._interrupted_at, stopped=now - self._stopped_at,
            terminated=now - self._terminated_at,
        )  # fmt: skip

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold: who is poked was reported."""
        assert self._reported or self._poke_at == math.inf
        assert not self._reported or self._iteration >= -1

    def look(self, reading: ProgressSample, *, now: float) -> tuple[WatchAction, ...]:
        """What the page says asks for; `deadline` says when to look again at the latest."""
        self.deadline = math.inf
        if self._terminated_at < math.inf:
            return self._ending(now)
        if reading.iteration != self._iteration:
            self._begin(reading.iteration)
        if not reading.protected or reading.stage in (Stage.LEFT, Stage.EXITED_ABNORMALLY):
            return ()
        if reading.stage in (Stage.OUTSIDE, Stage.WAITING, Stage.ARRIVED):
            return self._lifeless(reading, now)
        alive_at = max(reading.alive_at, self._excused_at)
        if reading.interrupting and reading.stage is Stage.RUNNING:
            self._interrupted_at = min(self._interrupted_at, now)
            alive_at = min(alive_at, self._interrupted_at)
        out_by = reading.out_by if reading.stage is Stage.RUNNING else math.inf
        return self._hard(alive_at, now, out_by) or self._soft(reading, alive_at, now)

    def peers_progressing(self, on_the_way: bool, *, now: float) -> None:
        """The answer to `QueryPeers`; waiting for somebody who is on the way is a sign of life."""
        if on_the_way:
            self._excused_at = now
        self._to_blame = not on_the_way

    def _begin(self, iteration: int) -> None:
        self._iteration, self._reported, self._to_blame = iteration, False, False
        self._excused_at, self._poke_at, self._interrupted_at = -math.inf, math.inf, math.inf

    def _lifeless(self, reading: ProgressSample, now: float) -> tuple[WatchAction, ...]:
        self._stopped_at = min(self._stopped_at, now) if reading.stopped else math.inf
        since = min(self._stopped_at, reading.breathing_at)
        actions = self._hard(since, now)
        self.stood_still_since = since if actions else None
        return actions

    def _hard(self, alive_at: float, now: float, out_by: float = math.inf) -> tuple[WatchAction, ...]:
        due = min(alive_at + self.hard, out_by)
        if now < due:
            self.deadline = due
            return ()
        self._terminated_at, self.deadline = now, now + self.grace
        if due == out_by:
            return (
                Terminate("the round is over, and no signal gets the main thread out of a call that holds the GIL"),
            )
        return (Terminate(f"no progress for {now - alive_at:.3g} s (hard_timeout {self.hard:g} s)"),)

    def _ending(self, now: float) -> tuple[WatchAction, ...]:
        self.deadline = max(
            self._terminated_at + self.grace, now + 1.0 if now >= self._terminated_at + self.grace else now
        )
        if now < self._terminated_at + self.grace:
            return ()
        return (Kill(f"still there {self.grace:g} s after SIGTERM"),)

    def _soft(self, reading: ProgressSample, alive_at: float, now: float) -> tuple[WatchAction, ...]:
        if reading.stage is not Stage.RUNNING:
            return ()
        if self._reported:
            return self._poke(reading, now)
        if now < alive_at + self.soft:
            self.deadline = min(self.deadline, alive_at + self.soft)
            return ()
        if not self._to_blame and now < reading.alive_at + self.hard:
            return (QueryPeers(),)
        self._reported, self._poke_at = True, now + POKE_AFTER
        self.deadline = min(self.deadline, self._poke_at)
        return (SoftTimeout(f"no progress for {now - alive_at:.3g} s (soft_timeout {self.soft:g} s)"),)

    def _poke(self, reading: ProgressSample, now: float) -> tuple[WatchAction, ...]:
        if reading.noticed:
            return ()
        actions: tuple[WatchAction, ...] = ()
        if now >= self._poke_at:
            self._poke_at = now + 2 * POKE_AFTER
            actions = (Poke(),)
        self.deadline = min(self.deadline, self._poke_at)
        return actions
