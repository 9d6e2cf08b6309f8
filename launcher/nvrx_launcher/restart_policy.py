"""What the launcher of one node does when its workers end: restart all, finish, or give up. Pure.

RUNNING --a worker fails--> STOPPING --all are gone--> RUNNING (the next cycle), or ENDED
   |                           ^
   |--a signal arrives---------+
   +--all workers are done--> ENDED
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

__all__ = ["Cause", "EndJob", "JobAction", "RestartPolicy", "StartWorkers", "StopWorkers", "WorkerFailure"]

WORKER_FAILED: Final = 1
"""The launcher's exit code when workers have failed for the last time."""
SIGNALLED: Final = 128
"""Added to the number of a signal that has ended the job."""


class Cause(enum.Enum):
    """Why something is done."""

    START = "start"
    WORKER_FAILED = "worker failed"
    SIGNAL = "signal"
    REQUEST = "request of a rank"
    DONE = "done"


class _Phase(enum.Enum):
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class WorkerFailure:
    """A worker that has failed: its local rank, and how it ended, negative for a signal."""

    local_rank: int
    code: int


@dataclass(frozen=True)
class StartWorkers:
    """Start all workers of this node."""

    cycle: int
    cause: Cause


@dataclass(frozen=True)
class StopWorkers:
    """Send a signal to all workers, and kill those that are there after `grace` seconds."""

    signum: int
    grace: float
    cause: Cause
    reason: str


@dataclass(frozen=True)
class EndJob:
    """End the launcher."""

    code: int
    cause: Cause
    reason: str


JobAction = StartWorkers | StopWorkers | EndJob


class RestartPolicy:
    """Decides about one node's workers.

    Args:
        workers: how many there are.
        max_restarts: how often all are restarted.
        stop_signal: what asks a worker to end.
        stop_grace: seconds that it has, for a restart.
        signal_grace: seconds that it has when the launcher passes a signal on.

    Attributes:
        cycle: how often the workers were restarted.
        failures: of this cycle, in the order in which they were seen.
    """

    def __init__(
        self, workers: int, max_restarts: int, *, stop_signal: int, stop_grace: float, signal_grace: float
    ) -> None:
        self.workers, self.max_restarts = workers, max_restarts
        self._stop_signal, self._stop_grace, self._signal_grace = stop_signal, stop_grace, signal_grace
        self.cycle = 0
        self.failures = list[WorkerFailure]()
        self._phase = _Phase.RUNNING
        self._running = frozenset(range(workers))
        self._end: EndJob | None = None

    def start(self) -> tuple[JobAction, ...]:
        """Begin."""
        return (StartWorkers(0, Cause.START),)

    def worker_exited(self, local_rank: int, code: int) -> tuple[JobAction, ...]:
        """Take the end of a worker; negative codes are signals."""
        self._running -= {local_rank}
        if self._phase is _Phase.STOPPING:
            return () if self._running else self._all_gone()
        if code == 0:
            return () if self._running else self._finish(EndJob(0, Cause.DONE, "all workers are done"))
        self.failures.append(WorkerFailure(local_rank, code))
        return self._after_failure()

    def signalled(self, signum: int) -> tuple[JobAction, ...]:
        """Take a signal to the launcher: it is passed on, and the job ends with it."""
        if self._phase is _Phase.ENDED:
            return ()
        reason = f"the launcher has received signal {signum}"
        self._end = EndJob(SIGNALLED + signum, Cause.SIGNAL, reason)
        self._phase = _Phase.STOPPING
        return (StopWorkers(signum, self._signal_grace, Cause.SIGNAL, reason),)

    def requested(self, code: int, reason: str) -> tuple[JobAction, ...]:
        """Take a rank's request to end the job."""
        if self._phase is not _Phase.RUNNING:
            return ()
        self._end, self._phase = EndJob(code, Cause.REQUEST, reason), _Phase.STOPPING
        return (StopWorkers(self._stop_signal, self._stop_grace, Cause.REQUEST, reason),)

    def check(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        assert 0 <= self.cycle <= self.max_restarts
        assert self._phase is not _Phase.ENDED or not self._running

    def _after_failure(self) -> tuple[JobAction, ...]:
        if self.cycle >= self.max_restarts:
            spent = f"after {self.cycle} restarts" if self.max_restarts else "with --max-restarts 0"
            self._end = EndJob(WORKER_FAILED, Cause.WORKER_FAILED, f"a worker failed {spent}")
        self._phase = _Phase.STOPPING
        if not self._running:
            return self._all_gone()
        reason = f"local rank {self.failures[0].local_rank} has failed"
        return (StopWorkers(self._stop_signal, self._stop_grace, Cause.WORKER_FAILED, reason),)

    def _all_gone(self) -> tuple[JobAction, ...]:
        if self._end is not None:
            return self._finish(self._end)
        self.cycle += 1
        self.failures.clear()
        self._phase, self._running = _Phase.RUNNING, frozenset(range(self.workers))
        return (StartWorkers(self.cycle, Cause.WORKER_FAILED),)

    def _finish(self, end: EndJob) -> tuple[JobAction, ...]:
        self._phase = _Phase.ENDED
        return (end,)
