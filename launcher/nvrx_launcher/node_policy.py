"""The policy of a node's launcher, by the exits of its workers, the job's decisions and signals. Pure.

WAITING --RUN--> RUNNING --all workers are done--> DONE
   ^                |                                |
   |                +--a worker fails, STOP----------+--STOP--> STOPPING --all are gone--> WAITING, or ENDED
   +-------------------------------------------------------------------------+

A node that cannot move its lease, or hears that it is taken for lost, kills its workers: others are about to take their
places. One that could not move its lease joins again under another number: decisions that it has not heard of yet may
place its old one.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import assert_never

from nvrx_launcher.exit_codes import FAILED, SIGNALLED
from nvrx_launcher.rendezvous.messages import Decision, Member, MessageKind, Verdict

__all__ = [
    "AwaitRound",
    "Cause",
    "EndLaunch",
    "JoinAgain",
    "NodeAction",
    "NodePolicy",
    "StartWorkers",
    "StopWorkers",
    "Tell",
]


class Cause(enum.Enum):
    """The cause of an action."""

    DECISION = "decision"
    WORKER_FAILED = "worker failed"
    SIGNAL = "signal"
    STORE_LOST = "store lost"
    CUT_OFF = "cut off"
    EXCLUDED = "excluded"


class _Phase(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class StartWorkers:
    """Start this node's workers, at this place of a decision."""

    decision: Decision
    group_rank: int
    place: Member


@dataclass(frozen=True)
class StopWorkers:
    """Send a signal to all workers, and kill those that are there after `grace` seconds; `inf` for a SIGKILL."""

    signum: int
    grace: float
    cause: Cause
    reason: str


@dataclass(frozen=True)
class Tell:
    """Send a message to the coordinator."""

    kind: MessageKind
    cycle: int
    reason: str = ""


@dataclass(frozen=True)
class EndLaunch:
    """End the launcher; its workers are gone."""

    code: int
    cause: Cause
    reason: str


@dataclass(frozen=True)
class AwaitRound:
    """Find out whether in-process restart continues without a rank; answer with `round_entered` or `no_round`."""

    local_rank: int
    rank: int


@dataclass(frozen=True)
class JoinAgain:
    """Join the job under another number, as soon as the store can be reached; answer with `joined`."""


NodeAction = JoinAgain | StartWorkers | StopWorkers | Tell | EndLaunch | AwaitRound


