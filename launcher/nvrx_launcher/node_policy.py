"""The policy of a node's launcher, by the exits of its workers, the job's decisions and signals. Pure.

WAITING --RUN--> RUNNING --all workers are done--> DONE
   ^                |                                |
   |                +--a worker fails, STOP----------+--STOP--> STOPPING --all are gone--> WAITING, or ENDED
   +-------------------------------------------------------------------------+

STOPPING has a deadline (`stopping.py`): workers that survive SIGKILL are given up, and the node leaves.

A node that cannot renew its lease, or reads that it counts as lost, kills its workers: others are about to take their
places. One that could not renew its lease joins again under another number: decisions that it has not read yet may name
its old one.
"""

from __future__ import annotations

import enum
from typing import Final, assert_never

from nvrx_launcher import departure
from nvrx_launcher.departure import Departure, StopTimeouts, kill
from nvrx_launcher.node_actions import (
    AwaitOthers,
    AwaitRound,
    Cause,
    EndLaunch,
    JoinAgain,
    NodeAction,
    SendMessage,
    StartWorkers,
    StopWorkers,
)
from nvrx_launcher.rendezvous.messages import Decision, DecisionKind, MessageKind

__all__ = ["NodePolicy"]

CUT_OFF: Final = "it was cut off"
WORKERS_TIMEOUT: Final = 1.0
"""Seconds from a worker that refuses its command line to the next one, if all do."""
NODES_TIMEOUT: Final = 5.0
"""Seconds from the last of them on this node to those of other nodes."""