class NodePolicy:
    """Decides about one node's workers.

    Args:
        workers: how many there are.
        stop_signal: what asks a worker to end.
        stop_grace: seconds that it has.
        signal_grace: seconds that it has when the launcher passes a signal on.
        kill_signal: what ends a worker at once.
        min_healthy: a worker that fails does not stop the others.

    Attributes:
        cycle: the cycle that runs, or has run last; -1 for none.
    """

    def __init__(
        self,
        workers: int,
        *,
        stop_signal: int,
        stop_grace: float,
        signal_grace: float,
        kill_signal: int,
        min_healthy: bool = False,
    ) -> None:
        self.workers, self._min_healthy, self._kill_signal = workers, min_healthy, kill_signal
        self._stop_signal, self._stop_grace, self._signal_grace = stop_signal, stop_grace, signal_grace
        self.cycle = -1
        self._phase = _Phase.WAITING
        self._node = -1
        self._running = frozenset[int]()
        self._doubtful = dict[int, str]()
        self._first_rank = 0
        self._end: EndLaunch | None = None
        self._is_excluded = False

    def joined(self, node: int) -> tuple[NodeAction, ...]:
        """Record this node's number, a new one when it joins again; it has no workers."""
        self._node = node
        return self._ready()

    def decided(self, decision: Decision) -> tuple[NodeAction, ...]:
        """Handle a decision for all nodes."""
        if self._phase is _Phase.ENDED:
            return ()
        match decision.verdict:
            case Verdict.RUN:
                return self._run(decision)
            case Verdict.STOP:
                return self._stop_for(decision)
            case Verdict.END:
                self._end = self._end or EndLaunch(decision.code, Cause.DECISION, decision.reason)
                return self._stop(self._stop_signal, self._stop_grace, Cause.DECISION, decision.reason)
            case Verdict.LOST:
                return self._kill(f"taken for lost: {decision.reason}") if decision.node == self._node else ()
            case Verdict.REFUSE:
                return self._refused(decision) if decision.node == self._node else ()
            case never:
                assert_never(never)

    @property
    def is_stopping(self) -> bool:
        """Whether its workers are being ended."""
        return self._phase is _Phase.STOPPING

    def rank_of(self, local_rank: int) -> int:
        """Return a worker's rank in the cycle."""
        return self._first_rank + local_rank

    def worker_exited(
        self, local_rank: int, code: int, report: str = "", *, in_process: bool = False, is_fruitless: bool = False
    ) -> tuple[NodeAction, ...]:
        """Handle the exit of a worker.

        Args:
            local_rank: which one.
            code: how it ended, negative for a signal.
            report: the same, for people.
            in_process: the job may go on without it, in process.
            is_fruitless: no worker of this node has taken a step.
        """
        self._running -= {local_rank}
        if self._phase is _Phase.STOPPING:
            return () if self._running else self._all_gone()
        if code and in_process:
            self._doubtful[local_rank] = report
            return (AwaitRound(local_rank, self.rank_of(local_rank)),)
        if code:
            return self._fail_or_weaken(report or f"local rank {local_rank} has failed", is_fruitless=is_fruitless)
        return self._done_if_all_are()

    def round_entered(self, cycle: int, local_rank: int) -> tuple[NodeAction, ...]:
        """Record that the job continues without a worker."""
        if cycle != self.cycle or (report := self._doubtful.pop(local_rank, None)) is None:
            return ()
        return self._weaken(report) if self._min_healthy else self._done_if_all_are()

    def no_round(self, cycle: int, local_rank: int) -> tuple[NodeAction, ...]:
        """Record that the job does not continue without a worker."""
        if cycle != self.cycle or (report := self._doubtful.pop(local_rank, None)) is None:
            return ()
        return self._fail(report)

    def signalled(self, signum: int) -> tuple[NodeAction, ...]:
        """Handle a signal to the launcher: it is passed on to the workers, and the node leaves the job."""
        if self._phase is _Phase.ENDED:
            return ()
        reason = f"the launcher has received signal {signum}"
        self._end = EndLaunch(SIGNALLED + signum, Cause.SIGNAL, reason)
        left = Tell(MessageKind.LEFT, self.cycle, reason)
        return (left, *self._stop(signum, self._signal_grace, Cause.SIGNAL, reason))

    def excluded(self, reason: str, *, is_needed: bool) -> tuple[NodeAction, ...]:
        """Handle that this node is excluded from the job.

        Args:
            reason: for people.
            is_needed: the others need its launcher, which stays, without workers, until the job ends.
        """
        if self._phase is _Phase.ENDED or self._is_excluded:
            return ()
        self._is_excluded = True
        if not is_needed:
            self._end = self._end or EndLaunch(FAILED, Cause.EXCLUDED, reason)
        left = Tell(MessageKind.LEFT, self.cycle, reason)
        return (left, *self._stop(self._stop_signal, self._stop_grace, Cause.EXCLUDED, reason))

    def coordination_lost(self, code: int, reason: str) -> tuple[NodeAction, ...]:
        """Handle the loss of the coordinator: this node cannot continue."""
        if self._phase is _Phase.ENDED:
            return ()
        self._end = self._end or EndLaunch(code, Cause.STORE_LOST, reason)
        return self._stop(self._stop_signal, self._stop_grace, Cause.STORE_LOST, reason)

    def cut_off(self, reason: str) -> tuple[NodeAction, ...]:
        """Handle that the lease cannot be renewed: the others consider this node lost, so its workers are killed."""
        if self._phase is _Phase.ENDED or self._node < 0:
            return ()
        self._node = -1
        return self._stop(self._kill_signal, math.inf, Cause.CUT_OFF, reason)

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        assert bool(self._running or self._doubtful) == (self._phase in (_Phase.RUNNING, _Phase.STOPPING))

    def _fail_or_weaken(self, report: str, *, is_fruitless: bool) -> tuple[NodeAction, ...]:
        kind = MessageKind.FRUITLESS if is_fruitless else MessageKind.FAILED
        return self._weaken(report) if self._min_healthy else self._fail(report, kind)

    def _weaken(self, reason: str) -> tuple[NodeAction, ...]:
        return (Tell(MessageKind.UNHEALTHY, self.cycle, reason), *self._done_if_all_are())

    def _kill(self, reason: str) -> tuple[NodeAction, ...]:
        """Kill the workers; a node without workers reports again that it is ready."""
        if self._phase is _Phase.WAITING:
            return self._ready(reason)
        return self._stop(self._kill_signal, math.inf, Cause.CUT_OFF, reason)

    def _refused(self, decision: Decision) -> tuple[NodeAction, ...]:
        self._end = EndLaunch(decision.code, Cause.DECISION, decision.reason)
        return self._stop(self._kill_signal, math.inf, Cause.DECISION, decision.reason)

    def _fail(self, reason: str, kind: MessageKind = MessageKind.FAILED) -> tuple[NodeAction, ...]:
        told = Tell(kind, self.cycle, reason)
        return (told, *self._stop(self._stop_signal, self._stop_grace, Cause.WORKER_FAILED, reason))

    def _done_if_all_are(self) -> tuple[NodeAction, ...]:
        """Report that this node is done, unless it is unknown whether the job continues without one of its workers."""
        if self._running or self._doubtful:
            return ()
        self._phase = _Phase.DONE
        return (Tell(MessageKind.DONE, self.cycle),)

    def _run(self, decision: Decision) -> tuple[NodeAction, ...]:
        if self._phase is not _Phase.WAITING:
            return ()
        for group_rank, place in enumerate(decision.members):
            if place.node == self._node:
                self.cycle, self._phase = decision.cycle, _Phase.RUNNING
                self._running = frozenset(range(self.workers))
                self._first_rank = place.first_rank
                return (StartWorkers(decision, group_rank, place),)
        return ()

    def _stop_for(self, decision: Decision) -> tuple[NodeAction, ...]:
        if decision.cycle != self.cycle or self._phase is _Phase.WAITING:
            return ()
        return self._stop(self._stop_signal, self._stop_grace, Cause.DECISION, decision.reason)

    def _stop(self, signum: int, grace: float, cause: Cause, reason: str) -> tuple[NodeAction, ...]:
        """Stop the workers, if there are any; those that are being stopped get no second signal by a decision."""
        self._doubtful.clear()
        if not self._running:
            return self._all_gone()
        if self._phase is _Phase.STOPPING and cause is Cause.DECISION:
            return ()
        self._phase = _Phase.STOPPING
        return (StopWorkers(signum, grace, cause, reason),)

    def _all_gone(self) -> tuple[NodeAction, ...]:
        if self._end is not None:
            self._phase = _Phase.ENDED
            return (Tell(MessageKind.LEFT, self.cycle, self._end.reason), self._end)
        self._phase = _Phase.WAITING
        if self._node < 0 and not self._is_excluded:  # cut off; it has left when its workers are gone, and not before
            return (Tell(MessageKind.LEFT, self.cycle, "it was cut off"), JoinAgain())
        return self._ready()

    def _ready(self, reason: str = "") -> tuple[NodeAction, ...]:
        return () if self._is_excluded else (Tell(MessageKind.READY, self.cycle, reason),)