class _Phase(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPING = "stopping"
    ENDED = "ended"


class NodePolicy:
    """Decides about one node's workers.

    Args:
        workers: how many there are.
        workers_stop_timeout: seconds that they have when they are asked to end.
        term_timeout: seconds that they have when the launcher passes a signal on.
        min_healthy: a worker that fails does not stop the others.
        retries_misuse: workers that refuse their command line are restarted like others that fail.

    Attributes:
        cycle: the cycle that runs, or has run last; -1 for none.
    """

    def __init__(
        self,
        workers: int,
        *,
        workers_stop_timeout: float,
        term_timeout: float,
        min_healthy: bool = False,
        retries_misuse: bool = True,
    ) -> None:
        self.workers, self._min_healthy, self._retries_misuse = workers, min_healthy, retries_misuse
        self._timeouts = StopTimeouts(workers_stop_timeout, term_timeout)
        self.cycle = -1
        self._phase = _Phase.WAITING
        self._node = -1
        self._running = frozenset[int]()
        self._doubtful = dict[int, str]()
        self._failed, self._misused = set[int](), set[int]()
        self._first_rank = 0
        self._end: EndLaunch | None = None
        self._is_excluded = False
        self._received = 0

    def joined(self, node: int) -> tuple[NodeAction, ...]:
        """Record this node's number, a new one when it joins again; it has no workers."""
        self._node = node
        return self._ready()

    def decided(self, decision: Decision) -> tuple[NodeAction, ...]:  # noqa: PLR0911 - one for each kind
        """Handle a decision for all nodes."""
        if self._phase is _Phase.ENDED:
            return ()
        match decision.kind:
            case DecisionKind.RUN:
                return self._run(decision)
            case DecisionKind.STOP:
                return self._stop_for(decision)
            case DecisionKind.END:
                return self.leave(departure.decided(decision))
            case DecisionKind.LOST:
                return self._kill(f"taken for lost: {decision.reason}") if decision.node == self._node else ()
            case DecisionKind.NOTE | DecisionKind.WARNING | DecisionKind.HANG_SUSPECTED | DecisionKind.HANG_JUDGED:
                return ()
            case DecisionKind.REFUSE:
                return self.leave(departure.refused(decision)) if decision.node == self._node else ()
            case never:
                assert_never(never)

    @property
    def node(self) -> int:
        """This node's number; -1 while it has none."""
        return self._node

    @property
    def is_stopping(self) -> bool:
        """Whether its workers are being ended."""
        return self._phase is _Phase.STOPPING

    def is_at_work(self, local_rank: int) -> bool:
        """Whether a worker is part of the cycle that runs: it is neither being ended nor given up."""
        return self._phase is _Phase.RUNNING and local_rank in self._running

    def rank_of(self, local_rank: int) -> int:
        """Return a worker's rank in the cycle."""
        return self._first_rank + local_rank

    def worker_exited(
        self,
        local_rank: int,
        code: int,
        report: str = "",
        *,
        in_process: bool = False,
        no_progress: bool = False,
        is_misuse: bool = False,
    ) -> tuple[NodeAction, ...]:
        """Handle the exit of a worker.

        Args:
            local_rank: which one.
            code: how it ended, negative for a signal.
            report: the same, for people.
            in_process: the job may go on without it, in process.
            no_progress: no worker of this node has taken a step.
            is_misuse: it refuses its command line, or cannot start by a mistake in the script.
        """
        if local_rank not in self._running:  # it was given up
            return ()
        self._running -= {local_rank}
        if self._phase is _Phase.STOPPING:
            return () if self._running else self._all_gone()
        if code:
            self._failed.add(local_rank)
        if code and in_process:
            self._doubtful[local_rank] = report
            is_nobody_left = len(self._failed) == self.workers
            told = (SendMessage(MessageKind.ALL_FAILED, self.cycle, report),) if is_nobody_left else ()
            return (AwaitRound(self.rank_of(local_rank)), *told)
        if code and is_misuse and no_progress and not self.cycle and not self._retries_misuse:
            return self._await_others(local_rank, report)
        if code:
            return self._fail_or_weaken(report or f"local rank {local_rank} has failed", no_progress=no_progress)
        return self._done_if_all_are()

    def round_answered(self, cycle: int, rank: int, *, is_entered: bool) -> tuple[NodeAction, ...]:
        """Handle the answer to `AwaitRound`.

        Args:
            cycle: the cycle in which it was asked.
            rank: the worker's rank in it.
            is_entered: the job continues without it.
        """
        if cycle != self.cycle or (report := self._doubtful.pop(rank - self._first_rank, None)) is None:
            return ()
        if not is_entered:
            return self._fail(report)
        return self._weaken(report) if self._min_healthy else self._done_if_all_are()

    def waited(self, cycle: int) -> tuple[NodeAction, ...]:
        """Handle the end of `AwaitOthers`: not all workers refuse their command line, so one has failed."""
        if cycle != self.cycle or not self._misused or not self._doubtful:
            return ()
        report = next(iter(self._doubtful.values()))
        self._doubtful.clear()
        return self._fail_or_weaken(report, no_progress=True)

    def signalled(self, signum: int) -> tuple[NodeAction, ...]:
        """Handle a signal to the launcher."""
        self._received += 1
        return self.leave(departure.signalled(signum, before=self._received - 1))

    def survived(self, why: Departure) -> tuple[NodeAction, ...]:
        """Handle that SIGKILL does not end the workers: they are given up, and the node takes no further part."""
        if self._phase is not _Phase.STOPPING:
            return ()
        self._running = frozenset()
        self._end = why.end(self._end)
        self._is_excluded = True
        if self._end is not None:
            return self._all_gone()
        return (SendMessage(MessageKind.LEFT, self.cycle, why.reason), *self._all_gone())

    def leave(self, why: Departure) -> tuple[NodeAction, ...]:
        """Leave the job: end the workers, then the launcher, unless the others need it."""
        is_excluded = why.cause is Cause.EXCLUDED
        if self._phase is _Phase.ENDED or (is_excluded and self._is_excluded):
            return ()
        self._is_excluded = self._is_excluded or is_excluded
        self._end = why.end(self._end)
        stop = self._stop(why.stop(self._timeouts))
        return (SendMessage(MessageKind.LEFT, self.cycle, why.reason), *stop) if why.is_announced else stop

    def lease_expired(self, reason: str) -> tuple[NodeAction, ...]:
        """Handle that the lease cannot be renewed: the others consider this node lost, so its workers are killed."""
        if self._phase is _Phase.ENDED or self._node < 0:
            return ()
        self._node = -1
        return self._stop(kill(Cause.CUT_OFF, reason))

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        assert bool(self._running or self._doubtful) == (self._phase in (_Phase.RUNNING, _Phase.STOPPING))

    def _fail_or_weaken(self, report: str, *, no_progress: bool) -> tuple[NodeAction, ...]:
        kind = MessageKind.NO_PROGRESS if no_progress else MessageKind.FAILED
        return self._weaken(report) if self._min_healthy else self._fail(report, kind)

    def _await_others(self, local_rank: int, report: str) -> tuple[NodeAction, ...]:
        """Keep the other workers, to learn whether all refuse their command line: then a restart would not help."""
        self._doubtful[local_rank] = report
        self._misused.add(local_rank)
        if len(self._misused) < self.workers:
            return (AwaitOthers(self.cycle, WORKERS_TIMEOUT),)
        return (SendMessage(MessageKind.MISUSED, self.cycle, report), AwaitOthers(self.cycle, NODES_TIMEOUT))

    def _weaken(self, reason: str) -> tuple[NodeAction, ...]:
        return (SendMessage(MessageKind.UNHEALTHY, self.cycle, reason), *self._done_if_all_are())

    def _kill(self, reason: str) -> tuple[NodeAction, ...]:
        """Kill the workers; a node without workers reports again that it is ready."""
        if self._phase is _Phase.WAITING:
            return self._ready(reason)
        return self._stop(kill(Cause.CUT_OFF, reason))

    def _fail(self, reason: str, kind: MessageKind = MessageKind.FAILED) -> tuple[NodeAction, ...]:
        return (SendMessage(kind, self.cycle, reason), *self._stop(self._timeouts.ask(Cause.WORKER_FAILED, reason)))

    def _done_if_all_are(self) -> tuple[NodeAction, ...]:
        """Report that this node is done, unless it is unknown whether the job continues without one of its workers."""
        if self._running or self._doubtful:
            return ()
        self._phase = _Phase.DONE
        return (SendMessage(MessageKind.DONE, self.cycle),)

    def _run(self, decision: Decision) -> tuple[NodeAction, ...]:
        if self._phase is not _Phase.WAITING:
            return ()
        for group_rank, place in enumerate(decision.members):
            if place.node == self._node:
                self.cycle, self._phase = decision.cycle, _Phase.RUNNING
                self._running = frozenset(range(self.workers))
                self._failed, self._misused = set(), set()
                self._first_rank = place.first_rank
                return (StartWorkers(decision, group_rank, place),)
        return ()

    def _stop_for(self, decision: Decision) -> tuple[NodeAction, ...]:
        if decision.cycle != self.cycle or self._phase is _Phase.WAITING:
            return ()
        return self._stop(self._timeouts.ask(Cause.DECISION, decision.reason))

    def _stop(self, stop: StopWorkers) -> tuple[NodeAction, ...]:
        """Stop the workers, if there are any; those that are being stopped get no second signal by a decision."""
        self._doubtful.clear()
        if not self._running:
            return self._all_gone()
        if self._phase is _Phase.STOPPING and stop.cause is Cause.DECISION:
            return ()
        self._phase = _Phase.STOPPING
        return (stop,)

    def _all_gone(self) -> tuple[NodeAction, ...]:
        if self._end is not None:
            self._phase = _Phase.ENDED
            return (SendMessage(MessageKind.LEFT, self.cycle, self._end.reason), self._end)
        self._phase = _Phase.WAITING
        if self._node < 0 and not self._is_excluded:  # cut off; it has left when its workers are gone, and not before
            return (SendMessage(MessageKind.LEFT, self.cycle, CUT_OFF), JoinAgain(CUT_OFF))
        return self._ready()

    def _ready(self, reason: str = "") -> tuple[NodeAction, ...]:
        return () if self._is_excluded else (SendMessage(MessageKind.READY, self.cycle, reason),)
